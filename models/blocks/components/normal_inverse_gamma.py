"""Normal-inverse-gamma posteriors of Gaussians with variances by feature, or one variance each."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import digamma, gammaln
from numpyro.distributions import constraints
from numpyro.distributions.util import validate_sample

from .gaussian_prior import GaussianPrior
from .gaussians.gaussian_stats import Moments
from .normal_inverse_wishart import divergence_of_means
from .shift_prior import ComponentPriors

__all__ = [
    "InverseGamma",
    "NormalInverseGamma",
    "divergence",
    "draw",
    "expected_log_density",
    "log_density",
    "mode",
    "spread_prior",
    "update",
]

_LOG_2PI = 1.8378770664093453


class InverseGamma(dist.InverseGamma):
    """The distribution of NumPyro, with a log density that squares no value: those of variances overflow."""

    @validate_sample
    def log_prob(self, value: Array, intermediates: Any = None) -> Array:
        """Log density."""
        shape, rate = self.concentration, self.rate
        return shape * jnp.log(rate) - gammaln(shape) - (shape + 1) * jnp.log(value) - rate / value


class NormalInverseGamma(NamedTuple):
    """Means ~ N(mean, variance / shrinkage), variances ~ inverse gamma(shape, rate).

    Variances have axes (cluster, feature); for spherical ones the feature axis has length 1.
    """

    mean: Array
    shrinkage: Array
    shape: Array
    rate: Array


def spread_prior(
    num_features: int, diagonal: bool, prior: GaussianPrior | ComponentPriors | None
) -> dist.Distribution:
    """Prior of the variances of a cluster; None is flat."""
    shape = (num_features,) if diagonal else ()
    if prior is None:
        support = constraints.independent(constraints.positive, len(shape))
        return dist.ImproperUniform(support, (), shape)
    rate = _rate(prior, spherical=not diagonal)
    rate = rate if diagonal else rate[..., 0]
    df = jnp.asarray(prior.variance_df)
    concentration = (df[..., None] if diagonal else df) / 2
    return InverseGamma(jnp.broadcast_to(concentration, rate.shape), rate).to_event(len(shape))


def _rate(prior: GaussianPrior | ComponentPriors, *, spherical: bool) -> Array:
    rate = jnp.diagonal(jnp.asarray(prior.scale), axis1=-2, axis2=-1) / 2
    return rate.mean(axis=-1, keepdims=True) if spherical else rate


def update(
    moments: Moments,
    about: Array,
    prior: GaussianPrior | ComponentPriors | None,
    *,
    spherical: bool,
) -> NormalInverseGamma:
    r"""Posterior given the members of each cluster (Murphy 2007, section 6).

    A flat prior of means and variances is the limit of zero shrinkage, zero rate and :math:`\nu =
    -3`, or :math:`\nu = -(d + 2)` for one variance of d features.

    Parameters
    ----------
    moments : Moments
        Moments about `about`; second moments are by feature, shape (num_clusters, num_features).
    about : Array, shape (num_features,)
    prior : GaussianPrior, ComponentPriors or None
        None is flat.
    spherical : bool
        Whether a cluster has one variance for all features.
    """
    size, first, squares = moments
    num_features = first.shape[1]
    shrinkage, centre = (0.0, 0.0) if prior is None else (prior.shrinkage, prior.mean - about)
    tiny = jnp.finfo(first.dtype).tiny
    kappa = jnp.asarray(shrinkage)[..., None]
    mean = (first + kappa * centre) / jnp.maximum(size[:, None] + kappa, tiny)
    spread = squares - 2 * mean * first + size[:, None] * mean**2 + kappa * (mean - centre) ** 2
    count, own = size, 1
    if spherical:
        count, own = num_features * size, num_features
        spread = spread.sum(axis=1, keepdims=True)
    df, rate = (
        (-(own + 2.0), 0.0)
        if prior is None
        else (prior.variance_df, _rate(prior, spherical=spherical))
    )
    shape = jnp.broadcast_to((df + count)[:, None] / 2, spread.shape)
    return NormalInverseGamma(mean + about, shrinkage + size, shape, rate + spread / 2)


def mode(found: NormalInverseGamma) -> tuple[Array, Array]:
    """Joint mode of means and variances."""
    own = found.mean.shape[1] // found.shape.shape[1]  # means that share a variance
    weight = 2 * found.shape + 2.0 + own
    return found.mean, 2 * found.rate / jnp.maximum(weight, jnp.finfo(found.mean.dtype).tiny)


def draw(rng_key: Array, found: NormalInverseGamma) -> tuple[Array, Array]:
    """Draw means and variances."""
    key_spread, key_mean = jax.random.split(rng_key)
    variance = InverseGamma(found.shape, found.rate).sample(key_spread)
    noise = jax.random.normal(key_mean, found.mean.shape, found.mean.dtype)
    return found.mean + noise * jnp.sqrt(variance / found.shrinkage[:, None]), variance


def log_density(found: NormalInverseGamma, mean: Array, variance: Array) -> Array:
    """Log density of means and variances."""
    deviation = jnp.sqrt(variance / found.shrinkage[:, None])
    means = dist.Normal(found.mean, deviation, validate_args=False)
    variances = InverseGamma(found.shape, found.rate, validate_args=False)
    return variances.log_prob(variance).sum() + means.log_prob(mean).sum()


def expected_log_density(found: NormalInverseGamma, x: Array) -> Array:
    """Expected log densities of points, shape (num_points, num_clusters)."""
    precision = jnp.broadcast_to(found.shape / found.rate, found.mean.shape)
    log_precision = digamma(found.shape) - jnp.log(found.rate)
    constant = jnp.broadcast_to(log_precision, found.mean.shape) - _LOG_2PI
    # squares about the data mean, which avoids cancellation in the product
    offset = x.mean(axis=0)
    x, mean = x - offset, found.mean - offset
    square = x**2 @ precision.T - 2 * x @ (precision * mean).T
    square = square + (precision * mean**2).sum(axis=1)
    spread = constant.sum(axis=1) - found.mean.shape[1] / found.shrinkage
    return (spread - square) / 2


def divergence(
    found: NormalInverseGamma, prior: GaussianPrior | ComponentPriors, *, spherical: bool
) -> Array:
    """Divergence from the prior, in nats."""
    rate = _rate(prior, spherical=spherical)
    df = jnp.broadcast_to(prior.variance_df, found.shrinkage.shape)[:, None]
    before = dist.Gamma(df / 2, jnp.broadcast_to(rate, found.rate.shape))
    variances = dist.kl_divergence(dist.Gamma(found.shape, found.rate), before).sum()
    precision = found.shape / found.rate
    distance = jnp.sum(precision * (found.mean - jnp.asarray(prior.mean)) ** 2, axis=1)
    num_features = found.mean.shape[1]
    return variances + divergence_of_means(prior.shrinkage, found.shrinkage, distance, num_features)
