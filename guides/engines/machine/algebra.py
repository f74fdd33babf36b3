"""Limits the threads of the linear algebra library and of OpenMP, beside the library's own threads."""

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
    """Make BLAS, LAPACK and OpenMP use only the calling thread, for many small tasks or several threads.

    Their own threads wait for each other in loops. Where all processors are busy, eigenvalues of a matrix of
    64 rows have taken 50 milliseconds instead of .4, and a source of 384 rows 56 seconds instead of 4.
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
    """Return the libraries of this process, which are looked up once, as this takes milliseconds."""
    return ThreadpoolController()
