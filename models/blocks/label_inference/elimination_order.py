"""Order in which the nodes of loopy connected sets are eliminated (host side, NumPy)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..side_information.hard_links import connected_sets
from ..side_information.uncolourable import low_first

__all__ = ["MAX_WIDTH", "Order", "order_nodes", "table_cells"]

MAX_WIDTH = 22
MAX_CELLS = 2**28
"""Ordering stops if the tables of a connected set would be larger even with two clusters."""
MIN_FILL_NODES = 400
"""Larger connected sets are ordered by minimum degree, smaller ones by minimum fill."""
NUM_TRIES = 20
"""Orders with ties broken at random, of which the cheapest is kept for costly connected sets."""
COSTLY_CELLS = 2**16
"""Cells of tables from which on a connected set counts as costly."""
HOPELESS = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Order:
    """Order of elimination of every node, and the neighbours of each node at its elimination."""

    sequence: NDArray[np.int64]
    bag_start: NDArray[np.int64]
    bag_size: NDArray[np.int64]
    bag_node: NDArray[np.int64]
    given_up: NDArray[np.bool_]


def table_cells(order: Order, connected_set: NDArray, num_clusters: int) -> NDArray[np.float64]:
    """Number of table cells of each connected set; infinite if ordering was given up."""
    cells = np.where(order.given_up, np.inf, 0.0)
    np.add.at(cells, connected_set, float(num_clusters) ** (order.bag_size + 1))
    return cells


def order_nodes(edges: NDArray, connected_set: NDArray, num_clusters: int = 3) -> Order:
    """Order all nodes; connected sets with large tables get the best of several orders.

    Parameters
    ----------
    edges : ndarray of int, shape (num_edges, 2)
    connected_set : ndarray of int, shape (num_nodes,)
        Connected set of each node, numbered from 0.
    num_clusters : int
        Number of clusters for which the size of tables is judged.
    """
    order = _order_once(edges, connected_set)
    cells = table_cells(order, connected_set, num_clusters)
    costly = (
        (cells > COSTLY_CELLS) & np.isfinite(cells) & (np.bincount(connected_set) <= MIN_FILL_NODES)
    )
    if not costly.any():
        return order
    num_nodes, copy = len(connected_set), np.arange(NUM_TRIES)
    edges = edges[costly[connected_set[edges[:, 0]]]]
    nodes = np.flatnonzero(costly[connected_set])
    local = np.zeros(num_nodes, np.int64)
    local[nodes] = np.arange(len(nodes))
    owner = np.unique(connected_set[nodes], return_inverse=True)[1]
    copies = (local[edges][None] + len(nodes) * copy[:, None, None]).reshape(-1, 2)
    owners = (owner + (owner.max() + 1) * copy[:, None]).ravel()
    tried = _order_once(copies, owners)
    cost = table_cells(tried, owners, num_clusters).reshape(NUM_TRIES, -1)
    better = cost.min(axis=0) < cells[costly]
    chosen = np.where(better, cost.argmin(axis=0), -1)[owner]
    taken, rows = nodes[chosen >= 0], (local[nodes] + len(nodes) * chosen)[chosen >= 0]
    kept = np.zeros(len(owners), bool)
    kept[rows] = True
    replaced = np.zeros(num_nodes, bool)
    replaced[taken] = True
    sequence = tried.sequence[kept[tried.sequence]] % len(nodes)
    start, size = order.bag_start.copy(), order.bag_size.copy()
    size[taken] = tried.bag_size[rows]
    start[taken] = tried.bag_start[rows] + len(order.bag_node)
    return Order(
        np.concatenate([order.sequence[~replaced[order.sequence]], nodes[sequence]]),
        start,
        size,
        np.concatenate([order.bag_node, nodes[tried.bag_node % len(nodes)]]),
        order.given_up,
    )


def _order_once(edges: NDArray, connected_set: NDArray) -> Order:
    """Multiple elimination (Liu, 1985): each turn eliminates an independent set of cheap nodes.

    Small connected sets are ordered by minimum fill, large ones by minimum degree; ties are broken
    at random. A connected set is given up as soon as no continuation can fit the budget: every node
    has too many neighbours, or there are more edges than that tree-width allows.
    """
    size = np.bincount(connected_set)
    widest = np.minimum(MAX_WIDTH, np.log2(MAX_CELLS / size).astype(np.int64) - 1)
    bound = np.zeros(len(size), np.int64)
    given_up = _surely_wider(
        edges, connected_set, np.where(size > MIN_FILL_NODES, widest, len(edges))
    )
    bag_start, bag_size = np.zeros((2, len(connected_set)), np.int64)
    sequence, bag_node, filled = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0

    name = np.argsort(connected_set, kind="stable")  # nodes that are left, by connected set
    name = name[~given_up[connected_set[name]]]
    edges = edges[~given_up[connected_set[edges[:, 0]]]]
    priority = np.random.default_rng(0).permutation(len(name))
    number = np.zeros(len(connected_set), np.int64)
    number[name] = np.arange(len(name))
    source = number[edges.T.ravel()]
    target = number[edges.T[::-1].ravel()]
    by_key = np.argsort(source * len(name) + target)
    source, target = source[by_key], target[by_key]
    while len(name):
        owner = connected_set[name]
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
        # in a large connected set, nodes that cost no more than previous ones are eliminated: fewer
        # turns
        bound[here] = np.where(size[here] <= MIN_FILL_NODES, least, np.maximum(bound[here], least))

        ready = (cost <= bound[owner]) & ~given_up[owner]
        contested = ready[source] & ready[target]
        rival = np.full(len(name), -1)
        np.maximum.at(rival, target[contested], priority[source[contested]])
        out = ready & (priority > rival)
        now = np.flatnonzero(out)
        bag_size[name[now]] = degree[now]
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
    return Order(np.concatenate(sequence), bag_start, bag_size, np.concatenate(bag_node), given_up)


def _surely_wider(edges: NDArray, connected_set: NDArray, width: NDArray) -> NDArray[np.bool_]:
    """Return for each connected set whether its tree-width provably exceeds `width`.

    A graph of tree-width w has fewer than w edges per node, and so has each of its minors.
    Contracting an edge at every node leaves at most half of the nodes but, in a random graph, most
    of the edges. A few rounds therefore find a dense minor if there is one.
    """
    wider = np.zeros(len(width), bool)
    rng = np.random.default_rng(0)
    while len(edges):
        num_nodes = np.bincount(connected_set, minlength=len(width))
        num_edges = np.bincount(connected_set[edges[:, 0]], minlength=len(width))
        wider |= num_edges >= np.maximum(width, 1) * num_nodes
        # fewer than 2 w nodes cannot have w edges each
        open_case = ~wider & (num_nodes > 2 * width)
        edges = edges[open_case[connected_set[edges[:, 0]]]]
        chosen = np.full(len(connected_set), -1)
        number = rng.permutation(len(edges))
        for side in (0, 1):
            np.maximum.at(chosen, edges[:, side], number)
        edge_of_number = np.empty(len(edges), np.int64)
        edge_of_number[number] = np.arange(len(edges))
        chosen = edge_of_number[_distinct(chosen[chosen >= 0])]
        num_merged, merged = connected_sets(edges[chosen], len(connected_set))
        set_of_merged = np.zeros(num_merged, np.int64)
        set_of_merged[merged] = connected_set
        connected_set = set_of_merged
        ends = low_first(merged[edges])
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
    """Return which of `wanted` are among the sorted `keys`."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return keys[place] == wanted
