"""Posterior modes by quasi-Newton ascent from several starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from numpy.typing import NDArray

from .base import EngineResult, FitError, Problem, Status, check_positive
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
from .programs import compiled
from .progress import progress_bar
from .starts import initial_values, starting_point

__all__ = ["MAP"]


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
    num_restarts : int
    memory : int
        Pairs of steps and gradients that L-BFGS keeps.

    References
    ----------
    Liu and Nocedal (1989), Math. Program. 45, 503-528, doi:10.1007/BF01589116.
    """

    tol: float = 1e-7
    max_steps: int = 1000
    num_restarts: int = 10
    memory: int = 20
    name: ClassVar[str] = "map"

    def __post_init__(self) -> None:
        check_positive(self, tol=0.0, max_steps=1, num_restarts=1, memory=1)

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
        inputs = starts, problem.args, jnp.asarray(float(self.tol))
        with progress_bar("MAP", shown=progress) as advance:
            advance(0, "compiling")
            shape = (self.max_steps, self.memory)
            ascend, compiling = compiled("map", problem, shape, self._program, *inputs)
            advance(0, "climbing")
            began = time.perf_counter()
            out = jax.block_until_ready(ascend(*inputs))
        seconds = {"compile": compiling, "run": time.perf_counter() - began}
        params, run = map(as_numpy, out)
        if not np.isfinite(run["lp"]).any():
            point = {name: np.asarray(value[0]) for name, value in starts.items()}
            raise FitError(_no_start(problem, point), point)
        return self._result(params, run, seconds, approximate)

    def _program(self, problem: Problem) -> Callable:
        solver = optax.lbfgs(memory_size=self.memory)

        def one(start: dict[str, Array], args: tuple, tol: Array):
            def loss(free: dict) -> Array:
                return -sum_log_prob(place(problem, free, args)[0])

            value_and_grad = optax.value_and_grad_from_state(loss)

            def step(state):
                count, free, inner, _, _, history = state
                value, grad = value_and_grad(free, state=inner)
                updates, inner = solver.update(
                    grad, inner, free, value=value, grad=grad, value_fn=loss
                )
                new = optax.apply_updates(free, updates)
                value, grad = optax.tree.get(inner, "value"), optax.tree.get(inner, "grad")
                slope = optax.tree.norm(grad, ord=jnp.inf) / (1 + jnp.abs(value))
                moved = optax.tree.norm(updates, ord=jnp.inf)
                return count + 1, new, inner, slope, moved, history.at[count].set(-value)

            free = unconstrained_start(replace(problem, args=args), start)
            inf = jnp.asarray(jnp.inf)
            state = (0, free, solver.init(free), inf, inf, jnp.full(self.max_steps, jnp.nan))
            count, free, inner, slope, _, history = lax.while_loop(
                lambda s: (s[0] < self.max_steps) & (s[3] > tol) & (s[4] > 0.0), step, state
            )
            sites, _ = place(problem, free, args)
            params = {name: sites[name]["value"] for name in start} | deterministics(sites)
            grad = optax.tree.norm(optax.tree.get(inner, "grad"), ord=jnp.inf)
            return params, {
                "lp": -optax.tree.get(inner, "value"),
                "history": history,
                "steps": count,
                "slope": slope,
                "gradient": grad,
            }

        return jax.vmap(one, in_axes=(0, None, None))

    def _result(
        self,
        params: dict[str, NDArray],
        run: dict[str, NDArray],
        seconds: dict[str, float],
        approximate: str | None,
    ) -> EngineResult:
        value, steps = run["lp"], run["steps"]
        sound = np.isfinite(value)
        best = int(np.argmax(np.where(sound, value, -np.inf)))
        converged = bool(run["slope"][best] <= self.tol)
        size = f"gradient at most {run['gradient'][best]:.2g}"
        if converged:
            message = (
                f"MAP converged in {steps[best]} steps ({size}); the best of {len(value)} starts "
                f"reached log joint {value[best]:.6g}"
            )
        elif steps[best] < self.max_steps:
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
            sample_stats={
                "lp": value[best][None, None],
                "gradient": run["gradient"][best][None, None],
            },
            objective=run["history"][:, : int(steps.max())],
            status=Status(converged, message),
            seconds=seconds,
            approximate=approximate,
        )


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
