"""The von Mises-Fisher density on the unit sphere, with an exact constant for every dimension."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from .log_bessel import bessel_deficit, log_scaled_bessel

__all__ = ["VonMisesFisher", "log_constant", "mean_deficit", "mean_deficit_slope"]


def log_constant(concentration: Array, dimension: int) -> Array:
    r"""Logarithm of :math:`c(\kappa)`, where the density is :math:`c(\kappa) e^{\kappa (\mu^\top y - 1)}`.

    Parameters
    ----------
    concentration : Array
        Not negative.
    dimension : int
        Dimension of the sphere.
    """
    order = (dimension - 1) / 2
    return -(order + 1) * math.log(2 * math.pi) - log_scaled_bessel(order, concentration)


def mean_deficit(concentration: Array, dimension: int) -> Array:
    """One minus the mean cosine of the angle to the mean direction."""
    return bessel_deficit((dimension - 1) / 2, concentration)


def mean_deficit_slope(concentration: Array, dimension: int) -> Array:
    """Derivative of `mean_deficit` with respect to the concentration."""
    order, blank = (dimension - 1) / 2, jnp.ones_like(concentration)
    return jax.jvp(lambda kappa: bessel_deficit(order, kappa), (concentration,), (blank,))[1]


class VonMisesFisher(dist.Distribution):
    r"""Von Mises-Fisher density with respect to area, :math:`p(y) \propto e^{\kappa \mu^\top y}`.

    Parameters
    ----------
    direction : Array, shape (..., dimension + 1)
        Unit vectors.
    concentration : Array, shape (...)
        :math:`\kappa`. If it is large, the variance of the angle in every direction is about
        :math:`1 / \kappa`.

    References
    ----------
    Mardia and Jupp (2000), Directional Statistics, section 9.3. Wood (1994), Communications in Statistics -
    Simulation and Computation 23, 157-164, doi:10.1080/03610919408813161, for draws.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields: ClassVar[tuple[str, ...]] = ("direction", "concentration")

    def __init__(
        self, direction: Array, concentration: Array, *, validate_args: bool | None = None
    ) -> None:
        self.direction, self.concentration = direction, concentration
        super().__init__(
            batch_shape=jnp.shape(direction)[:-1],
            event_shape=jnp.shape(direction)[-1:],
            validate_args=validate_args,
        )

    @property
    def support(self) -> constraints.Constraint:
        """Vectors; their length is not checked."""
        return constraints.real_vector

    def log_prob(self, value: ArrayLike) -> Array:
        """Log density of points; their length does not matter."""
        value = jnp.asarray(value)
        value = value / jnp.linalg.norm(value, axis=-1, keepdims=True)
        # 1 - cosine, which loses no digits between close points
        apart = 0.5 * jnp.square(value - self.direction).sum(axis=-1)
        dimension = self.direction.shape[-1] - 1
        return log_constant(self.concentration, dimension) - self.concentration * apart

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw the cosine of the angle by rejection, and the direction at the mean uniformly."""
        key_cosine, key_across = jax.random.split(key)
        shape = (*sample_shape, *self.batch_shape)
        size = self.direction.shape[-1]
        concentration = jnp.broadcast_to(self.concentration, shape)
        deficit = _draw_deficits(key_cosine, concentration, size - 1)[..., None]
        across = jax.random.normal(key_across, (*shape, size), self.direction.dtype)
        across -= (across * self.direction).sum(axis=-1, keepdims=True) * self.direction
        across /= jnp.linalg.norm(across, axis=-1, keepdims=True)
        return (1 - deficit) * self.direction + jnp.sqrt(deficit * (2 - deficit)) * across


def _draw_deficits(key: Array, concentration: Array, dimension: int) -> Array:
    """Draws of one minus the cosine by rejection (Wood 1994)."""
    half = dimension / 2
    # b of Wood, in a form that avoids cancellation
    spread = dimension / (jnp.hypot(2 * concentration, dimension) + 2 * concentration)
    most = (1 - spread) / (1 + spread)
    level = concentration * most + dimension * jnp.log(4 * spread / jnp.square(1 + spread))

    def propose(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, found, accepted = state
        key, key_beta, key_level = jax.random.split(key, 3)
        share = jax.random.beta(key_beta, half, half, concentration.shape, concentration.dtype)
        deficit = 2 * spread * share / (1 - (1 - spread) * share)
        cosine = 1 - deficit
        height = concentration * cosine + dimension * jnp.log(1 - most * cosine) - level
        taken = height >= jnp.log(jax.random.uniform(key_level, concentration.shape))
        return key, jnp.where(accepted, found, deficit), accepted | taken

    def some_left(state: tuple[Any, Any, Array]) -> Array:
        return ~state[2].all()

    blank = jnp.zeros_like(concentration), jnp.zeros(concentration.shape, bool)
    return lax.while_loop(some_left, propose, (key, *blank))[1]
