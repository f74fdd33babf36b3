"""The log density of a table on disk: from all rows by one pass, or estimated from some of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from numpy.typing import NDArray
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph

from ..base import Problem
from ..expectation_maximisation.batch_steps import log_densities, run_step
from ..expectation_maximisation.streamed_data import StreamedData, unlinked, with_rows
from ..plumbing.clock import Clock
from ..problem.density import deterministics, place
from ..problem.importance import AT_ONCE, in_batches
from ..steps.updates import Plan
from .guide_search import Frame, curvature_at

__all__ = ["Estimate", "RowSums", "TableDensity", "near"]


class RowSums(NamedTuple):
    """Batches of rows, each of which estimates the log density of a table.

    The mean over all batches of a table is its log density.

    Attributes
    ----------
    rows : Array, shape (num_batches, room, num_features)
    graph : LabelGraph
        Graph of the rows of any batch; it holds which are spare.
    times : Array, shape ()
        Factor by which the log likelihood of a batch is multiplied.
    args : tuple
        Data of the sample, which define the units of the coordinates.
    moments : tuple of Array
        Mean and covariance of all rows.
    """

    rows: Any
    graph: LabelGraph
    times: Any
    args: tuple
    moments: tuple

    @property
    def size(self) -> int:
        """Number of rows, if none is spare."""
        return int(np.prod(self.rows.shape[:2]))


class Estimate(NamedTuple):
    """Log densities at points, as estimated from batches of rows.

    Attributes
    ----------
    value : ndarray, shape (num_points,)
    error : float
        Standard error of their mean; 0 where all rows were used.
    spread : float
        Root mean square of their standard errors, without the error that they have in common.
    num_rows : int
        Number of rows that were used.
    """

    value: NDArray
    error: float
    spread: float
    num_rows: int


def near(
    plan: Plan, problem: Problem, frame: Frame, data: tuple[RowSums, Array], key: Array
) -> Callable[[Array], Array]:
    """Log density less that at the mode; a random batch estimates the part that is not linear.

    Parameters
    ----------
    plan, problem
    frame : Frame
        Centred at the mode.
    data : tuple
        Batches, and the gradient of the log density of all rows at the mode.
    key : Array
    """
    sums, slope = data
    number = jax.random.randint(key, (), 0, len(sums.rows))
    density = _estimated(problem, plan, frame.template, sums, number)
    value, own = jax.value_and_grad(density)(frame.centre)
    return lambda flat: density(flat) - value + (slope - own) @ (flat - frame.centre)


def _estimated(
    problem: Problem, plan: Plan, template: Mapping[str, Array], sums: RowSums, number: ArrayLike
) -> Callable[[Array], Array]:
    """Log density of the unconstrained coordinates, estimated from one batch; the prior is exact."""
    args = with_rows(_given(problem, sums.args), sums.rows[number], sums.graph).args
    _, unravel = ravel_pytree(dict(template))

    def density(flat: Array) -> Array:
        trace, log_det = place(problem, unravel(flat), sums.args)
        params = {name: trace[name]["value"] for name in template}
        given = params, args, sums.graph, *sums.moments
        log_likelihood, log_prior = log_densities(problem, plan, *given)
        return sums.times * log_likelihood + log_prior + log_det

    return density


def _given(problem: Problem, args: tuple) -> Problem:
    return Problem(problem.model, args, problem.kwargs)


@dataclass(frozen=True, eq=False)
class TableDensity:
    """The log density of a table as a function of one vector of unconstrained coordinates.

    Attributes
    ----------
    data : StreamedData
    template : dict of ndarray
        Unconstrained values of the latent sites, for their shapes.
    clock : Clock
        Counts the time of compilation.
    """

    data: StreamedData
    template: dict[str, NDArray]
    clock: Clock

    def flat(self, free: Mapping[str, NDArray]) -> NDArray:
        """Return unconstrained values as one vector."""
        return np.asarray(ravel_pytree(dict(free))[0])

    def whole(self, point: NDArray, advance: Callable[[int, str], None]) -> tuple[float, NDArray]:
        """Return the log density of all rows at a point, and its gradient, by one pass."""
        found = []
        for sums in self._batches():
            found.append(self._slopes(point[None], sums))
            advance(1, f"log joint of {self.data.table.num_rows} rows")
        value, slope = (np.mean(each, axis=0, dtype=float)[0] for each in zip(*found, strict=True))
        return float(value), slope.astype(point.dtype)

    def curvature(self, point: NDArray) -> NDArray:
        """Return negative second derivatives at a point from the sample, by differences; 0 if not finite."""
        rows = self.data.table.sample.astype(self.data.centre.dtype)
        sums = self._sums(rows[None], unlinked(len(rows), len(rows)))
        found = curvature_at(lambda points: self._slopes(points, sums)[1], point)
        return np.where(np.isfinite(found), found, 0.0)

    def drawn(self, size: int, room: int, seed: Sequence[int]) -> RowSums:
        """Draw about `size` rows at random from the whole table, in batches of at least two rows."""
        size = min(size, self.data.table.num_rows)
        room = min(max(room, 2), size)
        number = size // room
        rows = self.data.drawn(number * room, seed).reshape(number, room, -1)
        return self._sums(rows, unlinked(room, room))

    def around(
        self,
        centre: NDArray,
        points: NDArray,
        sums: RowSums | None,
        advance: Callable[[int, str], None],
    ) -> Estimate:
        """Return log densities at points, less the first-order expansion around the centre.

        Parameters
        ----------
        centre : ndarray, shape (num_coordinates,)
        points : ndarray, shape (num_points, num_coordinates)
        sums : RowSums or None
            The rows to use; None for all of them, by one pass.
        advance : callable
            As from `progress_bar`.
        """
        found = []
        for batch in self._batches() if sums is None else _each(sums):
            given = points, centre, self.template, batch
            found.append(self._run("streamed-svi-look", _remainders, *given))
            advance(1, "log densities of the draws")
        terms = np.stack(found).astype(float)
        num_rows = self.data.table.num_rows
        looked = num_rows if sums is None else sums.size
        common = terms.mean(axis=1)
        error, spread = (
            float(np.sqrt((1 - looked / num_rows) * _variance(each).mean() / len(terms)))
            for each in (common, terms - common[:, None])
        )
        return Estimate(terms.mean(axis=0), error, spread, looked)

    def sites(self, points: NDArray) -> dict[str, NDArray]:
        """Return latent and deterministic sites at points."""
        given = points, self.template, self.data.problem.args
        found: dict[str, NDArray] = self._run("streamed-svi-sites", _sites, *given)
        return found

    def check_rows(self, params: dict[str, NDArray]) -> None:
        """Refuse a model whose density is not a sum over rows plus a prior that is independent of them.

        Raises
        ------
        ValueError
            If halves of the sample have another prior, or their likelihoods do not add up to its own.
        """
        rows = self.data.table.sample.astype(self.data.centre.dtype)
        half = len(rows) // 2

        def seen(some: NDArray) -> tuple[float, float]:
            filled = np.broadcast_to(self.data.centre, rows.shape).copy()
            filled[: len(some)] = some
            graph = unlinked(len(some), len(rows))
            args = with_rows(self.data.problem, filled, graph).args
            moments = self.data.centre, self.data.covariance
            name, given = "streamed-svi-terms", (params, args, graph, *moments)
            likelihood, prior = self._run(name, log_densities, *given)
            return float(likelihood), float(prior)

        (whole, prior), first, second = map(seen, (rows, rows[:half], rows[half:]))
        close = partial(np.isclose, rtol=float(np.sqrt(np.finfo(rows.dtype).eps)), atol=1e-6)
        if not close(first[0] + second[0], whole):
            raise ValueError(
                "a table on disk is read in blocks, and the log likelihood of this model is no sum over "
                "rows; pass an array"
            )
        if not (close(first[1], prior) and close(second[1], prior)):
            raise ValueError(
                "a table on disk is read in blocks, and the prior of this model depends on the rows that it "
                "is shown; give it a prior of its own, or pass an array"
            )

    def _batches(self) -> Iterator[RowSums]:
        """Yield all batches of the table in turn."""
        for number in self.data.order(0, None):
            rows, graph = self.data.padded(int(number))
            yield self._sums(rows[None], graph, len(self.data))

    def _sums(self, rows: NDArray, graph: LabelGraph, times: float | None = None) -> RowSums:
        """Make batches of rows; by default, all are full."""
        if times is None:
            times = self.data.table.num_rows / rows.shape[1]
        moments = self.data.centre, self.data.covariance
        return RowSums(rows, graph, np.asarray(times, rows.dtype), self.data.problem.args, moments)

    def _slopes(self, points: NDArray, sums: RowSums) -> tuple[NDArray, NDArray]:
        found: tuple[NDArray, NDArray] = self._run(
            "streamed-svi-slopes", _slopes, points, self.template, sums
        )
        return found

    def _run(self, name: str, step: Callable, *given: Any) -> Any:
        return run_step(name, step, self.data.problem, self.data.plan, self.clock, *given)


def _each(sums: RowSums) -> Iterator[RowSums]:
    return (sums._replace(rows=rows[None]) for rows in sums.rows)


def _variance(terms: NDArray) -> NDArray:
    """Return variances over batches; 0 where there is only one."""
    found: NDArray = terms.var(axis=0, ddof=min(len(terms) - 1, 1))
    return found


def _slopes(
    problem: Problem, plan: Plan, points: Array, template: dict[str, Array], sums: RowSums
) -> tuple[Array, Array]:
    """Estimate the log density from the first batch, and its gradient, one point after another."""
    found: tuple[Array, Array] = jax.lax.map(
        jax.value_and_grad(_estimated(problem, plan, template, sums, 0)), points
    )
    return found


def _remainders(
    problem: Problem,
    plan: Plan,
    points: Array,
    centre: Array,
    template: dict[str, Array],
    sums: RowSums,
) -> Array:
    """Estimate the log density from the first batch, less its first-order expansion around the centre."""
    density = _estimated(problem, plan, template, sums, 0)
    value, slope = jax.value_and_grad(density)(centre)
    found: Array = in_batches(density, points, AT_ONCE)
    return found - value - (points - centre) @ slope


def _sites(
    problem: Problem, plan: Plan, points: Array, template: dict[str, Array], args: tuple
) -> dict[str, Array]:
    _, unravel = ravel_pytree(dict(template))

    def one(flat: Array) -> dict[str, Array]:
        trace, _ = place(problem, unravel(flat), args)
        return {name: trace[name]["value"] for name in template} | deterministics(trace)

    found: dict[str, Array] = in_batches(one, points, AT_ONCE)
    return found
