"""Remarks on too few points: relative to the number of parameters, and in clusters of one point."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["MANY", "few_points", "lone_clusters"]

MANY = 10
"""Average number of points per cluster from which on the verdict itself reports one-point clusters."""

_PER_NUMBER = 2
"""Points per parameter of a full covariance and its mean, on average, below which they are few."""

_PER_FEATURE = 3
"""Points per feature below which they are few for one covariance: its least widths are too small."""

_PER_CLUSTER = 3
"""Points per cluster, on average, below which they are few for its mean and spread."""


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


def _means(number: int) -> str:
    return "a mean" if number == 1 else f"{number} means"
