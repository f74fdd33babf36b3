"""Identity of values: one form for programs in memory, programs on disk and checkpoints.

`freeze` returns a value that can be compared and hashed in this process. `written` turns it into text that
means the same in every process, where the value has such a name. Two values have the same form only if a
model cannot tell them apart. The form of a user's code includes all that it refers to, and the form of an
object includes what it holds at the time.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import pickle
import sys
import threading
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpy.typing import NDArray
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import Transform

from ..base import Problem
from .references import closed_over, code_digest, globals_of, is_of_python, members_of

__all__ = ["NamelessError", "content", "digest", "freeze", "is_known", "structure", "written"]

_KNOWN = ("sidebayes", "numpyro", "jax", "jaxlib", "numpy")
"""Packages whose code is identified by its name and their versions, as Python's own is."""

_PLAIN = (type(None), type(...), bool, int, str, bytes)
_WRAPPERS = (property, staticmethod, classmethod)


class NamelessError(Exception):
    """Part of a value has no name that means the same in another process; the message shows it."""


class _Itself:
    """Wraps an object that equals no other, and keeps it alive as long as it may be compared."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def structure(problem: Problem) -> Hashable:
    """Return a problem without its data, as a value that can be compared."""
    return freeze((problem.model, dict(sorted(problem.kwargs.items()))))


def freeze(value: Any) -> Hashable:
    """Return a form of a value that equals another's only where the two mean the same."""
    return _freeze(value, {})


def _freeze(value: Any, seen: dict[int, Any]) -> Hashable:
    """Freeze a part of a value; `seen` holds objects met before by their ids, as objects may be cyclic."""
    frozen = functools.partial(_freeze, seen=seen)
    if type(value) in _PLAIN or isinstance(value, np.dtype):
        return (type(value), value)
    if type(value) in (float, complex):
        return (type(value), repr(value))  # -0.0 equals 0.0
    if type(value) is np.ndarray or isinstance(value, np.generic | jax.Array):
        return _array(value, frozen)
    if is_known(value):
        return _Itself(value)
    kind = frozen(type(value))
    if isinstance(value, Mapping):
        return (kind, *((frozen(name), frozen(item)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return (kind, *map(frozen, value), *_attributes(value, (), frozen))
    if isinstance(value, set | frozenset):
        return (kind, frozenset(map(frozen, value)))
    if isinstance(value, functools.partial):
        return (kind, frozen(value.func), frozen(value.args), frozen(value.keywords))
    if isinstance(value, types.MethodType):
        return (kind, frozen(value.__func__), frozen(value.__self__))
    if isinstance(value, _WRAPPERS):
        return (kind, frozen(value.fget if isinstance(value, property) else value.__func__))
    if isinstance(value, dist.Distribution):
        # sorted by name, as NumPyro flattens a distribution in an order that differs between processes
        names = {*value.gather_pytree_data_fields(), *value.gather_pytree_aux_fields()}
        return (kind, *_attributes(value, names, frozen))
    if isinstance(value, Transform | Constraint):
        return (kind, frozen(value.tree_flatten()), *_attributes(value, (), frozen))
    if is_dataclass(value) and not isinstance(value, type):
        return (kind, *_attributes(value, (field.name for field in fields(value)), frozen))
    if id(value) in seen:
        return ("seen", _Itself(value))
    seen[id(value)] = value
    return (kind, *_object(value, frozen))


def _array(value: Any, frozen: Callable) -> Hashable:
    if isinstance(value, jax.core.Tracer):
        return _Itself(value)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return ("key", str(jax.random.key_impl(value)), frozen(jax.random.key_data(value)))
    array = np.asarray(value)
    kind = type(value) if isinstance(value, np.generic) else np.ndarray
    weak = getattr(value, "weak_type", False)
    entries = array.tolist() if array.dtype.hasobject else hashlib.sha256(array.tobytes()).digest()
    return (kind, array.shape, repr(array.dtype), weak, frozen(entries))


def _attributes(value: Any, names: Iterable[str], frozen: Callable) -> tuple[Hashable, ...]:
    """Return named attributes, and everything else that an object of unknown class holds."""
    held = () if is_known(type(value)) else getattr(value, "__dict__", ())
    return tuple((name, frozen(getattr(value, name, None))) for name in sorted({*names, *held}))


def _object(value: Any, frozen: Callable) -> tuple[Hashable, ...]:
    """Freeze an object of no common kind, by identity and contents, or by its own definition of equality."""
    kind = type(value)
    if isinstance(value, types.ModuleType):
        return (_Itself(value),)
    if isinstance(value, contextvars.ContextVar | threading.local):  # the value in this thread
        own = vars(value) if isinstance(value, threading.local) else value.get(None)
        return (_Itself(value), frozen(own))
    if isinstance(value, types.FunctionType):
        given = value.__defaults__, value.__kwdefaults__, closed_over(value), vars(value)
        code = code_digest(value.__code__)
        return (_Itself(value), code, frozen(given), frozen(globals_of(value)))
    if isinstance(value, type):
        return (_Itself(value), frozen(value.__bases__), frozen(members_of(value)))
    if _is_wrapper(value):
        return (_Itself(value), frozen(value.__wrapped__))
    try:
        hash(value)
    except TypeError:
        return (_Itself(value), _pickled(value) or frozen(object.__getstate__(value)))
    if kind.__hash__ is not object.__hash__:
        return (value, *_attributes(value, (), frozen))
    return (_Itself(value), frozen(object.__getstate__(value)))


def _is_wrapper(value: Any) -> bool:
    """Return whether an object is a function that was compiled or whose results are cached."""
    return is_known(type(value)) and hasattr(value, "__wrapped__")


def _pickled(value: Any) -> bytes | None:
    try:
        return hashlib.sha256(pickle.dumps(value)).digest()
    except Exception:  # raised by the object's own code
        return None


def _is_known_module(name: str) -> bool:
    return name.split(".")[0] in _KNOWN or is_of_python(name)


def is_known(kind: Any) -> bool:
    """Return whether a function or class is found under its name in a package of known code."""
    module, name = getattr(kind, "__module__", None), getattr(kind, "__qualname__", None)
    if type(module) is not str or type(name) is not str or not _is_known_module(module):
        return False
    # a bound method or a wrapped function bears a name that leads to something else
    return (module == "builtins" and isinstance(kind, type)) or _find(module, name) is kind


def written(frozen: Hashable, *, own_code: bool = False) -> str:
    """Return the text of what `freeze` made; it is the same in every process.

    Parameters
    ----------
    frozen : hashable
    own_code : bool
        Whether functions and classes of the user are identified by their names and code. Otherwise, they
        are nameless, since they may look up what they call in a way that their code does not show.

    Raises
    ------
    NamelessError
        If part of the value has no name that means the same elsewhere.
    """
    if type(frozen) is tuple:
        return f"({','.join(written(item, own_code=own_code) for item in frozen)})"
    if type(frozen) is frozenset:
        return f"{{{','.join(sorted(written(item, own_code=own_code) for item in frozen))}}}"
    if type(frozen) in _PLAIN or type(frozen) in (float, complex):
        return repr(frozen)
    if isinstance(frozen, np.dtype | jax.core.ShapedArray):
        return str(frozen)
    if isinstance(frozen, jax.tree_util.PyTreeDef):
        text = str(frozen)
        if " at 0x" in text or "..." in text:
            raise NamelessError(text)
        return text
    return _name(frozen.value if isinstance(frozen, _Itself) else frozen, own_code)


def digest(*parts: str) -> str:
    """SHA-256 of several texts."""
    told = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        told.update(len(encoded).to_bytes(8, "big"))
        told.update(encoded)
    return told.hexdigest()


def content(array: NDArray) -> str:
    """Digest of an array's numbers in single precision, so that it does not depend on their precision."""
    values = np.ascontiguousarray(array, np.float32)
    return hashlib.sha256(repr(values.shape).encode() + values.tobytes()).hexdigest()


def _name(value: Any, own_code: bool) -> str:
    if isinstance(value, types.ModuleType):
        known, name = _is_known_module(value.__name__), value.__name__
    else:
        known = is_known(value)
        name = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}"
    named = isinstance(value, type | types.FunctionType | types.ModuleType) or _is_wrapper(value)
    if known or (own_code and named):
        return name
    raise NamelessError(repr(value))


def _find(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
