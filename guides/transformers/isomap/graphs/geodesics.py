"""Geodesic distances of a graph that changes: from all vertices, or from landmarks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components, dijkstra
from sidebayes.models.blocks.embedding.landmarks import spread_landmarks

from .adjacency import Adjacency, Edges, Links
from .growing import Growing

__all__ = ["Geodesics", "load"]


def load() -> Callable[..., int]:
    """Return the compiled update of rows of distances.

    Raises
    ------
    ImportError
        If numba is not installed.
    """
    from .paths import update_rows

    return update_rows


class Geodesics:
    """Shortest-path lengths of a graph, which stay exact when edges and vertices are added and removed.

    Parameters
    ----------
    graph : sparse array, shape (num_vertices, num_vertices)
        Symmetric lengths, zeros stored.
    sources : ndarray of int, optional
        Landmarks; by default, all vertices.
    rows : ndarray, shape (num_sources, num_vertices), optional
        Distances, if they are known.
    num_wanted : int, optional
        Desired number of landmarks, where connected sets are large enough.

    Attributes
    ----------
    adjacency : Adjacency
    num_wanted : int
    num_computed : int
        Number of distances that the last change computed, out of num_sources * num_vertices.
    """

    def __init__(
        self,
        graph: scipy.sparse.csr_array,
        sources: NDArray[np.int64] | None = None,
        rows: NDArray[np.float64] | None = None,
        num_wanted: int | None = None,
    ) -> None:
        self.num_wanted = num_wanted or 0
        self.adjacency = Adjacency(graph)
        self._landmarks = sources
        if rows is None:
            rows = dijkstra(graph, indices=sources)
        self._rows = Growing(rows, (0, 1) if sources is None else (1,))
        self.num_computed = rows.size

    def __len__(self) -> int:
        return len(self.adjacency)

    @property
    def is_complete(self) -> bool:
        """Whether distances are kept between all vertices."""
        return self._landmarks is None

    @property
    def sources(self) -> NDArray[np.int64]:
        """Vertices from which distances are kept."""
        return np.arange(len(self)) if self._landmarks is None else self._landmarks

    @property
    def rows(self) -> NDArray[np.float64]:
        """Distances from the sources, shape (num_sources, num_vertices); infinite between parts."""
        return self._rows.values

    def parts(self) -> NDArray[np.int64]:
        """Connected set of every vertex, numbered from the largest down."""
        if not len(self):
            return np.empty(0, np.int64)
        if np.isfinite(self.rows[:1]).all() and len(self.rows):
            return np.zeros(len(self), np.int64)
        _, found = connected_components(self.adjacency.matrix(), directed=False)
        order = np.argsort(-np.bincount(found), kind="stable")
        return np.argsort(order)[found]

    def choose_landmarks(self) -> None:
        """Choose new landmarks in the current largest connected set."""
        self._landmarks, rows = spread_landmarks(self.adjacency.matrix(), self.num_wanted)
        self._rows = Growing(rows, (1,))

    def recompute(self) -> None:
        """Compute all distances anew."""
        rows = dijkstra(self.adjacency.matrix(), indices=self._landmarks)
        self._rows = Growing(rows, self._rows.axes)
        self.num_computed = rows.size

    def append_vertex(self) -> None:
        """Add a vertex that is connected to nothing; `change` then adds its edges."""
        self.adjacency.append()
        self._rows.extend(1, np.inf)
        if self.is_complete:
            self.rows[-1, -1] = 0

    def change(self, removed: Edges, added: Edges) -> None:
        """Remove edges that the graph has, add others that it does not have, and update distances."""
        update_rows = load()
        self.change_graph(removed, added)
        graph = self.adjacency
        self.num_computed = int(
            update_rows(
                self.rows,
                self.sources,
                graph.start,
                graph.degree,
                graph.to,
                graph.length,
                *removed,
                *added,
            )
        )

    def through(self, links: Links) -> NDArray[np.float64]:
        """Return distances of other points from the sources by way of their neighbours.

        Returns
        -------
        ndarray, shape (num_points, num_sources)
            Infinite for points without neighbours.
        """
        found = np.full((len(links.bounds) - 1, len(self.rows)), np.inf)
        linked = np.flatnonzero(np.diff(links.bounds))
        if len(linked):
            over = self.rows[links.to] if self.is_complete else self.rows[:, links.to].T
            found[linked] = np.minimum.reduceat(
                over + links.lengths[:, None], links.bounds[linked], axis=0
            )
        return found

    def change_graph(self, removed: Edges, added: Edges) -> None:
        """Change edges only; `recompute` must follow."""
        self.adjacency.discard(removed)
        self.adjacency.add(added)

    def leave_landmarks(self, gone: NDArray[np.int64]) -> None:
        """Replace each landmark that will be removed by the nearest of the other vertices."""
        if self._landmarks is None:
            return
        for place in np.flatnonzero(np.isin(self._landmarks, gone)):
            others = np.setdiff1d(np.arange(len(self)), np.union1d(gone, self._landmarks))
            self._landmarks[place] = others[np.argmin(self.rows[place, others])]
            self.rows[place] = dijkstra(self.adjacency.matrix(), indices=self._landmarks[place])

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Keep some vertices, renumbered in their order, with their current distances.

        These are right if all edges of the others were removed before, or if edges that replace the
        paths over them were added. Landmarks must be among the vertices that are kept.
        """
        if self._landmarks is not None:
            self._landmarks = np.searchsorted(kept, self._landmarks)
        self.adjacency.keep(kept)
        self._rows.keep(kept)
