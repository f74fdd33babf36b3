"""L-BFGS in steps of one gradient each, so that a compiled loop contains the model's gradient only once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from .climbs import is_little, rounding_of

__all__ = [
    "Search",
    "held_up",
    "is_flat",
    "minimise",
    "relative_slope",
    "search_step",
    "start_search",
]

_FALL, _BEND = 1e-4, 0.9
"""Constants of the Wolfe conditions (Nocedal and Wright 2006, section 3.1)."""

_FLAT = 1e-10
"""Largest entry of a gradient, relative to the loss, that counts as zero."""

_REACH = 4.0
"""Longest step in a coordinate whose map to a support is flat far out. An unlimited step may end where the
slope vanishes for that reason alone."""

_PATIENCE = 8
"""Number of gradients after which Newton steps, whose convergence is quadratic, should show a gain."""


class _Memory(NamedTuple):
    """The last accepted steps, oldest first; rows are zero where there are none yet.

    Attributes
    ----------
    move, bend : Array, shape (memory_size, num_coordinates)
        Differences of points, and of the gradients there.
    weight : Array, shape (memory_size,)
        Inverse of the inner product of the two, or zero.
    """

    move: Array
    bend: Array
    weight: Array


class Search(NamedTuple):
    """State of a minimisation.

    Attributes
    ----------
    steps : Array of int, shape ()
        Gradients computed so far.
    point, gradient : Array, shape (num_coordinates,)
        Best point, and the gradient there. Each is a single vector, as every further array costs compilation.
    value : Array, shape ()
        Loss there; infinite before the first step, and throughout if it is not finite at the start.
    direction : Array, shape (num_coordinates,)
    slope : Array, shape ()
        Derivative along `direction`.
    length, low, high : Array, shape ()
        Next step length to try, and the bracket that holds it.
    stalled : Array of bool, shape ()
        No step along the direction lowers the loss any more.
    memory : tuple of Array
        Differences of points and of gradients.
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
    memory: _Memory

    @property
    def promised(self) -> Array:
        """Expected decrease of the loss along `direction`, if the step's quadratic approximation holds."""
        return -self.slope / 2


def start_search(point: Array, memory_size: int) -> Search:
    """Return the state before the first step, which evaluates the loss at `point` itself."""
    zero, far = jnp.zeros(()), jnp.asarray(jnp.inf)
    still, rows = jnp.zeros_like(point), jnp.zeros((memory_size, *point.shape), point.dtype)
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
        memory=_Memory(rows, rows, jnp.zeros(memory_size, point.dtype)),
    )


def search_step(
    value_and_grad: Callable,
    search: Search,
    solve: Callable[[Array, Array], Array] | None = None,
    bounded: ArrayLike = False,
) -> Search:
    """Compute one gradient: accept the trial point if it meets the weak Wolfe conditions.

    Otherwise, the step length is doubled, or the bracket halved (Lewis and Overton 2013, algorithm 2.6).
    ``solve(gradient, point)``, if given, is the step uphill in place of that of L-BFGS. Coordinates that are
    `bounded` move by no more than a few units in a step.
    """
    trial = search.point + search.length * search.direction
    value, gradient = value_and_grad(trial)
    finite = jnp.isfinite(value) & jnp.isfinite(gradient).all()
    first = search.steps == 0
    # near the end the loss falls by less than its own rounding
    rounding = rounding_of(search.value)
    falls = finite & (value <= search.value + _FALL * search.length * search.slope + rounding)
    bends = gradient @ search.direction >= _BEND * search.slope
    furthest = _furthest(search.direction, bounded)
    accept = jnp.where(first, finite, falls & (bends | (search.length >= furthest)))

    if solve is None:
        uphill, memory = _quasi_newton(search, trial, gradient)
    else:
        uphill, memory = solve(gradient, trial), search.memory
    slope = -gradient @ uphill
    turned = slope < 0
    shrink = 1 / jnp.maximum(1.0, jnp.linalg.norm(gradient))
    direction = -jnp.where(turned, uphill, shrink * gradient)
    slope = jnp.where(turned, slope, -shrink * gradient @ gradient)

    low = jnp.where(falls, search.length, search.low)
    high = jnp.where(falls, search.high, search.length)
    length = jnp.where(jnp.isinf(high), jnp.minimum(2 * low, furthest), (low + high) / 2)
    moved = length * jnp.abs(search.direction).max(initial=0.0)
    scale = 1 + jnp.abs(search.point).max(initial=0.0)
    narrow = (high - low) * moved <= jnp.finfo(value.dtype).eps * scale * length
    failed = ~accept & (first | narrow | (moved <= jnp.finfo(value.dtype).tiny))
    accepted = start_search(trial, len(memory.weight))._replace(
        gradient=gradient,
        value=value,
        direction=direction,
        slope=slope,
        length=jnp.minimum(1.0, _furthest(direction, bounded)),
        memory=memory,
    )
    refused = search._replace(length=length, low=low, high=high, stalled=failed)
    new = jax.tree.map(lambda a, b: jnp.where(accept, a, b), accepted, refused)
    return new._replace(steps=search.steps + 1)


def _furthest(direction: Array, bounded: ArrayLike) -> Array:
    """Longest step along a direction."""
    return _REACH / jnp.where(bounded, jnp.abs(direction), 0.0).max(initial=0.0)


def _quasi_newton(search: Search, point: Array, gradient: Array) -> tuple[Array, _Memory]:
    """L-BFGS's step uphill from a new point (Nocedal and Wright 2006, algorithm 7.4), and its memory.

    The memory is shifted, rather than used as a ring buffer, and read from end to end. Where several searches
    run at once, none then needs indices of its own, which would be expensive to compile.
    """
    move, bend = point - search.point, gradient - search.gradient
    product = bend @ move
    # before the first step there is none, and one that was cut short may have seen no curvature
    learnt = (search.steps > 0) & (product > 0)
    newest = _Memory(move, bend, 1 / product)
    memory = jax.tree.map(
        lambda rows, row: jnp.where(learnt, jnp.concatenate([rows[1:], row[None]]), rows),
        search.memory,
        newest,
    )
    last = jax.tree.map(lambda rows: rows[-1], memory)
    square = last.bend @ last.bend
    blank = jnp.minimum(1.0, 1 / jnp.linalg.norm(gradient))
    scale = jnp.where(square > 0, last.bend @ last.move / square, blank)

    def back(step: Array, one: _Memory) -> tuple[Array, Array]:
        share = one.weight * (one.move @ step)
        return step - share * one.bend, share

    def forth(step: Array, given: tuple[_Memory, Array]) -> tuple[Array, None]:
        one, share = given
        return step + (share - one.weight * (one.bend @ step)) * one.move, None

    step, shares = lax.scan(back, gradient, memory, reverse=True)
    return lax.scan(forth, scale * step, (memory, shares))[0], memory


def minimise(
    loss: Callable[[Array], Array],
    start: Array,
    num_steps: int,
    *,
    memory_size: int = 10,
    bounded: ArrayLike = False,
) -> Array:
    """Return the point of lowest loss found in some steps; its loss is never higher than that of `start`.

    Parameters
    ----------
    loss : callable
    start : Array, shape (num_coordinates,)
    num_steps : int
        Maximum number of gradients; fewer are used if the slope vanishes or no step lowers the loss any more.
    memory_size : int
        Number of differences that L-BFGS stores.
    bounded : Array of bool, shape (num_coordinates,), optional
        See `search_step`.
    """
    value_and_grad = jax.value_and_grad(loss)

    def unfinished(search: Search) -> Array:
        steepest = jnp.abs(search.gradient).max(initial=0.0)
        flat = (search.steps > 0) & (steepest <= _FLAT * (1 + jnp.abs(search.value)))
        flat &= is_little(search.promised, search.value, _FLAT)
        return (search.steps < num_steps) & ~flat & ~search.stalled

    return lax.while_loop(
        unfinished,
        lambda search: search_step(value_and_grad, search, bounded=bounded),
        start_search(start, memory_size),
    ).point


def is_flat(search: Search, tol: ArrayLike) -> Array:
    """Return whether the gradient is small relative to the loss, and hardly any decrease is left."""
    return (relative_slope(search) <= tol) & is_little(search.promised, search.value, tol)


def relative_slope(search: Search) -> Array:
    """Largest entry of the gradient, relative to the loss."""
    return jnp.abs(search.gradient).max(initial=0.0) / (1 + jnp.abs(search.value))


def held_up(search: Search, history: Array) -> Array:
    """Return whether Newton steps have nothing left to gain, and have gained nothing but for rounding."""
    rounding = rounding_of(search.value)
    before = history[jnp.maximum(search.steps - 1 - _PATIENCE, 0)]
    still = jnp.abs(-search.value - before) <= rounding
    return (search.steps > _PATIENCE) & still & (search.promised <= rounding)
