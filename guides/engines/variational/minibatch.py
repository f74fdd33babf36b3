"""Unbiased estimates of a likelihood from some of the connected components of the links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray
from sidebayes.models.blocks.collapsed import as_collapsed
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture

from ..base import Problem
from ..density import abstract_trace, approximation, site_log_prob

__all__ = ["Batches", "Part", "batched_log_prob", "split_components", "split_graph"]


class Part(NamedTuple):
    """Some components of the links.

    Attributes
    ----------
    rows, links : ndarray of int
        Numbers of their points and links; batches have a leading axis.
    graph : LabelGraph
        The components compiled, weights of soft links left to be put in; equal for all batches.
    """

    rows: ArrayLike
    links: ArrayLike
    graph: LabelGraph


class Batches(NamedTuple):
    r"""Components of the links in batches of equal structure.

    The log density of a linked mixture is a sum of one term a component, its normaliser included.
    Components of equal structure are dealt to B batches in equal numbers; what is left over, and
    structures rarer than B, form a rest that belongs to every step. With a batch b drawn evenly,

    .. math:: \ell_{\text{rest}} + B\,\ell_b

    has the log likelihood as its mean. All batches share one compiled graph.

    Attributes
    ----------
    batch : Part
        ``rows`` of shape (num_batches, points), ``links`` (num_batches, links).
    rest : Part or None
    """

    batch: Part
    rest: Part | None

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return jnp.shape(self.batch.rows)[0]


def split_components(problem: Problem, batch_components: int, seed: int) -> Batches:
    """Deal the components of the links of a model to batches of about the size asked for.

    Raises
    ------
    ValueError
        If the model observes no LinkedMixture, sums its labels out approximately, or has no two
        batches of components alike.
    """
    if approximation(problem) is not None:
        raise ValueError(
            "batch_components needs labels that are summed out exactly; leave it out, or fit with "
            "inference='exact'"
        )
    trace = abstract_trace(problem)
    found = [fn for fn in map(_linked, trace.values()) if fn is not None]
    if len(found) != 1:
        raise ValueError(
            f"batch_components draws among the components of one observed LinkedMixture; the model "
            f"has {len(found)}; leave batch_components out"
        )
    return split_graph(found[0].labels.graph, batch_components, seed)


def split_graph(graph: LabelGraph, batch_components: int, seed: int) -> Batches:
    """Deal the components of a graph to batches; see `split_components`."""
    if batch_components >= graph.num_components:
        raise ValueError(
            f"batch_components = {batch_components}; expected fewer than the "
            f"{graph.num_components} components of the links, or leave it out"
        )
    num_batches = graph.num_components // batch_components
    parts = _Parts(graph)
    rng = np.random.default_rng(seed)
    dealt, rest = [], []
    for alike in parts.by_structure():
        each = len(alike) // num_batches
        mixed = rng.permutation(alike)
        dealt.append(mixed[: each * num_batches].reshape(num_batches, each))
        rest.append(mixed[each * num_batches :])
    batches, left = np.concatenate(dealt, axis=1), np.concatenate(rest)
    if batches.shape[1] == 0:
        raise ValueError(
            f"batch_components = {batch_components}: the {graph.num_components} components of the "
            f"links are too unlike to form {num_batches} batches of equal structure; raise it, or "
            "leave it out"
        )
    rows, links = (np.stack(each) for each in zip(*map(parts.members, batches), strict=True))
    return Batches(
        Part(rows, links, parts.compile(rows[0])),
        Part(*parts.members(left), parts.compile(parts.members(left)[0])) if len(left) else None,
    )


def batched_log_prob(trace: Mapping[str, dict], batches: Batches, number: ArrayLike) -> Array:
    """Log density of a trace, the likelihood of the linked mixture estimated from one batch."""
    batch = batches.batch
    chosen = Part(jnp.asarray(batch.rows)[number], jnp.asarray(batch.links)[number], batch.graph)
    total = jnp.zeros(())
    for site in trace.values():
        if site["type"] != "sample":
            continue
        fn = _linked(site)
        if fn is None:
            total = total + site_log_prob(site)
            continue
        term = batches.num_batches * _log_prob(fn, site["value"], chosen)
        if batches.rest is not None:
            term = term + _log_prob(fn, site["value"], batches.rest)
        total = total + (1.0 if site.get("scale") is None else site["scale"]) * term
    return total


def _linked(site: dict) -> LinkedMixture | None:
    """Observed mixture with linked labels at a site, if there is one."""
    if site["type"] != "sample" or not site["is_observed"]:
        return None
    fn = as_collapsed(site["fn"], site["value"])
    return fn if isinstance(fn, LinkedMixture) else None


def _log_prob(fn: LinkedMixture, value: Array, part: Part) -> Array:
    """Log density of the points of some components."""
    labels = fn.labels
    among = LinkedCategorical(
        labels.log_weights,
        part.graph,
        reading=labels.reading,
        pair_weights=jnp.asarray(labels.pair_weights)[part.links],
        **labels.options,
    )
    known = None if fn.evidence is None else fn.evidence[part.rows]
    return LinkedMixture(among, fn.components, known).log_prob(value[part.rows])


class _Parts:
    """Points and links of a graph, sorted by component."""

    def __init__(self, graph: LabelGraph) -> None:
        self.graph = graph
        component, pairs = np.asarray(graph.component), graph.links.pairs
        self.points, self.first_point = _sorted(component, graph.num_components)
        place = np.empty_like(self.points)
        place[self.points] = np.arange(len(place)) - self.first_point[component[self.points]]
        ends = place[pairs]
        order = np.lexsort((ends[:, 1], ends[:, 0]))
        by_owner, self.first_link = _sorted(component[pairs[order, 0]], graph.num_components)
        self.links = order[by_owner]
        weights = np.asarray(graph.pair_weights)[self.links]
        hard = np.where(np.isinf(weights), np.sign(weights), 0).astype(place.dtype)
        self.structure = np.column_stack([ends[self.links], hard])

    def by_structure(self) -> list[NDArray]:
        """Numbers of the components that differ by the weights of soft links at most."""
        size = np.diff(self.first_point)
        alike = defaultdict(list)
        for one in np.flatnonzero(size > 1):
            links = self.structure[self.first_link[one] : self.first_link[one + 1]]
            alike[size[one], links.tobytes()].append(one)
        return [np.flatnonzero(size == 1), *map(np.array, alike.values())]

    def members(self, chosen: NDArray) -> tuple[NDArray, NDArray]:
        """Points and links of some components, one component after another."""
        return (
            self.points[_ranges(self.first_point, chosen)],
            self.links[_ranges(self.first_link, chosen)],
        )

    def compile(self, rows: NDArray) -> LabelGraph:
        """Graph of the links among some rows."""
        return self.graph.alike(self.graph.links.subset(rows), len(rows))


def _sorted(owner: NDArray, num_owners: int) -> tuple[NDArray, NDArray]:
    """Order that sorts by owner, and where each owner begins in it."""
    counts = np.bincount(owner, minlength=num_owners)
    return np.argsort(owner, kind="stable"), np.concatenate([[0], np.cumsum(counts)])


def _ranges(first: NDArray, chosen: NDArray) -> NDArray:
    """Numbers ``first[c] .. first[c + 1] - 1`` for one c after another."""
    length = first[chosen + 1] - first[chosen]
    skipped = np.cumsum(length) - length
    return np.repeat(first[chosen] - skipped, length) + np.arange(length.sum())
