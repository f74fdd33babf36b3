"""EM at saliencies that are held, from the parameters of a fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from numpy.typing import NDArray

from .engines.base import Problem
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
    """Weights and densities at given saliencies, and the responsibilities, (num_points, num_clusters).

    No cluster is taken out. The steps end when one changes the objective by less than `tol` for each known
    value.

    Raises
    ------
    ValueError
        If the prior of the structure is not a message length.
    """
    names = Sites.of(problem)

    def weighed(values: dict[str, Array]) -> Weighed:
        return Weighed.of(trace_model(problem, values), names)

    def step(state: tuple) -> tuple:
        number, values, value, _ = state
        at = weighed(values)
        return number + 1, at.moved_at_held_saliencies(), at.at_held_precision(), value

    def goes_on(state: tuple) -> Array:
        number, _, value, last = state
        least = jnp.maximum(tol * size, rounding_of(value) * (1 + jnp.abs(value)))
        moves = ~(jnp.abs(value - last) <= least)
        return (number < max_steps) & moves

    @jax.jit
    def run(values: dict[str, Array]) -> tuple[dict[str, Array], Array]:
        unknown = jnp.asarray(jnp.nan)
        start = (jnp.zeros((), int), values, unknown, unknown)
        values = lax.while_loop(goes_on, step, start)[1]
        return values, weighed(values).responsibilities().T

    given = {name: jnp.asarray(value, float) for name, value in params.items()}
    size = weighed(given).size
    found, share = run(given | {names.saliency: jnp.asarray(saliency, float)})
    return {name: np.asarray(value) for name, value in found.items()}, np.asarray(share)
