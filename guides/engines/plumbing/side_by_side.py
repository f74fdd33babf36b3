"""Runs independent members of a batch, such as starts of a climb.

A processor runs the program of a single member for each member, as many at once as it has cores. Thus none
waits for the slowest, and one program serves any number of members. Accelerators compute all in step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import numpy as np

from ..base import Problem
from ..machine.algebra import one_thread_each
from ..machine.background import NoThreadsError, finished, in_threads
from ..machine.memory import machine_memory, program_memory
from ..machine.shares import is_spread, on_devices
from .programs import Program, compiled, maker

__all__ = ["compiled_batch", "num_processors", "one_member", "run_all", "run_each"]


def compiled_batch(
    name: str,
    problem: Problem,
    config: Hashable,
    build: Callable[[Problem], Callable],
    members: Any,
    *shared: Any,
    once: bool = False,
) -> tuple[Callable, float]:
    """Compile a program that runs a function of a single member for all members of a batch; see `compiled`.

    Parameters
    ----------
    name, problem, config
    build : callable
        Takes the problem without its data and returns ``function(member, *shared)``.
    members : pytree of arrays
        With an axis of members in front.
    *shared
        Arguments that all members have in common.
    once : bool

    Returns
    -------
    program : callable
        ``program(members, *shared)`` returns results with an axis of members in front.
    seconds : float
    """
    if jax.default_backend() == "cpu":
        given = one_member(members, 0), *shared
        program, seconds = compiled(name, problem, config, build, *given, once=once)
        return partial(run_each, program), seconds
    in_step, own = partial(_in_step, len(shared), build), (config, "in step", maker(build))
    return compiled(name, problem, own, in_step, members, *shared, once=once)


def _in_step(num_shared: int, build: Callable[[Problem], Callable], problem: Problem) -> Callable:
    return jax.vmap(build(problem), in_axes=(0, *[None] * num_shared))


def run_each(program: Program, members: Any, *shared: Any) -> Any:
    """Run the compiled program of one member for each member; see `run_all`.

    Parameters
    ----------
    program : Program
        Of ``program(member, *shared)``, from `compiled`.
    members : pytree of arrays
        With an axis of members in front.
    *shared

    Returns
    -------
    pytree of ndarray
        With an axis of members in front.
    """
    on_host = jax.tree.map(np.asarray, members)
    number = len(jax.tree.leaves(on_host)[0])
    found = run_all(program, [one_member(on_host, n) for n in range(number)], *shared)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *found)


def run_all(program: Program, members: Sequence[Any], *shared: Any) -> list[Any]:
    """Run a compiled program for each member of a list, as many at once as processors and memory allow.

    Parameters
    ----------
    program : Program
        Of ``program(member, *shared)``, from `compiled`.
    members : sequence
    *shared

    Returns
    -------
    list
        What the program returned, after its computation has ended.
    """
    spread = is_spread(shared)
    # tables that all calls have in common are put on the device once
    given, common = on_devices((members, shared if spread else jax.device_put(shared)))
    works = [partial(finished, program.executable, member, *common) for member in given]
    at_once = 1 if spread else min(len(works), num_processors(), _room(program))
    if at_once > 1:
        with suppress(NoThreadsError), one_thread_each():
            return in_threads(works, at_once)
    return [work() for work in works]


def one_member(members: Any, number: int) -> Any:
    """Return one member of a batch, on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[number], members)


def num_processors() -> int:
    """Number of processors that this process may use; 1 for accelerators, which run one program at a time.

    The environment variable ``NPROC``, which XLA reads too, may set a smaller number than there are.
    """
    if jax.default_backend() != "cpu":
        return 1
    told = os.environ.get("NPROC", "")
    return min(_given(), int(told)) if told.isdecimal() and int(told) else _given()


def _given() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _room(program: Program) -> int:
    """How many copies of a program fit into half of the machine's memory at the same time; at least one."""
    need, have = program_memory(program.executable), machine_memory()
    return 1_000_000 if not need or have is None else max(1, have // (2 * need))
