"""Plans of loopy connected sets, made on the host: buckets in one array of cells, colours for the rest.

The node that is eliminated in a bucket sends a message over the labels of its bag, which is the set
of its neighbours at its elimination. All messages are in one array, divided into chunks of equal
size, so that one loop over chunks eliminates any graph: graphs differ only in index data.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ..side_information.hard_links import connected_sets
from ..side_information.uncolourable import low_first
from .colouring import Colouring, colour
from .elimination_order import MAX_WIDTH, order_nodes, table_cells
from .padding import AS_NEEDED, Sizes, padded

__all__ = ["Buckets", "LoopPlan", "lay_out", "trailing_axes"]

CHUNK_CELLS = 30
"""Maximum number of cells in the message of one chunk, if it has more than one axis."""
MOST_CELLS = 2**31
"""Number of cells beyond which, for any budget, places of messages need more than 32 bits."""
FEW_CELLS = 2**15
"""Messages with up to this many cells share one size; larger ones take steps of eight."""


@dataclass(frozen=True, eq=False)
class LoopPlan:
    """The 2-core of a label graph; equal plans have equal edges.

    Attributes
    ----------
    edges : ndarray of int, shape (num_core_edges, 3)
        Two places in the order of the graph, and the number of the edge.
    num_places, num_edges : int
        Numbers of the whole graph, used as padding.
    few : bool
        Whether shapes depend on the size of the graph alone.
    """

    edges: NDArray[np.int64]
    num_places: int
    num_edges: int
    few: bool

    @cached_property
    def digest(self) -> str:
        """Digest by which plans are compared."""
        text = f"{self.num_places},{self.num_edges},{self.few},".encode()
        return hashlib.sha256(text + np.ascontiguousarray(self.edges).tobytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        """Equal edges of equal graphs."""
        return isinstance(other, LoopPlan) and self.digest == other.digest

    def __hash__(self) -> int:
        """Hash of the content."""
        return hash(self.digest)

    def __repr__(self) -> str:
        """Short, and different for different plans."""
        return f"LoopPlan({self.digest})"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Buckets:
    """Elimination of loopy connected sets, one bucket per node, as index data of one loop.

    Axis j of a bucket is the label of the node of its bag that is eliminated j-th after it: axis 0
    is the receiver of the message. Axis 0 varies fastest in message cells. The table of a bucket
    has the eliminated label as a further, last axis. Arrays of buckets have a padding entry at the
    end.

    Attributes
    ----------
    place : ndarray of int, shape (num_buckets + 1,)
        Place of the eliminated node in the order of the graph, padded by the length of the order.
    row : ndarray of int, shape (num_places,)
        Bucket of the node at a place; `num_buckets` if there is none.
    edge : ndarray of int, shape (num_buckets + 1, width)
        Edge to the node of each axis; `num_edges` if there is none.
    slot : ndarray of int, shape (num_edges + 2,)
        Position of an edge in the flattened `edge`; past its end for edges elsewhere.
    stride : ndarray of int, shape (num_buckets + 1, width)
        Step in the message of this bucket per step along each axis of the receiver.
    start : ndarray of int, shape (num_buckets + 1,)
        First chunk of the message.
    child, first_child, num_children : ndarray of int, shape (num_buckets + 1,)
        Buckets sorted by receiver, and the range of those of each receiver.
    owner : ndarray of int, shape (chunks,)
        Bucket of each chunk, `num_buckets` for padding; senders come before receivers.
    is_root : ndarray of bool, shape (num_buckets + 1,)
        Last node of its connected set.
    bag_size : ndarray of int, shape (num_buckets + 1,)
    num_chunks : ndarray of int, shape ()
        Number of chunks without padding.
    num_clusters : int
        Number of clusters for which chunks are cut.
    """

    place: Any
    row: Any
    edge: Any
    slot: Any
    stride: Any
    start: Any
    child: Any
    first_child: Any
    num_children: Any
    owner: Any
    is_root: Any
    bag_size: Any
    num_chunks: Any
    num_clusters: int = field(metadata={"static": True})

    def __str__(self) -> str:
        """Number of chunklets, and width of the loops."""
        count = np.count_nonzero(np.asarray(self.place) < len(self.row))
        return f"{count} chunklets in loops, width {int(np.max(self.bag_size))}"

    @property
    def chunk_cells(self) -> int:
        """Number of cells of one chunk."""
        return self.num_clusters ** trailing_axes(self.num_clusters)

    @property
    def num_cells(self) -> int:
        """Number of cells of all messages, including padding."""
        return len(self.owner) * self.chunk_cells


def trailing_axes(num_clusters: int) -> int:
    """Number of axes of a message that vary within a chunk, at least one."""
    axes = 1
    while num_clusters ** (axes + 1) <= CHUNK_CELLS and axes < MAX_WIDTH:
        axes += 1
    return axes


def lay_out(
    plan: LoopPlan, num_clusters: int, max_table: int, room: Sizes = AS_NEEDED
) -> tuple[Buckets | None, Colouring | None]:
    """Divide loopy connected sets into those to be summed exactly and those that are too wide.

    The cheapest connected sets come first, as long as their tables together fit the budget.

    Parameters
    ----------
    plan : LoopPlan
    num_clusters : int
    max_table : int
        Maximum number of table cells for exact sums.
    room : Sizes
        Minimum lengths of the arrays.

    Returns
    -------
    buckets : Buckets or None
        None if there are no loops, or if none is cheap enough and shapes need not agree.
    wide : Colouring or None
        None if all sums are exact.
    """
    if not (len(plan.edges) or room.buckets or room.wide_nodes):
        return None, None
    present = np.zeros(plan.num_places, bool)
    present[plan.edges[:, :2]] = True
    nodes, number = np.flatnonzero(present), np.cumsum(present) - 1
    local = low_first(number[plan.edges[:, :2]])
    num_connected_sets, connected_set = connected_sets(local, len(nodes))
    order = order_nodes(local, connected_set, num_clusters)
    cells = table_cells(order, connected_set, num_clusters)
    cheapest = np.argsort(cells, kind="stable")
    exact = np.zeros(num_connected_sets, bool)
    exact[cheapest] = np.cumsum(cells[cheapest]) <= min(max_table, MOST_CELLS)
    wide = None
    if not exact.all() or room.wide_nodes:
        rest = ~exact[connected_set[local[:, 0]]]
        widest = order.bag_size[~exact[connected_set]].max(initial=0)
        width = -1 if order.given_up.any() else int(widest)
        chosen = np.flatnonzero(~exact[connected_set])
        number = np.zeros(len(nodes), np.int64)
        number[chosen] = np.arange(len(chosen))
        wide = colour(
            np.column_stack([number[local[rest]], plan.edges[rest, 2]]),
            nodes[chosen],
            num_places=plan.num_places,
            no_edge=plan.num_edges,
            few=plan.few,
            width=width,
            cells=float(cells.sum()),
            room=room,
        )
    if not (exact.any() or plan.few or room.buckets):
        return None, wide
    sequence = order.sequence[exact[connected_set[order.sequence]]]
    size = len(sequence)
    position = np.full(len(nodes) + 1, size, np.int64)
    position[sequence] = np.arange(size)
    bag_size = order.bag_size[sequence]
    column = np.arange(max(int(bag_size.max(initial=1)), 1))
    inside = column < bag_size[:, None]
    where = np.where(inside, order.bag_start[sequence, None] + column, 0)
    bag = position[np.where(inside, order.bag_node[where], len(nodes))]
    bag = np.sort(bag, axis=1)  # the node that is eliminated next comes first
    edge = _edges_of_bags(local, plan.edges[:, 2], sequence, bag, position, plan.num_edges)
    return _buckets(plan, nodes[sequence], bag_size, bag, edge, num_clusters, max_table, room), wide


def _edges_of_bags(
    local: NDArray,
    number: NDArray,
    sequence: NDArray,
    bag: NDArray,
    position: NDArray,
    padding: int,
) -> NDArray[np.int64]:
    """Edge from each node to each node of its bag; `padding` if there is none."""
    size = len(sequence)
    ends = low_first(position[local])
    key = ends[:, 0] * (size + 1) + ends[:, 1]
    by_key = np.argsort(key)
    key = np.append(key[by_key], -1)
    wanted = np.arange(size)[:, None] * (size + 1) + bag
    found = np.searchsorted(key[:-1], wanted)
    return np.where(key[found] == wanted, np.append(number[by_key], padding)[found], padding)


def _buckets(
    plan: LoopPlan,
    place: NDArray,
    bag_size: NDArray,
    bag: NDArray,
    edge: NDArray,
    num_clusters: int,
    max_table: int,
    room: Sizes,
) -> Buckets:
    """Assign chunks to every bucket, and determine where each message is read."""
    size, within = len(place), trailing_axes(num_clusters)
    cells = num_clusters**within
    chunks = num_clusters ** np.maximum(bag_size - within, 0)
    start = np.cumsum(chunks) - chunks
    num_buckets = plan.num_places if plan.few else max(padded(max(size, 1)), room.buckets)
    owner = np.repeat(np.arange(size), chunks)
    num_chunks = len(owner)
    rows = _chunk_rows(num_chunks, cells, num_clusters, max_table, room)
    owner = np.pad(owner, (0, rows - num_chunks), constant_values=num_buckets)

    parent = bag[:, 0]
    num_children = np.bincount(parent, minlength=size + 1)[:size]
    children = np.argsort(parent, kind="stable")
    bag_of_parent = np.concatenate([bag, np.full((1, bag.shape[1]), -1)])[parent]
    stride = np.zeros_like(bag)
    for axis in range(1, int(bag_size.max(initial=0))):
        known = np.where(bag[:, axis] < size, bag[:, axis], -2)[:, None]
        stride += (bag_of_parent == known) * num_clusters**axis

    width = MAX_WIDTH
    if num_clusters > 1:  # no wider bag has a message of so many cells
        width = min(int(np.emath.logn(num_clusters, owner.size * cells) + 1e-9), MAX_WIDTH)

    def fill(values: NDArray, padding: int) -> NDArray[np.int32]:
        values = values[..., :width] if values.ndim == 2 else values
        spare = [(0, num_buckets + 1 - size), (0, width - values.shape[-1])][: values.ndim]
        return np.pad(values, spare, constant_values=padding).astype(np.int32)

    edges = fill(edge, plan.num_edges)
    slot = np.full(plan.num_edges + 2, edges.size)
    slot[edges.ravel()] = np.arange(edges.size)
    slot[plan.num_edges :] = edges.size
    row = np.full(plan.num_places, num_buckets)
    row[place] = np.arange(size)
    return Buckets(
        place=fill(place, plan.num_places),
        row=row.astype(np.int32),
        edge=edges,
        slot=slot.astype(np.int32),
        stride=fill(stride, 0),
        start=fill(start, 0),
        child=fill(children, num_buckets),
        first_child=fill(np.cumsum(num_children) - num_children, 0),
        num_children=fill(num_children, 0),
        owner=owner.astype(np.int32),
        is_root=fill(parent == size, 0).astype(bool),
        bag_size=fill(bag_size, 0),
        num_chunks=np.asarray(num_chunks, np.int32),
        num_clusters=num_clusters,
    )


def _chunk_rows(needed: int, cells: int, num_clusters: int, max_table: int, room: Sizes) -> int:
    """Number of chunks, including padding, so that few distinct shapes occur."""
    size = next(size for step in count() if (size := FEW_CELLS << 3 * step) >= needed * cells)
    most = 2 * max_table // (cells * num_clusters) + 1  # what the budget admits, partly filled
    return max(needed, min(size // cells, most), room.chunks)
