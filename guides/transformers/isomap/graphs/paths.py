"""Shortest paths after a change of edges, compiled by numba."""

from __future__ import annotations

import numpy as np

try:
    from numba import njit
except ImportError as error:
    raise ImportError(
        "IncrementalIsomap updates shortest paths with numba, which is not installed: "
        "pip install 'sidebayes[isomap]'"
    ) from error

__all__ = ["reach_over", "restart", "settle", "update_rows"]

_TIE = 1e-11
"""Relative difference of lengths below which two paths count as equally long; both are then considered."""


@njit(cache=True, nogil=True, inline="always")
def _is_tight(near, length, far):
    """Return whether a shortest path may use an edge: the end is as far as the beginning plus the edge."""
    return near < np.inf and far < np.inf and near + length <= far * (1 + _TIE)


@njit(cache=True, nogil=True)
def reach_over(row, source, start, degree, to, length, ends, lengths, is_waiting, queue):
    """Queue the vertices that a shortest path may reach over removed edges; return their number."""
    size = 0
    for edge in range(len(lengths)):
        for side in range(2):
            near, far = ends[edge, side], ends[edge, 1 - side]
            if (
                far != source
                and not is_waiting[far]
                and _is_tight(row[near], lengths[edge], row[far])
            ):
                is_waiting[far] = True
                queue[size] = far
                size += 1
    at = 0
    while at < size:
        vertex = queue[at]
        at += 1
        for slot in range(start[vertex], start[vertex] + degree[vertex]):
            far = to[slot]
            if (
                far != source
                and not is_waiting[far]
                and _is_tight(row[vertex], length[slot], row[far])
            ):
                is_waiting[far] = True
                queue[size] = far
                size += 1
    return size


@njit(cache=True, nogil=True)
def restart(row, start, degree, to, length, queue, waiting):
    """Give queued vertices the shortest paths over neighbours that are not queued, or queued before them."""
    for at in range(waiting):
        row[queue[at]] = np.inf
    for at in range(waiting):
        vertex = queue[at]
        for slot in range(start[vertex], start[vertex] + degree[vertex]):
            row[vertex] = min(row[vertex], row[to[slot]] + length[slot])


@njit(cache=True, nogil=True)
def settle(row, start, degree, to, length, is_waiting, queue, waiting):
    """Shorten distances, beginning with the vertices in a queue, until no edge offers a shorter path."""
    size = len(queue)
    head, tail, computed = 0, waiting % size, 0
    while waiting > 0:
        vertex = queue[head]
        head = head + 1 if head + 1 < size else 0
        waiting -= 1
        computed += 1
        is_waiting[vertex] = False
        for slot in range(start[vertex], start[vertex] + degree[vertex]):
            far = to[slot]
            found = row[vertex] + length[slot]
            if found < row[far]:
                row[far] = found
                if not is_waiting[far]:
                    is_waiting[far] = True
                    queue[tail] = far
                    tail = tail + 1 if tail + 1 < size else 0
                    waiting += 1
    return computed


@njit(
    "int64(float64[:, :], int64[:], int64[::1], int64[::1], int64[::1], float64[::1],"
    " int64[:, :], float64[:], int64[:, :], float64[:])",
    cache=True,
    nogil=True,
)
def update_rows(
    rows, sources, start, degree, to, length, removed, removed_lengths, added, added_lengths
):
    """Update distances from some sources after edges were removed and added.

    A vertex is affected if a shortest path to it may have used a removed edge. Affected vertices are found
    from the removed edges on, along edges whose length is the difference of the distances of their ends. In
    the same order, they get the shortest path over their neighbours instead. This is nearly right, so that
    few distances have to be corrected afterwards, and faster than an order by distance in a heap. Ends of
    added edges are corrected with them. Each source is processed separately: no predecessors are kept, and
    ties only increase the number of vertices that are considered.

    Parameters
    ----------
    rows : ndarray, shape (num_sources, num_vertices)
        Distances before the change; replaced by those after it.
    sources : ndarray of int, shape (num_sources,)
    start, degree, to, length : ndarray
        The graph after the change; see `Adjacency`.
    removed, removed_lengths, added, added_lengths : ndarray
        Edges; see `Edges`.

    Returns
    -------
    int
        Number of times that a distance was settled or corrected.
    """
    is_waiting = np.zeros(rows.shape[1], np.bool_)
    queue = np.empty(rows.shape[1], np.int64)
    computed = 0
    for number in range(len(sources)):
        row = rows[number]
        waiting = reach_over(
            row,
            sources[number],
            start,
            degree,
            to,
            length,
            removed,
            removed_lengths,
            is_waiting,
            queue,
        )
        restart(row, start, degree, to, length, queue, waiting)
        for edge in range(len(added_lengths)):
            for side in range(2):
                near, far = added[edge, side], added[edge, 1 - side]
                if row[near] + added_lengths[edge] < row[far]:
                    row[far] = row[near] + added_lengths[edge]
                    if not is_waiting[far]:
                        is_waiting[far] = True
                        queue[waiting] = far
                        waiting += 1
        computed += settle(row, start, degree, to, length, is_waiting, queue, waiting)
    return computed
