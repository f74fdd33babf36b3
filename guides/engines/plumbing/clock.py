"""Time of an engine's run, split into compiling and running."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from ..base import Problem
from .programs import compiled

__all__ = ["Clock"]


class Clock:
    """Counts the time that compiling and running take.

    Attributes
    ----------
    seconds : dict of str to float
        ``compile`` and ``run``.
    """

    def __init__(self) -> None:
        self.seconds = {"compile": 0.0, "run": 0.0}

    def counted[P](self, made: tuple[P, float]) -> P:
        """Count the seconds returned by `compiled` as ``compile``, and return the program."""
        program, spent = made
        self.seconds["compile"] += spent
        return program

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block as ``run``, excluding compilation within it."""
        began, before = time.perf_counter(), self.seconds["compile"]
        yield
        compiling = self.seconds["compile"] - before
        self.seconds["run"] += time.perf_counter() - began - compiling

    def run(
        self,
        name: str,
        problem: Problem,
        config: Hashable,
        build: Callable[[Problem], Callable],
        *args: Any,
    ) -> Any:
        """Compile a program to run `once`, run it, and count the time of both; see `compiled`."""
        program = self.counted(compiled(name, problem, config, build, *args, once=True))
        with self.running():
            return program(*args)
