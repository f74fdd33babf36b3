"""What a value is: one form for programs in memory, programs on disk and checkpoints of runs.

`freeze` gives a value that can be compared and hashed in this process; `written` the same as text that
means the same in every process, where the value has such a name.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import Transform

from ..base import Problem

__all__ = ["NamelessError", "digest", "freeze", "structure", "written"]

_KNOWN = ("sidebayes", "numpyro", "jax", "jaxlib", "numpy", "builtins")
"""Packages whose code is known by its name and their versions."""

_LONG = 64
"""Bytes from which on an array is written as its digest."""


class NamelessError(Exception):
    """Part of a value has no name that means the same in another process; the message shows it."""


def structure(problem: Problem) -> Hashable:
    """What a problem is apart from its data, as a value that can be compared."""
    return freeze((problem.model, problem.kwargs))


def freeze(value: Any) -> Hashable:
    """Value that equals another's where the two mean the same; unhashable objects go by identity."""
    if isinstance(value, Mapping):
        return ("mapping", *sorted((str(name), freeze(item)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value), *map(freeze, value))
    if isinstance(value, functools.partial):
        return ("partial", value.func, freeze(value.args), freeze(value.keywords))
    if isinstance(value, np.ndarray | jax.Array):
        array = np.asarray(value)
        return ("array", array.shape, array.dtype.str, array.tobytes())
    if isinstance(value, dist.Distribution):
        # by name: NumPyro flattens a distribution in an order that differs between processes
        names = {*value.gather_pytree_data_fields(), *value.gather_pytree_aux_fields()}
        fields_of = ((name, freeze(getattr(value, name, None))) for name in sorted(names))
        return ("distribution", type(value), *fields_of)
    if isinstance(value, Transform | Constraint):
        return (type(value), freeze(value.tree_flatten()))
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value), *(freeze(getattr(value, field.name)) for field in fields(value)))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return (type(value), value)


def written(frozen: Hashable, *, own_code: bool = False) -> str:
    """Text of what `freeze` made, the same in every process.

    Parameters
    ----------
    frozen : hashable
    own_code : bool
        Whether functions and classes of the user go by their names and code. Else they are nameless:
        what they call may have changed, which a name does not show.

    Raises
    ------
    NamelessError
        If part of the value has no name that means the same elsewhere.
    """
    if type(frozen) is tuple:
        if frozen[:1] == ("object",):
            raise NamelessError("an object that cannot be hashed")
        return f"({','.join(written(item, own_code=own_code) for item in frozen)})"
    if type(frozen) is bytes and len(frozen) > _LONG:
        return hashlib.sha256(frozen).hexdigest()
    if frozen is None or type(frozen) in (str, bytes, bool, int, float, complex):
        return repr(frozen)
    if isinstance(frozen, np.generic):
        return f"{frozen.dtype.str} {frozen!r}"
    if isinstance(frozen, np.dtype | jax.core.ShapedArray):
        return str(frozen)
    if isinstance(frozen, jax.tree_util.PyTreeDef):
        text = str(frozen)
        if " at 0x" in text or "..." in text:
            raise NamelessError(text)
        return text
    return _name(frozen, own_code)


def digest(*parts: str) -> str:
    """SHA-256 of several texts."""
    told = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        told.update(len(encoded).to_bytes(8, "big"))
        told.update(encoded)
    return told.hexdigest()


def _name(value: Any, own_code: bool) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module is None or name is None:
        raise NamelessError(repr(value))
    if module.split(".")[0] in _KNOWN:
        # a bound method or a wrapped function bears a name that leads to something else
        if not (module == "builtins" and isinstance(value, type)) and (
            _find(module, name) is not value
        ):
            raise NamelessError(repr(value))
    elif not own_code or not isinstance(value, type | types.FunctionType):
        raise NamelessError(repr(value))
    elif isinstance(value, types.FunctionType):
        return f"{module}.{name} {_told(value)}"
    return f"{module}.{name}"


def _told(function: types.FunctionType) -> str:
    """What a function of the user does: its code, defaults and what it closes over."""
    cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
    given = function.__defaults__, function.__kwdefaults__, cells
    return digest(_code(function.__code__), written(freeze(given), own_code=True))


def _code(code: types.CodeType) -> str:
    inner = [
        _code(item) if isinstance(item, types.CodeType) else repr(item) for item in code.co_consts
    ]
    return digest(code.co_code.hex(), repr(code.co_names), repr(code.co_varnames), *inner)


def _find(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
