"""EM at saliencies that are held fixed, from the parameters of a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from numpy.typing import NDArray

from .engines.base import Problem
from .engines.plumbing.programs import compiled
from .engines.problem.density import trace_model
from .engines.steps.climbs import rounding_of
from .feature_saliency_steps import Sites, Weighed

__all__ = ["em_at_held_saliencies"]


def em_at_held_saliencies(
    problem: Problem,
    params: Mapping[str, Any],
    saliency: ArrayLike,
    tol: float = 1e-9,
    max_steps: int = 2000,
) -> tuple[dict[str, NDArray], NDArray]:
    """Fit weights and densities at given saliencies, and responsibilities, (num_points, num_clusters).

    No cluster is removed. The steps end when one changes the objective by less than `tol` per known value.

    Raises
    ------
    ValueError
        If the prior of the structure is not a message length.
    """
    names = Sites.of(problem)
    given = {name: np.asarray(value, float) for name, value in params.items()}
    given[names.saliency] = np.asarray(saliency, float)
    inputs = given, problem.args, np.asarray(tol), np.asarray(max_steps)
    program, _ = compiled("held-saliencies", problem, names, partial(_climb, names), *inputs)
    found, share = program(*inputs)
    return {name: np.asarray(value) for name, value in found.items()}, np.asarray(share)


def _climb(names: Sites, problem: Problem) -> Callable:
    def climb(
        start: dict[str, Array], args: tuple, tol: Array, max_steps: Array
    ) -> tuple[dict[str, Array], Array]:
        def weighed(values: dict[str, Array]) -> Weighed:
            return Weighed.of(trace_model(problem, values, args), names)

        def step(state: tuple) -> tuple:
            number, values, value, _ = state
            at = weighed(values)
            return number + 1, at.moved_at_held_saliencies(), at.at_held_precision(), value

        def goes_on(state: tuple) -> Array:
            number, _, value, last = state
            least = jnp.maximum(tol * size, rounding_of(value))
            return (number < max_steps) & ~(jnp.abs(value - last) <= least)

        size, unknown = weighed(start).size, jnp.asarray(jnp.nan)
        values = lax.while_loop(goes_on, step, (jnp.zeros((), int), start, unknown, unknown))[1]
        return values, weighed(values).responsibilities().T

    return climb
