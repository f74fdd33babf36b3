"""Messages of leaves, row by row in one array, differentiated without saved intermediates."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .trees.potts import Reduce, reduced_message

__all__ = ["Peeling", "reorder", "sweep"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Peeling:
    """Leaves in the order of their removal, divided into rows that are processed one after another.

    The neighbours of the leaves of one row are removed in later rows, or never. The leaves are the
    first nodes of `LabelGraph.order`.

    Attributes
    ----------
    parent : ndarray of int, shape (num_places,)
        Place of the only neighbour of a leaf, its parent, padded by `num_places`.
    edge : ndarray of int, shape (num_places,)
        Edge between them, padded by `num_edges`.
    start, count : ndarray of int, shape (rows,)
        First leaf of each row, and its number of leaves.
    num_rows : ndarray of int, shape ()
        Number of rows without padding.
    width : int
        Maximum number of leaves in a row.
    """

    parent: Any
    edge: Any
    start: Any
    count: Any
    num_rows: Any
    width: int = field(metadata={"static": True})


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def sweep(
    reduce: Reduce, belief: Array, weights: Array, leaves: Peeling, noise: Array | None
) -> Array:
    """Add the messages of leaves to the potentials of their parents.

    No later row changes the leaves that a row reads, so that they are still in the final array. The
    reverse pass recomputes each message from it, and nothing is stored per row.

    Parameters
    ----------
    reduce : Reduce
    belief : Array, shape (num_places, num_clusters)
        Log-potentials in the order of the graph.
    weights : Array, shape (num_places,)
        Weight of the edge of each leaf.
    leaves : Peeling
    noise : Array or None, shape (num_places,)
        Uniform numbers for `reduce`.

    Returns
    -------
    Array, shape (num_places, num_clusters)
    """
    return _forward(reduce, belief, weights, leaves, noise)[0]


def _cut(number: Array, leaves: Peeling, *arrays: Array | None) -> tuple:
    """Targets of a row (out of range for leaves of later rows), and its part of arrays."""
    start, count = jnp.asarray(leaves.start)[number], jnp.asarray(leaves.count)[number]

    def part(values: Any) -> Any:
        if values is None:
            return None
        return lax.dynamic_slice_in_dim(jnp.asarray(values), start, leaves.width)

    mine = np.arange(leaves.width) < count
    target = jnp.where(mine, part(leaves.parent), len(leaves.parent))
    return start, mine, target, *map(part, arrays)


@partial(jax.jit, static_argnums=0)  # traced once for all that a program sums
def _forward(reduce: Reduce, belief, weights, leaves: Peeling, noise):
    def one_row(number: Array, state: Array) -> Array:
        _, _, target, rows, given, drawn = _cut(number, leaves, state, weights, noise)
        # `vjp` turns custom rules of reverse mode into plain operations, so that the forward
        # mode of second derivatives works
        sent, _ = jax.vjp(partial(reduced_message, reduce, noise=drawn), rows, given)
        return state.at[target].add(sent, mode="drop")

    state = lax.fori_loop(0, leaves.num_rows, one_row, belief)
    return state, (state, weights, leaves, noise)


@partial(jax.jit, static_argnums=0)
def _backward(reduce: Reduce, saved, cotangent: Array):
    state, weights, leaves, noise = saved

    def one_row(step: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        slope, weight_slope = carry
        number = leaves.num_rows - 1 - step
        start, mine, target, rows, given, drawn, old, kept = _cut(
            number, leaves, state, weights, noise, slope, weight_slope
        )
        _, pull = jax.vjp(partial(reduced_message, reduce, noise=drawn), rows, given)
        row_slope, given_slope = pull(slope.at[target].get(mode="fill", fill_value=0.0))
        given_slope = jnp.where(mine, given_slope, kept)
        return (
            lax.dynamic_update_slice_in_dim(slope, row_slope + old, start, 0),
            lax.dynamic_update_slice_in_dim(weight_slope, given_slope, start, 0),
        )

    carry = cotangent, jnp.zeros_like(weights)
    slope, weight_slope = lax.fori_loop(0, leaves.num_rows, one_row, carry)
    return slope, weight_slope, None, None


sweep.defvjp(_forward, _backward)


@jax.custom_vjp
def reorder(values: Array, order: Array, place: Array) -> Array:
    """Rows of an array in another order, shape (len(order), ...); no row twice, zeros for no row.

    The gradient is gathered back by `place`, because a gather is several times faster than a
    scatter.

    Parameters
    ----------
    values : Array, shape (rows, ...)
    order : Array of int, shape (places,)
        Row at each place; `rows` or more leaves a place zero.
    place : Array of int, shape (rows,)
        Place of each row; `places` for a row left out.
    """
    return _fill(values, order)


def _fill(values: Array, rows: Array) -> Array:
    return values.at[rows].get(mode="fill", fill_value=0.0)


reorder.defvjp(
    lambda values, order, place: (_fill(values, order), place),
    lambda place, slope: (_fill(slope, place), None, None),
)
