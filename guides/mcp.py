"""Choice of the numbers of components and clusters, and of the strength of links, in partitioned mixtures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from numpy.typing import NDArray
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.weights import ComponentWeights
from sidebayes.models.blocks.partitions.component_clusters import ComponentClusters
from sidebayes.models.blocks.partitions.partitioned_mixture import PartitionedMixture
from sidebayes.models.blocks.partitions.shared_components import shared_components
from sidebayes.models.blocks.partitions.stated_clusters import stated_clusters

from .engines.base import EngineResult, Problem
from .engines.expectation_maximisation.em import EM
from .engines.modes import starts_that_reached
from .engines.plumbing.programs import compiled
from .engines.problem.declared import collapsed_sites
from .engines.problem.density import abstract_trace, latent_sites, trace_model
from .mcp_splits import split_candidates

__all__ = ["CLOSE", "STRENGTHS", "GrowthStep", "growth_path", "mcp_with_room"]

STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Strengths of links that are tried, in nats."""

CLOSE = 0.01
"""Shares of violated links that count as equal (Raghuram 2014, section 3.2.3.1)."""


@dataclass(frozen=True)
class GrowthStep:
    """A number of components that was tried, at the strength chosen for it.

    Attributes
    ----------
    num_components, num_clusters : int
        Number of Gaussians, and of clusters that own at least one.
    strength : float
    violation : float
        Share of the links' weight that is expected to be violated.
    misfit : float
        Expected negative log joint density of points and components, less the entropy of these.
    log_likelihood : float
        Log likelihood of the points under the Gaussians alone.
    bic : float
        Half of the usual scale (Raghuram 2014, eq. 3.16), plus K log L.
    params : dict of ndarray
    starts_at_best : int
        Number of starts that reached this height.
    """

    num_components: int
    num_clusters: int
    strength: float
    violation: float
    misfit: float
    log_likelihood: float
    bic: float
    params: dict[str, NDArray]
    starts_at_best: int


def growth_path(
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
    progress: Callable[[GrowthStep], None] | None = None,
    **options: Any,
) -> list[GrowthStep]:
    """Split one component after another, and choose the strength of links for each number of components.

    Arrays of components have room for 4, 8, 16, 24, ... of them, so that few programs are compiled.

    Parameters
    ----------
    x : Array, shape (num_points, num_features)
    graph : LabelGraph
        Its absolute link weights are the confidences C, in units of the strength.
    num_clusters : int or None
        With None, the links determine the number of clusters.
    most_components : int
    strengths : sequence of float
        Tried in turn, each from the same start.
    engine : EM
    num_splits : int
        Number of splits from which EM continues; the best is kept at each strength.
    patience : int
        Number of successive numbers of components without a lower BIC after which growth ends.
    seed : int
    progress : callable, optional
        Called for every number of components.
    **options
        Options of `mcp`.

    Returns
    -------
    list of GrowthStep
        Steps in the order of the number of components.
    """
    first = 2 if num_clusters is None else num_clusters

    def room(number: int) -> int:
        """Number of components that arrays can hold; absent components need a prior to be drawn to."""
        if number == first or options.get("prior") == "flat":
            return number
        return -(-number // 4) * 4 if number <= 8 else -(-number // 8) * 8

    path: list[GrowthStep] = []
    number = first
    start: list[dict[str, NDArray]] | None = None
    while True:
        problem = _roomy(x, graph, number, room(number), num_clusters, options)
        tried = []
        for strength in strengths:
            found = engine.run(_at(problem, strength), seed=seed, init=start, progress=False)
            tried.append(_growth_step(problem, found, strength, number, num_clusters))
        path.append(_cheapest(tried))
        if progress is not None:
            progress(path[-1])
        best = min(range(len(path)), key=lambda n: path[n].bic)
        if number >= most_components or len(path) - 1 - best >= patience:
            return [replace(one, params=_cut(one)) for one in path]
        number += 1
        wider = _roomy(x, graph, number, room(number), num_clusters, options)
        start = _splits(wider, path[-1], num_clusters, num_splits)


def mcp_with_room(
    x: Array,
    graph: LabelGraph,
    alive: Array,
    *,
    num_clusters: int,
    keep_all: bool,
    covariance: str = "full",
    prior: str | GaussianPrior = "empirical",
    concentration: float = 1.0,
) -> None:
    """`mcp` with room for components that take no part; `alive` is part of the data.

    Parameters
    ----------
    x : Array, shape (num_points, num_features)
    graph : LabelGraph
    alive : Array of bool, shape (room,)
        See `PartitionedMixture`.
    num_clusters, keep_all, covariance, prior, concentration
        See `mcp`. An empirical prior is that for the components that are alive.
    """
    if isinstance(prior, str) and prior == "empirical":
        prior = GaussianPrior.empirical(x, 1)
        shrunk = jnp.sum(alive) ** (2 / x.shape[1])
        prior = replace(prior, scale=jnp.asarray(prior.scale) / shrunk)
    block = ComponentClusters(len(alive), num_clusters, keep_all=keep_all, alive=alive)
    table = block.sample("assignment")
    labels = stated_clusters(graph, len(x), num_clusters, 1.0)
    weights = ComponentWeights(len(alive), concentration).sample("weights", "components")
    density, rule = shared_components(x, len(alive), covariance, prior, "partition", "components")
    mixture = PartitionedMixture(labels, density, jnp.log(weights), table, rule, alive)
    numpyro.sample("x", mixture, obs=x)


def _roomy(
    x: Array,
    graph: LabelGraph,
    number: int,
    room: int,
    num_clusters: int | None,
    options: dict[str, Any],
) -> Problem:
    """Make the problem of `mcp` with a number of components that is part of the data."""
    known = {"num_clusters": num_clusters or room, "keep_all": num_clusters is not None}
    return Problem(mcp_with_room, (x, graph, jnp.arange(room) < number), known | options)


def _at(problem: Problem, strength: float) -> Problem:
    """Return the problem with links of a given strength."""
    x, graph, alive = problem.args
    stated = replace(graph, pair_weights=np.asarray(graph.pair_weights) * strength)
    return replace(problem, args=(x, stated, alive))


def _of_components(params: Mapping[str, NDArray]) -> list[str]:
    """Return the sites with a row per component: all sites but a shared covariance."""
    size = len(params["mean"])
    tied = {name for name in ("covariance",) if name in params and params[name].ndim == 2}
    return [name for name, value in params.items() if name not in tied and len(value) == size]


def _cut(one: GrowthStep) -> dict[str, NDArray]:
    """Return the parameters of the components that are in use."""
    own = _of_components(one.params)
    found = {n: v[: one.num_components] if n in own else v for n, v in one.params.items()}
    return found | {"weights": found["weights"] / found["weights"].sum()}


def _widened(params: Mapping[str, NDArray], room: int, num_clusters: int) -> dict[str, NDArray]:
    """Return parameters with room for more components, which are copies of the last one."""
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


def _cheapest(tried: Sequence[GrowthStep]) -> GrowthStep:
    """Return the step that fits best among those with nearly the smallest violation."""
    least = min(one.violation for one in tried)
    close = [one for one in tried if one.violation - least < CLOSE]
    return min(close, key=lambda one: one.misfit)


def _growth_step(
    problem: Problem,
    found: EngineResult,
    strength: float,
    number: int,
    num_clusters: int | None,
) -> GrowthStep:
    """Describe a fit."""
    params = {name: found.params[name] for name in latent_sites(abstract_trace(problem))}

    def build(bare: Problem) -> Callable:
        def go(params: dict[str, Array], args: tuple) -> dict[str, Array]:
            fn, value = _mixture(bare, params, args)
            joint = fn.joint(value)  # nearly zero for components that take no part
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
    reached = starts_that_reached(np.asarray(found.objective, float))
    return GrowthStep(
        number, used, strength, bic=bic, params=params, starts_at_best=reached, **measures
    )


def _mixture(problem: Problem, params: Mapping[str, Any], args: tuple) -> tuple[Any, Array]:
    """Return the partitioned mixture of a model, and its data."""
    ((fn, value),) = collapsed_sites(trace_model(problem, params, args)).values()
    return fn, value


def _splits(
    problem: Problem, grown: GrowthStep, num_clusters: int | None, number: int
) -> list[dict[str, NDArray]]:
    """Return starts with one more component: among the splits that violate least, the most likely ones.

    Splits whose shares of violated links differ by less than a hundredth count as equal. Among these, those
    that open a new cluster come last.
    """
    room, size = len(problem.args[2]), grown.num_components
    params = _widened(grown.params, room, num_clusters or room)
    owner = params["assignment"].argmax(axis=1)
    used = np.unique(owner[:size])
    owner[:size] = np.searchsorted(used, owner[:size]) if num_clusters is None else owner[:size]
    # a child may go to a cluster in use or, where the number is not known, to a new one
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
    while len(found) < number:  # the same shape for any number of splits
        found.append(found[-1])
    return found
