"""Quasi-Newton ascent of a log density from several starts at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from sidebayes.common.magnitudes import counted

from ..base import KEEPS_NOTHING, FitError, Keeper, Problem
from ..coordinates import coordinates_of
from ..modes import Modes, preferred_by_prior
from ..plumbing.clock import Clock
from ..plumbing.progress import progress_bar
from ..plumbing.side_by_side import compiled_batch, one_member
from ..problem.causes import advice, explain_nonfinite, out_of_range
from ..problem.declared import prior_off_data
from ..problem.density import (
    abstract_trace,
    as_numpy,
    deterministics,
    latent_supports,
    place,
    unconstrained_start,
)
from ..steps.batches import Batches, estimated_log_prob
from ..steps.climbs import (
    CUT,
    SETTLED,
    STALLED,
    climbed,
    history_length,
    stop_code,
    until_stopped,
)
from ..steps.edges import Ends, climbed_inside, judged
from ..steps.lbfgs import Search, held_up, is_flat, relative_slope, search_step, start_search
from ..steps.row_tables import in_shares
from ..steps.shortlist import first_of, shortlisted
from ..steps.starts import initial_values, num_candidates, starting_point
from ..steps.updates import doubted
from ..symmetries.ends import distinct_ends

__all__ = ["Ascent", "ascend"]

Solver = Callable[[Problem, Callable, tuple], Callable]


_AT_REST = 1e-7
"""Gradient, relative to the loss, below which a climb without further gain has stopped by rounding alone."""

_SPENT, _GENTLE = 1e-9, 1e-4
"""Expected gain of the next step in nats, and gradient relative to the loss, below both of which the same
holds: an expected gain means little where the slope is steep."""

_PACE = 3
"""Number of gradients that lead about as far as one step of EM."""


class _Climb(NamedTuple):
    """State of the runs from all starts; every array has one entry per start."""

    search: Search
    code: Array
    history: Array

    @property
    def steps(self) -> Array:
        """Number of gradients computed."""
        return self.search.steps


@dataclass(frozen=True)
class Ascent:
    """Ends of quasi-Newton ascents from several starts.

    Attributes
    ----------
    value, prior, slope : ndarray, shape (num_starts,)
        Log density reached, the part of it that is due to priors read off the data, and the largest entry of
        its gradient there.
    steps : ndarray of int, shape (num_starts,)
        Numbers of gradients computed.
    best : int
        The start that reached the highest density.
    settled : bool
        Whether the best start ended at a mode: its gradient fell below the tolerance, and not because the
        map from the coordinates is flat there.
    is_mode : bool
        Whether the density neither grows without bound there, nor rises from there inwards.
    point : ndarray, shape (num_coordinates,)
        Unconstrained coordinates of the end of the best start.
    free, sites : dict of ndarray
        The same coordinates by latent site, and latent and deterministic sites there.
    ends : dict of ndarray
        The same sites at the ends of all starts, with an axis of starts in front.
    modes : Modes
        Distinct modes among the ends.
    history : ndarray, shape (num_starts, step)
        Log density by step, NaN after the end.
    gradient : callable
        Gradients of that density at rows of unconstrained coordinates, by the program of the climb; NaN
        where the density is not finite.
    sharp : {"", "corner", "edge"}
        Whether it ended at a corner or an edge of the density, across which there is no curvature.
    message : str
        How the ascent ended, in a sentence without a full stop.
    """

    value: NDArray
    prior: NDArray
    slope: NDArray
    steps: NDArray
    best: int
    settled: bool
    is_mode: bool
    point: NDArray
    free: dict[str, NDArray]
    sites: dict[str, NDArray]
    ends: dict[str, NDArray]
    modes: Modes
    history: NDArray
    gradient: Callable[[NDArray], NDArray]
    sharp: str
    message: str


def ascend(
    problem: Problem,
    *,
    title: str,
    seed: int,
    init: Mapping[str, Any] | None,
    num_restarts: int,
    tol: float,
    max_steps: int,
    memory: int = 20,
    jacobian: bool,
    progress: bool,
    clock: Clock,
    keep: Keeper = KEEPS_NOTHING,
    starts: Mapping[str, NDArray] | None = None,
    solver: Solver | None = None,
    batches: Batches | None = None,
) -> Ascent:
    """Climb to the modes of a model by L-BFGS, from several starts at once.

    Parameters
    ----------
    problem : Problem
    title : str
        Name of the engine, for messages.
    seed, init, progress
        See `Engine.run`; an `init` replaces all starts by one.
    num_restarts, tol, max_steps, memory
        See `MAP`.
    jacobian : bool
        Maximise the density of the unconstrained coordinates in place of the constrained one.
    clock : Clock
        Counts the time taken.
    keep : Keeper, optional
        Keeps the state on disk.
    starts : mapping of str to ndarray, optional
        Values of the latent sites with an axis of starts in front; in place of `seed` and `init`.
    solver : callable, optional
        ``solver(problem, loss, args)`` makes the function ``solve(gradient, point)`` whose steps
        replace those of L-BFGS.
    batches : Batches, optional
        Maximise the estimate of the density from the first batch.

    Raises
    ------
    FitError
        If the density is finite at no start; the message names the sites to blame.
    """
    latent_supports(problem)
    searched = starts is None and init is None
    if searched:
        number = num_candidates(problem, num_restarts)
        starts = initial_values(problem, seed, number, seeded=True)
    elif starts is None:
        starts = {name: v[None] for name, v in starting_point(problem, init).items()}
    length = history_length(max_steps)
    settings = (length, memory, jacobian, solver)
    with progress_bar(title, shown=progress) as advance:
        advance(0, "compiling")
        build = partial(_begin, length=length, memory=memory)
        given = starts, problem.args
        begin = clock.counted(
            compiled_batch("climb-begin", problem, settings, build, *given, once=True)
        )
        blank, begun = begin(*given)
        template = one_member(begun, 0)
        kept = num_restarts if searched else len(blank.code)
        first_ones = first_of(blank, kept)
        args = in_shares(problem, kept) if batches is None else problem.args
        limits = np.asarray(tol, float), np.asarray(max_steps)
        where = coordinates_of(abstract_trace(problem), template)
        fixed = template, where.bounded, args, batches, *limits
        build = partial(_climb, jacobian=jacobian, solver=solver)
        climb = clock.counted(
            compiled_batch("climb", problem, settings, build, first_ones, *fixed, np.asarray(0))
        )
        state = shortlisted(
            climb,
            blank,
            fixed,
            kept,
            height=lambda s: -np.asarray(s.search.value),
            advance=advance,
            keep=keep,
            clock=clock,
            pace=_PACE,
        )

        def density(points: NDArray) -> tuple[NDArray, NDArray]:
            found = []
            for chunk in _chunks(points, len(first_ones.code)):
                start = first_ones._replace(search=first_ones.search._replace(point=chunk))
                search = climb(start, *fixed, np.asarray(1))[0].search
                value = -np.asarray(search.value)
                slopes = np.where(np.isfinite(value)[:, None], -np.asarray(search.gradient), np.nan)
                found.append((value, slopes))
            values, slopes = map(np.concatenate, zip(*found, strict=True))
            return values[: len(points)], slopes[: len(points)]

        def gradient(points: NDArray) -> NDArray:
            return density(points)[1]

        run = partial(climbed, describe=_shown, advance=advance, keep=keep, clock=clock)

        def judge(state: _Climb, _: Any) -> Ends:
            search = state.search
            points, value = np.asarray(search.point), -np.asarray(search.value)
            gentle = np.abs(np.asarray(search.gradient)) <= _GENTLE * (1 + np.abs(value))[:, None]
            ends = judged(problem, where, points, value, lambda _, rows: gradient(rows))
            return ends.looking_ahead(gentle, np.asarray(state.code) == CUT, density)

        def send(_: _Climb, ends: Ends) -> _Climb:
            return first_ones._replace(search=first_ones.search._replace(point=ends.sent_in))

        state, (free, sites, prior), ends = climbed_inside(
            lambda state: run(climb, state, fixed), state, judge, send
        )

    if not np.isfinite(state.search.value).any():
        point = {name: np.asarray(value[0]) for name, value in starts.items()}
        raise FitError(_no_start(title, problem, point), point)
    places = as_numpy(free), as_numpy(sites), np.asarray(prior)
    told = state, ends, starts, *places, gradient
    return _ended(title, problem, *told, tol=tol, max_steps=max_steps)


def _shown(state: _Climb) -> str:
    return f"log joint {-np.nanmin(np.asarray(state.search.value)):.6g}"


def _flat(solve: Callable, unravel: Callable) -> Callable[[Array, Array], Array]:
    """Turn the solver of a pytree into one of vectors."""

    def flat(gradient: Array, point: Array) -> Array:
        return ravel_pytree(solve(unravel(gradient), unravel(point)))[0]

    return flat


def _chunks(rows: NDArray, size: int) -> list[NDArray]:
    """Divide rows into chunks of one size; the last is filled up with zeros."""
    padded = np.pad(rows, [(0, -len(rows) % size), (0, 0)])
    return np.split(padded, len(padded) // size)


def _begin(problem: Problem, *, length: int, memory: int) -> Callable:
    def one(start: dict[str, Array], args: tuple) -> tuple[_Climb, dict[str, Array]]:
        free = unconstrained_start(problem, start, args)
        history = jnp.full(length, jnp.nan)
        state = _Climb(start_search(ravel_pytree(free)[0], memory), jnp.asarray(0), history)
        return state, free

    return one


def _climb(problem: Problem, *, jacobian: bool, solver: Solver | None) -> Callable:
    """Program of one start, until it has stopped or computed `limit` gradients."""

    def one(
        state: _Climb,
        template: dict[str, Array],
        bounded: Array,
        args: tuple,
        batches: Batches | None,
        tol: Array,
        most: Array,
        limit: Array,
    ) -> tuple[_Climb, tuple]:
        _, unravel = ravel_pytree(template)
        total = estimated_log_prob(batches, 0)

        def loss(free: dict[str, Array]) -> Array:
            sites, log_det = place(problem, free, args)
            return -total(sites) - (log_det if jacobian else 0.0)

        steps = None if solver is None else _flat(solver(problem, loss, args), unravel)
        value_and_grad = jax.value_and_grad(lambda point: loss(unravel(point)))

        def step(state: _Climb) -> _Climb:
            search = search_step(value_and_grad, state.search, steps, bounded)
            settled = is_flat(search, tol)
            history = state.history.at[search.steps - 1].set(-search.value)
            stalled = search.stalled | (steps is not None and held_up(search, history))
            cut = search.steps == most
            code = stop_code(settled=settled, stalled=stalled, cut=cut)
            return _Climb(search, code, history)

        state = until_stopped(step, state, limit)
        free = unravel(state.search.point)
        sites, _ = place(problem, free, args)
        params = {name: sites[name]["value"] for name in free}
        # with the change of variables, ends are not modes of the density without such priors
        prior = jnp.zeros(()) if jacobian else prior_off_data(sites)
        return state, (free, params | deterministics(sites), prior)

    return one


def _ended(
    title: str,
    problem: Problem,
    state: _Climb,
    ends: Ends,
    starts: Mapping[str, Any],
    free: dict[str, NDArray],
    sites: dict[str, NDArray],
    prior: NDArray,
    gradient: Callable[[NDArray], NDArray],
    *,
    tol: float,
    max_steps: int,
) -> Ascent:
    value, steps = -np.asarray(state.search.value), np.asarray(state.steps)
    slope = np.abs(np.asarray(state.search.gradient)).max(axis=1, initial=0.0)
    sound = np.isfinite(value)
    best = ends.best(value, sound)
    here = {name: v[best] for name, v in sites.items()}
    code = int(np.asarray(state.code)[best])
    size, taken = f"gradient at most {slope[best]:.2g}", counted(steps[best], "step")
    end = jax.tree.map(lambda leaf: leaf[best], state.search)
    spent = end.promised <= _SPENT and relative_slope(end) <= _GENTLE
    if code == STALLED and bool(spent or is_flat(end, _AT_REST)):
        code, size = SETTLED, f"{size}, the smallest that rounding allows"
    if code != SETTLED and best in ends.corners:
        code, size = SETTLED, f"at {ends.corners[best]}"
    is_mode, remark = ends.remark(best, here)
    short = {end for end, short in ends.short.items() if short.said}
    short |= ends.on_edges - ends.corners.keys()
    stopped = [end for end in short if end != best]
    arrived = sound & ~np.isin(np.arange(len(value)), stopped)
    modes = distinct_ends(problem, value, arrived, sites, starts, free)
    if not is_mode:
        message = f"{title} found no mode in {taken}"
    elif code == SETTLED:
        message = (
            f"{title} converged in {taken} ({size}); the best of {modes} reached "
            f"log joint {value[best]:.6g}"
        )
    elif best in ends.on_edges:
        message = (
            f"{title} stopped after {taken} at an edge of the density ({size}), such as of absolute values, "
            "where slopes do not vanish: it may be the mode or not, and more steps do not tell; take "
            "engine='nuts', or a density without edges"
        )
    elif code == STALLED:
        message = (
            f"{title} made no further progress after {taken} ({size}); loosen "
            f"tol={tol}, or start elsewhere with init="
        )
    else:
        message = (
            f"{title} stopped at max_steps={max_steps} ({size}); raise it, or loosen tol={tol}"
        )
    if prior.any():
        members = [one_member(sites, row) for row in range(len(value))]
        likeliest = ends.best(value - prior - doubted(problem, members, sound)[0], sound)
        message += preferred_by_prior(value, prior, best, [likeliest])
    if remark:
        message += f"; {remark}"
    if broken := int((~sound).sum()):
        were = "s that broke down were" if broken > 1 else " that broke down was"
        message += f"; {broken} start{were} set aside"
        if cause := out_of_range(problem):
            message += f": {cause}"
    return Ascent(
        value=value,
        prior=prior,
        slope=slope,
        steps=steps,
        best=best,
        settled=code == SETTLED and is_mode,
        is_mode=is_mode,
        point=np.asarray(state.search.point)[best],
        free={name: v[best] for name, v in free.items()},
        sites=here,
        ends=sites,
        modes=modes,
        history=np.where(np.isfinite(state.history), state.history, np.nan)[:, : int(steps.max())],
        gradient=gradient,
        sharp="edge" if best in ends.on_edges else "corner" * (best in ends.corners),
        message=message,
    )


def _no_start(title: str, problem: Problem, point: Mapping[str, NDArray]) -> str:
    blame = explain_nonfinite(problem, point)
    if blame:
        return (
            f"{title}: the log joint is not finite at any start: {blame}; {advice(problem, blame)}"
        )
    return (
        f"{title}: every start broke down on the way; pass init=, or a prior that keeps scales away "
        "from zero"
    )
