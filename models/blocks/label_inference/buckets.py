"""Exact sums over the labels of loopy components: one loop over chunks of messages.

Every bucket adds the messages that it receives to the potentials of its node and of the edges to its
bag, and sums its own label out. Messages are written once, each to its own cells, so that the reverse
pass makes every table anew from them and nothing else is kept.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import sequential_vmap

from .loops import Buckets, trailing_axes
from .reduce import Reduce
from .sweep import reorder

__all__ = ["eliminate"]

LARGE_CELLS = 2**21
"""Cells of messages from which on members of a batch are done one after another, to spare memory."""


def eliminate(
    belief: Array, edge_weights: Array, buckets: Buckets, reduce: Reduce, noise: Array | None
) -> Array:
    """Terms of log Z, one per bucket, that of each component at its last node.

    Parameters
    ----------
    belief : Array, shape (num_places, num_clusters)
        Log-potentials of the nodes in the order of the graph.
    edge_weights : Array, shape (num_edges + 2,)
    buckets : Buckets
    reduce : Reduce
    noise : Array or None, shape (num_places,)
        Uniform numbers for `reduce`.

    Returns
    -------
    Array, shape (num_buckets + 1,)
    """
    unary = reorder(belief, buckets.place, buckets.row)
    # by way of `reorder` too: an edge stands in one bag only
    weights = reorder(edge_weights, jnp.ravel(buckets.edge), buckets.slot)
    own = None if noise is None else noise.at[buckets.place].get(mode="fill", fill_value=0.0)
    factors = jnp.concatenate([unary, weights.reshape(buckets.edge.shape)], axis=1)
    return _sum_out(reduce, factors, buckets, own)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_out(reduce: Reduce, factors: Array, buckets: Buckets, noise: Array | None) -> Array:
    return _forward(reduce, factors, buckets, noise)[0]


def _forward(reduce: Reduce, factors: Array, buckets: Buckets, noise: Array | None):
    messages = _in_turn(partial(_send_all, reduce), buckets)(factors, buckets)
    value = jnp.where(buckets.is_root, _first_cells(messages, buckets), 0.0)
    return value, (factors, messages, buckets, noise)


def _backward(reduce: Reduce, saved, cotangent: Array):
    factors, messages, buckets, noise = saved
    slope = jnp.where(buckets.is_root, cotangent, 0.0)
    pull = _in_turn(partial(_pull_all, reduce), buckets)
    return pull(factors, messages, slope, buckets, noise), None, None


_sum_out.defvjp(_forward, _backward)


def _in_turn(function, buckets: Buckets):
    """Let the members of a batch wait for each other where all their messages would fill memory."""
    return sequential_vmap(function) if buckets.num_cells > LARGE_CELLS else function


def _first_cells(messages: Array, buckets: Buckets) -> Array:
    return messages.at[buckets.start * buckets.chunk_cells].get(mode="promise_in_bounds")


@partial(jax.jit, static_argnums=0)  # traced once for all that a program sums
def _send_all(reduce: Reduce, factors: Array, buckets: Buckets) -> Array:
    """Messages of all buckets, one after another; shape (cells,)."""

    def one_round(number: Array, messages: Array) -> Array:
        one = _open(number, factors, buckets)
        table, messages = _add_messages(one, messages, buckets)
        sent = jnp.ravel(reduce.value(table))
        return lax.dynamic_update_slice(messages, sent, (number * sent.size,))

    messages = jnp.zeros(buckets.num_cells, factors.dtype)
    return lax.fori_loop(0, buckets.num_rounds, one_round, messages)


@partial(jax.jit, static_argnums=0)
def _pull_all(
    reduce: Reduce,
    factors: Array,
    messages: Array,
    slope: Array,
    buckets: Buckets,
    noise: Array | None,
) -> Array:
    """Slopes in the factors, from the receivers down; each table is made anew."""
    chunk = buckets.chunk_cells
    lanes = buckets.owner.shape[1]
    equal = _equal(buckets.num_clusters, factors.dtype)

    def one_round(step: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        out, slopes, messages = carry
        number = buckets.num_rounds - 1 - step
        one = _open(number, factors, buckets)
        table, messages = _add_messages(one, messages, buckets)
        first = number * (lanes * chunk)
        sent, weight = (
            lax.dynamic_slice(cells, (first,), (lanes * chunk,)).reshape(lanes, chunk)
            for cells in (messages, slopes)
        )
        # read before the slopes change: later reads would be of a copy of all of them
        weight, slopes = lax.optimization_barrier((weight, slopes))
        drawn = None if noise is None else noise[one.bucket][:, None]
        share = weight[:, :, None] * reduce.share(table, sent, drawn)
        own = share.sum(axis=1)
        lead = jnp.take_along_axis(own, one.lead, axis=1)
        trail = share.reshape(lanes, -1) @ equal.T
        found = jnp.concatenate([own, trail, lead], axis=1)
        return out.at[one.bucket].add(found), _add_slopes(one, share, slopes, buckets), messages

    slopes = jnp.zeros_like(messages).at[buckets.start * chunk].add(slope)
    carry = jnp.zeros_like(factors), slopes, messages
    return lax.fori_loop(0, buckets.num_rounds, one_round, carry)[0]


class _Round(NamedTuple):
    """Chunks that are done together: their buckets, the labels that are fixed, their potentials."""

    bucket: Array
    lead: Array
    table: Array
    most_children: Array


def _open(number: Array, factors: Array, buckets: Buckets) -> _Round:
    """Potentials of the node and of the edges in the chunks of a round, shape (lanes, chunk, K)."""
    num_clusters, within = buckets.num_clusters, trailing_axes(buckets.num_clusters)
    lanes = buckets.owner.shape[1]
    bucket = jnp.asarray(buckets.owner)[number]
    chunk = number * lanes + np.arange(lanes, dtype=np.int32) - jnp.asarray(buckets.start)[bucket]
    # fixed labels: the digits of the number of the chunk
    power = num_clusters ** np.arange(buckets.edge.shape[1] - within, dtype=np.int32)
    lead = lax.rem(lax.div(*jnp.broadcast_arrays(chunk[:, None], power)), np.int32(num_clusters))
    row = factors[bucket]
    unary, trail, fixed = jnp.split(row, [num_clusters, num_clusters + within], axis=1)
    held = lead[:, :, None] == np.arange(num_clusters, dtype=np.int32)
    unary = unary + jnp.where(held, fixed[:, :, None], 0.0).sum(axis=1)
    table = (trail @ _equal(num_clusters, factors.dtype)).reshape(lanes, -1, num_clusters)
    most = jnp.asarray(buckets.most_children)[number]
    return _Round(bucket, lead, table + unary[:, None, :], most)


def _children(one: _Round, number: Array, buckets: Buckets) -> tuple[Array, Array]:
    """Whether each chunk has a child of that number, and the cells of its message that it reads."""
    num_clusters, within = buckets.num_clusters, trailing_axes(buckets.num_clusters)
    exists = number < jnp.asarray(buckets.num_children)[one.bucket]
    where = jnp.where(exists, jnp.asarray(buckets.first_child)[one.bucket] + number, 0)
    child = jnp.where(exists, jnp.asarray(buckets.child)[where], len(buckets.child) - 1)
    stride = jnp.asarray(buckets.stride)[child]
    base = jnp.asarray(buckets.start)[child] * np.int32(buckets.chunk_cells)
    base = base + (one.lead * stride[:, within:]).sum(axis=1)
    digits = jnp.asarray(_digits(num_clusters))
    cell = base[:, None] + (stride[:, :within, None] * digits).sum(axis=1)
    return exists[:, None, None], jnp.where(exists[:, None], cell, 0)[..., None]


def _add_messages(one: _Round, messages: Array, buckets: Buckets) -> tuple[Array, Array]:
    """Tables of a round with the messages of all children added; also returns the messages."""
    window = lax.GatherDimensionNumbers(
        offset_dims=(2,), collapsed_slice_dims=(), start_index_map=(0,)
    )

    def add(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        table, messages = carry
        exists, cell = _children(one, number, buckets)
        read = lax.gather(messages, cell, window, (buckets.num_clusters,), mode="promise_in_bounds")
        # handed on like something that changes: XLA copies what a loop reads and its caller writes
        messages = lax.optimization_barrier(messages)
        return table + jnp.where(exists, read, 0.0), messages

    return lax.fori_loop(0, one.most_children, add, (one.table, messages))


def _add_slopes(one: _Round, share: Array, slopes: Array, buckets: Buckets) -> Array:
    """Slopes of the messages that a round read, added to those of their cells."""
    window = lax.ScatterDimensionNumbers(
        update_window_dims=(2,), inserted_window_dims=(), scatter_dims_to_operand_dims=(0,)
    )

    def add(number: Array, slopes: Array) -> Array:
        exists, cell = _children(one, number, buckets)
        sent = jnp.where(exists, share, 0.0)
        return lax.scatter_add(slopes, cell, sent, window, mode="promise_in_bounds")

    return lax.fori_loop(0, one.most_children, add, slopes)


def _digits(num_clusters: int) -> np.ndarray:
    """Label on each axis that varies within a chunk, shape (axes, chunk)."""
    axes = trailing_axes(num_clusters)
    cells = np.arange(num_clusters**axes, dtype=np.int32)
    return cells // num_clusters ** np.arange(axes, dtype=np.int32)[:, None] % num_clusters


def _equal(num_clusters: int, dtype) -> np.ndarray:
    """Whether the label of an axis is the one summed out, shape (axes, chunk * num_clusters)."""
    same = _digits(num_clusters)[:, :, None] == np.arange(num_clusters)
    return same.reshape(len(same), -1).astype(dtype)
