"""Small trees of links side by side: as many at a time as a processor's cache holds.

A lane has eight slots, one for each node of a few small trees. Slots are divided into levels, and
every node is on a lower level than its parent, so that the labels of all nodes of a level are
summed out at once. Chunks of lanes are visited one after another, with labels along the first axis
and lanes along the last: operations on lanes are vector instructions, without gather or scatter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from functools import reduce as reduce_all
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...row_shares import Turns
from .potts import SUM, Reduce, message_and_sum, reduced_message

__all__ = [
    "LEVELS",
    "ROOT",
    "SLOTS",
    "SPARE",
    "WIDTH",
    "Lanes",
    "lane_sums",
    "lane_terms",
    "lane_total",
]

LEVELS = ((0, 4), (4, 6), (6, 7), (7, 8))
"""First slot of each level, and the first beyond it."""

SLOTS = LEVELS[-1][1]
"""Nodes in a lane."""

ROOT, SPARE = SLOTS, SLOTS + 1
"""Values in place of a parent's slot: for a node without parent, and for no node at all."""

WIDTH = 128
"""Lanes in a chunk of a processor; an accelerator takes more at a time."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Lanes:
    """Cells of the nodes of small trees; they have shape (num_chunks, `SLOTS`, lanes in a chunk).

    Attributes
    ----------
    node : ndarray of int, of cells
        `num_nodes` if a cell is empty.
    parent : ndarray of int, of cells
        Slot of the parent in the same lane, `ROOT` or `SPARE`.
    edge : ndarray of int, of cells
        Edge to the parent; `num_edges` if there is none.
    place : ndarray of int, shape (num_nodes,)
        Cell of each node, numbered through all chunks; the number of cells for nodes elsewhere.
    cell_of_edge : ndarray of int, shape (num_edges + 2,)
        Likewise the cell of each edge.
    alone : ndarray of int, shape (num_nodes,)
        Nodes without links, padded by `num_nodes`.
    num_alone : ndarray of int, shape ()
    """

    node: Any
    parent: Any
    edge: Any
    place: Any
    cell_of_edge: Any
    alone: Any
    num_alone: Any

    @property
    def num_cells(self) -> int:
        """Number of cells of all chunks."""
        return math.prod(self.node.shape)


def lane_terms(
    reduce: Reduce, belief: Array, weight: Array, parent: Array, noise: Array | None = None
) -> tuple[Array, Array, Array]:
    """Sum out the labels of a chunk.

    Parameters
    ----------
    reduce : Reduce
    belief : Array, shape (num_clusters, `SLOTS`, lanes)
        Log-potentials of the nodes.
    weight : Array, shape (`SLOTS`, lanes)
        Weight of the edge to the parent.
    parent : Array of int, shape (`SLOTS`, lanes)
    noise : Array or None, shape (`SLOTS`, lanes)
        Uniform numbers for `reduce`.

    Returns
    -------
    terms : Array, shape (`SLOTS`, lanes)
        The term of each tree, at its root; zero elsewhere.
    slope : Array, shape (num_clusters, `SLOTS`, lanes)
        Gradient of the sum of all terms in the log-potentials: marginals of the labels; zero in
        empty cells.
    weight_slope : Array, shape (`SLOTS`, lanes)
        Gradient in the weights: the probability that the labels of node and parent agree.
    """
    levels = [belief[:, first:end] for first, end in LEVELS]
    terms, pulls = [], []
    for number, (first, end) in enumerate(LEVELS):
        drawn = None if noise is None else noise[first:end]
        # `vjp` turns custom rules of reverse mode into plain operations, as in `sweep`
        (message, total), pull = jax.vjp(
            partial(_level, reduce, noise=drawn), levels[number], weight[first:end]
        )
        pulls.append(pull)
        terms.append(jnp.where(parent[first:end] == ROOT, total, 0.0))
        for later in range(number + 1, len(LEVELS)):
            received = [
                _sum(
                    jnp.where(parent[slot] == target, message[:, slot - first], 0.0)
                    for slot in range(first, end)
                )
                for target in range(*LEVELS[later])
            ]
            levels[later] = levels[later] + jnp.stack(received, axis=1)
    slopes: list[Array] = []  # by slot, from the last one
    weight_slopes = []
    for (first, end), pull in zip(reversed(LEVELS), reversed(pulls), strict=True):
        is_root = (parent[first:end] == ROOT).astype(belief.dtype)
        if slopes:
            returned = [
                _sum(
                    jnp.where(parent[slot] == SLOTS - 1 - behind, own, 0.0)
                    for behind, own in enumerate(slopes)
                )
                for slot in range(first, end)
            ]
            cotangent = jnp.stack(returned, axis=1)
        else:
            cotangent = jnp.zeros((len(belief), *is_root.shape), belief.dtype)
        own, own_weight = pull((cotangent, is_root))
        slopes += [own[:, slot] for slot in reversed(range(end - first))]
        weight_slopes.append(own_weight)
    return (
        jnp.concatenate(terms),
        jnp.stack(slopes[::-1], axis=1),
        jnp.concatenate(weight_slopes[::-1]),
    )


def _sum(parts: Iterable[Array]) -> Array:
    return reduce_all(jnp.add, parts)


def _level(
    reduce: Reduce, belief: Array, weight: Array, noise: Array | None
) -> tuple[Array, Array]:
    """Messages of the nodes of a level, used if they have parents, and terms, used if they have none."""
    if reduce is SUM:
        return message_and_sum(belief, weight)
    rows = belief.reshape(len(belief), -1).T
    drawn = None if noise is None else noise.ravel()
    message = reduced_message(reduce, rows, weight.ravel(), drawn)
    return message.T.reshape(belief.shape), reduce(rows, drawn).reshape(weight.shape)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def lane_sums(
    reduce: Reduce, belief: Array, edge_weights: Array, lanes: Lanes, noise: Array | None
) -> Array:
    """Terms of all chunks; see `lane_terms`.

    Parameters
    ----------
    reduce : Reduce
    belief : Array, shape (num_nodes, num_clusters)
        Log-potentials.
    edge_weights : Array, shape (num_edges + 2,)
    lanes : Lanes
    noise : Array or None, shape (cells,)
        Uniform numbers for `reduce`.

    Returns
    -------
    Array, shape (cells,)
    """
    return _forward(reduce, belief, edge_weights, lanes, noise)[0]


@partial(jax.jit, static_argnums=0)  # traced once for all that a program sums
def _forward(reduce: Reduce, belief, edge_weights, lanes: Lanes, noise):
    num_clusters = belief.shape[1]
    edge_weights = jnp.asarray(edge_weights)
    drawn = None if noise is None else noise.reshape(lanes.node.shape)

    def chunk(cells: tuple) -> tuple[Array, Array, Array]:
        node, parent, edge, noise = cells
        rows = belief.at[node.reshape(-1)].get(mode="fill", fill_value=0.0)
        given = rows.T.reshape(num_clusters, *node.shape), edge_weights[edge]
        terms, slope, weight_slope = lane_terms(reduce, *given, parent, noise)
        return terms, slope.reshape(num_clusters, -1).T, weight_slope

    found = lax.map(chunk, (lanes.node, lanes.parent, lanes.edge, drawn))
    terms, slope, weight_slope = found
    return terms.reshape(-1), (slope.reshape(-1, num_clusters), weight_slope.reshape(-1), lanes)


@partial(jax.jit, static_argnums=0)
def _backward(reduce: Reduce, saved, cotangent: Array):
    slope, weight_slope, lanes = saved
    own = jnp.moveaxis(cotangent.reshape(lanes.node.shape), 1, 0)
    parent = jnp.moveaxis(jnp.asarray(lanes.parent), 1, 0)
    by_slot = list(own)
    for slot in reversed(range(SLOTS)):  # a tree has the cotangent of its root
        for target in range(slot + 1, SLOTS):
            at = parent[slot] == target
            by_slot[slot] = jnp.where(at, by_slot[target], by_slot[slot])
    factor = jnp.stack(by_slot, axis=1).reshape(-1)
    return (
        _fill(slope * factor[:, None], lanes.place),
        _fill(weight_slope * factor, lanes.cell_of_edge),
        None,
        None,
    )


lane_sums.defvjp(_forward, _backward)


@jax.custom_vjp
def lane_total(log_weights: Array, edge_weights: Array, lanes: Lanes, turns: Turns) -> Array:
    """Sum of `lane_sums` over the chunks of one device, for equal potentials of all nodes.

    Parameters
    ----------
    log_weights : Array, shape (num_clusters,)
        Log-potentials of each node.
    edge_weights : Array, shape (num_edges + 2,)
    lanes : Lanes
    turns : Turns

    Returns
    -------
    Array, shape ()
    """
    return _total_forward(log_weights, edge_weights, lanes, turns)[0]


@jax.jit
def _total_forward(log_weights, edge_weights, lanes: Lanes, turns: Turns):
    number, *cells = lanes.node.shape
    belief = jnp.broadcast_to(log_weights[:, None, None], (len(log_weights), *cells))

    def add(turn: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        total, slopes, kept = carry
        chunk = turns.chunk(turn)
        weight = edge_weights[jnp.asarray(lanes.edge)[chunk]]
        found = lane_terms(SUM, belief, weight, jnp.asarray(lanes.parent)[chunk])
        terms, slope, weight_slope = found
        kept = kept.at[chunk].set(weight_slope)
        return total + terms.sum(), slopes + slope.sum(axis=(1, 2)), kept

    kept = jnp.zeros(lanes.node.shape, belief.dtype)
    zero = jnp.zeros((), belief.dtype), jnp.zeros_like(log_weights), kept
    total, slope, weight_slope = lax.fori_loop(0, turns.number(number), add, zero)
    return total, (slope, weight_slope.reshape(-1), lanes)


def _total_backward(saved: tuple[Array, Array, Lanes], cotangent: Array):
    slope, weight_slope, lanes = saved
    by_edge = cotangent * _fill(weight_slope, lanes.cell_of_edge)
    return cotangent * slope, by_edge, None, None


lane_total.defvjp(_total_forward, _total_backward)


def _fill(values: Array, rows: Array) -> Array:
    return values.at[rows].get(mode="fill", fill_value=0.0)
