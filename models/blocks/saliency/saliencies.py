"""Saliencies by themselves, with their priors and posteriors; moments of tables with gaps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from sidebayes.common.fields import Range, check_number

from ..visits import at_a_time
from .passes import CHUNK

__all__ = [
    "EDGE",
    "draw_saliency",
    "known_moments",
    "saliency_mode",
    "saliency_prior",
    "two_positive",
]

EDGE = 1e-10
"""Distance of a mode of a saliency from zero and one, where the prior has no bound there."""


def saliency_prior(parameters: tuple[float, float] | None, size: int) -> dist.Distribution:
    """Beta priors of saliencies, or none."""
    if parameters is None:
        support = constraints.independent(constraints.unit_interval, 1)
        return dist.ImproperUniform(support, (), (size,))
    return dist.Beta(*parameters).expand((size,)).to_event(1)


def saliency_mode(on: Array, off: Array) -> Array:
    """Mode of Beta distributions, within the unit interval."""
    on, off = (jnp.maximum(count - 1.0, EDGE) for count in (on, off))
    return on / (on + off)


def draw_saliency(rng_key: Array, on: Array, off: Array) -> Array:
    """Draw from Beta distributions, within the unit interval."""
    return jnp.clip(dist.Beta(on, off).sample(rng_key), EDGE, 1 - EDGE)


def known_moments(x: ArrayLike | None, num_features: int) -> tuple[Array, Array]:
    """Mean and variance of each feature over its known values; zero and one where there are none."""
    if x is None:
        return jnp.zeros(num_features), jnp.ones(num_features)
    return _known_moments(jnp.asarray(x), at_a_time(CHUNK))


@partial(jax.jit, static_argnums=1)
def _known_moments(values: Array, chunk: int) -> tuple[Array, Array]:
    number = jnp.maximum(
        _column_sums(values, chunk, lambda one: (~jnp.isnan(one)).astype(one.dtype)), 1.0
    )
    mean = _column_sums(values, chunk, jnp.nan_to_num) / number
    variance = _column_sums(values, chunk, lambda one: jnp.nan_to_num(one - mean) ** 2) / number
    return mean, jnp.where(variance > 0, variance, 1.0)


def _column_sums(values: Array, size: int, of: Callable[[Array], Array]) -> Array:
    """Sums by column of a function of the values, over rows that stay in the processor's cache."""
    if len(values) <= size:
        return of(values).sum(axis=0)

    def more(number: Array, total: Array) -> Array:
        first = number * size
        begin = jnp.minimum(first, len(values) - size)  # the last rows begin among those before
        rows = of(lax.dynamic_slice_in_dim(values, begin, size))
        return total + jnp.where((begin + jnp.arange(size) >= first)[:, None], rows, 0.0).sum(
            axis=0
        )

    start = jnp.zeros(values.shape[1], jnp.result_type(values, float))
    return lax.fori_loop(0, -(-len(values) // size), more, start)


def two_positive(value: Any) -> tuple[float, float]:
    """Parameters of a Beta distribution.

    Raises
    ------
    TypeError, ValueError
        If these are not two positive numbers.
    """
    if isinstance(value, str) or not np.iterable(value) or len(tuple(value)) != 2:
        raise TypeError(
            f"saliency_prior = {value!r:.60}; pass the two positive numbers a and b of a Beta prior"
        )
    a, b = (check_number("saliency_prior", one, Range(above=0.0)) for one in value)
    return a, b
