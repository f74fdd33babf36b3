"""The support of data with missing values."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints

__all__ = ["RealOrMissing"]


class RealOrMissing(constraints.Constraint):
    """Real numbers, and NaN for missing values."""

    def __call__(self, x: ArrayLike) -> Array:
        """Whether values are real or missing."""
        return ~jnp.isinf(jnp.asarray(x))

    def feasible_like(self, prototype: ArrayLike) -> Array:
        """Zeros of the shape of `prototype`."""
        return jnp.zeros_like(jnp.asarray(prototype))

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """No parameters."""
        return (), ((), {})
