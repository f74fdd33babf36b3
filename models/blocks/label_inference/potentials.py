"""Log-potentials of points and of the edges between them, in the form that sums over labels take."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from .label_graph import LabelGraph
from .trees.potts import FORBIDDEN

__all__ = ["bounded", "edge_potentials", "finite", "peaks"]


@jax.custom_jvp
def bounded(unary: Array) -> Array:
    """Replace -inf by a finite value; excluded labels have probability zero, so gradients are unchanged."""
    return jnp.maximum(unary, FORBIDDEN)


@bounded.defjvp
def bounded_jvp(primals, tangents):
    return bounded(*primals), tangents[0]


def peaks(unary: Array, graph: LabelGraph) -> Array:
    """Largest log-potential of each point; zero for padding points.

    Potentials relative to it distinguish a point that is far from all clusters from a point that
    admits no label, and keep one far point from changing the labels of others by rounding.
    """
    peak = lax.stop_gradient(unary.max(axis=1))
    real = jnp.asarray(graph.node_size)[jnp.asarray(graph.node)] > 0
    return jnp.where(real & jnp.isfinite(peak), peak, 0.0)


def finite(weights: Array, graph: LabelGraph) -> Array:
    """Weights of the links, zero for hard ones."""
    return jnp.where(jnp.isinf(jnp.asarray(graph.pair_weights)), 0.0, weights)


def edge_potentials(pair_weights: ArrayLike, graph: LabelGraph) -> Array:
    """Log-potentials of the edges, as sums over their links, shape (num_edges + 2,)."""
    weights = finite(jnp.asarray(pair_weights), graph)
    found = jax.ops.segment_sum(weights, graph.edge_of_link, graph.num_edges + 2)
    return jnp.where(graph.forbidden, FORBIDDEN, found)
