"""Edges and rows on which a map depends most: their removal changes geodesic distances most."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .adjacency import Edges
from .geodesics import Geodesics, load

__all__ = ["most_moving"]


def most_moving(geodesics: Geodesics, number: int, of_rows: bool) -> pd.DataFrame:
    """Find the edges or vertices whose removal changes distances most, in descending order.

    A distance changes by at most the detour around the removed edge or vertex, so that the number of paths
    over it times its longest detour bounds the sum. Candidates are removed in the order of this bound, until
    no other can be among the first.

    Parameters
    ----------
    geodesics : Geodesics
    number : int
    of_rows : bool
        Vertices with all their edges, rather than edges.

    Returns
    -------
    DataFrame
        See `IncrementalIsomap.short_circuits`.
    """
    load()
    from . import removals

    graph = geodesics.adjacency
    edges = graph.edges()
    lists = graph.start, graph.degree, graph.to, graph.length
    slots = _edge_slots(geodesics, edges)
    over, through = removals.passing(
        geodesics.rows, geodesics.sources, *lists, slots, len(edges.lengths)
    )
    if of_rows:
        num_paths, detours = through, removals.detours_of_vertices(*lists)
    else:
        num_paths = over
        detours = removals.detours_of_edges(edges.ends, edges.lengths, *lists)
    is_finite = np.isfinite(detours)
    bounds = np.full(len(detours), np.inf)
    bounds[is_finite] = num_paths[is_finite] * detours[is_finite]
    bounds[num_paths == 0] = 0
    found: list[tuple[float, float, int, int]] = []  # cut, total, moved, number of edge or vertex
    for one in np.argsort(-bounds, kind="stable"):
        is_beaten = len(found) >= number and (0.0, bounds[one]) <= found[number - 1][:2]
        if num_paths[one] == 0 or (is_beaten and is_finite[one]):
            break
        removed = graph.incident([one]) if of_rows else _single(edges, one)
        total, num_moved, num_cut = _without(geodesics, removed, one if of_rows else -1)
        found.append((float(num_cut), total, num_moved, int(one)))
        found.sort(key=lambda entry: entry[:2], reverse=True)
    return _table(geodesics, edges, detours, found[:number], of_rows)


def _edge_slots(geodesics: Geodesics, edges: Edges) -> NDArray[np.int64]:
    """Return the number of the edge in each place of the pool of neighbours."""
    graph, size = geodesics.adjacency, len(geodesics)
    keys = edges.ends[:, 0] * size + edges.ends[:, 1]
    order = np.argsort(keys)
    slots = np.full(len(graph.to), -1)
    places = graph.slots()
    vertex = np.repeat(np.arange(size), graph.degree)
    other = graph.to[places]
    wanted = np.minimum(vertex, other) * size + np.maximum(vertex, other)
    slots[places] = order[np.searchsorted(keys[order], wanted)]
    return slots


def _single(edges: Edges, one: int) -> Edges:
    return Edges(edges.ends[one : one + 1], edges.lengths[one : one + 1])


def _places(geodesics: Geodesics, removed: Edges) -> Iterator[int]:
    """Return places of edges in the pool, in both directions."""
    graph = geodesics.adjacency
    for one, other in [*removed.ends.tolist(), *removed.ends[:, ::-1].tolist()]:
        yield int(graph.start[one] + np.flatnonzero(graph.neighbors(one)[0] == other)[0])


def _without(geodesics: Geodesics, removed: Edges, vertex: int) -> tuple[float, int, int]:
    from . import removals

    graph = geodesics.adjacency
    length = graph.length.copy()
    length[list(_places(geodesics, removed))] = np.inf
    rows, sources = geodesics.rows, geodesics.sources
    return removals.moved(
        rows, sources, graph.start, graph.degree, graph.to, length, *removed, vertex
    )


def _table(
    geodesics: Geodesics,
    edges: Edges,
    detours: NDArray[np.float64],
    found: list[tuple[float, float, int, int]],
    of_rows: bool,
) -> pd.DataFrame:
    cut, total, moved, which = (np.array(column) for column in zip(*found, strict=True))
    which = which.astype(int)
    finite = geodesics.rows[np.isfinite(geodesics.rows)]
    named = (
        {"row": which, "degree": geodesics.adjacency.degree[which]}
        if of_rows
        else {
            "first": edges.ends[which, 0],
            "second": edges.ends[which, 1],
            "length": edges.lengths[which],
        }
    )
    return pd.DataFrame(
        {
            **named,
            "detour": detours[which],
            "cut": cut / len(finite),
            "share": moved / len(finite),
            "moved": total / finite.sum(),
        }
    )
