"""Links compiled once, on the host, into the order in which labels are summed out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from sidebayes.common.arrays import is_traced
from sidebayes.common.fields import check_integer

from ..side_information.groups import Groups
from ..side_information.hard_links import LinkReport, check_links, connected_sets, contract
from ..side_information.link_weights import check_pairs
from ..side_information.links import Links
from ..side_information.uncolourable import low_first, refuse_uncolourable
from ..visits import at_a_time
from .approximate import Exact, Inference, as_inference
from .colouring import Colouring
from .elimination import cut_into_rows, peel_leaves, row_width
from .loops import Buckets, LoopPlan, lay_out
from .padding import AS_NEEDED, FEW_NODES, MANY_NODES, Sizes, node_rows, padded
from .sweep import Peeling
from .trees.lanes import WIDTH, Lanes
from .trees.packing import lay_lanes, small_trees

__all__ = ["LabelGraph", "as_label_graph"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LabelGraph:
    """Links compiled for label inference; a pytree, so pass it to jitted functions as an argument.

    Hard must-links are contracted to nodes. Trees are taken apart leaf by leaf; the remaining
    2-core is ordered for variable elimination. All structure is index data in padded arrays. Once
    the number of clusters is known, graphs with equal numbers of links and points therefore share
    compiled code. Until then a graph describes its loops by a plan, and needs code of its own.

    Build it with `LabelGraph.build(links, num_points, num_clusters)` or `as_label_graph`.

    Attributes
    ----------
    num_points : int
        Number of points, including padding at the end, which has no label and enters no sum.
    num_groups : int
        Number of groups of links; one if links have no groups.
    num_nodes, num_edges : int
        Number of rows for chunklets (a lone point is one), and for distinct edges between them,
        including padding.
    node : ndarray of int, shape (num_points,)
    node_size : ndarray, shape (num_nodes,)
        Number of points in each chunklet; zero for padding rows, and for those of padding points.
    pairs : ndarray of int, shape (num_links, 2)
        Padding rows hold one point twice.
    pair_weights : ndarray, shape (num_links,)
    group : ndarray of int, shape (num_links,)
        Who stated each link; zero for all if links have no groups.
    edge_of_link : ndarray of int, shape (num_links,)
        Edge of each link; `num_edges + 1` for links inside one chunklet.
    forbidden : ndarray of bool, shape (num_edges + 2,)
        Edges with a hard cannot-link.
    connected_set, node_connected_set : ndarray of int
        Connected set of each point and of each node.
    order : ndarray of int, shape (num_places,)
        Nodes in the order of their elimination, padded by `num_nodes`.
    place : ndarray of int, shape (num_nodes,)
        Place of each node in the order; `num_places` for a node in a lane, or without links and
        left out.
    is_root : ndarray of bool, shape (num_places,)
        Last node of each tree.
    peeling : Peeling or None
    lanes : Lanes or None
        Small trees of a graph with many nodes, which are not in the order.
    buckets : Buckets or None
        Loops whose labels are summed exactly.
    wide : Colouring or None
        Loops too wide for that.
    plan : LoopPlan or None
        Loops of a graph that is not yet laid out for a number of clusters.
    laid_out : (int, int) or None
        Number of clusters and budget for which loops are laid out.
    contracted : bool
        Whether factors of points are added up by chunklet, because some points share one, or may do
        so in another graph.
    all_ordered : bool
        Whether no node was left out.
    """

    node: Any
    node_size: Any
    pairs: Any
    pair_weights: Any
    group: Any
    edge_of_link: Any
    forbidden: Any
    connected_set: Any
    node_connected_set: Any
    order: Any
    place: Any
    is_root: Any
    peeling: Peeling | None
    lanes: Lanes | None
    buckets: Buckets | None
    wide: Colouring | None
    plan: LoopPlan | None = field(metadata={"static": True})
    laid_out: tuple[int, int] | None = field(metadata={"static": True})
    num_points: int = field(metadata={"static": True})
    num_groups: int = field(metadata={"static": True})
    num_nodes: int = field(metadata={"static": True})
    num_edges: int = field(metadata={"static": True})
    contracted: bool = field(metadata={"static": True})
    all_ordered: bool = field(metadata={"static": True})

    @classmethod
    def build(
        cls,
        links: Links | None,
        num_points: int,
        num_clusters: int | None = None,
        inference: str | Inference = "exact",
        room: Sizes = AS_NEEDED,
    ) -> LabelGraph:
        """Compile links between `num_points` points.

        Parameters
        ----------
        links : Links or None
        num_points : int
        num_clusters : int, optional
            Refuse hard cannot-links that clearly need more clusters, and lay loops out for this
            number. By default loops are laid out as soon as the number is known, and no code is
            shared.
        inference : str or inference object
            Method whose budget decides which loops are summed exactly.
        room : Sizes
            Minimum lengths of the arrays. Padding points come last and have no label; padding rows
            for links tie a point to itself by a hard link, which states nothing.

        Raises
        ------
        ValueError
            If an index is out of range or hard links contradict each other (the message names the
            path).
        """
        num_points = check_integer("num_points", num_points, 0)
        if num_clusters is not None:
            num_clusters = check_integer("num_clusters", num_clusters)
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
        group = np.zeros(len(pairs)) if links.group is None else links.group.codes
        num_chunklets, node = contract(pairs, weights, num_points)
        spare = max(room.points - num_points, 0)
        num_nodes = max(node_rows(num_chunklets + spare, num_points + spare), room.nodes)
        ends = low_first(node[pairs])
        if num_clusters is not None:
            refuse_uncolourable(
                node[pairs[np.isneginf(weights)]], num_chunklets, num_clusters, node
            )

        between = ends[:, 0] != ends[:, 1]
        key = ends[between, 0] * num_nodes + ends[between, 1]
        unique, owner = np.unique(key, return_inverse=True)
        rows = max(len(pairs), room.links)
        num_edges = max(node_rows(len(unique), rows) if len(unique) else 0, room.edges)
        edges = np.stack([unique // max(num_nodes, 1), unique % max(num_nodes, 1)], axis=1)
        edge_of_link = np.full(rows, num_edges + 1)
        edge_of_link[: len(pairs)][between] = owner.ravel()
        forbidden = np.zeros(num_edges + 2, bool)
        forbidden[edge_of_link[: len(pairs)][np.isneginf(weights)]] = True

        rounds, peeled = peel_leaves(edges, num_nodes)
        few = num_nodes <= FEW_NODES
        _, node_connected_set = connected_sets(edges, num_nodes)
        lanes = None
        if num_edges and num_nodes >= max(MANY_NODES, FEW_NODES + 1):
            trees = small_trees(rounds, node_connected_set, edges[~peeled])
            across = at_a_time(WIDTH)
            chunks = max(padded(-(-trees.num_lanes // across), 16), room.lanes)
            if chunks:
                has_link = np.bincount(edges.ravel(), minlength=num_nodes)[:num_chunklets] > 0
                alone = np.flatnonzero(~has_link)
                given = num_nodes, num_edges, chunks, across
                lanes, rounds = lay_lanes(trees, rounds, alone, *given)
        leaves = np.concatenate([np.zeros((0, 3), np.int64), *rounds])
        # a few nodes without links are put with the roots of trees: one sum less to compile
        tops = np.full(num_nodes, num_edges > 0 and few)
        tops[num_chunklets:] = False
        tops[edges] = True
        if lanes is not None:
            tops[lanes.place < lanes.num_cells] = False
        tops[leaves[:, 0]] = False
        tops = np.flatnonzero(tops)
        width = max(row_width(rounds, few), room.row_width)
        places = max(node_rows(len(leaves) + len(tops), num_nodes), room.places) + width
        order = np.full(places if num_edges else 0, num_nodes)
        order[: len(leaves)], order[len(leaves) :][: len(tops)] = leaves[:, 0], tops
        place = np.full(num_nodes + 1, len(order))
        place[order] = np.arange(len(order))
        place[num_nodes] = len(order)
        core = np.column_stack([place[edges[~peeled]], np.flatnonzero(~peeled)])
        is_root = np.isin(np.arange(len(order)), place[tops])
        is_root[core[:, :2]] = False
        plan = LoopPlan(core, len(order), num_edges, few)
        buckets, wide, laid_out = None, None, None
        if num_clusters is not None:
            laid_out = num_clusters, as_inference(inference).max_table
            buckets, wide = lay_out(plan, *laid_out, room)
        node_size = np.bincount(node, minlength=num_nodes).astype(float)
        node = np.append(node, num_chunklets + np.arange(spare))
        return cls(
            node=node.astype(np.int32),
            node_size=node_size,
            pairs=np.pad(pairs, [(0, rows - len(pairs)), (0, 0)]).astype(np.int32),
            pair_weights=np.pad(weights, (0, rows - len(pairs)), constant_values=np.inf),
            group=np.pad(group, (0, rows - len(pairs))).astype(np.int32),
            edge_of_link=edge_of_link.astype(np.int32),
            forbidden=forbidden,
            connected_set=node_connected_set[node].astype(np.int32),
            node_connected_set=node_connected_set.astype(np.int32),
            order=order.astype(np.int32),
            place=place[:-1].astype(np.int32),
            is_root=is_root,
            peeling=cut_into_rows(rounds, place, num_edges, width, room.rows)
            if num_edges
            else None,
            lanes=lanes,
            buckets=buckets,
            wide=wide,
            plan=plan if laid_out is None and len(core) else None,
            laid_out=laid_out,
            num_points=num_points + spare,
            num_groups=1 if links.group is None else max(links.group.num_groups, 1),
            num_nodes=num_nodes,
            num_edges=num_edges,
            # a few points with links are always added up, so that hard and soft links share code
            contracted=num_chunklets < num_points or (few and len(pairs) > 0) or room.contracted,
            all_ordered=bool((place[:num_chunklets] < len(order)).all()) and not room.left_out,
        )

    @property
    def has_lanes(self) -> bool:
        """Whether small trees are in lanes, and each node is a point."""
        return self.lanes is not None and not self.contracted

    @property
    def num_links(self) -> int:
        """Number of rows for links, including padding; `links` has the links themselves."""
        return self.pairs.shape[0]

    @property
    def states_any(self) -> bool:
        """Whether any link has a weight, or may have one, in a traced graph."""
        return is_traced(self.pair_weights) or bool(np.any(self.pair_weights))

    @property
    def num_real(self) -> int:
        """Number of points without padding; not for traced graphs."""
        return int(np.sum(self.node_size))

    @property
    def num_connected_sets(self) -> int:
        """Number of connected sets (a lone point is one); not for traced graphs."""
        return int(np.max(self.connected_set[: self.num_real], initial=-1)) + 1

    @property
    def sizes(self) -> Sizes:
        """Lengths of the arrays, for which other graphs need room to share compiled code."""
        width = 0 if self.peeling is None else self.peeling.width
        sizes = Sizes(
            points=self.num_points,
            links=self.num_links,
            nodes=self.num_nodes,
            edges=self.num_edges,
            places=len(self.order) - width,
            row_width=width,
            rows=0 if self.peeling is None else len(self.peeling.start),
            lanes=0 if self.lanes is None else len(self.lanes.node),
            contracted=self.contracted,
            left_out=not self.all_ordered,
        )
        if (loops := self.buckets) is not None:
            sizes = sizes._replace(buckets=len(loops.place) - 1, chunks=len(loops.owner))
        if self.wide is not None:
            sizes = sizes._replace(
                wide_nodes=len(self.wide.node) - self.wide.node_window,
                wide_edges=len(self.wide.edge),
                wide_rounds=len(self.wide.first_edge),
            )
        return sizes

    def suited(self, inference: str | Inference, num_clusters: int) -> LabelGraph:
        """Return the same graph with its loops laid out for a number of clusters and a budget.

        A graph with traced links keeps the budget for which it was laid out.

        Raises
        ------
        ValueError
            If the graph was laid out for another number of clusters and its links are traced.
        """
        wanted = num_clusters, as_inference(inference).max_table
        if self.laid_out == wanted:
            return self
        if self.plan is not None:
            buckets, wide = lay_out(self.plan, *wanted)
            return replace(self, buckets=buckets, wide=wide, plan=None, laid_out=wanted)
        if self.laid_out is None or (self.buckets is None and self.wide is None):
            return replace(self, laid_out=wanted)
        if not any(isinstance(known, jax.core.Tracer) for known in (self.pairs, self.pair_weights)):
            room = Sizes(points=self.num_points, links=self.num_links)
            return LabelGraph.build(self.links, self.num_real, num_clusters, inference, room)
        if self.laid_out[0] != num_clusters:
            raise ValueError(
                f"the LabelGraph is laid out for {self.laid_out[0]} clusters, the model has "
                f"{num_clusters}; build it with LabelGraph.build(links, num_points, {num_clusters})"
            )
        return self

    def alike(self, links: Links, num_points: int, room: Sizes = AS_NEEDED) -> LabelGraph:
        """Compile other links, with the same layout of loops."""
        if self.laid_out is None:
            return LabelGraph.build(links, num_points, room=room)
        num_clusters, max_table = self.laid_out
        return LabelGraph.build(links, num_points, num_clusters, Exact(max_table=max_table), room)

    @property
    def links(self) -> Links:
        """The links from which the graph was compiled, without columns; groups have numbers as names."""
        pairs, weights = np.asarray(self.pairs, np.int64), np.asarray(self.pair_weights)
        real = pairs[:, 0] != pairs[:, 1]
        codes = np.asarray(self.group, np.int64)[real]
        group = Groups(np.arange(self.num_groups)).take(codes) if self.num_groups > 1 else None
        return Links(pairs[real], weights[real], self.num_real, group)

    def untied(self) -> LabelGraph:
        """Return the same links without ties between labels, for models in which links are only penalised.

        The structure depends only on the numbers of links and points.
        """
        free = LabelGraph.build(None, self.num_points)
        links = self.links
        return replace(
            free,
            pairs=links.pairs.astype(np.int32),
            pair_weights=links.weights,
            group=np.zeros(len(links), np.int32),
            edge_of_link=np.full(len(links), free.num_edges + 1, np.int32),
        )

    @property
    def has_loops(self) -> bool:
        """Whether some labels are linked in loops."""
        wide = self.wide is not None and int(self.wide.num_rounds) > 0
        return self.plan is not None or bool(self.sums_loops) or wide

    @property
    def sums_loops(self) -> bool | jax.Array:
        """Whether some labels are linked in loops that are summed exactly; traced where links are."""
        return self.buckets is not None and self.buckets.num_chunks > 0

    def report(self, num_clusters: int | None = None) -> LinkReport:
        """Report on the links; see `Links.check`."""
        links = self.links
        return check_links(links.pairs, links.weights, self.num_points, num_clusters)

    def __repr__(self) -> str:
        """Size, and the strategy that the structure requires."""
        graph = self.suited("exact", 3) if self.plan is not None else self
        loops = [str(graph.buckets)] if graph.sums_loops else []
        loops += [str(graph.wide)] if graph.wide is not None and graph.wide.num_rounds > 0 else []
        said = "; " + ", ".join(loops) if loops else ""
        return (
            f"LabelGraph({self.num_points} points, {len(self.links)} links, {self.num_connected_sets} "
            f"connected sets{said})"
        )


def as_label_graph(
    links: Links | LabelGraph | None,
    num_points: int,
    num_clusters: int | None = None,
    inference: str | Inference = "exact",
) -> LabelGraph:
    """Compile `links` unless they are compiled already; see `LabelGraph.build`.

    Raises
    ------
    ValueError
        If a compiled graph is for another number of points.
    """
    if not isinstance(links, LabelGraph):
        return LabelGraph.build(links, num_points, num_clusters, inference)
    if links.num_points != num_points:
        raise ValueError(
            f"the LabelGraph is for {links.num_points} points, the data have {num_points}; compile the "
            "links again for these rows"
        )
    return links
