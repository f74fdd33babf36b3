"""Density of rows whose features have a density by cluster, or a common one if not relevant."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ..missing import RealOrMissing
from .layout import Used
from .passes import (
    Salient,
    SalientMoments,
    gains_at_bounds,
    log_saliency,
    salient_densities,
    salient_moments,
)

__all__ = ["SalientNormal"]

_LOG_2PI = 1.8378770664093453


class SalientNormal(dist.Distribution):
    r"""Features with a probability of relevance each; the indicators of relevance are summed out.

    .. math:: p(x | z = k) = \prod_l [\rho_l \mathcal{N}(x_l | \mu_{kl}, \sigma^2_{kl})
              + (1 - \rho_l) \mathcal{N}(x_l | m_l, v_l)]

    (Law 2006, eq. 4.6). Missing values, NaN, are integrated out exactly: their factor is one.

    Parameters
    ----------
    features : Salient
        Means and variances in each cluster and common to all, and saliencies.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields: ClassVar[tuple[str, ...]] = ("features",)
    support = constraints.independent(RealOrMissing(), 1)

    def __init__(self, features: Salient, *, validate_args: bool | None = None) -> None:
        self.features = features
        shape = features.mean.shape
        super().__init__(shape[:-1], shape[-1:], validate_args=validate_args)

    def log_prob(self, value: ArrayLike) -> Array:
        """Log density, with the broadcast shape of rows and clusters."""
        own = self.features
        log_on, log_off = log_saliency(own.saliency)
        on = log_on + _log_normal(value, own.mean, own.variance)
        off = log_off + _log_normal(value, own.common_mean, own.common_variance)
        return jnp.logaddexp(on, off).sum(axis=-1)

    def relevance(self, value: Array, labels: Array) -> Array:
        """Probability that each value is relevant given the rows' clusters, with the shape of `value`."""
        own = self.features
        log_on, log_off = log_saliency(own.saliency)
        on = log_on + _log_normal(value, own.mean[labels], own.variance[labels])
        off = log_off + _log_normal(value, own.common_mean, own.common_variance)
        return jax.nn.sigmoid(on - off)

    def by_cluster(self, value: Array, used: Used | None = None) -> Array:
        """Log density of every row in every cluster, see `salient_densities`."""
        return salient_densities(value, self.features, used)

    def moments(
        self, value: Array, share: Array, about: Array, used: Used | None = None
    ) -> SalientMoments:
        """Expected statistics given the shares of the rows in the clusters, see `salient_moments`."""
        return salient_moments(value, share, self.features, about, used)

    def at_bounds(
        self, value: Array, log_share: Array, alone: SalientNormal, used: Used
    ) -> tuple[Array, Array]:
        """Change of the log likelihood at saliencies of zero and one, by feature; zero at saliency zero.

        See `gains_at_bounds`. A saliency of zero implies the common densities of `alone`.
        """
        own, other = self.features, alone.features

        def gains(one: tuple[Array, Salient, Array, Array]) -> Array:
            x, given, mean, variance = one
            common = _log_normal(x, given.common_mean, given.common_variance)
            apart = _log_normal(x, mean, variance)

            def within(cluster: Array) -> Array:
                return _log_normal(x, given.mean[cluster], given.variance[cluster])

            return gains_at_bounds(given.saliency, within, common, apart, log_share, used)

        by_feature = own._replace(mean=own.mean.T, variance=own.variance.T)
        table = jnp.asarray(value).T
        found = lax.map(gains, (table, by_feature, other.common_mean, other.common_variance))
        return found[:, 0], found[:, 1]

    @staticmethod
    def drawn_moments(value: Array, share: Array, relevant: Array, about: Array) -> SalientMoments:
        """Statistics given drawn indicators of relevant values."""
        return SalientMoments.of_drawn(value, share, relevant, about)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw a row of every cluster."""
        own = self.features
        key_on, key_value = jax.random.split(key)
        shape = (*sample_shape, *self.batch_shape, *self.event_shape)
        relevant = jax.random.uniform(key_on, shape) < own.saliency
        noise = jax.random.normal(key_value, shape)
        within = own.mean + jnp.sqrt(own.variance) * noise
        return jnp.where(relevant, within, own.common_mean + jnp.sqrt(own.common_variance) * noise)


def _log_normal(value: ArrayLike, mean: Array, variance: Array) -> Array:
    """Log density of values; zero for missing values."""
    known = ~jnp.isnan(value)
    square = (jnp.where(known, value, 0.0) - mean) ** 2 / variance
    return jnp.where(known, -0.5 * (_LOG_2PI + jnp.log(variance) + square), 0.0)
