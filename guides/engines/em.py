"""Expectation maximisation for any declared model whose labels are summed out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from sidebayes.models.blocks.label_graph import LabelGraph
from sklearn.metrics import pairwise_distances_argmin

from .base import EngineResult, FitError, Problem, Status, check_positive
from .checkpoint import check_checkpoint, keeping
from .density import (
    approximation,
    as_numpy,
    deterministics,
    explain_nonfinite,
    latent_supports,
    place,
    trace_model,
    unconstrained_start,
)
from .lbfgs import Search, search_step, start_search
from .programs import compiled
from .progress import in_pieces, progress_bar
from .starts import data_matrix, has_centres, initial_values, kmeans_centres, starting_point
from .surrogate import allot, cluster_sizes, expectation, linearised, shares

__all__ = ["EM"]

_SINGULAR = 1e-10
"""A covariance is singular when its least eigenvalue, relative to the widest, is smaller."""

_SEEDED_STEPS = 50
"""Gradients of L-BFGS that fit components without closed form to a partition."""

_MEMORY = 10
"""Differences that L-BFGS remembers in an M-step."""

_SETTLED, _CUT, _BROKEN = 1, 2, 3
"""Why a run stopped."""

_CHECK = "check for constant or duplicated features, or hard links that no labeling satisfies"
_REMEDY = "use prior='empirical', fewer clusters, or covariance='tied'"


class _Climb(NamedTuple):
    """Where the runs from all starts have got; every array has one entry a start."""

    steps: Array
    params: dict[str, Array]
    last: dict[str, Array]
    value: Array
    code: Array
    history: Array


@dataclass(frozen=True)
class EM:
    """Expectation maximisation, from several starts at once.

    Maximises the log joint density in the constrained space. Models with a closed-form M-step
    use it; for others the surrogate is climbed by L-BFGS. With exact label inference the objective
    never falls. Fits of equal structure and equal shapes share one compiled program.

    Parameters
    ----------
    tol : float
        Stop when the log joint rises by less than `tol` times one plus its absolute value.
    max_steps : int
    num_restarts : int
        Starting points; the best final objective is kept. Gaussian means start at the centres of
        k-means partitions of the data, other components fitted to such partitions. Starts in which a
        cluster collapses are set aside.
    num_inner_steps : int
        Most gradients of L-BFGS in an M-step without closed form.
    checkpoint : path, optional
        File that keeps the state of the run, so that the same call goes on after an interruption.
    checkpoint_every : float
        Seconds between two writings.

    References
    ----------
    Dempster, Laird and Rubin (1977), J. R. Stat. Soc. B 39, 1-38,
    doi:10.1111/j.2517-6161.1977.tb01600.x.
    """

    tol: float = 1e-7
    max_steps: int = 500
    num_restarts: int = 10
    num_inner_steps: int = 15
    checkpoint: str | None = None
    checkpoint_every: float = 60.0
    name: ClassVar[str] = "em"

    def __post_init__(self) -> None:
        check_positive(self, tol=0.0, max_steps=1, num_restarts=1, num_inner_steps=1)
        check_checkpoint(self)

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> EngineResult:
        """Fit; see `Engine.run`. An `init` replaces all starts by one.

        Raises
        ------
        FitError
            If no start has a finite log joint, or a cluster collapses from every start; its
            `params` hold the last good state.
        """
        approximate = approximation(problem)
        latent_supports(problem)
        with (
            progress_bar("EM", shown=progress) as advance,
            keeping(self, problem, seed, init) as keep,
        ):
            advance(0, "compiling")
            if init is None:
                starts, preparing = self._starts(problem, seed)
            else:
                given = starting_point(problem, init)
                starts, preparing = {name: value[None] for name, value in given.items()}, 0.0
            state = keep.restore(self._begin(starts))
            fixed = problem.args, np.asarray(self.tol, float)
            shape = (self.max_steps, self.num_inner_steps)
            limit = np.asarray(0)
            climb, compiling = compiled("em", problem, shape, self._program, state, *fixed, limit)
            began = time.perf_counter()
            state, sites = in_pieces(
                lambda state, limit: climb(state, *fixed, limit),
                state,
                advance,
                lambda state: f"log joint {np.nanmax(np.asarray(state.value)):.6g}",
                keep.offer,
            )
        seconds = {"compile": preparing + compiling, "run": time.perf_counter() - began}
        if not np.isfinite(state.value).any():
            point = {name: np.asarray(value[0]) for name, value in starts.items()}
            blame = explain_nonfinite(problem, point)
            raise FitError(
                f"EM: the log joint is not finite at any start ({blame}); {_CHECK}", point
            )
        params = as_numpy(state.params | sites)
        return self._result(problem, state, params, seconds, approximate)

    def _starts(self, problem: Problem, seed: int) -> tuple[dict[str, NDArray], float]:
        starts = initial_values(problem, seed, self.num_restarts)
        data = data_matrix(problem.args)
        first = {name: value[0] for name, value in starts.items()}
        if data is None or has_centres({n: jnp.shape(v) for n, v in first.items()}, data):
            return starts, 0.0
        shape = jax.eval_shape(lambda: shares(expectation(problem, first, problem.args)[1])).shape
        if shape[0] != len(data):
            return starts, 0.0
        centres, scales = kmeans_centres(data, shape[1], seed, self.num_restarts)
        labels = np.stack(
            [
                pairwise_distances_argmin(data / s, c / s)
                for c, s in zip(centres, scales, strict=True)
            ]
        )

        def build(bare: Problem) -> Callable:
            def one(start: dict, label: Array, args: tuple) -> dict:
                _, posterior = expectation(bare, start, args)
                return self._maximise(bare, start, args, allot(posterior, label), _SEEDED_STEPS)

            return jax.vmap(one, in_axes=(0, 0, None))

        inputs = starts, labels, problem.args
        fit, seconds = compiled("seeded", problem, _SEEDED_STEPS, build, *inputs)
        return as_numpy(fit(*inputs)), seconds

    def _begin(self, starts: dict[str, NDArray]) -> _Climb:
        """State of every start before its first E-step."""
        number = len(next(iter(starts.values())))
        zero, real = np.zeros(number, int), jnp.result_type(float)
        blank = {
            "steps": zero,
            "params": starts,
            "last": starts,
            "value": np.full(number, -np.inf, real),
            "code": zero,
            "history": np.full((number, self.max_steps + 1), np.nan, real),
        }
        return _Climb(**jax.device_put(blank))

    def _program(self, problem: Problem) -> Callable:
        """For all starts: E-step, test, M-step, until every start has stopped or done `limit`."""
        e_step = problem.e_step or expectation

        def step(state: _Climb, args: tuple, tol: Array) -> _Climb:
            now, posterior = e_step(problem, state.params, args)
            good = jnp.isfinite(now)
            small = jnp.abs(now - state.value) <= tol * (1 + jnp.abs(now))
            stop = ~good | small | (state.steps == self.max_steps)
            if problem.m_step is not None:
                new = problem.m_step(state.params, args, posterior)
            else:
                new = self._maximise(problem, state.params, args, posterior, self.num_inner_steps)
            # what stops keeps the parameters whose E-step was the last good one
            kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), state.params, state.last)
            return _Climb(
                steps=state.steps + 1,
                params=jax.tree.map(lambda a, b: jnp.where(stop, a, b), kept, new),
                last=kept,
                value=jnp.where(good, now, state.value),
                code=jnp.where(
                    ~good, _BROKEN, jnp.where(small, _SETTLED, jnp.where(stop, _CUT, 0))
                ),
                history=state.history.at[state.steps].set(jnp.where(good, now, jnp.nan)),
            )

        def one(state: _Climb, args: tuple, tol: Array, limit: Array):
            state = lax.while_loop(
                lambda s: (s.code == 0) & (s.steps < limit), lambda s: step(s, args, tol), state
            )
            return state, deterministics(trace_model(problem, state.params, args))

        def climb(state: _Climb, args: tuple, tol: Array, limit: Array):
            if any(isinstance(a, LabelGraph) and a.is_large for a in args):
                # side by side the starts would wait for the slowest, and gain nothing
                return lax.map(lambda start: one(start, args, tol, limit), state)
            return jax.vmap(one, in_axes=(0, None, None, None))(state, args, tol, limit)

        return climb

    @staticmethod
    def _maximise(
        problem: Problem, params: dict, args: tuple, posterior: dict, num_steps: int
    ) -> dict[str, Array]:
        """Raise Q by L-BFGS in unconstrained coordinates; never lower it."""
        free, unravel = ravel_pytree(unconstrained_start(problem, params, args))
        loss = jax.value_and_grad(
            lambda free: -linearised(place(problem, unravel(free), args)[0], posterior)
        )

        def unfinished(search: Search) -> Array:
            steepest = jnp.abs(search.gradient).max(initial=0.0)
            flat = (search.steps > 0) & (steepest <= 1e-10 * (1 + jnp.abs(search.value)))
            return (search.steps < num_steps) & ~flat & ~search.stalled

        found = lax.while_loop(
            unfinished,
            lambda search: search_step(loss, search, _MEMORY),
            start_search(free, _MEMORY),
        )
        sites, _ = place(problem, unravel(found.point), args)
        return {name: sites[name]["value"] for name in params}

    def _result(
        self,
        problem: Problem,
        state: _Climb,
        params: dict[str, NDArray],
        seconds: dict[str, float],
        approximate: str | None,
    ) -> EngineResult:
        value, code = np.asarray(state.value), np.asarray(state.code)
        steps = np.asarray(state.steps) - 1
        points = [{n: v[r] for n, v in params.items()} for r in range(len(value))]
        collapsed = [_collapsed(point) for point in points]
        lost = np.array([c is not None for c in collapsed]) | (code == _BROKEN)
        sound = np.isfinite(value) & ~lost
        best = int(
            np.argmax(np.where(sound if sound.any() else np.isfinite(value), value, -np.inf))
        )
        if not sound.any():
            last = {name: points[best][name] for name in state.params}
            sizes = self._sizes(problem, last)
            raise FitError(self._lost(collapsed[best], sizes), points[best])
        converged = bool(code[best] == _SETTLED)
        message = (
            f"EM converged in {steps[best]} steps; the best of {len(value)} starts reached "
            f"log joint {value[best]:.6g}"
            if converged
            else f"EM stopped at max_steps={self.max_steps} before the gain fell below tol={self.tol}; "
            "raise max_steps or loosen tol"
        )
        if lost.any():
            message += f"; {lost.sum()} starts that collapsed were set aside"
        return EngineResult(
            engine=self.name,
            draws={name: v[None, None] for name, v in points[best].items()},
            sample_stats={"lp": value[best][None, None]},
            objective=np.asarray(state.history)[:, : int(steps.max()) + 1],
            status=Status(converged, message),
            seconds=seconds,
            approximate=approximate,
        )

    @staticmethod
    def _sizes(problem: Problem, params: dict[str, NDArray]) -> NDArray:
        """Expected number of points in each cluster."""

        def build(bare: Problem) -> Callable:
            e_step = bare.e_step or expectation
            return lambda params, args: cluster_sizes(e_step(bare, params, args)[1])

        program, _ = compiled("sizes", problem, None, build, params, problem.args)
        return np.asarray(program(params, problem.args))

    @staticmethod
    def _lost(cluster: int | None, sizes: NDArray) -> str:
        """Say which cluster collapsed; the smallest, when the log joint itself broke down."""
        if cluster is None and len(sizes):
            cluster = int(np.argmin(sizes))
        if cluster is None:
            return f"EM: the log joint stopped being finite from every start; {_CHECK}"
        size = f" of effective size {sizes[cluster]:.3g} points" if len(sizes) > cluster else ""
        return f"EM: cluster {cluster}{size} collapsed (its covariance is singular); {_REMEDY}"


def _collapsed(params: Mapping[str, NDArray]) -> int | None:
    """First cluster whose covariance is numerically singular, each feature in its own units."""
    if "covariance" in params and params["covariance"].ndim >= 2:
        covariance = params["covariance"]
        variance = np.diagonal(covariance, axis1=-2, axis2=-1)
        unit = np.sqrt(_mean(variance, variance.shape[-1:]))
        spread = np.atleast_2d(np.linalg.eigvalsh(covariance / (unit[:, None] * unit)))
    elif "variance" in params and params["variance"].ndim >= 1:
        variance = params["variance"]
        each_feature = variance.ndim == np.ndim(params.get("mean", ()))
        spread = variance / _mean(variance, variance.shape[-1:] if each_feature else ())
    else:
        return None
    smallest = spread.reshape(len(spread), -1).min(axis=1)
    worst = int(np.argmin(smallest))
    return worst if smallest[worst] < _SINGULAR * spread.max() else None


def _mean(variance: NDArray, shape: tuple[int, ...]) -> NDArray:
    """Mean over all clusters; one where it is zero."""
    mean = variance.reshape(-1, *shape).mean(axis=0)
    return np.where(mean > 0, mean, 1.0)
