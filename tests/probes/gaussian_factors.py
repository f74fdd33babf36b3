"""A third kind of latent, as a user writes it: Gaussian factors of rows, integrated out."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from sidebayes.models.blocks.collapsed import Collapsed, NamedArray


class GaussianFactors(Collapsed):
    """Rows x ~ N(W f + b, diag(noise^2)), with f ~ N(0, I) integrated out."""

    support = constraints.real_matrix
    pytree_data_fields = ("loadings", "loc", "noise")
    pytree_aux_fields = ("num_units",)

    def __init__(self, num_rows, loadings, loc, noise):
        self.num_units, self.loadings, self.loc, self.noise = num_rows, loadings, loc, noise
        super().__init__(event_shape=(num_rows, len(loc)), validate_args=False)

    def log_factors(self, value):
        scaled = self.loadings / self.noise[:, None] ** 2
        precision = jnp.eye(scaled.shape[1]) + scaled.T @ self.loadings
        rows = dist.Normal(self.loc, self.noise).log_prob(value).sum(axis=1)
        half = jnp.broadcast_to(-0.5 * precision, (len(value), *precision.shape))
        return {"precision": half, "shift": (value - self.loc) @ scaled, "constant": rows}

    def _moments(self, factors):
        covariance = jnp.linalg.inv(-2 * factors["precision"])
        return jnp.einsum("nij,nj->ni", covariance, factors["shift"]), covariance

    def _terms(self, factors):
        mean, covariance = self._moments(factors)
        fit = (mean * factors["shift"]).sum(axis=1) + jnp.linalg.slogdet(covariance)[1]
        return factors["constant"] + 0.5 * fit

    def log_partition(self, factors):
        return self._terms(factors).sum()

    def by_unit(self, value):
        return self._terms(self.log_factors(value))

    def posterior(self, value):
        mean, covariance = self._moments(self.log_factors(value))
        axes = "points", "factor", "factor_1"
        return {
            "factors": NamedArray(axes[:2], mean),
            "factors_covariance": NamedArray(axes, covariance),
        }

    def draw(self, rng_key, value):
        return dist.MultivariateNormal(*self._moments(self.log_factors(value))).sample(rng_key)

    def statistic(self, latent):
        square = latent[:, :, None] * latent[:, None, :]
        return {"precision": square, "shift": latent, "constant": jnp.ones(len(latent))}

    def mode(self, value):
        return self._moments(self.log_factors(value))[0]

    def draw_data(self, rng_key, fitted=None):
        keys = jax.random.split(rng_key)
        latent = jax.random.normal(keys[0], (self.num_units, self.loadings.shape[1]))
        noise = self.noise * jax.random.normal(keys[1], self.event_shape)
        return self.loc + latent @ self.loadings.T + noise


def factor_analysis(x: Annotated[ArrayLike, "rows features"], *, num_factors: int):
    """Factor analysis."""
    size = x.shape[1]
    loc = numpyro.sample("loc", dist.Normal(0.0, 10.0).expand([size]).to_event(1))
    shape = [size, num_factors]
    loadings = numpyro.sample("loadings", dist.Normal(0.0, 3.0).expand(shape).to_event(2))
    noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0).expand([size]).to_event(1))
    numpyro.sample("x", GaussianFactors(len(x), loadings, loc, noise), obs=x)
