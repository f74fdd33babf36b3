"""Expectation maximisation for any declared model whose labels are summed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray
from sidebayes.models.blocks.fields import Count, NonNegative, Seconds

from ..base import EngineResult, FitError, Problem, Status
from ..causes import known_cause
from ..density import (
    approximation,
    as_numpy,
    deterministics,
    explain_nonfinite,
    latent_supports,
    trace_model,
)
from ..plumbing.checkpoint import CheckpointedEngine, keeping
from ..plumbing.climbs import BROKEN, SETTLED, climbed, history_length, stop_code, until_stopped
from ..plumbing.programs import compiled
from ..plumbing.progress import progress_bar
from ..plumbing.side_by_side import one_member, run_each
from ..starts import initial_values, starting_point
from ..surrogate import cluster_sizes, expectation, raise_surrogate, tightened
from ..update_checks import check_updates
from ..updates import Plan, closed_forms, degenerate, maximised, plan_updates

__all__ = ["EM"]


_CHECK = "check the data and the priors, or pass init="
_REMEDY = "use prior='empirical', fewer clusters, or covariance='tied'"


class _Climb(NamedTuple):
    """Where the runs from all starts have got; every array has one entry per start."""

    steps: Array
    params: dict[str, Array]
    last: dict[str, Array]
    value: Array
    code: Array
    history: Array


@dataclass(frozen=True)
class EM(CheckpointedEngine):
    """Expectation maximisation from several starts.

    Maximises the log joint density in the constrained space. In an M-step the blocks of the model,
    such as `GaussianComponents`, take the modes of their full conditionals, and the surrogate is
    climbed by L-BFGS in all other sites. Sites that describe a restricted posterior, as those of
    `Discriminants`, are climbed before each E-step, and the objective is a lower bound then. With exact
    inference of what is integrated out the objective never falls. Fits of equal structure and equal
    shapes share one compiled program.

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
        Most gradients of L-BFGS in an M-step without closed form, or for a restricted posterior.
    checkpoint : path, optional
        File that keeps the state of the run, so that the same call goes on after an interruption.
    checkpoint_every : float
        Seconds between two writings.

    References
    ----------
    Dempster, Laird and Rubin (1977), J. R. Stat. Soc. B 39, 1-38,
    doi:10.1111/j.2517-6161.1977.tb01600.x.
    """

    tol: NonNegative = 1e-7
    max_steps: Count = 500
    num_restarts: Count = 10
    num_inner_steps: Count = 15
    checkpoint: str | None = None
    checkpoint_every: Seconds = 60.0
    name: ClassVar[str] = "em"
    gives_point: ClassVar[bool] = True
    climbs: ClassVar[bool] = True

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        progress: bool = True,
    ) -> EngineResult:
        """Fit; see `Engine.run`. An `init` replaces all starts by one, or by those of a sequence.

        Raises
        ------
        FitError
            If no start has a finite log joint, or a cluster collapses from every start; its
            `params` hold the last good state.
        """
        approximate = approximation(problem)
        latent_supports(problem)
        plan = plan_updates(problem)
        with (
            progress_bar("EM", shown=progress) as advance,
            keeping(self, problem, seed, init) as keep,
        ):
            advance(0, "compiling")
            clock = {"compile": 0.0}
            starts = self._starts(problem, seed, init, clock)
            check_updates(problem, plan, one_member(starts, 0), clock)
            state = keep.restore(self._begin(starts))
            fixed = problem.args, np.asarray(self.tol, float), np.asarray(self.max_steps)
            limit = np.asarray(0)
            build = partial(self._program, plan)
            first = one_member(state, 0)
            climb, compiling = compiled(
                "em", problem, self.num_inner_steps, build, first, *fixed, limit
            )
            clock["compile"] += compiling
            state, sites = climbed(
                partial(run_each, climb),  # in step they would wait for the slowest
                state,
                fixed,
                describe=lambda state: f"log joint {np.nanmax(np.asarray(state.value)):.6g}",
                advance=advance,
                keep=keep,
                seconds=clock,
            )
        if not np.isfinite(state.value).any():
            point = {name: np.asarray(value[0]) for name, value in starts.items()}
            blame = explain_nonfinite(problem, point)
            raise FitError(
                f"EM: the log joint is not finite at any start ({blame}); "
                f"{known_cause(problem) or _CHECK}",
                point,
            )
        params = as_numpy(state.params | sites)
        return self._result(problem, state, params, clock, approximate)

    def _starts(
        self,
        problem: Problem,
        seed: int,
        init: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        clock: dict[str, float],
    ) -> dict[str, NDArray]:
        """Values to start from, with an axis of starts in front."""
        if init is None:
            return initial_values(problem, seed, self.num_restarts, seeded=True, seconds=clock)
        several = [init] if isinstance(init, Mapping) or hasattr(init, "params") else init
        given = [starting_point(problem, one) for one in several]
        return {name: np.stack([one[name] for one in given]) for name in given[0]}

    def _maximise(
        self,
        problem: Problem,
        plan: Plan,
        params: dict[str, Array],
        args: tuple,
        posterior: dict[str, Any],
    ) -> dict[str, Array]:
        """M-step."""
        new = closed_forms(problem, plan, params, args, posterior, maximised)
        numeric = tuple(name for name in plan.rest if name not in plan.tightened)
        if not numeric:
            return new
        return raise_surrogate(problem, new, args, posterior, self.num_inner_steps, numeric)

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
            "history": np.full((number, history_length(self.max_steps)), np.nan, real),
        }
        return _Climb(**jax.device_put(blank))

    def _program(self, plan: Plan, problem: Problem) -> Callable:
        """For one start: E-step, test, M-step, until it has stopped or done `limit`."""

        def step(state: _Climb, args: tuple, tol: Array, most: Array) -> _Climb:
            at = state.params
            if plan.tightened:
                at = tightened(problem, at, args, self.num_inner_steps)
            now, posterior = expectation(problem, at, args, plan.one_pass)
            good = jnp.isfinite(now)
            small = jnp.abs(now - state.value) <= tol * (1 + jnp.abs(now))
            stop = ~good | small | (state.steps == most)
            # what stops keeps the parameters whose E-step was the last good one
            kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), at, state.last)
            return _Climb(
                steps=state.steps + 1,
                params=lax.cond(
                    stop, lambda: kept, lambda: self._maximise(problem, plan, at, args, posterior)
                ),
                last=kept,
                value=jnp.where(good, now, state.value),
                code=stop_code(broken=~good, settled=small, cut=stop),
                history=state.history.at[state.steps].set(jnp.where(good, now, jnp.nan)),
            )

        def climb(state: _Climb, args: tuple, tol: Array, most: Array, limit: Array):
            state = until_stopped(lambda s: step(s, args, tol, most), state, limit)
            return state, deterministics(trace_model(problem, state.params, args))

        return climb

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
        collapsed = [degenerate(problem, point) for point in points]
        lost = np.array([c is not None for c in collapsed]) | (code == BROKEN)
        sound = np.isfinite(value) & ~lost
        best = int(
            np.argmax(np.where(sound if sound.any() else np.isfinite(value), value, -np.inf))
        )
        if not sound.any():
            last = {name: points[best][name] for name in state.params}
            sizes = self._sizes(problem, last)
            cause = known_cause(problem)
            raise FitError(self._lost(collapsed[best], sizes, cause), points[best])
        converged = bool(code[best] == SETTLED)
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
            return lambda params, args: cluster_sizes(expectation(bare, params, args)[1])

        program, _ = compiled("sizes", problem, None, build, params, problem.args)
        return np.asarray(program(params, problem.args))

    @staticmethod
    def _lost(found: tuple[int, str] | None, sizes: NDArray, cause: str | None) -> str:
        """Say which cluster collapsed; the smallest, when the log joint itself broke down."""
        if found is None and len(sizes):
            found = int(np.argmin(sizes)), "the log joint stopped being finite"
        if found is None:
            return f"EM: the log joint stopped being finite from every start; {cause or _CHECK}"
        cluster, what = found
        size = f" of effective size {sizes[cluster]:.3g} points" if len(sizes) > cluster else ""
        return f"EM: cluster {cluster}{size} collapsed ({what}); {cause or _REMEDY}"
