"""Numbers of components and of clusters, and the strength of links, for partitioned mixtures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from sidebayes.models.blocks.components.gaussian import Gaussian
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.partitions.discriminants import Discriminants
from sidebayes.models.mcp import mcp_with_room

from .engines.base import EngineResult, Problem
from .engines.expectation_maximisation.em import EM
from .engines.plumbing.programs import compiled
from .engines.problem.declared import declared_blocks
from .engines.problem.density import abstract_trace, collapsed_sites, latent_sites, trace_model

__all__ = ["CLOSE", "STRENGTHS", "Grown", "grow", "split_candidates"]

STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Strengths of links that are tried, in nats."""

CLOSE = 0.01
"""Shares of violated links that count as equal (Raghuram 2014, section 3.2.3.1)."""


@dataclass(frozen=True)
class Grown:
    """A number of components that was tried, at the strength chosen for it.

    Attributes
    ----------
    num_components, num_clusters : int
        Gaussians, and clusters that own one at least.
    strength : float
    violation : float
        Share of the links' weight that is expected to be violated.
    misfit : float
        Expected negative log joint density of points and components, less the entropy of these.
    log_likelihood : float
        Of the points under the Gaussians alone.
    bic : float
        Half of the usual scale (Raghuram 2014, eq. 3.16), plus K log L.
    params : dict of ndarray
    """

    num_components: int
    num_clusters: int
    strength: float
    violation: float
    misfit: float
    log_likelihood: float
    bic: float
    params: dict[str, NDArray]


def grow(
    x: Array,
    graph: LabelGraph,
    *,
    num_clusters: int | None,
    most_components: int,
    strengths: Sequence[float],
    engine: EM,
    num_splits: int,
    patience: int,
    seed: int,
    progress: Callable[[Grown], None] | None = None,
    **options: Any,
) -> list[Grown]:
    """Split one component after another, and choose the strength of links for each number of them.

    Arrays of components have room for 4, 8, 16, 24, ... of them, so that few programs are compiled.

    Parameters
    ----------
    x : Array, shape (num_points, num_features)
    graph : LabelGraph
        Whose absolute link weights are the confidences C, in units of the strength.
    num_clusters : int or None
        None lets the links say how many clusters there are.
    most_components : int
    strengths : sequence of float
        Tried in turn, each from the same start.
    engine : EM
    num_splits : int
        Splits to go on from, the best of which is kept at each strength.
    patience : int
        Numbers of components without a lower BIC after which growth ends.
    seed : int
    progress : callable, optional
        Told of every number of components.
    **options
        Of `mcp`.

    Returns
    -------
    list of Grown
        By number of components.
    """
    first = 2 if num_clusters is None else num_clusters

    def room(number: int) -> int:
        """Components that arrays have room for; what is not there needs a prior to be drawn to."""
        if number == first or options.get("prior") == "flat":
            return number
        return -(-number // 4) * 4 if number <= 8 else -(-number // 8) * 8

    path: list[Grown] = []
    number = first
    start: list[dict[str, NDArray]] | None = None
    while True:
        problem = _roomy(x, graph, number, room(number), num_clusters, options)
        tried = []
        for strength in strengths:
            found = engine.run(_at(problem, strength), seed=seed, init=start, progress=False)
            tried.append(_grown(problem, found, strength, number, num_clusters))
        path.append(_cheapest(tried))
        if progress is not None:
            progress(path[-1])
        best = min(range(len(path)), key=lambda n: path[n].bic)
        if number >= most_components or len(path) - 1 - best >= patience:
            return [replace(one, params=_cut(one)) for one in path]
        number += 1
        wider = _roomy(x, graph, number, room(number), num_clusters, options)
        start = _splits(wider, path[-1], num_clusters, num_splits)


def _roomy(
    x: Array,
    graph: LabelGraph,
    number: int,
    room: int,
    num_clusters: int | None,
    options: dict[str, Any],
) -> Problem:
    """`mcp` with a number of components that is data."""
    known = {"num_clusters": num_clusters or room, "keep_all": num_clusters is not None}
    return Problem(mcp_with_room, (x, graph, jnp.arange(room) < number), known | options)


def _at(problem: Problem, strength: float) -> Problem:
    """The problem with links of some strength."""
    x, graph, alive = problem.args
    stated = replace(graph, pair_weights=np.asarray(graph.pair_weights) * strength)
    return replace(problem, args=(x, stated, alive))


def _of_components(params: Mapping[str, NDArray]) -> list[str]:
    """Sites with a row for every component: all, but for one covariance of all."""
    size = len(params["mean"])
    tied = {name for name in ("covariance",) if name in params and params[name].ndim == 2}
    return [name for name, value in params.items() if name not in tied and len(value) == size]


def _cut(one: Grown) -> dict[str, NDArray]:
    """Parameters of the components that there are."""
    own = _of_components(one.params)
    found = {n: v[: one.num_components] if n in own else v for n, v in one.params.items()}
    return found | {"weights": found["weights"] / found["weights"].sum()}


def _widened(params: Mapping[str, NDArray], room: int, num_clusters: int) -> dict[str, NDArray]:
    """Parameters with room for more components, which are copies of the last one."""
    own = _of_components(params)
    spare = room - len(params["mean"])
    found = {
        name: np.concatenate([value, np.repeat(value[-1:], spare, axis=0)])
        if name in own
        else value
        for name, value in params.items()
    }
    more = num_clusters - found["assignment"].shape[1]
    return found | {"assignment": np.pad(found["assignment"], [(0, 0), (0, more)])}


def _cheapest(tried: Sequence[Grown]) -> Grown:
    """Among those that violate hardly more than the least, the one that fits best."""
    least = min(one.violation for one in tried)
    close = [one for one in tried if one.violation - least < CLOSE]
    return min(close, key=lambda one: one.misfit)


def _grown(
    problem: Problem,
    found: EngineResult,
    strength: float,
    number: int,
    num_clusters: int | None,
) -> Grown:
    """Describe a fit."""
    params = {name: found.params[name] for name in latent_sites(abstract_trace(problem))}

    def build(bare: Problem) -> Callable:
        def go(params: dict[str, Array], args: tuple) -> dict[str, Array]:
            fn, value = _mixture(bare, params, args)
            joint = fn.joint(value)  # of components that take no part, as good as zero
            log_q = fn.log_memberships(fn.log_factors(value))
            return {
                "violation": fn.violation(value),
                "misfit": -(jnp.exp(log_q) * (joint - log_q)).sum(),
                "log_likelihood": jax.nn.logsumexp(joint, axis=-1).sum(),
            }

        return go

    program, _ = compiled("measures", problem, None, build, params, problem.args, once=True)
    measures = {name: float(value) for name, value in program(params, problem.args).items()}
    used = len(np.unique(params["assignment"][:number].argmax(axis=1)))
    x, num_features = problem.args[0], params["mean"].shape[1]
    form = problem.kwargs.get("covariance", "full")
    matrix = num_features * (num_features + 1) // 2
    spread = {
        "full": number * matrix,
        "tied": matrix,
        "diagonal": number * num_features,
        "spherical": number,
    }[form]
    free = number - 1 + number * num_features + spread
    code = 0.5 * free * np.log(len(x)) + number * np.log(num_clusters or used)
    bic = code - measures["log_likelihood"]
    return Grown(number, used, strength, bic=bic, params=params, **measures)


def _mixture(problem: Problem, params: Mapping[str, Any], args: tuple) -> tuple[Any, Array]:
    """The partitioned mixture of a model, and its data."""
    ((fn, value),) = collapsed_sites(trace_model(problem, params, args)).values()
    return fn, value


def _splits(
    problem: Problem, grown: Grown, num_clusters: int | None, number: int
) -> list[dict[str, NDArray]]:
    """Starts for one component more: of the splits that violate least, the likeliest.

    Splits whose shares of violated links differ by less than a hundredth are as good as one another. Of
    these, those that open a cluster come last.
    """
    room, size = len(problem.args[2]), grown.num_components
    params = _widened(grown.params, room, num_clusters or room)
    owner = params["assignment"].argmax(axis=1)
    used = np.unique(owner[:size])
    owner[:size] = np.searchsorted(used, owner[:size]) if num_clusters is None else owner[:size]
    # a child may go to a cluster in use, and, where the number is not known, to a new one
    admitted = np.arange(num_clusters or room) < (num_clusters or len(used) + 1)

    def build(bare: Problem) -> Callable:
        return lambda params, *rest: split_candidates(bare, params, *rest)

    inputs = params, problem.args, owner, admitted, np.asarray(size)
    program, _ = compiled("splits", problem, None, build, *inputs)
    violation, log_likelihood, sites = (jax.tree.map(np.asarray, v) for v in program(*inputs))
    opens = (np.arange(len(admitted) + 1) == len(used) + 1) & (num_clusters is None)
    close = violation <= violation.min() + CLOSE
    rank = np.where(close, opens[:, None] | opens, 2.0 + violation)
    rank = rank.reshape(room, -1, rank.shape[-1] ** 2)
    # each component and axis with its best clusters
    best = np.lexsort((violation.reshape(rank.shape), rank), axis=-1)[..., 0]
    rank = np.take_along_axis(rank, best[..., None], axis=-1)[..., 0]
    order = np.lexsort((-log_likelihood.ravel(), rank.ravel()))
    found = []
    for place in order[: min(number, size * rank.shape[1])]:
        component, axis = np.unravel_index(place, rank.shape)
        chosen = np.unravel_index(best[component, axis], violation.shape[2:])
        table = owner.copy()
        table[component], table[size] = (int(w) - 1 if w else owner[component] for w in chosen)
        start = {name: part[component, axis] for name, part in sites.items()}
        found.append(start | {"assignment": np.eye(num_clusters or room)[table]})
    while len(found) < number:  # one shape, whatever there is to split
        found.append(found[-1])
    return found


def split_candidates(
    problem: Problem,
    params: Mapping[str, Array],
    args: tuple,
    owner: Array,
    admitted: Array,
    count: Array,
) -> tuple[Array, Array, dict[str, Array]]:
    r"""All splits of one component along one axis of its covariance (Raghuram 2014, section 3.2.3.3).

    Two children of half the weight have means :math:`\mu \pm \delta e` and the parent's covariance,
    in which the eigenvalue :math:`\lambda` of e is a quarter. With :math:`\delta = \sqrt{3\lambda}/2` they
    have the parent's mean and covariance together. (Tied covariances stay, and spheres keep the parent's
    total variance: such children have the parent's mean, and as much variance or more.)

    Parameters
    ----------
    problem : Problem
        With room for one component more.
    params : mapping
    args : tuple
    owner : Array of int, shape (room,)
        Cluster of each component.
    admitted : Array of bool, shape (num_clusters,)
        Clusters that a child may go to.
    count : Array of int, shape ()
        Components that there are; the second child takes the next place.

    Returns
    -------
    violation : Array, shape (room, num_features, choices, choices)
        Expected share of violated links, by the clusters of the children; choice 0 is that of the
        parent, the others are all clusters. Infinite where both leave it, or are not admitted.
    log_likelihood : Array, shape (room, num_features)
    sites : dict of Array
        Weights, means, spreads and matching discriminants of each split.
    """
    trace = trace_model(problem, params, args)
    ((fn, value),) = collapsed_sites(trace).values()
    block = next(b for b, _ in declared_blocks(trace) if isinstance(b, Discriminants))
    mean, log_weights = params["mean"], jnp.log(params["weights"])
    name = "covariance" if "covariance" in params else "variance"
    (room, num_features), form = mean.shape, block.covariance
    joint = jnp.where(jnp.arange(room) < count, fn.joint(value), -jnp.inf)
    (first, second), prices = fn.ends, fn.log_odds
    total = jnp.maximum(jnp.abs(prices).sum(), 1e-300)
    choices = jnp.append(0, jnp.arange(len(admitted)))
    is_open = jnp.append(True, admitted)

    def split(k: Array, axis: Array) -> tuple:
        along, length, child, spread = _children(form, params[name], k, axis, num_features)
        move = jnp.sqrt(0.75 * length) * along
        means = mean.at[k].add(-move).at[count].set(mean[k] + move)
        half = log_weights[k] - jnp.log(2.0)
        weights = log_weights.at[k].set(half).at[count].set(half)
        if form == "tied":
            spreads = params[name]
        else:
            spreads = params[name].at[k].set(spread).at[count].set(spread)
        density = Gaussian(
            means[jnp.stack([k, count])], covariance_matrix=jnp.stack([child, child])
        )
        new = density.log_prob(value[:, None]) + half
        joined = joint.at[:, k].set(new[:, 0]).at[:, count].set(new[:, 1])
        prob = jax.nn.softmax(joined, axis=-1)
        between = jnp.einsum("e,ek,el->kl", prices, prob[first], prob[second])

        def violated(a: Array, b: Array) -> Array:
            own = owner.at[count].set(jnp.where(b == 0, owner[k], choices[b]))
            own = own.at[k].set(jnp.where(a == 0, owner[k], choices[a]))
            agreed = jnp.sum(jnp.where(own[:, None] == own, between, 0.0))
            fits = ((a == 0) | (b == 0)) & is_open[a] & is_open[b] & (k < count)
            return jnp.where(fits, (jnp.maximum(prices, 0.0).sum() - agreed) / total, jnp.inf)

        places = jnp.arange(len(choices))
        table = jax.vmap(lambda a: jax.vmap(lambda b: violated(a, b))(places))(places)
        units = trace["centre"]["value"], trace["unit"]["value"]
        sites = {"weights": jnp.exp(weights), "mean": means, name: spreads}
        sites["discriminants"] = block.matched(weights, means, spreads, *units)
        return table, jax.nn.logsumexp(joined, axis=-1).sum(), sites

    which = jnp.repeat(jnp.arange(room), num_features), jnp.tile(jnp.arange(num_features), room)
    found = jax.lax.map(lambda one: split(*one), which)
    return jax.tree.map(lambda leaf: leaf.reshape(room, num_features, *leaf.shape[1:]), found)


def _children(form: str, spread: Array, k: Array, axis: Array, size: int) -> tuple:
    """Axis of a component and its variance there; covariance of the children, and their spread."""
    if form in ("full", "tied"):
        sigma = spread[k] if form == "full" else spread
        values, vectors = jnp.linalg.eigh(sigma)
        along = vectors[:, axis]
        narrow = sigma - 0.75 * values[axis] * jnp.outer(along, along)
        return along, values[axis], narrow if form == "full" else sigma, narrow
    along = jnp.eye(size)[axis]
    if form == "diagonal":
        own = spread[k].at[axis].multiply(0.25)
        return along, spread[k, axis], jnp.diag(own), own
    own = spread[k] * (1 - 0.75 / size)
    return along, spread[k], own * jnp.eye(size), own
