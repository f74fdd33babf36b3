"""Centres of k-means partitions, as starting values for the locations of clusters."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin

__all__ = ["centres_within", "kmeans_centres", "scattered_centres", "some_rows", "units"]

_MOST_ROWS = 20_000
"""Maximum number of rows that k-means uses."""

_NOTHING = 1e-10
"""Fraction of a feature's spread below which the feature counts as constant within clusters."""


def kmeans_centres(
    data: NDArray, num_clusters: int, seed: int, num_starts: int, *, one_unit: int = 0
) -> tuple[NDArray, NDArray]:
    """Centres of k-means partitions of scaled features, which are independent of the features' units.

    Every other partition scales features by their standard deviations, and the next one by those
    within the clusters of the previous partition. Starts at random rows would find higher modes of
    a Gaussian mixture, but spurious ones: small clusters along chance alignments of points.

    Parameters
    ----------
    data : ndarray, shape (num_points, num_features)
    num_clusters, seed, num_starts : int
    one_unit : int
        Number of features, the first ones, that share a unit: coordinates of shapes, or all features
        under spherical covariances. Partitions that scale these alike replace those of the second kind.

    Returns
    -------
    centres : ndarray, shape (num_starts, num_clusters, num_features)
    scales : ndarray, shape (num_starts, num_features)
        Divisors of the features in distances.
    """
    rng = np.random.default_rng(seed)
    data = some_rows(data, rng)
    whole, shared = units(data), units(data, one_unit)
    scales = np.empty((num_starts, data.shape[1]))
    centres = np.empty((num_starts, num_clusters, data.shape[1]))
    for number in range(num_starts):
        if number % 2 == 0:
            scales[number] = shared
        elif one_unit:
            scales[number] = whole
        else:
            before, scale = centres[number - 1], scales[number - 1]
            label = _nearest(data, before, scale)
            within = (data - before[label]).std(axis=0)
            scales[number] = np.where(within > _NOTHING * whole, within, whole)
        if len(data) < num_clusters:
            centres[number] = data[rng.integers(len(data), size=num_clusters)]
            continue
        kmeans = KMeans(num_clusters, n_init=1, random_state=int(rng.integers(2**31)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters
            found = kmeans.fit(data / scales[number]).cluster_centers_
        centres[number] = found * scales[number]
    return centres, scales


def scattered_centres(
    data: NDArray, num_cells: int, seed: int, num_starts: int
) -> tuple[NDArray, NDArray[np.bool_]]:
    """Centres of a k-means partition, plain and scattered by 0.5 to 1 standard deviations of the data.

    They suit posteriors whose links contradict the partition that k-means finds from every start.

    Parameters
    ----------
    data : ndarray, shape (num_points, num_features)
    num_cells, seed, num_starts : int

    Returns
    -------
    centres : ndarray, shape (num_starts, num_cells, num_features)
        The first start is the partition itself.
    wide : ndarray of bool, shape (num_starts,)
        Every other start is for covariances as wide as the data.
    """
    rng = np.random.default_rng(seed)
    centres, _ = kmeans_centres(data, num_cells, seed, 1)
    noise = rng.uniform(0.5, 1.0, (num_starts, 1, 1)) * rng.normal(
        size=(num_starts, num_cells, data.shape[1])
    )
    noise[0] = 0.0
    return centres + noise * data.std(axis=0), np.arange(num_starts) % 2 == 1


def some_rows(data: NDArray, rng: np.random.Generator) -> NDArray:
    """The data, or 20,000 of their rows at random."""
    few = len(data) <= _MOST_ROWS
    return data if few else data[rng.choice(len(data), _MOST_ROWS, replace=False)]


def units(data: NDArray, one_unit: int = 0) -> NDArray[np.float64]:
    """Standard deviations of the features, with one for all the first ones; see `kmeans_centres`."""
    deviation = data.std(axis=0)
    if one_unit:
        deviation[:one_unit] = np.sqrt((deviation[:one_unit] ** 2).mean())
    return np.where(deviation > 0, deviation, 1.0)


def centres_within(
    data: NDArray, centres: NDArray, scales: NDArray, num_components: int, seed: int
) -> NDArray:
    """Centres of k-means within every cell, shape (num_starts, num_clusters, num_components, d)."""
    out = np.repeat(centres[:, :, None], num_components, axis=2)
    for number, (centre, scale) in enumerate(zip(centres, scales, strict=True)):
        cell = _nearest(data, centre, scale)
        for cluster in range(len(centre)):
            rows = data[cell == cluster]
            if len(rows) >= num_components:
                found, _ = kmeans_centres(
                    rows / scale, num_components, seed + number, 1, one_unit=data.shape[1]
                )
                out[number, cluster] = found[0] * scale
    return out


def _nearest(data: NDArray, centres: NDArray, scale: NDArray) -> NDArray[np.int64]:
    """Number of the nearest centre of each row, from centred data to avoid cancellation of squares."""
    middle = data.mean(axis=0)
    return pairwise_distances_argmin((data - middle) / scale, (centres - middle) / scale)
