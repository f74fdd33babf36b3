r"""Conjugate blocks of Gaussian mixtures with linked labels.

Each block has one update, from sufficient statistics of the labels. Statistics of labels that were
drawn make the full conditional of Gibbs sampling; expected ones the best factor of coordinate ascent
(Bishop 2006, section 10.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import digamma, multigammaln
from jax.typing import ArrayLike
from sidebayes.models.blocks.approximate import Inference
from sidebayes.models.blocks.components import GaussianPrior, resolve_prior
from sidebayes.models.blocks.label_graph import LabelGraph, as_label_graph
from sidebayes.models.ppc import FLIP_RATE_PRIOR

from .engines.base import Block, Conjugacy
from .engines.gaussian_stats import gaussian_log_prob, weighted_moments
from .ppc import shrunk_moments, shrunk_squares, weighted_squares, weights_are_free

__all__ = [
    "BetaFlipRate",
    "DirichletWeights",
    "NormalInverseGamma",
    "NormalInverseWishart",
    "constrained_em_conjugacy",
    "ppc_conjugacy",
]

_LOG_2, _LOG_2PI = 0.6931471805599453, 1.8378770664093453


def ppc_conjugacy(
    *,
    num_clusters: int,
    covariance: str = "full",
    prior: str | GaussianPrior = "empirical",
    component: Callable[[], dist.Distribution] | None = None,
    concentration: float = 1.0,
    weights: ArrayLike | str | None = None,
    reading: str = "field",
    flip_rate: dist.Distribution | str | None = None,
    sampling: str = "points",
    inference: str | Inference = "exact",
    num_points: int | None = None,
) -> Callable[[tuple], Conjugacy]:
    """Conjugate blocks of `gmm` and `ppc`, as a function of data and links.

    Parameters are the model's own options. Gaussian components are always conjugate, a flip rate
    under a Beta prior. Mixing weights are conjugate where links are statements, where there are
    none, and where chunklets are drawn as wholes without links between them; in any other field
    the partition function of the links depends on them.
    """
    return partial(
        _conjugacy,
        num_clusters=num_clusters,
        covariance=covariance,
        prior=prior,
        gaussian=component is None,
        concentration=concentration,
        learned=weights is None,
        reading=reading,
        flip_rate=flip_rate,
        sampling=sampling,
    )


def constrained_em_conjugacy(
    *, sampling: str = "chunklets", **options: Any
) -> Callable[[tuple], Conjugacy]:
    """Blocks of `constrained_em`: those of `ppc`, with the model's own default of `sampling`."""
    return ppc_conjugacy(sampling=sampling, **options)


def _conjugacy(
    args: tuple,
    *,
    num_clusters: int,
    covariance: str,
    prior: str | GaussianPrior,
    gaussian: bool,
    concentration: float,
    learned: bool,
    reading: str,
    flip_rate: dist.Distribution | str | None,
    sampling: str,
) -> Conjugacy:
    x = jnp.asarray(args[0])
    graph = as_label_graph(args[1] if len(args) > 1 else None, x.shape[0])
    blocks: list[Block] = []
    lacking = []
    if not gaussian:
        lacking.append("component= is a density of your own")
    else:
        known = resolve_prior(prior, x, num_clusters)
        if known is None:
            raise ValueError(
                "prior='flat' leaves no posterior to draw from: an empty cluster could be anywhere; "
                "pass prior='empirical' or a GaussianPrior"
            )
        wide = covariance in ("full", "tied")
        blocks.append((NormalInverseWishart if wide else NormalInverseGamma)(known, covariance))
    if learned and weights_are_free(graph, reading, sampling):
        blocks.append(DirichletWeights(concentration, num_clusters))
    elif learned:
        lacking.append(
            "the partition function of links under reading='field' depends on the mixing weights: "
            "pass reading='relation' or weights='uniform'"
        )
    beta = dist.Beta(*FLIP_RATE_PRIOR) if flip_rate == "learned" else flip_rate
    if isinstance(beta, dist.Beta):
        blocks.append(BetaFlipRate(beta, graph))
    elif beta is not None:
        lacking.append("flip_rate= is no Beta distribution")
    return Conjugacy(tuple(blocks), tuple(lacking))


@dataclass(frozen=True)
class DirichletWeights:
    """Mixing weights under a symmetric Dirichlet prior; found is the vector of concentrations."""

    concentration: float
    num_clusters: int
    sites: ClassVar[tuple[str, ...]] = ("weights",)

    def update(self, posterior: Mapping[str, Any], args: tuple) -> Array:
        """Add the counts of points, or of chunklets by the sampling assumption."""
        return self.concentration + posterior["x"]["log_weights"]

    def sample(self, rng_key: Array, found: Array) -> dict[str, Array]:
        """Draw mixing weights, none exactly zero."""
        drawn = dist.Dirichlet(found).sample(rng_key)
        return {"weights": jnp.maximum(drawn, jnp.finfo(drawn.dtype).tiny)}

    def log_density(self, found: Array, values: Mapping[str, Array]) -> Array:
        """Log density of mixing weights."""
        return dist.Dirichlet(found).log_prob(values["weights"])

    def expected_factors(self, found: Array, args: tuple) -> dict[str, Array]:
        """Expected log weights (Bishop 2006, eq. 10.66)."""
        return {"log_weights": digamma(found) - digamma(found.sum())}

    def divergence(self, found: Array) -> Array:
        """Divergence from the prior, in nats."""
        prior = dist.Dirichlet(jnp.full(self.num_clusters, 1.0 * self.concentration))
        return dist.kl_divergence(dist.Dirichlet(found), prior)


@dataclass(frozen=True)
class BetaFlipRate:
    """Flip rate of soft statements under a Beta prior; found is (wrong, right) with the prior's."""

    prior: dist.Beta
    graph: LabelGraph
    sites: ClassVar[tuple[str, ...]] = ("flip_rate",)

    @property
    def _must(self) -> Array:
        return jnp.asarray(self.graph.pair_weights) > 0

    @property
    def _soft(self) -> Array:
        return ~jnp.isinf(jnp.asarray(self.graph.pair_weights))

    def update(self, posterior: Mapping[str, Any], args: tuple) -> tuple[Array, Array]:
        """Count statements that are wrong and right about the labels."""
        agree = posterior["x"]["pair_weights"]
        wrong = jnp.sum(jnp.where(self._must, 1.0 - agree, agree), where=self._soft)
        right = self._soft.sum() - wrong
        return self.prior.concentration1 + wrong, self.prior.concentration0 + right

    def sample(self, rng_key: Array, found: tuple[Array, Array]) -> dict[str, Array]:
        """Draw a flip rate, inside (0, 1)."""
        drawn = dist.Beta(*found).sample(rng_key)
        limits = jnp.finfo(drawn.dtype)
        return {"flip_rate": jnp.clip(drawn, limits.tiny, 1.0 - limits.epsneg)}

    def log_density(self, found: tuple[Array, Array], values: Mapping[str, Array]) -> Array:
        """Log density of a flip rate."""
        return dist.Beta(*found).log_prob(values["flip_rate"])

    def expected_factors(self, found: tuple[Array, Array], args: tuple) -> dict[str, Array]:
        """Expected log-odds of the statements, and log probability of those that disagree."""
        wrong, right = (digamma(a) - digamma(found[0] + found[1]) for a in found)
        apart = jnp.where(self._must, wrong, right)
        return {
            "pair_weights": jnp.where(self._must, right - wrong, wrong - right),
            "log_normalizer": -jnp.sum(apart, where=self._soft),
        }

    def divergence(self, found: tuple[Array, Array]) -> Array:
        """Divergence from the prior, in nats."""
        return dist.kl_divergence(dist.Beta(*found), self.prior)


class _Wishart(NamedTuple):
    """Means ~ N(mean, covariance / shrinkage), covariances ~ inverse Wishart(df, scale)."""

    mean: Array
    shrinkage: Array
    df: Array
    scale: Array

    @property
    def tril(self) -> Array:
        """Cholesky factors of the scales."""
        return jnp.linalg.cholesky(self.scale)

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


@dataclass(frozen=True)
class NormalInverseWishart:
    """Means and full or tied covariances under a `GaussianPrior`."""

    prior: GaussianPrior
    covariance: str
    sites: ClassVar[tuple[str, ...]] = ("covariance", "mean")

    def update(self, posterior: Mapping[str, Any], args: tuple) -> _Wishart:
        """Posterior given the members of each cluster (Murphy 2007, section 9)."""
        x, member = args[0], posterior["x"]["unary"]
        size = member.sum(axis=0)
        about = member.T @ x / jnp.maximum(size, jnp.finfo(x.dtype).tiny)[:, None]
        mean, spread = shrunk_moments(weighted_moments(x, member, about), about, self.prior)
        if self.covariance == "tied":
            count, spread = size.sum(), spread.sum(axis=0)
        else:
            count = size
        scale = self.prior.scale + (spread + jnp.swapaxes(spread, -1, -2)) / 2
        return _Wishart(mean, self.prior.shrinkage + size, self.prior.df + count, scale)

    def sample(self, rng_key: Array, found: _Wishart) -> dict[str, Array]:
        """Draw covariances, then means."""
        key_spread, key_mean = jax.random.split(rng_key)
        tril = dist.InverseWishartCholesky(found.df, scale_tril=found.tril).sample(key_spread)
        noise = jax.random.normal(key_mean, found.mean.shape, found.mean.dtype)
        move = (tril @ noise[:, :, None])[:, :, 0] / jnp.sqrt(found.shrinkage)[:, None]
        return {"covariance": tril @ jnp.swapaxes(tril, -1, -2), "mean": found.mean + move}

    def log_density(self, found: _Wishart, values: Mapping[str, Array]) -> Array:
        """Log density of covariances and means."""
        spread = dist.InverseWishart(found.df, scale_matrix=found.scale)
        covariance = values["covariance"] / found.shrinkage[:, None, None]
        means = dist.MultivariateNormal(found.mean, covariance)
        covariances = spread.log_prob(values["covariance"]).sum()
        return covariances + means.log_prob(values["mean"]).sum()

    def expected_factors(self, found: _Wishart, args: tuple) -> dict[str, Array]:
        """Expected log densities of the points (Bishop 2006, eqs. 10.64-10.65)."""
        num_features = found.mean.shape[1]
        tril = found.tril / jnp.sqrt(found.df)[..., None, None]
        at_mean = gaussian_log_prob(
            args[0], found.mean, jnp.broadcast_to(tril, (*found.mean.shape, num_features))
        )
        spread = found.log_det_precision + _log_det(tril) - num_features / found.shrinkage
        return {"unary": at_mean + spread / 2}

    def divergence(self, found: _Wishart) -> Array:
        """Divergence from the prior, in nats."""
        prior = self.prior
        scale = jnp.asarray(prior.scale, found.mean.dtype)
        before = _Wishart(found.mean, found.shrinkage, jnp.asarray(prior.df), scale)
        num_features = found.mean.shape[1]
        tril = jnp.broadcast_to(found.tril, (*found.mean.shape, num_features))
        df = jnp.broadcast_to(found.df, found.shrinkage.shape)
        offset = solve_triangular(tril, (found.mean - prior.mean)[:, :, None], lower=True)
        distance = df * jnp.sum(offset**2, axis=(1, 2))
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
        means = _divergence_of_means(prior.shrinkage, found.shrinkage, distance, num_features)
        return covariances.sum() + means


class _Gamma(NamedTuple):
    """Means ~ N(mean, variance / shrinkage), variances ~ inverse gamma(shape, rate)."""

    mean: Array
    shrinkage: Array
    shape: Array
    rate: Array


@dataclass(frozen=True)
class NormalInverseGamma:
    """Means and diagonal or spherical variances under a `GaussianPrior`.

    Variances have axes (cluster, feature); the feature axis of a spherical one has length 1.
    """

    prior: GaussianPrior
    covariance: str
    sites: ClassVar[tuple[str, ...]] = ("variance", "mean")

    @property
    def _rate(self) -> Array:
        rate = jnp.diagonal(jnp.asarray(self.prior.scale)) / 2
        return rate if self.covariance == "diagonal" else rate.mean(keepdims=True)

    def update(self, posterior: Mapping[str, Any], args: tuple) -> _Gamma:
        """Posterior given the members of each cluster (Murphy 2007, section 6)."""
        x, member = args[0], posterior["x"]["unary"]
        size, first, squares, about = weighted_squares(x, member)
        mean, spread = shrunk_squares(size, first, squares, about, self.prior)
        count = size
        if self.covariance == "spherical":
            count, spread = x.shape[1] * size, spread.sum(axis=1, keepdims=True)
        shape = jnp.broadcast_to((self.prior.df + count)[:, None] / 2, spread.shape)
        return _Gamma(mean, self.prior.shrinkage + size, shape, self._rate + spread / 2)

    def sample(self, rng_key: Array, found: _Gamma) -> dict[str, Array]:
        """Draw variances, then means."""
        key_spread, key_mean = jax.random.split(rng_key)
        variance = dist.InverseGamma(found.shape, found.rate).sample(key_spread)
        noise = jax.random.normal(key_mean, found.mean.shape, found.mean.dtype)
        mean = found.mean + noise * jnp.sqrt(variance / found.shrinkage[:, None])
        return {
            "variance": variance if self.covariance == "diagonal" else variance[:, 0],
            "mean": mean,
        }

    def log_density(self, found: _Gamma, values: Mapping[str, Array]) -> Array:
        """Log density of variances and means."""
        variance = jnp.reshape(values["variance"], found.shape.shape)
        means = dist.Normal(found.mean, jnp.sqrt(variance / found.shrinkage[:, None]))
        variances = dist.InverseGamma(found.shape, found.rate).log_prob(variance).sum()
        return variances + means.log_prob(values["mean"]).sum()

    def expected_factors(self, found: _Gamma, args: tuple) -> dict[str, Array]:
        """Expected log densities of the points."""
        precision = jnp.broadcast_to(found.shape / found.rate, found.mean.shape)
        log_precision = digamma(found.shape) - jnp.log(found.rate)
        constant = jnp.broadcast_to(log_precision, found.mean.shape) - _LOG_2PI
        # squares about the data mean, so that the product does not cancel
        offset = args[0].mean(axis=0)
        x, mean = args[0] - offset, found.mean - offset
        square = x**2 @ precision.T - 2 * x @ (precision * mean).T
        square = square + (precision * mean**2).sum(axis=1)
        spread = constant.sum(axis=1) - found.mean.shape[1] / found.shrinkage
        return {"unary": (spread - square) / 2}

    def divergence(self, found: _Gamma) -> Array:
        """Divergence from the prior, in nats."""
        prior = self.prior
        before = dist.Gamma(prior.df / 2, jnp.broadcast_to(self._rate, found.rate.shape))
        variances = dist.kl_divergence(dist.Gamma(found.shape, found.rate), before).sum()
        precision = found.shape / found.rate
        distance = jnp.sum(precision * (found.mean - prior.mean) ** 2, axis=1)
        num_features = found.mean.shape[1]
        return variances + _divergence_of_means(
            prior.shrinkage, found.shrinkage, distance, num_features
        )


def _log_det(tril: Array) -> Array:
    """Log determinants of what the Cholesky factors are of."""
    return 2 * jnp.log(jnp.diagonal(tril, axis1=-2, axis2=-1)).sum(axis=-1)


def _divergence_of_means(before: float, after: Array, distance: Array, num_features: int) -> Array:
    """Expected divergence of the means from their prior given the covariances.

    `before` and `after` are shrinkages; `distance` is the expected Mahalanobis distance of the
    centre from the prior's, squared.
    """
    ratio = before / after
    return jnp.sum(num_features * (ratio - 1.0 - jnp.log(ratio)) + before * distance) / 2
