"""Directions that are uniform on a sphere, as sites with coordinates about a pole."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform, biject_to

from .sphere import tangent_basis

__all__ = ["Stereographic", "UniformDirection", "unit_vector"]


class _UnitVector(constraints.Constraint):
    """Vectors of length one, up to rounding."""

    event_dim = 1

    def __call__(self, x: Any) -> Any:
        """Whether vectors have length one."""
        return jnp.abs(jnp.linalg.norm(x, axis=-1) - 1) < 1e-5

    def feasible_like(self, prototype: Any) -> Any:
        """A point in the middle of all axes."""
        return jnp.full_like(prototype, prototype.shape[-1] ** -0.5)

    def __eq__(self, other: object) -> bool:
        """There is one."""
        return isinstance(other, _UnitVector)

    def __hash__(self) -> int:
        return hash(_UnitVector)

    def tree_flatten(self) -> tuple:
        """Leaves and structure, for JAX."""
        return (), ((), {})


unit_vector = _UnitVector()


class Stereographic(Transform):
    """Map of the space of as many dimensions as the sphere onto it, but for the opposite of a pole.

    Parameters
    ----------
    pole : Array, shape (dimension + 1,), optional
        Where zero goes; by default the first axis.
    """

    domain = constraints.real_vector
    codomain = unit_vector

    def __init__(self, pole: Array | None = None) -> None:
        self.pole = pole

    def _pole(self, size: int) -> Array:
        return jnp.eye(1, size)[0] if self.pole is None else self.pole

    def __call__(self, x: Array) -> Array:
        """Project from the opposite of the pole; small numbers are angles in radians."""
        half, pole = x / 2, self._pole(x.shape[-1] + 1)
        square = jnp.square(half).sum(axis=-1, keepdims=True)
        across = jnp.einsum("dp,...p->...d", tangent_basis(pole), half)
        return ((1 - square) * pole + 2 * across) / (1 + square)

    def _inverse(self, y: Array) -> Array:
        pole = self._pole(y.shape[-1])
        across = jnp.einsum("dp,...d->...p", tangent_basis(pole), y)
        height = jnp.square(y + pole).sum(axis=-1, keepdims=True) / 2  # 1 + cosine
        return 2 * across / height

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        """Area on the sphere."""
        square = jnp.square(x).sum(axis=-1) / 4
        return -x.shape[-1] * jnp.log1p(square)

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One coordinate more."""
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One coordinate less."""
        return (*shape[:-1], shape[-1] - 1)

    def tree_flatten(self) -> tuple:
        """Leaves and structure, for JAX."""
        return (self.pole,), (("pole",), {})


@biject_to.register(_UnitVector)
def _(constraint: constraints.Constraint) -> Transform:
    return Stereographic()


class UniformDirection(dist.Distribution):
    """Uniform density on the unit sphere, with respect to area.

    Parameters
    ----------
    dimension : int
        Of the sphere.
    """

    arg_constraints: ClassVar[dict] = {}
    support = unit_vector

    def __init__(self, dimension: int, *, validate_args: bool | None = None) -> None:
        self.dimension = dimension
        super().__init__(event_shape=(dimension + 1,), validate_args=validate_args)

    def log_prob(self, value: Array) -> Array:
        """Minus the logarithm of the area."""
        half = (self.dimension + 1) / 2
        area = math.log(2) + half * math.log(math.pi) - math.lgamma(half)
        return jnp.full(jnp.shape(value)[:-1], -area)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Directions of normal vectors."""
        drawn = jax.random.normal(key, (*sample_shape, self.dimension + 1))
        return drawn / jnp.linalg.norm(drawn, axis=-1, keepdims=True)
