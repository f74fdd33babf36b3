"""Rows, their neighbourhood graph and its geodesic distances, which are updated together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import dijkstra
from sidebayes.models.blocks.embedding.landmarks import spread_landmarks

from .adjacency import Edges
from .geodesics import Geodesics, load
from .neighbors import Neighbors, Radius
from .rows import DistanceRows, GraphRows, Rows

__all__ = ["Manifold", "Nearest"]

_MANY = 0.2
"""Share of new or removed rows above which it is faster to compute all distances anew."""
_BLOCK = 1_000_000
"""Number of distances of other rows that are held at once."""
_TIE = 1e-11
"""Relative difference below which two paths are equally long."""


class Nearest(NamedTuple):
    """The nearest row of each of some others, and its distance."""

    row: NDArray[np.int64]
    distance: NDArray[np.float64]


@dataclass
class Manifold:
    """Rows with their graph and distances.

    Attributes
    ----------
    rows : Rows
    neighbors : Neighbors
    geodesics : Geodesics
    """

    rows: Rows
    neighbors: Neighbors
    geodesics: Geodesics

    def __len__(self) -> int:
        return len(self.geodesics)

    @classmethod
    def start(cls, given: Any, neighbors: Neighbors, num_landmarks: int | None) -> Self:
        """Start from features of rows, all their distances, or a sparse graph, which is used as it is."""
        rows: Rows
        if isinstance(given, scipy.sparse.csr_array):
            rows, neighbors, graph = GraphRows(given.shape[0]), Radius(np.inf), given
        else:
            searched = DistanceRows(given) if isinstance(given, np.ndarray) else given
            rows, graph = searched, neighbors.start(searched)
        if num_landmarks is None:
            return cls(rows, neighbors, Geodesics(graph))
        landmarks = spread_landmarks(graph, num_landmarks)
        return cls(rows, neighbors, Geodesics(graph, *landmarks, num_landmarks))

    @property
    def reach(self) -> float:
        """Largest distance of a row from its nearest neighbour in another place.

        Infinite where only rows within a radius are joined, so that no far row is joined.
        """
        if isinstance(self.neighbors, Radius):
            return np.inf
        graph = self.geodesics.adjacency.matrix()
        lengths = np.where(graph.data > 0, graph.data, np.inf)
        nearest = np.minimum.reduceat(lengths, graph.indptr[:-1][np.diff(graph.indptr) > 0])
        return float(nearest[np.isfinite(nearest)].max(initial=0.0)) or np.inf

    def insert(self, new: Any) -> Nearest:
        """Add rows to the graph, and update distances.

        Returns
        -------
        Nearest
            For every new row, among the rows before this call.
        """
        load()
        first = len(self)
        self.rows.append(new)
        many = len(self.rows) - first > _MANY * first
        closest, apart = [], []
        for number in range(first, len(self.rows)):
            distances = self.rows.distances(np.array([number]))[0, :number]
            closest.append(int(distances[:first].argmin()))
            apart.append(distances[closest[-1]])
            changes = self.neighbors.insert(distances, self.geodesics.adjacency)
            if many:
                self.geodesics.adjacency.append()
                self.geodesics.change_graph(*changes)
            else:
                self.geodesics.append_vertex()
                self.geodesics.change(*changes)
        if many:
            self.geodesics.recompute()
        return Nearest(np.array(closest, int), np.array(apart))

    def reached(self, new: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return geodesic distances of other rows from the sources, and the distance of the nearest row.

        Shapes (num_new, num_sources) and (num_new,).
        """
        found, nearest = [], []
        width = max(1, _BLOCK // len(self))
        for low in range(0, new.shape[0], width):
            distances = self.rows.outside(new[low : low + width])
            found.append(self.geodesics.through(self.neighbors.links(distances)))
            nearest.append(distances.min(axis=1))
        return np.concatenate(found), np.concatenate(nearest)

    def remove(self, gone: NDArray[np.int64]) -> None:
        """Remove rows; the next nearest rows replace them as neighbours."""
        load()
        self.geodesics.leave_landmarks(gone)
        graph = self.geodesics.adjacency
        longer, added = self.neighbors.remove(gone, self.rows, graph)
        incident = graph.incident(gone.tolist())
        removed = Edges(*(np.concatenate(both) for both in zip(incident, longer, strict=True)))
        if len(gone) > _MANY * len(self):
            self.geodesics.change_graph(removed, added)
            self._drop(gone)
            self.geodesics.recompute()
        else:
            self.geodesics.change(removed, added)
            self._drop(gone)

    def contract(self, gone: NDArray[np.int64]) -> None:
        """Remove rows, but keep the paths over them as edges, so that other distances do not change.

        Law (2006), section 3.2.3: neighbours of a row between which it lies on a shortest path are
        connected by an edge as long as that path.
        """
        load()
        self.geodesics.leave_landmarks(gone)
        for number, vertex in enumerate(gone.tolist()):
            removed, added = self._bridges(vertex)
            self.neighbors.contract(gone[: number + 1], self.rows, added)
            graph = self.geodesics.adjacency
            incident = graph.incident([vertex])
            self.geodesics.change_graph(incident, Edges.none())
            self.geodesics.change_graph(removed, added)
        self._drop(gone)

    def set_edge(self, edge: Edges) -> None:
        """Insert an edge, give it another length, or delete it where that is infinite."""
        load()
        old = Edges(edge.ends, self.geodesics.adjacency.lengths(edge))
        removed, added = (one.where(np.isfinite(one.lengths)) for one in (old, edge))
        self.geodesics.change(removed, added)

    def _bridges(self, vertex: int) -> tuple[Edges, Edges]:
        """Return edges between neighbours of a vertex for paths over it, and the edges that they replace."""
        graph = self.geodesics.adjacency
        ends, lengths = graph.neighbors(vertex)
        first, second = np.triu_indices(len(ends), 1)
        over = lengths[first] + lengths[second]
        if self.geodesics.is_complete:
            apart = self.geodesics.rows[ends[first], ends[second]]
        else:
            limit = over.max(initial=0.0) * (1 + _TIE)
            near = dijkstra(graph.matrix(), indices=ends, limit=limit)
            apart = near[first, ends[second]]
        shortest = over <= apart * (1 + _TIE)
        found = Edges.unique(ends[first[shortest]], ends[second[shortest]], over[shortest])
        old = graph.lengths(found)
        replaced = np.isfinite(old) & (old > found.lengths)
        return Edges(found.ends, old).where(replaced), found.where(old > found.lengths)

    def _drop(self, gone: NDArray[np.int64]) -> None:
        kept = np.setdiff1d(np.arange(len(self)), gone)
        self.neighbors.keep(kept)
        self.rows.keep(kept)
        self.geodesics.keep(kept)
