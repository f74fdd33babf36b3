"""Variational inference over a table on disk: one pass per step to the mode, and then samples of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from ..base import EngineResult, Evidence, FitError, Keeper, Problem, Status
from ..expectation_maximisation.streamed_data import StreamedData
from ..modes import Modes
from ..optimisers.ascent import ascend
from ..optimisers.moments import judge_draws
from ..plumbing.clock import Clock
from ..plumbing.progress import progress_bar
from ..problem.density import as_numpy, unconstrained_start
from ..problem.importance import proper, refuse_infinite, told
from ..problem.values import evaluated
from ..steps.starts import starting_point
from ..steps.updates import refuse_restricted
from .guide_search import Frame, widths_of
from .table_density import Estimate, RowSums, TableDensity, near

__all__ = ["fit_table"]

_ROWS = 65_536
"""Number of rows of a pass that are processed at once."""

_STEP_ROWS = 4096
"""Number of rows per step of the search, if `batch_sets` is not given."""

_HELD = 2**23
"""Maximum size, in numbers, of the rows that the search holds in memory: 64 MiB."""

_PASSES = 12
"""Maximum number of passes over the table on the way to the mode."""

_NEAR = 1e-3
"""Expected rise of the log density in the next Newton step below which a point is the mode."""

_FALL = 0.25
"""Largest ratio of expected rises of successive steps for the curvature to be used again."""

_FLAT = 1e-4
"""Minimum curvature, relative to that along single coordinates, in a Newton step."""

_LOOKED = 2**28
"""Product of the numbers of rows and draws whose densities are computed to judge the draws."""

_LOOK_ROWS, _LOOK_BATCHES = 1024, 16
"""Number of rows of a batch, and minimum number of batches, where not all rows are used."""

_FARTHER = 4
"""Divisor of the number of rows for each set of draws from farther out, of which there are as many."""

_ROUGH = 0.5
"""Error of log importance weights above which they allow no verdict."""


class _Peak(NamedTuple):
    """State of the search for the mode, as arrays on the host.

    Attributes
    ----------
    passes : ndarray of int, shape ()
        Number of complete passes over the table.
    ended : ndarray of bool, shape ()
    stride : ndarray, shape ()
        Share of the Newton step that is tried next.
    point, slope, ahead : ndarray, shape (num_coordinates,)
        The highest point, the gradient there, and the Newton step from it.
    value : ndarray, shape ()
        Log density there.
    curvature : ndarray, shape (num_coordinates, num_coordinates)
        Negative second derivatives, from the sample of rows.
    stale : ndarray of bool, shape ()
        Whether the curvature is that of an earlier point.
    """

    passes: NDArray
    ended: NDArray
    stale: NDArray
    stride: NDArray
    point: NDArray
    value: NDArray
    slope: NDArray
    curvature: NDArray
    ahead: NDArray


def fit_table(
    engine: Any,
    problem: Problem,
    *,
    seed: int,
    init: Mapping[str, Any] | None,
    progress: bool,
    keep: Keeper,
) -> EngineResult:
    """Fit a table on disk.

    Newton steps lead from the mode of a sample of the rows to that of all rows. Each gradient takes one pass
    over the table, and the curvature comes from the sample. Elsewhere, the log density is its first-order
    expansion at the mode, for all rows, plus a remainder, which some of the rows estimate nearly as well.

    Parameters
    ----------
    engine : SVI
    problem : Problem
        Problem with a `StreamedTable` among its data.
    seed, init, progress, keep
        See `Engine.run`; an `init` is where Newton steps begin.

    Raises
    ------
    ValueError
        If there are links or other data beside the table, or the density is no sum over its rows.
    FitError
        If the density is not finite where Newton steps begin, or the bound stops being finite.
    """
    data = StreamedData.prepare(problem, _ROWS, closed=False)
    some, clock = data.first(), Clock()
    num_rows = data.table.num_rows
    if len(data.table.rows) == num_rows:
        result: EngineResult = engine.run(some, seed=seed, init=init, progress=progress, keep=keep)
        return result
    refuse_restricted(some)
    start, free, modes = _start(engine, some, seed, init, progress, keep.part(0), clock)
    table = TableDensity(data, free, clock)
    table.check_rows(start)
    point = table.flat(free)
    with clock.running(), progress_bar("SVI", shown=progress) as advance:
        peak = _climbed(table, point, start, advance, keep.part(1))
        held = table.drawn(
            min(num_rows, _HELD // data.table.sample.shape[1]),
            engine.batch_sets or _STEP_ROWS,
            [seed, 1],
        )
    frame = Frame(free, peak.point, widths_of(peak.curvature))
    frame, around = jax.device_put((frame, (held, peak.slope)))
    guides = engine.guides("streamed-svi", partial(near, data.plan))
    with progress_bar("SVI", engine.num_steps, shown=progress) as advance:
        search = guides.climb(
            some,
            frame,
            around,
            (engine.tol, engine.learning_rate),
            seed=seed,
            above=float(peak.value),
            clock=clock,
            advance=advance,
            keep=keep.part(2),
            point=start,
        )
    del held, around  # frees memory for the next stage
    flat, log_q = guides.draw(some, frame, search, clock)
    looks = _Looks(table, peak, seed, progress)
    found, sites = looks.at(flat, _LOOKED)
    refuse_infinite(some, found.value)
    log_weights = found.value - log_q
    error = np.hypot(log_weights.std(ddof=1) / np.sqrt(len(flat)), found.error)
    bound = proper(some, Evidence(float(log_weights.mean()), "bound", float(error)))
    judged = judge_draws(some, free, flat, sites, log_weights, clock, seed, look=looks.farther_out)
    close, said = judged.close, judged.sentence
    if found.num_rows < num_rows:
        close = close and found.spread <= _ROUGH
        said = f"{_said(found, num_rows)}; {said}"
    return EngineResult(
        engine=engine.name,
        draws={name: value[None] for name, value in sites.items()},
        sample_stats={"lp": found.value[None], "log_weight": log_weights[None]},
        objective=float(peak.value) + search.objective.astype(float),
        status=Status(
            search.settled and close, f"{guides.ended(search)}; {told(some, bound)}; {said}"
        ),
        seconds=clock.seconds,
        modes=modes,
        remarks=judged.remarks,
        density_space="unconstrained",
        log_evidence=bound,
    )


@dataclass(frozen=True, eq=False)
class _Looks:
    """Log densities of draws, from as many rows as a budget allows."""

    table: TableDensity
    peak: _Peak
    seed: int
    progress: bool

    def at(self, points: NDArray, budget: int) -> tuple[Estimate, dict[str, NDArray]]:
        """Return log densities at points, and sites; `budget` limits the number of points times rows."""
        size = max(budget // len(points), _LOOK_BATCHES * _LOOK_ROWS)
        clock, peak = self.table.clock, self.peak
        with clock.running(), progress_bar("SVI", shown=self.progress) as advance:
            rows = self._drawn(size) if size < self.table.data.table.num_rows else None
            found = self.table.around(peak.point, points, rows, advance)
            above = float(peak.value) + (points - peak.point) @ peak.slope
            return found._replace(value=above + found.value), self.table.sites(points)

    def farther_out(self, points: NDArray) -> tuple[NDArray, dict[str, NDArray]]:
        """Return the same from fewer rows, at points where the density may be zero."""
        found, sites = self.at(points, _LOOKED // _FARTHER)
        return np.where(np.isfinite(found.value), found.value, -np.inf), sites

    def _drawn(self, size: int) -> RowSums:
        if size not in self._known:
            self._known[size] = self.table.drawn(size, _LOOK_ROWS, [self.seed, 2])
        return self._known[size]

    @cached_property
    def _known(self) -> dict[int, RowSums]:
        return {}


def _said(found: Estimate, num_rows: int) -> str:
    """Describe the rows that were used to judge the draws."""
    said = (
        f"log densities of the draws were estimated from {found.num_rows} of {num_rows} rows, each to within "
        f"{found.spread:.2g}"
    )
    if found.spread > _ROUGH:
        said += ", which is too rough to judge them: fewer num_draws look at more rows"
    return said


def _start(
    engine: Any,
    some: Problem,
    seed: int,
    init: Mapping[str, Any] | None,
    progress: bool,
    keep: Keeper,
    clock: Clock,
) -> tuple[dict[str, NDArray], dict[str, NDArray], Modes | None]:
    """Return sites where Newton steps begin, in their supports and unconstrained, and modes found."""
    if init is not None:
        start = starting_point(some, init)
        free = evaluated(partial(unconstrained_start, some, start))
        return start, as_numpy(free), None
    mode = ascend(
        some,
        title="SVI",
        seed=seed,
        init=None,
        num_restarts=engine.num_restarts,
        tol=1e-5,
        max_steps=1000,
        jacobian=True,
        progress=progress,
        keep=keep,
        clock=clock,
    )
    return {name: mode.sites[name] for name in mode.free}, mode.free, mode.modes


def _climbed(
    table: TableDensity,
    point: NDArray,
    start: Mapping[str, NDArray],
    advance: Callable[[int, str], None],
    keep: Keeper,
) -> _Peak:
    """Take Newton steps up the log density of all rows, each by one pass.

    Raises
    ------
    FitError
        If the log density is not finite at the first point.
    """
    size = len(point)
    nothing, flat = np.zeros((), point.dtype), np.zeros(size, point.dtype)
    peak = keep.restore(
        _Peak(
            passes=np.asarray(0),
            ended=np.asarray(False),
            stale=np.asarray(False),
            stride=nothing + 1,
            point=point,
            value=np.asarray(-np.inf),
            slope=flat,
            curvature=np.zeros((size, size), point.dtype),
            ahead=flat,
        )
    )
    while not peak.ended and peak.passes < _PASSES:
        trial = peak.point + peak.stride * peak.ahead
        value, slope = table.whole(trial, advance)
        peak = peak._replace(passes=peak.passes + 1)
        if value > peak.value and np.isfinite(value) and np.isfinite(slope).all():
            promised = peak.slope @ peak.ahead
            peak = peak._replace(
                point=trial, value=np.asarray(value), slope=slope, stale=np.asarray(True)
            )
            peak = _aimed(peak) if peak.passes > 1 else _aimed_anew(table, peak)
            if peak.stale and not peak.slope @ peak.ahead <= _FALL * promised:
                peak = _aimed_anew(table, peak)
            peak = peak._replace(ended=np.asarray(peak.slope @ peak.ahead <= _NEAR))
        elif not np.isfinite(peak.value):
            raise FitError(
                "SVI: the log density of the whole table is not finite where the search begins; look for "
                "rows far off, tighten the priors, or pass another init=",
                start,
            )
        elif peak.stale:
            peak = _aimed_anew(table, peak)
        else:
            peak = peak._replace(stride=peak.stride / 4)
        keep.offer(peak)
    return peak


def _aimed_anew(table: TableDensity, peak: _Peak) -> _Peak:
    """Set the Newton step by the curvature at the point itself."""
    found = peak._replace(curvature=table.curvature(peak.point), stale=np.asarray(False))
    return _aimed(found)


def _aimed(peak: _Peak) -> _Peak:
    """Set the Newton step by the curvature that is stored."""
    ahead = _newton_step(peak.curvature, peak.slope)
    return peak._replace(ahead=ahead, stride=np.ones_like(peak.stride))


def _newton_step(curvature: NDArray, slope: NDArray) -> NDArray:
    """Step to the top of the parabola; where the curvature is upward or near zero, a safe step uphill."""
    widths = widths_of(curvature)
    scaled = widths[:, None] * curvature * widths
    sizes, along = np.linalg.eigh((scaled + scaled.T) / 2)
    found: NDArray = widths * (
        along @ ((along.T @ (widths * slope)) / np.maximum(np.abs(sizes), _FLAT))
    )
    return found
