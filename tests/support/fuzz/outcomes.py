"""What becomes of a call with odd values: refused in our own words, handled, or neither."""

from __future__ import annotations

import ast
import collections.abc
import inspect
import traceback
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import sidebayes as sb
from tests.support.fuzz.odd import with_fit

ROOT = Path(sb.__file__).resolve().parents[1]
REFUSALS = (ValueError, TypeError, OSError, ImportError, sb.FitError)


def outcome(name: str, call: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """How a call ends: one of four words, and why where that is a fault.

    "clear" is refused by the library in its own words, "unclear" any other error, "silent" a call that
    returned although its annotation does not admit an argument, and "handled" any other that returned.
    """
    given = {one: with_fit(value) for one, value in arguments.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sb.SideBayesWarning)
        try:
            call(**given)
        except REFUSALS as error:
            return "clear" if is_ours(error) else f"unclear: {type(error).__name__}: {error}"
        except Exception as error:
            return f"unclear: {type(error).__name__}: {error}"
    hints = declared(name, call)
    odd = [one for one, value in given.items() if not admits(hints.get(one, Any), value)]
    return f"silent: {odd[0]} = {given[odd[0]]!r:.60}" if odd else "handled"


def is_ours(error: Exception) -> bool:
    """Whether an error was raised by the library, in words of its own."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    path = Path(last.filename).resolve()
    inside = path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "tests")
    return inside and last.lineno in _refusing_lines(str(path))


@cache
def _refusing_lines(file: str) -> set[int]:
    """Lines of a file that belong to statements that raise."""
    tree = ast.parse(Path(file).read_text())
    spans = (
        (n.lineno, n.end_lineno or n.lineno) for n in ast.walk(tree) if isinstance(n, ast.Raise)
    )
    return {line for first, last in spans for line in range(first, last + 1)}


def declared(name: str, call: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of the arguments of a case, those of the model where it fits a card."""
    method = name.removeprefix("fit.")
    function = sb.CARDS[method].model if method in sb.CARDS and method != name else call
    if inspect.isclass(function):
        function = function.__init__
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}


def admits(hint: Any, value: Any) -> bool:
    """Whether a value is of the kind that an annotation names; data are the library's to convert."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        if any(isinstance(note, str) for note in args[1:]):
            return True
        return admits(args[0], value)
    if origin in (typing.Union, types.UnionType):
        return any(admits(one, value) for one in args)
    if origin is typing.Literal:
        return value in args
    if origin in (collections.abc.Sequence, tuple, list):
        return isinstance(value, list | tuple | np.ndarray | str)  # one name stands for several
    if origin is collections.abc.Callable:
        return callable(value)
    if hint is type(None):
        return value is None
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if hint in (int, float):
        whole = is_number and (isinstance(value, int) or float(value).is_integer())
        return whole if hint is int else is_number and value == value
    if hint in (str, bool):
        return isinstance(value, (str, np.str_) if hint is str else (bool, np.bool_))
    return True
