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

from .label_graph import Core, Stage, Top
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
    num_clusters = belief.shape[1]
    count = len(core.stages) + 1
    keys = [None] * count if key is None else split(key, count)
    messages: list[Array] = []
    for stage, own_key in zip(core.stages, keys[:-1], strict=True):
        tables = jnp.zeros((stage.node.size, num_clusters ** (stage.width + 1)), belief.dtype)
        unary = belief.at[stage.node].get(mode="fill", fill_value=0.0)
        _, sent = sweep(
            partial(_bucket, reduce, num_clusters, stage.width),
            _receive(tables, core.stages, messages, stage.inflow, num_clusters, stage.width),
            stage.parent,
            (unary, edge_weights[stage.bag_edge]),
            (stage.axis, split(own_key, len(stage.node))),
        )
        messages.append(sent.reshape(stage.node.size, -1))
    table = _top_table(belief, edge_weights, core.top)
    table = _receive(table, core.stages, messages, core.top.inflow, num_clusters, core.width)
    return reduce(table, keys[-1])


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
    return _spread(message, axis, num_clusters, width), message


def _receive(
    tables: Array,
    stages: tuple[Stage, ...],
    messages: list[Array],
    inflow: tuple[tuple[Array, Array], ...],
    num_clusters: int,
    width: int,
) -> Array:
    """Add to tables of some width the messages that come from earlier stages."""
    for stage, message, (bucket, target) in zip(stages, messages, inflow, strict=False):
        if bucket.size:
            axis = stage.axis.reshape(-1, stage.width)[bucket]
            update = _spread(message[bucket], axis, num_clusters, width)
            tables = tables.at[target].add(update)
    return tables


def _spread(message: Array, axis: Array, num_clusters: int, width: int) -> Array:
    """Messages as tables of `width` and one labels, their own on the axes that are told."""
    # message label p has stride K^(last - p)
    strides = num_clusters ** np.arange(axis.shape[1] - 1, -1, -1)
    place = axis[:, :, None] == np.arange(width + 1)
    cell = jnp.sum(jnp.where(place, strides[:, None], 0), axis=1) @ _digits(num_clusters, width)
    return jnp.take_along_axis(message, cell, axis=1, mode="promise_in_bounds")


def _top_table(belief: Array, edge_weights: Array, top: Top) -> Array:
    """Potentials of the last nodes of each component and of the edges between them."""
    num_components, num_axes = top.node.shape
    num_clusters = belief.shape[1]
    lone = np.where(np.arange(num_clusters) > 0, FORBIDDEN, 0.0)  # one label where there is no node
    absent = jnp.asarray(top.node == len(belief))[:, :, None]
    unary = jnp.where(absent, lone, belief.at[top.node].get(mode="clip"))
    weights = edge_weights[top.edge]
    digits = _digits(num_clusters, num_axes - 1)

    @jax.checkpoint  # else the comparisons of all rounds are kept
    def add(table: Array, node: tuple) -> tuple[Array, None]:
        own, edges, digit = node
        held = digit == np.arange(num_clusters)[:, None]
        table = table + own @ held.astype(table.dtype)
        return table + edges @ (digits == digit).astype(table.dtype), None

    start = jnp.zeros((num_components, digits.shape[1]), belief.dtype)
    nodes = jnp.swapaxes(unary, 0, 1), jnp.swapaxes(weights, 0, 1), digits
    return lax.scan(add, start, nodes)[0]


def _digits(num_clusters: int, width: int) -> Array:
    """Label on each axis of a table, shape (width + 1, cells); computed, for a constant is large."""
    strides = num_clusters ** np.arange(width, -1, -1)
    return jnp.arange(num_clusters ** (width + 1)) // strides[:, None] % num_clusters
