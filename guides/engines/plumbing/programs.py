"""Compiled programs, kept for as long as the process lives, shared by fits of equal structure."""

from __future__ import annotations

import contextvars
import functools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from numpyro.primitives import _PYRO_STACK

from ..base import FitError, Problem
from ..machine.background import NoThreadsError, Workers, finished, interruptible
from ..machine.memory import check_program, maps_in_use
from ..machine.shares import divided, is_spread, on_devices, replicated, whole
from . import fingerprint
from .identity import freeze, is_known, structure
from .indicators import indicators
from .store import ProgramStore, compile_anew, current_store

__all__ = [
    "Program",
    "compile_ahead",
    "compiled",
    "counted_compilations",
    "maker",
    "nothing_left_ahead",
    "refuse_fork",
    "tracing",
    "unchecked",
]

_MOST_PROGRAMS = 128

_MOST_MAPS = 0.5
"""Share of the memory maps of a process above which programs are released."""

_maps_left = 0.0
"""Share that was in use after programs were last released."""

_SMALL = 100_000
"""Number of entries in its arguments below which a program runs in no time, however it was compiled."""

_programs: OrderedDict[Hashable, Program] = OrderedDict()
_ahead: dict[Hashable, _Job] = {}
_lock = threading.Lock()
_counts: list[list[str]] = []

tracing = threading.RLock()
"""Held by the thread that runs a model, as all threads share NumPyro's handlers and settings."""

_process: int | None = None
"""Process in which JAX was first used here."""


def refuse_fork() -> None:
    """Refuse to go on in a process that was forked from one in which JAX had run.

    Raises
    ------
    FitError
        If it was: a child has none of JAX's threads, and would wait for them for ever.
    """
    global _process
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise FitError(
            "this process was forked from one that had used JAX, whose threads it does not have: it "
            "would wait for ever. Start a new process, by multiprocessing.get_context('spawn') or "
            "with joblib's own processes"
        )


def _refuse_handlers() -> None:
    """Refuse handlers around a fit: other fits would run the program that they changed."""
    if not _PYRO_STACK:
        return
    with tracing:  # handlers of another thread have ended
        name = type(_PYRO_STACK[-1]).__name__ if _PYRO_STACK else None
    if name is not None:
        raise FitError(
            f"the handler numpyro.handlers.{name} is active around this call, and what it does would be "
            f"kept in programs that other fits share; give it the model, as in {name}(model, ...), or "
            "leave its block first"
        )


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled program, which is computed when a call returns; Ctrl-C ends the wait for it at once.

    Attributes
    ----------
    executable : callable
        As JAX compiled it.
    """

    executable: Any

    def __call__(self, *args: Any) -> Any:
        """Run it."""
        return finished(self.executable, *on_devices(args))


def compiled(
    name: str,
    problem: Problem,
    config: Hashable,
    build: Callable[[Problem], Callable],
    *args: Any,
    once: bool = False,
    often: bool = False,
) -> tuple[Program, float]:
    """Compile a program for a problem, or find the one that an earlier fit compiled.

    Two problems share a program when model and options are equal and their data have the same
    shapes: the data themselves are arguments, never constants. A program that this process does not have is
    looked up on disk, by name if all code is the library's, otherwise by its trace.

    Parameters
    ----------
    name : str
        What the program does.
    problem : Problem
    config : hashable
        Everything else that determines the program, such as the engine's configuration.
    build : callable
        Takes the problem without its data and returns the function to compile. Where it is a method, objects
        of different classes have different programs, as have engines of the user that differ.
    *args
        Arguments of that function.
    once : bool
        The program is run once or a few times. Where its arguments are small it is then compiled in
        two thirds of the time, and takes some four times as long to run.
    often : bool
        The program runs for long and mostly adds up rows. This may then take half of the time, and compiling
        takes a tenth more.

    Returns
    -------
    program : Program
    seconds : float
        Time spent compiling; 0 if the program was found.

    Raises
    ------
    FitError
        If the program needs more memory than the machine has, or is requested under a handler of NumPyro.
    """
    refuse_fork()
    _refuse_handlers()
    key, level = _key(name, problem, config, build, args, once, often)
    program = _known(key)
    if program is not None:
        return program, 0.0
    began = time.perf_counter()
    with _lock:
        job = _ahead.get(key)
        if job is not None and job.future.cancel():
            del _ahead[key]
            job = None
    if job is not None:
        job.future.exception()  # a failure there is repeated, and reported, here
    program = _known(key)
    if program is None:
        program = _made(name, problem, key, build, args, level)
    return program, time.perf_counter() - began


class _Job(NamedTuple):
    """A program that another thread compiles, for which thread, and whether it is still needed."""

    future: Future
    owner: int
    dropped: threading.Event


def compile_ahead(
    name: str,
    problem: Problem,
    config: Hashable,
    build: Callable[[Problem], Callable],
    *args: Any,
    once: bool = False,
    often: bool = False,
) -> bool:
    """Compile in another thread, in advance, what `compiled` will be called for, unless it is there.

    Only shapes and types of `args` count. `compiled` waits for a compilation that has begun, and otherwise
    compiles the program itself; one that fails is compiled again, and fails, there. To be called within
    `nothing_left_ahead`. Returns False where there is nothing to wait for: such fits have run before.
    """
    asked = name, problem, config, build, args, once, often
    key, level = _key(*asked)
    if _known(key) is not None or maps_in_use() > _MOST_MAPS:
        return False
    precise, dropped = jax.config.jax_enable_x64, threading.Event()

    def work() -> None:
        try:
            with jax.enable_x64(precise):
                # settings of JAX and objects of the user may be valid in one thread only
                if _key(*asked)[0] == key:
                    _made(name, problem, key, build, args, level, dropped)
        finally:
            with _lock:
                _ahead.pop(key, None)

    seen = contextvars.copy_context()  # as a model may read them
    with _lock, suppress(NoThreadsError):
        if key not in _ahead and key not in _programs:  # it may have been added meanwhile
            _ahead[key] = _Job(
                _helper().submit(partial(seen.run, work)), threading.get_ident(), dropped
            )
    return True


@contextmanager
def nothing_left_ahead() -> Iterator[None]:
    """Drop, at its end, programs that this thread requested by `compile_ahead` in this block and did not use.

    After the block, the other thread runs no model for this one, which may then run NumPyro.
    """
    with _lock:
        before = set(_ahead)
    try:
        yield
    finally:
        with _lock:
            for key, job in list(_ahead.items()):
                if key in before or job.owner != threading.get_ident():
                    continue
                job.dropped.set()
                if job.future.cancel():
                    del _ahead[key]
        with tracing:  # by now, a model that was running has ended
            pass


@functools.cache
def _helper() -> Workers:
    return Workers(1)


def _key(
    name: str,
    problem: Problem,
    config: Hashable,
    build: Callable[[Problem], Callable],
    args: tuple,
    once: bool,
    often: bool,
) -> tuple[Hashable, int]:
    """Return the key of a program, and its level of optimisation."""
    leaves, tree = jax.tree.flatten(args)
    shapes = tuple(map(jax.typeof, leaves))
    kind = jnp.result_type(float), fingerprint.settings()
    level = 2 if often else 1
    if once and sum(shape.size for shape in shapes) < _SMALL:
        level = 0
    options = freeze((config, level, maker(build)))
    return (name, structure(problem), options, tree, shapes, kind), level


def maker(build: Callable) -> Any:
    """Return what makes a program: an engine of the user, who may override methods; otherwise its class."""
    made_by = getattr(getattr(build, "func", build), "__self__", None)
    return type(made_by) if is_known(type(made_by)) else made_by


def _known(key: Hashable) -> Program | None:
    """Return the program that this process has for a key; None if it has none."""
    with _lock:
        if key in _programs:
            _programs.move_to_end(key)
        return _programs.get(key)


def _made(
    name: str,
    problem: Problem,
    key: Hashable,
    build: Callable[[Problem], Callable],
    args: tuple,
    level: int,
    dropped: threading.Event | None = None,
) -> Program:
    """Fetch a program from disk, or compile it, and keep it; unless it was `dropped` meanwhile."""
    store = None if is_spread(args) else current_store()
    digest = fingerprint.by_name(key) if store else None
    executable = store.fetch(digest) if store and digest else None
    if executable is None:
        with tracing:
            _refuse_dropped(dropped)
            with unchecked(), divided(args):
                function = whole(build(replace(problem, args=())))
                results = replicated(args)
                lowered = jax.jit(function, keep_unused=True, out_shardings=results).lower(*args)
        _refuse_dropped(dropped)
        executable = _compile(name, lowered, store, digest, level, library=is_spread(args))
    check_program(name, executable, problem.notes.get("sites", {}))
    program = Program(executable)
    with _lock:
        _programs[key] = program
        if len(_programs) > _MOST_PROGRAMS:
            _programs.popitem(last=False)
        _spare_maps()
    return program


def _spare_maps() -> None:
    """Release half of the programs where memory maps are scarce, and scarcer than after the last release."""
    global _maps_left
    used = maps_in_use()
    if len(_programs) > 1 and used > max(_MOST_MAPS, _maps_left + (1 - _maps_left) / 8):
        for _ in range(len(_programs) // 2):
            _programs.popitem(last=False)
        jax.clear_caches()  # JAX's caches hold programs too
        _maps_left = maps_in_use()  # others may hold many maps, and then clearing is of no use


def _refuse_dropped(dropped: threading.Event | None) -> None:
    if dropped is not None and dropped.is_set():
        raise RuntimeError("nobody waits for this program any more")


def _compile(
    name: str,
    lowered: jax.stages.Lowered,
    store: ProgramStore | None,
    digest: str | None,
    level: int,
    library: bool,
) -> Callable:
    """Compile a traced program and keep it; one without a name may be found on disk by its text."""
    named = digest is not None
    if store and not named:
        digest = fingerprint.by_trace(lowered, level)
        found = store.fetch(digest, lowered) if digest else None
        if found is not None:
            return found
    program, new = interruptible(partial(compile_anew, lowered, level=level, library=library))
    for names in _counts:
        names.append(name)
    if store and digest and new and (not named or fingerprint.is_portable(lowered)):
        store.keep(digest, program, named=named)
    return program


@contextmanager
def unchecked() -> Iterator[None]:
    """Trace without NumPyro's checks of values, which are unknown here: checks would be compiled and ignored.

    Distributions whose support depends on parameters keep theirs; see `indicators`. Unless the user has set a
    precision, matrix products have full single precision on accelerators too, whose default keeps ten bits of
    each factor.
    """
    products = jax.config.jax_default_matmul_precision
    if products is None and jax.default_backend() != "cpu":
        products = "highest"
    with (
        tracing,
        numpyro.validation_enabled(False),
        indicators(),
        jax.default_matmul_precision(products),
    ):
        yield


@contextmanager
def counted_compilations() -> Iterator[list[str]]:
    """Count the programs that are compiled, since they were found neither in memory nor in the program store.

    Yields
    ------
    list of str
        Names of the programs, in the order in which they were compiled, by any thread.

    Examples
    --------
    >>> from sidebayes.guides.engines.plumbing.programs import counted_compilations
    >>> with counted_compilations() as names:
    ...     pass
    >>> names
    []
    """
    names: list[str] = []
    _counts.append(names)
    try:
        yield names
    finally:
        _counts[:] = [other for other in _counts if other is not names]
