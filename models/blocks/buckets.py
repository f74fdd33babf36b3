"""Exact sums over the labels of loopy components, one table of log-potentials a bucket.

A bucket sums its own label out of its table; the message is added to the table of the bucket that
the first of the other labels has. A table has an axis a label, flattened; what a table of fewer
labels says of more is the same at every value of those that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .cores import Core, Stage
from .potts import FORBIDDEN
from .sweep import sweep

__all__ = ["Reduce", "eliminate", "split"]

Reduce = Callable[[Array, Array | None], Array]
"""Sums out the last axis of a table of log-potentials; the second argument is a random key."""


def eliminate(
    belief: Array, edge_weights: Array, core: Core, reduce: Reduce, key: Array | None
) -> Array:
    """Log Z of each component of a core, shape (num_components,).

    Parameters
    ----------
    belief : Array, shape (num_places, num_clusters)
        Log-potentials of the nodes in the order of the graph.
    edge_weights : Array, shape (num_edges + 2,)
    core : Core
        One that has a width.
    reduce : callable
    key : Array or None
        Random key for `reduce`.
    """
    assert core.width is not None  # what is too wide was refused
    num_clusters, stages = belief.shape[1], core.stages
    count = len(stages) + 1
    keys = [None] * count if key is None else split(key, count)
    # each is gathered once for all: a gather is transposed to a loop of its own
    unary = _apart(
        lambda place: belief.at[place].get(mode="fill", fill_value=0.0),
        [stage.node for stage in stages] + [core.top.node],
    )
    weights = _apart(
        lambda edge: edge_weights[edge], [stage.bag_edge for stage in stages] + [core.top.edge]
    )
    messages = jnp.zeros(0, belief.dtype)
    for number, stage in enumerate(stages):
        tables = jnp.zeros((stage.node.size, num_clusters ** (stage.width + 1)), belief.dtype)
        _, sent = sweep(
            partial(_bucket, reduce, num_clusters, stage.width),
            _receive(tables, messages, stages[:number], stage.inflow, num_clusters, stage.width),
            stage.parent,
            (unary[number], weights[number]),
            (stage.axis, split(keys[number], len(stage.node))),
        )
        messages = jnp.concatenate([messages, sent.ravel()])
    # a top without all its nodes has one label where there is none
    absent = (core.top.node == len(belief))[:, :, None] & (np.arange(num_clusters) > 0)
    table = _top_table(jnp.where(absent, FORBIDDEN, unary[-1]), weights[-1])
    table = _receive(table, messages, stages, core.top.inflow, num_clusters, core.width)
    return reduce(table, keys[-1])


def _apart(gather: Callable[[Array], Array], indices: list[Array]) -> list[Array]:
    """Gather for several arrays of indices at once."""
    found = gather(jnp.concatenate([jnp.ravel(index) for index in indices]))
    parts = jnp.split(found, np.cumsum([index.size for index in indices])[:-1])
    return [
        part.reshape(index.shape + part.shape[1:])
        for part, index in zip(parts, indices, strict=True)
    ]


def split(key: Array | None, count: int) -> Any:
    """Random keys, none from none."""
    return None if key is None else jax.random.split(key, count)


def _bucket(reduce: Reduce, num_clusters: int, width: int, table, factors, constant):
    """Sum one label out of the table of each bucket; also returns the message as it is.

    Axis 0 of a table is the label that the bucket sums out, the others are those of its bag.
    """
    (unary, weights), (axis, key) = factors, constant
    digits = _digits(num_clusters, width)
    table = table + weights @ (digits[:1] == digits[1:]).astype(table.dtype)
    table = table.reshape(len(table), num_clusters, -1) + unary[:, :, None]
    message = reduce(jnp.moveaxis(table, 1, 2), key)
    cell = _cells(axis, num_clusters, width)
    return jnp.take_along_axis(message, cell, axis=1, mode="promise_in_bounds"), message


def _receive(
    tables: Array,
    messages: Array,
    stages: tuple[Stage, ...],
    inflow: tuple[tuple[Array, Array], ...],
    num_clusters: int,
    width: int,
) -> Array:
    """Add to tables of some width the messages that come from the stages before."""
    cells, start = [jnp.zeros((0, tables.shape[1]), int)], 0
    for stage, (bucket, _) in zip(stages, inflow, strict=True):
        size = num_clusters**stage.width
        axis = stage.axis.reshape(-1, stage.width)[bucket]
        cells.append(start + bucket[:, None] * size + _cells(axis, num_clusters, width))
        start += stage.node.size * size
    if not start:
        return tables
    target = jnp.concatenate([target for _, target in inflow])
    update = messages.at[jnp.concatenate(cells)].get(mode="promise_in_bounds")
    return tables.at[target].add(update)


def _cells(axis: Array, num_clusters: int, width: int) -> Array:
    """Cell of a message that each cell of a table reads, the axes of its labels being told."""
    # message label p has stride K^(last - p)
    strides = num_clusters ** np.arange(axis.shape[1] - 1, -1, -1)
    place = axis[:, :, None] == np.arange(width + 1)
    return jnp.sum(jnp.where(place, strides[:, None], 0), axis=1) @ _digits(num_clusters, width)


def _top_table(unary: Array, weights: Array) -> Array:
    """Potentials of the last nodes of each component and of the edges between them."""
    num_components, num_axes, num_clusters = unary.shape
    digits = _digits(num_clusters, num_axes - 1)

    @jax.checkpoint  # else the comparisons of all rounds are kept
    def add(table: Array, node: tuple) -> tuple[Array, None]:
        own, edges, digit = node
        held = digit == np.arange(num_clusters)[:, None]
        table = table + own @ held.astype(table.dtype)
        return table + edges @ (digits == digit).astype(table.dtype), None

    start = jnp.zeros((num_components, digits.shape[1]), unary.dtype)
    nodes = jnp.swapaxes(unary, 0, 1), jnp.swapaxes(weights, 0, 1), digits
    return lax.scan(add, start, nodes)[0]


def _digits(num_clusters: int, width: int) -> Array:
    """Label on each axis of a table, shape (width + 1, cells); computed, for a constant is large."""
    strides = num_clusters ** np.arange(width, -1, -1)
    return jnp.arange(num_clusters ** (width + 1)) // strides[:, None] % num_clusters
