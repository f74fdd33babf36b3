"""Leaves of the label graph, peeled off until only roots of trees and the 2-core remain (NumPy)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["peel_leaves"]


def peel_leaves(edges: NDArray, num_nodes: int) -> tuple[list[NDArray], NDArray[np.bool_]]:
    """Remove leaves again and again until only roots of trees and the 2-core are left.

    A node's only remaining neighbour is read off the running XOR of its neighbours, so each round
    is a few array operations.

    Returns
    -------
    rounds : list of ndarray, shape (removed, 3)
        Leaf, the neighbour it hangs on, and the edge between them, round by round.
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
        touched = np.unique(parent) if len(parent) > 1 else parent
        leaves = touched[degree[touched] == 1]
    return rounds, peeled_edge


def _xor_into(target: NDArray, where: NDArray, values: NDArray) -> None:
    np.bitwise_xor.at(target, where, values)
