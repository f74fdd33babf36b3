"""Remarks on clusters that points do not determine: many parameters, single points, a prior that holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sidebayes.common.arrays import is_traced

if TYPE_CHECKING:  # it imports scikit-learn, which pictures do without
    from .gaussian_prior import GaussianPrior

__all__ = ["MANY", "few_points", "held_by_gaussian_prior", "held_by_prior", "lone_clusters"]

MANY = 10
"""Average number of points per cluster from which on the verdict itself reports one-point clusters."""

_PER_NUMBER = 2
"""Points per parameter of a full covariance and its mean, on average, below which they are few."""

_PER_FEATURE = 3
"""Points per feature below which they are few for one covariance: its least widths are too small."""

_PER_CLUSTER = 3
"""Points per cluster, on average, below which they are few for its mean and spread."""

_HELD = 0.75
"""The prior holds a variance if it contributes this share or more: it then doubles the deviation."""

_ENOUGH = 3
"""Points that should determine a covariance and its mean, for each number in one row of both."""


def few_points(num_points: int, num_cells: int, num_features: int, form: str) -> str | None:
    """Say that there are few points for Gaussians with this form of covariance; None if there are enough."""
    if form == "full" and num_cells > 1:
        numbers = num_features * (num_features + 3) // 2
        if num_points >= _PER_NUMBER * numbers * num_cells:
            return None
        return (
            f"{num_points} points are few for {num_cells} means and full covariances of {numbers} "
            "numbers each: clusters may follow chance alignments of points. See whether covariance='tied' or "
            "'diagonal' has a lower BIC, or take prior=GaussianPrior.by_evidence(x, num_clusters)"
        )
    whole = form in ("full", "tied") and num_features > 1
    if whole and num_points < _PER_FEATURE * num_features:
        numbers = num_features * (num_features + 1) // 2
        return (
            f"{num_points} points are few for {_means(num_cells)} and a covariance of {numbers} numbers: "
            f"with fewer than {_PER_FEATURE} points for each feature, the density is too narrow where no "
            "points are. Take covariance='diagonal', fewer features, or a GaussianPrior that says how wide "
            "clusters are"
        )
    if num_points < _PER_CLUSTER * num_cells:
        return (
            f"{num_points} points are few for {_means(num_cells)} and spreads: that clusters are apart, and "
            "how certain labels are, may be chance. Take fewer clusters, or a GaussianPrior that says how "
            "wide they are"
        )
    return None


def lone_clusters(sizes: NDArray) -> str | None:
    """Say which clusters have one point, unless the verdict does; `sizes` are expected numbers."""
    lone = np.flatnonzero((sizes > 0.5) & (sizes < 1.5))
    if sizes.ndim != 1 or sizes.size == 1 or not lone.size or sizes.sum() >= MANY * sizes.size:
        return None
    what = (
        f"Cluster {lone[0]} has" if lone.size == 1 else f"Clusters {', '.join(map(str, lone))} have"
    )
    return (
        f"{what} a single point{' each' if lone.size > 1 else ''}, so that how far it spreads is "
        "taken from other clusters or the prior, and it may be an outlier. See the point, or "
        "take fewer clusters"
    )


def held_by_gaussian_prior(
    spread: NDArray, sizes: NDArray, prior: GaussianPrior, form: str
) -> str | None:
    """Say which clusters owe covariances or variances of a form to `GaussianPrior.empirical`.

    `sizes` have the shape of the components, (num_clusters,) or (num_clusters, num_components).
    """
    if is_traced(prior.scale):
        return None
    scale, df = np.asarray(prior.scale, float), float(prior.df)
    cluster = np.indices(sizes.shape)[0].ravel()
    if form == "tied":
        spread = np.broadcast_to(spread, sizes.shape + scale.shape)
        sizes = np.full(sizes.shape, sizes.sum())
    elif form != "full":
        scale, df = np.diagonal(scale), float(prior.variance_df)
    spread, weights = spread.reshape(-1, *spread.shape[sizes.ndim :]), sizes.ravel()
    if form == "spherical":
        spread, scale, weights = spread[:, None], scale.mean(keepdims=True), len(scale) * weights
    remedy = (
        "If single points far out make it so, take more clusters; if a feature of few different values "
        "does, leave it out; otherwise take prior=GaussianPrior.by_evidence(x, num_clusters), or "
        "prior='flat' where a mode is enough"
    )
    return held_by_prior(spread, scale, weights, df + weights, remedy, cluster)


def held_by_prior(
    spread: NDArray,
    scale: NDArray,
    sizes: NDArray,
    weights: NDArray,
    remedy: str,
    cluster: NDArray[np.int64] | None = None,
) -> str | None:
    """Say which clusters owe their spread to a prior that was read off all points.

    Parameters
    ----------
    spread : ndarray, shape (num_clusters, num_features, num_features) or (num_clusters, num_features)
        Covariances, or variances.
    scale : ndarray, shape (num_features, num_features) or (num_features,)
        Sum of squares that the prior adds.
    sizes : ndarray, shape (num_clusters,)
        Expected numbers of points, or of their squares, that each spread is read off.
    weights : ndarray, shape (num_clusters,)
        What sums of squares are divided by.
    remedy : str
        Which prior to take in place of it.
    cluster : ndarray of int, shape (num_clusters,), optional
        Numbers of the clusters, where they have several components; by default the first numbers.
    """
    if not np.isfinite(spread).all():
        return None
    whole = spread.ndim == 3
    if whole:
        shares = np.linalg.eigvals(np.linalg.pinv(spread, hermitian=True) @ scale).real
    else:
        shares = scale / spread
    most = shares.max(axis=-1) / weights
    needed = _ENOUGH * (spread.shape[-1] + 1 if whole else 2)
    held = np.flatnonzero((most > _HELD) & (sizes >= needed))
    if not held.size:
        return None
    numbers = held if cluster is None else np.unique(cluster[held])
    names = ", ".join(map(str, numbers))
    who = f"Clusters {names} are" if numbers.size > 1 else f"Cluster {names} is"
    return (
        f"{who} at least twice as wide in some direction as the points there, because the default prior "
        f"takes its width from the spread of all points. {remedy}"
    )


def _means(number: int) -> str:
    return "a mean" if number == 1 else f"{number} means"
