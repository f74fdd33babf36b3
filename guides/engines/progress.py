"""One progress bar for all engines, on standard error, only where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(
    title: str, total: int | None = None, *, shown: bool = True
) -> Iterator[Callable[[int, str], None]]:
    """Show how far a run has come.

    Parameters
    ----------
    title : str
    total : int or None
        Number of steps; None where it is not known, as for a run that stops on a tolerance.
    shown : bool
        False keeps silent even on a terminal.

    Yields
    ------
    advance : callable
        ``advance(steps, stage)`` moves the bar on and says what the engine is doing.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda steps, stage: None
        return
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda steps, stage: bar.update(task, advance=steps, description=f"{title}: {stage}")
