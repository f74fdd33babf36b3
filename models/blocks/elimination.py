"""Order of elimination for the label graph: leaves first, then the 2-core (host side, NumPy)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .hard_links import components_of

__all__ = ["MAX_WIDTH", "ComponentPlan", "peel_leaves", "plan_cores"]

MAX_WIDTH = 22
MAX_CELLS = 2**28
"""Ordering stops where even with two clusters the tables of a component would be larger."""


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


@dataclass(frozen=True)
class ComponentPlan:
    """How to eliminate the nodes of loopy components of equal width, one bucket a node.

    Attributes
    ----------
    width : int or None
        Neighbours in the largest bucket; None where ordering was given up as too wide.
    node : ndarray of int, shape (num_buckets,)
        Node eliminated by each bucket.
    bag_edge : ndarray of int, shape (num_buckets, width)
        Edge from the node to each neighbour in its bag, -1 where there is none.
    parent : ndarray of int, shape (num_buckets,)
        Bucket that receives the message; -1 for the last bucket of a component.
    axis : ndarray of int, shape (num_buckets, width)
        Axis of the parent's table that each bag neighbour occupies, -1 for padding.
    level : ndarray of int, shape (num_buckets,)
        Longest chain of buckets below.
    edges : ndarray of int, shape (num_edges, 3)
        Two local node positions and the edge, for the approximate routines.
    largest : int
        Nodes in the largest component.
    """

    width: int | None
    node: NDArray[np.int64]
    bag_edge: NDArray[np.int64]
    parent: NDArray[np.int64]
    axis: NDArray[np.int64]
    level: NDArray[np.int64]
    edges: NDArray[np.int64]
    largest: int


@dataclass(frozen=True)
class _Shape:
    order: NDArray[np.int64]
    width: int | None
    bag_edge: NDArray[np.int64]
    parent: NDArray[np.int64]
    axis: NDArray[np.int64]
    level: NDArray[np.int64]


def plan_cores(edges: NDArray, edge_index: NDArray, num_nodes: int) -> list[ComponentPlan]:
    """Plan the elimination of every component of the 2-core.

    Components of equal shape share one ordering, and components of equal width one plan.

    Parameters
    ----------
    edges : ndarray of int, shape (num_core_edges, 2)
    edge_index : ndarray of int, shape (num_core_edges,)
        Number of each edge in the whole graph.
    num_nodes : int
    """
    if not len(edges):
        return []
    nodes, local = np.unique(edges, return_inverse=True)
    local = local.reshape(-1, 2)
    num_components, label = components_of(local, len(nodes))
    node_order = np.argsort(label, kind="stable")
    sizes = np.bincount(label)
    start = np.concatenate([[0], np.cumsum(sizes)])
    rank = np.empty(len(nodes), np.int64)
    rank[node_order] = np.arange(len(nodes)) - start[label[node_order]]
    owner = label[local[:, 0]]
    ends = np.sort(rank[local], axis=1)
    order = np.lexsort((ends[:, 1], ends[:, 0], owner))
    ends, edge_index, owner = ends[order], edge_index[order], owner[order]
    counts = np.bincount(owner, minlength=num_components)
    edge_start = np.concatenate([[0], np.cumsum(counts)])

    pieces: dict[int | None, list[tuple[_Shape, NDArray, NDArray, NDArray]]] = {}
    kinds, kind_of = np.unique(np.stack([sizes, counts], 1), axis=0, return_inverse=True)
    for kind, (n, m) in enumerate(kinds):
        members = np.flatnonzero(kind_of.ravel() == kind)
        edge_rows = edge_start[members][:, None] + np.arange(m)
        node_rows = node_order[start[members][:, None] + np.arange(n)]
        shapes, shape_of = np.unique(
            ends[edge_rows].reshape(len(members), -1), axis=0, return_inverse=True
        )
        for s, flat in enumerate(shapes):
            rows = np.flatnonzero(shape_of.ravel() == s)
            shape = _order_shape(flat.reshape(-1, 2), int(n))
            pieces.setdefault(shape.width, []).append(
                (shape, nodes[node_rows[rows]], edge_index[edge_rows[rows]], flat.reshape(-1, 2))
            )
    return [_assemble(width, pieces[width]) for width in sorted(pieces, key=lambda w: w or 10**6)]


def _assemble(
    width: int | None, pieces: list[tuple[_Shape, NDArray, NDArray, NDArray]]
) -> ComponentPlan:
    parts: dict[str, list[NDArray]] = {
        name: [] for name in ("node", "bag_edge", "parent", "axis", "level", "edges")
    }
    offset = 0
    for shape, nodes, edges, ends in pieces:
        copies, size = nodes.shape
        shift = offset + size * np.arange(copies)[:, None]
        position = np.empty(size, np.int64)
        position[shape.order] = np.arange(size)
        parts["node"].append(nodes[:, shape.order].ravel())
        pair = position[ends][None] + shift[:, :, None]
        parts["edges"].append(np.concatenate([pair, edges[:, :, None]], axis=2).reshape(-1, 3))
        if width is not None:
            edge = np.where(shape.bag_edge >= 0, edges[:, shape.bag_edge], -1)
            parts["bag_edge"].append(edge.reshape(-1, width))
            parts["parent"].append(np.where(shape.parent >= 0, shape.parent + shift, -1).ravel())
            parts["axis"].append(np.tile(shape.axis, (copies, 1)))
            parts["level"].append(np.tile(shape.level, copies))
        offset += copies * size
    joined = {
        name: np.concatenate(value) if value else np.zeros((0,), np.int64)
        for name, value in parts.items()
    }
    return ComponentPlan(width=width, largest=max(p[1].shape[1] for p in pieces), **joined)


def _order_shape(edges: NDArray, num_nodes: int) -> _Shape:
    order, bags = _eliminate(edges, num_nodes)
    if bags is None:
        empty = np.zeros((0,), np.int64)
        return _Shape(np.arange(num_nodes), None, empty, empty, empty, empty)
    width = max(len(bag) for bag in bags)
    step = np.empty(num_nodes, np.int64)
    step[order] = np.arange(num_nodes)
    edge_of = {(int(a), int(b)): e for e, (a, b) in enumerate(edges)}
    bag_edge = np.full((num_nodes, width), -1, np.int64)
    axis = np.full((num_nodes, width), -1, np.int64)
    parent = np.full(num_nodes, -1, np.int64)
    level = np.zeros(num_nodes, np.int64)
    for s, (v, bag) in enumerate(zip(order.tolist(), bags, strict=True)):
        for p, b in enumerate(bag):
            bag_edge[s, p] = edge_of.get((min(v, b), max(v, b)), -1)
        if bag:
            above = min(bag, key=lambda b: step[b])
            parent[s] = step[above]
            place = {above: 0} | {b: 1 + p for p, b in enumerate(bags[step[above]])}
            axis[s, : len(bag)] = [place[b] for b in bag]
            level[parent[s]] = max(level[parent[s]], level[s] + 1)
    return _Shape(order, width, bag_edge, parent, axis, level)


def _eliminate(edges: NDArray, num_nodes: int) -> tuple[NDArray, list[list[int]] | None]:
    """Min-fill (small graphs) or min-degree order; ties at random keep the tree of buckets low."""
    adjacent: list[set[int]] = [set() for _ in range(num_nodes)]
    for a, b in edges.tolist():
        adjacent[a].add(b)
        adjacent[b].add(a)
    tie = np.random.default_rng(0).random(num_nodes)

    def fill(v: int) -> int:
        around = adjacent[v]
        return sum(len(around) - 1 - len(around & adjacent[b]) for b in around)

    small = num_nodes <= 400
    cost = fill if small else (lambda v: len(adjacent[v]))
    widest = min(MAX_WIDTH, int(np.log2(MAX_CELLS / num_nodes)) - 1)
    heap = [(cost(v), tie[v], v) for v in range(num_nodes)]
    heapq.heapify(heap)
    done = [False] * num_nodes
    order, bags = [], []
    while heap:
        known, _, v = heapq.heappop(heap)
        if done[v] or known != cost(v):
            continue
        bag = sorted(adjacent[v])
        if len(bag) > widest:
            return np.arange(num_nodes), None
        done[v] = True
        order.append(v)
        bags.append(bag)
        changed = set(bag)
        for b in bag:
            adjacent[b] |= adjacent[v]
            adjacent[b] -= {b, v}
            if small:
                changed |= adjacent[b]
        for b in changed:
            heapq.heappush(heap, (cost(b), tie[b], b))
    return np.array(order, np.int64), bags
