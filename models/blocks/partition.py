r"""Sums over all joint labelings of linked points, exact by the structure of the link graph.

Labels :math:`z_1..z_N` in :math:`\{0..K-1\}` have the unnormalised density

.. math:: \prod_i e^{u_{i z_i}} \prod_{(i,j)} e^{w_{ij} [z_i = z_j]},

with :math:`\log Z` its sum. Everything else follows from one differentiable function: the gradient
of :math:`\log Z` in :math:`u` is the matrix of responsibilities, the gradient in :math:`w` the
probability that two linked labels agree (Lu 2008, section 2.6; star and tree formulas own).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from .approximate import Exact, Inference, as_inference
from .label_graph import Core, LabelGraph, Run
from .potts import FORBIDDEN, logsumexp, potts_message

__all__ = [
    "by_component",
    "check_inference",
    "entropy",
    "log_partition",
    "mode",
    "pair_marginals",
    "responsibilities",
    "sample",
]

Reduce = Callable[[Array, Array], Array]
"""Sums out the last axis of a table of log-potentials; the second argument numbers the step."""


def log_partition(
    unary: ArrayLike,
    graph: LabelGraph,
    log_weights: ArrayLike | None = None,
    pair_weights: ArrayLike | None = None,
    *,
    sampling: str = "points",
    inference: str | Inference = "exact",
) -> Array:
    r"""Logarithm of the sum over all joint labelings.

    Parameters
    ----------
    unary : array_like, shape (num_points, num_clusters)
        Log-potentials of each label at each point; ``-inf`` excludes a label.
    graph : LabelGraph
    log_weights : array_like, shape (num_clusters,), optional
        Log mixing weights, kept apart from `unary` so that the sampling assumption can be chosen.
    pair_weights : array_like, shape (num_links,), optional
        Replaces the finite weights of the links; hard links stay hard.
    sampling : {"points", "chunklets"}
        A chunklet of n points tied by hard must-links carries :math:`\pi_k^n`, its points being
        drawn one by one and then found to agree (Lu's PPC; Shental's assumption 2), or
        :math:`\pi_k` once, chunklets being drawn as such (assumption 1).
    inference : str or inference object
        What to do with loopy components whose tables exceed the budget of `Exact`. Anything but
        "exact" is an approximation.

    Returns
    -------
    Array, shape ()

    Raises
    ------
    ValueError
        If a component is too wide for exact elimination and no approximation is named.
    """
    parts = _run(unary, graph, log_weights, pair_weights, sampling, inference, _logsumexp)
    value = sum(value.sum() for value, _ in parts)
    return jnp.where(value < FORBIDDEN / 2, -jnp.inf, value)


def by_component(
    unary: ArrayLike,
    graph: LabelGraph,
    log_weights: ArrayLike | None = None,
    pair_weights: ArrayLike | None = None,
    *,
    sampling: str = "points",
    inference: str | Inference = "exact",
) -> Array:
    """One term of `log_partition` for each connected component, shape (num_components,)."""
    parts = _run(unary, graph, log_weights, pair_weights, sampling, inference, _logsumexp)
    out = jnp.zeros(graph.num_components, parts[0][0].dtype)
    for value, component in parts:
        out = out.at[component].add(value)
    return jnp.where(out < FORBIDDEN / 2, -jnp.inf, out)


def responsibilities(
    unary: ArrayLike, graph: LabelGraph, *args: ArrayLike | None, **options
) -> Array:
    """Marginal label probabilities of each point, shape (num_points, num_clusters)."""
    return jax.grad(log_partition)(jnp.asarray(unary), graph, *args, **options)


def pair_marginals(
    unary: ArrayLike,
    graph: LabelGraph,
    log_weights: ArrayLike | None = None,
    pair_weights: ArrayLike | None = None,
    **options,
) -> Array:
    """Probability that the labels of each linked pair agree, shape (num_links,)."""
    weights = graph.pair_weights if pair_weights is None else pair_weights
    weights = _finite(jnp.asarray(weights), graph)
    same = jax.grad(log_partition, argnums=3)(
        jnp.asarray(unary), graph, log_weights, weights, **options
    )
    return jnp.where(jnp.isposinf(graph.pair_weights), 1.0, same)


def entropy(unary: ArrayLike, graph: LabelGraph, *args: ArrayLike | None, **options) -> Array:
    """Entropy of the joint distribution of all labels, in nats (exact inference)."""
    bound = _bind(unary, graph, *args)
    value, slope = jax.value_and_grad(
        lambda factors: log_partition(factors[0], graph, *factors[1:], **options)
    )(bound)
    terms = jax.tree.map(
        lambda s, f: jnp.sum(jnp.where(s != 0, s * jnp.where(s != 0, f, 0.0), 0.0)), slope, bound
    )
    return value - sum(jax.tree.leaves(terms))


def sample(
    rng_key: Array,
    unary: ArrayLike,
    graph: LabelGraph,
    log_weights: ArrayLike | None = None,
    pair_weights: ArrayLike | None = None,
    *,
    sampling: str = "points",
    inference: str | Inference = "exact",
) -> Array:
    """Draw all labels jointly and exactly, shape (num_points,).

    Forward filtering, backward sampling: elimination as in `log_partition`, with each summation
    differentiated to a drawn label instead of a distribution.
    """
    data = (
        jax.random.key_data(rng_key)
        if jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key)
        else rng_key
    )
    reduce = partial(_drawn_logsumexp, data)
    return _traceback(reduce, unary, graph, log_weights, pair_weights, sampling, inference)


def mode(
    unary: ArrayLike,
    graph: LabelGraph,
    log_weights: ArrayLike | None = None,
    pair_weights: ArrayLike | None = None,
    *,
    sampling: str = "points",
    inference: str | Inference = "exact",
) -> Array:
    """Most probable joint labeling (max-product), shape (num_points,); it keeps all hard links."""
    return _traceback(_argmax, unary, graph, log_weights, pair_weights, sampling, inference)


def check_inference(graph: LabelGraph, num_clusters: int, inference: str | Inference) -> str | None:
    """Name the approximation that `inference` will make on this graph, None if it stays exact.

    Raises
    ------
    ValueError
        If a component is too wide and no approximation is named.
    """
    method = as_inference(inference)
    wide = [core for core in graph.cores if not method.affords(core, num_clusters)]
    if not wide:
        return None
    if isinstance(method, Exact):
        core = wide[-1]
        width = "beyond any budget" if core.width is None else str(core.width)
        cells = (
            ""
            if core.width is None
            else (
                f" (tables of {core.num_buckets} x {num_clusters}^{core.width + 1} = "
                f"{core.num_buckets * num_clusters ** (core.width + 1):.3g} cells; max_table is "
                f"{method.max_table:.3g})"
            )
        )
        raise ValueError(
            f"a loopy component of {core.largest} chunklets has elimination width {width}{cells}; "
            "name an approximation, inference='mean_field', 'belief_propagation' or 'gibbs', or raise "
            "the budget, Exact(max_table=...)"
        )
    return f"{method.name} on {sum(core.num_buckets for core in wide)} chunklets in loops"


# ---- elimination ---------------------------------------------------------------------------------


def _bind(unary, graph, log_weights=None, pair_weights=None):
    unary = jnp.asarray(unary)
    if log_weights is None:
        log_weights = jnp.zeros(unary.shape[1], unary.dtype)
    if pair_weights is None:
        pair_weights = graph.pair_weights
    return unary, jnp.asarray(log_weights), _finite(jnp.asarray(pair_weights), graph)


def _finite(weights: Array, graph: LabelGraph) -> Array:
    return jnp.where(jnp.isinf(jnp.asarray(graph.pair_weights)), 0.0, weights)


def _run(unary, graph, log_weights, pair_weights, sampling, inference, reduce):
    """Eliminate every label; returns terms of log Z with the component that each belongs to."""
    unary, log_weights, weights = _bind(unary, graph, log_weights, pair_weights)
    if unary.ndim != 2 or unary.shape[0] != graph.num_points:
        raise ValueError(
            f"unary has shape {unary.shape}; expected ({graph.num_points}, num_clusters)"
        )
    if sampling not in ("points", "chunklets"):
        raise ValueError(f"sampling = {sampling!r}; expected 'points' or 'chunklets'")
    num_clusters = unary.shape[1]
    method = as_inference(inference)
    check_inference(graph, num_clusters, method)
    unary = jnp.maximum(unary, FORBIDDEN)

    if graph.num_nodes == graph.num_points:
        belief = unary + jnp.maximum(log_weights, FORBIDDEN)
    else:
        count = graph.node_size[:, None] if sampling == "points" else 1.0
        belief = jax.ops.segment_sum(unary, graph.node, graph.num_nodes)
        belief = belief + count * jnp.maximum(log_weights, FORBIDDEN)
    edge_weights = jax.ops.segment_sum(weights, graph.edge_of_link, graph.num_edges + 2)
    edge_weights = jnp.where(graph.forbidden, FORBIDDEN, edge_weights)

    if graph.runs or graph.cores:
        for number, run in enumerate(graph.runs):
            belief = _absorb_leaves(belief, edge_weights, run, reduce, number)
        roots = jnp.where(graph.is_root, reduce(belief, np.uint32(0)), 0.0)
    else:
        roots = reduce(belief, np.uint32(0))
    parts = [(roots, graph.node_component)]
    if graph.num_links and graph.num_nodes < graph.num_points:
        inside = jnp.where(graph.edge_of_link > graph.num_edges, weights, 0.0)
        parts.append((inside, graph.component[graph.pairs[:, 0]]))
    for number, core in enumerate(graph.cores):
        if method.affords(core, num_clusters):
            value = _eliminate_core(belief, edge_weights, core, reduce, number)
            node = jnp.where(core.is_root, core.node, 0)
        else:
            value = method.log_partition(belief, edge_weights, core.colouring)
            node = core.colouring.node
        component = jnp.asarray(graph.node_component)[node]
        parts.append((value.ravel(), component.ravel()))
    return parts


def _absorb_leaves(belief, edge_weights, run: Run, reduce: Reduce, number: int):
    """Send the message of every leaf of one round to its parent, round after round."""

    def absorb(belief, step):
        child, parent, edge, index = step
        leaf = belief.at[child].get(mode="fill", fill_value=0.0)
        message = _message(leaf, edge_weights[edge], reduce, index)
        return belief.at[parent].add(message, mode="drop"), None  # padding falls off the end

    rounds = run.child.shape[0]
    index = np.arange(rounds, dtype=np.uint32) + np.uint32(1 + (number << 24))
    steps = (run.child, run.parent, run.edge, index)
    if rounds == 1:
        return absorb(belief, jax.tree.map(lambda a: jnp.asarray(a)[0], steps))[0]
    return lax.scan(absorb, belief, jax.tree.map(jnp.asarray, steps))[0]


def _message(belief, weight, reduce: Reduce, index):
    if reduce is _logsumexp:
        return potts_message(belief, weight)
    equal = np.eye(belief.shape[1], dtype=bool)
    return reduce(belief[:, None, :] + jnp.where(equal, weight[:, None, None], 0.0), index)


def _eliminate_core(belief, edge_weights, core: Core, reduce: Reduce, number: int):
    """Bucket elimination; returns log Z of each component at its last bucket, else zero."""
    num_clusters, width = belief.shape[1], core.width
    cells = num_clusters ** (width + 1)
    digits = np.indices((num_clusters,) * (width + 1)).reshape(width + 1, cells)
    # axis 0 is the eliminated label; bag label p has stride K^(width - 1 - p) in a message
    equal = jnp.asarray(digits[:1] == digits[1:], belief.dtype)
    strides = num_clusters ** np.arange(width - 1, -1, -1)

    def eliminate(tables, step):
        node, position, parent, bag_edge, axis, root, index = step
        table = tables[position] + belief.at[node].get(mode="fill", fill_value=0.0)[:, digits[0]]
        table = table + edge_weights[bag_edge] @ equal
        table = table.reshape(-1, num_clusters, cells // num_clusters)
        message = reduce(jnp.moveaxis(table, 1, 2), index)
        place = axis[:, :, None] == np.arange(width + 1)
        stride = jnp.sum(jnp.where(place, strides[:, None], 0), axis=1)
        source = stride @ digits
        spread = jnp.take_along_axis(message, source, axis=1)
        spread = jnp.where((root | (position >= core.num_buckets))[:, None], 0.0, spread)
        return tables.at[parent].add(spread), jnp.where(root, message[:, 0], 0.0)

    blocks = core.node.shape[0]
    index = np.arange(blocks, dtype=np.uint32) + np.uint32((1 << 31) + (number << 24))
    steps = (core.node, core.position, core.parent, core.bag_edge, core.axis, core.is_root, index)
    tables = jnp.zeros((core.num_buckets + 1, cells), belief.dtype)
    return lax.scan(eliminate, tables, jax.tree.map(jnp.asarray, steps))[1]


# ---- ways to sum out a label -------------------------------------------------------------------


def _logsumexp(table: Array, index: Array) -> Array:
    return logsumexp(table)


@jax.custom_vjp
def _argmax(table: Array, index: Array) -> Array:
    return table.max(axis=-1)


def _argmax_forward(table, index):
    return table.max(axis=-1), (table, index)


def _argmax_backward(saved, cotangent):
    table, index = saved
    return _pick(jnp.argmax(table, axis=-1), table, cotangent), _no_gradient(index)


_argmax.defvjp(_argmax_forward, _argmax_backward)


@jax.custom_vjp
def _drawn_logsumexp(key_data: Array, table: Array, index: Array) -> Array:
    return _logsumexp(table, index)


def _drawn_forward(key_data, table, index):
    return _logsumexp(table, index), (key_data, table, index)


def _drawn_backward(saved, cotangent):
    key_data, table, index = saved
    key = jax.random.fold_in(jax.random.wrap_key_data(key_data), index)
    chosen = jax.random.categorical(key, table, axis=-1)
    return _no_gradient(key_data), _pick(chosen, table, cotangent), _no_gradient(index)


_drawn_logsumexp.defvjp(_drawn_forward, _drawn_backward)


def _pick(chosen, table, cotangent):
    return jnp.where(chosen[..., None] == np.arange(table.shape[-1]), cotangent[..., None], 0.0)


def _no_gradient(value):
    return np.zeros(jnp.shape(value), jax.dtypes.float0)


def _traceback(reduce, unary, graph, log_weights, pair_weights, sampling, inference):
    method = as_inference(inference)
    if not isinstance(method, Exact):
        method = Exact()
    chosen = jax.grad(
        lambda u: sum(
            value.sum()
            for value, _ in _run(u, graph, log_weights, pair_weights, sampling, method, reduce)
        )
    )(jnp.asarray(unary))
    return jnp.argmax(chosen, axis=1)
