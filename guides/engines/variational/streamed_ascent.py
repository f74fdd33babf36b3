"""Coordinate ascent over a table on disk, with statistics that are summed block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from sidebayes.models.blocks.block import Observation
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph

from ..base import EngineResult, Evidence, FitError, Keeper, Problem, Status
from ..draw_checks import check_draws
from ..expectation_maximisation.batch_steps import blocks_given, expect, run_step, tied_mixture
from ..expectation_maximisation.streamed_data import StreamedData
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..plumbing.progress import progress_bar
from ..problem.causes import remedy
from ..problem.declared import collapsed_sites
from ..problem.density import as_numpy, trace_model
from ..problem.importance import proper, told
from ..steps.climbs import at_rest
from ..steps.starts import random_keys, starting_point
from ..steps.update_checks import check_updates
from ..steps.updates import Plan, listed
from .factors import NORMALIZER, check_factors, entries_of, plan_factors

__all__ = ["fit_table"]

_ROWS = 65_536
"""Number of rows that are processed at once."""

_UNSEEN = (
    "How close these factors are to the posterior was not looked at, which takes a pass over the table for "
    "each draw: they are too narrow where clusters overlap"
)


class _Sweeps(NamedTuple):
    """State of the ascent, as arrays on the host.

    Attributes
    ----------
    steps : ndarray of int, shape ()
        Number of complete sweeps over the table.
    found : tuple
        Factors of the blocks.
    value, gain : ndarray, shape ()
        Bound at the factors before the last update, and its last rise.
    settled : ndarray of bool, shape ()
    history : ndarray, shape (max_steps,)
        Bounds, NaN where none was computed.
    """

    steps: NDArray
    found: tuple
    value: NDArray
    gain: NDArray
    settled: NDArray
    history: NDArray


def fit_table(
    engine: Any,
    draws: Callable[[Plan, Problem], Callable],
    problem: Problem,
    *,
    seed: int,
    init: Mapping[str, Any] | None,
    progress: bool,
    keep: Keeper,
) -> EngineResult:
    """Fit a table on disk, starting from the best factors of a sample of its rows.

    Parameters
    ----------
    engine : CoordinateAscent
    draws : callable
        Builds the program that draws from factors.
    problem : Problem
        Problem with a `StreamedTable` among its data.
    seed, init, progress, keep
        See `Engine.run`.

    Raises
    ------
    ValueError
        If there are links or other data beside the table, or a site has no factor.
    FitError
        If the bound stops being finite.
    """
    data = StreamedData.prepare(problem, _ROWS)
    some, clock = data.first(), Clock()
    if len(data.table.rows) == data.table.num_rows:
        return engine.run(some, seed=seed, init=init, progress=progress, keep=keep)
    plan = plan_factors(some)
    if plan.rest:
        raise ValueError(
            f"CoordinateAscent reads a table on disk for models whose sites all have factors, and "
            f"{listed(plan.rest)} have none ({'; '.join(plan.lacking)}); pass an array"
        )
    with clock.running():
        mode = init or replace(engine, num_draws=1).run(some, seed=seed, progress=False)
        start = starting_point(some, mode)
        check_updates(some, plan, start, clock)
        check_draws(some, plan, start, clock)
        check_factors(some, plan, start)
        with progress_bar("Variational Bayes", shown=progress) as advance:
            state = _swept(data, plan, start, engine.tol, engine.max_steps, advance, keep, clock)
        given = state.found, random_keys(seed, engine.num_draws), start, some.args
        draw = clock.counted(compiled("cavi-draws", some, None, partial(draws, plan), *given))
        (drawn, *_), means = draw(*given)
    steps = int(state.steps)
    passes = f"{steps} pass{'es' if steps > 1 else ''} over {data.table.num_rows} rows"
    ended = "converged in" if state.settled else "stopped, as max_steps says, after"
    bound = proper(some, Evidence(float(state.value), "bound"))
    return EngineResult(
        engine=engine.name,
        draws={name: value[None] for name, value in as_numpy(drawn).items()},
        sample_stats={"lp": np.full((1, engine.num_draws), np.nan)},
        objective=state.history[None, :steps],
        status=Status(
            bool(state.settled),
            f"coordinate ascent {ended} {passes}; {told(some, bound)}",
        ),
        seconds=clock.seconds,
        density_space="unconstrained",
        log_evidence=bound,
        factor_means=as_numpy(means),
        remarks=(_UNSEEN,),
    )


def _swept(
    data: StreamedData,
    plan: Plan,
    start: dict[str, NDArray],
    tol: float,
    max_steps: int,
    advance: Callable[[int, str], None],
    keep: Keeper,
    clock: Clock,
) -> _Sweeps:
    """Increase the bound, by one pass over the table per step, from the factors that follow a point.

    Raises
    ------
    FitError
        If the bound stops being finite.
    """
    moments = data.centre, data.covariance

    def run(name: str, step: Callable, *given: Any) -> Any:
        return run_step(name, step, data.problem, plan, clock, *given, *moments)

    def visited(name: str, visit: Callable, at: Any, shown: str) -> tuple[float, tuple]:
        """Return sums over all batches of values and of statistics."""
        total, sums = 0.0, None
        for number in data.order(0, None):
            value, new = run(name, visit, at, *data.load(int(number)))
            total += float(value)
            sums = new if sums is None else jax.tree.map(np.add, sums, new)
            advance(1, shown)
        assert sums is not None  # a table has at least one row
        return total, sums

    def updated(sums: tuple) -> tuple:
        found: tuple = run("streamed-cavi-update", _update, start, sums, data.linked)
        return found

    _, sums = visited("streamed-cavi-begin", _at_point, start, "the first pass")
    nothing = np.asarray(0.0)
    blank = np.full(max_steps, np.nan)
    first = updated(sums), nothing - np.inf, nothing + np.inf
    state = keep.restore(_Sweeps(np.asarray(0), *first, np.asarray(False), blank))
    while state.steps < max_steps and not state.settled:
        step, shown = int(state.steps), f"bound {float(state.value):.6g}"
        likelihood, sums = visited("streamed-cavi", _at_factors, (start, state.found), shown)
        cost = run("streamed-cavi-cost", _divergence, (start, state.found), data.linked)
        value = np.asarray(likelihood - cost)
        if not np.isfinite(value):
            raise FitError(
                "CoordinateAscent: the bound is not finite; " + remedy(data.problem), start
            )
        now, last, before = map(jnp.asarray, (value, state.value, state.gain))
        settled, gain = map(np.asarray, at_rest(now, last, before, tol))
        found = state.found if settled else updated(sums)
        history = state.history.copy()
        history[step] = value
        state = _Sweeps(state.steps + 1, found, value, gain, settled, history)
        keep.offer(state)
    return state


def _at_point(
    problem: Problem,
    plan: Plan,
    params: dict[str, Array],
    args: tuple,
    graph: LabelGraph,
    centre: Array,
    covariance: Array,
) -> tuple[Array, tuple]:
    """Return log likelihood and expected statistics of a batch, given values of all sites."""
    value, _, statistics, _ = expect(problem, plan, params, args, graph, centre, covariance)
    return value, statistics


def _at_factors(
    problem: Problem,
    plan: Plan,
    at: tuple[dict[str, Array], tuple],
    args: tuple,
    graph: LabelGraph,
    centre: Array,
    covariance: Array,
) -> tuple[Array, tuple]:
    """Return a batch's term of the bound, with the best factor of its labels, and expected statistics."""
    params, found = at
    trace = trace_model(problem, params, args)
    _, fn, value = tied_mixture(trace, graph)
    factors = entries_of(fn, value)
    blocks, _ = blocks_given(plan, trace, centre, covariance)
    for block, factor in zip(blocks, found, strict=True):
        factors |= block.expected_factors(factor, Observation(fn, value, {}))
    normalizer = factors.pop(NORMALIZER)
    log_z, slope = jax.value_and_grad(fn.log_partition)(factors)
    return log_z - normalizer, tuple(
        block.statistics(Observation(fn, value, slope)) for block in blocks
    )


def _update(
    problem: Problem,
    plan: Plan,
    params: dict[str, Array],
    statistics: tuple,
    linked: tuple,
    centre: Array,
    covariance: Array,
) -> tuple:
    """Return the best factors given statistics of all rows; `linked` are blank rows."""
    trace = trace_model(problem, params, linked)
    sources = [fn for fn, _ in collapsed_sites(trace).values()]
    blocks, _ = blocks_given(plan, trace, centre, covariance)
    return tuple(b.update(own, sources) for b, own in zip(blocks, statistics, strict=True))


def _divergence(
    problem: Problem,
    plan: Plan,
    at: tuple[dict[str, Array], tuple],
    linked: tuple,
    centre: Array,
    covariance: Array,
) -> Array:
    """Return the sum of the divergences of all factors from their priors."""
    params, found = at
    blocks, _ = blocks_given(plan, trace_model(problem, params, linked), centre, covariance)
    costs = [block.divergence(factor) for block, factor in zip(blocks, found, strict=True)]
    return jnp.stack(costs).sum()
