"""Exact sums over the labels of loopy connected sets: one loop over chunks of messages.

Every bucket adds the messages that it receives to the potentials of its node and of the edges to
its bag, and sums out the label of its node. Messages are written once, each to its own cells, so
that the reverse pass can recompute every table from them. Nothing else is stored.
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
from .sweep import reorder
from .trees.potts import Reduce

__all__ = ["eliminate"]

LARGE_CELLS = 2**21
"""Cells of messages from which on the members of a batch run one at a time, to save memory."""


def eliminate(
    belief: Array, edge_weights: Array, buckets: Buckets, reduce: Reduce, noise: Array | None
) -> Array:
    """Terms of log Z, one per bucket; the term of a connected set is at its last node.

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
    # through `reorder` too: an edge is in one bag only
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
    """Run the members of a batch one after another if all their messages would not fit memory."""
    return sequential_vmap(function) if buckets.num_cells > LARGE_CELLS else function


def _first_cells(messages: Array, buckets: Buckets) -> Array:
    return messages.at[buckets.start * buckets.chunk_cells].get(mode="promise_in_bounds")


@partial(jax.jit, static_argnums=0)  # traced once for all that a program sums
def _send_all(reduce: Reduce, factors: Array, buckets: Buckets) -> Array:
    """Messages of all buckets, one after another; shape (cells,)."""

    def one_chunk(number: Array, messages: Array) -> Array:
        one = _open(number, factors, buckets)
        table, messages = _add_messages(one, messages, buckets)
        sent = reduce.value(table)
        return lax.dynamic_update_slice(messages, sent, (number * sent.size,))

    messages = jnp.zeros(buckets.num_cells, factors.dtype)
    return lax.fori_loop(0, buckets.num_chunks, one_chunk, messages)


@partial(jax.jit, static_argnums=0)
def _pull_all(
    reduce: Reduce,
    factors: Array,
    messages: Array,
    slope: Array,
    buckets: Buckets,
    noise: Array | None,
) -> Array:
    """Gradients in the factors, from the receivers to the senders; each table is recomputed."""
    cells = buckets.chunk_cells
    equal = _equal(buckets.num_clusters, factors.dtype)

    def one_chunk(step: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
        out, slopes, messages = carry
        number = buckets.num_chunks - 1 - step
        one = _open(number, factors, buckets)
        table, messages = _add_messages(one, messages, buckets)
        sent = lax.dynamic_slice(messages, (number * cells,), (cells,))
        weight = lax.dynamic_slice(slopes, (number * cells,), (cells,))
        # read before the gradients change: a later read would copy all of them
        weight, slopes = lax.optimization_barrier((weight, slopes))
        drawn = None if noise is None else noise[one.bucket]
        share = weight[:, None] * reduce.share(table, sent, drawn)
        own = share.sum(axis=0)
        found = jnp.concatenate([own, equal @ jnp.ravel(share), own[one.lead]])
        return out.at[one.bucket].add(found), _add_slopes(one, share, slopes, buckets), messages

    slopes = jnp.zeros_like(messages).at[buckets.start * cells].add(slope)
    carry = jnp.zeros_like(factors), slopes, messages
    return lax.fori_loop(0, buckets.num_chunks, one_chunk, carry)[0]


class _Chunk(NamedTuple):
    """Bucket of a chunk, the labels that are fixed in the chunk, and its table of potentials."""

    bucket: Array
    lead: Array
    table: Array


def _open(number: Array, factors: Array, buckets: Buckets) -> _Chunk:
    """Potentials of the node and of the edges in a chunk, a table of shape (cells, num_clusters)."""
    num_clusters, within = buckets.num_clusters, trailing_axes(buckets.num_clusters)
    bucket = jnp.asarray(buckets.owner)[number]
    chunk = number.astype(np.int32) - jnp.asarray(buckets.start)[bucket]
    # fixed labels are the digits of the chunk number
    power = num_clusters ** np.arange(buckets.edge.shape[1] - within, dtype=np.int32)
    lead = lax.rem(lax.div(*jnp.broadcast_arrays(chunk, power)), np.int32(num_clusters))
    unary, trail, fixed = jnp.split(factors[bucket], [num_clusters, num_clusters + within])
    held = lead[:, None] == np.arange(num_clusters, dtype=np.int32)
    unary = unary + jnp.where(held, fixed[:, None], 0.0).sum(axis=0)
    table = (trail @ _equal(num_clusters, factors.dtype)).reshape(-1, num_clusters)
    return _Chunk(bucket, lead, table + unary)


def _cells_read(one: _Chunk, number: Array, buckets: Buckets) -> Array:
    """First cell that each row of a chunk's table reads from the message of a child."""
    within = trailing_axes(buckets.num_clusters)
    child = jnp.asarray(buckets.child)[jnp.asarray(buckets.first_child)[one.bucket] + number]
    stride = jnp.asarray(buckets.stride)[child]
    base = jnp.asarray(buckets.start)[child] * np.int32(buckets.chunk_cells)
    base = base + (one.lead * stride[within:]).sum()
    digits = jnp.asarray(_digits(buckets.num_clusters))
    return base + (stride[:within, None] * digits).sum(axis=0)


def _num_children(one: _Chunk, buckets: Buckets) -> Array:
    return jnp.asarray(buckets.num_children)[one.bucket]


def _add_messages(one: _Chunk, messages: Array, buckets: Buckets) -> tuple[Array, Array]:
    """Table of a chunk with the messages of all children added; also returns the messages."""
    window = lax.GatherDimensionNumbers(
        offset_dims=(1,), collapsed_slice_dims=(), start_index_map=(0,)
    )

    def add(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        table, messages = carry
        cell = _cells_read(one, number, buckets)[:, None]
        read = lax.gather(messages, cell, window, (buckets.num_clusters,), mode="promise_in_bounds")
        # carried through the loop: XLA would copy an array that a loop reads and its caller writes
        return table + read, lax.optimization_barrier(messages)

    return lax.fori_loop(0, _num_children(one, buckets), add, (one.table, messages))


def _add_slopes(one: _Chunk, share: Array, slopes: Array, buckets: Buckets) -> Array:
    """Add the gradients of the messages that a chunk read to those of their cells.

    A loop over rows replaces a scatter, because XLA makes one function of small loops only without
    scatters.
    """
    size = (buckets.num_clusters,)

    def add(number: Array, slopes: Array) -> Array:
        cell = _cells_read(one, number, buckets)

        def add_row(row: Array, slopes: Array) -> Array:
            held = lax.dynamic_slice(slopes, (cell[row],), size)
            return lax.dynamic_update_slice(slopes, held + share[row], (cell[row],))

        return lax.fori_loop(0, len(share), add_row, slopes, unroll=8)

    return lax.fori_loop(0, _num_children(one, buckets), add, slopes)


def _digits(num_clusters: int) -> np.ndarray:
    """Label on each axis that varies within a chunk, shape (axes, cells)."""
    axes = trailing_axes(num_clusters)
    cells = np.arange(num_clusters**axes, dtype=np.int32)
    return cells // num_clusters ** np.arange(axes, dtype=np.int32)[:, None] % num_clusters


def _equal(num_clusters: int, dtype) -> np.ndarray:
    """Whether the label of an axis equals the one summed out, shape (axes, cells * num_clusters)."""
    same = _digits(num_clusters)[:, :, None] == np.arange(num_clusters)
    return same.reshape(len(same), -1).astype(dtype)
