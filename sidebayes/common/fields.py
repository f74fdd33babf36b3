"""Validates the fields of a configuration, as their types declare, when it is made.

A field says so in its annotation: ``max_steps: Count``, ``tol: NonNegative``, ``kernel: Annotated[str,
OneOf(("hmc", "random_walk"))]``. `check_fields`, called by ``__post_init__``, refuses everything else.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from functools import cache
from numbers import Integral
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from .arrays import is_traced
from .magnitudes import shown

__all__ = [
    "Count",
    "NonNegative",
    "OneOf",
    "Positive",
    "Range",
    "Share",
    "Whole",
    "check_fields",
    "check_integer",
    "check_number",
    "check_seed",
    "rebuilt",
]


@dataclass(frozen=True)
class Range:
    """Finite numbers between bounds; `least` and `most` are included, `above` and `below` are not."""

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        """Whether a number lies within; NaN and infinity never do."""
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        """The bounds, to follow the word "number"."""
        if math.isfinite(self.above) and math.isfinite(self.below):
            return f"between {self.above} and {self.below}"
        if math.isfinite(self.least) and math.isfinite(self.most):
            return f"in [{self.least}, {self.most}]"
        if math.isfinite(self.above) and math.isfinite(self.most):
            return f"above {self.above} and at most {self.most}"
        bounds = ((">=", self.least), (">", self.above), ("<=", self.most), ("<", self.below))
        shown = ((sign, bound) for sign, bound in bounds if math.isfinite(bound))
        return " and ".join(f"{sign} {_short(bound)}" for sign, bound in shown)


@dataclass(frozen=True)
class OneOf:
    """Some names."""

    names: Collection[str]

    def __contains__(self, value: str) -> bool:
        """Whether a text is among the names."""
        return value in self.names

    def __str__(self) -> str:
        """The names."""
        return f"one of {list(self.names)}"


Count = Annotated[int, Range(least=1, below=2**31)]
Whole = Annotated[int, Range(least=0, below=2**63)]
NonNegative = Annotated[float, Range(least=0)]
Positive = Annotated[float, Range(above=0)]
Share = Annotated[float, Range(above=0, below=1)]


def check_fields(config: Any) -> None:
    """Check the fields of a data class against their annotations, and give them the types declared.

    Integers stand for floats, lists for tuples, and arrays of no axes and NumPy's scalars for Python's
    values. Fields of other types than numbers, truth values, text, and tuples of these are left alone.

    Parameters
    ----------
    config : data class, which may be frozen

    Raises
    ------
    ValueError
        Naming the field, its value and what is expected.
    """
    kind: Any = type(config)
    for name, hint in _declared(kind).items():
        value = getattr(config, name)
        try:
            object.__setattr__(config, name, _read(value, hint))
        except _Unfit:
            raise ValueError(
                f"{kind.__name__}({name}={shown(value)}): expected {_wanted(hint)}"
            ) from None


def _short(bound: float) -> str:
    """A number, large ones as powers of two."""
    power = int(math.log2(bound)) if bound > 2**30 else 0
    return f"2^{power}" if bound == 2**power and power else str(bound)


def check_integer(name: str, value: Any, least: int = 1, below: int = 2**31) -> int:
    """Check an integer argument, which may be NumPy's.

    Raises
    ------
    ValueError
        Naming the argument, its value and what is expected.
    """
    bounds = Range(least=least, below=below)
    try:
        return int(_read(value, Annotated[int, bounds]))
    except _Unfit:
        huge = isinstance(value, Integral) and int(value) >= below
        wanted = bounds if huge else Range(least=least)
        raise ValueError(f"{name} = {shown(value)}; expected an integer {wanted}") from None


def check_seed(seed: Any) -> int:
    """Check a seed of random numbers."""
    return check_integer("seed", seed, 0, 2**63)


def check_number(name: str, value: Any, bounds: Range) -> float:
    """Check a number argument, which may be NumPy's; see `check_integer`.

    One number that a model samples or computes is taken as it is.
    """
    try:
        found = _read(value, Annotated[float, bounds])
        return found if is_traced(found) else float(found)
    except _Unfit:
        wanted = f"a finite number {bounds}".rstrip()
        raise ValueError(f"{name} = {shown(value)}; expected {wanted}") from None


class _Unfit(Exception):
    """A value that its field does not take."""


@cache
def _declared(kind: type) -> dict[str, Any]:
    """Annotation of each field."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # of a user's class that names what only a function knows
        return {}
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def _read(value: Any, hint: Any) -> Any:
    """The value in the type that the annotation names."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found = _read(value, args[0])
        known = not is_traced(found)
        if known and isinstance(args[1], Range | OneOf) and found not in args[1]:
            raise _Unfit
        return found
    if origin in (Union, UnionType):
        return _read_any(value, args)
    if origin is Literal:
        if not any(type(value) is type(one) and value == one for one in args):
            raise _Unfit
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _Unfit
        return tuple(_read(one, args[0]) for one in value)
    if hint not in _TAKEN or (hint is float and is_traced(value) and np.shape(value) == ()):
        return value
    if getattr(value, "shape", None) == () and not is_traced(value):
        value = np.asarray(value)[()]  # of an array, NumPy's or JAX's
    if isinstance(value, bool | np.bool_) and hint in (int, float):
        raise _Unfit
    if not isinstance(value, _TAKEN[hint]):
        raise _Unfit
    try:
        return None if hint is NoneType else hint(value)
    except OverflowError:  # an integer beyond all floats
        raise _Unfit from None


def _read_any(value: Any, hints: tuple[Any, ...]) -> Any:
    for hint in hints:
        try:
            return _read(value, hint)
        except _Unfit:
            continue
    raise _Unfit


_TAKEN: dict[type, tuple[type, ...]] = {
    bool: (bool, np.bool_),
    int: (int, np.integer),
    float: (int, float, np.integer, np.floating),
    str: (str,),
    NoneType: (NoneType,),
}
"""Types of the values that stand for a type."""

_WORDS = {bool: "True or False", str: "text", NoneType: "None"}


def _wanted(hint: Any, plural: str = "") -> str:
    """What an annotation admits, in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_wanted(one) for one in args)
    if origin is Literal:
        return str(OneOf(args))
    if origin is tuple:
        return _wanted(args[0], plural="s")
    bounds = ""
    if origin is Annotated:
        hint = args[0]
        if isinstance(args[1], OneOf):
            return str(args[1])
        if isinstance(args[1], Range):
            bounds = f" {args[1]}"
    if hint in (int, float):
        article, whole = ("" if plural else "a "), (" (an integer)" if hint is int else "")
        finite = "finite " if hint is float else ""
        return f"{article}{finite}number{plural}{bounds}{whole}"
    return "names" if plural else _WORDS.get(hint, str(hint))


def rebuilt[Value](kind: type[Value], values: Iterable[Any]) -> Value:
    """Frozen dataclass of these values, in the order of its fields and without any check.

    For ``tree_unflatten``: JAX also passes placeholders, which no check would admit.
    """
    value = object.__new__(kind)
    for field, content in zip(fields(kind), values, strict=True):  # type: ignore[arg-type]
        object.__setattr__(value, field.name, content)
    return value
