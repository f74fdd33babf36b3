"""Points whose distances are those along their neighbour graph, and what they say about a map."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from jax.core import Tracer
from numpy.typing import NDArray
from scipy.sparse.csgraph import dijkstra

from sidebayes.common.magnitudes import counted, listed

from ..mixtures.data_units import remark_on_units
from .geodesics import joined, nearest

__all__ = ["Points", "remark_on_far_points", "remark_on_short_circuits"]

_SAME = 1e-4
"""Relative difference up to which distances are those along the graph, also in single precision."""

_FAR = 10.0
"""Ratio of the distances of two rows from their last neighbour above which a gap separates them."""

_SHARE = 5 / 8
"""Share of the neighbours that are left to see which distances depend on the others."""
_LEAST = 4
"""Number of neighbours below which graphs of sound data also have large holes."""
_FEWEST = 6
"""Number of neighbours from which on a graph is compared with one of fewer."""
_LONGER = 2.6
"""Factor by which one distance in a hundred grows with fewer neighbours if there are short circuits."""
_SOURCES = 100
"""Number of landmarks from which distances are compared."""


class Points(NamedTuple):
    """A table of points, and the graph from which distances between them may come.

    Attributes
    ----------
    x : array_like, shape (num_points, num_features)
    num_neighbors : int
    """

    x: Any
    num_neighbors: int

    def remark(self, distances: NDArray, landmarks: NDArray[np.int64]) -> str | None:
        """Say what makes a map doubtful that is made from distances along the graph.

        Nothing is said of distances that are not those of the graph: they were given beside `x`.
        """
        if isinstance(self.x, Tracer) or len(self.x) <= self.num_neighbors:
            return None
        x = np.asarray(self.x, float)
        near = nearest(x, self.num_neighbors)
        along = dijkstra(joined(near), indices=landmarks[0])
        if not np.allclose(along, distances[:, 0], rtol=_SAME, atol=0):
            return None
        said = (
            remark_on_far_points(near),
            remark_on_units("x", x),
            remark_on_short_circuits(near, landmarks, distances),
        )
        return ". ".join(filter(None, said)) or None


def remark_on_far_points(near: scipy.sparse.csr_array) -> str | None:
    """Name points whose last neighbour is much further away than that of any other point."""
    reach = near.max(axis=1).toarray().ravel()
    order = np.argsort(reach)
    upper = order[len(order) // 2 :]
    gaps = np.flatnonzero(reach[upper[1:]] > _FAR * reach[upper[:-1]])
    if not len(gaps):
        return None
    far = np.sort(upper[gaps[0] + 1 :])
    return (
        f"x has values far from all others in row {listed(far)}: the last neighbour of such a row is more "
        f"than {_FAR:g} times as far away as that of any other row. Such a value decides the scale of the "
        "map almost alone. If it is a slip or stands for a missing value, correct it, drop the row or impute "
        "it; if it is right, consider logarithms"
    )


def remark_on_short_circuits(
    near: scipy.sparse.csr_array, landmarks: NDArray[np.int64], distances: NDArray
) -> str | None:
    """Name an edge that joins points which are far apart in a graph of fewer neighbours.

    Short circuits are among the longest edges of their points, and disappear first. Distances along
    a sound graph then increase little. Edges are compared with lower bounds of the detours around
    them, by the triangle inequality.

    Parameters
    ----------
    near : sparse array, shape (num_points, num_points)
        Distances of all points from their nearest neighbours; see `nearest`.
    landmarks : ndarray of int, shape (num_landmarks,)
    distances : ndarray, shape (num_points, num_landmarks)
        Along the graph.
    """
    size = near.shape[0]
    number = near.nnz // size
    if number < _FEWEST:
        return None
    fewer = max(_LEAST, int(np.ceil(_SHARE * number)))
    chosen = np.arange(0, len(landmarks), -(-len(landmarks) // _SOURCES))
    before = distances[:, chosen].T
    after = dijkstra(joined(_nearest_of(near, fewer)), indices=landmarks[chosen])
    known = np.isfinite(after) & (before > 0)
    longer = float(np.quantile(after[known] / before[known], 0.99))
    if longer <= _LONGER:
        return None
    edges = scipy.sparse.coo_array(scipy.sparse.triu(joined(near)))
    one, other = edges.coords
    detour = np.zeros(len(one))
    for row in np.where(np.isfinite(after), after, np.nan):  # a table of all edges would be large
        detour = np.fmax(detour, np.abs(row[one] - row[other]))
    excess = detour - edges.data
    worst = int(excess.argmax())
    like = int((excess > excess[worst] / 2).sum()) - 1
    more = f"; {counted(like, 'more edge')} {'is' if like == 1 else 'are'} like it" if like else ""
    return (
        f"The graph of {number} nearest neighbours may have short circuits between parts of x that are far "
        f"apart along it: an edge of length {edges.data[worst]:.3g} joins points {one[worst]} and "
        f"{other[worst]}, between which the way is at least {detour[worst]:.3g} with {fewer} "
        f"neighbours{more}. Unless x has a gap there, the map is folded, whatever the noise and the number "
        f"of starts: compare maps with num_neighbors = {fewer}, with more rows, or without rows between such "
        "parts"
    )


def _nearest_of(near: scipy.sparse.csr_array, number: int) -> scipy.sparse.csr_array:
    """Keep the nearest of the neighbours of each point."""
    size = near.shape[0]
    lengths, numbers = near.data.reshape(size, -1), near.indices.reshape(size, -1)
    order = np.argsort(lengths, axis=1, kind="stable")[:, :number]
    kept = (np.take_along_axis(table, order, axis=1).ravel() for table in (lengths, numbers))
    bounds = np.arange(0, size * number + 1, number)
    return scipy.sparse.csr_array((*kept, bounds), shape=near.shape)
