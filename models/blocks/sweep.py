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
    function: Callable, state: Array, source: Array, target: Array, inputs: Any, fixed: Any
) -> tuple[Array, Any]:
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
    source, target : Array of int, shape (rounds, width)
        Row numbers; those past the end read zero and write nowhere.
    inputs, fixed : pytree
        Arrays with a leading axis of rounds; `fixed` is not differentiated.

    Returns
    -------
    state : Array
    values : pytree
        Values of all rounds.
    """
    return _forward(function, state, source, target, inputs, fixed)[0]


def _forward(function, state, source, target, inputs, fixed):
    def one_round(state, step):
        source, target, given, constant = step
        # by way of `vjp`, rules of reverse mode within `function` give way to plain operations, so
        # that the forward mode of second derivatives passes
        outputs, _ = jax.vjp(
            lambda rows, g: function(rows, g, constant), _read(state, source), given
        )
        update, value = outputs
        return state.at[target].add(update, mode="drop"), value

    state, values = lax.scan(one_round, state, (source, target, inputs, fixed))
    return (state, values), (state, source, target, inputs, fixed)


def _backward(function, saved, cotangent):
    state, *steps = saved
    slope, value_slopes = cotangent

    def one_round(slope, step):
        (source, target, given, constant), value_slope = step
        _, pull = jax.vjp(lambda rows, g: function(rows, g, constant), _read(state, source), given)
        row_slope, given_slope = pull((_read(slope, target), value_slope))
        return slope.at[source].add(row_slope, mode="drop"), given_slope

    slope, given_slopes = lax.scan(one_round, slope, (tuple(steps), value_slopes), reverse=True)
    return slope, None, None, given_slopes, None


def _read(state: Array, rows: Array) -> Array:
    return state.at[rows].get(mode="fill", fill_value=0.0)


sweep.defvjp(_forward, _backward)
