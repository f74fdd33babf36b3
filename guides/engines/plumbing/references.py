"""References of a user's code to other objects, as far as they can be read from the code."""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["closed_over", "code_digest", "globals_of", "is_of_python", "members_of"]

_LIBRARY = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


def code_digest(code: types.CodeType) -> bytes:
    """SHA-256 of what a function does, independent of its name and place."""
    constants = [_constant(item) for item in code.co_consts]
    parts = code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants
    return hashlib.sha256(repr(parts).encode()).digest()


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return code_digest(value)
    # the order of sets differs between processes
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


def closed_over(function: types.FunctionType) -> list[Any]:
    """Return values of the enclosing variables that a function uses; None where one has no value yet."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            found.append(None)
    return found


def globals_of(function: types.FunctionType) -> dict[str, Any]:
    """Return values of the global names that a function of the user reads, and of those it reads in modules.

    Names that are looked up in another way, such as by ``globals()``, are not found.
    """
    if not _is_own(function.__module__):
        return {}
    read, attributes = _names(function.__code__)
    found = {name: function.__globals__[name] for name in read if name in function.__globals__}
    modules = [value for value in found.values() if _is_own_module(value)]
    for module in modules:  # grows as modules are found in modules
        inner = {each: vars(module)[each] for each in attributes if each in vars(module)}
        found |= {f"{module.__name__}.{each}": value for each, value in inner.items()}
        modules += [
            value for value in inner.values() if _is_own_module(value) and value not in modules
        ]
    return dict(sorted(found.items()))


def members_of(kind: type) -> list[dict[str, Any]]:
    """Return methods and values of a class of the user, and of its bases that are also the user's."""
    own = [item for item in kind.__mro__ if _is_own(item.__module__)]
    return [dict(_members(item)) for item in own]


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, types.FunctionType) or not name.startswith(("__", "_abc_")):
            yield name, value


def is_of_python(name: str) -> bool:
    """Return whether a module belongs to Python's library, and is no file of the user of the same name."""
    path = getattr(sys.modules.get(name), "__file__", None)
    return name.split(".")[0] in sys.stdlib_module_names and (
        path is None or path.startswith(_LIBRARY)
    )


def _is_own_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and _is_own(value.__name__)


def _is_own(name: str | None) -> bool:
    """Return whether a module is the user's: neither Python's nor installed."""
    if name is None or is_of_python(name):
        return False
    path = getattr(sys.modules.get(name), "__file__", None)
    return path is None or not {"site-packages", "dist-packages"} & {*Path(path).parts}


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return global names that a function reads, and names of attributes."""
    read, attributes = set(), set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            attributes.add(step.argval)
        elif isinstance(step.argval, types.CodeType):
            inner = _names(step.argval)
            read |= inner[0]
            attributes |= inner[1]
    return frozenset(read), frozenset(attributes)
