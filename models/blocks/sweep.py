"""Messages sent round after round within one array, differentiated without saved intermediates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array, lax

__all__ = ["reorder", "sweep"]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def sweep(
    function: Callable, state: Array, target: Array, inputs: Any, fixed: Any
) -> tuple[Array, Any]:
    """Add to rows of an array what a function makes of other rows, one round after another.

    Round r reads the r-th block of ``width`` rows: ``update, value = function(block, inputs, fixed)``
    and ``state[target] += update``. Targets lie in later blocks or behind all of them, so that every
    row read is found unchanged in the final state and the reverse pass recomputes each round from
    it: nothing is stacked a round, and the compiled loops stay small.

    Parameters
    ----------
    function : callable
        It must not close over traced values.
    state : Array, shape (rows, ...)
        At least ``rounds * width`` rows.
    target : Array of int, shape (rounds, width)
        Row numbers; those past the end write nowhere.
    inputs, fixed : pytree
        Arrays with a leading axis of rounds; `fixed` is not differentiated.

    Returns
    -------
    state : Array
    values : pytree
        Values of all rounds.
    """
    return _forward(function, state, target, inputs, fixed)[0]


def _forward(function, state, target, inputs, fixed):
    def one_round(state, step):
        start, target, given, constant = step
        # by way of `vjp`, rules of reverse mode within `function` give way to plain operations, so
        # that the forward mode of second derivatives passes
        (update, value), _ = jax.vjp(
            lambda rows, g: function(rows, g, constant), _block(state, start, target), given
        )
        return state.at[target].add(update, mode="drop"), value

    state, values = lax.scan(one_round, state, (_starts(target), target, inputs, fixed))
    return (state, values), (state, target, inputs, fixed)


def _backward(function, saved, cotangent):
    state, target, inputs, fixed = saved
    slope, value_slopes = cotangent

    def one_round(slope, step):
        (start, target, given, constant), value_slope = step
        rows = _block(state, start, target)
        _, pull = jax.vjp(lambda rows, g: function(rows, g, constant), rows, given)
        row_slope, given_slope = pull((_fill(slope, target), value_slope))
        row_slope = row_slope + _block(slope, start, target)
        return lax.dynamic_update_slice_in_dim(slope, row_slope, start, 0), given_slope

    steps = (_starts(target), target, inputs, fixed)
    slope, given_slopes = lax.scan(one_round, slope, (steps, value_slopes), reverse=True)
    return slope, None, given_slopes, None


def _starts(target: Array) -> np.ndarray:
    rounds, width = target.shape
    return np.arange(rounds, dtype=np.int32) * width


def _block(state: Array, start: Array, target: Array) -> Array:
    return lax.dynamic_slice_in_dim(state, start, len(target))


def _fill(state: Array, rows: Array) -> Array:
    return state.at[rows].get(mode="fill", fill_value=0.0)


sweep.defvjp(_forward, _backward)


@jax.custom_vjp
def reorder(values: Array, order: Array, place: Array) -> Array:
    """Rows of an array in another order, shape (len(order), ...); no row twice.

    The slope is gathered back by `place`, for a gather is several times faster than a scatter.

    Parameters
    ----------
    values : Array, shape (rows, ...)
    order : Array of int, shape (places,)
        Row at each place; `rows` leaves a place zero.
    place : Array of int, shape (rows,)
        Place of each row; `places` for a row left out.
    """
    return _fill(values, order)


reorder.defvjp(
    lambda values, order, place: (_fill(values, order), place),
    lambda place, slope: (_fill(slope, place), None, None),
)
