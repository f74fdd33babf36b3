"""Links compiled once, on the host, into the order in which labels are summed out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from .approximate import Inference, as_inference
from .cores import Core, compile_core, padded
from .elimination import peel_leaves, plan_cores
from .hard_links import LinkReport, check_links, components_of, contract, refuse_uncolourable
from .link_weights import check_pairs
from .links import Links

__all__ = ["LabelGraph", "Peeling", "as_label_graph"]

ROW_COST = 2048
"""Fixed cost of one row of leaves, in leaves."""
FEW_NODES = 4096
"""Nodes up to which all of them are ordered, those without links too, and shapes hang on sizes alone."""


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
class LabelGraph:
    """Links compiled for label inference; a pytree, so pass it to jitted functions as an argument.

    Hard must-links are contracted to nodes. Trees are taken apart leaf by leaf; what remains (the
    2-core) is ordered for variable elimination. Arrays are padded, so that graphs of as many links
    between as many points mostly share compiled code, as long as loops are few and small.

    Build it with `LabelGraph.build(links, num_points)` or `as_label_graph`.

    Attributes
    ----------
    num_points : int
    num_nodes, num_edges : int
        Rows for chunklets (a lone point is one), and for distinct edges between them, some spare.
    node : ndarray of int, shape (num_points,)
    node_size : ndarray, shape (num_nodes,)
        Points in each chunklet; zero for a spare row.
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
    contracted : bool
        Some points share a chunklet.
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
    contracted: bool = field(metadata={"static": True})
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
        num_chunklets, node = contract(pairs, weights, num_points)
        num_nodes = _rows(num_chunklets, num_points)
        ends = np.sort(node[pairs], axis=1)
        if num_clusters is not None:
            refuse_uncolourable(
                node[pairs[np.isneginf(weights)]], num_chunklets, num_clusters, node
            )

        between = ends[:, 0] != ends[:, 1]
        key = ends[between, 0] * num_nodes + ends[between, 1]
        unique, owner = np.unique(key, return_inverse=True)
        num_edges = _rows(len(unique), len(pairs)) if len(unique) else 0
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
        tops[num_chunklets:] = False
        tops[edges] = True
        tops[leaves[leaves < num_nodes]] = False
        tops = np.flatnonzero(tops)
        order = np.full(leaves.size + (_rows(len(tops), num_nodes) if num_edges else 0), num_nodes)
        order[: leaves.size], order[leaves.size :][: len(tops)] = leaves.ravel(), tops
        place = np.full(num_nodes + 1, len(order))
        place[order] = np.arange(len(order))
        place[num_nodes] = len(order)
        is_root = np.isin(np.arange(len(order)), place[tops])
        for plan in plans:
            is_root[place[plan.node]] = False
        _, node_component = components_of(edges, num_nodes)
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
            cores=tuple(compile_core(plan, place, num_edges, assumed) for plan in plans),
            num_points=num_points,
            num_nodes=num_nodes,
            num_edges=num_edges,
            contracted=num_chunklets < num_points,
            all_ordered=bool((place[:num_chunklets] < len(order)).all()),
        )

    @property
    def num_links(self) -> int:
        """Number of distinct links."""
        return self.pairs.shape[0]

    @property
    def num_components(self) -> int:
        """Number of connected components, a lone point being one; not for traced graphs."""
        return int(np.max(self.component, initial=-1)) + 1

    def suited(self, inference: str | Inference, num_clusters: int) -> LabelGraph:
        """Return the same graph without colours where `inference` affords exact sums.

        They would take part in the shapes by which compiled code is shared.
        """
        method = as_inference(inference)
        cores = (
            replace(core, colouring=None) if method.affords(core, num_clusters) else core
            for core in self.cores
        )
        return replace(self, cores=tuple(cores))

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
            f"width {core.width or 'too large'}: {core.num_buckets} buckets" for core in self.cores
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


def _rows(count: int, most: int) -> int:
    """Rows of an array of `count` things, spare ones included: `most` of them unless these are many."""
    return most if most <= FEW_NODES else min(most, padded(count))


def _cut_rounds(
    rounds: list[NDArray], num_nodes: int, num_edges: int
) -> tuple[NDArray, NDArray, NDArray]:
    """Cut rounds into rows of the width that costs least in all: leaves, parents and edges."""
    if not rounds:
        return (np.zeros((0, 0), np.int64),) * 3
    sizes = np.array([len(step) for step in rounds])
    few = num_nodes <= FEW_NODES
    widths = 2 ** np.arange(6 if few else 3, 15)
    rows = -(-sizes[:, None] // widths)
    width = int(widths[np.argmin((rows * (widths + ROW_COST)).sum(axis=0))])
    num_rows = int((-(-sizes // width)).sum())
    num_rows = padded(max(num_rows, 4), 2) if few else padded(num_rows)
    filled = np.full((num_rows, width, 3), num_nodes, np.int32)
    filled[:, :, 2] = num_edges
    column = np.concatenate([np.arange(n) for n in sizes])
    first_row = np.cumsum(-(-sizes // width)) - -(-sizes // width)
    row = np.repeat(first_row, sizes) + column // width
    filled[row, column % width] = np.concatenate(rounds)
    leaves, parent, edge = np.ascontiguousarray(np.moveaxis(filled, 2, 0))
    return leaves, parent, edge
