"""Normal densities of many points."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from numpyro.distributions.util import validate_sample

__all__ = ["Gaussian", "IndependentNormals", "projected_gaussians", "whitening"]


class Gaussian(dist.MultivariateNormal):
    """Multivariate normal density that whitens points by matrix products.

    The Cholesky factor is inverted once, which replaces a triangular solve for every point. On a
    processor, XLA runs batches of such solves many times slower than batches of products; the same
    holds for gradients, even more so.
    """

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """Log density, of the broadcast shape of points and batch."""
        matrix, log_scale = whitening(self.scale_tril)
        value, batch = jnp.asarray(value), self.batch_shape
        if value.ndim == len(batch) + 2 and set(value.shape[1:-1]) <= {1}:
            # separate points and means make one large product; they are centred at the average of
            # the means, so that no digits are lost far from the origin (no density depends on it)
            middle = lax.stop_gradient(self.loc.reshape(-1, self.loc.shape[-1]).mean(axis=0))
            points = jnp.tensordot(value.reshape(-1, value.shape[-1]) - middle, matrix, (1, -1))
            means = jnp.squeeze(matrix @ (self.loc - middle)[..., None], -1)
            if points.ndim == 3 and points.shape[1] == 1:  # one covariance
                return log_scale - 0.5 * _squared_distances(points[:, 0], means)
            white = points - means
        else:
            white = jnp.einsum("...ij,...j->...i", matrix, value - self.loc)
        return log_scale - 0.5 * (white**2).sum(axis=-1)


class IndependentNormals(dist.Independent):
    """Normal densities of independent features, computed for all points at once.

    On a processor, sums over the last, short axis of (points, densities, features) dominate the
    time. Here points are the last axis, and gradients are matrix products.

    Parameters
    ----------
    loc, scale : array_like, shape (..., num_features)
    """

    pytree_data_fields = ("base_dist",)

    def __init__(
        self, loc: ArrayLike, scale: ArrayLike, *, validate_args: bool | None = None
    ) -> None:
        super().__init__(dist.Normal(loc, scale), 1, validate_args=validate_args)

    @validate_sample
    def log_prob(self, value: ArrayLike) -> Array:
        """Log density, of the broadcast shape of points and batch."""
        value, batch = jnp.asarray(value), self.batch_shape
        if value.ndim != len(batch) + 2 or not set(value.shape[1:-1]) <= {1}:
            return super().log_prob(value)
        num_features = self.event_shape[0]
        loc, scale = (
            each.reshape(-1, num_features) for each in (self.base_dist.loc, self.base_dist.scale)
        )
        distances = _scaled_distances(value.reshape(-1, num_features), loc, 1 / scale)
        log_scale = -jnp.log(scale).sum(axis=-1) - 0.5 * num_features * math.log(2 * math.pi)
        return (log_scale - 0.5 * distances).reshape(len(value), *batch)


def projected_gaussians(
    projection: Array, mean: Array, center: Array, whitening: Array
) -> Gaussian:
    r"""Gaussians with one covariance, whose means differ in a few linear features of whitened data.

    .. math:: y = W^\top (x - m), \qquad F^\top y \sim \mathcal N(u_j, I), \qquad
              P_\perp^\top y \sim \mathcal N(0, I)

    with :math:`P_\perp` an orthonormal basis of the orthogonal complement of the columns of F.

    Parameters
    ----------
    projection : Array, shape (num_features, num_extracted)
        F.
    mean : Array, shape (num_clusters, num_extracted)
        :math:`u_j`.
    center : Array, shape (num_features,)
        m.
    whitening : Array, shape (num_features, num_features)
        W.

    Returns
    -------
    Gaussian, batch_shape (num_clusters,)
        Distribution of the data x.
    """
    inner = projection.T @ projection
    back = jnp.linalg.solve(inner, projection.T)  # (extracted, features): inner^-1 F'
    precision = projection @ projection.T + jnp.eye(len(projection)) - projection @ back
    loc = center + jnp.linalg.solve(whitening.T, (mean @ back).T).T
    return Gaussian(loc, precision_matrix=whitening @ precision @ whitening.T)


@jax.custom_jvp
def _squared_distances(points: Array, means: Array) -> Array:
    """Squared distance of each point from each mean; gradients keep nothing else of that size."""
    return ((points[:, None] - means) ** 2).sum(axis=-1)


@_squared_distances.defjvp
def _(values: tuple[Array, Array], changes: tuple[Array, Array]) -> tuple[Array, Array]:
    (points, means), (moved, shifted) = values, changes
    own = (points * moved).sum(axis=-1)[:, None] + (means * shifted).sum(axis=-1)
    change = 2 * (own - moved @ means.T - points @ shifted.T)
    return _squared_distances(points, means), change


@jax.custom_jvp
def _scaled_distances(points: Array, means: Array, inverse: Array) -> Array:
    """Squared distance of each point from each mean, with features divided by the mean's scales."""
    gap = (points.T - means[:, :, None]) * inverse[:, :, None]
    return (gap**2).sum(axis=1).T


@partial(_scaled_distances.defjvp, symbolic_zeros=True)
def _(values: tuple[Array, ...], changes: tuple) -> tuple[Array, Array]:
    points, means, inverse = values
    moved, shifted, scaled = (
        jnp.zeros(change.shape, change.dtype) if isinstance(change, SymbolicZero) else change
        for change in changes
    )
    middle = lax.stop_gradient(points.mean(axis=0))  # as in `Gaussian`
    x, m, precision = points - middle, means - middle, inverse**2
    square, pull = 2 * inverse * scaled, precision * shifted
    linear = square * m + pull
    constant = (m * (linear + pull)).sum(axis=-1, keepdims=True)
    # one product; the features do not depend on the parameters, so that loops compute them once
    features = jnp.concatenate([x**2, x, jnp.ones_like(x[:, :1])], axis=1)
    change = features @ jnp.concatenate([square, -2 * linear, constant], axis=1).T
    if not isinstance(changes[0], SymbolicZero):
        change += 2 * ((x * moved) @ precision.T - moved @ (precision * m).T)
    return _scaled_distances(points, means, inverse), change


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
