"""Cannot-links that need more clusters than there are: colourings of their graph, on the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .partial_labels import TooFewClustersError

__all__ = ["low_first", "refuse_uncolourable"]

_ROUNDS = 100
"""Maximum number of rounds in which nodes with few neighbours are peeled off."""

_MOST_WORK = 3 * 10**7
"""Maximum number of look-ups in the search for a clique, which take a few seconds."""

_MOST_SEARCHED = 3 * 10**6
"""Maximum number of look-ups in the search for a colouring, which take a fraction of a second."""

_SHOWN = 12
"""Maximum number of points that an error names."""


def low_first(pairs: NDArray) -> NDArray:
    """Pairs of numbers with the lower one first; several times faster than sorting each row."""
    return np.stack([np.minimum(*pairs.T), np.maximum(*pairs.T)], axis=1)


def refuse_uncolourable(cannot: NDArray, num_nodes: int, num_clusters: int, node: NDArray) -> None:
    """Raise if hard cannot-links need more clusters than there are, as far as this is easy to decide.

    A clique of ``num_clusters + 1`` chunklets is searched greedily; for two clusters every odd cycle is
    found. For more, all colourings are searched as long as this takes few look-ups (graph colouring is
    hard in general); contradictions that this leaves show as a partition function of zero.
    """
    if not len(cannot):
        return
    first_point = np.full(num_nodes, -1, np.int64)
    first_point[node[::-1]] = np.arange(len(node))[::-1]
    if num_clusters == 1:
        i, j = first_point[cannot[0]]
        raise TooFewClustersError(f"cannot-link ({i}, {j}) needs two clusters, num_clusters is 1")
    neighbours = _neighbours(_crowded(cannot, num_nodes, num_clusters))
    if _greedily_coloured(neighbours, num_clusters):
        return
    clique = _find_clique(neighbours, num_clusters + 1)
    if clique is not None:
        points = ", ".join(str(first_point[a]) for a in clique)
        raise TooFewClustersError(
            f"points {points} are mutually cannot-linked and need {len(clique)} clusters, "
            f"num_clusters is {num_clusters}; add clusters or drop a cannot-link"
        )
    if num_clusters == 2:
        _refuse_odd_cycle(neighbours, first_point)
        return
    stuck = _uncolourable(neighbours, num_clusters)
    if stuck:
        points = ", ".join(map(str, sorted(first_point[list(stuck)].tolist())[:_SHOWN]))
        more = ", ..." if len(stuck) > _SHOWN else ""
        raise TooFewClustersError(
            f"no assignment to {num_clusters} clusters satisfies the cannot-links among points "
            f"{points}{more}; add clusters or drop a cannot-link"
        )


def _crowded(cannot: NDArray, num_nodes: int, num_clusters: int) -> NDArray:
    """Links that remain without the nodes with fewer neighbours than clusters, which can be coloured.

    The number of peeling rounds is limited: a long chain would need as many rounds as it has nodes.
    """
    links = np.unique(low_first(cannot), axis=0)
    for _ in range(_ROUNDS):
        enough = np.bincount(links.ravel(), minlength=num_nodes) >= num_clusters
        keep = enough[links].all(axis=1)
        if keep.all():
            break
        links = links[keep]
    return links


def _neighbours(links: NDArray) -> dict[int, set[int]]:
    """Neighbours of each node, with nodes in decreasing order of their number of neighbours."""
    found: dict[int, set[int]] = {}
    for a, b in links.tolist():
        found.setdefault(a, set()).add(b)
        found.setdefault(b, set()).add(a)
    return {a: found[a] for a in sorted(found, key=lambda a: -len(found[a]))}


def _greedily_coloured(neighbours: dict[int, set[int]], num_colours: int) -> bool:
    """Whether `num_colours` suffice if each node takes the first colour that its neighbours leave."""
    colour: dict[int, int] = {}
    for a, others in neighbours.items():
        taken = {colour[b] for b in others if b in colour}
        first = next(c for c in range(len(taken) + 1) if c not in taken)
        if first >= num_colours:
            return False
        colour[a] = first
    return True


def _uncolourable(neighbours: dict[int, set[int]], num_colours: int) -> set[int]:
    """Nodes among which `num_colours` do not suffice; empty if they do, or if it takes long to tell.

    The node with the fewest colours left takes one after another (Brélaz 1979, Commun. ACM 22, 251-256).
    """
    colour: dict[int, int] = {}
    path: list[tuple[int, Iterator[int]]] = []
    work, links = 0, sum(map(len, neighbours.values()))
    while len(colour) < len(neighbours):
        work += links
        if work > _MOST_SEARCHED:
            return set()
        taken = {
            a: {colour[b] for b in others if b in colour}
            for a, others in neighbours.items()
            if a not in colour
        }
        tightest = max(taken, key=lambda a: len(taken[a]))
        if not taken[tightest]:
            path.clear()  # another connected set, whatever was chosen before
        used = len({colour[a] for a, _ in path})
        path.append((tightest, iter(set(range(min(used + 1, num_colours))) - taken[tightest])))
        root = path[0][0]
        while path:
            node, left = path[-1]
            colour.pop(node, None)
            if (found := next(left, None)) is not None:
                colour[node] = found
                break
            path.pop()
        else:
            return _reached(neighbours, root)
    return set()


def _reached(neighbours: dict[int, set[int]], root: int) -> set[int]:
    """Nodes of the connected set of one of them."""
    seen, queue = {root}, [root]
    for node in queue:
        queue += neighbours[node] - seen
        seen |= neighbours[node]
    return seen


def _find_clique(neighbours: dict[int, set[int]], size: int) -> list[int] | None:
    """Nodes of a clique, grown greedily from one start after another; None if none is found."""
    work = 0
    for start in neighbours:
        clique, candidates = [start], neighbours[start]
        while len(clique) < size <= len(clique) + len(candidates):
            work += sum(min(len(neighbours[a]), len(candidates)) for a in candidates)
            best = _best_met(candidates, neighbours)
            clique.append(best)
            candidates = candidates & neighbours[best]
        if len(clique) == size:
            return clique
        if work > _MOST_WORK:
            break
    return None


def _best_met(candidates: set[int], neighbours: dict[int, set[int]]) -> int:
    """Candidate with most neighbours among the candidates; ties go to the lowest number."""
    return max(sorted(candidates), key=lambda a: len(neighbours[a] & candidates))


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
                    raise TooFewClustersError(
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
