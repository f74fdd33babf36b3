"""Sizes of arrays, rounded up so that few distinct shapes occur and compiled code is shared."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AS_NEEDED", "FEW_NODES", "MANY_NODES", "Sizes", "link_rows", "node_rows", "padded"]

FEW_NODES = 4096
"""Nodes up to which arrays are padded to what the numbers of points and links alone admit."""


def padded(count: int, sizes: int = 4) -> int:
    """Round up to one of two or four sizes an octave, so that few distinct shapes occur."""
    unit = 1 << max((count - 1).bit_length() - sizes.bit_length(), 0)
    return -(-count // unit) * unit


def link_rows(num_links: int) -> int:
    """Rows for links, spare ones included: 64, 128, 256, ..., so that a few links more change nothing."""
    if not num_links or num_links > FEW_NODES:
        return num_links
    return max(64, 1 << (num_links - 1).bit_length())


def node_rows(count: int, most: int) -> int:
    """Rows for nodes or edges, spare ones included: `most` of them unless these are many."""
    return most if most <= FEW_NODES else min(most, padded(count))


MANY_NODES = 50_000
"""Nodes from which on small trees are summed side by side: what is to be compiled for that takes seconds."""


class Sizes(NamedTuple):
    """Lengths of the arrays of a label graph, and all else that compiled code depends on.

    A graph built with room for the sizes of others has sizes at least as large. Graphs that end with
    equal sizes, for equal numbers of clusters, are pytrees of equal structure and shapes.

    Attributes
    ----------
    points, links, nodes, edges : int
    places, row_width, rows : int
        Of the order in which trees are taken apart; leaves in one row at most, and rows.
    lanes : int
        Chunks of lanes of small trees.
    contracted, left_out : bool
        Some points share a chunklet; some nodes without links are left out of the order.
    buckets, chunks : int
        Of loops that are summed exactly; 0 where there are none.
    wide_nodes, wide_edges, wide_rounds : int
        Of loops that are too wide for that.
    """

    points: int = 0
    links: int = 0
    nodes: int = 0
    edges: int = 0
    places: int = 0
    row_width: int = 0
    rows: int = 0
    lanes: int = 0
    contracted: bool = False
    left_out: bool = False
    buckets: int = 0
    chunks: int = 0
    wide_nodes: int = 0
    wide_edges: int = 0
    wide_rounds: int = 0


AS_NEEDED = Sizes()
"""No more room than a graph needs by itself."""
