"""Normal densities of many points."""

from __future__ import annotations

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from numpyro.distributions.util import validate_sample

__all__ = ["Gaussian"]


class Gaussian(dist.MultivariateNormal):
    """Multivariate normal density that whitens points by matrix products.

    The Cholesky factor is inverted once, in place of a triangular solve for every point: on a
    processor, XLA runs batches of such solves, and their gradients even more so, many times slower
    than batches of products.
    """

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """Log density, of the broadcast shape of points and batch."""
        num_features = self.event_shape[0]
        eye = jnp.broadcast_to(
            jnp.eye(num_features, dtype=self.scale_tril.dtype), self.scale_tril.shape
        )
        whitening = solve_triangular(self.scale_tril, eye, lower=True)
        white = jnp.einsum("...ij,...j->...i", whitening, value - self.loc)
        log_det = jnp.log(jnp.diagonal(self.scale_tril, axis1=-2, axis2=-1)).sum(axis=-1)
        return -0.5 * (white**2).sum(axis=-1) - log_det - 0.5 * num_features * jnp.log(2 * jnp.pi)
