"""Sizes of arrays, rounded up so that few distinct shapes occur and compiled code is shared."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AS_NEEDED", "FEW_NODES", "MANY_NODES", "Sizes", "link_rows", "node_rows", "padded"]

FEW_NODES = 4096
"""Number of nodes up to which arrays have the maximum size for the numbers of points and links."""


def padded(count: int, sizes: int = 4) -> int:
    """Round up to one of two or four sizes per octave, so that few distinct shapes occur."""
    unit = 1 << max((count - 1).bit_length() - sizes.bit_length(), 0)
    return -(-count // unit) * unit


def link_rows(num_links: int) -> int:
    """Number of rows for links, with padding: 64, 128, 256, ..., which a few more links do not change."""
    if not num_links or num_links > FEW_NODES:
        return num_links
    return max(64, 1 << (num_links - 1).bit_length())


def node_rows(count: int, most: int) -> int:
    """Number of rows for nodes or edges, with padding: `most`, unless this is large."""
    return most if most <= FEW_NODES else min(most, padded(count))


MANY_NODES = 50_000
"""Nodes from which on small trees are summed side by side, which takes seconds to compile."""


class Sizes(NamedTuple):
    """Lengths of the arrays of a label graph, and all else that compiled code depends on.

    A graph built with room for the sizes of others has sizes at least as large. Graphs that end with
    equal sizes, for equal numbers of clusters, are pytrees of equal structure and shapes.

    Attributes
    ----------
    points, links, nodes, edges : int
    places, row_width, rows : int
        Length of the order in which trees are taken apart, maximum number of leaves per row, and
        number of rows.
    lanes : int
        Number of chunks of lanes of small trees.
    contracted, left_out : bool
        Whether some points share a chunklet, and whether some nodes without links are not in the
        order.
    buckets, chunks : int
        Sizes of loops that are summed exactly; 0 if there are none.
    wide_nodes, wide_edges, wide_rounds : int
        Sizes of loops that are too wide for exact sums.
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
"""No more room than the graph itself needs."""
