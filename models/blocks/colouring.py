"""Colour classes of a link graph: sets of nodes without links between them, updated together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

__all__ = ["Colouring", "colour"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Colouring:
    """Nodes sorted by colour, with the links that enter each colour class.

    Attributes
    ----------
    node : ndarray of int, shape (num_nodes,)
        Node of the graph at each place of the colour order.
    first, second, edge : ndarray of int, shape (num_edges,)
        Places of the two ends of every link, the one of the earlier colour first, and its edge
        number.
    sources, targets, edges : tuple of ndarray
        For each colour the links into it: place of the source, place of the target counted within
        the class (ascending), edge number.
    sizes : tuple of ndarray
        For each colour an array with one entry a node; only its length matters.
    """

    node: Any
    first: Any
    second: Any
    edge: Any
    sources: tuple[Any, ...]
    targets: tuple[Any, ...]
    edges: tuple[Any, ...]
    sizes: tuple[Any, ...]


def colour(edges: NDArray, node: NDArray) -> Colouring:
    """Sort nodes into colour classes and links by the class they enter.

    Parameters
    ----------
    edges : ndarray of int, shape (num_edges, 3)
        Local positions of the two ends, and the edge number.
    node : ndarray of int, shape (num_nodes,)
        Node of the graph at each local position.
    """
    size = len(node)
    source = np.concatenate([edges[:, 0], edges[:, 1]])
    target = np.concatenate([edges[:, 1], edges[:, 0]])
    number = np.concatenate([edges[:, 2], edges[:, 2]])
    colour_of = _colour_classes(source, target, size)
    order = np.argsort(colour_of, kind="stable")
    place = np.empty(size, np.int64)
    place[order] = np.arange(size)
    counts = np.bincount(colour_of)
    start = np.concatenate([[0], np.cumsum(counts)])
    by_target = np.argsort(place[target], kind="stable")
    source, target, number = place[source][by_target], place[target][by_target], number[by_target]
    cuts = np.searchsorted(target, start)
    parts = [slice(cuts[c], cuts[c + 1]) for c in range(len(counts))]
    return Colouring(
        node=node[order].astype(np.int32),
        first=place[edges[:, :2]].min(axis=1).astype(np.int32),
        second=place[edges[:, :2]].max(axis=1).astype(np.int32),
        edge=edges[:, 2].astype(np.int32),
        sources=tuple(source[p].astype(np.int32) for p in parts),
        targets=tuple((target[p] - start[c]).astype(np.int32) for c, p in enumerate(parts)),
        edges=tuple(number[p].astype(np.int32) for p in parts),
        sizes=tuple(np.zeros(n, bool) for n in counts),
    )


def _colour_classes(source: NDArray, target: NDArray, size: int) -> NDArray[np.int64]:
    """Colour by one maximal independent set after another (Luby, 1986)."""
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
