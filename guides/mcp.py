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
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.discriminants import Discriminants
from sidebayes.models.blocks.mixtures.gaussian import Gaussian
from sidebayes.models.mcp import mcp

from .engines.base import EngineResult, Problem
from .engines.density import abstract_trace, collapsed_sites, latent_sites, trace_model
from .engines.expectation_maximisation.em import EM
from .engines.plumbing.programs import compiled
from .engines.updates import declared_blocks

__all__ = ["STRENGTHS", "Grown", "grow", "split_candidates"]

STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Strengths of links that are tried, in nats."""

_CLOSE = 0.01
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
    patience: int,
    seed: int,
    progress: Callable[[Grown], None] | None = None,
    **options: Any,
) -> list[Grown]:
    """Split one component after another, and choose the strength of links for each number of them.

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
    path: list[Grown] = []
    start: dict[str, NDArray] | None = None
    number = 2 if num_clusters is None else num_clusters
    while True:
        clusters = number if num_clusters is None else num_clusters
        known = {
            "num_components": number,
            "num_clusters": clusters,
            "keep_all": num_clusters is not None,
            **options,
        }
        problem = Problem(mcp, (x, graph), known)
        tried = []
        for strength in strengths:
            stated = replace(graph, pair_weights=np.asarray(graph.pair_weights) * strength)
            stated = replace(problem, args=(x, stated))
            found = engine.run(stated, seed=seed, init=start, progress=False)
            tried.append(_grown(problem, found, strength, num_clusters))
        path.append(_cheapest(tried))
        if progress is not None:
            progress(path[-1])
        best = min(range(len(path)), key=lambda n: path[n].bic)
        if number >= most_components or len(path) - 1 - best >= patience:
            return path
        start = _split(problem, path[-1], num_clusters)
        number += 1


def _cheapest(tried: Sequence[Grown]) -> Grown:
    """Among those that violate hardly more than the least, the one that fits best."""
    least = min(one.violation for one in tried)
    close = [one for one in tried if one.violation - least < _CLOSE]
    return min(close, key=lambda one: one.misfit)


def _grown(
    problem: Problem, found: EngineResult, strength: float, num_clusters: int | None
) -> Grown:
    """Describe a fit."""
    params = {name: found.params[name] for name in latent_sites(abstract_trace(problem))}

    def build(bare: Problem) -> Callable:
        def go(params: dict[str, Array], args: tuple) -> dict[str, Array]:
            fn, value = _mixture(bare, params, args)
            joint = fn.joint(value)
            log_q = fn.log_memberships(fn.log_factors(value))
            return {
                "violation": fn.violation(value),
                "misfit": -(jnp.exp(log_q) * (joint - log_q)).sum(),
                "log_likelihood": jax.nn.logsumexp(joint, axis=-1).sum(),
            }

        return go

    program, _ = compiled("measures", problem, None, build, params, problem.args, once=True)
    measures = {name: float(value) for name, value in program(params, problem.args).items()}
    used = len(np.unique(params["assignment"].argmax(axis=1)))
    x, (size, num_features) = problem.args[0], params["mean"].shape
    spread = next(params[name] for name in ("covariance", "variance") if name in params)
    form = problem.kwargs.get("covariance", "full")
    matrix = num_features * (num_features + 1) // 2
    per_spread = {"full": size * matrix, "tied": matrix}.get(form, spread.size)
    free = size - 1 + params["mean"].size + per_spread
    code = 0.5 * free * np.log(len(x)) + size * np.log(num_clusters or used)
    bic = code - measures["log_likelihood"]
    return Grown(size, used, strength, bic=bic, params=params, **measures)


def _mixture(problem: Problem, params: Mapping[str, Any], args: tuple) -> tuple[Any, Array]:
    """The partitioned mixture of a model, and its data."""
    ((fn, value),) = collapsed_sites(trace_model(problem, params, args)).values()
    return fn, value


def _split(problem: Problem, grown: Grown, num_clusters: int | None) -> dict[str, NDArray]:
    """Start for one component more: the split that violates least, the likeliest of several."""
    size = grown.num_components
    used = np.unique(grown.params["assignment"].argmax(axis=1))
    owner = np.searchsorted(used, grown.params["assignment"].argmax(axis=1))
    total = size + 1 if num_clusters is None else num_clusters
    names = len(used) if num_clusters is not None else len(used) + 1
    choices = np.arange(size + 1)
    admitted = choices < names

    def build(bare: Problem) -> Callable:
        return lambda params, *rest: split_candidates(bare, params, *rest)

    inputs = dict(grown.params), problem.args, owner, admitted
    program, _ = compiled("splits", problem, None, build, *inputs)
    violation, log_likelihood, clusters, sites = (
        jax.tree.map(np.asarray, part) for part in program(*inputs)
    )
    allowed = np.isfinite(violation)
    close = allowed & (violation <= violation[allowed].min() + _CLOSE)
    value = np.where(close, log_likelihood[..., None, None], -np.inf)
    # of equal likelihoods, the assignment that violates least
    value = np.where(value >= value.max(), -violation, -np.inf)
    component, axis, *which = np.unravel_index(value.argmax(), value.shape)
    start = {name: part[component, axis] for name, part in sites.items()}
    first, second = (int(clusters[w]) if w else int(owner[component]) for w in which)
    table = np.append(owner, second)
    table[component] = first
    return start | {"assignment": np.eye(total)[table]}


def split_candidates(
    problem: Problem,
    params: Mapping[str, Array],
    args: tuple,
    owner: Array,
    admitted: Array,
) -> tuple[Array, Array, Array, dict[str, Array]]:
    r"""All splits of one component along one axis of its covariance (Raghuram 2014, section 3.2.3.3).

    Two children of half the weight have means :math:`\mu \pm \delta e` and the parent's covariance,
    in which the eigenvalue :math:`\lambda` of e is a quarter. With :math:`\delta = \sqrt{3\lambda}/2` they
    have the parent's mean and covariance together. (Tied covariances stay, and spheres keep the parent's
    total variance: such children have the parent's mean, and more or as much variance.)

    Parameters
    ----------
    problem : Problem
        Of `mcp`.
    params : mapping
    args : tuple
    owner : Array of int, shape (num_components,)
        Cluster of each component.
    admitted : Array of bool, shape (num_components + 1,)
        Clusters that a child may go to.

    Returns
    -------
    violation : Array, shape (num_components, num_features, choices, choices)
        Expected share of violated links, by the clusters of the children; choice 0 is that of the
        parent, the others are all clusters. Infinite where both leave it, or are not admitted.
    log_likelihood : Array, shape (num_components, num_features)
    clusters : Array of int, shape (choices,)
        Cluster of each choice; that of choice 0 is not told.
    sites : dict of Array
        Weights, means, spreads and matching discriminants of each split.
    """
    trace = trace_model(problem, params, args)
    ((fn, value),) = collapsed_sites(trace).values()
    block = next(b for b, _ in declared_blocks(trace) if isinstance(b, Discriminants))
    form = block.covariance
    mean, log_weights = params["mean"], jnp.log(params["weights"])
    name = "covariance" if "covariance" in params else "variance"
    spread, (size, num_features) = params[name], mean.shape
    joint = fn.joint(value)
    (first, second), prices = fn.ends, fn.log_odds
    total = jnp.maximum(jnp.abs(prices).sum(), 1e-300)
    centre, unit = trace["centre"]["value"], trace["unit"]["value"]
    choices = jnp.concatenate([jnp.zeros(1, int), jnp.arange(size + 1)])

    def covariances() -> Array:
        if form == "full":
            return spread
        if form == "tied":
            return jnp.broadcast_to(spread, (size, num_features, num_features))
        each = spread if form == "diagonal" else spread[:, None] * jnp.ones(num_features)
        return each[:, :, None] * jnp.eye(num_features)

    def split(k: Array, axis: Array) -> tuple:
        sigma = covariances()[k]
        if form in ("full", "tied"):
            values, vectors = jnp.linalg.eigh(sigma)
        else:
            values, vectors = jnp.diagonal(sigma), jnp.eye(num_features)
        size_, direction = values[axis], vectors[:, axis]
        move = jnp.sqrt(0.75 * size_) * direction
        narrow = sigma - 0.75 * size_ * jnp.outer(direction, direction)
        means = jnp.concatenate([mean.at[k].add(-move), (mean[k] + move)[None]])
        if form == "tied":
            spreads, child = spread, sigma
        elif form == "full":
            spreads, child = jnp.concatenate([spread.at[k].set(narrow), narrow[None]]), narrow
        else:
            sphere = spread[k] * (1 - 0.75 / num_features)
            own = jnp.diagonal(narrow) if form == "diagonal" else sphere
            spreads = jnp.concatenate([spread.at[k].set(own), own[None]])
            child = own * jnp.eye(num_features)
        weights = log_weights.at[k].add(-jnp.log(2.0))
        weights = jnp.append(weights, weights[k])
        pair = jnp.stack([means[k], means[-1]])
        density = Gaussian(pair, jnp.broadcast_to(child, (2, *child.shape)))
        new = density.log_prob(value[:, None]) + weights[k]
        joined = jnp.concatenate([joint.at[:, k].set(new[:, 0]), new[:, 1:]], axis=1)
        prob = jax.nn.softmax(joined, axis=-1)
        between = jnp.einsum("e,ek,el->kl", prices, prob[first], prob[second])

        def violated(a: Array, b: Array) -> Array:
            own = jnp.append(owner, jnp.where(b == 0, owner[k], choices[b]))
            own = own.at[k].set(jnp.where(a == 0, owner[k], choices[a]))
            same = own[:, None] == own
            broken = jnp.maximum(prices, 0.0).sum() - jnp.sum(jnp.where(same, between, 0.0))
            open_ = (a == 0) | admitted[choices[a]], (b == 0) | admitted[choices[b]]
            return jnp.where(((a == 0) | (b == 0)) & open_[0] & open_[1], broken / total, jnp.inf)

        places = jnp.arange(len(choices))
        table = jax.vmap(lambda a: jax.vmap(lambda b: violated(a, b))(places))(places)
        sites = {"weights": jnp.exp(weights), "mean": means, name: spreads}
        sites["discriminants"] = block.matched(weights, means, spreads, centre, unit)
        return table, jax.nn.logsumexp(joined, axis=-1).sum(), sites

    which = jnp.repeat(jnp.arange(size), num_features), jnp.tile(jnp.arange(num_features), size)
    table, log_likelihood, sites = jax.lax.map(lambda one: split(*one), which)
    shape = (size, num_features)
    table, log_likelihood, sites = jax.tree.map(
        lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), (table, log_likelihood, sites)
    )
    return table, log_likelihood, choices, sites
