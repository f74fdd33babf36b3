"""Assignment of small trees to lanes, on the host (NumPy); see `lanes`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .lanes import LEVELS, ROOT, SLOTS, SPARE, Lanes

__all__ = ["SmallTrees", "lay_lanes", "small_trees"]

_LEVEL = np.repeat(np.arange(len(LEVELS)), [end - first for first, end in LEVELS])
_BASE = SLOTS + 1
"""Base of the code of a tree, whose digits are the numbers of nodes removed in each round."""


class SmallTrees(NamedTuple):
    """Trees that fit into a lane, and the cells of their nodes.

    Attributes
    ----------
    node : ndarray of int, shape (num_members,)
        Members of the trees.
    cell : ndarray of int, shape (num_members,)
        Lane and slot of each, ``lane * SLOTS + slot``.
    num_lanes : int
    """

    node: NDArray[np.int64]
    cell: NDArray[np.int64]
    num_lanes: int


def small_trees(rounds: list[NDArray], connected_set: NDArray, loops: NDArray) -> SmallTrees:
    """Find the trees that fit into a lane, and pack them.

    Parameters
    ----------
    rounds : list of ndarray, shape (removed, 3)
        See `peel_leaves`.
    connected_set : ndarray of int, shape (num_nodes,)
    loops : ndarray of int, shape (num_core_edges, 2)
        Edges that remain after the removal of all leaves.
    """
    leaves, removed = _in_turn(rounds)
    size = np.bincount(connected_set)
    fits = (size > 1) & (size <= SLOTS)
    fits[connected_set[loops]] = False
    kept = fits[connected_set[leaves[:, 0]]]
    hangs = np.zeros(len(connected_set), bool)
    hangs[leaves[:, 0]] = True
    roots = np.flatnonzero(fits[connected_set] & ~hangs)
    height = np.zeros(len(connected_set), np.int64)
    height[leaves[:, 0]] = removed
    # a root comes after the last round in which a neighbour of it was removed
    np.maximum.at(height, leaves[kept, 1], removed[kept] + 1)
    node = np.concatenate([leaves[kept, 0], roots])
    number = np.cumsum(fits) - 1
    tree = number[connected_set[node]]
    profile = np.zeros(int(fits.sum()), np.int64)
    np.add.at(profile, tree, _BASE ** np.minimum(height[node], SLOTS))
    kinds, kind = np.unique(profile, return_inverse=True)
    # members by kind of the tree, by tree, and within a tree by height
    node = node[np.lexsort((height[node], tree, kind[tree]))]
    return _packed(node, kinds, np.bincount(kind, minlength=len(kinds)))


def _packed(node: NDArray, kinds: NDArray, count: NDArray) -> SmallTrees:
    """Assign trees of few kinds to lanes, one pattern of kinds at a time, the largest first."""
    digits = kinds[:, None] // _BASE ** np.arange(SLOTS) % _BASE
    size = digits.sum(axis=1)
    first = np.cumsum(count * size) - count * size
    used = np.zeros(len(kinds), np.int64)
    cell = np.full(len(node), -1)
    order = np.lexsort((-digits[:, 0], -size))
    # a tree that does not fit an empty lane is left out
    left = np.where([_slots([digits[k]]) is not None for k in range(len(kinds))], count, 0)
    num_lanes = 0
    while left.any():
        pattern: list[int] = []
        for kind in order:
            while pattern.count(kind) < left[kind] and _slots(digits[[*pattern, kind]]) is not None:
                pattern.append(kind)
        places = _slots(digits[pattern])
        assert places is not None
        share = {kind: pattern.count(kind) for kind in pattern}
        number = int(min(left[kind] // times for kind, times in share.items()))
        lanes = (num_lanes + np.arange(number))[:, None] * SLOTS
        for kind, slots in zip(pattern, places, strict=True):
            start = first[kind] + used[kind] * size[kind]
            cell[start : start + number * size[kind]] = (lanes + slots).ravel()
            used[kind] += number
        left = left - np.bincount(pattern, minlength=len(kinds)) * number
        num_lanes += number
    inside = cell >= 0
    return SmallTrees(node[inside], cell[inside], num_lanes)


def _slots(trees: Sequence[NDArray] | NDArray) -> list[list[int]] | None:
    """Slots of the nodes of some trees, by height, from the lowest level; None if they do not fit."""
    free = list(range(SLOTS))
    found = []
    for digits in trees:
        own: list[int] = []
        lowest = 0
        for number in digits:
            chosen = [slot for slot in free if _LEVEL[slot] >= lowest][: int(number)]
            if len(chosen) < number:
                return None
            if chosen:
                lowest = _LEVEL[chosen[-1]] + 1
            own += chosen
            free = [slot for slot in free if slot not in chosen]
        found.append(own)
    return found


def _in_turn(rounds: list[NDArray]) -> tuple[NDArray, NDArray]:
    """Leaves with parent and edge in the order of removal, and the round in which each was removed."""
    leaves = np.concatenate([np.zeros((0, 3), np.int64), *rounds])
    return leaves, np.repeat(np.arange(len(rounds)), [len(some) for some in rounds])


def lay_lanes(
    trees: SmallTrees,
    rounds: list[NDArray],
    alone: NDArray,
    num_nodes: int,
    num_edges: int,
    num_chunks: int,
    width: int,
) -> tuple[Lanes, list[NDArray]]:
    """Lay small trees out in chunks of lanes; also return the rounds of leaves without them.

    Parameters
    ----------
    trees : SmallTrees
    rounds : list of ndarray, shape (removed, 3)
        See `peel_leaves`.
    alone : ndarray of int
        Nodes without links.
    num_nodes, num_edges : int
        Numbers of the graph, used as padding.
    num_chunks : int
        Number of chunks, at least as many as the lanes need.
    width : int
        Lanes in a chunk.
    """
    lane, slot = trees.cell // SLOTS, trees.cell % SLOTS
    cell = (lane // width * SLOTS + slot) * width + lane % width
    num_cells = num_chunks * SLOTS * width
    slot_of = np.zeros(num_nodes, np.int64)
    slot_of[trees.node] = slot
    place = np.full(num_nodes, num_cells)
    place[trees.node] = cell
    leaves, _ = _in_turn(rounds)
    hung = leaves[place[leaves[:, 0]] < num_cells]
    rest = [some[place[some[:, 0]] == num_cells] for some in rounds]
    node, edge = np.full(num_cells, num_nodes), np.full(num_cells, num_edges)
    parent = np.full(num_cells, SPARE)
    node[cell], parent[cell] = trees.node, ROOT
    at = place[hung[:, 0]]
    parent[at], edge[at] = slot_of[hung[:, 1]], hung[:, 2]
    cell_of_edge = np.full(num_edges + 2, num_cells)
    cell_of_edge[hung[:, 2]] = at
    shape = num_chunks, SLOTS, width
    lanes = Lanes(
        node=node.reshape(shape).astype(np.int32),
        parent=parent.reshape(shape).astype(np.int32),
        edge=edge.reshape(shape).astype(np.int32),
        place=place.astype(np.int32),
        cell_of_edge=cell_of_edge.astype(np.int32),
        alone=np.pad(alone, (0, num_nodes - len(alone)), constant_values=num_nodes).astype(
            np.int32
        ),
        num_alone=np.asarray(len(alone), np.int32),
    )
    return lanes, [some for some in rest if len(some)]
