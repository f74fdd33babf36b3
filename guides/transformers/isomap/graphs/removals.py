"""Effects on distances of removing edges or vertices of a graph, compiled by numba."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numba import njit

from .paths import reach_over, restart, settle

__all__ = ["detours_of_edges", "detours_of_vertices", "moved", "passing"]


@njit(cache=True, nogil=True)
def passing(rows, sources, start, degree, to, length, number_of_slot, num_edges):
    """Count distances whose path uses each edge, and passes through each vertex.

    Of several shortest paths, one is counted, the same for all vertices behind it.

    Parameters
    ----------
    rows, sources, start, degree, to, length : ndarray
        See `update_rows`.
    number_of_slot : ndarray of int
        Number of the edge in each place of the pool.
    num_edges : int

    Returns
    -------
    over : ndarray of int, shape (num_edges,)
    through : ndarray of int, shape (num_vertices,)
    """
    size = rows.shape[1]
    over, through = np.zeros(num_edges, np.int64), np.zeros(size, np.int64)
    behind = np.empty(size, np.int64)
    came = np.empty(size, np.int64)
    parent = np.empty(size, np.int64)
    rank = np.empty(size, np.int64)
    for number in range(len(sources)):
        row, source = rows[number], sources[number]
        order = np.argsort(row)
        rank[order] = np.arange(size)
        rank[source] = -1  # equal points also have distance zero
        for vertex in range(size):
            behind[vertex], came[vertex] = 1, -1
            best = np.inf
            if vertex == source or row[vertex] == np.inf:
                continue
            for slot in range(start[vertex], start[vertex] + degree[vertex]):
                near = to[slot]
                if rank[near] < rank[vertex] and row[near] + length[slot] < best:
                    best = row[near] + length[slot]
                    parent[vertex], came[vertex] = near, number_of_slot[slot]
        for at in range(size - 1, -1, -1):
            vertex = order[at]
            if came[vertex] >= 0:
                over[came[vertex]] += behind[vertex]
                through[vertex] += behind[vertex] - 1
                behind[parent[vertex]] += behind[vertex]
    return over, through


@njit(cache=True, nogil=True)
def _detour(begin, goals, spans, avoided, start, degree, to, length, found, seen):
    """Return the largest increase of paths from a vertex to some others without an edge, or a vertex.

    Parameters
    ----------
    begin : int
    goals : ndarray of int
    spans : ndarray
        Lengths of the paths with the edge or the vertex.
    avoided : int
        The vertex; or -1 for the edge from `begin` to the only goal.
    start, degree, to, length : ndarray
        The graph.
    found, seen : ndarray, shape (num_vertices,)
        Work space for distances, infinite before and after, and for the vertices that have one.
    """
    num_seen, left, most = 1, len(goals), 0.0
    seen[0], found[begin] = begin, 0.0
    heap = [(0.0, begin)]
    while len(heap) > 0 and left > 0:
        near_by, vertex = heappop(heap)
        if near_by > found[vertex]:
            continue
        for goal in range(len(goals)):
            if goals[goal] == vertex:
                left -= 1
                most = max(most, near_by - spans[goal])
        for slot in range(start[vertex], start[vertex] + degree[vertex]):
            far = to[slot]
            if far == avoided or (avoided < 0 and vertex == begin and far == goals[0]):
                continue
            if near_by + length[slot] < found[far]:
                if found[far] == np.inf:
                    seen[num_seen] = far
                    num_seen += 1
                found[far] = near_by + length[slot]
                heappush(heap, (found[far], far))
    for at in range(num_seen):
        found[seen[at]] = np.inf
    return most if left == 0 else np.inf


@njit(cache=True, nogil=True)
def detours_of_edges(ends, lengths, start, degree, to, length):
    """How much longer the path between the ends of each edge is without it; infinite if there is none."""
    found, seen = np.full(len(start), np.inf), np.empty(len(start), np.int64)
    most = np.empty(len(lengths))
    for edge in range(len(lengths)):
        goals, spans = ends[edge, 1:], lengths[edge : edge + 1]
        most[edge] = _detour(
            ends[edge, 0], goals, spans, -1, start, degree, to, length, found, seen
        )
    return most


@njit(cache=True, nogil=True)
def detours_of_vertices(start, degree, to, length):
    """Return the largest increase of paths between neighbours of each vertex without it."""
    found, seen = np.full(len(start), np.inf), np.empty(len(start), np.int64)
    most = np.zeros(len(start))
    for vertex in range(len(start)):
        block = slice(start[vertex], start[vertex] + degree[vertex])
        near, far = to[block], length[block]
        for one in range(len(near) - 1):
            spans = far[one] + far[one + 1 :]
            longer = _detour(
                near[one], near[one + 1 :], spans, vertex, start, degree, to, length, found, seen
            )
            most[vertex] = max(most[vertex], longer)
    return most


@njit(cache=True, nogil=True)
def moved(rows, sources, start, degree, to, length, removed, removed_lengths, vertex):
    """Return the effect of removing edges on distances, which are not changed.

    Parameters
    ----------
    rows, sources, start, degree, to : ndarray
        See `update_rows`.
    length : ndarray
        Infinite in the places of the removed edges.
    removed, removed_lengths : ndarray
        Edges.
    vertex : int
        Vertex whose own distances do not count, or -1.

    Returns
    -------
    total : float
        Sum of the increases of distances that stay finite.
    num_moved, num_cut : int
        Numbers of distances that increase, and that become infinite.
    """
    size = rows.shape[1]
    is_waiting = np.zeros(size, np.bool_)
    queue, affected = np.empty(size, np.int64), np.empty(size, np.int64)
    before = np.empty(size)
    total, num_moved, num_cut = 0.0, 0, 0
    for number in range(len(sources)):
        row, source = rows[number], sources[number]
        if source == vertex:
            continue
        count = reach_over(
            row, source, start, degree, to, length, removed, removed_lengths, is_waiting, queue
        )
        for at in range(count):
            affected[at] = queue[at]
            before[at] = row[queue[at]]
        restart(row, start, degree, to, length, queue, count)
        settle(row, start, degree, to, length, is_waiting, queue, count)
        for at in range(count):
            if affected[at] != vertex:
                after = row[affected[at]]
                if after == np.inf:
                    num_cut += 1
                elif after > before[at] * (1 + 1e-11):
                    num_moved += 1
                    total += after - before[at]
            row[affected[at]] = before[at]
    return total, num_moved, num_cut
