"""Densities by cluster of tables with normal features, counts, categories and ordered levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform

from ..block import Augmented, Block, Observation
from ..block_facts import TakesMissing
from ..collapsed import Collapsed
from ..components.gaussian_prior import GaussianPrior
from .feature_block import SalientFeatures
from .kinds import Columns, Kind
from .message_length import structure_length
from .passes import Salient
from .repeated import look_at
from .saliencies import (
    draw_saliency,
    known_moments,
    saliency_mode,
    saliency_prior,
    saliency_remark,
    two_modes_remark,
    two_positive,
)
from .salient_mixed import MixedMoments, SalientMixed

__all__ = ["MixedFeatures"]

_LEAST_MEAN = 1e-10
"""Least mean of a count, if all known values are zero."""


class _Found(NamedTuple):
    """Posteriors of normal densities, of every other kind (common ones last), and of saliencies."""

    normal: Any
    kinds: tuple[dist.Distribution, ...]
    on: Array
    off: Array


class MixedFeatures(Block, Augmented, TakesMissing):
    r"""`SalientFeatures` of tables of which some features are counts, categories or ordered levels.

    .. math:: \lambda_{kl} \sim \text{Gamma}(1, 1 / \bar x_l), \qquad
              p_{kl} \sim \text{Dirichlet}(1, \dots, 1) \text{ or } \text{Beta}(1, 1)

    for the rates of counts, whose prior is exponential with the mean of the data, and for the probabilities
    of categories and of ordered levels. The level of an ordered feature is binomial.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
        Levels are coded 0, 1, ... unless `kinds` names their values; NaN is a missing value.
    num_clusters : int
    prior : "empirical" or GaussianPrior
        Prior of the normal features, see `SalientFeatures`.
    prior_of_saliency : (float, float) or None
        As `saliency_prior` of `SalientFeatures`.
    kinds : sequence of str
        For each feature, "normal", "count", "category:C" or "ordered:C" with C levels, or
        "category:a,b" with the values of its levels.
    """

    factor: ClassVar[str] = "unary"
    remedy: str = "use fewer clusters"

    def __init__(
        self,
        x: ArrayLike | None,
        num_clusters: int,
        prior: str | GaussianPrior,
        prior_of_saliency: tuple[float, float] | None,
        kinds: Sequence[str],
    ) -> None:
        if x is None or (isinstance(prior, str) and prior == "flat"):
            raise ValueError(
                "kinds need x and a proper prior of means and variances: rates of counts have a prior "
                "with the mean of the data; pass x, and prior='empirical' or a GaussianPrior"
            )
        table = jnp.asarray(x)
        self.columns = Columns.of(kinds, table.shape[1])
        self.num_clusters = num_clusters
        self.saliency_prior = None if prior_of_saliency is None else two_positive(prior_of_saliency)
        self.normal = None
        if self.columns.normal:
            own = table[:, np.array(self.columns.normal)]
            self.normal = SalientFeatures(own, num_clusters, prior, self.saliency_prior)
        self.num_points = len(table)
        known = known_moments(table, self.columns.size)
        self.num_known = known.number
        self.means = tuple(
            jnp.maximum(known.mean[np.array(kind.columns)], _LEAST_MEAN)
            for kind in self.columns.kinds
        )

    @property
    def roles(self) -> tuple[str, ...]:  # type: ignore[override]
        """Roles of the sites, which depend on the kinds."""
        normal = SalientFeatures.roles[1:] if self.normal else ()
        return ("saliency", *normal, *(r for kind in self.columns.kinds for r in _roles(kind)))

    @property
    def centre(self) -> Array:
        """Means of the normal features."""
        return jnp.zeros(0) if self.normal is None else self.normal.centre

    @property
    def is_flat(self) -> bool:
        """False: kinds need a proper prior."""
        return False

    def columns_of(self, role: str) -> tuple[int, ...]:
        """Features that have the parameters of a role, in their order."""
        kinds = {site: kind.columns for kind in self.columns.kinds for site in _roles(kind)}
        return kinds.get(role, self.columns.normal)

    @property
    def num_parameters(self) -> np.ndarray:
        """Number of free parameters of the density of each feature."""
        return self.columns.num_parameters

    def _kinds(self) -> list[tuple[Kind, Array]]:
        return list(zip(self.columns.kinds, self.means, strict=True))

    def sample(self) -> SalientMixed:
        """Sample all sites; return the density of a row in each cluster."""
        prior = saliency_prior(self.saliency_prior, self.columns.size)
        saliency = self.declare("saliency", "saliency", prior, ("features",))
        if self.normal is not None:
            features = self.normal.sample_normal(self, saliency, "normal_features")
        else:
            cells = jnp.zeros((self.num_clusters, 0))
            features = Salient(cells, cells, cells[0], cells[0], saliency)
        params = []
        for kind, mean in self._kinds():
            own, common = _roles(kind)
            fn = _site_prior(kind, mean, proper=self.saliency_prior is not None)
            with numpyro.plate("clusters", self.num_clusters):
                within = self.declare(own, own, fn, kind.dims)
            params.append((within, self.declare(common, common, fn, kind.dims)))
        return SalientMixed(features, tuple(params), self.columns)

    def structure_length(self, density: SalientMixed, weights: Array) -> Array:
        """Length of the parameters in use and their precision; see `message_length.structure_length`.

        It includes the minimum length of a density, see `Kind.shortfall`.
        """
        saliency, number = density.features.saliency, self.num_parameters
        total = structure_length(weights, saliency, self.num_points, number, self.num_known)
        share = jnp.concatenate([weights[:, None] * saliency, 1.0 - saliency[None]])
        for (kind, mean), params in zip(self._kinds(), density.params, strict=True):
            every, own = jnp.concatenate([params[0], params[1][None]]), np.array(kind.columns)
            short = kind.shortfall(every, mean, (self.num_known * share)[:, own])
            total = total + jnp.where(share[:, own] > 0, short, 0.0).sum()
        return total

    def density_length(self, density: SalientMixed, weights: Array) -> Array:
        """Message length, in nats, of the densities in use, as for normal features."""
        saliency = density.features.saliency
        on, off = saliency > 0, saliency < 1
        used = jnp.concatenate([(weights > 0)[:, None] & on, off[None]])
        total = jnp.zeros(())
        if self.normal is not None:
            total = self.normal.density_length(density.normal, weights)
        for (kind, mean), params in zip(self._kinds(), density.params, strict=True):
            every = jnp.concatenate([params[0], params[1][None]])
            own = used[:, np.array(kind.columns)]
            total = total + jnp.where(own, kind.length(every, mean), 0.0).sum()
        return total

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates of normal features in units of the data."""
        return bijector if self.normal is None else self.normal.bijector(role, bijector)

    def statistics(self, observation: Observation) -> MixedMoments:
        """Statistics of relevant and of other values: expected ones, or those of drawn indicators."""
        density: SalientMixed = observation.fn.components  # type: ignore[attr-defined]
        x, share = jnp.asarray(observation.value), observation.expected["unary"].T
        if "relevant" not in observation.expected:
            return density.moments(x, share, self.centre)
        return density.drawn_moments(x, share, observation.expected["relevant"], self.centre)

    def update(self, statistics: MixedMoments, sources: Sequence[Collapsed]) -> _Found:
        """Posterior given relevant values by cluster, and the others."""
        normal = None if self.normal is None else self.normal.update(statistics.normal, sources)
        kinds = tuple(
            kind.posterior(own, mean)
            for (kind, mean), own in zip(self._kinds(), statistics.kinds, strict=True)
        )
        a, b = self.saliency_prior or (1.0, 1.0)
        return _Found(normal, kinds, a + statistics.on, b + statistics.off)

    def mode(self, found: _Found, values: Mapping[str, Array]) -> dict[str, Array]:
        """Joint mode of densities and saliencies."""
        saliency = saliency_mode(found.on, found.off)
        return {"saliency": saliency, **self.density_mode(found, values)}

    def density_mode(self, found: _Found, values: Mapping[str, Array]) -> dict[str, Array]:
        """Joint mode of all densities, or the minimum of the message length."""
        new = {} if self.normal is None else self.normal.density_mode(found.normal, values)
        extra = 0.5 if self.saliency_prior is None else 0.0  # half a logarithm of the information
        modes = (kind.mode(own, extra) for kind, own in self._posteriors(found))
        return new | self._by_role(modes)

    def _posteriors(self, found: _Found) -> list[tuple[Kind, dist.Distribution]]:
        return list(zip(self.columns.kinds, found.kinds, strict=True))

    def _by_role(self, params: Any) -> dict[str, Array]:
        """Parameters of each kind, common ones last, by role."""
        new: dict[str, Array] = {}
        for kind, values in zip(self.columns.kinds, params, strict=True):
            own, common = _roles(kind)
            new |= {own: values[:-1], common: values[-1]}
        return new

    def unbounded(self) -> str | None:
        """Say that a message length is not a density."""
        return SalientFeatures.unbounded(self)  # type: ignore[arg-type]

    def improper(self) -> str | None:
        """Say that there is no posterior under a message length."""
        return self.unbounded()

    def draw(self, rng_key: Array, found: _Found) -> dict[str, Array]:
        """Draw saliencies and all densities."""
        key_saliency, key_normal, *keys = jax.random.split(rng_key, 2 + len(found.kinds))
        new = {"saliency": draw_saliency(key_saliency, found.on, found.off)}
        if self.normal is not None:
            new |= self.normal.draw_normal(key_normal, found.normal.normal)
        drawn = (one.sample(key) for one, key in zip(found.kinds, keys, strict=True))
        return new | self._by_role(drawn)

    def log_density(self, found: _Found, values: Mapping[str, Array]) -> Array:
        """Log density of all sites."""
        beta = dist.Beta(found.on, found.off, validate_args=False)
        total = beta.log_prob(values["saliency"]).sum()
        if self.normal is not None:
            total = total + self.normal.normal_log_density(found.normal.normal, values)
        for kind, own in self._posteriors(found):
            within, common = (values[role] for role in _roles(kind))
            total = total + own.log_prob(jnp.concatenate([within, common[None]])).sum()
        return total

    def value_moments(self, values: Mapping[str, Any], common: str = "") -> tuple[Any, Any]:
        """Means and variances of values in the clusters; with ``common="common_"``, of other values."""
        parts = [kind.moments(values[common + kind.site]) for kind in self.columns.kinds]
        shape = parts[0][0].shape[:-1] if parts else ()
        normal: tuple[Any, Any] = (np.zeros((*shape, 0)), np.zeros((*shape, 0)))
        if self.normal is not None:
            normal = self.normal.value_moments(values, common)
        mean, variance = (
            self.columns.joined(own, [one[place] for one in parts])
            for place, own in enumerate(normal)
        )
        return mean, variance

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Starts half-way between all data and rows drawn without replacement; saliencies of one half."""
        rng = np.random.default_rng(seed)
        table = np.asarray(value, float)
        fewer = len(table) < self.num_clusters
        draws = (
            rng.choice(len(table), self.num_clusters, replace=fewer) for _ in range(num_starts)
        )
        rows = np.array(list(draws))
        found: dict[str, Any] = {"saliency": np.full((num_starts, self.columns.size), 0.5)}
        if self.normal is not None:
            own = table[:, np.array(self.columns.normal)]
            found = self.normal.starts(own, shapes, seed, num_starts) | found
        for kind in self.columns.kinds:
            found |= _kind_starts(kind, table, rows)
        return found

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that a mode of saliencies is spurious, or that a cluster has two modes."""
        none = saliency_remark(values["saliency"], self.saliency_prior)
        return none or (two_modes_remark(values, self.columns.normal) if self.normal else None)

    def degenerate(self, values: Mapping[str, Any]) -> tuple[int, str] | None:
        """Return None, because no cluster collapses under a proper prior."""
        return None

    def check(self, name: str, value: Any) -> None:
        """Refuse constant features except categories, and values of another kind; warn as `look_at` does."""
        table = np.asarray(value, float)
        for kind in self.columns.kinds:
            kind.check(name, table)
        levels = [c for kind in self.columns.kinds if kind.name == "category" for c in kind.columns]
        look_at(self, name, table, self.columns.normal, levels)


def _roles(kind: Kind) -> tuple[str, str]:
    """Roles of the parameters within clusters, and of the common parameters."""
    return kind.site, f"common_{kind.site}"


def _site_prior(kind: Kind, mean: Array, *, proper: bool) -> dist.Distribution:
    """Prior of the parameters of all features of a kind; flat if a message length is the prior."""
    prior = kind.prior(mean).to_event(1)
    if proper:
        return prior
    support = constraints.independent(kind.prior(mean).support, 1)
    return dist.ImproperUniform(support, (), prior.event_shape)


def _kind_starts(kind: Kind, table: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Starting values; `rows` has shape (num_starts, num_clusters)."""
    found = _halfway(kind, jnp.asarray(table), jnp.asarray(rows))
    return dict(zip(_roles(kind), map(np.asarray, found), strict=True))


@partial(jax.jit, static_argnums=0)
def _halfway(kind: Kind, table: Array, rows: Array) -> tuple[Array, Array]:
    """Parameters half-way between single rows and all data, and those of all data, by start."""
    x, known = kind.of(table)
    counts = kind.statistics(x, known.astype(x.dtype))
    if kind.name == "count":
        overall = jnp.maximum(counts[:, 0] / jnp.maximum(counts[:, 1], 1), _LEAST_MEAN)
    elif kind.name == "ordered":
        overall = (counts[:, 0] + 1) / (counts.sum(axis=1) + 2)
    else:
        overall = (counts + 1) / (counts + 1).sum(axis=1, keepdims=True)
    typical = jnp.broadcast_to(overall, (*rows.shape, *overall.shape))
    given = known[rows].reshape(*rows.shape, -1, *(1,) * (overall.ndim - 1))
    within = jnp.where(given, kind.starts(x[rows], overall), typical)
    return within, typical[:, 0]
