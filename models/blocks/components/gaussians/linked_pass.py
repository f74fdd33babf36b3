"""Gaussian mixtures of linked points, in one pass over most of them.

Points without links, and those in small trees of links, are visited in chunks that stay in the
processor's cache: densities, sums over labels and moments of a chunk are computed in succession.
Other linked points, in large trees and in loops, are visited three times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ...label_inference import partition
from ...label_inference.approximate import Inference
from ...label_inference.label_graph import LabelGraph
from ...label_inference.potentials import edge_potentials
from ...label_inference.trees.lanes import Lanes, lane_terms
from ...label_inference.trees.potts import FORBIDDEN, SUM
from ...row_shares import Turns, in_turns
from ...visits import at_a_time
from .chunks import CHUNK, Moments, about_means, accumulate, by_feature
from .gaussian import whitening
from .gaussian_stats import checked, gaussian_log_prob, log_density, mixed, weighted_moments

__all__ = ["LinkedPass", "linked_pass"]


class LinkedPass(NamedTuple):
    """Result of `linked_pass`.

    Attributes
    ----------
    log_partition : Array, shape ()
        See `partition.log_partition`.
    moments : Moments
        Moments about the means, weighted by the responsibilities.
    agree : Array, shape (num_links,)
        Gradient of `log_partition` with respect to the weights of the links.
    """

    log_partition: Array
    moments: Moments
    agree: Array


def linked_pass(
    x: ArrayLike,
    graph: LabelGraph,
    log_weights: ArrayLike,
    pair_weights: ArrayLike,
    mean: ArrayLike,
    scale_tril: ArrayLike,
    inference: str | Inference = "exact",
) -> LinkedPass:
    """E-step of a Gaussian mixture whose labels are tied by links, and the statistics of its M-step.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    graph : LabelGraph
        One that `has_lanes`.
    log_weights : array_like, shape (num_clusters,)
    pair_weights : array_like, shape (num_links,)
        Weights of the links, in place of those of the graph.
    mean : array_like, shape (num_clusters, num_features)
    scale_tril : array_like, shape (num_clusters, num_features, num_features)
        Lower Cholesky factors of the covariances.
    inference : str or inference object
        See `partition.log_partition`.
    """
    x, mean, scale_tril = checked(x, mean, scale_tril)
    assert graph.lanes is not None
    log_weights = jnp.maximum(jnp.asarray(log_weights, x.dtype), FORBIDDEN)
    edge_weights, pull = jax.vjp(partial(edge_potentials, graph=graph), pair_weights)
    given = x, graph, log_weights, edge_weights, mean, scale_tril
    (total, sums, ordered, edge_slope), agree = in_turns(partial(_one_device, inference), *given)
    moments = about_means(sums, mean, jax.nn.softmax(log_weights) @ mean)
    moments = jax.tree.map(jnp.add, moments, ordered)
    in_lanes = agree.reshape(-1).at[graph.lanes.cell_of_edge].get(mode="fill", fill_value=0.0)
    return LinkedPass(
        jnp.where(total < FORBIDDEN / 2, -jnp.inf, total), moments, pull(edge_slope + in_lanes)[0]
    )


def _one_device(
    inference: str | Inference,
    turns: Turns,
    x: Array,
    graph: LabelGraph,
    log_weights: Array,
    edge_weights: Array,
    mean: Array,
    scale_tril: Array,
) -> tuple[tuple, Array]:
    """Contribution of the chunks of one device to the pass; large trees and loops belong to chunk 0."""
    lanes = graph.lanes
    assert lanes is not None
    precision, log_scale = whitening(scale_tril)
    centre = jax.nn.softmax(log_weights) @ mean
    density = partial(log_density, mean=mean, precision=precision, constant=log_weights + log_scale)
    alone, *sums = _alone(turns, x, lanes, mean, centre, density)
    trees = _small_trees(turns, x, lanes, mean, centre, density, edge_weights)
    (small, *more), agree = trees

    def ordered() -> tuple[Array, Moments, Array]:
        rows = x.at[jnp.asarray(graph.order)].get(mode="clip")
        belief = gaussian_log_prob(rows, mean, scale_tril) + log_weights
        in_order = partial(partition.log_partition_in_order, graph=graph, inference=inference)
        value, (share, slope) = jax.value_and_grad(in_order, argnums=(0, 1))(belief, edge_weights)
        return value, weighted_moments(rows, share, mean), slope

    large, moments, slope = turns.once(ordered)
    total = alone + small + large
    return (total, [a + b for a, b in zip(sums, more, strict=True)], moments, slope), agree


def _alone(
    turns: Turns, x: Array, lanes: Lanes, mean: Array, centre: Array, density: Callable
) -> tuple:
    """Log likelihood and sums of moments of the points without links."""
    size = at_a_time(CHUNK)
    nodes = jnp.pad(jnp.asarray(lanes.alone), (0, size), constant_values=len(x))

    def pick(number: Array) -> tuple[Array, Array, None]:
        rows = lax.dynamic_slice_in_dim(nodes, turns.chunk(number) * size, size)
        return *_gathered(x, rows), None

    def visit(points: Array, live: Array, _: None) -> tuple[Array, Array, None]:
        return *mixed(density(points), live), None

    number = -(-jnp.asarray(lanes.num_alone) // size)
    return accumulate(turns.number(number), pick, mean, centre, visit, jnp.zeros((), x.dtype))[0]


def _small_trees(
    turns: Turns,
    x: Array,
    lanes: Lanes,
    mean: Array,
    centre: Array,
    density: Callable,
    edge_weights: Array,
) -> tuple[tuple, Array]:
    """Log partition function, sums of moments, and gradients in the edge weight of each cell."""
    num_chunks, num_clusters = len(lanes.node), len(mean)

    def pick(number: Array) -> tuple[Array, Array, tuple]:
        node, parent, edge = (
            jnp.asarray(a)[turns.chunk(number)] for a in (lanes.node, lanes.parent, lanes.edge)
        )
        return *_gathered(x, node.reshape(-1)), (parent, edge_weights[edge])

    def visit(points: Array, live: Array, cells: tuple) -> tuple[Array, Array, Array]:
        parent, weight = cells
        log_joint = density(points)
        peak = jnp.max(log_joint, axis=0)
        peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
        belief = jnp.maximum(log_joint - peak, FORBIDDEN).reshape(num_clusters, *parent.shape)
        terms, share, agree = lane_terms(SUM, belief, weight, parent)
        value = terms.sum() + jnp.where(live > 0, peak, 0.0).sum()
        return value, share.reshape(num_clusters, -1), agree

    kept = turns.most(num_chunks), *lanes.node.shape[1:]
    blank, agree = jnp.zeros((), x.dtype), jnp.zeros(kept, x.dtype)
    return accumulate(turns.number(num_chunks), pick, mean, centre, visit, blank, agree)


def _gathered(x: Array, rows: Array) -> tuple[Array, Array]:
    """Points of some rows, (d, chunk), and the mask of those that exist."""
    return by_feature(x.at[rows].get(mode="clip")), (rows < len(x)).astype(x.dtype)
