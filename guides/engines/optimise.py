"""Posterior modes by quasi-Newton ascent from several starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from numpy.typing import NDArray

from .base import EngineResult, FitError, Problem, Status, check_positive
from .checkpoint import check_checkpoint, keeping
from .density import (
    approximation,
    as_numpy,
    deterministics,
    explain_nonfinite,
    latent_supports,
    place,
    sum_log_prob,
    unconstrained_start,
)
from .lbfgs import Search, search_step, start_search
from .programs import compiled
from .progress import in_pieces, progress_bar
from .starts import initial_values, starting_point

__all__ = ["MAP"]

_SETTLED, _CUT, _STALLED = 1, 2, 3
"""Why a run stopped."""


class _Ascent(NamedTuple):
    """Where the runs from all starts have got; every array has one entry a start."""

    search: Search
    code: Array
    history: Array

    @property
    def steps(self) -> Array:
        """Gradients computed."""
        return self.search.steps


@dataclass(frozen=True)
class MAP:
    """Maximum a posteriori by L-BFGS, from several starts at once.

    Moves in unconstrained coordinates but maximises the density of the constrained parameters
    (no Jacobian), so that its mode is that of `EM`. Starts that break down are set aside.

    Parameters
    ----------
    tol : float
        Stop when the largest entry of the gradient, in unconstrained coordinates and divided by
        one plus the absolute log joint, falls below it.
    max_steps : int
        Gradients at most.
    num_restarts : int
    memory : int
        Pairs of steps and gradients that L-BFGS keeps.
    checkpoint : path, optional
        File that keeps the state of the run, so that the same call goes on after an interruption.
    checkpoint_every : float
        Seconds between two writings.

    References
    ----------
    Liu and Nocedal (1989), Math. Program. 45, 503-528, doi:10.1007/BF01589116.
    """

    tol: float = 1e-7
    max_steps: int = 1000
    num_restarts: int = 10
    memory: int = 20
    checkpoint: str | None = None
    checkpoint_every: float = 60.0
    name: ClassVar[str] = "map"

    def __post_init__(self) -> None:
        check_positive(self, tol=0.0, max_steps=1, num_restarts=1, memory=1)
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
            If the log joint is finite at no start, naming the sites to blame.
        """
        approximate = approximation(problem)
        latent_supports(problem)
        if init is None:
            starts = initial_values(problem, seed, self.num_restarts)
        else:
            starts = {name: v[None] for name, v in starting_point(problem, init).items()}
        settings = (self.max_steps, self.memory)
        with (
            progress_bar("MAP", shown=progress) as advance,
            keeping(self, problem, seed, init) as keep,
        ):
            advance(0, "compiling")
            begin, first = compiled(
                "map-begin", problem, settings, self._begin, starts, problem.args
            )
            state = keep.restore(begin(starts, problem.args))
            fixed = problem.args, jnp.asarray(float(self.tol))
            climb, second = compiled(
                "map", problem, settings, self._climb, state, *fixed, jnp.asarray(0)
            )
            began = time.perf_counter()
            state, sites = in_pieces(
                lambda state, limit: climb(state, *fixed, limit),
                state,
                advance,
                lambda state: f"log joint {float(-jnp.nanmin(state.search.value)):.6g}",
                keep.offer,
            )
        seconds = {"compile": first + second, "run": time.perf_counter() - began}
        if not np.isfinite(state.search.value).any():
            point = {name: np.asarray(value[0]) for name, value in starts.items()}
            raise FitError(_no_start(problem, point), point)
        return self._result(as_numpy(sites), state, seconds, approximate)

    def _begin(self, problem: Problem) -> Callable:
        def one(start: dict[str, Array], args: tuple) -> _Ascent:
            free = unconstrained_start(problem, start, args)
            history = jnp.full(self.max_steps, jnp.nan)
            return _Ascent(start_search(free, self.memory), jnp.asarray(0), history)

        return jax.vmap(one, in_axes=(0, None))

    def _climb(self, problem: Problem) -> Callable:
        """All starts at once, until each has stopped or computed `limit` gradients."""

        def one(state: _Ascent, args: tuple, tol: Array, limit: Array):
            loss = jax.value_and_grad(lambda free: -sum_log_prob(place(problem, free, args)[0]))

            def step(state: _Ascent) -> _Ascent:
                search = search_step(loss, state.search, self.memory)
                settled = _relative(search) <= tol
                cut = search.steps == self.max_steps
                code = jnp.where(
                    settled, _SETTLED, jnp.where(search.stalled, _STALLED, jnp.where(cut, _CUT, 0))
                )
                history = state.history.at[search.steps - 1].set(-search.value)
                return _Ascent(search, code, history)

            state = lax.while_loop(lambda s: (s.code == 0) & (s.steps < limit), step, state)
            sites, _ = place(problem, state.search.point, args)
            params = {name: sites[name]["value"] for name in state.search.point}
            return state, params | deterministics(sites)

        return jax.vmap(one, in_axes=(0, None, None, None))

    def _result(
        self,
        params: dict[str, NDArray],
        state: _Ascent,
        seconds: dict[str, float],
        approximate: str | None,
    ) -> EngineResult:
        value, steps = -np.asarray(state.search.value), np.asarray(state.steps)
        slope = np.max(
            [np.abs(g).max(axis=tuple(range(1, g.ndim))) for g in _leaves(state)], axis=0
        )
        sound = np.isfinite(value)
        best = int(np.argmax(np.where(sound, value, -np.inf)))
        code = int(state.code[best])
        size = f"gradient at most {slope[best]:.2g}"
        if code == _SETTLED:
            message = (
                f"MAP converged in {steps[best]} steps ({size}); the best of {len(value)} starts "
                f"reached log joint {value[best]:.6g}"
            )
        elif code == _STALLED:
            message = (
                f"MAP made no further progress after {steps[best]} steps ({size}); loosen tol={self.tol}, "
                "or check the fit against EM"
            )
        else:
            message = (
                f"MAP stopped at max_steps={self.max_steps} ({size}); raise it, loosen tol, or start "
                "from EM with init="
            )
        if not sound.all():
            message += f"; {(~sound).sum()} starts that broke down were set aside"
        return EngineResult(
            engine=self.name,
            draws={name: v[best][None, None] for name, v in params.items()},
            sample_stats={"lp": value[best][None, None], "gradient": slope[best][None, None]},
            objective=np.where(np.isfinite(state.history), state.history, np.nan)[
                :, : int(steps.max())
            ],
            status=Status(code == _SETTLED, message),
            seconds=seconds,
            approximate=approximate,
        )


def _relative(search: Search) -> Array:
    """Largest entry of the gradient, relative to the loss."""
    return optax.tree.norm(search.gradient, ord=jnp.inf) / (1 + jnp.abs(search.value))


def _leaves(state: _Ascent) -> list[NDArray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.search.gradient)]


def _no_start(problem: Problem, point: Mapping[str, NDArray]) -> str:
    blame = explain_nonfinite(problem, point)
    if blame:
        return (
            f"MAP: the log joint is not finite at any start: {blame}; check the data of that site "
            "for constant features or hard links that no labeling satisfies, or pass init="
        )
    return (
        "MAP: every start broke down on the way; pass init= from EM, or a prior that keeps scales "
        "away from zero"
    )
