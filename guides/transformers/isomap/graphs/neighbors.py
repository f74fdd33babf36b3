"""Rules of neighbourhood, with updates: k nearest rows, rows within a radius, or a given graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from .adjacency import Adjacency, Edges, Links
from .growing import Growing
from .rows import Rows, SearchedRows, nearest

__all__ = ["KNearest", "Neighbors", "Radius"]

_LOST, _NOBODY = -2, -1
"""Entries in lists of neighbours for one that was contracted, and for one that is missing."""


class Neighbors(Protocol):
    """The rule by which rows are neighbours."""

    def start(self, rows: SearchedRows) -> scipy.sparse.csr_array:
        """Graph of the first rows."""

    def insert(self, distances: NDArray, graph: Adjacency) -> tuple[Edges, Edges]:
        """Return edges that a new row removes and adds, given its distances to all others."""

    def remove(self, gone: NDArray[np.int64], rows: Rows, graph: Adjacency) -> tuple[Edges, Edges]:
        """Return edges to remove and to add between other rows when some rows are removed."""

    def contract(self, gone: NDArray[np.int64], rows: Rows, fixed: Edges) -> None:
        """Remove rows without a change of other edges; `fixed` are edges that replace paths over them."""

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Renumber the rows that are kept."""

    def state(self) -> dict[str, NDArray]:
        """What a file must hold."""

    def resume(self, state: Mapping[str, NDArray]) -> None:
        """Go on from what a file holds."""

    def links(self, distances: NDArray) -> Links:
        """Return neighbours of rows outside the graph among those in it, given all distances."""


def _symmetric(
    first: NDArray, second: NDArray, lengths: NDArray, size: int
) -> scipy.sparse.csr_array:
    """Return the graph of edges that are each given once or twice."""
    edges = Edges.unique(first, second, lengths)
    one, other = edges.ends.T
    both = np.concatenate([one, other]), np.concatenate([other, one])
    order = np.lexsort(both[::-1])
    bounds = np.concatenate([[0], np.cumsum(np.bincount(both[0], minlength=size))])
    return scipy.sparse.csr_array(
        (np.tile(edges.lengths, 2)[order], both[1][order], bounds), shape=(size, size)
    )


class KNearest:
    """Rows are neighbours if one is among the k nearest of the other; earlier rows win ties.

    Attributes
    ----------
    index, length : ndarray, shape (num_rows, k)
        The k nearest of every row, and their distances.
    """

    def __init__(self, number: int, approximate: bool = False) -> None:
        self.number = number
        self._is_approximate = approximate
        self._index = Growing(np.empty((0, number), np.int64))
        self._length = Growing(np.empty((0, number)))
        self._fixed = np.empty((0, 2), np.int64)

    @property
    def index(self) -> NDArray[np.int64]:
        """Numbers of the k nearest rows."""
        return self._index.values

    @property
    def length(self) -> NDArray[np.float64]:
        """Distances to the k nearest rows, in ascending order."""
        return self._length.values

    def start(self, rows: SearchedRows) -> scipy.sparse.csr_array:
        """Graph of the first rows."""
        index, length = rows.nearest(self.number, self._is_approximate)
        self._index, self._length = Growing(index), Growing(length)
        return self.graph()

    def graph(self) -> scipy.sparse.csr_array:
        """Return the graph of the lists of neighbours."""
        row, place = np.nonzero(self.index >= 0)
        return _symmetric(row, self.index[row, place], self.length[row, place], len(self.index))

    def insert(self, distances: NDArray, graph: Adjacency) -> tuple[Edges, Edges]:
        """Update lists that the new row enters; drop edges that no list keeps (Law 2006, eqs. 3.1, 3.2)."""
        new = len(self.index)
        own, own_lengths = nearest(distances[None], self.number)
        closer = np.flatnonzero(distances < self.length[:, -1])
        pushed, pushed_lengths = self.index[closer, -1], self.length[closer, -1]
        index = np.column_stack([self.index[closer], np.full(len(closer), new)])
        self._put(closer, index, np.column_stack([self.length[closer], distances[closer]]))
        self._index.extend(1, _NOBODY)
        self._length.extend(1, np.inf)
        self.index[-1], self.length[-1] = own[0], own_lengths[0]
        gone = pushed >= 0
        removed = Edges.unique(closer[gone], pushed[gone], pushed_lengths[gone])
        one, other = removed.ends.T
        kept = (self.index[one] == other[:, None]).any(1) | (self.index[other] == one[:, None]).any(
            1
        )
        kept |= (removed.ends[:, None] == self._fixed).all(2).any(1)
        joined = np.union1d(own[0][own[0] >= 0], closer)
        added = Edges.unique(joined, np.full(len(joined), new), distances[joined])
        return removed.where(~kept), added

    def remove(self, gone: NDArray[np.int64], rows: Rows, graph: Adjacency) -> tuple[Edges, Edges]:
        """Fill the places of removed rows in lists with the next nearest rows."""
        short = np.flatnonzero(np.isin(self.index, gone).any(axis=1))
        short = np.setdiff1d(short, gone)
        if not len(short):
            return Edges.none(), Edges.none()
        index, length = nearest(_others(rows, short, gone), self.number)
        lost = self.index[short] == _LOST
        index = np.hstack([index, np.full(lost.shape, _LOST)])
        length = np.hstack([length, np.where(lost, self.length[short], np.inf)])
        index, length = self._put(short, index, length)
        row, place = np.nonzero(index >= 0)
        found = Edges.unique(short[row], index[row, place], length[row, place])
        old = graph.lengths(found)  # an edge that replaces contracted rows may be longer
        longer = np.isfinite(old) & (old > found.lengths)
        return Edges(found.ends, old).where(longer), found.where(old > found.lengths)

    def contract(self, gone: NDArray[np.int64], rows: Rows, fixed: Edges) -> None:
        """Leave places of contracted rows vacant, for new rows among the k nearest of remaining ones."""
        fixed_ends = np.concatenate([self._fixed, fixed.ends])
        size = fixed_ends.max(initial=0) + 1  # one number per edge, which is much faster than rows
        self._fixed = np.stack(np.divmod(np.unique(fixed_ends @ [size, 1]), size), axis=1)
        short = np.setdiff1d(np.flatnonzero(np.isin(self.index, gone).any(axis=1)), gone)
        if not len(short):
            return
        distances = _others(rows, short, gone)
        reach = nearest(distances, self.number)[1][:, -1:]
        index = self.index[short]
        is_lost = np.isin(index, gone) | (index == _LOST)
        index[is_lost] = _LOST
        length = np.where(is_lost, reach, self.length[short])
        self._put(short, index, length)

    def _put(
        self, which: NDArray[np.int64], index: NDArray[np.int64], length: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Keep the nearest of longer lists of some rows, and return them."""
        order = np.argsort(length, axis=1, kind="stable")[:, : self.number]
        index = np.take_along_axis(index, order, axis=1)
        length = np.take_along_axis(length, order, axis=1)
        index[np.isinf(length)] = _NOBODY
        self.index[which], self.length[which] = index, length
        return index, length

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Renumber the rows that are kept."""
        number = np.full(len(self.index), _LOST)
        number[kept] = np.arange(len(kept))
        self._index.keep(kept)
        self._length.keep(kept)
        index = self.index
        index[...] = np.where(index >= 0, number[index], index)
        fixed = number[self._fixed]
        self._fixed = fixed[(fixed >= 0).all(axis=1)]

    def state(self) -> dict[str, NDArray]:
        """What a file must hold beside the number of neighbours."""
        return {"index": self.index, "length": self.length, "fixed": self._fixed}

    def resume(self, state: Mapping[str, NDArray]) -> None:
        """Go on from what a file holds."""
        self._index, self._length = Growing(state["index"]), Growing(state["length"])
        self._fixed = state["fixed"]

    def links(self, distances: NDArray) -> Links:
        """Return the k nearest rows of each row outside the graph."""
        index, lengths = nearest(distances, self.number)
        found = index >= 0
        bounds = np.concatenate([[0], np.cumsum(found.sum(axis=1))])
        return Links(bounds, index[found], lengths[found])


def _others(rows: Rows, which: NDArray[np.int64], gone: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return distances of some rows to others, infinite to themselves and to removed ones."""
    distances = rows.distances(which)
    distances[np.arange(len(which)), which] = np.inf
    distances[:, gone] = np.inf
    return distances


class Radius:
    """Rows are neighbours if their distance is finite and at most a radius, which may be infinite."""

    def __init__(self, radius: float) -> None:
        self.radius = radius

    def start(self, rows: SearchedRows) -> scipy.sparse.csr_array:
        """Graph of the first rows."""
        first, second, lengths = rows.within(self.radius)
        return _symmetric(first, second, lengths, len(rows))

    def insert(self, distances: NDArray, graph: Adjacency) -> tuple[Edges, Edges]:
        """Return the edges of the new row; others do not change."""
        near = np.flatnonzero(self._are_near(distances))
        ends = np.column_stack([near, np.full(len(near), len(graph))])
        return Edges.none(), Edges(ends, distances[near])

    def remove(self, gone: NDArray[np.int64], rows: Rows, graph: Adjacency) -> tuple[Edges, Edges]:
        """Return no edges, as no others change."""
        return Edges.none(), Edges.none()

    def contract(self, gone: NDArray[np.int64], rows: Rows, fixed: Edges) -> None:
        """Nothing to keep."""

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Nothing to keep."""

    def state(self) -> dict[str, NDArray]:
        """What a file must hold."""
        return {"radius": np.array(self.radius)}

    def resume(self, state: Mapping[str, NDArray]) -> None:
        """Go on from what a file holds."""
        self.radius = float(state["radius"])

    def links(self, distances: NDArray) -> Links:
        """Return the rows within the radius."""
        row, to = np.nonzero(self._are_near(distances))
        bounds = np.searchsorted(row, np.arange(len(distances) + 1))
        return Links(bounds, to, distances[row, to])

    def _are_near(self, distances: NDArray) -> NDArray[np.bool_]:
        return (distances <= self.radius) & (distances < np.inf)
