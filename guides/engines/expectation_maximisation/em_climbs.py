"""EM's climbs from several starts: their state, their ranking on the way, and the result of their ends."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from sidebayes.common.magnitudes import counted

from ..base import EngineResult, Problem, Status
from ..modes import mode_stats, preferred_by_prior
from ..plumbing.side_by_side import one_member
from ..steps.climbs import BROKEN, SETTLED, history_length
from ..steps.edges import Ends
from ..steps.updates import degenerate, doubted
from ..symmetries.ends import distinct_ends
from .failures import all_collapsed

__all__ = ["Climb", "begin", "lowered", "promise", "result"]


_LOSS = 1e-6, 100.0
"""Loss in one step beyond rounding in sums over rows, relative to the log joint: the first, and at least the
second times the unit in the last place."""


class Climb(NamedTuple):
    """State of the runs from all starts; every array has one entry per start.

    `value` is the objective, and `prior` the part of it that is due to priors read off the data. `fall` is
    the most by which a step lowered the objective, 0 if none did by more than rounding.
    """

    steps: Array
    params: dict[str, Array]
    last: dict[str, Array]
    value: Array
    prior: Array
    gain: Array
    fall: Array
    code: Array
    history: Array


def begin(starts: dict[str, Any], max_steps: int) -> Climb:
    """Return the state of every start before its first E-step."""
    number = len(next(iter(starts.values())))
    zero, real = np.zeros(number, int), jnp.result_type(float)
    blank = {
        "steps": zero,
        "params": starts,
        "last": starts,
        "value": np.full(number, -np.inf, real),
        "prior": np.zeros(number, real),
        "gain": np.full(number, np.inf, real),
        "fall": np.zeros(number, real),
        "code": zero,
        "history": np.full((number, history_length(max_steps)), np.nan, real),
    }
    return Climb(**jax.device_put(blank))


def lowered(fall: Array, gain: Array, value: Array) -> Array:
    """Return `Climb.fall` after a step with this gain, to this objective."""
    share = max(_LOSS[0], _LOSS[1] * float(jnp.finfo(value.dtype).eps))
    is_loss = jnp.isfinite(gain) & (-gain > share * (1 + jnp.abs(value - gain)))
    return jnp.where(is_loss, jnp.maximum(fall, -gain), fall)


def promise(problem: Problem, state: Climb, *, rank: str) -> NDArray:
    """Return the criterion of starts; minus infinity for collapsed ones, which rise without bound."""
    params = {name: np.asarray(values) for name, values in state.params.items()}
    worth = _worth(state, rank)
    lost = [degenerate(problem, one_member(params, row)) is not None for row in range(len(worth))]
    return np.where(lost, -np.inf, worth)


def _worth(state: Climb, rank: str) -> NDArray:
    """Return the criterion by which ends are ranked; see `EM`."""
    value = np.asarray(state.value)
    return value if rank == "joint" else value - np.asarray(state.prior)


def result(
    name: str,
    problem: Problem,
    state: Climb,
    starts: dict[str, Any],
    params: dict[str, NDArray],
    ends: Ends,
    seconds: dict[str, float],
    approximate: str | None,
    *,
    tol: float,
    max_steps: int,
    rank: str,
) -> EngineResult:
    """Make the result of an engine from where its climbs ended.

    Parameters
    ----------
    name : str
        Name of the engine.
    problem : Problem
    state : Climb
    starts : dict
        Latent sites where the climbs began, with an axis of starts in front.
    params : dict of ndarray
        Latent and deterministic sites at the ends, with an axis of starts in front.
    ends : Ends
    seconds : dict
    approximate : str, optional
        See `EngineResult`.
    tol, max_steps, rank
        See `EM`.

    Raises
    ------
    FitError
        If a cluster collapsed from every start.
    """
    value, prior, code = map(np.asarray, (state.value, state.prior, state.code))
    steps = np.asarray(state.steps) - 1
    points = [one_member(params, row) for row in range(len(value))]
    collapsed = [degenerate(problem, point) for point in points]
    lost = np.array([c is not None for c in collapsed]) | (code == BROKEN)
    sound = np.isfinite(value) & ~lost
    wanted = sound if sound.any() else np.isfinite(value)
    excess, places = doubted(problem, points, sound)
    worth = _worth(state, rank)
    best = ends.best(worth - excess, wanted)
    if not sound.any():
        raise all_collapsed(problem, collapsed[best], points[best], state.params)
    is_mode, remark = ends.remark(best, points[best])
    modes = distinct_ends(problem, value, sound, params, starts, state.params)
    fall = float(np.asarray(state.fall)[best])
    fell = fall > 0 and approximate is None
    converged = bool(code[best] == SETTLED) and is_mode and not fell
    message = (
        f"EM lowered the log joint by {fall:.3g} in one step, and it never should: check what the blocks of "
        "the model return as their modes and statistics, and do not use these estimates"
        if fell
        else f"EM found no mode in {counted(steps[best], 'step')}"
        if not is_mode
        else f"EM converged in {counted(steps[best], 'step')}; the best of {modes} reached "
        f"log joint {value[best]:.6g}"
        if converged
        else f"EM stopped at max_steps={max_steps} with more than tol={tol} to gain; "
        "raise max_steps or loosen tol"
    )
    doubtful = wanted & (worth > worth[best]) & (excess > 0)
    left = wanted & ~doubtful  # it is not the prior that decides against those set aside
    rivals = ends.best(value - excess, left), ends.best(value - prior - excess, left)
    message += preferred_by_prior(value, prior, best, rivals)
    if remark:
        message += f"; {remark}"
    if lost.any():
        were = "was" if lost.sum() == 1 else "were"
        message += f"; {counted(lost.sum(), 'start')} that collapsed {were} set aside"
    if number := doubtful.sum():
        where, were = places[np.argmax(doubtful)], "was" if number == 1 else "were"
        message += f"; {counted(number, 'start')} that ended {where} {were} set aside"
    return EngineResult(
        engine=name,
        draws={name: v[None, None] for name, v in points[best].items()},
        sample_stats=mode_stats(value[best], prior[best]),
        objective=np.asarray(state.history)[:, : int(steps.max()) + 1],
        status=Status(converged, message),
        seconds=seconds,
        approximate=approximate,
        modes=modes,
        best_start=best,
        is_mode=is_mode,
    )
