"""Posterior modes by quasi-Newton ascent from several starts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from .base import EngineResult, FitError, Problem, Status, check_positive
from .density import (
    approximation,
    as_numpy,
    constrain,
    initial_values,
    latent_supports,
    log_joint,
    unconstrain,
)

__all__ = ["MAP"]


@dataclass(frozen=True)
class MAP:
    """Maximum a posteriori by L-BFGS, from several starts at once.

    Moves in unconstrained coordinates but maximises the density of the constrained parameters
    (no Jacobian), so that its mode is that of `EM`.

    Parameters
    ----------
    tol : float
        Stop when the largest entry of the gradient, divided by one plus the absolute log joint,
        falls below it.
    max_steps : int
    num_restarts : int
    """

    tol: float = 1e-7
    max_steps: int = 1000
    num_restarts: int = 10
    name: ClassVar[str] = "map"

    def __post_init__(self) -> None:
        check_positive(self, tol=0.0, max_steps=1, num_restarts=1)

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> EngineResult:
        """Fit; see `Engine.run`. An `init` replaces all starts by one."""
        approximate = approximation(problem)
        supports = latent_supports(problem)
        if init is None:
            starts = initial_values(problem, jax.random.key(seed), self.num_restarts)
        else:
            starts = {name: jnp.asarray(init[name])[None] for name in supports}
        began = time.perf_counter()
        ascend = jax.jit(lambda starts, args: self._ascend(problem, supports, starts, args))
        compiled = ascend.lower(starts, problem.args).compile()
        ready = time.perf_counter()
        out = jax.block_until_ready(compiled(starts, problem.args))
        seconds = {"compile": ready - began, "run": time.perf_counter() - ready}
        params, objective, history, steps, slope = out[0], *map(np.asarray, out[1:])
        finite = np.isfinite(objective)
        if not finite.any():
            raise FitError(
                "MAP: the log joint is not finite at any start; check for constant or duplicated "
                "features, or hard links that no labeling satisfies"
            )
        best = int(np.argmax(np.where(finite, objective, -np.inf)))
        converged = bool(slope[best] <= self.tol)
        message = (
            f"MAP converged in {steps[best]} steps; the best of {len(objective)} starts reached "
            f"log joint {objective[best]:.6g}"
            if converged
            else f"MAP stopped after {steps[best]} steps with a relative gradient of {slope[best]:.2g}; "
            "raise max_steps, loosen tol, or start from EM with init="
        )
        return EngineResult(
            engine=self.name,
            draws={name: value[best][None, None] for name, value in as_numpy(params).items()},
            sample_stats={"lp": objective[best][None, None]},
            objective=history[:, : int(steps.max())],
            status=Status(converged, message),
            seconds=seconds,
            approximate=approximate,
        )

    def _ascend(self, problem: Problem, supports: Mapping, starts: dict, args: tuple):
        def loss(free: dict) -> Array:
            return -log_joint(problem, constrain(supports, free), args)

        solver = optax.lbfgs(memory_size=20)
        value_and_grad = optax.value_and_grad_from_state(loss)

        def steepness(value: Array, grad: dict) -> Array:
            largest = jnp.stack([jnp.abs(g).max() for g in jax.tree.leaves(grad)]).max()
            return largest / (1 + jnp.abs(value))

        def step(state):
            count, free, inner, _, _, history = state
            value, grad = value_and_grad(free, state=inner)
            updates, inner = solver.update(grad, inner, free, value=value, grad=grad, value_fn=loss)
            new = optax.apply_updates(free, updates)
            value, grad = optax.tree.get(inner, "value"), optax.tree.get(inner, "grad")
            slope = steepness(value, grad)
            moved = jnp.stack([jnp.abs(u).max() for u in jax.tree.leaves(updates)]).max()
            return count + 1, new, inner, slope, moved, history.at[count].set(-value)

        def one(start):
            free = unconstrain(supports, start)
            inf = jnp.asarray(jnp.inf)
            state = (0, free, solver.init(free), inf, inf, jnp.full(self.max_steps, jnp.nan))
            count, free, inner, slope, _, history = lax.while_loop(
                lambda s: (s[0] < self.max_steps) & (s[3] > self.tol) & (s[4] > 0.0), step, state
            )
            value = jnp.where(count > 0, -optax.tree.get(inner, "value"), jnp.nan)
            return constrain(supports, free), value, history, count, slope

        return jax.vmap(one)(starts)
