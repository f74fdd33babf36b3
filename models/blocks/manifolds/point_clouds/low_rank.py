"""Gaussian components whose covariance is of low rank plus a multiple of the identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    IndependentTransform,
    Transform,
)

from sidebayes.common.fields import Range, check_integer, check_number
from sidebayes.common.magnitudes import shown

from ...block import Block, Observation
from ...collapsed import Collapsed
from ...components.gaussians.gaussian_stats import Moments, weighted_moments
from ...components.partition_starts import cell_moments, partitions

__all__ = ["WEAK_PRIOR", "LowRankComponents", "LowRankPrior"]

_RANK = 3
"""Number of leading directions, unless fewer are possible."""

_REST = 0.05
"""Share of the variance that the prior expects beyond the leading directions."""

_ROUNDS = 20
"""Maximum number of rounds over eigenvalues and remaining variance; usually one round suffices."""


@dataclass(frozen=True)
class LowRankPrior:
    r"""Prior of means and covariances, determined by one number: the radius R of the cloud of points.

    .. math:: \mu \sim N(0, \tfrac{R^2}{d} I), \quad W_{ij} \sim N(0, \tfrac{R^2}{d r}), \quad
              v \sim \text{InvGamma}(2, \tfrac{R^2}{20 d})

    in d dimensions with r directions: points are expected within R of zero, and a twentieth of their
    variance beyond the leading directions.

    Parameters
    ----------
    radius : float
        R, positive, in units of the data.
    """

    radius: float | Array

    def __post_init__(self) -> None:
        if not isinstance(self.radius, jax.Array):
            check_number("LowRankPrior(radius)", self.radius, Range(above=0))


WEAK_PRIOR = LowRankPrior(0.2)
"""Default prior for coordinates of shapes, which are angles."""


class LowRankComponents(Block):
    r"""Means and covariances :math:`W W^\top + v I` of components, where W has few columns.

    The columns of W are identified up to a rotation. Given the moments of a component the optimal
    mean, W and v are in closed form: the eigenvectors of the scatter with the largest eigenvalues
    :math:`\lambda`, with shrunk variances :math:`c = \lambda` in their directions (Tipping and
    Bishop 1999, with the prior).

    Parameters
    ----------
    num_clusters, num_features : int
    rank : int or None
        Number of columns of W, below the number of features; None for 3, or the maximum if smaller.
    prior : LowRankPrior
    """

    factor: ClassVar[str] = "unary"
    roles: ClassVar[tuple[str, ...]] = ("location", "loadings", "spread")

    def __init__(
        self, num_clusters: int, num_features: int, rank: int | None, prior: LowRankPrior
    ) -> None:
        if not isinstance(prior, LowRankPrior):
            raise TypeError(
                f"prior = {shown(prior)}; expected a LowRankPrior, such as sidebayes.LowRankPrior(0.2), "
                "whose radius is in units of the data; coordinates of shapes are angles"
            )
        self.num_clusters, self.num_features = num_clusters, num_features
        if num_features == 1:
            raise ValueError(
                "chart has 1 direction, and a covariance of low rank needs 2: one that leads, and one beside "
                "it; give num_modes=2 or more to sidebayes.register_points or shape_chart"
            )
        wanted = min(_RANK, num_features - 1) if rank is None else rank
        self.rank = check_integer("rank", wanted, 1, num_features)
        self.prior = prior
        self.location: Array
        """Current means."""

    @property
    def _variance(self) -> Any:
        """Prior variance of a coordinate."""
        return self.prior.radius**2 / self.num_features

    def sample(self) -> dist.Distribution:
        """Sample means and covariances; return the components, batch shape (num_clusters,)."""
        deviation = jnp.sqrt(self._variance)
        size = self.num_features
        with numpyro.plate("clusters", self.num_clusters):
            normal = dist.Normal(0.0, deviation).expand([size]).to_event(1)
            mean = self.declare("location", "mean", normal, ("features",))
            normal = dist.Normal(0.0, deviation / np.sqrt(self.rank))
            loadings = self.declare(
                "loadings",
                "loadings",
                normal.expand([size, self.rank]).to_event(2),
                ("features", "factors"),
            )
            inverse = dist.InverseGamma(2.0, _REST * self._variance)
            variance = self.declare("spread", "variance", inverse)
        self.location = mean
        return dist.LowRankMultivariateNormal(
            mean, loadings, jnp.broadcast_to(variance[:, None], mean.shape)
        )

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in units of the data."""
        if role == "spread":
            units: Transform = AffineTransform(0.0, self._variance, constraints.positive)
        else:
            rank = 1 if role == "location" else 2
            units = IndependentTransform(AffineTransform(0.0, jnp.sqrt(self._variance)), rank)
        return ComposeTransform([bijector, units])

    def statistics(self, observation: Observation) -> Moments:
        """Moments of each component about its current mean."""
        x = jnp.asarray(observation.value)
        return weighted_moments(x, observation.expected["unary"], self.location)

    def update(self, statistics: Moments, sources: Sequence[Collapsed]) -> Moments:
        """Return the moments unchanged: `mode` increases the density of the sites given them."""
        return statistics

    def mode(self, found: Moments, values: Mapping[str, Array]) -> dict[str, Array]:
        """Optimal means given the current covariances, then optimal covariances given the means."""
        mean, loadings, variance = jax.vmap(self._raised)(
            found,
            self.location,
            values["location"],
            values["loadings"],
            values["spread"],
        )
        return {"location": mean, "loadings": loadings, "spread": variance}

    def _raised(
        self, found: Moments, about: Array, mean: Array, loadings: Array, variance: Array
    ) -> tuple[Array, Array, Array]:
        """Updated mean, loadings and variance of one component."""
        total, first, second = found
        size, eye = self.num_features, jnp.eye(self.num_features)
        covariance = loadings @ loadings.T + variance * eye
        # (n / C + 1 / t) m = sum x / C, multiplied by C
        system = total * eye + covariance / self._variance
        mean = jnp.linalg.solve(system, first + total * about)
        shift = mean - about
        crossed = jnp.outer(first, shift)
        scatter = second - crossed - crossed.T + total * jnp.outer(shift, shift)
        sums, vectors = jnp.linalg.eigh((scatter + scatter.T) / 2)
        sums = jnp.clip(sums[::-1], 0.0)
        leading, rest = sums[: self.rank], sums[self.rank :].sum()
        # along a direction of W: n (log c + s / (n c)) + (c - v) / t, with c = v + |w|^2, is least at
        width = self._variance / self.rank
        best = 2 * leading / (total + jnp.sqrt(total**2 + 4 * leading / width))

        def settle(_: Any, variance: Array) -> Array:
            active = best > variance
            # 0 = A v^2 - B v + C: of active directions, the others, and the prior InvGamma(2, b)
            a = active.sum() / width
            b = total * (size - active.sum()) + 6.0
            c = rest + jnp.where(active, 0.0, leading).sum() + 2 * _REST * self._variance
            return 2 * c / (b + jnp.sqrt(jnp.clip(b**2 - 4 * a * c, 0.0)))

        variance = jax.lax.fori_loop(0, _ROUNDS, settle, variance)
        length = jnp.sqrt(jnp.clip(best - variance, 0.0))
        return mean, vectors[:, ::-1][:, : self.rank] * length, variance

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Means and covariances of partitions of the rows; see `partitions`."""
        data = np.asarray(value, float)
        if data.ndim != 2 or data.shape[1] != self.num_features:
            return {}
        found = partitions(data, self.num_clusters, seed, num_starts, one_unit=data.shape[1])
        mean, covariance = cell_moments(found, self.num_clusters)
        sizes, vectors = np.linalg.eigh(covariance)
        rest = sizes[..., : -self.rank].mean(axis=-1)
        floor = _REST / 10 * (data**2).mean() + 1e-12
        rest = np.maximum(rest, floor)
        lengths = np.sqrt(np.maximum(sizes[..., : -self.rank - 1 : -1] - rest[..., None], floor))
        leading = vectors[..., : -self.rank - 1 : -1]
        return {"location": mean, "loadings": leading * lengths[..., None, :], "spread": rest}
