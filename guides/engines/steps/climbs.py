"""Iterations of several starts, each until it stops: stop codes, loop, progress, clock."""

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
    "at_rest",
    "climbed",
    "history_length",
    "is_little",
    "rounding_of",
    "stop_code",
    "until_stopped",
]

SETTLED, CUT, BROKEN, STALLED = 1, 2, 3, 4
"""Why a start stopped: converged, out of steps, not finite, no step leads further up."""

_FEW_STEPS = 1024
"""Histories of so many steps or fewer have one length; longer ones take steps of eight."""

_ROUNDING = 4
"""Rounding errors of an objective, in units of the last place, that are no gain."""

_MOST = 1e6
"""Size of an objective above which a tolerance is relative to this number: a larger one may be an offset, as
of data far from where the prior has them, and does not tell what is left to gain."""


def history_length(max_steps: int) -> int:
    """Entries of the history of a climb, spare ones included: one more than `max_steps` at least.

    Climbs that differ only in how many steps they may take share a program.
    """
    return next(size for k in count() if (size := _FEW_STEPS << 3 * k) > max_steps)


def stop_code(
    *, settled: Array, cut: Array, broken: ArrayLike = False, stalled: ArrayLike = False
) -> Array:
    """Code of the first that holds: broken, settled, stalled, cut; 0 where the run goes on."""
    code = jnp.where(stalled, STALLED, jnp.where(cut, CUT, 0))
    return jnp.where(broken, BROKEN, jnp.where(settled, SETTLED, code))


def at_rest(value: Array, last: Array, gain_before: Array, tol: ArrayLike) -> tuple[Array, Array]:
    """Whether steps that gain less and less have little left to gain, and the gain of the last one.

    Gains are taken to go on falling by one factor, as they do near the mode (Aitken's estimate), so that
    a slow climb is not cut short. Where gains grow there is no telling. Gains that are rounding errors end a
    climb in any case.

    Parameters
    ----------
    value, last, gain_before : Array, shape ()
        Objective now and before the last step, and the gain of the step before that.
    tol : ArrayLike, shape ()
        What may be left to gain, relative to one plus the objective, of which no more than a million counts.

    References
    ----------
    Böhning, Dietz, Schaub, Schlattmann and Lindsay (1994), Ann. Inst. Stat. Math. 46, 373-388,
    doi:10.1007/BF01720593.
    """
    gain, size = value - last, 1 + jnp.abs(value)
    ratio = gain / gain_before
    ahead = jnp.where(ratio < 1, gain * ratio / (1 - ratio), jnp.inf)
    ahead = jnp.where(jnp.isfinite(gain_before), ahead, jnp.inf)
    most = jnp.maximum(jnp.abs(gain), jnp.abs(ahead))
    near = most <= tol * jnp.minimum(size, _MOST)
    return near | (jnp.abs(gain) <= rounding_of(value)), gain


def is_little(gain: Array, value: Array, tol: ArrayLike) -> Array:
    """Whether a gain that a step promises is one that a tolerance allows, or that rounding hides.

    The gain is compared with `tol` times a million, whatever the objective. A slope that is small beside a
    large objective may still lead far up.

    Parameters
    ----------
    gain, value : Array
        In nats; half the slope along a step of Newton's method is what it promises.
    tol : ArrayLike, shape ()
    """
    return gain <= jnp.maximum(tol * _MOST, rounding_of(value))


def rounding_of(value: Any) -> Any:
    """Difference that rounding leaves between objectives that are equal; of an array of JAX or NumPy."""
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
    """Run a compiled climb to its end, in pieces that are shown and kept.

    Parameters
    ----------
    program : callable
        ``program(state, *fixed, limit) -> (state, found)``, made with `until_stopped`.
    state : object
    fixed : tuple
        What the program is given besides, in every piece.
    describe : callable
        Says in a few words where a state has got.
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
        keep.offer(state, now=True)  # what follows may take long
    return state, found
