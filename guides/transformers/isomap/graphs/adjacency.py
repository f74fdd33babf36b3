"""The neighbourhood graph: the neighbours of every vertex, and their distances."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

__all__ = ["Adjacency", "Edges", "Links"]

_SPARE = 4
"""Number of neighbours for which a vertex has spare room."""


class Edges(NamedTuple):
    """Undirected edges.

    Attributes
    ----------
    ends : ndarray of int, shape (num_edges, 2)
    lengths : ndarray, shape (num_edges,)
    """

    ends: NDArray[np.int64]
    lengths: NDArray[np.float64]

    @classmethod
    def none(cls) -> Self:
        """Return an empty set of edges."""
        return cls(np.empty((0, 2), np.int64), np.empty(0))

    @classmethod
    def unique(cls, first: NDArray, second: NDArray, lengths: NDArray) -> Self:
        """Return edges without duplicates, whichever end is named first."""
        ends = np.sort(np.column_stack([first, second]).astype(np.int64), axis=1)
        ends, where = np.unique(ends, axis=0, return_index=True)
        return cls(ends, np.asarray(lengths, float)[where])

    def where(self, chosen: NDArray[np.bool_]) -> Edges:
        """Select some of the edges."""
        return Edges(self.ends[chosen], self.lengths[chosen])


class Links(NamedTuple):
    """Neighbours of some rows, row by row.

    Attributes
    ----------
    bounds : ndarray of int, shape (num_rows + 1,)
        Where the neighbours of each row begin and end.
    to : ndarray of int
    lengths : ndarray
    """

    bounds: NDArray[np.int64]
    to: NDArray[np.int64]
    lengths: NDArray[np.float64]


class Adjacency:
    """Neighbours of every vertex in one block of a pool, with room for more.

    Parameters
    ----------
    graph : sparse array, shape (num_vertices, num_vertices)
        Symmetric. Every stored entry is an edge, and zeros are edges of length zero.

    Attributes
    ----------
    start, degree : ndarray of int, shape (num_vertices,)
        Block of each vertex in the pool, and its number of neighbours.
    to, length : ndarray
        The pool: neighbours, and the lengths of the edges to them.
    """

    def __init__(self, graph: scipy.sparse.csr_array) -> None:
        self._fill(np.diff(graph.indptr), graph.indices, graph.data)

    def __len__(self) -> int:
        return len(self.degree)

    def _fill(self, degree: NDArray, to: NDArray, length: NDArray) -> None:
        self.degree = degree.astype(np.int64)
        self._room = self.degree + _SPARE
        self.start = np.cumsum(self._room) - self._room
        self._used = int(self._room.sum())
        size = int(1.25 * self._used) + 16
        self.to = np.zeros(size, np.int64)
        self.length = np.zeros(size)
        slots = self.slots()
        self.to[slots], self.length[slots] = to, length

    def slots(self) -> NDArray[np.int64]:
        """Return places of all neighbours in the pool, vertex by vertex."""
        ends = np.cumsum(self.degree)
        first = np.repeat(self.start - (ends - self.degree), self.degree)
        return first + np.arange(ends[-1] if len(ends) else 0)

    def matrix(self) -> scipy.sparse.csr_array:
        """Return the graph as a symmetric sparse array of lengths, in which zeros are stored too."""
        slots = self.slots()
        bounds = np.concatenate([[0], np.cumsum(self.degree)])
        size = len(self)
        return scipy.sparse.csr_array(
            (self.length[slots], self.to[slots], bounds), shape=(size, size)
        )

    def neighbors(self, vertex: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return views of the neighbours of a vertex, and of the lengths of the edges to them."""
        block = slice(self.start[vertex], self.start[vertex] + self.degree[vertex])
        return self.to[block], self.length[block]

    def lengths(self, edges: Edges) -> NDArray[np.float64]:
        """Return the lengths of some edges in the graph; infinite where it does not have them."""
        found = np.full(len(edges.ends), np.inf)
        for number, (one, other) in enumerate(edges.ends.tolist()):
            to, length = self.neighbors(one)
            found[number] = np.min(length[to == other], initial=np.inf)
        return found

    def incident(self, vertices: Iterable[int]) -> Edges:
        """Return all edges that end in one of some vertices."""
        blocks = [(vertex, *self.neighbors(vertex)) for vertex in vertices]
        if not blocks:
            return Edges.none()
        first = np.concatenate([np.full(len(to), vertex) for vertex, to, _ in blocks])
        return Edges.unique(
            first,
            np.concatenate([to for _, to, _ in blocks]),
            np.concatenate([length for *_, length in blocks]),
        )

    def edges(self) -> Edges:
        """Return all edges, each once, with the lower end first."""
        upper = scipy.sparse.coo_array(self.matrix())
        first, second = upper.coords
        once = first < second
        return Edges(
            np.column_stack([first, second])[once].astype(np.int64), np.asarray(upper.data)[once]
        )

    def add(self, edges: Edges) -> None:
        """Add edges that the graph does not have."""
        for (one, other), length in zip(edges.ends.tolist(), edges.lengths.tolist(), strict=True):
            self._put(one, other, length)
            self._put(other, one, length)

    def discard(self, edges: Edges) -> None:
        """Drop edges that the graph has."""
        for one, other in edges.ends.tolist():
            self._take(one, other)
            self._take(other, one)

    def append(self) -> None:
        """Add a vertex without neighbours."""
        self._reserve(2 * _SPARE)
        self.start = np.append(self.start, self._used)
        self.degree = np.append(self.degree, 0)
        self._room = np.append(self._room, 2 * _SPARE)
        self._used += 2 * _SPARE

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Keep some vertices, and the edges between them; they are renumbered in their order."""
        graph = self.matrix()[kept][:, kept]
        self._fill(np.diff(graph.indptr), graph.indices, graph.data)

    def _put(self, vertex: int, other: int, length: float) -> None:
        degree = self.degree[vertex]
        if degree == self._room[vertex]:
            self._move(vertex)
        slot = self.start[vertex] + degree
        self.to[slot], self.length[slot] = other, length
        self.degree[vertex] = degree + 1

    def _take(self, vertex: int, other: int) -> None:
        to, length = self.neighbors(vertex)
        place = int(np.flatnonzero(to == other)[0])
        to[place], length[place] = to[-1], length[-1]
        self.degree[vertex] -= 1

    def _move(self, vertex: int) -> None:
        """Give a vertex a block twice as large."""
        room = 2 * int(self._room[vertex]) + _SPARE
        self._reserve(room)
        to, length = self.neighbors(vertex)
        block = slice(self._used, self._used + len(to))
        self.to[block], self.length[block] = to, length
        self.start[vertex], self._room[vertex] = self._used, room
        self._used += room

    def _reserve(self, number: int) -> None:
        missing = self._used + number - len(self.to)
        if missing > 0:
            more = missing + len(self.to) // 2
            self.to = np.concatenate([self.to, np.zeros(more, np.int64)])
            self.length = np.concatenate([self.length, np.zeros(more)])
