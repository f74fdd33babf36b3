"""Normal-inverse-Wishart posteriors of Gaussians with separate covariances, or a common one."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import digamma, multigammaln
from numpyro.distributions import constraints

from .gaussian_prior import GaussianPrior
from .gaussians.gaussian_stats import Moments, gaussian_log_prob
from .shift_prior import ComponentPriors

__all__ = [
    "NormalInverseWishart",
    "divergence",
    "divergence_of_means",
    "draw",
    "expected_log_density",
    "log_density",
    "mode",
    "shrunk_moments",
    "spread_prior",
    "update",
]

_LOG_2 = 0.6931471805599453


class NormalInverseWishart(NamedTuple):
    """Means ~ N(mean, covariance / shrinkage), covariances ~ inverse Wishart(df, scale).

    For a common covariance `df` has shape () and `scale` shape (d, d).
    """

    mean: Array
    shrinkage: Array
    df: Array
    scale: Array

    @property
    def tril(self) -> Array:
        """Cholesky factors of the scales."""
        return jnp.linalg.cholesky(self.scale)

    @property
    def tied(self) -> bool:
        """Whether all means have one common covariance."""
        return self.scale.ndim == 2

    @property
    def log_det_precision(self) -> Array:
        """Expected log determinants of the precisions (Bishop 2006, eq. 10.65)."""
        size = self.scale.shape[-1]
        terms = digamma((self.df[..., None] - jnp.arange(size)) / 2).sum(axis=-1)
        return terms + size * _LOG_2 - _log_det(self.tril)

    @property
    def log_constant(self) -> Array:
        """Logarithms of the constants of the inverse Wishart densities."""
        size = self.scale.shape[-1]
        gamma = multigammaln(self.df / 2, size)
        return self.df / 2 * (_log_det(self.tril) - size * _LOG_2) - gamma


def spread_prior(
    num_features: int, prior: GaussianPrior | ComponentPriors | None
) -> dist.Distribution:
    """Prior of a covariance; None is flat."""
    if prior is None:
        shape = (num_features, num_features)
        return dist.ImproperUniform(constraints.positive_definite, (), shape)
    return dist.InverseWishart(prior.df, scale_matrix=jnp.asarray(prior.scale))


def update(
    moments: Moments,
    about: Array,
    prior: GaussianPrior | ComponentPriors | None,
    *,
    tied: bool = False,
) -> NormalInverseWishart:
    r"""Posterior given the members of each cluster (Murphy 2007, section 9).

    A flat prior of means and covariances is the limit of zero shrinkage, zero scale and
    :math:`\nu = -(d + 2)`, or :math:`-(d + 1 + K)` for one covariance of K means.

    Parameters
    ----------
    moments : Moments
        About `about`.
    about : Array, shape (num_clusters, num_features)
    prior : GaussianPrior, ComponentPriors or None
        None is flat.
    tied : bool
        Whether there is one covariance.
    """
    num_clusters, num_features = about.shape
    mean, spread = shrunk_moments(moments, about, prior)
    spread = (spread + jnp.swapaxes(spread, -1, -2)) / 2
    count = moments.total
    if tied:
        count, spread = count.sum(), spread.sum(axis=0)
    if prior is None:
        df = count - (num_features + 1.0 + (num_clusters if tied else 1))
        return NormalInverseWishart(mean, moments.total, df, spread)
    scale = jnp.asarray(prior.scale) + spread
    return NormalInverseWishart(mean, prior.shrinkage + moments.total, prior.df + count, scale)


def shrunk_moments(
    moments: Moments, mean: Array, prior: GaussianPrior | ComponentPriors | None
) -> tuple[Array, Array]:
    r"""Means shrunk towards that of the prior, and the terms that clusters add to its scale.

    Parameters
    ----------
    moments : Moments
        About `mean`.
    mean : Array, shape (num_clusters, num_features)
    prior : GaussianPrior, ComponentPriors or None
        None does not shrink.

    Returns
    -------
    new : Array, shape (num_clusters, num_features)
        :math:`m_k = (\sum_n r_{nk} x_n + \kappa m) / (n_k + \kappa)`.
    spread : Array, shape (num_clusters, num_features, num_features)
        :math:`\sum_n r_{nk} (x_n - m_k)(x_n - m_k)^\top + \kappa (m - m_k)(m - m_k)^\top`.
    """
    size = moments.total
    if prior is None:
        move = moments.first / jnp.maximum(size, jnp.finfo(mean.dtype).tiny)[:, None]
        spread = moments.second
    else:
        kappa, towards = jnp.asarray(prior.shrinkage)[..., None], jnp.asarray(prior.mean) - mean
        move = (moments.first + kappa * towards) / (size[:, None] + kappa)
        pull = towards - move
        spread = moments.second + kappa[..., None] * pull[:, :, None] * pull[:, None, :]
    cross = moments.first[:, :, None] * move[:, None, :]
    spread = spread - cross - jnp.swapaxes(cross, 1, 2)
    return mean + move, spread + size[:, None, None] * move[:, :, None] * move[:, None, :]


def mode(found: NormalInverseWishart) -> tuple[Array, Array]:
    """Joint mode of means and covariances."""
    num_clusters, num_features = found.mean.shape
    weight = found.df + num_features + 1.0 + (num_clusters if found.tied else 1)
    weight = jnp.maximum(weight, jnp.finfo(found.mean.dtype).tiny)
    sigma = found.scale / weight[..., None, None]
    return found.mean, (sigma + jnp.swapaxes(sigma, -1, -2)) / 2


def draw(rng_key: Array, found: NormalInverseWishart) -> tuple[Array, Array]:
    """Draw means and covariances."""
    key_spread, key_mean = jax.random.split(rng_key)
    tril = dist.InverseWishartCholesky(found.df, scale_tril=found.tril).sample(key_spread)
    noise = jax.random.normal(key_mean, found.mean.shape, found.mean.dtype)
    move = (tril @ noise[:, :, None])[:, :, 0] / jnp.sqrt(found.shrinkage)[:, None]
    return found.mean + move, tril @ jnp.swapaxes(tril, -1, -2)


def log_density(found: NormalInverseWishart, mean: Array, covariance: Array) -> Array:
    """Log density of means and covariances."""
    spread = dist.InverseWishart(found.df, scale_matrix=found.scale, validate_args=False)
    means = dist.MultivariateNormal(
        found.mean, covariance / found.shrinkage[:, None, None], validate_args=False
    )
    return spread.log_prob(covariance).sum() + means.log_prob(mean).sum()


def expected_log_density(found: NormalInverseWishart, x: Array) -> Array:
    """Expected log densities of points, shape (num_points, num_clusters).

    Bishop (2006), eqs. 10.64-10.65.
    """
    num_features = found.mean.shape[1]
    tril = found.tril / jnp.sqrt(found.df)[..., None, None]
    each = jnp.broadcast_to(tril, (*found.mean.shape, num_features))
    spread = found.log_det_precision + _log_det(tril) - num_features / found.shrinkage
    return gaussian_log_prob(x, found.mean, each) + spread / 2


def divergence(found: NormalInverseWishart, prior: GaussianPrior | ComponentPriors) -> Array:
    """Divergence from the prior, in nats."""
    scale = jnp.asarray(prior.scale, found.mean.dtype)
    before = NormalInverseWishart(found.mean, found.shrinkage, jnp.asarray(prior.df), scale)
    num_features = found.mean.shape[1]
    tril = jnp.broadcast_to(found.tril, (*found.mean.shape, num_features))
    df = jnp.broadcast_to(found.df, found.shrinkage.shape)
    apart = (found.mean - jnp.asarray(prior.mean))[:, :, None]
    distance = df * jnp.sum(solve_triangular(tril, apart, lower=True) ** 2, axis=(1, 2))
    inside = solve_triangular(
        found.tril, jnp.broadcast_to(before.tril, found.tril.shape), lower=True
    )
    trace = jnp.sum(inside**2, axis=(-1, -2))
    covariances = (
        found.log_constant
        - before.log_constant
        + (found.df - prior.df) / 2 * found.log_det_precision
        + found.df / 2 * (trace - num_features)
    )
    means = divergence_of_means(prior.shrinkage, found.shrinkage, distance, num_features)
    return covariances.sum() + means


def divergence_of_means(
    before: float | Array, after: Array, distance: Array, num_features: int
) -> Array:
    """Expected divergence of the means from their prior given the covariances.

    `before` and `after` are shrinkages; `distance` is the expected Mahalanobis distance of the
    centre from the prior's, squared.
    """
    ratio = before / after
    return jnp.sum(num_features * (ratio - 1.0 - jnp.log(ratio)) + before * distance) / 2


def _log_det(tril: Array) -> Array:
    """Log determinants of the matrices with these Cholesky factors."""
    return 2 * jnp.log(jnp.diagonal(tril, axis1=-2, axis2=-1)).sum(axis=-1)
