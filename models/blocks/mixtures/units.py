"""Units of the data, in which gradients and random walks move."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform
from numpyro.primitives import apply_stack

__all__ = ["Rescaled", "data_units", "fitted_statistic"]


def data_units(data: ArrayLike | None, num_features: int) -> tuple[Array, Array]:
    """Mean and standard deviation of each feature; zero and one without data.

    A feature that does not vary, or has values that are no numbers, has a unit of one.
    """
    if data is None:
        return jnp.zeros(num_features), jnp.ones(num_features)
    x = jnp.asarray(data)
    mean = x.mean(axis=0)
    deviation = jnp.sqrt(jnp.mean((x - mean) ** 2, axis=0))
    return jnp.where(jnp.isfinite(mean), mean, 0.0), jnp.where(deviation > 0, deviation, 1.0)


def fitted_statistic(name: str, value: Array) -> Array:
    """Record a statistic of the data, such as their mean, that stays as it was fitted at other data.

    A site of `numpyro.deterministic` is computed anew from whatever data the model is run on. What
    coefficients are measured from must not be: they mean something in the units of the fitted data only.

    Parameters
    ----------
    name : str
        Of the site, which is a deterministic one otherwise.
    value : Array

    Returns
    -------
    Array
        The value; at other data that of the fit.
    """
    message = {
        "type": "deterministic",
        "name": name,
        "value": value,
        "cond_indep_stack": [],
        "is_fitted": True,
    }
    return apply_stack(message)["value"]


class Rescaled(Transform):
    """Covariance matrices, each feature in a unit of its own.

    Parameters
    ----------
    unit : Array, shape (num_features,)
    """

    domain = constraints.positive_definite
    codomain = constraints.positive_definite

    def __init__(self, unit: Array) -> None:
        self.unit = unit

    def __call__(self, x: Array) -> Array:
        """Multiply rows and columns by the units."""
        return x * self.unit[:, None] * self.unit

    def _inverse(self, y: Array) -> Array:
        return y / self.unit[:, None] / self.unit

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        """Each unit enters the symmetric matrix as often as there are features, and once more."""
        size = len(self.unit)
        return jnp.broadcast_to((size + 1) * jnp.log(self.unit).sum(), jnp.shape(x)[:-2])

    def tree_flatten(self) -> tuple:
        """Leaves and structure, for JAX."""
        return (self.unit,), (("unit",), {})
