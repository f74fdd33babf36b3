"""Clusters that have a single value of a feature, where their densities are as narrow as a prior allows."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sidebayes.common.magnitudes import counted, listed

__all__ = ["say_single_values", "single_value_excess"]

_ALONE, _LEAST = 0.75, 5
"""A cluster has a single value of a feature if at least this share, and so many, of its points have it."""

_MOST_CELLS = 500_000
"""Largest number of rows, times clusters and features, that are looked at."""


def single_value_excess(table: NDArray, mean: NDArray, covariance: NDArray) -> NDArray[np.float64]:
    r"""Nats of log likelihood that are due to densities narrower than the distance between values.

    A value that many points share has a probability of at most one, while a normal density there grows
    without bound as it becomes narrower, which pays for any division of the other features. With
    :math:`\delta` the distance from the value within which half as many points have other values, a
    probability of one is a density of :math:`1 / \delta`. What the log densities of the points of a cluster
    exceed its logarithm by, in sum, is the excess:

    .. math:: \max\Big(0, \sum_i \log \mathcal{N}(x_i | \mu, \sigma^2) + \log \delta\Big)

    Parameters
    ----------
    table : ndarray, shape (num_points, num_features)
    mean : ndarray, shape (num_clusters, num_features)
    covariance : ndarray, shape (num_clusters, num_features, num_features) or (num_clusters, num_features)
        Covariances, or variances of independent features.

    Returns
    -------
    ndarray, shape (num_clusters, num_features)
        Zero where a cluster has several values, or is not too narrow.
    """
    step = max(1, -(-len(table) * mean.size // _MOST_CELLS))
    rows = table[::step]
    offset = rows[:, None] - mean
    if covariance.ndim == 3:
        deviation = np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))
        by_cluster = np.linalg.solve(covariance, np.moveaxis(offset, 0, -1))
        scaled = np.moveaxis(by_cluster, -1, 0)
        log_det = np.linalg.slogdet(covariance)[1]
    else:
        deviation, scaled = np.sqrt(covariance), offset / covariance
        log_det = np.log(covariance).sum(axis=-1)
    member = np.argmin((offset * scaled).sum(axis=-1) + log_det, axis=1)
    member = member[:, None] == np.arange(len(mean))
    value = np.stack([_median(rows[own], of) for own, of in zip(member.T, mean, strict=True)])
    same = rows[:, None] == value
    number = (member[:, :, None] & same).sum(axis=0)
    size = member.sum(axis=0)[:, None]
    cluster, feature = np.nonzero((number >= _LEAST) & (number >= _ALONE * size))
    excess = np.zeros(mean.shape)
    if cluster.size:
        away = np.sort(np.abs(rows[:, feature] - value[cluster, feature]), axis=0)
        equal = same.sum(axis=0)[cluster, feature]
        half = np.minimum(equal + (equal + 1) // 2, len(rows)) - 1
        narrow = away[half, np.arange(len(half))] / math.sqrt(2 * math.pi)
        squares = np.square(offset[:, cluster, feature] / deviation[cluster, feature])
        total = np.where(
            member[:, cluster], np.log(narrow / deviation[cluster, feature]) - squares / 2, 0.0
        )
        excess[cluster, feature] = step * np.maximum(total.sum(axis=0), 0.0)
    return excess


def _median(rows: NDArray, mean: NDArray) -> NDArray:
    """A value in the middle of each feature; the mean if there are no rows."""
    found: NDArray = np.quantile(rows, 0.5, axis=0, method="lower") if len(rows) else mean
    return found


def say_single_values(name: str, excess: NDArray[np.float64]) -> str | None:
    """Say which features have a single value in some clusters; see `single_value_excess`."""
    told = [
        f"column {feature} of {name} in {counted(number, 'cluster')}"
        for feature, number in enumerate((excess > 0).sum(axis=0))
        if number
    ]
    if not told:
        return None
    return (
        f"Columns of few different values have hardly more than one in some clusters ({listed(told)}): a "
        "normal density there is as narrow as the prior allows, so that clusters may part by them whatever "
        "the other columns say. Leave them out, or use feature_saliency, which takes them for categories"
    )
