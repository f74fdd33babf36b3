"""L-BFGS in steps of one gradient each, so that a compiled loop holds the model's gradient once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

__all__ = ["Search", "minimise", "search_step", "start_search"]

_FALL, _BEND = 1e-4, 0.9
"""Constants of the Wolfe conditions (Nocedal and Wright 2006, section 3.1)."""

_FLAT = 1e-10
"""Largest entry of a gradient, relative to the loss, that counts as zero."""


class Search(NamedTuple):
    """Where a minimisation has got.

    Attributes
    ----------
    steps : Array of int, shape ()
        Gradients computed so far.
    point, gradient : Array, shape (num_coordinates,)
        Best point, and the gradient there; one vector, as every array more is compiled anew.
    value : Array, shape ()
        Loss there; infinite before the first step, and for good if it is not finite at the start.
    direction : Array, shape (num_coordinates,)
    slope : Array, shape ()
        Derivative along `direction`.
    length, low, high : Array, shape ()
        Next step length to try, and the bracket that holds it.
    stalled : Array of bool, shape ()
        No step along the direction lowers the loss any more.
    memory : object
        Optax's record of differences.
    """

    steps: Array
    point: Array
    gradient: Array
    value: Array
    direction: Array
    slope: Array
    length: Array
    low: Array
    high: Array
    stalled: Array
    memory: Any


def start_search(point: Array, memory_size: int) -> Search:
    """State before the first step, which evaluates the loss at `point` itself."""
    zero, far = jnp.zeros(()), jnp.asarray(jnp.inf)
    still = jnp.zeros_like(point)
    return Search(
        steps=jnp.asarray(0),
        point=point,
        gradient=still,
        value=far,
        direction=still,
        slope=zero,
        length=zero,
        low=zero,
        high=far,
        stalled=jnp.asarray(False),
        memory=optax.scale_by_lbfgs(memory_size).init(point),
    )


def search_step(
    value_and_grad: Callable,
    search: Search,
    memory_size: int,
    solve: Callable[[Array, Array], Array] | None = None,
) -> Search:
    """Compute one gradient: accept the trial point if it meets the weak Wolfe conditions.

    Else the step length is doubled, or the bracket halved (Lewis and Overton 2013, algorithm 2.6).
    Where given, ``solve(gradient, point)`` is the step uphill, in place of L-BFGS's.
    """
    trial = search.point + search.length * search.direction
    value, gradient = value_and_grad(trial)
    finite = jnp.isfinite(value) & jnp.isfinite(gradient).all()
    first = search.steps == 0
    # near the end the loss falls by less than its own rounding
    rounding = 4 * jnp.finfo(value.dtype).eps * (1 + jnp.abs(search.value))
    falls = finite & (value <= search.value + _FALL * search.length * search.slope + rounding)
    bends = gradient @ search.direction >= _BEND * search.slope
    accept = jnp.where(first, finite, falls & bends)

    if solve is None:
        steer = optax.scale_by_lbfgs(memory_size)
        uphill, memory = steer.update(gradient, search.memory, trial)
    else:
        uphill, memory = solve(gradient, trial), search.memory
    slope = -gradient @ uphill
    turned = slope < 0
    shrink = 1 / jnp.maximum(1.0, jnp.linalg.norm(gradient))
    direction = -jnp.where(turned, uphill, shrink * gradient)
    slope = jnp.where(turned, slope, -shrink * gradient @ gradient)

    low = jnp.where(falls, search.length, search.low)
    high = jnp.where(falls, search.high, search.length)
    length = jnp.where(jnp.isinf(high), 2 * low, (low + high) / 2)
    moved = length * jnp.abs(search.direction).max(initial=0.0)
    scale = 1 + jnp.abs(search.point).max(initial=0.0)
    narrow = (high - low) * moved <= jnp.finfo(value.dtype).eps * scale * length
    failed = ~accept & (first | narrow | (moved <= jnp.finfo(value.dtype).tiny))
    accepted = start_search(trial, memory_size)._replace(
        gradient=gradient,
        value=value,
        direction=direction,
        slope=slope,
        length=jnp.ones_like(length),
        memory=memory,
    )
    refused = search._replace(length=length, low=low, high=high, stalled=failed)
    new = jax.tree.map(lambda a, b: jnp.where(accept, a, b), accepted, refused)
    return new._replace(steps=search.steps + 1)


def minimise(
    loss: Callable[[Array], Array], start: Array, num_steps: int, *, memory_size: int = 10
) -> Array:
    """Point of lowest loss that some steps find; never one of higher loss than `start`.

    Parameters
    ----------
    loss : callable
    start : Array, shape (num_coordinates,)
    num_steps : int
        Gradients at most; fewer if the slope vanishes or no step lowers the loss any more.
    memory_size : int
        Differences that L-BFGS remembers.
    """
    value_and_grad = jax.value_and_grad(loss)

    def unfinished(search: Search) -> Array:
        steepest = jnp.abs(search.gradient).max(initial=0.0)
        flat = (search.steps > 0) & (steepest <= _FLAT * (1 + jnp.abs(search.value)))
        return (search.steps < num_steps) & ~flat & ~search.stalled

    return lax.while_loop(
        unfinished,
        lambda search: search_step(value_and_grad, search, memory_size),
        start_search(start, memory_size),
    ).point
