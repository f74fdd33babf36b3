"""Class probabilities by latent functions of the features, as a NumPyro distribution."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import constraints

__all__ = ["LatentClassifier"]


class LatentClassifier(dist.Distribution):
    r"""Probability of each class given a row of features, in the place of the row's density.

    A discriminative model leaves the density of features open; up to that constant, class and
    features have the joint density :math:`P(z = m \mid x)`, which stands here for
    :math:`p(x \mid z = m)` beside equal mixing weights of one.

    Parameters
    ----------
    coefficients : Array, shape (num_clusters, num_features)
        Of the latent functions, whose softmax the probabilities are (Lu 2008, eq. 4.1).
    """

    arg_constraints: ClassVar[dict] = {}
    support = constraints.real_vector
    pytree_data_fields = ("coefficients",)
    is_density: ClassVar[bool] = False

    def __init__(self, coefficients: Array, *, validate_args: bool | None = None) -> None:
        self.coefficients = coefficients
        shape = jnp.shape(coefficients)
        super().__init__(shape[:1], shape[1:], validate_args=validate_args)

    def log_prob(self, value: Array) -> Array:
        """Log-probabilities of the classes at rows of shape (num_points, 1, num_features)."""
        latent = jnp.squeeze(value, -2) @ self.coefficients.T
        return jax.nn.log_softmax(latent, axis=-1)
