"""Distances between rows, from a table, from stated distances, or from a graph."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from .growing import Growing

__all__ = ["DistanceRows", "GraphRows", "Rows", "SearchedRows", "TableRows", "nearest"]

_BLOCK = 10_000_000
"""Maximum number of distances that are held at once."""
_FLAT = 10
"""Maximum number of features for which a k-d tree finds neighbours faster than all distances do."""
_TIE = 1e-12
"""Relative difference of distances below which two rows may be equally far."""
_NOBODY = -1
"""Stands for a missing neighbour where there are too few."""


class Rows(Protocol):
    """Rows between which distances are known."""

    def __len__(self) -> int:
        """Number of rows."""

    def append(self, new: Any) -> None:
        """Add rows."""

    def distances(self, which: NDArray[np.int64]) -> NDArray[np.float64]:
        """Distances of some of the rows to all, shape (len(which), num_rows)."""

    def outside(self, new: Any) -> NDArray[np.float64]:
        """Distances of other rows to all, shape (len(new), num_rows)."""

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Keep some rows, in their order."""

    def state(self) -> dict[str, NDArray]:
        """What a file must hold."""


class SearchedRows(Rows, Protocol):
    """Rows among which neighbours can be searched."""

    def nearest(
        self, number: int, approximate: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Nearest other rows of every row, and how far they are."""

    def within(self, radius: float) -> tuple[NDArray, NDArray, NDArray]:
        """All pairs of rows at most a radius apart, and their distances."""


def nearest(distances: NDArray, number: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return columns of the smallest entries of every row, in order; of equal ones, the first columns.

    Infinite entries are never taken; where too few are left, -1 and infinity fill the places.
    """
    bound = np.full((len(distances), 1), np.inf)
    if number < distances.shape[1]:
        bound = np.partition(distances, number - 1, axis=1)[:, number - 1 : number]
    row, column = np.nonzero((distances <= bound) & (distances < np.inf))
    length = distances[row, column]
    order = np.lexsort((column, length, row))
    row, column, length = row[order], column[order], length[order]
    place = np.arange(len(row)) - np.searchsorted(row, row)
    taken = place < number
    where = row[taken], place[taken]
    index = np.full((len(distances), number), _NOBODY, np.int64)
    found = np.full((len(distances), number), np.inf)
    index[where], found[where] = column[taken], length[taken]
    return index, found


class _AllDistances:
    """Neighbours from blocks of all distances."""

    def __len__(self) -> int:
        raise NotImplementedError

    def distances(self, which: NDArray[np.int64]) -> NDArray[np.float64]:
        raise NotImplementedError

    def _blocks(self, which: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        return np.array_split(which, max(1, -(-len(which) * len(self) // _BLOCK)))

    def nearest(
        self, number: int, approximate: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Nearest other rows of every row, and how far they are."""
        return self._nearest_of(np.arange(len(self)), number)

    def _nearest_of(
        self, rows: NDArray[np.int64], number: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        found = []
        for which in self._blocks(rows):
            distances = self.distances(which)
            distances[np.arange(len(which)), which] = np.inf
            found.append(nearest(distances, number))
        index, length = zip(*found, strict=True)
        return np.concatenate(index), np.concatenate(length)

    def within(self, radius: float) -> tuple[NDArray, NDArray, NDArray]:
        """All pairs of rows at most a radius apart, and their distances."""
        found = []
        for which in self._blocks(np.arange(len(self))):
            distances = self.distances(which)
            row, to = np.nonzero((distances <= radius) & (which[:, None] < np.arange(len(self))))
            found.append((which[row], to, distances[row, to]))
        first, second, lengths = (np.concatenate(part) for part in zip(*found, strict=True))
        return first, second, lengths


class TableRows(_AllDistances):
    """Rows of features.

    Parameters
    ----------
    x : ndarray, shape (num_rows, num_features)
    metric : str
        A name that `scipy.spatial.distance.cdist` knows.
    """

    def __init__(self, x: NDArray[np.float64], metric: str) -> None:
        self._x = Growing(x)
        self.metric = metric

    @property
    def x(self) -> NDArray[np.float64]:
        """The rows."""
        return self._x.values

    def __len__(self) -> int:
        return len(self.x)

    def append(self, new: NDArray[np.float64]) -> None:
        """Add rows."""
        size = len(self)
        self._x.extend(len(new), 0)
        self.x[size:] = new

    def distances(self, which: NDArray[np.int64]) -> NDArray[np.float64]:
        """Distances of some of the rows to all, shape (len(which), num_rows)."""
        return self.outside(self.x[which])

    def outside(self, new: NDArray[np.float64]) -> NDArray[np.float64]:
        """Distances of other rows to all, shape (len(new), num_rows)."""
        kind: Any = self.metric
        return cdist(new, self.x, kind)

    def state(self) -> dict[str, NDArray]:
        """What a file must hold."""
        return {"x": self.x, "metric": np.array(self.metric)}

    def nearest(
        self, number: int, approximate: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Nearest other rows of every row, and how far they are."""
        if approximate:
            return _approximately_nearest(self.x, number)
        is_flat = self.metric == "euclidean" and self.x.shape[1] <= _FLAT
        if not is_flat or number + 2 > len(self):
            return super().nearest(number, approximate)
        length, index = cKDTree(self.x).query(self.x, number + 2, workers=-1)
        index, length = _others(index, length)
        tied = np.flatnonzero(length[:, -1] <= length[:, -2] * (1 + _TIE))
        index, length = index[:, :-1], length[:, :-1]
        index[tied], length[tied] = self._nearest_of(tied, number)  # of equal rows the first
        return index, length

    def within(self, radius: float) -> tuple[NDArray, NDArray, NDArray]:
        """All pairs of rows at most a radius apart, and their distances."""
        if self.metric != "euclidean" or self.x.shape[1] > _FLAT:
            return super().within(radius)
        pairs = cKDTree(self.x).query_pairs(radius, output_type="ndarray")
        first, second = pairs.T
        return first, second, np.linalg.norm(self.x[first] - self.x[second], axis=1)

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Keep some rows, in their order."""
        self._x.keep(kept)


class DistanceRows(_AllDistances):
    """Rows for which all distances are stated.

    Parameters
    ----------
    distances : ndarray, shape (num_rows, num_rows)
    """

    def __init__(self, distances: NDArray[np.float64]) -> None:
        self._distances = Growing(distances, (0, 1))

    def __len__(self) -> int:
        return len(self._distances.values)

    def append(self, new: NDArray[np.float64]) -> None:
        """Add rows, with their distances to those before and to one another."""
        size = len(self)
        self._distances.extend(len(new), 0)
        self._distances.values[size:] = new
        self._distances.values[:size, size:] = new[:, :size].T

    def distances(self, which: NDArray[np.int64]) -> NDArray[np.float64]:
        """Distances of some of the rows to all, shape (len(which), num_rows)."""
        return self._distances.values[which]

    def state(self) -> dict[str, NDArray]:
        """What a file must hold."""
        return {"distances": self._distances.values}

    def outside(self, new: NDArray[np.float64]) -> NDArray[np.float64]:
        """Distances of other rows to all, as given."""
        return new

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Keep some rows, in their order."""
        self._distances.keep(kept)


class GraphRows:
    """Rows for which only the distances to neighbours are stated; those of the last rows are kept.

    Parameters
    ----------
    number : int
        Number of rows.
    """

    def __init__(self, number: int) -> None:
        self._size = number
        self._new = scipy.sparse.csr_array((0, number))

    def __len__(self) -> int:
        return self._size

    def append(self, new: scipy.sparse.csr_array) -> None:
        """Add rows, with their distances to neighbours before and among themselves."""
        self._size += new.shape[0]
        self._new = new

    def distances(self, which: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return distances of some of the last rows to all, infinite where none is stated."""
        return _filled(self._new[which - (self._size - self._new.shape[0])], self._size)

    def state(self) -> dict[str, NDArray]:
        """What a file must hold: nothing, since rows are known by their edges."""
        return {}

    def outside(self, new: scipy.sparse.csr_array) -> NDArray[np.float64]:
        """Distances of other rows to all, infinite where none is stated."""
        return _filled(new, self._size)

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Keep some rows, in their order."""
        self._size = len(kept)
        self._new = scipy.sparse.csr_array((0, self._size))


def _filled(stated: scipy.sparse.csr_array, size: int) -> NDArray[np.float64]:
    """Return stated distances as a full array, infinite elsewhere."""
    found = np.full((stated.shape[0], size), np.inf)
    row = np.repeat(np.arange(stated.shape[0]), np.diff(stated.indptr))
    found[row, stated.indices] = stated.data
    return found


def _others(index: NDArray, length: NDArray) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return neighbours without the row itself, or without the last if too many rows are equal to it."""
    size, number = len(index), index.shape[1] - 1
    is_other = index != np.arange(size)[:, None]
    is_other[:, -1] &= ~is_other.all(axis=1)
    index = index[is_other].reshape(size, number).astype(np.int64)
    length = length[is_other].reshape(size, number)
    order = np.lexsort((index, length), axis=1)
    return np.take_along_axis(index, order, axis=1), np.take_along_axis(length, order, axis=1)


def _approximately_nearest(
    x: NDArray, number: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return neighbours by pynndescent, with the lengths of the edges in full precision."""
    try:
        from pynndescent import NNDescent
    except ImportError as error:
        raise ImportError(
            "neighbors='approximate' needs pynndescent, which is not installed: "
            "pip install 'sidebayes[isomap]', or take neighbors='exact'"
        ) from error
    index, _ = NNDescent(x, n_neighbors=number + 1, random_state=0).neighbor_graph
    index, _ = _others(index, np.zeros(index.shape))
    length = np.column_stack([np.linalg.norm(x - x[column], axis=1) for column in index.T])
    length[index < 0] = np.inf
    order = np.lexsort((index, length), axis=1)
    return np.take_along_axis(index, order, axis=1), np.take_along_axis(length, order, axis=1)
