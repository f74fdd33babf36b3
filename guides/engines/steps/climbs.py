"""Iterations from several starts, each until it stops: stop codes, loop, progress, clock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ..base import Keeper
from ..plumbing.clock import Clock
from ..plumbing.progress import in_pieces

__all__ = [
    "BROKEN",
    "CUT",
    "SETTLED",
    "STALLED",
    "allowance",
    "at_rest",
    "climbed",
    "history_length",
    "is_little",
    "rounding_of",
    "stop_code",
    "until_stopped",
]

SETTLED, CUT, BROKEN, STALLED = 1, 2, 3, 4
"""Reasons why a start stopped: converged, out of steps, not finite, no step leads further up."""

_FEW_STEPS = 1024
"""Length of the shortest history; the lengths of longer ones increase by factors of eight."""

_ROUNDING = 4
"""Number of units in the last place of an objective that count as rounding error and not as a gain."""

_MOST = 1e6
"""Size of an objective above which a tolerance is relative to this number. A larger objective may be due to
an offset, as where data are far from their prior, and does not show what is left to gain."""


def history_length(max_steps: int) -> int:
    """Length of the history of a climb, including spare entries; at least one more than `max_steps`.

    Climbs that differ only in their maximum number of steps can then share a program.
    """
    return next(size for k in count() if (size := _FEW_STEPS << 3 * k) > max_steps)


def stop_code(
    *, settled: Array, cut: Array, broken: ArrayLike = False, stalled: ArrayLike = False
) -> Array:
    """Code of the first condition that holds: broken, settled, stalled, cut; 0 where the run goes on."""
    code = jnp.where(stalled, STALLED, jnp.where(cut, CUT, 0))
    return jnp.where(broken, BROKEN, jnp.where(settled, SETTLED, code))


def allowance(value: Array, tol: ArrayLike) -> Array:
    """Return the gain, in nats, that may be left; see `at_rest`."""
    return jnp.asarray(tol) * jnp.minimum(1 + jnp.abs(value), _MOST)


def at_rest(value: Array, last: Array, gain_before: Array, tol: ArrayLike) -> tuple[Array, Array]:
    """Return whether steps with decreasing gains have little left to gain, and the gain of the last step.

    Gains are assumed to decrease geometrically, as they do near the mode (Aitken's estimate), so that a slow
    climb is not cut short. Where gains grow, there is no estimate. Gains that are rounding errors end a climb
    in any case.

    Parameters
    ----------
    value, last, gain_before : Array, shape ()
        Objective now and before the last step, and the gain of the step before that.
    tol : ArrayLike, shape ()
        Gain that may be left, relative to one plus the size of the objective, which is capped at a million.

    References
    ----------
    Böhning, Dietz, Schaub, Schlattmann and Lindsay (1994), Ann. Inst. Stat. Math. 46, 373-388,
    doi:10.1007/BF01720593.
    """
    gain = value - last
    ratio = gain / gain_before
    ahead = jnp.where(ratio < 1, gain * ratio / (1 - ratio), jnp.inf)
    ahead = jnp.where(jnp.isfinite(gain_before), ahead, jnp.inf)
    most = jnp.maximum(jnp.abs(gain), jnp.abs(ahead))
    return (most <= allowance(value, tol)) | (jnp.abs(gain) <= rounding_of(value)), gain


def is_little(gain: Array, value: Array, tol: ArrayLike) -> Array:
    """Return whether the expected gain of a step is within the tolerance, or hidden by rounding.

    The gain is compared with `tol` times a million, whatever the objective: a slope that is small relative to
    a large objective may still lead far up.

    Parameters
    ----------
    gain, value : Array
        In nats; the expected gain of a step of Newton's method is half the slope along it.
    tol : ArrayLike, shape ()
    """
    return gain <= jnp.maximum(tol * _MOST, rounding_of(value))


def rounding_of(value: Any) -> Any:
    """Difference that rounding may leave between equal objectives, for an array of JAX or NumPy."""
    return _ROUNDING * float(jnp.finfo(value.dtype).eps) * (1 + abs(value))


def until_stopped(step: Callable[[Any], Any], state: Any, limit: Array) -> Any:
    """Iterate, in compiled code, until the state bears a stop code or has done `limit` steps.

    Parameters
    ----------
    step : callable
        ``step(state) -> state``.
    state : object
        With arrays ``code`` and ``steps``, shape ().
    limit : Array of int, shape ()
    """
    return lax.while_loop(lambda s: (s.code == 0) & (s.steps < limit), step, state)


def climbed(
    program: Callable,
    state: Any,
    fixed: tuple,
    *,
    describe: Callable[[Any], str],
    advance: Callable[[int, str], None],
    keep: Keeper,
    clock: Clock,
) -> tuple[Any, Any]:
    """Run a compiled climb to its end, in pieces after which progress is shown and the state is kept.

    Parameters
    ----------
    program : callable
        ``program(state, *fixed, limit) -> (state, found)``, made with `until_stopped`.
    state : object
    fixed : tuple
        Further arguments of the program, the same in every piece.
    describe : callable
        Describes the progress of a state in a few words.
    advance : callable
        As from `progress_bar`.
    keep : Keeper
    clock : Clock
        Counts the time that the climb takes.

    Returns
    -------
    state, found
    """
    with clock.running():
        state, found = in_pieces(
            lambda state, limit: program(state, *fixed, limit), state, advance, describe, keep.offer
        )
        keep.offer(state, now=True)  # the next stage may take long
    return state, found
