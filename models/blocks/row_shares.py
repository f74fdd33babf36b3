"""Division of rows, or of chunks of data, among the devices of a mesh.

`guides.engines.machine.shares` chooses that mesh. Without a mesh, everything here calls its
function once, with all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

__all__ = ["ROWS", "Turns", "in_turns", "map_rows", "sum_rows"]

ROWS = "rows"
"""Name of the axis of a mesh whose devices hold shares of the rows."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Turns:
    """Chunks of data that one device visits: the first of them, and every `step`-th from there on."""

    first: Any
    step: int = field(metadata={"static": True})

    def chunk(self, turn: Array) -> Array:
        """Number of the chunk that is visited in a turn."""
        return self.first + self.step * turn

    def number(self, num_chunks: Any) -> Any:
        """How many of `num_chunks` chunks this device visits."""
        return (num_chunks - self.first + self.step - 1) // self.step

    def most(self, num_chunks: int) -> int:
        """Maximum number of chunks that any one device visits."""
        return -(-num_chunks // self.step)

    def once(self, fn: Callable[[], Any]) -> Any:
        """The value of a function on the device that visits chunk 0; zeros on all others."""
        if self.step == 1:
            return fn()
        shapes = jax.eval_shape(fn)
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return lax.cond(self.first == 0, fn, lambda: blank)


def sum_rows(fn: Callable[..., Any], rows: Any, *shared: Any) -> Any:
    """Sum the values of a function over the shares of the rows.

    Parameters
    ----------
    fn : callable
        ``fn(rows, num_real, *shared)`` returns arrays whose sum over the shares is wanted; rows
        from `num_real` on are padding, and must not count.
    rows : pytree of Array
        All with the same number of rows.
    *shared : pytrees of Array
        Further arguments, the same for all shares.
    """
    number, total = _num_shares(), _num_rows(rows)
    if number == 1:
        return fn(rows, total, *shared)
    size = -(-total // number)

    def own(rows: Any, shared: tuple) -> Any:
        num_real = jnp.clip(total - lax.axis_index(ROWS) * size, 0, size)
        flat, unravel = ravel_pytree(fn(rows, num_real, *shared))
        return unravel(lax.psum(flat, ROWS))  # devices wait for one another once

    return _in_shares(own, PartitionSpec(), rows, size * number, shared)


def map_rows(fn: Callable[..., Any], rows: Any, *shared: Any) -> Any:
    """Apply a row-wise function ``fn(rows, *shared)``, which returns as many rows.

    Parameters
    ----------
    fn, rows, *shared
        As for `sum_rows`, but `fn` does not take `num_real`.
    """
    number, total = _num_shares(), _num_rows(rows)
    if number == 1:
        return fn(rows, *shared)
    padded = -(-total // number) * number
    found = _in_shares(lambda r, s: fn(r, *s), PartitionSpec(ROWS), rows, padded, shared)
    return jax.tree.map(lambda part: part[:total], found)


def in_turns(fn: Callable[..., tuple[Any, Any]], *shared: Any) -> tuple[Any, Any]:
    """Visit chunks of data that every device holds; the devices share the chunks among them.

    Parameters
    ----------
    fn : callable
        ``fn(turns, *shared)`` visits the chunks that `Turns` name. It returns arrays to be added
        up, and arrays with a leading axis of `Turns.most` chunks.
    *shared : pytrees of Array

    Returns
    -------
    sums : pytree
    kept : pytree
        In the order of the chunks; there may be spare chunks at the end.
    """
    number = _num_shares()
    if number == 1:
        return fn(Turns(0, 1), *shared)

    def own(*shared: Any) -> tuple[Any, Any]:
        sums, kept = fn(Turns(lax.axis_index(ROWS), number), *shared)
        return jax.tree.map(lambda part: lax.psum(part, ROWS), sums), kept

    out = PartitionSpec(), PartitionSpec(ROWS)
    run = jax.shard_map(own, in_specs=PartitionSpec(), out_specs=out, check_vma=False)
    sums, kept = run(*shared)

    def in_order(part: Any) -> Any:
        own = part.reshape(number, -1, *part.shape[1:])
        return jnp.swapaxes(own, 0, 1).reshape(part.shape)

    return sums, jax.tree.map(in_order, kept)


def _in_shares(fn: Callable, out: PartitionSpec, rows: Any, size: int, shared: tuple) -> Any:
    """Run a function on every device with its share of the rows, padded to a given number."""
    spare = size - _num_rows(rows)
    padded = jax.tree.map(lambda a: jnp.pad(a, [(0, spare), *[(0, 0)] * (a.ndim - 1)]), rows)
    specs = PartitionSpec(ROWS), PartitionSpec()
    return jax.shard_map(fn, in_specs=specs, out_specs=out, check_vma=False)(padded, shared)


def _num_shares() -> int:
    """Number of devices among which rows are divided here; one within a share."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape[ROWS] if ROWS in mesh.auto_axes else 1


def _num_rows(rows: ArrayLike) -> int:
    return len(jax.tree.leaves(rows)[0])
