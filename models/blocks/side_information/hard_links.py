"""Hard links: contraction to chunklets and the search for contradictions, on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, triu
from scipy.sparse.csgraph import breadth_first_order, connected_components

from sidebayes.common.fields import check_integer

from .partial_labels import TooFewClustersError, check_known_classes
from .uncolourable import refuse_uncolourable

__all__ = [
    "LinkReport",
    "check_known_clusters",
    "check_links",
    "contract",
    "contradiction",
    "implied_pairs",
]

_ROUNDS = 100
"""Maximum number of rounds in which clusters are ruled out."""


@dataclass(frozen=True)
class LinkReport:
    """Report on a set of links; printable.

    Attributes
    ----------
    num_points, num_links, num_must, num_cannot, num_hard : int
    num_chunklets : int
        Groups of at least two points tied by hard must-links.
    largest_chunklet : int
    num_connected_sets : int
        Connected sets that hold at least one link.
    largest_connected_set : int
        Points in the largest of them.
    """

    num_points: int
    num_links: int
    num_must: int
    num_cannot: int
    num_hard: int
    num_chunklets: int
    largest_chunklet: int
    num_connected_sets: int
    largest_connected_set: int

    def __str__(self) -> str:
        """The report, one fact per line."""
        return (
            f"{self.num_links} links over {self.num_points} points: {self.num_must} must, "
            f"{self.num_cannot} cannot, {self.num_hard} of them hard\n"
            f"{self.num_chunklets} chunklets, the largest of {self.largest_chunklet} points\n"
            f"{self.num_connected_sets} connected sets with links, the largest of "
            f"{self.largest_connected_set} points"
        )


def connected_sets(pairs: NDArray, num_nodes: int) -> tuple[int, NDArray[np.int64]]:
    """Connected sets of an undirected graph, numbered in order of their first node."""
    ones = np.ones(len(pairs), np.int8)
    adjacency = coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(num_nodes, num_nodes))
    count, label = connected_components(adjacency, directed=False)
    return int(count), label.astype(np.int64)


def contract(pairs: NDArray, weights: NDArray, num_points: int) -> tuple[int, NDArray[np.int64]]:
    """Contract points tied by hard must-links to nodes (chunklets).

    Returns
    -------
    num_nodes : int
    node : ndarray of int, shape (num_points,)

    Raises
    ------
    ValueError
        If a hard cannot-link joins two points of one chunklet; the message names the path.
    """
    must = pairs[np.isposinf(weights)]
    if len(must):
        num_nodes, node = connected_sets(must, num_points)
    else:
        num_nodes, node = num_points, np.arange(num_points)
    if found := _contradiction(must, pairs[np.isneginf(weights)], node):
        raise ValueError(f"{found}; drop one of them, or give the links finite weights")
    return num_nodes, node


def contradiction(must: NDArray, cannot: NDArray) -> str | None:
    """The first cannot-link between points tied by must-links, with the path; None if there is none.

    Parameters
    ----------
    must, cannot : ndarray of int, shape (num_pairs, 2)
    """
    num_points = int(max(must.max(initial=-1), cannot.max(initial=-1))) + 1
    return _contradiction(must, cannot, connected_sets(must, num_points)[1])


def _contradiction(must: NDArray, cannot: NDArray, node: NDArray) -> str | None:
    """The result of `contradiction`, given the connected set of each point."""
    inside = node[cannot[:, 0]] == node[cannot[:, 1]]
    if not inside.any():
        return None
    i, j = cannot[int(np.argmax(inside))]
    path = "–".join(str(p) for p in _path(must, len(node), int(i), int(j)))
    return f"cannot-link ({i}, {j}) contradicts must-links {path}"


def implied_pairs(
    pairs: NDArray, weights: NDArray, num_points: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs that hard links force to agree, and pairs that they force to differ, each once.

    Parameters
    ----------
    pairs : ndarray of int, shape (num_links, 2)
    weights : ndarray, shape (num_links,)
    num_points : int

    Raises
    ------
    ValueError
        If they contradict each other.
    """
    num_nodes, node = contract(pairs, weights, num_points)
    ones = np.ones(num_points, np.int8)
    member = coo_array((ones, (node, np.arange(num_points))), shape=(num_nodes, num_points)).tocsr()
    cannot = node[pairs[np.isneginf(weights)]]
    ends = np.concatenate([cannot, cannot[:, ::-1]])
    apart = coo_array(
        (np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), shape=(num_nodes, num_nodes)
    ).tocsr()
    return _upper_pairs(member.T @ member), _upper_pairs(member.T @ apart @ member)


def _upper_pairs(matrix: Any) -> NDArray[np.int64]:
    """Rows and columns of the entries above the diagonal of a symmetric sparse matrix."""
    found = triu(matrix, k=1).tocoo()
    return np.stack([found.row, found.col], axis=1).astype(np.int64)


def check_links(
    pairs: NDArray, weights: NDArray, num_points: int, num_clusters: int | None = None
) -> LinkReport:
    """Report on the links, and raise if hard links contradict each other (see `Links.check`)."""
    if num_clusters is not None:
        num_clusters = check_integer("num_clusters", num_clusters)
    num_nodes, node = contract(pairs, weights, num_points)
    if num_clusters is not None:
        refuse_uncolourable(node[pairs[np.isneginf(weights)]], num_nodes, num_clusters, node)
    sizes = np.bincount(node)
    _, connected_set = connected_sets(pairs, num_points)
    set_sizes = np.bincount(connected_set)
    return LinkReport(
        num_points=num_points,
        num_links=len(pairs),
        num_must=int((weights > 0).sum()),
        num_cannot=int((weights < 0).sum()),
        num_hard=int(np.isinf(weights).sum()),
        num_chunklets=int((sizes > 1).sum()),
        largest_chunklet=int(sizes.max(initial=0)),
        num_connected_sets=int((set_sizes > 1).sum()),
        largest_connected_set=int(set_sizes.max(initial=0)),
    )


def check_known_clusters(data: Mapping[str, Any]) -> None:
    """Refuse clusters in ``data["known"]`` that are too many, or that the hard links contradict.

    Cannot-links that leave no cluster for a row are found by propagation, as long as some row has a
    single cluster left. Other contradictions (graph colouring is hard in general) show as a
    partition function of zero.

    Raises
    ------
    ValueError
        If there are such clusters. The message names rows, their clusters and the links, or the
        cluster and the number of clusters.
    """
    check_known_classes(data, "num_clusters")
    known, links = data["known"], data.get("links")
    values = np.asarray(known.values)
    if links is None or links.pairs.max(initial=-1) >= len(values):  # refused with the table
        return
    pairs, weights = links.pairs, links.weights
    num_nodes, node = contract(pairs, weights, len(values))
    size = values.shape[1] if values.ndim == 2 else int(values.max(initial=0)) + 2
    may = np.asarray(known.admissible(size))  # more than one of a row that is not known
    number = may.sum(axis=1)
    strictest = np.zeros(num_nodes, np.int64)
    order = np.argsort(-number, kind="stable")
    strictest[node[order]] = order

    def told(one: int, other: int, said: str) -> ValueError:
        names = known.names or range(size)
        stated = (
            f"known[{row}] = {' or '.join(repr(names[k]) for k in np.flatnonzero(may[row]))}"
            for row in (one, other)
        )
        return ValueError(
            f"{' and '.join(stated)} contradict {said}; correct one of the labels, drop a link, or give the "
            "links finite weights"
        )

    apart = np.flatnonzero(~(may & may[strictest[node]]).any(axis=1))
    if len(apart):
        one, other = sorted((int(strictest[node[apart[0]]]), int(apart[0])))
        path = _path(pairs[np.isposinf(weights)], len(values), one, other)
        raise told(one, other, f"must-links {'–'.join(map(str, path))}")
    cannot = pairs[np.isneginf(weights)]
    ends = strictest[node[cannot]]
    one, other = ends.T
    same = (number[ends] == 1).all(axis=1) & (may[one] & may[other]).any(axis=1)
    if same.any():
        (i, j), (one, other) = cannot[same][0], ends[same][0]
        tied = "" if {i, j} == {one, other} else " between rows that must-links tie to them"
        raise told(int(one), int(other), f"cannot-link ({i}, {j}){tied}")
    if not (num_clusters := data.get("num_clusters")):
        return
    left = np.ones((num_nodes, num_clusters), bool)
    rows = np.flatnonzero(number < size)
    np.logical_and.at(left, node[rows], known.subset(rows).admissible(num_clusters))
    _refuse_none_left(left, node[cannot], node, known.names or ())


def _refuse_none_left(
    left: NDArray[np.bool_], cannot: NDArray, node: NDArray, names: Sequence[Any]
) -> None:
    """Raise if cannot-links to chunklets with one cluster left leave no cluster for another chunklet."""
    chunklets, cannot = np.unique(cannot, return_inverse=True)
    ends, left = np.concatenate([cannot, cannot[:, ::-1]]), left[chunklets]
    settled = np.zeros(len(left), bool)
    for _ in range(_ROUNDS):
        new = (left.sum(axis=1) == 1) & ~settled
        if not new.any():
            return
        settled |= new
        one, other = ends[new[ends[:, 0]]].T
        before = left.copy()
        np.logical_and.at(left, other, ~before[one])
        empty = np.flatnonzero(~left.any(axis=1))
        if len(empty):
            break
    else:
        return
    met = np.unique(ends[(ends[:, 1] == empty[0]) & settled[ends[:, 0]], 0])
    first = np.unique(node, return_index=True)[1][chunklets]
    named = dict(enumerate(names))
    apart = (
        f"row {first[row]} (cluster {named.get(cluster, cluster)!r})"
        for row, cluster in zip(met, before[met].argmax(axis=1).tolist(), strict=True)
    )
    raise TooFewClustersError(
        f"known clusters and cannot-links leave no cluster to row {first[empty[0]]}: it is held apart from "
        f"{' and '.join(apart)}; correct a label, add clusters, drop a link, or give the links finite weights"
    )


def _path(pairs: NDArray, num_points: int, start: int, end: int) -> list[int]:
    both = np.concatenate([pairs, pairs[:, ::-1]])
    graph = coo_array(
        (np.ones(len(both), np.int8), (both[:, 0], both[:, 1])), shape=(num_points, num_points)
    ).tocsr()
    _, before = breadth_first_order(graph, start, return_predecessors=True)
    path = [end]
    while path[-1] != start:
        path.append(int(before[path[-1]]))
    return path[::-1]
