"""Expectation maximisation for any declared model whose labels are summed out."""

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
    unconstrain,
)
from .surrogate import expectation, surrogate

__all__ = ["EM"]


@dataclass(frozen=True)
class EM:
    """Expectation maximisation, from several starts at once.

    Maximises the log joint density in the constrained space. Models with a closed-form M-step
    use it; for others the surrogate is climbed by L-BFGS. With exact label inference the objective
    never falls.

    Parameters
    ----------
    tol : float
        Stop when the log joint rises by less than `tol` times one plus its absolute value.
    max_steps : int
    num_restarts : int
        Starting points, k-means++ for mixtures; the best final objective is kept.
    num_inner_steps : int
        L-BFGS steps in an M-step without closed form.
    """

    tol: float = 1e-7
    max_steps: int = 500
    num_restarts: int = 10
    num_inner_steps: int = 10
    name: ClassVar[str] = "em"

    def __post_init__(self) -> None:
        check_positive(self, tol=0.0, max_steps=1, num_restarts=1, num_inner_steps=1)

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
        climb = jax.jit(lambda starts, args: self._climb(problem, supports, starts, args))
        compiled = climb.lower(starts, problem.args).compile()
        ready = time.perf_counter()
        params, objective, history, steps = jax.block_until_ready(compiled(starts, problem.args))
        seconds = {"compile": ready - began, "run": time.perf_counter() - ready}
        return self._result(
            as_numpy(params),
            np.asarray(objective),
            np.asarray(history),
            np.asarray(steps),
            seconds,
            approximate,
        )

    def _climb(self, problem: Problem, supports: Mapping, starts: dict, args: tuple):
        def step(state):
            count, params, value, _, history = state
            _, posterior = expectation(problem, params, args)
            if problem.m_step is not None:
                new = problem.m_step(params, args, posterior)
            else:
                new = self._maximise(problem, supports, params, args, posterior)
            new_value, _ = expectation(problem, new, args)
            good = jnp.isfinite(new_value)
            new = jax.tree.map(lambda a, b: jnp.where(good, a, b), new, params)
            gain = new_value - value
            going = good & ~(jnp.abs(gain) <= self.tol * (1 + jnp.abs(new_value)))
            new_value = jnp.where(good, new_value, value)
            return count + 1, new, new_value, going, history.at[count].set(new_value)

        def one(start):
            value, _ = expectation(problem, start, args)
            history = jnp.full(self.max_steps, jnp.nan)
            state = (0, start, value, jnp.isfinite(value), history)
            count, params, value, _, history = lax.while_loop(
                lambda s: (s[0] < self.max_steps) & s[3], step, state
            )
            return params, value, history, count

        return jax.vmap(one)(starts)

    def _maximise(self, problem: Problem, supports, params, args, posterior) -> dict[str, Array]:
        """Raise Q by L-BFGS in unconstrained coordinates; never lower it."""
        free = unconstrain(supports, params)

        def loss(free: dict) -> Array:
            return -surrogate(problem, constrain(supports, free), args, posterior)

        solver = optax.lbfgs(memory_size=10)
        value_and_grad = optax.value_and_grad_from_state(loss)

        def improve(carry, _):
            free, state = carry
            value, grad = value_and_grad(free, state=state)
            updates, state = solver.update(grad, state, free, value=value, grad=grad, value_fn=loss)
            return (optax.apply_updates(free, updates), state), None

        (found, _), _ = lax.scan(improve, (free, solver.init(free)), length=self.num_inner_steps)
        better = loss(found) <= loss(free)
        return constrain(supports, jax.tree.map(lambda a, b: jnp.where(better, a, b), found, free))

    def _result(self, params, objective, history, steps, seconds, approximate) -> EngineResult:
        finite = np.isfinite(objective)
        if not finite.any():
            raise FitError(
                "EM: the log joint is not finite at any start; check for constant or duplicated "
                "features, or hard links that no labeling satisfies"
            )
        best = int(np.argmax(np.where(finite, objective, -np.inf)))
        point = {name: value[best][None, None] for name, value in params.items()}
        converged = bool(steps[best] < self.max_steps)
        message = (
            f"EM converged in {steps[best]} steps; the best of {len(objective)} starts reached "
            f"log joint {objective[best]:.6g}"
            if converged
            else f"EM stopped at max_steps={self.max_steps} before the gain fell below tol={self.tol}; "
            "raise max_steps or loosen tol"
        )
        collapsed = _collapsed({name: value[best] for name, value in params.items()})
        if collapsed is not None:
            converged = False
            message = (
                f"EM: cluster {collapsed} collapsed onto a few points (its covariance is singular); use "
                "prior='empirical', fewer clusters, or covariance='tied'"
            )
        return EngineResult(
            engine=self.name,
            draws=point,
            sample_stats={"lp": objective[best][None, None]},
            objective=history[:, : int(steps.max())],
            status=Status(converged, message),
            seconds=seconds,
            approximate=approximate,
        )


def _collapsed(params: Mapping[str, np.ndarray]) -> int | None:
    """First cluster whose covariance is numerically singular relative to the widest."""
    if "covariance" in params:
        eigenvalues = np.linalg.eigvalsh(params["covariance"])
        smallest = np.atleast_1d(eigenvalues[..., 0])
        widest = eigenvalues.max()
    elif "variance" in params:
        smallest = params["variance"].reshape(len(params["variance"]), -1).min(axis=1)
        widest = params["variance"].max()
    else:
        return None
    worst = int(np.argmin(smallest))
    return worst if smallest[worst] < 1e-10 * widest else None
