"""The conjugate prior of Gaussian components: given, set from the data, or flat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, multigammaln
from sklearn.metrics import pairwise_distances_argmin

from sidebayes.common.arrays import point_table, real_array
from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import shown

from ..numbers import library_of, pytree_of_numbers
from .kmeans_starts import kmeans_centres

__all__ = ["GaussianPrior", "agreed_features", "resolve_prior"]

_WEAK = 0.01
"""Weight, in points, of the prior mean in priors set from the data (Fraley and Raftery 2007)."""

_ROUNDING = 1e-20
"""Variance within clusters, relative to that of all points, that is zero up to rounding."""

_PARTITIONS = 10
"""Number of k-means partitions, of which the most probable one is used."""


def _floor(scatter: Any) -> Any:
    """Ridge that keeps a scale regular if a feature is constant or a copy of another."""
    xp = library_of(scatter)
    variance = xp.diagonal(scatter)
    typical = xp.where(variance.mean() > 0, variance.mean(), 1.0)
    return 1e-6 * xp.diag(xp.where(variance > 0, variance, typical))


@pytree_of_numbers
@dataclass(frozen=True)
class GaussianPrior:
    r"""Conjugate prior of Gaussian components (normal, inverse Wishart or inverse gamma).

    The prior is a pytree, so that fits with other values share compiled programs.

    .. math:: \Sigma_k \sim \mathcal{W}^{-1}(\nu, S), \qquad
              \mu_k \mid \Sigma_k \sim \mathcal{N}(m, \Sigma_k / \kappa)

    Diagonal and spherical covariances have
    :math:`\sigma^2 \sim \text{InvGamma}((\nu - d + 1)/2, s/2)` with s from the diagonal of S, or
    its mean: this is the distribution of the diagonal under the inverse Wishart prior. Fraley and
    Raftery (2007) use :math:`\nu/2`, whose weight grows with d: 25 rows of 49 features would keep a
    third of their variances.

    Parameters
    ----------
    mean : array_like, shape (num_features,)
        :math:`m`.
    shrinkage : float
        :math:`\kappa > 0`, the weight of the prior mean in points.
    df : float
        :math:`\nu > d - 1`.
    scale : array_like, shape (num_features, num_features)
        :math:`S`, positive definite.
    """

    mean: ArrayLike
    shrinkage: float
    df: float
    scale: ArrayLike

    def __post_init__(self) -> None:
        for name in ("mean", "scale"):
            object.__setattr__(self, name, _real(name, getattr(self, name)))
        shape = jnp.shape(self.mean)
        if len(shape) != 1 or jnp.shape(self.scale) != shape * 2 or not shape[0]:
            raise ValueError(
                f"GaussianPrior: mean has shape {shape} and scale {jnp.shape(self.scale)}; expected "
                "(num_features,) and (num_features, num_features)"
            )
        least = f"num_features - 1 = {shape[0] - 1}"
        _check_number("shrinkage", self.shrinkage, 0, "0")
        _check_number("df", self.df, shape[0] - 1, least)
        if not any(isinstance(value, jax.core.Tracer) for value in (self.mean, self.scale)):
            _check_numbers(np.asarray(self.mean, float), np.asarray(self.scale, float))

    @property
    def variance_df(self) -> Any:
        """Degrees of freedom of the variance of one feature."""
        return self.df - jnp.shape(self.mean)[0] + 1

    @classmethod
    def empirical(cls, x: ArrayLike, num_clusters: int) -> GaussianPrior:
        """Weak prior set from the data (Fraley and Raftery 2007, section 3).

        The mean is that of the data with weight 0.01, ``df = d + 2``, and the scale is the
        covariance of the data divided by ``num_clusters ** (2 / d)``. A single row is refused, as
        it has no covariance.
        """
        x = _table(x)
        if jnp.shape(x)[0] < 2:
            raise ValueError(
                "x has one row, which has no covariance; pass a GaussianPrior as prior"
            )
        library = library_of(x)
        table = library.asarray(x, jnp.result_type(float, x))
        covariance = library.cov(table.T, dtype=table.dtype).reshape(len(table.T), -1)
        return cls.from_moments(table.mean(axis=0), covariance, num_clusters)

    @classmethod
    def from_moments(
        cls, mean: ArrayLike, covariance: ArrayLike, num_clusters: int
    ) -> GaussianPrior:
        """The prior of `empirical`, given mean and covariance of the data."""
        check_integer("num_clusters", num_clusters)
        num_features = jnp.shape(mean)[0]
        scatter = library_of(covariance).asarray(covariance) / num_clusters ** (2 / num_features)
        return cls(mean, _WEAK, num_features + 2.0, scatter + _floor(scatter))

    @classmethod
    def by_evidence(cls, x: ArrayLike, num_clusters: int, *, seed: int = 0) -> GaussianPrior:
        r"""Prior under which the clusters of a k-means partition are most probable.

        The scale is :math:`S = (\nu - d - 1) W`, so that covariances have prior mean W, the pooled
        covariance within the clusters; :math:`\nu`, which determines how similar the clusters are,
        maximises the marginal likelihood of the clusters, with their means and covariances
        integrated out (type-II maximum likelihood). Ten partitions of scaled features are tried, so
        that units do not matter, and the one with the highest marginal likelihood is used. This
        prior regularises strongly where there are many features and few points.

        Parameters
        ----------
        x : array_like, shape (num_points, num_features)
            The values must be numbers, not traced arrays: call this before the model.
        num_clusters : int
        seed : int
            Seed of k-means.

        Raises
        ------
        ValueError
            If there are fewer points than clusters.

        References
        ----------
        Gelman et al. (2013), Bayesian Data Analysis, 3rd ed., section 3.6.
        """
        x = np.asarray(_table(x), float)
        check_integer("num_clusters", num_clusters)
        check_integer("seed", seed, 0, 2**32)
        if len(x) < num_clusters:
            raise ValueError(f"x has {len(x)} rows, fewer than num_clusters = {num_clusters}")
        centres, scales = kmeans_centres(x, num_clusters, seed, _PARTITIONS)
        labels = [
            pairwise_distances_argmin(x / scale, centre / scale)
            for centre, scale in zip(centres, scales, strict=True)
        ]
        return max((_most_probable(x, one) for one in labels), key=lambda found: found[0])[1]


def _most_probable(x: NDArray, labels: NDArray) -> tuple[float, GaussianPrior]:
    """Log density of a partition and its points, and the prior that maximises it.

    The density is up to a constant; the sizes of clusters have a flat Dirichlet prior.
    """
    num_features = x.shape[1]
    members = [x[labels == k] for k in np.unique(labels)]
    count = np.array([len(rows) for rows in members])
    means = np.stack([rows.mean(axis=0) for rows in members])
    scatter = np.stack([(r - m).T @ (r - m) for r, m in zip(members, means, strict=True)])
    pooled, whole = scatter.sum(axis=0) / len(x), x.var(axis=0)
    # features may be constant within clusters, up to rounding
    varies = np.diag(pooled) > _ROUNDING * whole
    pooled = pooled + _floor(np.diag(np.where(varies, np.diag(pooled), whole)))
    offset = means - x.mean(axis=0)
    share = _WEAK / (_WEAK + count)
    spread = scatter + (share * count)[:, None, None] * offset[:, :, None] * offset[:, None, :]

    def cost(log_excess: float) -> float:
        df = num_features + 1 + np.exp(log_excess)
        scale = np.exp(log_excess) * pooled
        prior = df / 2 * np.linalg.slogdet(scale)[1] - multigammaln(df / 2, num_features)
        after = (df + count) / 2 * np.linalg.slogdet(scale + spread)[1]
        gamma = multigammaln((df + count) / 2, num_features)
        return -float(np.sum(prior - after + gamma))

    found = minimize_scalar(cost, bounds=(-3.0, 12.0), method="bounded")
    excess = np.exp(found.x)
    sizes = num_features / 2 * np.log(share) + gammaln(count + 1)
    df = float(num_features + 1 + excess)
    prior = GaussianPrior(x.mean(axis=0), _WEAK, df, excess * pooled)
    return float(np.sum(sizes) - found.fun), prior


def _real(name: str, value: ArrayLike) -> ArrayLike:
    """An array of real numbers; JAX arrays, which may be traced, are returned unchanged."""
    known = isinstance(value, np.ndarray) and value.dtype.kind == "f"
    return value if known or isinstance(value, jax.Array) else real_array(name, value)


def _table(x: ArrayLike) -> ArrayLike:
    """Points by features, as an array."""
    return x if isinstance(x, jax.Array) and x.ndim == 2 else point_table("x", x)


def _check_number(name: str, value: ArrayLike, least: float, bound: str) -> None:
    """Refuse values that are not finite numbers above a bound."""
    if isinstance(value, jax.Array):  # learned, and kept in range by a prior of its own
        return
    known = np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiu"
    if not known or not least < float(np.asarray(value)) < np.inf:
        raise ValueError(f"GaussianPrior({name}={shown(value)}): expected a number > {bound}")


def _check_numbers(mean: NDArray, scale: NDArray) -> None:
    """Refuse numbers that are not finite, and a scale that is not symmetric positive definite."""
    for name, value in (("mean", mean), ("scale", scale)):
        if not np.isfinite(value).all():
            raise ValueError(f"GaussianPrior: {name} has entries that are not finite; replace them")
    apart = np.abs(scale - scale.T)
    if apart.max(initial=0.0) > 1e-8 * np.abs(scale).max(initial=0.0):
        i, j = np.unravel_index(np.argmax(apart), scale.shape)
        raise ValueError(
            f"GaussianPrior: scale is not symmetric, scale[{i}, {j}] = {scale[i, j]:.6g} and scale[{j}, "
            f"{i}] = {scale[j, i]:.6g}; pass the average of it and its transpose"
        )
    try:
        np.linalg.cholesky(scale)
    except np.linalg.LinAlgError:
        raise ValueError(
            "GaussianPrior: scale is not positive definite, its least eigenvalue is "
            f"{np.linalg.eigvalsh(scale)[0]:.3g}; add a small multiple of the identity"
        ) from None


def resolve_prior(
    prior: str | GaussianPrior, x: ArrayLike | None, num_clusters: int
) -> GaussianPrior | None:
    """Turn the `prior` argument of a model into a prior; None stands for a flat one.

    Raises
    ------
    ValueError
        For an unknown name, or if an empirical or flat prior has no data.
    """
    if isinstance(prior, GaussianPrior):
        return prior
    if not isinstance(prior, str) or prior not in ("empirical", "flat"):
        raise ValueError(f"prior = {prior!r}; expected 'empirical', 'flat' or a GaussianPrior")
    if x is None:
        raise ValueError(
            f"prior={prior!r} cannot be simulated from: without x, pass prior=GaussianPrior(mean, "
            "shrinkage, df, scale)"
        )
    return None if prior == "flat" else GaussianPrior.empirical(x, num_clusters)


def agreed_features(x: ArrayLike | None, prior: GaussianPrior | None) -> int:
    """Return the number of features, on which data and prior must agree."""
    if x is None:
        assert prior is not None  # refused by `resolve_prior`
        return jnp.shape(prior.scale)[0]
    num_features = jnp.shape(x)[1]
    if prior is not None and jnp.shape(prior.scale)[0] != num_features:
        raise ValueError(
            f"prior is for {jnp.shape(prior.scale)[0]} features, x has {num_features}; give a "
            f"GaussianPrior whose mean has shape ({num_features},)"
        )
    return num_features
