"""Runs work in other threads, so that Ctrl-C ends the wait for it at once.

Python's main thread handles Ctrl-C only between two of its own instructions. While it compiles or runs a
program of XLA, it executes none for seconds. Here another thread does this, and the main thread waits.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import jax

__all__ = ["NoThreadsError", "Workers", "finished", "in_threads", "interruptible", "leave_at_once"]

_lock = threading.Lock()
_unfinished: set[Future] = set()


class Workers:
    """Daemon threads that take pieces of work in turn; each ends after `close`, when no work is left.

    At its exit, Python waits for the threads of `concurrent.futures`, however long they take. It does not
    wait for these; see `leave_at_once`.

    Parameters
    ----------
    most : int
        Maximum number of threads, at least one.
    """

    def __init__(self, most: int) -> None:
        self._most, self._threads = most, 0
        self._queue: SimpleQueue[tuple[Future, Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, work: Callable[[], Any]) -> Future:
        """Submit work to a thread.

        Raises
        ------
        NoThreadsError
            If no thread can be started.
        """
        if self._threads < self._most:
            try:
                threading.Thread(target=self._serve, name="sidebayes", daemon=True).start()
            except RuntimeError:
                raise NoThreadsError from None
            self._threads += 1
        future: Future = Future()
        with _lock:
            _unfinished.add(future)
        future.add_done_callback(_forget)
        self._queue.put((future, work))
        return future

    def close(self) -> None:
        """Let the threads end once everything that was submitted is done."""
        for _ in range(self._threads):
            self._queue.put(None)

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del item, future, work  # release large objects while waiting


def _forget(future: Future) -> None:
    with _lock:
        _unfinished.discard(future)


class NoThreadsError(Exception):
    """No thread can be started, as during the exit of Python."""


def in_threads(works: Sequence[Callable[[], Any]], at_once: int) -> list[Any]:
    """Do several pieces of work in other threads, under this thread's settings of JAX.

    After Ctrl-C, work that has begun goes on in its thread, but its result is dropped; other work never
    begins.

    Parameters
    ----------
    works : sequence of callables
        Functions without arguments. They must not change objects that the caller uses afterwards.
    at_once : int
        Maximum number of threads.

    Returns
    -------
    list
        Their results.

    Raises
    ------
    NoThreadsError
        If no thread can be started.
    """
    workers = Workers(at_once)
    futures: list[Future] = []
    try:
        for work in works:
            futures.append(workers.submit(_under_settings(work)))
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        workers.close()


def _under_settings(work: Callable[[], Any]) -> Callable[[], Any]:
    """Make work run under those settings of JAX that may be specific to this thread."""
    config = jax.config
    precise, nans, infs = config.jax_enable_x64, config.jax_debug_nans, config.jax_debug_infs

    def done() -> Any:
        with jax.enable_x64(precise), jax.debug_nans(nans), jax.debug_infs(infs):
            return work()

    return done


def interruptible(work: Callable[[], Any]) -> Any:
    """Do work that runs outside Python for long; in the main thread, Ctrl-C ends the wait for it.

    Parameters
    ----------
    work : callable
        See `in_threads`.

    Returns
    -------
    What it returns.
    """
    if threading.current_thread() is threading.main_thread():
        with suppress(NoThreadsError):
            return in_threads([work], 1)[0]
    return work()


def finished(program: Callable, *args: Any) -> Any:
    """Run a compiled program to its end, on arguments on its own devices; see `interruptible`.

    Parameters
    ----------
    program : callable
    *args
        Arguments as `on_devices` returns them.

    Returns
    -------
    pytree of Array
        Result of the program, after its computation has ended.
    """
    return interruptible(lambda: jax.block_until_ready(program(*args)))


def leave_at_once(status: int | None = None) -> None:
    """End the process without waiting for work in threads; return if there is none.

    XLA crashes if Python ends while it runs, so the process ends immediately.

    Parameters
    ----------
    status : int, optional
        Exit status. Without it, the process ends by the signal of Ctrl-C.
    """
    with _lock:
        if not _unfinished:
            return
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    if status is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        status = 130
    os._exit(status)


@atexit.register
def _end() -> None:
    """Leave at once after an uncaught Ctrl-C; otherwise, wait for work that has begun."""
    if isinstance(getattr(sys, "last_exc", None), KeyboardInterrupt):
        leave_at_once()
    with _lock:
        left = set(_unfinished)
    wait(left)
