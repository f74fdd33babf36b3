"""Order of elimination for the label graph: leaves first, then the 2-core (host side, NumPy)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from .hard_links import components_of

__all__ = ["MAX_WIDTH", "ComponentPlan", "peel_leaves", "plan_cores"]

MAX_WIDTH = 22
MAX_CELLS = 2**28
"""Ordering stops where even with two clusters the tables of a component would be larger."""
MIN_FILL_NODES = 400
"""Larger components are ordered by minimum degree, smaller ones by minimum fill."""
SMALL_CELLS = 2**17
"""Nodes of unequal width are padded to one width while, with eight clusters, no more arises."""
HOPELESS = np.iinfo(np.int64).max


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
class _Order:
    """Order of elimination of every node, and the neighbours that each had when its turn came."""

    sequence: NDArray[np.int64]
    turn: NDArray[np.int64]
    bag_start: NDArray[np.int64]
    bag_size: NDArray[np.int64]
    bag_node: NDArray[np.int64]
    given_up: NDArray[np.bool_]


def plan_cores(edges: NDArray, edge_index: NDArray, num_nodes: int) -> list[ComponentPlan]:
    """Plan the elimination of every component of the 2-core.

    Components of equal width share one plan, and so do components of small widths that are few.

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
    local = np.sort(local.reshape(-1, 2), axis=1)
    by_end = np.argsort(local[:, 0] * len(nodes) + local[:, 1])
    local, edge_index = local[by_end], edge_index[by_end]
    num_components, component = components_of(local, len(nodes))
    order = _eliminate(local, component)
    width = np.zeros(num_components, np.int64)
    np.maximum.at(width, component, order.bag_size)
    width[order.given_up] = -1
    width = _merge_widths(width, np.bincount(component))
    return [
        _assemble(int(w), order, width[component] == w, nodes, local, edge_index, component)
        for w in sorted(set(width.tolist()), key=lambda w: w if w >= 0 else MAX_WIDTH + 1)
    ]


def _merge_widths(width: NDArray, size: NDArray) -> NDArray:
    """Let few nodes of small width join a somewhat larger one: one program less to compile."""
    present = sorted({int(w) for w in width if w > 0})
    for narrow, wide in pairwise(present):
        if size[width == narrow].sum() * 8 ** (wide + 1) <= SMALL_CELLS:
            width = np.where(width == narrow, wide, width)
    return width


def _assemble(
    width: int,
    order: _Order,
    chosen: NDArray,
    nodes: NDArray,
    edges: NDArray,
    edge_index: NDArray,
    component: NDArray,
) -> ComponentPlan:
    """Number the buckets of the chosen nodes and name where their messages go."""
    kept = chosen[edges[:, 0]]
    largest = int(np.bincount(component[chosen]).max())
    sequence = order.sequence[chosen[order.sequence]] if width >= 0 else np.flatnonzero(chosen)
    size = len(sequence)
    position = np.full(len(nodes) + 1, size, np.int64)  # the last entry pads
    position[sequence] = np.arange(size)
    links = np.column_stack([position[edges[kept]], edge_index[kept]])
    if width < 0:
        empty = np.zeros((0,), np.int64)
        return ComponentPlan(
            None, nodes[sequence], empty, empty, empty, empty, edges=links, largest=largest
        )
    column = np.arange(width)
    inside = column < order.bag_size[sequence, None]
    where = np.where(inside, order.bag_start[sequence, None] + column, 0)
    bag = np.where(inside, order.bag_node[where], len(nodes))
    parent = position[bag].min(axis=1, initial=size)
    bag_of_parent = np.concatenate([bag, np.full((1, width), -1)])[parent]
    place = 1 + np.argmax(bag[:, :, None] == bag_of_parent[:, None, :], axis=2)
    axis = np.where(inside, np.where(position[bag] == parent[:, None], 0, place), -1)

    keys = edges[:, 0] * len(nodes) + edges[:, 1]
    low = np.minimum(sequence[:, None], bag)
    wanted = low * len(nodes) + np.maximum(sequence[:, None], bag)
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    bag_edge = np.where(inside & (keys[found] == wanted), edge_index[found], -1)

    level = np.zeros(size + 1, np.int64)
    for turn in np.split(np.arange(size), np.flatnonzero(np.diff(order.turn[sequence])) + 1):
        np.maximum.at(level, parent[turn], level[turn] + 1)
    return ComponentPlan(
        width=width,
        node=nodes[sequence],
        bag_edge=bag_edge,
        parent=np.where(parent < size, parent, -1),
        axis=axis,
        level=level[:-1],
        edges=links,
        largest=largest,
    )


def _eliminate(edges: NDArray, component: NDArray) -> _Order:
    """Multiple elimination (Liu, 1985): in each turn an independent set of cheap nodes at once.

    Small components go by minimum fill, large ones by minimum degree; ties at random keep the tree
    of buckets low. A component is given up as soon as nothing that follows can fit the budget:
    every node has too many neighbours, or there are more edges than that tree-width allows.
    """
    size = np.bincount(component)
    widest = np.minimum(MAX_WIDTH, np.log2(MAX_CELLS / size).astype(np.int64) - 1)
    bound = np.zeros(len(size), np.int64)
    given_up = _surely_wider(edges, component, np.where(size > MIN_FILL_NODES, widest, len(edges)))
    turn = np.zeros(len(component), np.int64)
    bag_start, bag_size = np.zeros_like(turn), np.zeros_like(turn)
    sequence, bag_node, filled = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0

    name = np.argsort(component, kind="stable")  # nodes that are left, by component
    name = name[~given_up[component[name]]]
    edges = edges[~given_up[component[edges[:, 0]]]]
    priority = np.random.default_rng(0).permutation(len(name))
    number = np.zeros(len(component), np.int64)
    number[name] = np.arange(len(name))
    source = number[edges.T.ravel()]
    target = number[edges.T[::-1].ravel()]
    by_key = np.argsort(source * len(name) + target)
    source, target = source[by_key], target[by_key]
    for step in count():
        if not len(name):
            break
        owner = component[name]
        degree = np.bincount(source, minlength=len(name))
        start = np.cumsum(degree) - degree
        keys = source * len(name) + target
        by_fill = (size[owner] <= MIN_FILL_NODES) & (degree <= widest[owner])
        cost = degree.copy()
        for nodes, low, high in _neighbour_pairs(target, start, degree, np.flatnonzero(by_fill)):
            cost[nodes] = (~_contains(keys, low * len(name) + high)).sum(axis=1)
        cost[by_fill & (degree < 2)] = 0
        cost[degree > widest[owner]] = HOPELESS

        first = np.flatnonzero(np.diff(owner, prepend=-1))
        here, nodes_here = owner[first], np.diff(first, append=len(name))
        least = np.minimum.reduceat(cost, first)
        crowded = np.add.reduceat(degree, first) > 2 * widest[here] * nodes_here
        given_up[here] = (least == HOPELESS) | crowded
        # in a large component all that costs no more than what had to go before goes: fewer turns
        bound[here] = np.where(size[here] <= MIN_FILL_NODES, least, np.maximum(bound[here], least))

        ready = (cost <= bound[owner]) & ~given_up[owner]
        contested = ready[source] & ready[target]
        rival = np.full(len(name), -1)
        np.maximum.at(rival, target[contested], priority[source[contested]])
        out = ready & (priority > rival)
        now = np.flatnonzero(out)
        turn[name[now]], bag_size[name[now]] = step, degree[now]
        bag_start[name[now]] = filled + np.cumsum(degree[now]) - degree[now]
        filled += int(degree[now].sum())
        bag_node.append(name[target[out[source]]])
        sequence.append(name[now])

        stays = ~(out | given_up[owner])
        pairs = [
            (low.ravel(), high.ravel())
            for _, low, high in _neighbour_pairs(target, start, degree, now)
        ]
        low, high = np.concatenate([np.zeros((2, 0), np.int64), *map(np.array, pairs)], axis=1)
        fill = np.concatenate([low * len(name) + high, high * len(name) + low])
        fill = _distinct(fill[~_contains(keys, fill)])
        keys = keys[stays[source] & stays[target]]
        keys = np.insert(keys, np.searchsorted(keys, fill), fill)
        number = np.cumsum(stays) - 1
        source, target = (number[end] for end in np.divmod(keys, len(name)))
        name, priority = name[stays], priority[stays]
    return _Order(
        np.concatenate(sequence), turn, bag_start, bag_size, np.concatenate(bag_node), given_up
    )


def _surely_wider(edges: NDArray, component: NDArray, width: NDArray) -> NDArray[np.bool_]:
    """Tell for each component whether its tree-width is proven to exceed `width`.

    A graph of tree-width w has fewer than w edges a node, and so has each of its minors. Contracting
    an edge at every node leaves a half of the nodes or less, but in a random graph most edges, so
    that a few rounds find a dense minor where there is one.
    """
    wider = np.zeros(len(width), bool)
    rng = np.random.default_rng(0)
    while len(edges):
        num_nodes = np.bincount(component, minlength=len(width))
        num_edges = np.bincount(component[edges[:, 0]], minlength=len(width))
        wider |= num_edges >= np.maximum(width, 1) * num_nodes
        # fewer than 2 w nodes cannot have w edges each
        open_case = ~wider & (num_nodes > 2 * width)
        edges = edges[open_case[component[edges[:, 0]]]]
        chosen = np.full(len(component), -1)
        number = rng.permutation(len(edges))
        for side in (0, 1):
            np.maximum.at(chosen, edges[:, side], number)
        chosen = np.argsort(number)[_distinct(chosen[chosen >= 0])]
        num_merged, merged = components_of(edges[chosen], len(component))
        component_of_merged = np.zeros(num_merged, np.int64)
        component_of_merged[merged] = component
        component = component_of_merged
        ends = np.sort(merged[edges], axis=1)
        ends = ends[ends[:, 0] != ends[:, 1]]
        edges = np.stack(np.divmod(_distinct(ends @ [num_merged, 1]), num_merged), axis=1)
    return wider


def _distinct(keys: NDArray) -> NDArray:
    """Sorted distinct integers; faster than the hashing of `np.unique`."""
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=-1) > 0]


def _neighbour_pairs(
    target: NDArray, start: NDArray, degree: NDArray, nodes: NDArray
) -> Iterator[tuple[NDArray, NDArray, NDArray]]:
    """Nodes of one degree at a time, with all pairs of their neighbours (lower number first)."""
    for d in np.unique(degree[nodes]):
        if d > 1:
            rows = nodes[degree[nodes] == d]
            around = target[start[rows, None] + np.arange(d)]
            low, high = np.triu_indices(d, 1)
            yield rows, around[:, low], around[:, high]


def _contains(keys: NDArray, wanted: NDArray) -> NDArray[np.bool_]:
    """Tell which of `wanted` are among the sorted `keys`."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return keys[place] == wanted
