"""Removal of leaves of the label graph until roots of trees and the 2-core remain (NumPy)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .padding import FEW_NODES, padded
from .sweep import Peeling

__all__ = ["cut_into_rows", "peel_leaves", "row_width"]

ROW_COST = 2048
"""Fixed cost of one row of leaves, in leaves."""


def peel_leaves(edges: NDArray, num_nodes: int) -> tuple[list[NDArray], NDArray[np.bool_]]:
    """Remove leaves repeatedly until only roots of trees and the 2-core are left.

    The only remaining neighbour of a node is the running XOR of its neighbours, so that each round
    is a few array operations.

    Returns
    -------
    rounds : list of ndarray, shape (removed, 3)
        Leaf, its neighbour, and the edge between them, by round.
    peeled_edge : ndarray of bool, shape (num_edges,)
    """
    num_edges = len(edges)
    degree = np.bincount(edges.ravel(), minlength=num_nodes)
    neighbour = np.zeros(num_nodes, np.int64)
    edge_at = np.zeros(num_nodes, np.int64)
    index = np.arange(num_edges)
    for side in (0, 1):
        _xor_into(neighbour, edges[:, side], edges[:, 1 - side])
        _xor_into(edge_at, edges[:, side], index)
    peeled_edge = np.zeros(num_edges, bool)
    rounds = []
    leaves = np.flatnonzero(degree == 1)
    while len(leaves):
        parent = neighbour[leaves]
        keep = (degree[parent] > 1) | (leaves < parent)  # of a lone pair only one is removed
        leaves, parent = leaves[keep], parent[keep]
        edge = edge_at[leaves]
        rounds.append(np.stack([leaves, parent, edge], axis=1))
        peeled_edge[edge] = True
        degree[leaves] = 0
        np.subtract.at(degree, parent, 1)
        _xor_into(neighbour, parent, leaves)
        _xor_into(edge_at, parent, edge)
        touched = np.sort(parent)  # with `diff` faster than the hashing of `np.unique`
        touched = touched[np.diff(touched, prepend=-1) > 0]
        leaves = touched[degree[touched] == 1]
    return rounds, peeled_edge


def _xor_into(target: NDArray, where: NDArray, values: NDArray) -> None:
    np.bitwise_xor.at(target, where, values)


def row_width(rounds: list[NDArray], few: bool) -> int:
    """Maximum number of leaves per row: the cheapest one, or a constant if shapes should be few."""
    if few or not rounds:
        return 32
    widths = 2 ** np.arange(5, 15)
    rows = -(-np.array([len(step) for step in rounds])[:, None] // widths)
    return int(widths[np.argmin((rows * (widths + ROW_COST)).sum(axis=0))])


def cut_into_rows(
    rounds: list[NDArray], place: NDArray, num_edges: int, width: int, least: int
) -> Peeling:
    """Divide rounds into rows of at most `width` leaves, with room for at least `least` rows."""
    num_places = int(place[-1])
    leaves = np.concatenate([np.zeros((0, 3), np.int64), *rounds])
    parent = np.full(num_places, num_places)
    edge = np.full(num_places, num_edges)
    parent[: len(leaves)], edge[: len(leaves)] = place[leaves[:, 1]], leaves[:, 2]
    start, count = [], []
    for first, last in pairwise(np.cumsum([0, *(len(step) for step in rounds)])):
        start.append(np.arange(first, last, width))
        count.append(np.minimum(last - start[-1], width))
    # a row has at least one leaf
    num_rows = sum(map(len, start))
    most = num_places if len(place) - 1 <= FEW_NODES else max(padded(max(num_rows, 1)), least)
    return Peeling(
        parent=parent.astype(np.int32),
        edge=edge.astype(np.int32),
        start=_spread(start, most),
        count=_spread(count, most),
        num_rows=np.asarray(num_rows, np.int32),
        width=width,
    )


def _spread(parts: list[NDArray], length: int) -> NDArray[np.int32]:
    out = np.zeros(length, np.int32)
    values = np.concatenate([np.zeros(0, np.int64), *parts])
    out[: len(values)] = values
    return out
