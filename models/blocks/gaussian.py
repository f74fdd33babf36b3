"""Normal densities of many points."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from numpyro.distributions.util import validate_sample

__all__ = ["Gaussian", "whitening"]


class Gaussian(dist.MultivariateNormal):
    """Multivariate normal density that whitens points by matrix products.

    The Cholesky factor is inverted once, in place of a triangular solve for every point: on a
    processor, XLA runs batches of such solves, and their gradients even more so, many times slower
    than batches of products.
    """

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """Log density, of the broadcast shape of points and batch.

        Points against several means of one covariance are whitened apart from these. Squared distances
        then carry the rounding of those from the middle of the means, not of their own size.
        """
        matrix, log_scale = whitening(self.scale_tril)
        value = jnp.asarray(value)
        one_covariance = matrix.shape[:-2] == (1,) and self.loc.ndim == 2
        if one_covariance and value.ndim == 3 and value.shape[1] == 1:
            middle = self.loc.mean(axis=0)
            points, means = (value[:, 0] - middle) @ matrix[0].T, (self.loc - middle) @ matrix[0].T
            lengths = (points**2).sum(axis=1)[:, None] + (means**2).sum(axis=1)
            return log_scale - 0.5 * (lengths - 2 * points @ means.T)
        white = jnp.einsum("...ij,...j->...i", matrix, value - self.loc)
        return log_scale - 0.5 * (white**2).sum(axis=-1)


def whitening(scale_tril: Array) -> tuple[Array, Array]:
    """Inverse Cholesky factors, and the logs of the normalising constants of the normal densities.

    Parameters
    ----------
    scale_tril : Array, shape (..., num_features, num_features)

    Returns
    -------
    matrix : Array, shape (..., num_features, num_features)
        ``matrix @ (x - mean)`` is standard normal.
    log_scale : Array, shape (...,)
    """
    num_features = scale_tril.shape[-1]
    eye = jnp.broadcast_to(jnp.eye(num_features, dtype=scale_tril.dtype), scale_tril.shape)
    log_det = jnp.log(jnp.diagonal(scale_tril, axis1=-2, axis2=-1)).sum(axis=-1)
    return (
        solve_triangular(scale_tril, eye, lower=True),
        -log_det - 0.5 * num_features * math.log(2 * math.pi),
    )
