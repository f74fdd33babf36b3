"""Expectation maximisation in small batches, for data larger than memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from sidebayes.common.fields import Count, NonNegative, Range
from sidebayes.common.magnitudes import counted

from ..base import KEEPS_NOTHING, EngineResult, FitError, Keeper, KeptEngine, Problem, Status
from ..plumbing.clock import Clock
from ..plumbing.progress import progress_bar
from ..problem.causes import remedy
from ..problem.declared import finite_mixtures
from ..problem.density import abstract_trace, as_numpy
from ..steps.starts import starting_point
from ..steps.update_checks import check_updates
from .batch_data import BatchData
from .batch_steps import Passes, after_pass, expect, maximise, run_step
from .em import EM
from .streamed_data import StreamedData, StreamedTable

__all__ = ["StochasticEM"]

_FIRST = EM(num_restarts=5, max_steps=50)
"""Engine that finds the start, on points of the first batch."""

_AGAIN = EM(num_restarts=1, max_steps=50)
"""Engine that climbs from the end of the epochs, and from their start, on a sample of the rows."""

_OVERFITTED = 2
"""Rise of such a climb, in nats per entry of the parameters, that is put down to chance in the sample."""

_COARSE, _EPOCHS = 1e-4, 10
"""Gain of an epoch, relative to one plus the size of the log joint, below which EM takes over, and number of
epochs after which it does so in any case, as where the order of the rows keeps the parameters moving."""

_LOST = (
    "StochasticEM: the log joint stopped being finite, as a cluster lost its points or collapsed; take "
    "larger batches, or "
)


class _Walk(NamedTuple):
    """State of a run, as arrays on the host.

    `params` are the mode given `statistics`; `epoch` and `value` are sums over the batches that were visited
    in the present epoch or pass.
    """

    visited: NDArray
    params: dict[str, NDArray]
    statistics: tuple
    epoch: tuple
    value: NDArray
    history: NDArray
    passes: Passes


@dataclass(frozen=True)
class StochasticEM(KeptEngine):
    r"""Stepwise expectation maximisation of Gaussian mixtures with links.

    Connected sets of the link graph are distributed over batches. After the E-step of a batch the
    running averages of the sufficient statistics move towards its estimate for all the data,

    .. math:: s \leftarrow (1 - \rho_t) s + \rho_t \hat s_t, \qquad \rho_t = (t + 1)^{-\alpha},

    and the closed-form M-step follows. An epoch visits every connected set once. Steps shrink, so
    that epochs soon gain little even far from the mode. EM then takes over: every further epoch is
    one E-step over all batches and one M-step, with extrapolated statistics (SQUAREM, scheme S3) in
    every other of them. The result is a fixed point of EM. The data may be a NumPy memmap, which is
    read one batch at a time, or a table on disk (`sidebayes.scan`). Blocks from all over such a table
    are read together, and their rows are mixed. If these are not the whole table, its order may
    still affect which mode is found; EM on a sample of the rows then shows whether it did.

    Parameters
    ----------
    batch_size : int
        Approximate number of points in a batch; connected sets are never cut.
    max_epochs : int
        Maximum number of passes over the data, of both kinds.
    decay : float
        :math:`\alpha`, above 0.5 and at most 1; the larger it is, the sooner the steps shrink.
    tol : float
        Stop when all further passes of EM together would raise the log joint by less than `tol` times
        one plus its absolute value, which counts as at most a million, if gains keep falling at the
        present rate.
    final_pass : bool
        Compute the log joint density of all the data at the result if `max_epochs` ends the run before
        EM takes over. Without it, the sum over the last epoch is reported.

    References
    ----------
    Cappe and Moulines (2009), J. R. Stat. Soc. B 71, 593-613,
    doi:10.1111/j.1467-9868.2009.00698.x; Liang and Klein (2009), NAACL, 611-619; extrapolation: Varadhan
    and Roland (2008), Scand. J. Stat. 35, 335-353, doi:10.1111/j.1467-9469.2007.00585.x.
    """

    batch_size: Count = 1000
    max_epochs: Count = 200
    decay: Annotated[float, Range(above=0.5, most=1)] = 0.6
    tol: NonNegative = 1e-7
    final_pass: bool = True
    name: ClassVar[str] = "stochastic_em"
    gives_point: ClassVar[bool] = True
    length: ClassVar[str] = "max_epochs"
    streams: ClassVar[bool] = True

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
        keep: Keeper = KEEPS_NOTHING,
    ) -> EngineResult:
        """Fit; see `Engine.run`. Without `init`, start at EM's mode on 10,000 points of the first batch.

        Raises
        ------
        ValueError
            If a site has no closed-form M-step, or the data hold missing values.
        FitError
            If the log joint stops being finite.
        """
        clock = Clock()
        with clock.running():
            data = _prepared(problem, self.batch_size, seed)
            number = len(data)
            if self.batch_size == 1 and number > 1:
                raise ValueError(
                    "StochasticEM: batch_size = 1 makes batches of one row, which have no covariance; take "
                    "several rows per cluster, such as batch_size=1000"
                )
            some = data.first()
            if init is None:
                mode = _FIRST.run(some, seed=seed, progress=False)
                clock.counted((mode, mode.seconds["compile"]))
            start = starting_point(some, mode if init is None else init)
            check_updates(some, data.plan, start, clock)
            with progress_bar("Stochastic EM", self.max_epochs * number, shown=progress) as advance:
                walk, order = keep.restore(self._begin(data, start)), None
                while walk.visited < self.max_epochs * number and not walk.passes.settled:
                    epoch, at = divmod(int(walk.visited), number)
                    if order is None or not at:
                        order = data.order(seed, epoch)
                    before, walk = walk, self._step(data, walk, int(order[at]), clock)
                    pending = np.isfinite(before.passes.least)  # an extrapolation, to be taken back
                    if not (pending or np.isfinite(walk.history[epoch])):
                        raise FitError(_LOST + remedy(some), before.params)
                    keep.offer(walk)
                    advance(1, f"epoch {epoch + 1}")
                values, seen = self._finish(data, walk, clock)
                if not np.isfinite(seen):
                    raise FitError(_LOST + remedy(some), walk.params)
                converged = bool(walk.passes.settled)
                moved = converged and not data.is_mixed and _is_low(some, start, values)
        found = self._result(data, walk, as_numpy(values), seen, clock.seconds, moved)
        return replace(found, remarks=tuple(self._doubts(data, some)))

    def _doubts(self, data: BatchData | StreamedData, some: Problem) -> list[str]:
        """Remark that batches have fewer rows than Gaussians of the data have to be fitted to."""
        mixtures = finite_mixtures(abstract_trace(some)).values()
        clusters, features = max(fn.num_clusters for fn, _ in mixtures), data.centre.size
        least = clusters * (features + 1)
        if len(data) == 1 or self.batch_size >= least:
            return []
        return [
            f"Batches of {self.batch_size} rows are too small for {counted(clusters, 'cluster')} of "
            f"{counted(features, 'feature')}: take a batch_size of at least {least}, the number of rows that "
            "determine as many covariances, or better a multiple of it"
        ]

    def _begin(self, data: BatchData | StreamedData, start: dict[str, Array]) -> _Walk:
        shapes = jax.eval_shape(partial(expect, data.problem, data.plan), start, *_load(data, 0))
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes[2])
        history = np.full(self.max_epochs, np.nan)
        begun = as_numpy(start)
        passes = Passes.none(begun, zeros)
        return _Walk(np.asarray(0), begun, zeros, zeros, np.asarray(0.0), history, passes)

    def _step(self, data: BatchData | StreamedData, walk: _Walk, batch: int, clock: Clock) -> _Walk:
        """Process one batch: E-step and, before EM takes over, running averages and M-step."""
        value, log_prior, new, _ = _expected(data, walk.params, batch, clock)
        epoch, at = divmod(int(walk.visited), len(data))
        seen = np.asarray(value + (walk.value if at else 0.0))
        history = walk.history.copy()
        history[epoch] = seen + log_prior
        visited = walk._replace(
            visited=walk.visited + 1,
            epoch=jax.tree.map(lambda sum, n: n + (sum if at else 0.0), walk.epoch, new),
            value=seen,
            history=history,
        )
        if walk.passes.number >= 0:
            return self._passed(data, visited, clock) if at == len(data) - 1 else visited
        if _takes_over(visited, len(data)):
            passes = walk.passes._replace(number=np.asarray(0))
            return _at(data, visited._replace(passes=passes), visited.epoch, clock)
        rate = (int(walk.visited) + 1.0) ** -self.decay
        averages = jax.tree.map(
            lambda s, n: (1 - rate) * s + rate / data.share(batch) * n, walk.statistics, new
        )
        return _at(data, visited, averages, clock)

    def _passed(self, data: BatchData | StreamedData, walk: _Walk, clock: Clock) -> _Walk:
        """Return the state after a pass over all rows."""
        epoch = int(walk.visited) // len(data) - 1
        history = walk.history.copy()
        passes, statistics, history[epoch] = after_pass(
            walk.passes, walk.params, walk.statistics, walk.epoch, history[epoch], self.tol
        )
        walk = walk._replace(history=history, passes=passes)
        return walk if passes.settled else _at(data, walk, statistics, clock)

    def _finish(
        self, data: BatchData | StreamedData, walk: _Walk, clock: Clock
    ) -> tuple[dict[str, NDArray], float]:
        """Return the result and its log joint: EM's highest, or of the last epoch's statistics before EM."""
        if np.isfinite(walk.passes.highest):
            *_, sites = _expected(data, walk.passes.best, 0, clock)
            return walk.passes.best | sites, float(walk.passes.highest)
        params = _maximised(data, walk.params, walk.epoch, clock)
        total = 0.0
        for number in data.order(0, None)[: None if self.final_pass else 1]:
            value, log_prior, _, sites = _expected(data, params, number, clock)
            total += float(value)
        epoch = (int(walk.visited) - 1) // len(data)
        seen = total + float(log_prior) if self.final_pass else float(walk.history[epoch])
        return params | sites, seen

    def _result(
        self,
        data: BatchData | StreamedData,
        walk: _Walk,
        values: dict[str, NDArray],
        seen: float,
        seconds: dict[str, float],
        moved: bool,
    ) -> EngineResult:
        number, passes = len(data), walk.passes
        batches = "1 batch" if number == 1 else f"{number} batches"
        converged = bool(passes.settled) and not moved
        epochs = -(-int(walk.visited) // number)
        is_exact = self.final_pass or np.isfinite(passes.highest)
        what = "log joint" if is_exact else "log joint on the way"
        message = (
            f"stochastic EM converged in {epochs} epochs of {batches}, of which the last "
            f"{passes.number} were steps of EM; {what} {seen:.6g}"
            if converged
            else f"stochastic EM stopped at max_epochs={self.max_epochs} with more than tol={self.tol} to "
            f"gain, {what} {seen:.6g}; raise max_epochs or loosen tol"
        )
        if moved:
            message = (
                f"stochastic EM did not converge in {epochs} epochs of {batches}; {what} {seen:.6g}: "
                "EM on a sample of the rows gets higher, so that the rows seem to be sorted and their order "
                "moves the result; shuffle the rows of the table, or lower tol if they have no order"
            )
        elif not (converged or data.is_mixed):
            message += ", and shuffle the rows of the table if they are sorted"
        history = walk.history[:epochs]
        is_above = is_exact and not np.isfinite(passes.highest)
        return EngineResult(
            engine=self.name,
            draws={name: value[None, None] for name, value in values.items()},
            sample_stats={"lp": np.asarray([[seen]])},
            objective=np.append(history, seen)[None] if is_above else history[None],
            status=Status(converged, message),
            seconds=seconds,
            approximate=data.approximate,
        )


def _takes_over(walk: _Walk, number: int) -> bool:
    """Return whether the last of at least two epochs gained next to nothing, or was the tenth."""
    epochs, rest = divmod(int(walk.visited), number)
    if rest or epochs < 2:
        return False
    last, now = walk.history[epochs - 2 : epochs]
    return bool(epochs >= _EPOCHS or abs(now - last) <= _COARSE * (1 + abs(now)))


def _at(data: BatchData | StreamedData, walk: _Walk, statistics: tuple, clock: Clock) -> _Walk:
    """Return the state at the mode given these statistics."""
    params = _maximised(data, walk.params, statistics, clock)
    return walk._replace(params=params, statistics=statistics)


def _prepared(problem: Problem, batch_size: int, seed: int) -> BatchData | StreamedData:
    if any(isinstance(arg, StreamedTable) for arg in problem.args):
        return StreamedData.prepare(problem, batch_size)
    return BatchData.prepare(problem, batch_size, seed)


def _is_low(some: Problem, start: Mapping[str, Array], values: Mapping[str, NDArray]) -> bool:
    """Return whether EM on a sample of rows, from the result or its start, gets higher than by chance."""
    ends = {name: values[name] for name in start}
    try:
        paths = [_AGAIN.run(some, init=one, progress=False).objective[0] for one in (ends, start)]
    except FitError:  # the sample has too few rows of a cluster for the test
        return False
    limit = _OVERFITTED * sum(np.size(value) for value in ends.values())
    return bool(np.nanmax(np.concatenate(paths)) - paths[0][0] > limit)


def _load(data: BatchData | StreamedData, number: int) -> tuple:
    """Return one batch, the links among its rows, and mean and covariance of all data."""
    return *data.load(number), data.centre, data.covariance


def _expected(
    data: BatchData | StreamedData, params: dict[str, NDArray], number: int, clock: Clock
) -> tuple:
    """Return `expect` of one batch, on the host."""
    given = params, *_load(data, number)
    return run_step("stochastic-em-expect", expect, data.problem, data.plan, clock, *given)


def _maximised(
    data: BatchData | StreamedData, params: dict[str, NDArray], statistics: tuple, clock: Clock
) -> dict[str, NDArray]:
    """Return the result of `maximise`, on the host."""
    inputs = params, statistics, data.linked, data.centre, data.covariance
    return run_step("stochastic-em-maximise", maximise, data.problem, data.plan, clock, *inputs)
