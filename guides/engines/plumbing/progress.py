"""Runs of compiled iterations in pieces, and one progress bar for all engines, in terminals and notebooks."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["in_pieces", "piece_length", "progress_bar"]

_PIECE_SECONDS = 0.5
_FIRST_STEPS = 4

_WORTH = 9
"""Minimum time of the steps of a piece, in multiples of the time that a piece takes before its first step."""

_LONGEST = 20.0
"""Maximum number of seconds of a piece."""

_TOGETHER = 100
"""Number of steps of a piece where several processes run one program, as their clocks differ."""

_REFRESH = 0.5
"""Seconds between two updates of a bar in a notebook."""


@contextmanager
def progress_bar(
    title: str, total: int | None = None, *, shown: bool = True
) -> Iterator[Callable[[int, str], None]]:
    """Show how far a run has come.

    Parameters
    ----------
    title : str
    total : int or None
        Number of steps; None where it is not known, as for a run that stops at a tolerance.
    shown : bool
        Whether to show a bar.

    Yields
    ------
    advance : callable
        ``advance(steps, stage)`` moves the bar on and shows what the engine is doing.
    """
    console = Console(stderr=True)
    if not (shown and (console.is_jupyter or sys.stderr.isatty())):
        yield lambda steps, stage: None
        return
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    with _in_cell(bar) if console.is_jupyter else bar:
        task = bar.add_task(title, total=total)
        yield lambda steps, stage: bar.update(task, advance=steps, description=f"{title}: {stage}")


@contextmanager
def _in_cell(bar: Progress) -> Iterator[None]:
    """Show a bar below the cell of a notebook; runs of less than `_REFRESH` seconds show none.

    A single output is updated in place. Unlike Rich's live display, this does not require ipywidgets.
    """
    from IPython.display import HTML, display

    ended = threading.Event()

    def show() -> None:
        handle = None
        while not ended.wait(_REFRESH):
            if handle is None:
                handle = display(bar, display_id=True)
            else:
                handle.update(bar)
        if handle is not None:
            handle.update(HTML(""))

    # the context determines to which cell the outputs of a thread belong
    thread = threading.Thread(target=contextvars.copy_context().run, args=(show,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def in_pieces(
    march: Callable[[Any, NDArray], tuple[Any, Any]],
    state: Any,
    advance: Callable[[int, str], None],
    describe: Callable[[Any], str],
    keep: Callable[[Any], None] = lambda state: None,
    first: int = _FIRST_STEPS,
    most: int | None = None,
) -> tuple[Any, Any]:
    """Run compiled iterations in pieces of about half a second, so that progress can be shown.

    Pieces are longer where each of them takes long before its first iteration, such as for sums over all
    data that do not depend on the state.

    Parameters
    ----------
    march : callable
        ``march(state, limit)`` returns a state and any other value; it iterates every run of the
        state until the run stops or has done `limit` iterations.
    state : object
        Its array ``steps`` holds the number of iterations that each run has done.
    advance : callable
        As from `progress_bar`.
    describe : callable
        Describes the progress of a state in a few words.
    keep : callable
        Receives the state after every piece, as `checkpoint.Keeper.offer` does.
    first : int
        Iterations in the first piece.
    most : int, optional
        Number of iterations after which every run is interrupted.

    Returns
    -------
    What `march` returned last.
    """
    done = int(np.asarray(state.steps).max())
    limit, overhead, last = done + first, 0.0, (0, 0.0)
    while True:
        limit = limit if most is None else min(limit, most)
        began = time.perf_counter()
        state, found = march(state, np.asarray(limit))
        seconds = time.perf_counter() - began
        now = int(np.asarray(state.steps).max())
        advance(now - done, describe(state))
        if now < limit or now == most:
            return state, found
        keep(state)
        steps = now - done
        if last[0] and last[0] != steps:
            each = (seconds - last[1]) / (steps - last[0])
            overhead = float(np.clip(seconds - each * steps, 0.0, min(seconds, last[1])))
        limit = now + piece_length(steps, seconds, overhead)
        done, last = now, (steps, seconds)


def piece_length(steps: int, seconds: float, overhead: float = 0.0) -> int:
    """How many steps to take next; at least one.

    Parameters
    ----------
    steps : int
        Number of steps of the last piece.
    seconds : float
        Time that they took.
    overhead : float
        Part of this time that does not depend on the number of steps. If it is 0, the aim is half a second.
    """
    if jax.process_count() > 1:
        return _TOGETHER
    each = max(seconds - overhead, 0.01 * seconds) / steps
    wanted = max(_PIECE_SECONDS - overhead, _WORTH * overhead)
    return max(1, int(min(wanted, _LONGEST) / each))
