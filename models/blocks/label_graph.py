"""Links compiled once, on the host, into the order in which labels are summed out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from .colouring import Colouring, colour
from .elimination import ComponentPlan, StagePlan, peel_leaves, plan_cores
from .hard_links import LinkReport, check_links, components_of, contract, refuse_uncolourable
from .link_weights import check_pairs
from .links import Links

__all__ = ["Core", "LabelGraph", "Peeling", "Stage", "Top", "as_label_graph"]

ROW_COST = 2048
"""Fixed cost of one row of leaves, in leaves."""
ROUND_COST = 2048
"""Fixed cost of one block of buckets, in cells of their tables."""
FEW_NODES = 4096
"""Nodes up to which all of them are ordered, those without links too."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Peeling:
    """Leaves in the order of their removal, cut into rows of one width so that one loop does all.

    Leaves of one row hang on nodes that are removed in later rows, or never. The leaves are the first
    nodes of `LabelGraph.order`, row by row.

    Attributes
    ----------
    parent : ndarray of int, shape (rows, width)
        Place in the order of the node that a leaf hangs on; its length pads.
    edge : ndarray of int, shape (rows, width)
        Edge between them; `num_edges` pads.
    """

    parent: Any
    edge: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stage:
    """Blocks of buckets of one width, to be eliminated in order.

    Arrays have shape (blocks, buckets a block); `bag_edge` and `axis` one more axis of length
    `width`. `node` is a place in `LabelGraph.order`, `parent` the bucket of the same stage that a
    message goes to; its number of buckets for one that goes elsewhere. `inflow` holds for each
    earlier stage the buckets there whose messages come here, and the tables that they go to.
    """

    node: Any
    parent: Any
    bag_edge: Any
    axis: Any
    inflow: tuple[tuple[Any, Any], ...]
    width: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Top:
    """Last nodes of each component, which share a table: see `ComponentPlan`, and `Stage.inflow`."""

    node: Any
    edge: Any
    inflow: tuple[tuple[Any, Any], ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Core:
    """Loopy components of equal width: stages of buckets, then the tops; see `ComponentPlan`.

    `num_buckets` counts nodes, those of the tops too; `largest` those of the largest component.
    """

    stages: tuple[Stage, ...]
    top: Any
    colouring: Colouring
    width: int | None = field(metadata={"static": True})
    num_buckets: int = field(metadata={"static": True})
    largest: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LabelGraph:
    """Links compiled for label inference; a pytree, so pass it to jitted functions as an argument.

    Hard must-links are contracted to nodes. Trees are taken apart leaf by leaf; what remains (the
    2-core) is ordered for variable elimination. Graphs whose padded shapes agree share compiled
    code.

    Build it with `LabelGraph.build(links, num_points)` or `as_label_graph`.

    Attributes
    ----------
    num_points, num_nodes, num_edges : int
        Points; chunklets (a lone point is one); distinct edges between chunklets.
    node : ndarray of int, shape (num_points,)
    node_size : ndarray, shape (num_nodes,)
        Points in each chunklet.
    pairs : ndarray of int, shape (num_links, 2)
    pair_weights : ndarray, shape (num_links,)
    edge_of_link : ndarray of int, shape (num_links,)
        Edge that a link became; `num_edges + 1` for links inside one chunklet.
    forbidden : ndarray of bool, shape (num_edges + 2,)
        Edges that a hard cannot-link closes.
    component, node_component : ndarray of int
        Connected component of each point and of each node.
    order : ndarray of int, shape (num_places,)
        Nodes in the order of their elimination; `num_nodes` pads.
    place : ndarray of int, shape (num_nodes,)
        Where a node stands in the order; `num_places` for one without links that was left out.
    is_root : ndarray of bool, shape (num_places,)
        Last node of each tree.
    all_ordered : bool
        No node was left out.
    """

    node: Any
    node_size: Any
    pairs: Any
    pair_weights: Any
    edge_of_link: Any
    forbidden: Any
    component: Any
    node_component: Any
    order: Any
    place: Any
    is_root: Any
    peeling: Peeling | None
    cores: tuple[Core, ...]
    num_points: int = field(metadata={"static": True})
    num_nodes: int = field(metadata={"static": True})
    num_edges: int = field(metadata={"static": True})
    num_components: int = field(metadata={"static": True})
    all_ordered: bool = field(metadata={"static": True})

    @classmethod
    def build(
        cls, links: Links | None, num_points: int, num_clusters: int | None = None
    ) -> LabelGraph:
        """Compile links between `num_points` points.

        Parameters
        ----------
        links : Links or None
        num_points : int
        num_clusters : int, optional
            Refuse hard cannot-links that visibly need more clusters, and cut the work on loops
            for that many (else for three).

        Raises
        ------
        ValueError
            If an index is out of range or hard links contradict each other (the path is named).
        """
        links = Links.empty() if links is None else links
        if not isinstance(links, Links):
            raise TypeError(
                f"links must be sidebayes Links (or a LabelGraph), got {type(links).__name__}; build "
                "them with Links.from_pairs(pairs, same), outside of jit"
            )
        if links.num_points is not None and links.num_points != num_points:
            raise ValueError(
                f"links refer to {links.num_points} points, the data have {num_points}; use "
                "links.subset(rows) after filtering rows"
            )
        pairs, weights = check_pairs(links.pairs, num_points), links.weights
        num_nodes, node = contract(pairs, weights, num_points)
        ends = np.sort(node[pairs], axis=1)
        if num_clusters is not None:
            refuse_uncolourable(node[pairs[np.isneginf(weights)]], num_nodes, num_clusters, node)

        between = ends[:, 0] != ends[:, 1]
        key = ends[between, 0] * num_nodes + ends[between, 1]
        unique, owner = np.unique(key, return_inverse=True)
        num_edges = len(unique)
        edges = np.stack([unique // max(num_nodes, 1), unique % max(num_nodes, 1)], axis=1)
        edge_of_link = np.full(len(pairs), num_edges + 1)
        edge_of_link[between] = owner.ravel()
        forbidden = np.zeros(num_edges + 2, bool)
        forbidden[edge_of_link[np.isneginf(weights)]] = True

        rounds, peeled = peel_leaves(edges, num_nodes)
        assumed = num_clusters or 3
        plans = plan_cores(edges[~peeled], np.flatnonzero(~peeled), num_nodes, assumed)
        leaves, parent, edge = _cut_rounds(rounds, num_nodes, num_edges)
        # few nodes without links stand with the roots of trees: one sum less to compile
        tops = np.full(num_nodes, num_edges > 0 and num_nodes <= FEW_NODES)
        tops[edges] = True
        tops[leaves[leaves < num_nodes]] = False
        tops = np.flatnonzero(tops)
        order = np.full(leaves.size + _padded(len(tops)), num_nodes)
        order[: leaves.size], order[leaves.size :][: len(tops)] = leaves.ravel(), tops
        place = np.full(num_nodes + 1, len(order))
        place[order] = np.arange(len(order))
        place[num_nodes] = len(order)
        is_root = np.isin(np.arange(len(order)), place[tops])
        for plan in plans:
            is_root[place[plan.node]] = False
        num_components, node_component = components_of(edges, num_nodes)
        return cls(
            node=node.astype(np.int32),
            node_size=np.bincount(node, minlength=num_nodes).astype(float),
            pairs=pairs.astype(np.int32),
            pair_weights=weights,
            edge_of_link=edge_of_link.astype(np.int32),
            forbidden=forbidden,
            component=node_component[node].astype(np.int32),
            node_component=node_component.astype(np.int32),
            order=order.astype(np.int32),
            place=place[:-1].astype(np.int32),
            is_root=is_root,
            peeling=Peeling(place[parent].astype(np.int32), edge) if rounds else None,
            cores=tuple(_core(plan, place, num_edges, assumed) for plan in plans),
            num_points=num_points,
            num_nodes=num_nodes,
            num_edges=num_edges,
            num_components=num_components,
            all_ordered=bool((place[:-1] < len(order)).all()),
        )

    @property
    def num_links(self) -> int:
        """Number of distinct links."""
        return self.pairs.shape[0]

    @property
    def links(self) -> Links:
        """The links the graph was compiled from."""
        return Links(
            np.asarray(self.pairs, np.int64), np.asarray(self.pair_weights), self.num_points
        )

    def untied(self) -> LabelGraph:
        """Return the same links, tying no labels: for models where a link has a price, and no more.

        Its structure is that of as many links between as many points, whichever these are.
        """
        free = LabelGraph.build(None, self.num_points)
        inside = np.full(self.num_links, free.num_edges + 1, np.int32)
        return replace(free, pairs=self.pairs, pair_weights=self.pair_weights, edge_of_link=inside)

    @property
    def width(self) -> int | None:
        """Largest number of neighbours met in elimination; None where ordering was given up."""
        widths = [0 if self.peeling is None else 1] + [core.width for core in self.cores]
        return None if None in widths else max(w for w in widths if w is not None)

    def report(self, num_clusters: int | None = None) -> LinkReport:
        """Report on the links; see `Links.check`."""
        return check_links(
            np.asarray(self.pairs, np.int64),
            np.asarray(self.pair_weights),
            self.num_points,
            num_clusters,
        )

    def __repr__(self) -> str:
        """Size and the strategy that the structure calls for."""
        loops = ", ".join(
            f"width {core.width or 'too large'}: {core.num_buckets} nodes" for core in self.cores
        )
        return (
            f"LabelGraph({self.num_points} points, {self.num_links} links, {self.num_components} "
            f"components" + (f"; loopy {loops})" if loops else ")")
        )


def as_label_graph(
    links: Links | LabelGraph | None, num_points: int, num_clusters: int | None = None
) -> LabelGraph:
    """Compile `links` unless they are compiled already.

    Raises
    ------
    ValueError
        If a compiled graph is for another number of points.
    """
    if not isinstance(links, LabelGraph):
        return LabelGraph.build(links, num_points, num_clusters)
    if links.num_points != num_points:
        raise ValueError(
            f"the LabelGraph is for {links.num_points} points, the data have {num_points}; compile the "
            "links again for these rows"
        )
    return links


def _padded(count: int) -> int:
    """Round up to one of eight sizes an octave, so that few distinct shapes occur."""
    unit = 1 << max((count - 1).bit_length() - 3, 0)
    return -(-count // unit) * unit


def _cut_rounds(
    rounds: list[NDArray], num_nodes: int, num_edges: int
) -> tuple[NDArray, NDArray, NDArray]:
    """Cut rounds into rows of the width that costs least in all: leaves, parents and edges."""
    if not rounds:
        return (np.zeros((0, 0), np.int64),) * 3
    sizes = np.array([len(step) for step in rounds])
    widths = 2 ** np.arange(3, 15)
    rows = -(-sizes[:, None] // widths)
    width = int(widths[np.argmin((rows * (widths + ROW_COST)).sum(axis=0))])
    num_rows = int((-(-sizes // width)).sum())
    filled = np.full((_padded(num_rows), width, 3), num_nodes, np.int32)
    filled[:, :, 2] = num_edges
    column = np.concatenate([np.arange(n) for n in sizes])
    first_row = np.cumsum(-(-sizes // width)) - -(-sizes // width)
    row = np.repeat(first_row, sizes) + column // width
    filled[row, column % width] = np.concatenate(rounds)
    leaves, parent, edge = np.ascontiguousarray(np.moveaxis(filled, 2, 0))
    return leaves, parent, edge


def _core(plan: ComponentPlan, place: NDArray, num_edges: int, num_clusters: int) -> Core:
    """Number nodes by their places, cut stages into blocks, gather what leaves a stage."""
    colouring = colour(plan.edges, place[plan.node])
    size = len(plan.node)
    if plan.width is None:
        return Core((), None, colouring, None, size, plan.largest)
    slots = [_slots(stage.level, num_clusters ** (stage.width + 1)) for stage in plan.stages]
    # where each bucket of a stage has come to lie; the tops lie as they are numbered
    lies = [_inverse(slot) for slot in slots] + [np.arange(len(plan.top_node))]
    inflow = [
        tuple(
            (lies[source][leaves].astype(np.int32), lies[to][stage.parent[leaves]].astype(np.int32))
            for source, stage in enumerate(plan.stages[:to])
            for leaves in [np.flatnonzero(stage.home == to)]
        )
        for to in range(len(plan.stages) + 1)
    ]
    top = Top(
        node=place[plan.top_node].astype(np.int32),
        edge=np.where(plan.top_edge < 0, num_edges, plan.top_edge).astype(np.int32),
        inflow=inflow[-1],
    )
    stages = tuple(
        _stage(stage, number, slots[number], lies[number], inflow[number], place, num_edges)
        for number, stage in enumerate(plan.stages)
    )
    return Core(stages, top, colouring, plan.width, size, plan.largest)


def _slots(level: NDArray, cells: int) -> NDArray:
    """Buckets level by level, in blocks of the size that costs least; -1 pads."""
    sizes = np.bincount(level)
    blocks = 2 ** np.arange(15)
    rounds = (-(-sizes[:, None] // blocks)).sum(axis=0)
    block = int(blocks[np.argmin(rounds * (float(cells) * blocks + ROUND_COST))])
    parts = np.split(np.argsort(level, kind="stable"), np.cumsum(sizes)[:-1])
    padded = [np.pad(part, (0, -len(part) % block), constant_values=-1) for part in parts]
    return np.concatenate(padded).reshape(-1, block)


def _inverse(slot: NDArray) -> NDArray:
    flat = slot.ravel()
    lies = np.empty(np.count_nonzero(flat >= 0), np.int64)
    lies[flat[flat >= 0]] = np.flatnonzero(flat >= 0)
    return lies


def _stage(
    plan: StagePlan,
    number: int,
    slot: NDArray,
    lies: NDArray,
    inflow: tuple,
    place: NDArray,
    num_edges: int,
) -> Stage:
    def pick(values: NDArray, padding: int) -> NDArray:
        mask = (slot >= 0).reshape(slot.shape + (1,) * (values.ndim - 1))
        chosen = np.where(mask, values[slot], padding)
        return np.where(chosen < 0, padding, chosen).astype(np.int32)

    stays = plan.home == number
    parent = np.full(len(stays), slot.size)
    parent[stays] = lies[plan.parent[stays]]
    return Stage(
        node=pick(place[plan.node], int(place[-1])),
        parent=pick(parent, slot.size),
        bag_edge=pick(plan.bag_edge, num_edges),
        axis=pick(plan.axis, -1),
        inflow=inflow,
        width=plan.width,
    )
