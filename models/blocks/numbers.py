"""Options that are made of numbers, which may be arguments of compiled programs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sidebayes.common.arrays import is_traced
from sidebayes.common.fields import rebuilt

__all__ = ["library_of", "pytree_of_numbers"]


def library_of(*values: Any) -> Any:
    """JAX's NumPy if a value is traced, else NumPy, which needs no compilation."""
    return jnp if any(map(is_traced, values)) else np


def pytree_of_numbers[Kind](kind: type[Kind]) -> type[Kind]:
    """Register a frozen data class as a pytree, so that programs take its numbers as arguments; see `Held`.

    Leaves are the fields that its constructor takes, with plain numbers as arrays; other fields are
    static. The constructor checks the values; they are not checked again when JAX replaces them.
    """
    given = {one.name: one.init for one in fields(kind)}  # type: ignore[arg-type]
    leaves, static = ([n for n in given if given[n] is kept] for kept in (True, False))

    def flatten(value: Kind) -> tuple[tuple, tuple]:
        numbers = tuple(_as_leaf(getattr(value, name)) for name in leaves)
        return numbers, tuple(getattr(value, name) for name in static)

    def unflatten(rest: tuple, numbers: tuple) -> Kind:
        found = dict(zip([*leaves, *static], [*numbers, *rest], strict=True))
        return rebuilt(kind, (found[name] for name in given))

    jax.tree_util.register_pytree_node(kind, flatten, unflatten)
    return kind


def _as_leaf(value: Any) -> Any:
    return np.asarray(value, float) if isinstance(value, int | float) else value
