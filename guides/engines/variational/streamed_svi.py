"""Variational inference over a table on disk: one pass for each step to the mode, then some of the rows."""

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
"""Rows of a pass that are visited at once."""

_STEP_ROWS = 4096
"""Rows of a step of the search, if `batch_sets` does not say."""

_HELD = 2**23
"""Numbers in the rows that the search holds in memory: 64 MiB."""

_PASSES = 12
"""Most passes over the table on the way to the mode."""

_NEAR = 1e-3
"""Rise of the log density that Newton's next step promises, below which a point is the mode."""

_FALL = 0.25
"""Share of the rise promised before that the next step may promise, for the curvature to be used again."""

_FLAT = 1e-4
"""Least curvature, relative to that along single coordinates, that Newton's step believes."""

_LOOKED = 2**28
"""Rows, times draws, whose densities are computed to judge the draws."""

_LOOK_ROWS, _LOOK_BATCHES = 1024, 16
"""Rows of a batch, and the fewest batches, where not all rows are looked at."""

_FARTHER = 4
"""Times as few rows that are looked at for each set of draws from farther out, of which there are as many."""

_ROUGH = 0.5
"""Error of log importance weights from which on they say nothing."""


class _Peak(NamedTuple):
    """State of the way to the mode, as arrays of the host.

    Attributes
    ----------
    passes : ndarray of int, shape ()
        Over the table, that have ended.
    ended : ndarray of bool, shape ()
    stride : ndarray, shape ()
        Share of Newton's step that is tried next.
    point, slope, ahead : ndarray, shape (num_coordinates,)
        The highest point, the gradient there, and Newton's step from it.
    value : ndarray, shape ()
        Log density there.
    curvature : ndarray, shape (num_coordinates, num_coordinates)
        Negative second derivatives, as the sample of rows has them.
    stale : ndarray of bool, shape ()
        Whether these are of an earlier point.
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

    Newton's steps lead from the mode of a sample of the rows to that of all of them: gradients by one
    pass over the table each, curvature by the sample. The log density elsewhere is its expansion
    to first order at the mode, which is of all rows, and a remainder, which some rows tell nearly as well.

    Parameters
    ----------
    engine : SVI
    problem : Problem
        With a `StreamedTable` among its data.
    seed, init, progress, keep
        See `Engine.run`; an `init` is where Newton's steps begin.

    Raises
    ------
    ValueError
        If there are links or other data beside the table, or the density is no sum over its rows.
    FitError
        If the density is not finite where Newton's steps begin, or the bound stops being finite.
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
    del held, around  # memory for what follows
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
    """Log densities of draws, by as many rows as a budget allows."""

    table: TableDensity
    peak: _Peak
    seed: int
    progress: bool

    def at(self, points: NDArray, budget: int) -> tuple[Estimate, dict[str, NDArray]]:
        """Log densities at points, and sites; `budget` limits the number of points times rows."""
        size = max(budget // len(points), _LOOK_BATCHES * _LOOK_ROWS)
        clock, peak = self.table.clock, self.peak
        with clock.running(), progress_bar("SVI", shown=self.progress) as advance:
            rows = self._drawn(size) if size < self.table.data.table.num_rows else None
            found = self.table.around(peak.point, points, rows, advance)
            above = float(peak.value) + (points - peak.point) @ peak.slope
            return found._replace(value=above + found.value), self.table.sites(points)

    def farther_out(self, points: NDArray) -> tuple[NDArray, dict[str, NDArray]]:
        """The same by fewer rows, at points that need have no density."""
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
    """What was looked at to judge the draws."""
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
    """Values of the sites that Newton's steps begin at, in their supports and free, and modes found."""
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
    """Newton's steps up the log density of all rows, each by one pass.

    Raises
    ------
    FitError
        If it is not finite at the first point.
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
    """Newton's step by the curvature at the point itself."""
    found = peak._replace(curvature=table.curvature(peak.point), stale=np.asarray(False))
    return _aimed(found)


def _aimed(peak: _Peak) -> _Peak:
    """Newton's step by the curvature that is known."""
    ahead = _newton_step(peak.curvature, peak.slope)
    return peak._replace(ahead=ahead, stride=np.ones_like(peak.stride))


def _newton_step(curvature: NDArray, slope: NDArray) -> NDArray:
    """Step to the top of the parabola; where the curvature is upward, or next to none, a safe one uphill."""
    widths = widths_of(curvature)
    scaled = widths[:, None] * curvature * widths
    sizes, along = np.linalg.eigh((scaled + scaled.T) / 2)
    found: NDArray = widths * (
        along @ ((along.T @ (widths * slope)) / np.maximum(np.abs(sizes), _FLAT))
    )
    return found
