"""Colour classes of a link graph: sets of nodes without links between them, updated together."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ..side_information.uncolourable import low_first
from ..visits import at_a_time
from .padding import Sizes, padded

__all__ = ["Colouring", "colour"]


EDGE_WINDOW, NODE_WINDOW = 128, 32
"""Links and nodes per round in small graphs; in large graphs they are sixty-four times as many, and on
accelerators sixty-four times as many again."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Colouring:
    """Nodes sorted by colour, with the links that enter each colour class, divided into rounds.

    Nodes of one colour are updated together, given those of the other colours. A round first adds
    the contributions of some links to their targets. It then updates some nodes whose links have
    all contributed.

    Attributes
    ----------
    node : ndarray of int, shape (num_nodes,)
        Place of each node in the order of the graph, padded by the length of the order.
    first, second, edge : ndarray of int, shape (num_edges,)
        Rows of the two ends of every link, the earlier colour first, and its edge number; padded by
        a zero-weight edge between padding rows.
    source, target, number : ndarray of int, shape (num_directed,)
        Every link in both directions, sorted by the row of its target.
    first_edge, edge_count, first_node, node_count : ndarray of int, shape (rounds,)
        Ranges of links and nodes of each round.
    num_rounds : ndarray of int, shape ()
        Number of rounds without padding.
    num_real, width, cells : ndarray, shape ()
        Number of nodes without padding, elimination width (-1 if ordering was given up), and number
        of table cells that exact sums of all loops would need.
    edge_window, node_window : int
        Maximum numbers of links and nodes in a round.
    """

    node: Any
    first: Any
    second: Any
    edge: Any
    source: Any
    target: Any
    number: Any
    first_edge: Any
    edge_count: Any
    first_node: Any
    node_count: Any
    num_rounds: Any
    num_real: Any
    width: Any
    cells: Any
    edge_window: int = field(metadata={"static": True})
    node_window: int = field(metadata={"static": True})

    def __str__(self) -> str:
        """Number of chunklets, and width of the loops."""
        width = f"width {int(self.width)}" if int(self.width) >= 0 else "width beyond any budget"
        return f"{int(self.num_real)} chunklets in loops too wide for exact sums, {width}"


def colour(
    edges: NDArray,
    place: NDArray,
    *,
    num_places: int,
    no_edge: int,
    few: bool,
    width: int,
    cells: float,
    room: Sizes,
) -> Colouring:
    """Sort nodes into colour classes and links by the class they enter.

    Parameters
    ----------
    edges : ndarray of int, shape (num_edges, 3)
        Local positions of the two ends, and the edge number.
    place : ndarray of int, shape (num_nodes,)
        Place of each local position in the order of the graph.
    num_places, no_edge : int
        Padding values of places and edges.
    few : bool
        Whether to pad to the size of the whole graph.
    width, cells
        See `Colouring`.
    room : Sizes
        Minimum lengths of the arrays.
    """
    size = len(place)
    source, target = np.concatenate([edges[:, :2], edges[:, 1::-1]]).T
    number = np.concatenate([edges[:, 2], edges[:, 2]])
    colour_of = _colour_classes(source, target, size)
    order = np.argsort(colour_of, kind="stable")
    row = np.empty(size, np.int64)
    row[order] = np.arange(size)
    # by target, then in the given order: several times faster than a stable `argsort`
    by_target = np.sort(row[target] * len(target) + np.arange(len(target))) % max(len(target), 1)
    source, target, number = row[source][by_target], row[target][by_target], number[by_target]

    scale = 1 if few else at_a_time(64)
    edge_window, node_window = EDGE_WINDOW * scale, NODE_WINDOW * scale
    nodes_end = np.append(0, np.cumsum(np.bincount(colour_of)))
    edges_end = np.searchsorted(target, nodes_end)
    rounds = np.concatenate(
        [
            np.zeros((0, 4), np.int64),
            *(
                _rounds_of_colour(edge_span, node_span, edge_window, node_window)
                for edge_span, node_span in zip(
                    pairwise(edges_end), pairwise(nodes_end), strict=True
                )
            ),
        ]
    )
    num_edges = no_edge if few else max(padded(len(edges)), room.wide_edges)
    rows = (num_places if few else max(padded(size), room.wide_nodes)) + node_window
    most = max(padded(len(rounds)), room.wide_rounds)
    if few:  # each colour has a node, and leaves a window of nodes and one of links unfilled
        most = num_places + num_places // node_window + 2 * num_edges // edge_window + 2
    directed = 2 * num_edges + edge_window

    def fill(values: NDArray, length: int, padding: int) -> NDArray[np.int32]:
        return np.pad(values, (0, length - len(values)), constant_values=padding).astype(np.int32)

    first, second = low_first(row[edges[:, :2]]).T
    return Colouring(
        node=fill(place[order], rows, num_places),
        first=fill(first, num_edges, rows - 1),
        second=fill(second, num_edges, rows - 1),
        edge=fill(edges[:, 2], num_edges, no_edge),
        source=fill(source, directed, rows - 1),
        target=fill(target, directed, rows - 1),
        number=fill(number, directed, no_edge),
        first_edge=fill(rounds[:, 0], most, 0),
        edge_count=fill(rounds[:, 1], most, 0),
        first_node=fill(rounds[:, 2], most, 0),
        node_count=fill(rounds[:, 3], most, 0),
        num_rounds=np.asarray(len(rounds), np.int32),
        num_real=np.asarray(size, np.int32),
        width=np.asarray(width, np.int32),
        cells=np.asarray(cells),
        edge_window=edge_window,
        node_window=node_window,
    )


def _rounds_of_colour(
    edge_span: tuple[int, int], node_span: tuple[int, int], edge_window: int, node_window: int
) -> NDArray[np.int64]:
    """Rounds that first process all links of a colour's nodes, then update these nodes."""
    edges = np.arange(edge_span[0], max(edge_span[1], edge_span[0] + 1), edge_window)
    nodes = np.arange(*node_span, node_window)
    rounds = np.zeros((len(edges) + len(nodes) - 1, 4), np.int64)  # the last links, the first nodes
    rounds[: len(edges), 0] = edges
    rounds[: len(edges), 1] = np.minimum(edge_span[1] - edges, edge_window)
    rounds[len(edges) - 1 :, 2] = nodes
    rounds[len(edges) - 1 :, 3] = np.minimum(node_span[1] - nodes, node_window)
    return rounds


def _colour_classes(source: NDArray, target: NDArray, size: int) -> NDArray[np.int64]:
    """Colour the graph by successive maximal independent sets (Luby, 1986)."""
    priority = np.random.default_rng(0).permutation(size)
    colour_of = np.full(size, -1, np.int64)
    colour = 0
    while (colour_of < 0).any():
        candidate = colour_of < 0
        alive = candidate[source] & candidate[target]
        source, target = source[alive], target[alive]
        inner_source, inner_target = source, target
        while candidate.any():
            rival = np.full(size, -1, np.int64)
            np.maximum.at(rival, inner_target, priority[inner_source])
            chosen = candidate & (priority > rival)
            colour_of[chosen] = colour
            candidate &= ~chosen
            candidate[inner_target[chosen[inner_source]]] = False
            keep = candidate[inner_source] & candidate[inner_target]
            inner_source, inner_target = inner_source[keep], inner_target[keep]
        colour += 1
    return colour_of
