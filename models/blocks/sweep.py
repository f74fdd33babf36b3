"""Messages sent round after round within one array, differentiated without saved intermediates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import Array, lax

__all__ = ["sweep"]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def sweep(
    function: Callable,
    state: Array,
    routes: tuple[tuple[Array, Array], ...],
    inputs: tuple[Any, ...],
    fixed: tuple[Any, ...],
) -> tuple[Array, tuple[Any, ...]]:
    """Add to rows of an array what a function makes of other rows, one round after another.

    A round is ``update, value = function(state[source], inputs, fixed)`` and
    ``state[target] += update``. A row must not change once it has been read. Every row read is then
    found in the final state, so that the reverse pass recomputes each round from it: nothing is
    stacked a round, and the compiled loops stay small.

    Parameters
    ----------
    function : callable
        It must not close over traced values.
    state : Array, shape (rows, ...)
    routes : tuple of (source, target)
        Row numbers, shapes (rounds, width); numbers past the end read zero and write nowhere. Each
        pair is one loop.
    inputs, fixed : tuple of pytree
        For each route arrays with a leading axis of rounds; `fixed` is not differentiated.

    Returns
    -------
    state : Array
    values : tuple of pytree
        For each route the values of all rounds.
    """
    return _forward(function, state, routes, inputs, fixed)[0]


def _forward(function, state, routes, inputs, fixed):
    def one_round(state, step):
        (source, target), given, constant = step
        update, value = function(_read(state, source), given, constant)
        return state.at[target].add(update, mode="drop"), value

    values = []
    for steps in zip(routes, inputs, fixed, strict=True):
        state, value = lax.scan(one_round, state, steps)
        values.append(value)
    return (state, tuple(values)), (state, routes, inputs, fixed)


def _backward(function, saved, cotangent):
    state, routes, inputs, fixed = saved
    slope, value_slopes = cotangent

    def one_round(slope, step):
        (source, target), given, constant, value_slope = step
        _, pull = jax.vjp(lambda rows, g: function(rows, g, constant), _read(state, source), given)
        row_slope, given_slope = pull((_read(slope, target), value_slope))
        return slope.at[source].add(row_slope, mode="drop"), given_slope

    slopes = []
    for steps in reversed(list(zip(routes, inputs, fixed, value_slopes, strict=True))):
        slope, given_slope = lax.scan(one_round, slope, steps, reverse=True)
        slopes.append(given_slope)
    return slope, None, tuple(reversed(slopes)), None


def _read(state: Array, rows: Array) -> Array:
    return state.at[rows].get(mode="fill", fill_value=0.0)


sweep.defvjp(_forward, _backward)
