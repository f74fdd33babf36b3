"""Starting values of Gaussian components: moments of partitions, or means and spreads far from those."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .kmeans_starts import centres_within, scattered_centres, units
from .partition_starts import cell_moments, partitions

__all__ = ["moments_of_partitions", "scattered_moments"]


def moments_of_partitions(
    data: NDArray,
    shape: tuple[int, ...],
    form: str,
    seed: int,
    num_starts: int,
    *,
    one_unit: int,
    even: bool,
) -> tuple[NDArray, NDArray]:
    """Means and spreads of partitions of the rows; see `partitions`.

    Parameters
    ----------
    data : ndarray, shape (num_points, num_features)
    shape : (int,) or (int, int)
        Numbers of clusters, and of components per cluster.
    form : {"full", "tied", "diagonal", "spherical"}
        Form of the covariances.
    seed, num_starts : int
    one_unit, even
        See `partitions`; under spherical covariances, all features share a unit.
    """
    one_unit = data.shape[1] if form == "spherical" else one_unit
    found = partitions(data, shape[0], seed, num_starts, one_unit=one_unit, even=even)
    mean, covariance = cell_moments(found, shape[0])
    spread: NDArray
    if len(shape) == 2:
        scales = np.broadcast_to(units(found.rows, one_unit), (num_starts, data.shape[1]))
        mean = centres_within(data, mean, scales, shape[1], seed)
        spread = np.diag(_cell_variance(data, math.prod(shape)))
    else:
        spread = covariance.mean(axis=1) if form == "tied" else covariance
    if form in ("diagonal", "spherical"):
        spread = np.diagonal(spread, axis1=-2, axis2=-1)
        spread = spread.mean(axis=-1) if form == "spherical" else spread
    return mean, spread


def scattered_moments(
    data: NDArray, num_clusters: int, form: str, seed: int, num_starts: int
) -> tuple[NDArray, NDArray]:
    """Means of `scattered_centres`, and spreads of cells or of all data; see `moments_of_partitions`."""
    centres, wide = scattered_centres(data, num_clusters, seed, num_starts)
    variance = np.where(wide[:, None], data.var(axis=0), _cell_variance(data, num_clusters))
    spread: NDArray = variance
    if form in ("full", "tied"):
        spread = variance[:, :, None] * np.eye(data.shape[1])
    elif form == "spherical":
        spread = variance.mean(axis=1)
    if form == "tied":
        return centres, spread
    return centres, np.broadcast_to(spread[:, None], (num_starts, num_clusters, *spread.shape[1:]))


def _cell_variance(data: NDArray, num_cells: int) -> NDArray:
    """Variance of the data, shrunk to the size of the cell of one Gaussian."""
    variance = data.var(axis=0) / num_cells ** (2 / data.shape[1])
    shrunk: NDArray = np.where(variance > 0, variance, 1e-6 * variance.mean() or 1.0)
    return shrunk
