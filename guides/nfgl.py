"""The GEM of NFGL: components of labelled rows by iterated conditional modes, with mixture and scales."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax
from jax.typing import ArrayLike
from numpy.typing import NDArray
from sidebayes.models.blocks.classes.anchors import Anchors, log_pseudo_likelihood, room_for
from sidebayes.models.blocks.classes.class_mixture import log_of
from sidebayes.models.blocks.classes.neighbours import anchor_distances, assigned_mixture
from sidebayes.models.blocks.collapsed import unexpanded
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.components.mixture_components import mixture_components
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.weights import mixing_weights

from .engines.base import Problem
from .engines.plumbing.programs import compiled
from .engines.problem.density import trace_model
from .engines.steps.surrogate import expectation
from .engines.steps.updates import Plan, closed_forms, maximised, plan_updates

__all__ = ["Placed", "joined_probabilities", "neighbours_in_cluster", "place_anchors"]

_SWEEPS = 20
"""Maximum number of sweeps of iterated conditional modes in one step."""

_GRID = np.geomspace(1e-3, 1e3, 61)
"""First scales, in units of one over the median squared distance to the nearest anchor."""

_NEAR = np.geomspace(0.5, 2.0, 21)
"""Scales that a step tries, times the current one; the current one is among them."""

_CAP = 50.0
"""Maximum scale, in the same units: beyond it, only the nearest anchor counts."""


class Placed(NamedTuple):
    """Result of the search.

    Attributes
    ----------
    params : dict of ndarray
        Latent sites of `nfgl`.
    clusters : ndarray of int, shape (num_anchors,)
        Component of each labelled row.
    objective : ndarray
        The composite objective at every step, which never falls.
    """

    params: dict[str, NDArray]
    clusters: NDArray[np.int64]
    objective: NDArray[np.float64]


class _State(NamedTuple):
    params: dict[str, Array]
    scale: Array
    clusters: Array
    value: Array
    done: Array
    step: Array
    history: Array
    key: Array


def place_anchors(
    x: ArrayLike,
    rows: ArrayLike,
    anchors: Anchors,
    start: Mapping[str, ArrayLike],
    options: Mapping[str, Any],
    *,
    seed: int = 0,
    smoothing: float = 1e-3,
    max_steps: int = 100,
    tol: float = 1e-7,
    sweeps: int = _SWEEPS,
) -> Placed:
    r"""Increase the objective of `nfgl` over components of labelled rows, scales and the mixture in turn.

    Each step takes closed-form updates of the mixture, with labelled rows in their components; the best
    scale of each component among some near its own; and sweeps in random order over the labelled rows,
    each of which moves to the component that increases the objective most. A component that has a class
    of exactly one row neither takes nor gives rows: it would attract others only to pair that row.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    rows : array_like of int, shape (num_anchors,)
        Row of each anchor in x.
    anchors : Anchors
        Anchors with their first components.
    start : mapping
        Values of the sites of the mixture.
    options : mapping
        Options of the model; ``smoothing=0`` uses the thesis' own conditionals in the search.
    seed, smoothing, max_steps, tol, sweeps
        Options of the search. Without sweeps, components stay as they are.

    References
    ----------
    Raghuram (2014), sections 2.3.4 and 2.7.2 for the guard. The start at the best of a grid of scales is an
    addition: from one small scale for all, many collapse to zero.
    """
    x, num_anchors = jnp.asarray(x), len(np.asarray(rows))
    anchors = anchors.padded()
    # updates of rows that do not exist are dropped
    ends = (0, room_for(num_anchors) - num_anchors)
    rows = jnp.asarray(np.pad(rows, ends, constant_values=len(x)))
    apart, typical = anchor_distances(anchors)
    table = jnp.asarray(anchors.table)
    given = rows, apart, jnp.asarray(anchors.classes), table, typical
    number = len(table)
    state = _State(
        {name: jnp.asarray(value) for name, value in start.items()},
        jnp.zeros(number, apart.dtype),
        jnp.asarray(anchors.clusters),
        jnp.asarray(-jnp.inf),
        jnp.asarray(False),
        jnp.asarray(0),
        jnp.full(max_steps, jnp.nan),
        jnp.asarray(jax.random.key_data(jax.random.key(seed))),
    )
    kept = {n: v for n, v in options.items() if n not in ("anchors", "smoothing", "num_classes")}
    problem = Problem(_assigned, (x, jnp.zeros(len(x), int)), kept)
    config = smoothing, max_steps, tol, sweeps, options.get("prior") == "flat"
    build = partial(_search, config, plan_updates(problem))
    program, _ = compiled("place-anchors", problem, config, build, state, x, given)
    found = program(state, x, given)
    params = {name: np.asarray(value) for name, value in found.params.items()}
    params["log_scale"] = np.log(np.asarray(found.scale))
    clusters = np.asarray(found.clusters)[:num_anchors]
    return Placed(params, clusters, np.asarray(found.history)[: int(found.step)])


def _search(config: tuple, plan: Plan, problem: Problem) -> Callable:
    """Program of `place_anchors`."""
    smoothing, max_steps, tol, sweeps, flat = config

    def search(state: _State, x: Array, given: tuple) -> _State:
        rows, apart, classes, table, typical = given
        number = len(table)
        cap = jnp.maximum(_CAP * jnp.exp(-typical), state.scale)

        def by_cluster(clusters: Array, scale: Array) -> Array:
            member = jax.nn.one_hot(clusters, number, dtype=apart.dtype)
            law = apart, classes, member, scale, table
            found = log_pseudo_likelihood(*law, smoothing=smoothing)
            return found if flat else found + dist.Normal(-typical, 2.0).log_prob(jnp.log(scale))

        def best_scale(clusters: Array, choices: Array) -> Array:
            values = lax.map(partial(by_cluster, clusters), choices)
            return choices[jnp.argmax(values, axis=0), jnp.arange(number)]

        def step(state: _State) -> _State:
            args = x, jnp.full(len(x), -1).at[rows].set(state.clusters)
            joint, posterior = expectation(problem, state.params, args)
            value = joint + by_cluster(state.clusters, state.scale).sum()
            small = jnp.abs(value - state.value) <= tol * (1 + jnp.abs(value))
            params = closed_forms(problem, plan, state.params, args, posterior, maximised)
            scale = best_scale(state.clusters, jnp.minimum(state.scale * _NEAR[:, None], cap))
            fn = unexpanded(trace_model(problem, params, args)["x"]["fn"])
            factors = fn.log_factors(x)
            base = (factors["unary"] + factors["log_weights"])[rows]
            key, own = jax.random.split(jax.random.wrap_key_data(state.key))
            law = apart, classes, scale, table, smoothing
            clusters = _sweeps(own, base, state.clusters, law, sweeps) if sweeps else state.clusters
            history = state.history.at[state.step].set(value)
            raw = jax.random.key_data(key)
            return _State(params, scale, clusters, value, small, state.step + 1, history, raw)

        grid = jnp.minimum(jnp.asarray(_GRID)[:, None] * jnp.exp(-typical), cap)
        grid = jnp.broadcast_to(grid, (len(_GRID), number))
        state = state._replace(scale=best_scale(state.clusters, grid))
        return lax.while_loop(lambda s: ~s.done & (s.step < max_steps), step, state)

    return search


def _assigned(
    x: Annotated[ArrayLike, "points features"],
    assigned: Annotated[ArrayLike, "points"],
    *,
    num_clusters: int,
    covariance: str = "full",
    prior: str | GaussianPrior = "empirical",
    concentration: float = 1.0,
) -> None:
    """Model of a mixture with some rows in given components."""
    weights = mixing_weights(num_clusters, concentration)
    density = mixture_components(x, num_clusters, covariance, prior)
    labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, jnp.shape(x)[0]))
    numpyro.sample("x", assigned_mixture(labels, density, assigned), obs=x)


class _Sums(NamedTuple):
    """Log sums, and maxima, of kernels over the other members of each component, by anchor."""

    same: Array
    every: Array
    nearest: Array

    def log_prob(self, own: Array, smoothing: float) -> Array:
        """Return the log probability of each anchor's class; `own` is its share in the table."""
        if smoothing:
            extra = jnp.log(smoothing) + self.nearest
            above = jnp.logaddexp(self.same, extra + log_of(own))
            found = above - jnp.logaddexp(self.every, extra)
        else:
            found = self.same - self.every
        alone = jnp.isneginf(self.every) | (jnp.isneginf(self.same) & (not smoothing))
        return jnp.where(alone, log_of(own), jnp.where(alone, 0.0, found))

    def joined(self, kernels: Array, alike: Array) -> _Sums:
        """Add one member, given its log kernel at each anchor, and which anchors are of its class."""
        return _Sums(
            jnp.where(alike, jnp.logaddexp(self.same, kernels), self.same),
            jnp.logaddexp(self.every, kernels),
            jnp.maximum(self.nearest, kernels),
        )


def _sweeps(key: Array, base: Array, clusters: Array, law: tuple, most: int) -> Array:
    """Run iterated conditional modes of the components of anchors until none moves."""
    apart, classes, scale, table, smoothing = law
    live = classes >= 0
    number, num_clusters = base.shape
    alike = classes[:, None] == classes
    every_cluster, kinds = jnp.arange(num_clusters), jax.nn.one_hot(classes, table.shape[1])
    own = table[:, classes].T

    def sums_in(cluster: Array, member: Array) -> _Sums:
        others = member & ~jnp.eye(number, dtype=bool)
        logs = jnp.where(others, -scale[cluster] * apart, -jnp.inf)
        same = jnp.where(alike, logs, -jnp.inf)
        lse = partial(jax.nn.logsumexp, axis=1)
        return _Sums(lse(same), lse(logs), logs.max(axis=1))

    def visit(row: Array, state: tuple[Array, _Sums]) -> tuple[Array, _Sums]:
        clusters, sums = state
        now = clusters[row]
        count = jax.nn.one_hot(clusters, num_clusters).T @ kinds
        guarded = (count == 1).any(axis=1)
        without = sums_in(now, (clusters == now).at[row].set(False))
        sums = jax.tree.map(lambda all_, one: all_.at[:, now].set(one), sums, without)
        kernels = -apart[row][:, None] * scale
        kernels = jnp.where((jnp.arange(number) == row)[:, None], -jnp.inf, kernels)
        after = sums.joined(kernels, alike[row][:, None])
        member = (clusters[:, None] == every_cluster).at[row].set(False)
        change = after.log_prob(own, smoothing) - sums.log_prob(own, smoothing)
        gain = jnp.where(member, change, 0.0).sum(axis=0)
        gain = gain + sums.log_prob(own, smoothing)[row] + base[row]
        open_to = (~guarded & ~guarded[now]) | (every_cluster == now)
        gain = jnp.where(open_to, gain, -jnp.inf)
        best = jnp.argmax(gain)
        new = jnp.where(gain[best] > gain[now] + 1e-10, best, now)
        sums = jax.tree.map(lambda a, b: a.at[:, new].set(b[:, new]), sums, after)
        return clusters.at[row].set(new), sums

    def sweep(state: tuple[Array, Array, Array, Array]) -> tuple:
        clusters, _, done, key = state
        key, own_key = jax.random.split(key)
        # actual anchors in front
        order = jnp.argsort(jnp.where(live, jax.random.uniform(own_key, (number,)), 2.0))
        members = clusters == every_cluster[:, None]
        sums = jax.vmap(sums_in, out_axes=1)(every_cluster, members)
        new, _ = lax.fori_loop(0, live.sum(), lambda i, s: visit(order[i], s), (clusters, sums))
        return new, (new != clusters).any(), done + 1, key

    begin = clusters, jnp.asarray(True), jnp.asarray(0), key
    return lax.while_loop(lambda s: s[1] & (s[2] < most), sweep, begin)[0]


def neighbours_in_cluster(
    x: ArrayLike,
    member: ArrayLike,
    new: ArrayLike,
    new_member: ArrayLike,
    known: ArrayLike,
) -> NDArray[np.int64]:
    """Class of the nearest labelled row of the same cluster (WC-NN; Raghuram 2014, section 2.2.3).

    Where a cluster has no labelled row, which the source leaves open, it is that of the nearest one of all.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    member : array_like, shape (num_points, num_clusters)
        Responsibilities under a mixture without labels; each row goes to its most probable cluster.
    new, new_member : array_like
        The rows to classify, likewise.
    known : array_like of int, shape (num_points,)
        Class of each row of x, -1 where it is not known.

    Returns
    -------
    ndarray of int, shape (num_new,)

    Raises
    ------
    ValueError
        If no class is known.
    """
    known = np.asarray(known)
    rows = np.flatnonzero(known >= 0)
    if not len(rows):
        raise ValueError("known names no class of any row; give the classes of some")
    given, asked = np.asarray(x, float)[rows], np.asarray(new, float)
    clusters, wanted = (np.asarray(v).argmax(axis=1) for v in (member, new_member))
    middle = given.mean(axis=0)  # centred, so that products do not cancel
    given, asked = given - middle, asked - middle
    apart = ((asked**2).sum(axis=1)[:, None] + (given**2).sum(axis=1)) - 2 * asked @ given.T
    inside = wanted[:, None] == clusters[rows]
    inside |= ~inside.any(axis=1, keepdims=True)
    return known[rows][np.where(inside, apart, np.inf).argmin(axis=1)]


def joined_probabilities(
    x: ArrayLike,
    member: ArrayLike,
    anchors: Anchors,
    scale: ArrayLike,
    *,
    smoothing: float = 1e-3,
) -> NDArray[np.float64]:
    r"""Classes of new rows that join the labelled ones, by the pseudo-likelihood of all (rule A).

    .. math:: P(c) \propto \sum_j P(j | x)\, p_j(c | x) \prod_{i \in S_j} p'_{j,i}(c_i)
              \prod_{k \ne j} \prod_{i \in S_k} p_{k,i}(c_i)

    where p' counts the new row, with class c, among the labelled ones of component j (Raghuram 2014,
    eq. 2.15). `nfgl` goes by rule B, eq. 2.16, as the source does in its experiments.

    Parameters
    ----------
    x : array_like, shape (num_new, num_features)
    member : array_like, shape (num_new, num_clusters)
        Responsibilities, ``fit.predict_proba(x)``.
    anchors : Anchors
    scale : array_like, shape (num_clusters,)
        Of a fit, ``np.exp(fit.params["log_scale"])``.
    smoothing : float
        0 has the printed conditionals.

    Returns
    -------
    ndarray, shape (num_new, num_classes)
    """
    with jax.enable_x64(True):
        apart, _ = anchor_distances(anchors)
        points = jnp.asarray(anchors.points)
        given = (jnp.asarray(v) for v in (anchors.classes, anchors.clusters, scale, anchors.table))
        return np.asarray(
            _joined(jnp.asarray(x), jnp.asarray(member), points, apart, *given, smoothing)
        )


@partial(jax.jit, static_argnames="smoothing")
def _joined(x, member, points, apart, classes, clusters, scale, table, smoothing) -> Array:
    num_clusters, num_classes = table.shape
    inside = clusters[:, None] == jnp.arange(num_clusters)
    alike, others = classes[:, None] == classes, ~jnp.eye(len(points), dtype=bool)
    own = table[:, classes].T

    def sums(logs: Array, same: Array, live: Array) -> Array:
        logs = jnp.where(live & same, logs, -jnp.inf)
        return jax.nn.logsumexp(logs, axis=1)

    logs = -apart[:, :, None] * scale
    live = others[:, :, None] & inside
    before = _Sums(
        sums(logs, alike[:, :, None], live),
        sums(logs, jnp.ones((1, 1, 1), bool), live),
        jnp.where(live, logs, -jnp.inf).max(axis=1),
    )
    alone = jnp.where(inside, before.log_prob(own, smoothing), 0.0).sum(axis=0)

    def at(given: tuple[Array, Array]) -> Array:
        row, share = given
        kernels = -jnp.sum((points - row) ** 2, axis=1)[:, None] * scale
        held = jnp.where(inside, kernels, -jnp.inf)

        def of(c: Array) -> Array:
            mine = (classes == c)[:, None]
            after = before.joined(kernels, mine).log_prob(own, smoothing)
            change = jnp.where(inside, after, 0.0).sum(axis=0) - alone
            here = _Sums(
                jax.nn.logsumexp(jnp.where(mine, held, -jnp.inf), axis=0),
                jax.nn.logsumexp(held, axis=0),
                held.max(axis=0),
            )
            vote = here.log_prob(table[:, c], smoothing)
            return jax.nn.logsumexp(log_of(share) + vote + change)

        return jax.nn.softmax(jax.vmap(of)(jnp.arange(num_classes)))

    return lax.map(at, (x, member))
