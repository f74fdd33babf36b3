"""Threads of the linear algebra library and of OpenMP, beside our own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread_each"]

_lock = threading.Lock()
_limit = ExitStack()
_users = 0


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Have BLAS, LAPACK and OpenMP use the thread that calls them, for many small tasks or several threads.

    Threads of their own wait for each other in loops: where all processors are busy, eigenvalues of a
    matrix of 64 rows have taken 50 milliseconds for .4, and a source of 384 rows 56 seconds for 4.
    """
    global _users
    with _lock:
        if not _users:
            _limit.enter_context(_libraries().limit(limits=1))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _limit.close()


@cache
def _libraries() -> ThreadpoolController:
    """The libraries of this process, found once: looking takes milliseconds."""
    return ThreadpoolController()
