"""Hard links: contraction to chunklets and the search for contradictions, on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

__all__ = ["LinkReport", "check_links", "contract"]


@dataclass(frozen=True)
class LinkReport:
    """What a set of links holds; printable.

    Attributes
    ----------
    num_points, num_links, num_must, num_cannot, num_hard : int
    num_chunklets : int
        Groups of at least two points tied by hard must-links.
    largest_chunklet : int
    num_components : int
        Connected components that hold at least one link.
    largest_component : int
        Points in the largest of them.
    """

    num_points: int
    num_links: int
    num_must: int
    num_cannot: int
    num_hard: int
    num_chunklets: int
    largest_chunklet: int
    num_components: int
    largest_component: int

    def __str__(self) -> str:
        """One line a fact."""
        return (
            f"{self.num_links} links over {self.num_points} points: {self.num_must} must, "
            f"{self.num_cannot} cannot, {self.num_hard} of them hard\n"
            f"{self.num_chunklets} chunklets, the largest of {self.largest_chunklet} points\n"
            f"{self.num_components} linked components, the largest of {self.largest_component} points"
        )


def components_of(pairs: NDArray, num_nodes: int) -> tuple[int, NDArray[np.int64]]:
    """Connected components of an undirected graph, numbered in order of their first node."""
    ones = np.ones(len(pairs), np.int8)
    adjacency = coo_array((ones, (pairs[:, 0], pairs[:, 1])), shape=(num_nodes, num_nodes))
    count, label = connected_components(adjacency, directed=False)
    return int(count), label.astype(np.int64)


def contract(pairs: NDArray, weights: NDArray, num_points: int) -> tuple[int, NDArray[np.int64]]:
    """Tie hard must-linked points into nodes (chunklets).

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
        num_nodes, node = components_of(must, num_points)
    else:
        num_nodes, node = num_points, np.arange(num_points)
    cannot = pairs[np.isneginf(weights)]
    inside = node[cannot[:, 0]] == node[cannot[:, 1]]
    if inside.any():
        i, j = cannot[int(np.argmax(inside))]
        path = "–".join(str(p) for p in _path(must, num_points, int(i), int(j)))
        raise ValueError(
            f"cannot-link ({i}, {j}) contradicts must-links {path}; drop one of them, or give the "
            "links finite weights"
        )
    return num_nodes, node


def check_links(
    pairs: NDArray, weights: NDArray, num_points: int, num_clusters: int | None = None
) -> LinkReport:
    """Report on the links, and raise where hard ones contradict (see `Links.check`)."""
    num_nodes, node = contract(pairs, weights, num_points)
    if num_clusters is not None:
        refuse_uncolourable(node[pairs[np.isneginf(weights)]], num_nodes, num_clusters, node)
    sizes = np.bincount(node)
    _, component = components_of(pairs, num_points)
    component_sizes = np.bincount(component)
    return LinkReport(
        num_points=num_points,
        num_links=len(pairs),
        num_must=int((weights > 0).sum()),
        num_cannot=int((weights < 0).sum()),
        num_hard=int(np.isinf(weights).sum()),
        num_chunklets=int((sizes > 1).sum()),
        largest_chunklet=int(sizes.max(initial=0)),
        num_components=int((component_sizes > 1).sum()),
        largest_component=int(component_sizes.max(initial=0)),
    )


def refuse_uncolourable(cannot: NDArray, num_nodes: int, num_clusters: int, node: NDArray) -> None:
    """Raise when hard cannot-links need more clusters than there are, where that is easy to see.

    A clique of ``num_clusters + 1`` chunklets is found greedily, and for two clusters every odd
    cycle. What remains (graph colouring is hard in general) shows as a partition function of zero.
    """
    if not len(cannot):
        return
    first_point = np.full(num_nodes, -1, np.int64)
    first_point[node[::-1]] = np.arange(len(node))[::-1]
    if num_clusters == 1:
        i, j = first_point[cannot[0]]
        raise ValueError(f"cannot-link ({i}, {j}) needs two clusters, num_clusters is 1")
    neighbours: dict[int, set[int]] = {}
    for a, b in cannot.tolist():
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    for start in sorted(neighbours, key=lambda a: -len(neighbours[a])):
        if len(neighbours[start]) < num_clusters:
            break
        clique, candidates = [start], set(neighbours[start])
        while candidates:
            best = max(sorted(candidates), key=lambda a: len(neighbours[a] & candidates))
            clique.append(best)
            candidates &= neighbours[best]
        if len(clique) > num_clusters:
            points = ", ".join(str(first_point[a]) for a in clique)
            raise ValueError(
                f"points {points} are mutually cannot-linked and need {len(clique)} clusters, "
                f"num_clusters is {num_clusters}; add clusters or drop a cannot-link"
            )
    if num_clusters == 2:
        _refuse_odd_cycle(neighbours, first_point)


def _refuse_odd_cycle(neighbours: dict[int, set[int]], first_point: NDArray) -> None:
    parent: dict[int, int] = {}
    side: dict[int, int] = {}
    for root in neighbours:
        if root in side:
            continue
        side[root], queue = 0, [root]
        for a in queue:
            for b in neighbours[a]:
                if b not in side:
                    side[b], parent[b] = 1 - side[a], a
                    queue.append(b)
                elif side[b] == side[a]:
                    cycle = _join(parent, a, b)
                    names = "–".join(str(first_point[c]) for c in [*cycle, cycle[0]])
                    raise ValueError(
                        f"cannot-links form the odd cycle {names}, which two clusters cannot "
                        "satisfy; add a cluster or drop a cannot-link"
                    )


def _join(parent: dict[int, int], a: int, b: int) -> list[int]:
    up_a, up_b = [a], [b]
    while up_a[-1] in parent:
        up_a.append(parent[up_a[-1]])
    while up_b[-1] in parent:
        up_b.append(parent[up_b[-1]])
    while len(up_a) > 1 and len(up_b) > 1 and up_a[-2] == up_b[-2]:
        up_a.pop()
        up_b.pop()
    return up_a + up_b[-2::-1]


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
