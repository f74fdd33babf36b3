"""Plan of elimination for the label graph: leaves first, then the 2-core (host side, NumPy)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .elimination_order import MAX_WIDTH, Order, order_nodes
from .hard_links import components_of

__all__ = ["ComponentPlan", "StagePlan", "peel_leaves", "plan_cores"]

SMALL_CELLS = 2**17
"""Nodes of unequal width are padded to one width while, with eight clusters, no more arises."""
FEW_CELLS = 2**14
"""Cells of tables up to which components are padded to one width and one stage: few shapes occur."""
COMMON_WIDTH = 3
STAGE_CELLS = 2**17
"""Cells of tables that a stage of its own must save, for what it costs to compile."""


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
class StagePlan:
    """Buckets that are padded to one width and done before those of the stages that follow.

    Attributes
    ----------
    width : int
        Neighbours in the largest bucket.
    node : ndarray of int, shape (num_buckets,)
        Node eliminated by each bucket.
    bag_edge : ndarray of int, shape (num_buckets, width)
        Edge from the node to each neighbour in its bag, -1 where there is none.
    home, parent : ndarray of int, shape (num_buckets,)
        Stage of the bucket that receives the message, and its number there; behind the last stage
        stand the tops, numbered by component.
    axis : ndarray of int, shape (num_buckets, width)
        Axis of the receiving table that each bag neighbour occupies, -1 for padding.
    level : ndarray of int, shape (num_buckets,)
        Longest chain of buckets below, within the stage.
    """

    width: int
    node: NDArray[np.int64]
    bag_edge: NDArray[np.int64]
    home: NDArray[np.int64]
    parent: NDArray[np.int64]
    axis: NDArray[np.int64]
    level: NDArray[np.int64]


@dataclass(frozen=True)
class ComponentPlan:
    """How to eliminate the nodes of loopy components of equal width.

    The last ``width + 1`` nodes of a component, its top, share a table and are summed out at once;
    every node before has a bucket.

    Attributes
    ----------
    width : int or None
        Neighbours in the largest bucket; None where ordering was given up as too wide.
    node : ndarray of int, shape (num_nodes,)
    stages : tuple of StagePlan
        From narrow to wide.
    top_node : ndarray of int, shape (num_components, width + 1)
        Nodes of each top, -1 where a component has fewer.
    top_edge : ndarray of int, shape (num_components, width + 1, width + 1)
        Edges between them, on one side of the diagonal; -1 where there is none.
    edges : ndarray of int, shape (num_edges, 3)
        Two local node positions and the edge, for the approximate routines.
    few : bool
        Of the width and in the one stage that components with few cells have.
    """

    width: int | None
    node: NDArray[np.int64]
    stages: tuple[StagePlan, ...]
    top_node: NDArray[np.int64]
    top_edge: NDArray[np.int64]
    edges: NDArray[np.int64]
    few: bool


def plan_cores(
    edges: NDArray, edge_index: NDArray, num_nodes: int, num_clusters: int = 3
) -> list[ComponentPlan]:
    """Plan the elimination of every component of the 2-core.

    Components of equal width share one plan, and so do components of small widths that are few.

    Parameters
    ----------
    edges : ndarray of int, shape (num_core_edges, 2)
    edge_index : ndarray of int, shape (num_core_edges,)
        Number of each edge in the whole graph.
    num_nodes : int
    num_clusters : int
        For which the stages are cut.
    """
    if not len(edges):
        return []
    nodes, local = np.unique(edges, return_inverse=True)
    local = np.sort(local.reshape(-1, 2), axis=1)
    by_end = np.argsort(local[:, 0] * len(nodes) + local[:, 1])
    local, edge_index = local[by_end], edge_index[by_end]
    num_components, component = components_of(local, len(nodes))
    order = order_nodes(local, component)
    width = np.zeros(num_components, np.int64)
    np.maximum.at(width, component, order.bag_size)
    width[order.given_up] = -1
    width = _merge_widths(width, np.bincount(component), num_clusters)
    return [
        _assemble(
            int(w), order, width[component] == w, nodes, local, edge_index, component, num_clusters
        )
        for w in sorted(set(width.tolist()), key=lambda w: w if w >= 0 else MAX_WIDTH + 1)
    ]


def _merge_widths(width: NDArray, size: NDArray, num_clusters: int) -> NDArray:
    """Let few nodes of small width join a somewhat larger one: one program less to compile."""
    below = (width >= 0) & (width < COMMON_WIDTH)
    if size[below].sum() * num_clusters ** (COMMON_WIDTH + 1) <= FEW_CELLS:
        width = np.where(below, COMMON_WIDTH, width)
    present = sorted({int(w) for w in width if w > 0})
    for narrow, wide in pairwise(present):
        if size[width == narrow].sum() * 8 ** (wide + 1) <= SMALL_CELLS:
            width = np.where(width == narrow, wide, width)
    return width


def _assemble(
    width: int,
    order: Order,
    chosen: NDArray,
    nodes: NDArray,
    edges: NDArray,
    edge_index: NDArray,
    component: NDArray,
    num_clusters: int,
) -> ComponentPlan:
    """Number the buckets of the chosen nodes and name where their messages go."""
    kept = chosen[edges[:, 0]]
    sequence = order.sequence[chosen[order.sequence]] if width >= 0 else np.flatnonzero(chosen)
    size = len(sequence)
    position = np.full(len(nodes) + 1, size, np.int64)  # the last entry pads
    position[sequence] = np.arange(size)
    links = np.column_stack([position[edges[kept]], edge_index[kept]])
    if width < 0:
        empty = np.zeros(0, np.int64)
        return ComponentPlan(None, nodes[sequence], (), empty, empty, links, False)
    column = np.arange(width)
    inside = column < order.bag_size[sequence, None]
    where = np.where(inside, order.bag_start[sequence, None] + column, 0)
    bag = np.where(inside, order.bag_node[where], len(nodes))
    parent = position[bag].min(axis=1, initial=size)
    turns = np.split(np.arange(size), np.flatnonzero(np.diff(order.turn[sequence])) + 1)

    owner = np.unique(component[sequence], return_inverse=True)[1]
    by_owner = np.argsort(owner, kind="stable")
    behind = np.full(size + 1, -1)  # nodes of the component that follow
    behind[by_owner] = np.cumsum(np.bincount(owner))[owner[by_owner]] - 1 - np.arange(size)
    on_top = behind <= width
    broad = np.append(order.bag_size[sequence], 0)  # widest bucket below, and the bucket itself
    for turn in turns:
        np.maximum.at(broad, parent[turn], broad[turn])
    few = width == COMMON_WIDTH and size * num_clusters ** (width + 1) <= FEW_CELLS
    counts = np.bincount(broad[~on_top], minlength=width + 1)
    widths = [width] if few else _stage_widths(counts, num_clusters)
    stage = np.where(on_top, len(widths), np.searchsorted(widths, broad))
    level, number = np.zeros(size + 1, np.int64), np.append(owner, 0)
    for turn in turns:
        stays = turn[stage[turn] == stage[parent[turn]]]
        np.maximum.at(level, parent[stays], level[stays] + 1)
    for s in range(len(widths)):
        number[stage == s] = np.arange(np.count_nonzero(stage == s))

    bag_of_parent = np.concatenate([bag, np.full((1, width), -1)])[parent]
    place = 1 + np.argmax(bag[:, :, None] == bag_of_parent[:, None, :], axis=2)
    place = np.where(position[bag] == parent[:, None], 0, place)
    place = np.where(on_top[parent, None], behind[position[bag]], place)
    axis = np.where(inside, place, -1)
    keys = edges[:, 0] * len(nodes) + edges[:, 1]
    low = np.minimum(sequence[:, None], bag)
    wanted = low * len(nodes) + np.maximum(sequence[:, None], bag)
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    bag_edge = np.where(inside & (keys[found] == wanted), edge_index[found], -1)

    stages = tuple(
        StagePlan(
            width=w,
            node=nodes[sequence[rows]],
            bag_edge=bag_edge[rows, :w],
            home=stage[parent[rows]],
            parent=number[parent[rows]],
            axis=axis[rows, :w],
            level=level[rows],
        )
        for w, rows in ((w, np.flatnonzero(stage[:-1] == s)) for s, w in enumerate(widths))
    )
    top_node = np.full((owner.max() + 1, width + 1), -1)
    rows = np.flatnonzero(on_top[:-1])
    top_node[owner[rows], behind[rows]] = nodes[sequence[rows]]
    top_edge = np.full((*top_node.shape, width + 1), -1)
    first, second, edge = links[on_top[links[:, :2]].all(axis=1)].T
    top_edge[owner[first], behind[first], behind[second]] = edge
    return ComponentPlan(width, nodes[sequence], stages, top_node, top_edge, links, few)


def _stage_widths(count: NDArray, num_clusters: int) -> list[int]:
    """Widths to which buckets are padded, at the least cost: cells of tables, and of each stage.

    Parameters
    ----------
    count : ndarray of int
        Buckets of each width.
    num_clusters : int
    """
    present = np.flatnonzero(count).tolist()
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for last, width in enumerate(present):
        table = float(num_clusters) ** (width + 1)
        best.append(
            min(
                (
                    best[first][0] + STAGE_CELLS + table * count[present[first : last + 1]].sum(),
                    [*best[first][1], width],
                )
                for first in range(last + 1)
            )
        )
    return best[-1][1]
