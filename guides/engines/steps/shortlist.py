"""Shortlist of starts from which climbs go on to the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ..base import Keeper
from ..plumbing.clock import Clock
from ..plumbing.progress import in_pieces, piece_length
from ..plumbing.side_by_side import num_processors

__all__ = ["first_of", "shortlisted"]

_ROUNDS = ((30, 3), (60, 1))
"""Steps after which starts are compared, and how many are kept, in multiples of the number of restarts."""

_TRIAL = 4
"""Number of steps from one start by which the time per step is measured."""

_ALIKE = 0.3
"""Largest difference in nats between starts that are taken to climb to the same mode."""


def _picked(state: Any, rows: NDArray[np.int64]) -> Any:
    """Return some members of a batch, on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], state)


def first_of(state: Any, number: int) -> Any:
    """Return the first starts, at most `number` of them."""
    return _picked(state, np.arange(min(number, len(state.code))))


def shortlisted(
    program: Callable,
    state: Any,
    fixed: tuple,
    number: int,
    *,
    height: Callable[[Any], NDArray],
    advance: Callable[[int, str], None],
    keep: Keeper,
    clock: Clock,
    pace: int = 1,
) -> Any:
    """Climb some steps from many starts, and keep the highest of those that differ.

    The first starts, a fifth of those kept, stay whatever their height. A quarter of the places is left
    for starts that are like others: they show whether a mode is found more than once.

    Parameters
    ----------
    program : callable
        ``program(state, *fixed, limit) -> (state, found)``; see `climbed`.
    state : object
        With an axis of starts in front of every array.
    fixed : tuple
    number : int
        How many starts to keep.
    height : callable
        Objective at the starts of a state.
    advance : callable
        As from `progress_bar`.
    keep : Keeper
        A state that it holds is returned unchanged.
    clock : Clock
        Counts the time taken.
    pace : int
        Number of steps that lead as far as one step of EM.

    Returns
    -------
    object
        The state of those starts, to climb on from.

    References
    ----------
    Biernacki, Celeux and Govaert (2003), Comput. Stat. Data Anal. 41, 561-575,
    doi:10.1016/S0167-9473(02)00163-9: short runs of EM.
    """
    first = first_of(state, number)
    restored = keep.restore(first)
    if restored is not first:
        return restored
    number = min(number, len(state.code))  # a model may have fewer places to start from
    with clock.running():
        order = np.arange(len(state.code))
        march = partial(_in_chunks, program, fixed, number)
        began = time.perf_counter()
        march(first_of(state, 1), np.asarray(_TRIAL))
        share = (time.perf_counter() - began) * len(order) / num_processors()
        for few, several in _ROUNDS:
            kept = several * number
            if len(order) <= kept:
                continue
            state, _ = in_pieces(
                march,
                state,
                advance,
                _described,
                first=piece_length(_TRIAL, share),
                most=few * pace,
            )
            top = np.asarray(height(state), float)
            rows = np.sort(
                _promising(np.where(np.isfinite(top), top, -np.inf), order, kept, number)
            )
            state, order = _picked(state, rows), order[rows]
    return state


def _described(state: Any) -> str:
    return f"{len(state.code)} starts"


def _in_chunks(
    program: Callable, fixed: tuple, number: int, state: Any, limit: NDArray
) -> tuple[Any, None]:
    """Climb from all starts; accelerators run a program for `number` of them at a time."""
    if jax.default_backend() == "cpu":
        return program(state, *fixed, limit)[0], None
    total = len(state.code)
    chunks = [np.arange(first, first + number) % total for first in range(0, total, number)]
    found = [program(_picked(state, rows), *fixed, limit)[0] for rows in chunks]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:total], *found), None


def _promising(top: NDArray, order: NDArray[np.int64], kept: int, number: int) -> NDArray[np.int64]:
    """Return the rows to keep, given heights and the places that rows had at the beginning."""
    chosen = [row for row in np.argsort(order) if order[row] < max(1, number // 5)]
    by_height = np.argsort(-top, kind="stable")
    apart: list[int] = []
    for row in by_height[np.isfinite(top[by_height])].tolist():
        if all(abs(top[row] - top[other]) > _ALIKE for other in apart):
            apart.append(row)
    differing = [row for row in apart if row not in chosen]
    wanted = [*chosen, *differing[: kept - kept // 4 - len(chosen)], *by_height]
    return np.array(list(dict.fromkeys(wanted))[:kept])
