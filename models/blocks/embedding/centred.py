"""Independent normal points centred at their mean, for data that do not depend on the mean."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform

__all__ = ["CentredNormal", "Centring"]

_TOLERANCE = 1e-6
"""Tolerance of a zero mean for rounding, relative to the largest entry."""


class _Centred(constraints.Constraint):
    """Tables whose columns have mean zero."""

    event_dim = 2

    def __call__(self, x: Array) -> Array:
        largest = jnp.abs(x).max(axis=(-2, -1))
        return jnp.abs(x.mean(axis=-2)).max(axis=-1) <= _TOLERANCE * (1 + largest)

    def feasible_like(self, prototype: ArrayLike) -> Array:
        return jnp.zeros_like(jnp.asarray(prototype))

    def tree_flatten(self) -> tuple[tuple, tuple]:
        return (), ((), {})


class Centring(Transform):
    """Add a row so that columns have mean zero; keeps lengths and angles of columns up to a unit.

    Parameters
    ----------
    unit : ArrayLike, shape ()
    """

    domain = constraints.independent(constraints.real, 2)
    codomain = _Centred()

    def __init__(self, unit: ArrayLike = 1.0) -> None:
        self.unit = unit

    def __call__(self, x: Array) -> Array:
        """Add the row."""
        size = x.shape[-2] + 1
        total = x.sum(axis=-2, keepdims=True)
        shift = total / (jnp.sqrt(size) + size)
        whole = jnp.concatenate([x, shift - total / jnp.sqrt(size)], axis=-2)
        return jnp.asarray(self.unit * (whole - shift))

    def _inverse(self, y: Array) -> Array:
        value = y / self.unit
        size = y.shape[-2]
        shift = -jnp.sqrt(size) * value[..., -1:, :] / (jnp.sqrt(size) + size)
        return value[..., :-1, :] + shift

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: None = None) -> Array:
        """Log determinant: the logarithm of the unit, once per coordinate."""
        each = x.shape[-2] * x.shape[-1] * jnp.log(self.unit)
        return jnp.broadcast_to(each, x.shape[:-2])

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One row more."""
        return (*shape[:-2], shape[-2] + 1, shape[-1])

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """One row less."""
        return (*shape[:-2], shape[-2] - 1, shape[-1])

    def tree_flatten(self) -> tuple[tuple, tuple]:
        """The unit."""
        return (self.unit,), (("unit",), {})


@biject_to.register(_Centred)
def _centring(constraint: _Centred) -> Centring:
    return Centring()


class CentredNormal(dist.Distribution):
    r"""Independent normal points minus their mean.

    .. math:: p(x) = (2 \pi s^2)^{-(n - 1) q / 2} e^{-\|x\|^2 / 2 s^2}, \qquad \sum_i x_i = 0

    with respect to lengths within the tables of mean zero. If data depend on differences of points
    only, the posterior of the mean equals its prior, so that no information is lost.

    Parameters
    ----------
    scale : ArrayLike, shape ()
        s.
    num_points, num_dimensions : int
    """

    arg_constraints: ClassVar[dict] = {"scale": constraints.positive}
    support = _Centred()
    pytree_data_fields: ClassVar[tuple[str, ...]] = ("scale",)

    def __init__(
        self,
        scale: ArrayLike,
        num_points: int,
        num_dimensions: int,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.scale = scale
        super().__init__((), (num_points, num_dimensions), validate_args=validate_args)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw tables."""
        drawn = jax.random.normal(key, (*sample_shape, *self.event_shape))
        return jnp.asarray(self.scale) * (drawn - drawn.mean(axis=-2, keepdims=True))

    def log_prob(self, value: Array) -> Array:
        """Log density of tables."""
        rows, columns = self.event_shape
        normal = -0.5 * jnp.sum((value / self.scale) ** 2, axis=(-2, -1))
        norm = (rows - 1) * columns * (jnp.log(self.scale) + 0.5 * jnp.log(2 * jnp.pi))
        return jnp.asarray(normal) - jnp.asarray(norm)
