"""Distinct partitions of rows as starting values of mixtures, and their moments."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import kmeans2, vq

from .kmeans_starts import kmeans_centres, some_rows, units

__all__ = ["Partitions", "cell_moments", "partition_labels", "partitions"]

_MOST_IN_SAMPLE = 2_000
"""Maximum number of rows that k-means uses, except for the partitions of `kmeans_centres`."""

_STEPS = 10
"""Steps of k-means for these partitions; the fit moves rows between cells anyway."""

_MOST_PLAIN = 4
"""Maximum number of partitions of `kmeans_centres`, which are slow and similar to one another."""

_FLAT = 1e-10
"""Share of the variance of standardised features below which a direction counts as constant."""

_TRIES = 20
"""Repeated partitions in a row after which one of them is accepted."""


class Partitions(NamedTuple):
    """Partitions of rows, and the spread to take with each.

    Attributes
    ----------
    rows : ndarray, shape (num_rows, num_features)
        The data, or 20,000 rows of them.
    labels : ndarray of int, shape (num_starts, num_rows)
    plain : ndarray of bool, shape (num_starts,)
        Whether a partition is one of `kmeans_centres`.
    wide : ndarray of bool, shape (num_starts,)
        Whether a partition is about random rows, to be combined with the spread of all data.
    """

    rows: NDArray
    labels: NDArray[np.int64]
    plain: NDArray[np.bool_]
    wide: NDArray[np.bool_]


def partitions(
    data: NDArray,
    num_clusters: int,
    seed: int,
    num_starts: int,
    *,
    one_unit: int = 0,
    even: bool = False,
) -> Partitions:
    """Partitions of rows that differ in more than the numbers of their cells.

    Of every eleven partitions, the first two are those of `kmeans_centres`. The others come from
    three sources: k-means of half of the rows (on all features, on decorrelated features, on random
    directions of these, on some of the features); merging two cells of a finer partition or
    splitting one of a coarser partition; and assigning each row to the nearest of a few random
    rows. A partition that was found before is replaced by another, if there is one. No partition
    depends on the units of the features.

    Parameters
    ----------
    data : ndarray, shape (num_points, num_features)
    num_clusters, seed, num_starts : int
    one_unit : int
        Number of features, the first ones, that share a unit; see `kmeans_centres`.
    even : bool
        Use k-means of all features only, whose cells are seldom small.

    References
    ----------
    Biernacki, Celeux and Govaert (2003), Comput. Stat. Data Anal. 41, 561-575,
    doi:10.1016/S0167-9473(02)00163-9. Ueda, Nakano, Ghahramani and Hinton (2000), Neural Computation 12,
    2109-2128, doi:10.1162/089976600300015088, on splits and merges.
    """
    rng = np.random.default_rng([seed, 1])
    rows = some_rows(data, rng)
    table = _Table(rows, num_clusters, rng, one_unit)
    kinds = (_Table.cells, _Table.cells, _Table.cells, _Table.white_cells) if even else _KINDS
    turns = np.arange(num_starts) % len(kinds)
    is_plain = turns < 2
    is_plain[np.flatnonzero(is_plain)[_MOST_PLAIN:]] = False
    found = kmeans_centres(rows, num_clusters, seed, int(is_plain.sum()), one_unit=one_unit)
    given = iter([_nearest(rows / s, c / s) for c, s in zip(*found, strict=True)])
    labels, known = [], set()
    plain, wide = np.zeros((2, num_starts), bool)
    tries = _TRIES if num_clusters > 1 else 1
    for start, turn in enumerate(turns):
        for attempt in range(tries):
            kind = kinds[(turn + attempt) % len(kinds)]
            plain[start] = is_plain[start] and not attempt
            label = next(given) if plain[start] else kind(table)
            key = _renumbered(label).tobytes()
            if key not in known:
                break
        else:
            tries = 1  # there seem to be no others
        wide[start] = kind is _Table.wide and not plain[start]
        known.add(key)
        labels.append(label)
    return Partitions(rows, np.stack(labels), plain, wide)


def partition_labels(
    data: NDArray, num_clusters: int, seed: int, num_starts: int
) -> NDArray[np.int64]:
    """Labels of all rows in such partitions, shape (num_starts, num_points)."""
    found = partitions(data, num_clusters, seed, num_starts)
    if len(found.rows) == len(data):
        return found.labels
    unit = units(found.rows)
    mean, _ = cell_moments(found, num_clusters)
    return np.stack([_nearest(data / unit, centres / unit) for centres in mean])


def cell_moments(found: Partitions, num_clusters: int) -> tuple[NDArray, NDArray]:
    """Means of the cells of partitions, and covariances to start from.

    For a plain partition, the covariances are the variances of the data, shrunk to the size of a
    cell. For a wide partition, they are the covariance of the data. Otherwise they are pooled from
    the covariance of the cell and that of the data, shrunk likewise, which counts as that of two
    more rows than there are features.

    Returns
    -------
    mean : ndarray, shape (num_starts, num_clusters, num_features)
    covariance : ndarray, shape (num_starts, num_clusters, num_features, num_features)
    """
    centre, num_features = found.rows.mean(axis=0), found.rows.shape[1]
    rows = found.rows - centre
    variance = (rows**2).mean(axis=0)
    # a feature may be constant, or a copy of another
    floor = 1e-6 * np.where(variance > 0, variance, variance.mean() or 1.0)
    total = rows.T @ rows / len(rows) + np.diag(floor)
    typical, weight = total / num_clusters ** (2 / num_features), num_features + 2.0
    mean = np.zeros((len(found.labels), num_clusters, num_features))
    spread = np.empty((*mean.shape, num_features))
    for start, label in enumerate(found.labels):
        for cell in range(num_clusters):
            own = rows[label == cell]
            if len(own):
                mean[start, cell] = own.mean(axis=0)
            apart = own - mean[start, cell]
            spread[start, cell] = (apart.T @ apart + weight * typical) / (len(own) + weight)
    spread[found.plain] = np.diag(np.diagonal(typical))
    spread[found.wide] = total
    return mean + centre, spread


class _Table:
    """Rows in several units, and partitions of them."""

    def __init__(
        self, rows: NDArray, num_clusters: int, rng: np.random.Generator, one_unit: int
    ) -> None:
        self.num_clusters, self.rng = num_clusters, rng
        self.pairs: list[tuple[int, int]] = []
        self.finer: NDArray[np.int64]
        centred = rows - rows.mean(axis=0)
        self.scaled = centred / units(rows, one_unit)
        values, vectors = np.linalg.eigh(self.scaled.T @ self.scaled / len(rows))
        varies = values > _FLAT * values.max(initial=1.0)
        root = vectors[:, varies] / np.sqrt(values[varies])
        self.white = self.scaled @ root @ vectors[:, varies].T

    def cells(self) -> NDArray[np.int64]:
        """K-means on all features."""
        return self.by_kmeans(self.scaled, self.num_clusters)

    def white_cells(self) -> NDArray[np.int64]:
        """K-means on uncorrelated features."""
        return self.by_kmeans(self.white, self.num_clusters)

    def near(self) -> NDArray[np.int64]:
        """Each row with the nearest of some at random."""
        return self.about_rows(self.scaled)

    def wide(self) -> NDArray[np.int64]:
        """The partition of `near`, to be combined with the spread of all data."""
        return self.about_rows(self.scaled)

    def by_kmeans(self, table: NDArray, num_cells: int, share: float = 0.5) -> NDArray[np.int64]:
        """Assign rows to the nearest of the centres that k-means finds in a subset of the rows."""
        size = min(len(table), max(10 * num_cells, int(share * len(table))), _MOST_IN_SAMPLE)
        sample = table[self.rng.choice(len(table), size, replace=False)]
        if size <= num_cells:
            return self.about_rows(table)
        with (
            warnings.catch_warnings(),
            np.errstate(invalid="ignore"),
        ):  # fewer distinct rows than cells
            warnings.simplefilter("ignore", UserWarning)  # a cell that ran empty
            centres, _ = kmeans2(sample, num_cells, _STEPS, minit="++", rng=self.rng)
        return _nearest(table, centres)

    def about_rows(self, table: NDArray) -> NDArray[np.int64]:
        """Each row with the nearest of some at random."""
        few = len(table) < self.num_clusters
        return _nearest(table, table[self.rng.choice(len(table), self.num_clusters, replace=few)])

    def directions(self) -> NDArray[np.int64]:
        """K-means in one or two random directions of uncorrelated features."""
        turn = self.rng.normal(size=(self.white.shape[1], self.rng.integers(1, 3)))
        return self.by_kmeans(self.white @ turn, self.num_clusters)

    def features(self) -> NDArray[np.int64]:
        """K-means on some features."""
        number = self.scaled.shape[1]
        some = self.rng.choice(number, self.rng.integers(1, max(2, number)), replace=False)
        return self.by_kmeans(self.scaled[:, some], self.num_clusters)

    def merged(self) -> NDArray[np.int64]:
        """Merge two cells of a partition with one more cell; the next call merges two others."""
        if not self.pairs:
            self.finer = self.by_kmeans(self.scaled, self.num_clusters + 1, share=1.0)
            pairs = list(combinations(range(self.num_clusters + 1), 2))
            self.pairs = [pairs[n] for n in self.rng.permutation(len(pairs))]
        kept, gone = self.pairs.pop()
        label = np.where(self.finer == gone, kept, self.finer)
        return label - (label > gone)

    def split(self) -> NDArray[np.int64]:
        """Split one cell of a partition with one cell fewer."""
        number = max(1, self.num_clusters - 1)
        label = (
            self.by_kmeans(self.scaled, number) if number > 1 else np.zeros(len(self.white), int)
        )
        cell = np.flatnonzero(label == self.rng.choice(label))
        along = self.white[cell] @ self.rng.normal(size=self.white.shape[1])
        if self.num_clusters > 1:
            label[cell[along > np.median(along)]] = number
        return label


_KINDS: tuple[Callable[[_Table], NDArray], ...] = (
    _Table.near,
    _Table.near,
    _Table.cells,
    _Table.white_cells,
    _Table.wide,
    _Table.merged,
    _Table.directions,
    _Table.wide,
    _Table.features,
    _Table.merged,
    _Table.split,
)
"""Sources of partitions, in turn; the first two are substitutes for those of `kmeans_centres`."""


def _nearest(table: NDArray, centres: NDArray) -> NDArray[np.int64]:
    return vq(table, centres, check_finite=False)[0].astype(np.int64)


def _renumbered(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same partition, with its cells numbered in the order of their first rows."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
