"""Means and covariances of Gaussian components as one conjugate block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    IndependentTransform,
    Transform,
)

from ..block import Block, Observation
from ..collapsed import Collapsed
from ..mixtures.data_units import (
    Rescaled,
    data_units,
    refuse_constant,
    remark_on_dependent,
    remark_on_units,
)
from ..mixtures.linked_mixture import LinkedMixture
from . import normal_inverse_gamma, normal_inverse_wishart
from .few_points import few_points, held_by_gaussian_prior, lone_clusters
from .gaussian_prior import GaussianPrior
from .gaussian_starts import moments_of_partitions, scattered_moments
from .gaussians.gaussian import Gaussian, IndependentNormals
from .gaussians.gaussian_stats import Moments, gaussian_pass, weighted_moments
from .gaussians.linked_pass import linked_pass
from .gaussians.single_values import say_single_values, single_value_excess
from .shift_prior import ComponentPriors

__all__ = ["COVARIANCES", "GaussianComponents"]

COVARIANCES = ("full", "tied", "diagonal", "spherical")

_FOUND = {"log_weights", "log_classes"}
"""Log-factors of other blocks whose statistics the same pass computes with the moments."""

_FOUND_WITH_LINKS = {"log_weights", "pair_weights"}

_SINGULAR = 1e-10
"""A covariance counts as singular if its least eigenvalue, relative to the largest of all, is smaller."""


class GaussianComponents(Block):
    """Means and covariances under a `GaussianPrior`, or a flat prior.

    Parameters
    ----------
    shape : int or (int, int)
        Number of clusters; or the numbers of clusters and of components per cluster.
    num_features : int
    covariance : {"full", "tied", "diagonal", "spherical"}
        "tied" is one covariance for all clusters.
    prior : GaussianPrior, ComponentPriors or None
        None is an improper flat prior: maximum likelihood.
    names : mapping of str to str, optional
        Other names for the sites ``mean``, ``covariance`` and ``variance``.
    from_data : bool
        Whether `prior` is `GaussianPrior.empirical` of the data at hand.
    data : array_like, shape (num_points, num_features), optional
        Their location and spread are the units in which gradients and random walks move, so that
        results do not depend on the units of the features.
    plate : str
        Name of the axis of a single layer of Gaussians.
    one_unit : int
        Number of features, the first ones, that share a unit; see `kmeans_centres`.
    scattered : bool
        Whether runs also start from means far from those of a partition, and from wide covariances;
        see `scattered_centres`. For a single layer of Gaussians.
    """

    factor: ClassVar[str] = "unary"
    roles: ClassVar[tuple[str, ...]] = ("location", "spread")

    def __init__(
        self,
        shape: int | tuple[int, int],
        num_features: int,
        covariance: str,
        prior: GaussianPrior | ComponentPriors | None,
        names: Mapping[str, str] | None = None,
        *,
        from_data: bool = False,
        data: ArrayLike | None = None,
        plate: str = "clusters",
        one_unit: int = 0,
        scattered: bool = False,
    ) -> None:
        if not isinstance(covariance, str) or covariance not in COVARIANCES:
            raise ValueError(f"covariance = {covariance!r}; expected one of {COVARIANCES}")
        self.shape = tuple(np.atleast_1d(shape).tolist())
        self.num_features, self.covariance, self.prior = num_features, covariance, prior
        self.names = {name: name for name in ("mean", "covariance", "variance")} | dict(names or {})
        self.from_data, self.plate = from_data, plate
        self.one_unit, self.scattered = one_unit, scattered
        self.centre, self.unit = data_units(data, num_features)
        self.num_points = None if data is None else jnp.shape(data)[0]
        self.location: Array
        """Current means."""

    @property
    def num_cells(self) -> int:
        """Number of Gaussians."""
        return math.prod(self.shape)

    @property
    def _is_matrix(self) -> bool:
        return self.covariance in ("full", "tied")

    @property
    def _tied(self) -> bool:
        return self.covariance == "tied"

    @property
    def remedy(self) -> str:  # type: ignore[override]
        """What to do about a collapsed cluster; a proper prior keeps those of few points from it."""
        flat, several = self.prior is None, self.num_cells > 1
        options = {
            "prior='empirical'": flat,
            "fewer clusters": flat and several,
            "covariance='tied'": flat and several and not self._tied,
            "covariance='diagonal'": not flat and self._is_matrix,
            "a GaussianPrior of larger scale": not flat,
        }
        return self.offered("use", options)

    @property
    def of_dependent(self) -> str | None:  # type: ignore[override]
        """What to do about columns that depend on one another, which make covariance matrices singular."""
        options = {"prior='empirical'": self.prior is None, "covariance='diagonal'": True}
        return self.offered("use", options) if self._is_matrix else None

    def sample(self) -> dist.Distribution:
        """Sample means and covariances; return the components, batch shape `shape`."""
        if self._is_matrix:
            density = normal_inverse_wishart.spread_prior(self.num_features, self.prior)
            names: tuple[str, ...] = ("features", "features_1")
            if self._tied:
                spread = self.declare("spread", self.names["covariance"], density, names)
            else:
                with self._plates():
                    spread = self.declare("spread", self.names["covariance"], density, names)
            scale_tril = jnp.linalg.cholesky(spread)
        else:
            diagonal = self.covariance == "diagonal"
            density = normal_inverse_gamma.spread_prior(self.num_features, diagonal, self.prior)
            with self._plates():
                names = ("features",) if diagonal else ()
                spread = self.declare("spread", self.names["variance"], density, names)
            deviation = jnp.sqrt(spread if diagonal else spread[..., None])
        scale = scale_tril if self._is_matrix else deviation
        with self._plates():
            mean = self.declare(
                "location", self.names["mean"], self._mean_prior(scale), ("features",)
            )
        self.location = mean
        if self._is_matrix:
            return Gaussian(mean, scale_tril=scale_tril)
        return IndependentNormals(mean, jnp.broadcast_to(deviation, mean.shape))

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in units of the data."""
        square = self.unit**2
        if role == "location":
            units: Transform = IndependentTransform(AffineTransform(self.centre, self.unit), 1)
        elif self._is_matrix:
            units = Rescaled(self.unit)
        elif self.covariance == "diagonal":
            units = IndependentTransform(AffineTransform(0.0, square, constraints.positive), 1)
        else:
            units = AffineTransform(0.0, square.mean(), constraints.positive)
        return ComposeTransform([bijector, units])

    @contextmanager
    def _plates(self) -> Iterator[None]:
        """Plate of the clusters, and inside it the plate of their components if they have several."""
        if len(self.shape) == 1:
            with numpyro.plate(self.plate, self.shape[0]):
                yield
        else:
            with (
                numpyro.plate("clusters", self.shape[0], dim=-2),
                numpyro.plate("components", self.shape[1]),
            ):
                yield

    def _mean_prior(self, scale: Array) -> dist.Distribution:
        """Prior of the means given Cholesky factors, or deviations of the features."""
        if self.prior is None:
            return dist.ImproperUniform(constraints.real_vector, (), (self.num_features,))
        loc = jnp.asarray(self.prior.mean)
        root = jnp.sqrt(self.prior.shrinkage)
        if self._is_matrix:
            return dist.MultivariateNormal(loc, scale_tril=scale / root[..., None, None])
        scale = jnp.broadcast_to(scale / root[..., None], (*scale.shape[:-1], self.num_features))
        return dist.Normal(loc, scale).to_event(1)

    def statistics(self, observation: Observation) -> Moments:
        """Moments of each component; without a covariance matrix, second moments have no cross terms."""
        x = jnp.asarray(observation.value)
        if "moments" in observation.expected:
            return observation.expected["moments"]
        member = observation.expected["unary"].reshape(len(x), self.num_cells)
        if self._is_matrix:
            return weighted_moments(x, member, self.about)
        shifted = x - self.about
        return Moments(member.sum(axis=0), member.T @ shifted, member.T @ shifted**2)

    @property
    def about(self) -> Array:
        """Origin of the moments: the current means, or their average without covariance matrices."""
        means = self.location.reshape(self.num_cells, self.num_features)
        return means if self._is_matrix else means.mean(axis=0)

    def has_one_pass(self, fn: Collapsed, others: AbstractSet[str] = frozenset()) -> bool:
        """Whether points differ at most in links that the pass handles, and all Gaussians are full."""
        if not isinstance(fn, LinkedMixture) or fn.labels.weights_by_point or fn.groups is not None:
            return False
        graph = fn.labels.graph
        knows = not graph.num_links or (graph.has_lanes and fn.class_statements() is None)
        alike = isinstance(fn.components, Gaussian) and not fn.has_side_factors
        return knows and alike and others <= (_FOUND_WITH_LINKS if graph.num_links else _FOUND)

    def one_pass(self, fn: Any, value: Array) -> tuple[Array, dict[str, Any]]:
        """Moments of the components, in chunks of points; no responsibilities are kept."""
        return self._pass(fn, value, None)

    def batch_pass(self, fn: Any, value: Array, num_real: Array) -> tuple[Array, dict[str, Any]]:
        """Moments of the rows of a batch, without padding."""
        return self._pass(fn, value, num_real)

    def _pass(self, fn: Any, value: Array, num_real: Array | None) -> tuple[Array, dict[str, Any]]:
        density, labels = fn.components, fn.labels
        scale_tril = jnp.broadcast_to(density.scale_tril, (*density.loc.shape, self.num_features))
        if labels.graph.num_links:
            known = labels.graph, labels.log_weights, labels.pair_weights
            step = linked_pass(value, *known, density.loc, scale_tril, labels.inference)
            moments = self._kept(step.moments, density.loc, num_real)
            slopes = {"moments": moments, "log_weights": step.moments.total}
            return step.log_partition, slopes | {"pair_weights": step.agree}
        given = labels.log_weights, density.loc, scale_tril
        found = gaussian_pass(value, *given, statements=fn.class_statements(), num_real=num_real)
        moments = self._kept(found.moments, density.loc, num_real)
        slopes = {"moments": moments, "log_weights": found.moments.total}
        if found.class_counts is not None:
            slopes["log_classes"] = found.class_counts
        return found.log_likelihood, slopes

    def _kept(self, moments: Moments, mean: Array, num_real: Array | None) -> Moments:
        """Moments about the means; those of batches, which are summed, have one origin for all batches."""
        return moments if num_real is None else moments.moved(mean, self.about)

    def update(self, statistics: Moments, sources: Sequence[Collapsed]) -> Any:
        """Posterior given the members of each component (Murphy 2007, sections 6 and 9)."""
        if self._is_matrix:
            return normal_inverse_wishart.update(
                statistics, self.about, self.prior, tied=self._tied
            )
        return normal_inverse_gamma.update(
            statistics, self.about, self.prior, spherical=self.covariance == "spherical"
        )

    def mode(self, found: Any, values: Mapping[str, Array]) -> dict[str, Array]:
        """Joint mode of means and covariances."""
        family = normal_inverse_wishart if self._is_matrix else normal_inverse_gamma
        return self._shaped(*family.mode(found))

    def improper(self) -> str | None:
        """Say that there is no posterior under a flat prior."""
        if self.prior is not None:
            return None
        return (
            "prior='flat' leaves no posterior to draw from: an empty cluster could be anywhere; "
            "pass prior='empirical' or a GaussianPrior"
        )

    def draw(self, rng_key: Array, found: Any) -> dict[str, Array]:
        """Draw covariances, then means."""
        family = normal_inverse_wishart if self._is_matrix else normal_inverse_gamma
        return self._shaped(*family.draw(rng_key, found))

    def log_density(self, found: Any, values: Mapping[str, Array]) -> Array:
        """Log density of means and covariances."""
        mean = values["location"].reshape(self.num_cells, self.num_features)
        if self._is_matrix:
            spread = values["spread"].reshape(-1, self.num_features, self.num_features)
            spread = spread[0] if self._tied else spread
            return normal_inverse_wishart.log_density(found, mean, spread)
        spread = values["spread"].reshape(found.shape.shape)
        return normal_inverse_gamma.log_density(found, mean, spread)

    def expected_factors(self, found: Any, observation: Observation) -> dict[str, Array]:
        """Expected log densities of the points."""
        family = normal_inverse_wishart if self._is_matrix else normal_inverse_gamma
        x = jnp.asarray(observation.value)
        return {"unary": family.expected_log_density(found, x).reshape(len(x), *self.shape)}

    def divergence(self, found: Any) -> Array:
        """Divergence from the prior, in nats."""
        assert self.prior is not None  # refused by `obstacle`
        if self._is_matrix:
            return normal_inverse_wishart.divergence(found, self.prior)
        return normal_inverse_gamma.divergence(
            found, self.prior, spherical=self.covariance == "spherical"
        )

    def given_moments(self, mean: Array, covariance: Array) -> bool:
        """Use the mean of all data as origin of the moments, and set an empirical prior from all data."""
        self.location = jnp.broadcast_to(mean, self.location.shape)
        if self.from_data and self.prior is not None:
            assert not isinstance(self.prior, tuple)  # priors of components are given
            self.prior = type(self.prior).from_moments(mean, covariance, self.num_cells)
            return True
        return False

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Means and covariances of partitions of the rows; see `partitions`."""
        data = np.asarray(value, float).reshape(len(value), -1)
        if data.shape[1] != self.num_features:
            return {}
        if self.scattered:
            start = scattered_moments(data, self.shape[0], self.covariance, seed, num_starts)
            return dict(zip(self.roles, start, strict=True))
        # without a prior the likelihood is unbounded, and uneven starts lead to its singularities
        mean, spread = moments_of_partitions(
            data,
            self.shape,
            self.covariance,
            seed,
            num_starts,
            one_unit=self.one_unit,
            even=self.prior is None,
        )
        return {"location": mean.reshape(num_starts, *shapes["location"]), "spread": spread}

    @property
    def spread_shape(self) -> tuple[int, ...]:
        """Shape of the covariances, or variances."""
        size = (self.num_features,)
        if self._is_matrix:
            return size * 2 if self._tied else (*self.shape, *size, *size)
        return (*self.shape, *(size if self.covariance == "diagonal" else ()))

    def degenerate(self, values: Mapping[str, Any]) -> tuple[int, str] | None:
        """A cluster whose covariance is numerically singular, with each feature in its own units."""
        given = np.asarray(values["spread"])
        if self._is_matrix:
            variance = np.diagonal(given, axis1=-2, axis2=-1)
            unit = np.sqrt(_mean(variance, variance.shape[-1:]))
            spread = np.atleast_2d(np.linalg.eigvalsh(given / (unit[:, None] * unit)))
        else:
            each = self.covariance == "diagonal"
            spread = given / _mean(given, given.shape[-1:] if each else ())
        smallest = spread.reshape(len(spread), -1).min(axis=1)
        worst = int(np.argmin(smallest))
        if smallest[worst] >= _SINGULAR * spread.max():
            return None
        return worst, "its covariance is singular"

    def doubts(self, values: Mapping[str, Any], data: Any) -> tuple[float, str] | None:
        """Nats that clusters owe to having a single value of a feature; see `single_value_excess`."""
        nats = 0.0 if data is None else float(self._excess(values, data).sum())
        return (nats, "where clusters have a single value of a feature") if nats else None

    def _excess(self, values: Mapping[str, Any], data: Any) -> NDArray[np.float64]:
        """See `single_value_excess`; zero if one spread is that of all features."""
        mean, spread = (np.asarray(values[role]) for role in self.roles)
        shape = (self.num_cells, self.num_features)
        if self.covariance == "spherical":
            return np.zeros(shape)
        own = spread.reshape(-1, *shape[1:] * (2 if self._is_matrix else 1))
        own = np.broadcast_to(own, (self.num_cells, *own.shape[1:]))
        return single_value_excess(np.asarray(data, float), mean.reshape(shape), own)

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that there are few points for the spreads, or that a prior that was not given holds them."""
        if self.num_points is None or (self.prior is not None and not self.from_data):
            return None
        found = few_points(self.num_points, self.num_cells, self.num_features, self.covariance)
        single = np.shape(values["location"])[:2] == (1, 1)  # draws know how little they know
        apart = self.covariance == "full" and self.num_cells > 1
        if found is not None and (single or apart):
            return found
        weights = np.asarray(values.get("mixing_weights", ()))
        if len(self.shape) == 2 and weights.ndim == 3:
            weights = weights[..., None] * values.get("within_weights", np.ones(self.shape[1]))
        if weights.shape[2:] != self.shape:
            return None
        sizes = weights.mean(axis=(0, 1)) * self.num_points
        held = None
        if isinstance(self.prior, GaussianPrior):
            spread = np.asarray(values["spread"]).mean(axis=(0, 1))
            held = held_by_gaussian_prior(spread, sizes, self.prior, self.covariance)
        return held or (lone_clusters(sizes) if single else None)

    def remark_on_data(self, name: str, value: Any, draws: Mapping[str, Any]) -> str | None:
        """Say that spheres depend on the features' units, or that clusters hold one value of a feature each.

        If full covariances have a prior, say which features are functions of others.
        """
        if self.covariance == "spherical":
            return remark_on_units(name, np.asarray(value, float))
        if {"location", "spread"} <= draws.keys():
            means = {role: np.asarray(draws[role]).mean(axis=(0, 1)) for role in self.roles}
            if said := say_single_values(name, self._excess(means, value)):
                return said
        given = isinstance(self.prior, GaussianPrior)
        if self.covariance != "full" or self.num_cells == 1 or not given:
            return None
        return remark_on_dependent(name, np.asarray(value, float), self.num_cells)

    def check(self, name: str, value: Any) -> None:
        """Refuse constant features, which carry no information about clusters."""
        refuse_constant(name, np.asarray(value))

    def _shaped(self, mean: Array, spread: Array) -> dict[str, Array]:
        location = mean.reshape(*self.shape, self.num_features)
        return {"location": location, "spread": spread.reshape(self.spread_shape)}


def _mean(variance: Any, shape: tuple[int, ...]) -> Any:
    """Mean over all clusters; one where it is zero."""
    mean = variance.reshape(-1, *shape).mean(axis=0)
    return np.where(mean > 0, mean, 1.0)
