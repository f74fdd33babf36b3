"""Landmarks of a graph: vertices far from one another, from which distances are kept."""

from __future__ import annotations

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components, dijkstra

__all__ = ["spread_landmarks"]


def spread_landmarks(
    graph: scipy.sparse.csr_array, number: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Landmarks far from one another: each is the vertex furthest from the previous ones.

    Parameters
    ----------
    graph : sparse array, shape (num_vertices, num_vertices)
    number : int
        Fewer are returned if the largest connected set has fewer vertices.

    Returns
    -------
    landmarks : ndarray of int, shape (num_landmarks,)
        In ascending order, in the largest connected set.
    rows : ndarray, shape (num_landmarks, num_vertices)
        Distances of the landmarks to all vertices.
    """
    _, parts = connected_components(graph, directed=False)
    inside = np.flatnonzero(parts == np.bincount(parts).argmax())
    number = min(number, len(inside))
    landmarks = np.empty(number, np.int64)
    rows = np.empty((number, graph.shape[0]))
    nearest = np.full(len(inside), np.inf)
    for one in range(number):
        landmarks[one] = inside[np.argmax(nearest)]
        rows[one] = dijkstra(graph, indices=landmarks[one])
        nearest = np.minimum(nearest, rows[one, inside])
        nearest[inside == landmarks[one]] = -1  # equal points have distance zero too
    order = np.argsort(landmarks)
    return landmarks[order], rows[order]
