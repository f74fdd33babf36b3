"""Densities of features by cluster, common densities and saliencies, as one conjugate block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    IndependentTransform,
    Transform,
)

from ..block import Augmented, Block, Observation
from ..block_facts import TakesMissing
from ..collapsed import Collapsed
from ..components import normal_inverse_gamma
from ..components.gaussian_prior import GaussianPrior, agreed_features
from ..components.gaussians.gaussian_stats import Moments
from ..components.normal_inverse_gamma import InverseGamma, NormalInverseGamma
from ..components.shift_prior import ComponentPriors
from .message_length import PER_DENSITY, structure_length
from .passes import Salient, SalientMoments
from .repeated import look_at
from .saliencies import (
    EDGE,
    draw_saliency,
    known_moments,
    saliency_mode,
    saliency_prior,
    saliency_remark,
    two_modes_remark,
    two_positive,
)
from .salient_normal import SalientNormal

__all__ = ["SalientFeatures"]

_WEAK = 0.01
"""Weight, in values, of the prior mean in priors set from the data, as in `GaussianPrior.empirical`."""

_FLOOR = 1e-6
"""Least variance of a feature in a cluster, as a share of its variance in the data."""

_START = 0.5
"""Starting variances, as a share of those of the data; a tenth is worse if there are few rows."""

_LATTICE = -0.5 * math.log(2.0) + 1.0 - math.log(12.0)
"""Constant of the message length of a mean and a variance."""

_LATTICE_OF_ONE = 0.5 - 0.5 * math.log(12.0)
"""Constant of the message length of one parameter."""


class _Found(NamedTuple):
    """Posterior of normal densities (those common to all clusters last) and of saliencies."""

    normal: NormalInverseGamma
    on: Array
    off: Array


class SalientFeatures(Block, Augmented, TakesMissing):
    r"""Means and variances of features by cluster, their common ones, and saliencies.

    .. math:: \rho_l \sim \text{Beta}(a, b), \quad
              \sigma^2_{kl} \sim \text{InvGamma}(\nu/2, s_l/2), \quad
              \mu_{kl} \mid \sigma^2_{kl} \sim \mathcal{N}(c_l, \sigma^2_{kl}/\kappa),

    and the common mean and variance of each feature alike. Given labels, and which values are relevant, all
    of these are conjugate.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
        NaN where values are missing.
    num_clusters : int
    prior : {"empirical", "flat"} or GaussianPrior
        Prior of means and variances. Each feature has the marginal of that prior of a covariance,
        which has :math:`\nu - d + 1` degrees of freedom: three for "empirical".
    saliency_prior : (float, float) or None
        a and b. None leaves the prior of all sites to a message length: `structure_length` with
        `density_length`, for which "empirical" learns the scales :math:`s_l` within clusters.
    """

    factor: ClassVar[str] = "unary"
    roles: ClassVar[tuple[str, ...]] = (
        "saliency",
        "location",
        "spread",
        "common_location",
        "common_spread",
    )

    def __init__(
        self,
        x: ArrayLike | None,
        num_clusters: int,
        prior: str | GaussianPrior = "empirical",
        saliency_prior: tuple[float, float] | None = (0.5, 0.5),
    ) -> None:
        self.num_clusters = num_clusters
        self.saliency_prior = None if saliency_prior is None else two_positive(saliency_prior)
        self.num_points = 0 if x is None else len(x)  # type: ignore[arg-type]
        self.num_known, self.centre, variance, gap = known_moments(x, _num_features(x, prior))
        self.cells = _cell_priors(self.centre, variance, num_clusters, prior)
        self.learns_scale = self.saliency_prior is None and not isinstance(prior, GaussianPrior)
        self.unit = jnp.sqrt(variance)
        # no value that is rounded to multiples of a gap has a probability above one
        self.least = jnp.maximum(_FLOOR * variance, gap**2 / (2 * jnp.pi))

    @property
    def num_parameters(self) -> np.ndarray:
        """Number of free parameters of the density of each feature."""
        return np.full(self.num_features, PER_DENSITY)

    @property
    def remedy(self) -> str:  # type: ignore[override]
        """What to do about a collapsed cluster."""
        options = {"prior='empirical'": self.is_flat, "fewer clusters": self.num_clusters > 1}
        return self.offered("use", options)

    @property
    def is_flat(self) -> bool:
        """Whether means and variances have no prior."""
        return self.cells is None

    def columns_of(self, role: str) -> tuple[int, ...]:
        """Features that have the parameters of a role, in their order."""
        return tuple(range(self.num_features))

    @property
    def num_features(self) -> int:
        """Number of features."""
        return len(self.centre)

    def sample(self) -> SalientNormal:
        """Sample all sites; return the density of a row in each cluster."""
        prior = saliency_prior(self.saliency_prior, self.num_features)
        saliency = self.declare("saliency", "saliency", prior, ("features",))
        return SalientNormal(self.sample_normal(self, saliency, "features"))

    def sample_normal(self, owner: Block, saliency: Array, axis: str) -> Salient:
        """Sample means and variances as sites of the block `owner`, over the axis `axis`."""
        names = (axis,)
        cells = None if self.saliency_prior is None else self.cells
        spread, means = _site_priors(cells, 0, self.num_features)
        with numpyro.plate("clusters", self.num_clusters):
            variance = owner.declare("spread", "variance", spread, names)
            mean = owner.declare("location", "mean", means(variance), names)
        spread, means = _site_priors(cells, -1, self.num_features)
        common_variance = owner.declare("common_spread", "common_variance", spread, names)
        common_mean = owner.declare("common_location", "common_mean", means(common_variance), names)
        return Salient(mean, variance, common_mean, common_variance, saliency)

    def structure_length(self, density: SalientNormal, weights: Array) -> Array:
        """Length of the parameters in use and their precision; see `message_length.structure_length`."""
        saliency, number = density.features.saliency, self.num_parameters
        return structure_length(weights, saliency, self.num_points, number, self.num_known)

    def density_length(self, density: Any, weights: Array) -> Array:
        r"""Message length, in nats, of means and variances in use, besides `structure_length`.

        .. math:: -\log p(\mu, \sigma^2) + \tfrac12 \log |I(\mu, \sigma^2)|, \qquad
                  |I| = \tfrac12 \sigma^{-6},

        for each density in use, with the conjugate prior p, plus the constants of a message of two
        parameters, :math:`1 + \log(1/12)` (Wallace and Freeman 1987, eq. 5.1). The length does not
        depend on units. A flat prior means Jeffreys' prior, for which both terms cancel (Law 2006,
        section 4.3.3); constants are then left out, as in the thesis.
        """
        if self.cells is None:
            return jnp.zeros(())
        features: Salient = density.features
        mean = jnp.concatenate([features.mean, features.common_mean[None]])
        variance = jnp.concatenate([features.variance, features.common_variance[None]])
        on, off = features.saliency > 0, features.saliency < 1
        used = jnp.concatenate([(weights > 0)[:, None] & on, off[None]])
        centre, shrinkage, df, scale = (part.reshape(*mean.shape) for part in self.cells)
        own, total = self._learned_scale(self.cells, features.variance, used[:-1])
        scale = scale.at[:-1].set(own)
        density = dist.Normal(centre, jnp.sqrt(variance / shrinkage)).log_prob(mean)
        density = density + InverseGamma(df / 2, scale / 2).log_prob(variance)
        length = _LATTICE - density - 1.5 * jnp.log(variance)
        return jnp.where(used, length, 0.0).sum() + jnp.where(on, total, 0.0).sum()

    def _learned_scale(
        self, cells: ComponentPriors, variance: Array, used: Array
    ) -> tuple[Array, Array]:
        r"""Scale s of the variances of a feature that minimises the message length, and its cost.

        .. math:: s \sim \text{Gamma}(\nu / 2, 1 / 2 v), \qquad
                  s = \frac{\nu (k + 1)}{\sum_j \sigma_j^{-2} + v^{-1}},

        where :math:`\log p(s) + \sum_j \log p(\sigma_j^2 | s)` of the k variances in use is
        greatest in :math:`\log s`, about which each has the Fisher information :math:`\nu / 2`. The
        scale v is that of the data, which act as one more cluster. The scale needs a prior if
        narrow densities are as likely as wide ones (Richardson and Green 1997, J. R. Stat. Soc. B
        59, section 2.4).
        """
        _, _, df, scale = (part.reshape(-1, self.num_features) for part in cells)
        if not self.learns_scale:
            return scale[:-1], jnp.zeros(self.num_features)
        shape, wide, number = df[0] / 2, scale[-1], used.sum(axis=0)
        precision = jnp.where(used, 1 / variance, 0.0).sum(axis=0) + 1 / wide
        own = 2 * shape * (number + 1) / precision
        prior = dist.Gamma(shape, 0.5 / wide).log_prob(own) + jnp.log(own)
        information = 0.5 * jnp.log(shape * jnp.maximum(number, 1))
        return own, _LATTICE_OF_ONE - prior + information

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in units of the data."""
        if role in ("location", "common_location"):
            units: Transform = AffineTransform(self.centre, self.unit)
        elif role in ("spread", "common_spread"):
            units = AffineTransform(0.0, self.unit**2, constraints.positive)
        else:
            return bijector
        return ComposeTransform([bijector, IndependentTransform(units, 1)])

    def statistics(self, observation: Observation) -> SalientMoments:
        """Moments of relevant and of other values: expected ones, or those of drawn indicators."""
        density = observation.fn.components  # type: ignore[attr-defined]
        x, share = jnp.asarray(observation.value), observation.expected["unary"].T
        if "relevant" not in observation.expected:
            return density.moments(x, share, self.centre)
        return density.drawn_moments(x, share, observation.expected["relevant"], self.centre)

    def update(self, statistics: SalientMoments, sources: Sequence[Collapsed]) -> _Found:
        """Posterior given relevant values by cluster, and the others."""
        total, first, second = (part.reshape(-1, 1) for part in statistics[:3])
        moments = Moments(total[:, 0], first, second)
        about = jnp.tile(self.centre, self.num_clusters + 1)[:, None]
        normal = normal_inverse_gamma.update(moments, about, self.cells, spherical=False)
        a, b = self.saliency_prior or (1.0, 1.0)
        return _Found(normal, a + statistics.on, b + statistics.off)

    def mode(self, found: _Found, values: Mapping[str, Array]) -> dict[str, Array]:
        """Joint mode of means, variances and saliencies; densities without values are unchanged."""
        saliency = saliency_mode(found.on, found.off)
        return {"saliency": saliency, **self.density_mode(found, values)}

    def density_mode(self, found: _Found, values: Mapping[str, Array]) -> dict[str, Array]:
        """Joint mode of means and variances; variances are kept away from zero."""
        mean, variance = normal_inverse_gamma.mode(found.normal)
        if self.saliency_prior is None and self.cells is not None:
            used = self._by_row(found.normal.shrinkage - self.cells.shrinkage)[:-1] > 0
            own, _ = self._learned_scale(self.cells, values["spread"], used)
            extra = own - self._by_row(self.cells.scale[:, 0, 0])[:-1]
            rate = self._by_row(found.normal.rate).at[:-1].add(extra / 2)
            variance = rate.reshape(-1, 1) / found.normal.shape  # minimises `density_length`
        mean, variance = self._by_row(mean), self._by_row(variance)
        variance = jnp.maximum(variance, self.least)
        if self.cells is None:
            empty = self._by_row(found.normal.shrinkage) < jnp.finfo(mean.dtype).eps
            mean = jnp.where(empty, _stacked(values, "location"), mean)
            variance = jnp.where(empty, _stacked(values, "spread"), variance)
        return _unstacked(mean, variance)

    def _by_row(self, cells: Array) -> Array:
        return cells.reshape(self.num_clusters + 1, self.num_features)

    def unbounded(self) -> str | None:
        """Say that a message length is not a density."""
        if self.saliency_prior is not None:
            return None
        return (
            "selection='mml' is an improper prior without bound where weights or saliencies vanish; only "
            "engine='componentwise_em' makes sense of it. Pass selection='sparse', a Dirichlet prior of the "
            "weights and Beta priors of the saliencies"
        )

    def improper(self) -> str | None:
        """Say that there is no posterior under a message length or a flat prior."""
        if self.unbounded() is not None:
            return self.unbounded()
        if self.cells is not None:
            return None
        return (
            "prior='flat' leaves no posterior to draw from: an empty cluster could be anywhere; "
            "pass prior='empirical' or a GaussianPrior"
        )

    def draw(self, rng_key: Array, found: _Found) -> dict[str, Array]:
        """Draw saliencies, variances, then means."""
        key_saliency, key_normal = jax.random.split(rng_key)
        saliency = draw_saliency(key_saliency, found.on, found.off)
        return {"saliency": saliency, **self.draw_normal(key_normal, found.normal)}

    def draw_normal(self, rng_key: Array, found: NormalInverseGamma) -> dict[str, Array]:
        """Draw variances, then means."""
        mean, variance = normal_inverse_gamma.draw(rng_key, found)
        return _unstacked(self._by_row(mean), self._by_row(variance))

    def log_density(self, found: _Found, values: Mapping[str, Array]) -> Array:
        """Log density of all sites."""
        saliency = dist.Beta(found.on, found.off, validate_args=False)
        own = saliency.log_prob(values["saliency"]).sum()
        return own + self.normal_log_density(found.normal, values)

    def normal_log_density(self, found: NormalInverseGamma, values: Mapping[str, Array]) -> Array:
        """Log density of means and variances."""
        mean = _stacked(values, "location").reshape(-1, 1)
        variance = _stacked(values, "spread").reshape(-1, 1)
        return normal_inverse_gamma.log_density(found, mean, variance)

    def value_moments(self, values: Mapping[str, Any], common: str = "") -> tuple[Any, Any]:
        """Means and variances of values in the clusters; with ``common="common_"``, of other values."""
        return values[f"{common}location"], values[f"{common}spread"]

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Starts: rows drawn without replacement, half of the data's variance, saliencies of one half."""
        rng = np.random.default_rng(seed)
        data = np.asarray(value, float)
        _, centre, variance, _ = map(np.asarray, known_moments(data, self.num_features))
        fewer = len(data) < self.num_clusters
        rows = [rng.choice(len(data), self.num_clusters, replace=fewer) for _ in range(num_starts)]
        mean = np.where(np.isnan(data), centre, data)[np.array(rows)]
        return {
            "location": mean,
            "spread": np.broadcast_to(_START * variance, mean.shape),
            "common_location": np.broadcast_to(centre, (num_starts, *centre.shape)),
            "common_spread": np.broadcast_to(variance, (num_starts, *centre.shape)),
            "saliency": np.full((num_starts, *centre.shape), 0.5),
        }

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that a mode of saliencies is spurious, or that a cluster has two modes."""
        none = saliency_remark(values["saliency"], self.saliency_prior)
        return none or two_modes_remark(values, range(self.centre.shape[-1]))

    def degenerate(self, values: Mapping[str, Any]) -> tuple[int, str] | None:
        """First cluster with the least possible variance in a feature, under a flat prior."""
        if self.cells is not None:
            return None
        spread, common = np.asarray(values["spread"]), np.asarray(values["common_spread"])
        widest = np.maximum(spread.max(axis=0), common)
        low = ((spread <= 10 * _FLOOR * widest) & (values["saliency"] > EDGE)).any(axis=1)
        return (int(np.argmax(low)), "a feature has no variance in it") if low.any() else None

    def check(self, name: str, value: Any) -> None:
        """Refuse features that are constant or never known; warn about repeated features and few rows."""
        look_at(self, name, np.asarray(value, float))


def _num_features(x: ArrayLike | None, prior: str | GaussianPrior) -> int:
    """Return the number of features, on which data and prior must agree."""
    if isinstance(prior, GaussianPrior):
        return agreed_features(x, prior)
    if not isinstance(prior, str) or prior not in ("empirical", "flat"):
        raise ValueError(f"prior = {prior!r}; expected 'empirical', 'flat' or a GaussianPrior")
    if x is None:
        raise ValueError(
            f"prior={prior!r} cannot be simulated from: without x, pass prior=GaussianPrior(mean, "
            "shrinkage, df, scale)"
        )
    return jnp.shape(x)[1]


def _cell_priors(
    mean: Array, variance: Array, num_clusters: int, prior: str | GaussianPrior
) -> ComponentPriors | None:
    """Prior of every feature in every cluster, and of the common densities last; None is flat.

    An empirical prior has the mean and the variance of the data.
    """
    size = len(mean)
    if prior == "flat":
        return None
    if isinstance(prior, GaussianPrior):
        centre, weight, df = jnp.asarray(prior.mean), prior.shrinkage, prior.variance_df
        within = common = jnp.diagonal(jnp.asarray(prior.scale))
    else:
        weight, df = _WEAK, 3.0
        centre, common = mean, variance
        within = common / num_clusters ** (2 / size)
    scale = jnp.concatenate([jnp.tile(within, num_clusters), common])
    every = jnp.ones(len(scale))
    centre = jnp.tile(centre, num_clusters + 1)
    return ComponentPriors(centre[:, None], weight * every, df * every, scale[:, None, None])


def _site_priors(
    cells: ComponentPriors | None, row: int, size: int
) -> tuple[dist.Distribution, Callable[[Array], dist.Distribution]]:
    """Prior of the variances of one row of cells, and prior of its means given variances."""
    if cells is None:
        positive = constraints.independent(constraints.positive, 1)
        flat = dist.ImproperUniform(constraints.real_vector, (), (size,))
        return dist.ImproperUniform(positive, (), (size,)), lambda variance: flat
    mean, shrinkage, df, scale = (part.reshape(-1, size)[row] for part in cells)

    def means(variance: Array) -> dist.Distribution:
        return dist.Normal(mean, jnp.sqrt(variance / shrinkage)).to_event(1)

    return InverseGamma(df / 2, scale / 2).to_event(1), means


def _stacked(values: Mapping[str, Array], role: str) -> Array:
    """Values of a role in the clusters, with the common values last."""
    return jnp.concatenate([values[role], values[f"common_{role}"][None]])


def _unstacked(mean: Array, variance: Array) -> dict[str, Array]:
    """Means and variances by role."""
    return {
        "location": mean[:-1],
        "spread": variance[:-1],
        "common_location": mean[-1],
        "common_spread": variance[-1],
    }
