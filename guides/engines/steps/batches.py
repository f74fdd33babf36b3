"""Batches of linked points: connected sets are dealt whole, at random, to batches of one shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.label_inference.padding import Sizes
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links

from ..base import Problem
from ..problem.declared import approximation, finite_mixtures
from ..problem.density import site_log_prob, sum_log_prob
from ..problem.posterior import label_sites

__all__ = [
    "Batches",
    "batched_log_prob",
    "deal_batches",
    "deal_connected_sets",
    "estimated_log_prob",
    "large_batches",
    "of_points",
]

_ENOUGH = 2000
"""Number of connected sets whose likelihood is close enough to that of all sets to locate its mode."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batches:
    r"""Some of the points of linked data with all that belongs to them, or batches of them.

    The log likelihood of a linked mixture is a sum of one term per connected set, its normaliser
    included. Batches hold whole connected sets, each in one batch, so that the terms of B batches add up
    to it, and B times the term of a batch drawn evenly is an unbiased estimate.

    All arrays of batches, those of the graph too, have a leading axis, along which they are padded to
    one shape: compiled code takes any batch by its number.

    Attributes
    ----------
    points : ndarray of int, shape (num_points,)
        Numbers of the points with labels, in increasing order, padded by the first one: rows of the
        data or, where rows belong to groups, groups.
    rows : ndarray of int, shape (num_rows,)
        Rows of the data, likewise.
    groups : Groups or None
        The one of `points` that each row belongs to; spare rows belong to a spare point. None where points
        are rows.
    links : ndarray of int, shape (num_links,)
        Numbers of the links among the points, padded by zeros.
    graph : LabelGraph
        These links, compiled. Spare points have no label, and spare links have no effect.
    """

    points: Any
    rows: Any
    groups: Groups | None
    links: Any
    graph: LabelGraph

    def __len__(self) -> int:
        """Number of batches."""
        return self.points.shape[0]

    def at(self, number: ArrayLike) -> Batches:
        """Return one batch, without the leading axis."""
        return jax.tree.map(lambda leaf: leaf[number], self)

    @property
    def num_real(self) -> int:
        """Number of points of one batch without spare ones; not for traced batches."""
        return self.graph.num_real


def deal_batches(
    graph: LabelGraph, num_batches: int, seed: int, groups: Groups | None = None
) -> Batches:
    """Deal connected sets at random to batches that are as equal in size as can be.

    Connected sets of the same size, in rows and links, are dealt out evenly. There are fewer batches than
    `num_batches` where one connected set is larger than the batches would be.

    Parameters
    ----------
    graph : LabelGraph
        Graph of all points, laid out for a number of clusters if it has loops.
    num_batches : int
    seed : int
    groups : Groups, optional
        The point that each row of the data belongs to.
    """
    connected_set, all_links = np.asarray(graph.connected_set), graph.links
    codes = np.arange(graph.num_points) if groups is None else np.asarray(groups.codes)
    first = all_links.pairs[:, 0]
    kept = np.flatnonzero(codes >= 0)  # rows of no group have no label
    num_rows, num_links = (
        np.bincount(connected_set[some], minlength=graph.num_connected_sets)
        for some in (codes[kept], first)
    )
    owner = _deal(num_rows, num_links, num_batches, seed)[connected_set]
    number = int(owner.max(initial=0)) + 1
    points = _members(owner, number)
    rows = [kept[one] for one in _members(owner[codes[kept]], number)]
    links = _members(owner[first], number)

    place = np.empty(graph.num_points, np.int64)
    for each in points:
        place[each] = np.arange(len(each))
    room = Sizes(
        # a spare point takes the spare rows of groups
        points=max(map(len, points)) + (groups is not None),
        links=max(map(len, links)),
    )
    graphs = _alike(
        graph,
        [
            replace(all_links.take(some), pairs=place[all_links.pairs[some]], num_points=len(each))
            for each, some in zip(points, links, strict=True)
        ],
        room,
    )
    width = max(map(len, rows))
    local = None
    if groups is not None:
        padded = [_padded(place[codes[each]], width, room.points - 1) for each in rows]
        local = Groups.tree_unflatten((room.points,), (np.stack(padded),))
    return Batches(
        points=np.stack([_padded(each, room.points, each[0]) for each in points]),
        rows=np.stack([_padded(each, width, each[0]) for each in rows]),
        groups=local,
        links=np.stack([_padded(each, room.links, 0) for each in links]),
        graph=jax.tree.map(lambda *leaves: np.stack(leaves), *graphs),
    )


def of_points(graph: LabelGraph, points: NDArray, groups: Groups | None = None) -> Batches:
    """Select points, in increasing order, with their rows and the links among them; without spare ones."""
    all_links, rows, local = graph.links, points, None
    links = np.flatnonzero(np.isin(all_links.pairs, points).all(axis=1))
    if groups is not None:
        rows = np.flatnonzero(np.isin(groups.codes, points))
        codes = np.searchsorted(points, np.asarray(groups.codes)[rows])
        local = Groups.tree_unflatten((len(points),), (codes,))
    compiled = graph.alike(all_links.subset(points), len(points))
    return Batches(points, rows, local, links, compiled)


def deal_connected_sets(problem: Problem, batch_sets: int, seed: int) -> Batches:
    """Deal the points that a model's links connect to batches of about `batch_sets` connected sets each.

    Raises
    ------
    ValueError
        If the model does not observe exactly one LinkedMixture, or sums its labels out approximately, or
        has no more than `batch_sets` connected sets.
    """
    graph, groups = _linked(problem)
    if batch_sets >= graph.num_connected_sets:
        raise ValueError(
            f"batch_sets = {batch_sets}; expected fewer than the "
            f"{graph.num_connected_sets} connected sets of the data, or leave it out"
        )
    return deal_batches(graph, graph.num_connected_sets // batch_sets, seed, groups)


def large_batches(problem: Problem, batch_sets: int, seed: int) -> Batches | None:
    """Deal batches of at least 2000 connected sets, enough to locate a mode; None if there are fewer sets."""
    graph, groups = _linked(problem)
    number = graph.num_connected_sets // max(batch_sets, _ENOUGH)
    return deal_batches(graph, number, seed, groups) if number > 1 else None


def _linked(problem: Problem) -> tuple[LabelGraph, Groups | None]:
    """Return the links of the one observed LinkedMixture, and the groups that its rows belong to."""
    if approximation(problem) is not None:
        raise ValueError(
            "batch_sets needs labels that are summed out exactly; leave it out, or fit with "
            "inference='exact'"
        )
    found = [fn for fn in label_sites(problem).values() if fn.links() is not None]
    if len(found) != 1:
        raise ValueError(
            f"batch_sets draws among the connected sets of one observed LinkedMixture; the model "
            f"has {len(found)}; leave batch_sets out"
        )
    labels = found[0].labels
    graph = labels.graph.suited(labels.inference, found[0].num_clusters)
    return graph, found[0].groups


def estimated_log_prob(
    batches: Batches | None, number: ArrayLike
) -> Callable[[Mapping[str, dict]], Array]:
    """Estimator of the log density of a trace from one batch; the exact one where there are no batches."""
    if batches is None:
        return sum_log_prob
    return partial(batched_log_prob, batches=batches, number=number)


def batched_log_prob(trace: Mapping[str, dict], batches: Batches, number: ArrayLike) -> Array:
    """Log density of a trace, with the likelihood of the linked mixture estimated from one batch."""
    found = finite_mixtures(trace).items()
    linked = {name: fn for name, (fn, _) in found if fn.links() is not None}
    batch = batches.at(number)
    total = jnp.zeros(())
    for name, site in trace.items():
        if name in linked:
            term = len(batches) * _log_prob(linked[name], site["value"], batch)
            total = total + (1.0 if site.get("scale") is None else site["scale"]) * term
        elif site["type"] == "sample":
            total = total + site_log_prob(site)
    return total


def _log_prob(fn: FiniteMixture, value: Array, batch: Batches) -> Array:
    """Log density of the rows of a batch."""
    some = fn.take(batch)
    if some is not None:
        return some.log_prob(value[batch.rows])
    # the distribution cannot be subset: compute densities of all rows, then sum over the labels of some
    unary = fn.label_factors(fn.log_factors(value))
    return fn.labels_of(batch).log_evidence(unary[batch.points])


def _deal(rows: NDArray, links: NDArray, num_batches: int, seed: int) -> NDArray[np.int64]:
    """Return the batch of each connected set, given how many rows and links each has."""
    size = rows + links
    number = int(max(min(num_batches, size.sum() // size.max()), 1))
    order = np.random.default_rng(seed).permutation(len(size))
    order = order[np.argsort(-size[order], kind="stable")]
    large, small = order[size[order] > 1], order[size[order] == 1]
    owner = np.empty(len(size), np.int64)
    turn = np.arange(len(large)) % (2 * number)  # forwards, then backwards
    owner[large] = np.minimum(turn, 2 * number - 1 - turn)
    dealt = np.bincount(owner[large], rows[large], minlength=number)
    goal = (rows.sum() + np.arange(number)) // number
    ends = np.cumsum(np.maximum(goal - dealt, 0))
    owner[small] = np.searchsorted(ends, np.arange(len(small)), side="right")
    return owner


def _members(owner: NDArray, number: int) -> list[NDArray[np.int64]]:
    """Positions at which each integer below `number` occurs in `owner`."""
    ends = np.cumsum(np.bincount(owner, minlength=number))
    return np.split(np.argsort(owner, kind="stable"), ends[:-1])


def _padded(values: NDArray, length: int, spare: int) -> NDArray[np.int64]:
    return np.pad(values, (0, length - len(values)), constant_values=spare)


def _alike(graph: LabelGraph, links: Sequence[Links], room: Sizes) -> list[LabelGraph]:
    """Compile several sets of links to graphs of equal sizes, the largest that any of them needs."""
    graphs: dict[int, LabelGraph] = {}
    waiting = list(range(len(links)))
    while waiting:
        for number in waiting:
            some = links[number]
            assert some.num_points is not None  # cut from links that a graph was built of
            graphs[number] = graph.alike(some, some.num_points, room)
            room = graphs[number].sizes
        waiting = [number for number, one in graphs.items() if one.sizes != room]
    return [graphs[number] for number in range(len(links))]
