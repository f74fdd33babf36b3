"""One run on all cores: the rows of a large table are divided into shares, each on a device of its own.

JAX runs a program of a processor on one device, and most of it on one core. XLA can divide a processor
into several devices, which run one program together, each on its share of the rows, and add up their
results. To have such devices, settings of JAX would have to be changed before it starts. Here, the devices
belong to a client of their own, so that the user's settings and arrays stay as they are. The number of
shares is fixed, so that results do not depend on the number of cores.

Linked points cannot be divided by rows. All their data lie on each device, which processes some chunks of
them.

Where JAX has several devices, such as accelerators or those of several processes under `jax.distributed`,
the rows are divided among them instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sidebayes.models.blocks.row_shares import ROWS

__all__ = [
    "Spread",
    "divided",
    "is_spread",
    "on_devices",
    "on_each",
    "replicated",
    "spread",
    "whole",
]

_NUM_SHARES = 8
"""Number of devices into which a processor is divided."""

_LINE = 64
"""Alignment of memory, in bytes, with which XLA does not copy it."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Spread:
    """A table whose rows are divided among devices, or all of which lies on each device.

    Attributes
    ----------
    table : Array, shape (num_rows + spare rows, ...)
        Spare rows of zeros make the shares equal.
    num_rows : int
    """

    table: Array
    num_rows: int = field(metadata={"static": True})


def _mesh() -> Mesh | None:
    """JAX's devices, of all processes, where it has several; otherwise, the processor's shares."""
    if jax.device_count() > 1:
        return Mesh(np.array(jax.devices()), (ROWS,))
    return _processor() if jax.default_backend() == "cpu" else None


@functools.cache
def _processor() -> Mesh | None:
    """Make devices of a client of their own; None where this version of JAX has no such client."""
    try:
        from jaxlib import xla_client

        client: Any = xla_client.make_cpu_client(asynchronous=True, num_devices=_NUM_SHARES)
    except (ImportError, AttributeError, TypeError):
        return None
    return Mesh(np.array(client.devices()), (ROWS,))


def spread(args: tuple) -> tuple:
    """Return the data of a model, with the longest tables divided by rows among devices."""
    mesh = _mesh()
    if mesh is None:
        return args
    num_rows = max(len(arg) for arg in args if hasattr(arg, "shape") and np.ndim(arg))

    def one(arg: Any) -> Any:
        if not hasattr(arg, "shape") or not np.ndim(arg) or len(arg) != num_rows:
            return arg
        spare = [(0, -num_rows % mesh.size), *[(0, 0)] * (np.ndim(arg) - 1)]
        padded = np.pad(arg, spare) if spare[0][1] else np.asarray(arg)
        return Spread(jax.device_put(padded, NamedSharding(mesh, PartitionSpec(ROWS))), num_rows)

    return tuple(map(one, args))


def on_each(args: tuple) -> tuple:
    """Put all data of a model on every device; devices of one processor share the memory of one copy."""
    mesh = _mesh()
    if mesh is None:
        return args
    where = NamedSharding(mesh, PartitionSpec())

    def place(leaf: Any) -> Any:
        return jax.device_put(_aligned(leaf), where) if hasattr(leaf, "shape") else leaf

    def one(arg: Any) -> Any:
        if hasattr(arg, "shape") and np.ndim(arg):
            return Spread(place(arg), len(arg))
        return jax.tree.map(place, arg)

    return tuple(map(one, args))


def _aligned(leaf: Any) -> np.ndarray:
    """Return an array that is aligned so that XLA uses its memory instead of a copy for each device."""
    given = np.asarray(leaf, jax.typeof(leaf).dtype)
    if not given.size or (given.ctypes.data % _LINE == 0 and given.flags.c_contiguous):
        return given
    memory = np.empty(given.nbytes + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    copy = memory[start:][: given.nbytes].view(given.dtype).reshape(given.shape)
    copy[...] = given
    return copy


def is_spread(args: Any) -> bool:
    """Return whether some table among the arguments of a program is `Spread`."""
    return any(isinstance(leaf, Spread) for leaf in _leaves(args))


def whole(program: Callable) -> Callable:
    """Make a function that takes `Spread` tables, and passes them to `program` as arrays."""

    def unwrapped(*args: Any) -> Any:
        return program(*jax.tree.map(_table, args, is_leaf=_is_spread))

    return unwrapped


def divided(args: Any) -> AbstractContextManager:
    """Return the context for tracing a program whose arguments may be `Spread`."""
    mesh = _mesh() if is_spread(args) else None
    return nullcontext() if mesh is None else jax.set_mesh(mesh)


def replicated(args: Any) -> NamedSharding | None:
    """Return the sharding of results of a program: whole on every device; None if no argument is `Spread`."""
    mesh = _mesh() if is_spread(args) else None
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())


def on_devices(args: Any) -> Any:
    """Put arguments of a program on the devices that share its `Spread` tables.

    Without such tables they stay where they are: a call passes small arrays of the host to JAX's device
    faster than they are put there beforehand.
    """
    where = replicated(args)
    if where is None:
        return args

    def place(leaf: Any) -> Any:
        if _is_spread(leaf) or getattr(leaf, "sharding", None) == where:
            return leaf
        value = np.asarray(leaf, jax.typeof(leaf).dtype)
        # unlike `device_put`, this does not check that other processes have the same value
        return jax.make_array_from_callback(value.shape, where, value.__getitem__)

    return jax.tree.map(place, args, is_leaf=_is_spread)


def _table(leaf: Any) -> Any:
    return leaf.table[: leaf.num_rows] if isinstance(leaf, Spread) else leaf


def _is_spread(leaf: Any) -> bool:
    return isinstance(leaf, Spread)


def _leaves(args: Any) -> list:
    return jax.tree.leaves(args, is_leaf=_is_spread)
