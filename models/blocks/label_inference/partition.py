r"""Sums over all joint labelings of linked points, exact by the structure of the link graph.

Labels :math:`z_1..z_N` in :math:`\{0..K-1\}` have the unnormalised density

.. math:: \prod_i e^{u_{i z_i}} \prod_{(i,j)} e^{w_{ij} [z_i = z_j]},

with :math:`\log Z` its sum. Everything else follows from one differentiable function: the gradient
of :math:`\log Z` in :math:`u` is the matrix of responsibilities, the gradient in :math:`w` the
probability that two linked labels agree (Lu 2008, section 2.6; star and tree formulas own).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ..row_shares import Turns, in_turns
from .approximate import Exact, Inference, as_inference
from .buckets import eliminate
from .colouring import Colouring
from .label_graph import LabelGraph
from .potentials import bounded, edge_potentials, finite, peaks
from .sweep import reorder, sweep
from .trees.lanes import lane_sums, lane_total
from .trees.potts import BEST, DRAW, FORBIDDEN, SUM, Reduce

__all__ = [
    "TooWideError",
    "by_connected_set",
    "check_inference",
    "entropy",
    "log_partition",
    "log_partition_in_order",
    "mode",
    "pair_marginals",
    "responsibilities",
    "sample",
]


def log_partition(
    unary: ArrayLike | None,
    graph: LabelGraph,
    log_weights: ArrayLike | None = None,
    pair_weights: ArrayLike | None = None,
    *,
    weight_per: str = "point",
    inference: str | Inference = "exact",
) -> Array:
    r"""Logarithm of the sum over all joint labelings.

    Parameters
    ----------
    unary : array_like, shape (num_points, num_clusters), or None
        Log-potentials of each label at each point; ``-inf`` excludes a label. None, with `log_weights`, is
        zero for all.
    graph : LabelGraph
    log_weights : array_like, shape (num_clusters,) or (num_points, num_clusters), optional
        Log mixing weights, separate from `unary` so that the sampling assumption can be chosen.
        Weights by point need ``weight_per="point"``.
    pair_weights : array_like, shape (num_links,), optional
        Replacements for the finite weights of the links; hard links stay hard.
    weight_per : {"point", "chunklet"}
        A chunklet of n points tied by hard must-links carries :math:`\pi_k^n`, its points being
        drawn one by one and then found to agree (Lu's PPC; Shental's assumption 2), or
        :math:`\pi_k` once, chunklets being drawn as such (assumption 1).
    inference : str or inference object
        What to do with loopy connected sets whose tables exceed the budget of `Exact`. Anything but
        "exact" is an approximation.

    Returns
    -------
    Array, shape ()

    Raises
    ------
    ValueError
        If a connected set is too wide for exact elimination and no approximation is named.
    """
    if unary is None and log_weights is not None and graph.has_lanes:
        log_weights = jnp.asarray(log_weights)
        if log_weights.ndim == 1:
            return _alike(graph, log_weights, pair_weights, inference)
    parts, peak = _run(unary, graph, log_weights, pair_weights, weight_per, inference, SUM)
    value = sum(value.sum() for value, _ in parts)
    return jnp.where(value < FORBIDDEN / 2, -jnp.inf, value + peak.sum())


def by_connected_set(
    unary: ArrayLike,
    graph: LabelGraph,
    log_weights: ArrayLike | None = None,
    pair_weights: ArrayLike | None = None,
    *,
    weight_per: str = "point",
    inference: str | Inference = "exact",
) -> Array:
    """One term of `log_partition` for each connected set, zero-padded, shape (num_nodes,)."""
    parts, peak = _run(unary, graph, log_weights, pair_weights, weight_per, inference, SUM)
    out = jnp.zeros(graph.num_nodes, parts[0][0].dtype)
    for value, connected_set in parts:
        out = out.at[connected_set].add(value)
    peaks = jax.ops.segment_sum(peak, graph.connected_set, graph.num_nodes)
    return jnp.where(out < FORBIDDEN / 2, -jnp.inf, out + peaks)


def responsibilities(
    unary: ArrayLike, graph: LabelGraph, *args: ArrayLike | None, **options
) -> Array:
    """Marginal label probabilities of each point, shape (num_points, num_clusters).

    They are zero in a connected set without a possible labeling, which does not affect other sets.
    """

    def total(unary: Array) -> Array:
        return by_connected_set(unary, graph, *args, **options).sum()

    return jax.grad(total)(jnp.asarray(unary))


def pair_marginals(
    unary: ArrayLike,
    graph: LabelGraph,
    log_weights: ArrayLike | None = None,
    pair_weights: ArrayLike | None = None,
    **options,
) -> Array:
    """Probability that the labels of each linked pair agree, shape (num_links,)."""
    weights = graph.pair_weights if pair_weights is None else pair_weights
    weights = finite(jnp.asarray(weights), graph)
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
    weight_per: str = "point",
    inference: str | Inference = "exact",
) -> Array:
    """Draw all labels jointly, shape (num_points,); exactly, unless an approximation is named.

    This is forward filtering, backward sampling: elimination as in `log_partition`, where the
    derivative of each summation is a drawn label instead of a distribution. In connected sets that
    are too wide, "gibbs_labels" takes the state of a chain after its burn-in. "mean_field" and
    "belief_propagation" draw from each marginal separately, so that links there, including hard
    cannot-links, may be broken.
    """
    if not jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
        rng_key = jax.random.wrap_key_data(rng_key)
    factors = unary, graph, log_weights, pair_weights
    return _traceback(*factors, weight_per, inference, DRAW, rng_key)


def mode(
    unary: ArrayLike,
    graph: LabelGraph,
    log_weights: ArrayLike | None = None,
    pair_weights: ArrayLike | None = None,
    *,
    weight_per: str = "point",
    inference: str | Inference = "exact",
) -> Array:
    """Most probable joint labeling (max-product), shape (num_points,); it keeps all hard links.

    In connected sets that are too wide, a named approximation gives its likeliest labels, improved
    until no change of a single label helps. This is a local optimum, in which a hard cannot-link
    can be broken.
    """
    return _traceback(unary, graph, log_weights, pair_weights, weight_per, inference, BEST)


_REMEDY = "name an approximation, inference='mean_field', 'belief_propagation' or 'gibbs_labels'"


class TooWideError(ValueError):
    """A connected set is too wide for exact sums."""


def check_inference(
    graph: LabelGraph, num_clusters: int, inference: str | Inference, remedy: str = _REMEDY
) -> str | None:
    """Name the approximation that `inference` makes on this graph; None if it is exact.

    `remedy` says what to do if exact sums are requested but infeasible.

    Raises
    ------
    TooWideError
        If a connected set is too wide and no approximation is named.
    """
    method = as_inference(inference)
    wide = graph.suited(method, num_clusters).wide
    if wide is None:
        return None
    if isinstance(wide.num_real, jax.core.Tracer):
        size, needs = "loops", "tables beyond the budget"
    elif not int(wide.num_real):
        return None
    else:
        size = f"{int(wide.num_real)} chunklets in loops"
        needs = "elimination width beyond any budget"
        if int(wide.width) >= 0:
            needs = (
                f"elimination width {int(wide.width)} (all loops: {float(wide.cells):.3g} cells)"
            )
    if isinstance(method, Exact):
        raise TooWideError(
            f"{size} have {needs}; max_table is {method.max_table:.3g} cells; {remedy}, or raise the budget, "
            "Exact(max_table=...)"
        )
    return f"{method.name} on {size}"


# ---- elimination ---------------------------------------------------------------------------------


def _bind(unary, graph, log_weights=None, pair_weights=None):
    unary = jnp.asarray(unary)
    if log_weights is None:
        log_weights = jnp.zeros(unary.shape[1], unary.dtype)
    if pair_weights is None:
        pair_weights = graph.pair_weights
    return unary, jnp.asarray(log_weights), finite(jnp.asarray(pair_weights), graph)


def _num_cells(graph: LabelGraph) -> int:
    return 0 if graph.lanes is None else graph.lanes.num_cells


def _run(unary, graph, log_weights, pair_weights, weight_per, inference, reduce, rng_key=None):
    """Eliminate every label.

    Returns terms of log Z with the connected set of each term, and the peak of each point, which
    must be added to the term of its connected set.
    """
    is_blank = unary is None
    if is_blank:
        unary = jnp.zeros((graph.num_points, log_weights.shape[-1]), log_weights.dtype)
    unary, log_weights, weights = _bind(unary, graph, log_weights, pair_weights)
    if unary.ndim != 2 or unary.shape[0] != graph.num_points:
        raise ValueError(
            f"unary has shape {unary.shape}; expected ({graph.num_points}, num_clusters)"
        )
    if weight_per not in ("point", "chunklet"):
        raise ValueError(f"weight_per = {weight_per!r}; expected 'point' or 'chunklet'")
    method = as_inference(inference)
    graph = graph.suited(method, unary.shape[1])
    check_inference(graph, unary.shape[1], method)
    if is_blank:  # this would take the compiler seconds to find out
        peak = jnp.zeros(graph.num_points, unary.dtype)
    else:
        peak = peaks(unary, graph)
        unary = bounded(unary - peak[:, None])

    log_weights = jnp.maximum(log_weights, FORBIDDEN)
    if not graph.contracted:
        belief = unary + log_weights
    elif log_weights.ndim == 2:
        belief = jax.ops.segment_sum(unary + log_weights, graph.node, graph.num_nodes)
    else:
        count = graph.node_size[:, None] if weight_per == "point" else 1.0
        belief = jax.ops.segment_sum(unary, graph.node, graph.num_nodes)
        belief = belief + count * log_weights
    edge_weights = edge_potentials(weights, graph)

    noise, key = None, None
    if rng_key is not None:
        key, draw = jax.random.split(rng_key)
        number = graph.num_nodes + len(graph.order) + _num_cells(graph)
        noise = jax.random.uniform(draw, (number,), unary.dtype)
    parts = []
    if not graph.all_ordered:
        free = (jnp.asarray(graph.place) == len(graph.order)) & (jnp.asarray(graph.node_size) > 0)
        if graph.lanes is not None:
            free &= jnp.asarray(graph.lanes.place) == graph.lanes.num_cells
        drawn = None if noise is None else noise[: graph.num_nodes]
        alike = is_blank and not graph.contracted and log_weights.ndim == 1
        value = reduce(log_weights[None] if alike else belief, drawn)
        parts.append((jnp.where(free, value, 0.0), graph.node_connected_set))
    if graph.num_links and graph.contracted:
        inside = jnp.where(graph.edge_of_link > graph.num_edges, weights, 0.0)
        parts.append((inside, graph.connected_set[graph.pairs[:, 0]]))
    if not graph.num_edges:
        return parts, peak

    in_order = in_lanes = None
    if noise is not None:
        in_order, in_lanes = jnp.split(noise[graph.num_nodes :], [len(graph.order)])
    if graph.lanes is not None:
        owner = jnp.asarray(graph.node_connected_set)
        owner = owner.at[jnp.asarray(graph.lanes.node).reshape(-1)].get(mode="clip")
        parts.append((lane_sums(reduce, belief, edge_weights, graph.lanes, in_lanes), owner))
    belief = reorder(belief, graph.order, graph.place)
    return parts + _ordered(belief, edge_weights, graph, method, reduce, in_order, key), peak


def _ordered(
    belief: Array,
    edge_weights: Array,
    graph: LabelGraph,
    method: Inference,
    reduce: Reduce,
    drawn,
    key,
) -> list[tuple[Array, Array]]:
    """Terms of the nodes in the order of a graph, given their potentials in that order."""
    connected_set = jnp.asarray(graph.node_connected_set).at[graph.order].get(mode="clip")
    if graph.peeling is not None:
        belief = sweep(reduce, belief, edge_weights[graph.peeling.edge], graph.peeling, drawn)
    roots = jnp.where(graph.is_root, reduce(belief, drawn), 0.0)
    parts = [(roots, connected_set)]
    if graph.buckets is not None:
        value = eliminate(belief, edge_weights, graph.buckets, reduce, drawn)
        parts.append((value, connected_set.at[graph.buckets.place].get(mode="clip")))
    if graph.wide is not None:
        value = _approximate(method, reduce, key, belief, edge_weights, graph.wide)
        parts.append((value, connected_set.at[graph.wide.node].get(mode="clip")))
    return parts


def log_partition_in_order(
    belief: Array, edge_weights: Array, graph: LabelGraph, inference: str | Inference = "exact"
) -> Array:
    """`log_partition` of the nodes in the order of a graph alone.

    Parameters
    ----------
    belief : Array, shape (num_places, num_clusters)
        Log-potentials of the nodes of `LabelGraph.order`, with log mixing weights. The contents of
        padding places do not affect the result.
    edge_weights : Array
        See `potentials.edge_potentials`.
    graph : LabelGraph
    inference : str or inference object
    """
    method = as_inference(inference)
    graph = graph.suited(method, belief.shape[1])
    check_inference(graph, belief.shape[1], method)
    peak = lax.stop_gradient(belief.max(axis=1))
    real = jnp.asarray(graph.order) < graph.num_nodes
    peak = jnp.where(real & jnp.isfinite(peak), peak, 0.0)
    relative = bounded(belief - peak[:, None])
    parts = _ordered(relative, edge_weights, graph, method, SUM, None, None)
    return sum(value.sum() for value, _ in parts) + peak.sum()


def _alike(graph: LabelGraph, log_weights: Array, pair_weights, inference) -> Array:
    """`log_partition` of points that all have the log mixing weights as potentials."""
    weights = graph.pair_weights if pair_weights is None else pair_weights
    edge_weights = edge_potentials(jnp.asarray(weights), graph)
    log_weights = jnp.maximum(log_weights, FORBIDDEN)

    def one_device(turns: Turns, graph: LabelGraph, *factors: Array) -> tuple[Array, tuple]:
        def ordered() -> Array:
            belief = jnp.broadcast_to(factors[0], (len(graph.order), len(factors[0])))
            return log_partition_in_order(belief, factors[1], graph, inference)

        assert graph.lanes is not None
        return lane_total(*factors, graph.lanes, turns) + turns.once(ordered), ()

    value, _ = in_turns(one_device, graph, log_weights, edge_weights)
    assert graph.lanes is not None
    value += graph.lanes.num_alone * jax.nn.logsumexp(log_weights)
    return jnp.where(value < FORBIDDEN / 2, -jnp.inf, value)


def _approximate(
    method: Inference, reduce: Reduce, key, belief: Array, edge_weights: Array, wide: Colouring
) -> Array:
    """Terms of log Z of wide connected sets, or terms whose gradients are the chosen labels."""
    if reduce is SUM:
        return method.log_partition(belief, edge_weights, wide)
    if reduce is BEST:
        labels = method.best(lax.stop_gradient(belief), edge_weights, wide)
    else:
        labels = method.draw(key, lax.stop_gradient(belief), edge_weights, wide)
    return jnp.sum(labels * belief.at[wide.node].get(mode="fill", fill_value=0.0), axis=1)


def _traceback(
    unary, graph, log_weights, pair_weights, weight_per, inference, reduce, rng_key=None
) -> Array:
    """Labels chosen by `reduce`, each given the labels that were summed out after it."""
    rest = graph, log_weights, pair_weights, weight_per, inference, reduce, rng_key
    chosen = jax.grad(lambda u: sum(value.sum() for value, _ in _run(u, *rest)[0]))(
        jnp.asarray(unary)
    )
    return jnp.argmax(chosen, axis=1)
