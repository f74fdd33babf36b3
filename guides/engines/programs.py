"""Compiled programs, kept for as long as the process lives, shared by fits of equal structure."""

from __future__ import annotations

import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from . import store
from .base import Problem

__all__ = ["compiled", "structure", "timed"]

_MOST_PROGRAMS = 128
_programs: OrderedDict[Hashable, tuple[Any, Any]] = OrderedDict()


def compiled(
    name: str, problem: Problem, config: Hashable, build: Callable[[Problem], Callable], *args: Any
) -> tuple[Callable, float]:
    """Compile a program for a problem, or find the one that an earlier fit compiled.

    Two problems share a program when model, options and closed forms are equal and their data have the
    same shapes: the data themselves are arguments, never constants.

    Parameters
    ----------
    name : str
        What the program does.
    problem : Problem
    config : hashable
        Whatever else shapes the program, such as the engine's configuration.
    build : callable
        Takes the problem without its data, returns the function to compile.
    *args
        Arguments of that function.

    Returns
    -------
    program : callable
    seconds : float
        Spent in compiling; 0 if the program was there.
    """
    leaves, tree = jax.tree.flatten(args)
    shapes = tuple(map(jax.typeof, leaves))
    key = (name, structure(problem), config, tree, shapes, jnp.result_type(float))
    if key in _programs:
        _programs.move_to_end(key)
        return _programs[key][0], 0.0
    began = time.perf_counter()
    bare = replace(problem, args=())
    program = store.fetch(key)
    if program is None:
        # values are unknown here; NumPyro's checks of them would be compiled, then ignored
        with numpyro.validation_enabled(False):
            lowered = jax.jit(build(bare)).lower(*args)
        program = store.compile_and_keep(key, lowered)
    # the problem is kept beside its program: an object known by its id must not be collected
    _programs[key] = program, bare
    if len(_programs) > _MOST_PROGRAMS:
        _programs.popitem(last=False)
    return program, time.perf_counter() - began


def timed(
    seconds: dict[str, float],
    name: str,
    problem: Problem,
    config: Hashable,
    build: Callable[[Problem], Callable],
    *args: Any,
) -> Any:
    """Compile a program as `compiled` does, run it, and add what both took to `seconds`."""
    program, spent = compiled(name, problem, config, build, *args)
    began = time.perf_counter()
    out = jax.block_until_ready(program(*args))
    seconds["compile"] += spent
    seconds["run"] += time.perf_counter() - began
    return out


def structure(problem: Problem) -> Hashable:
    """What a problem is apart from its data, as a value that can be compared."""
    return _freeze(
        (problem.model, problem.kwargs, problem.m_step, problem.e_step, problem.conjugacy)
    )


def _freeze(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return ("mapping", *sorted((str(name), _freeze(item)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value), *map(_freeze, value))
    if isinstance(value, functools.partial):
        return ("partial", value.func, _freeze(value.args), _freeze(value.keywords))
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        return ("array", array.shape, array.dtype.str, array.tobytes())
    if isinstance(value, dist.Distribution):
        # by name: NumPyro flattens a distribution in an order that differs between processes
        names = {*value.gather_pytree_data_fields(), *value.gather_pytree_aux_fields()}
        fields_of = ((name, _freeze(getattr(value, name, None))) for name in sorted(names))
        return ("distribution", type(value), *fields_of)
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), *(_freeze(getattr(value, field.name)) for field in fields(value)))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return (type(value), value)
