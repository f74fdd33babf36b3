"""Options and settings of the command line, name=value."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

__all__ = ["read_pairs"]


def read_pairs(flag: str, texts: Sequence[str], owner: Any) -> dict[str, Any]:
    """Read name=value, each name once.

    Values are JSON where they can be, else text. Where the owner takes several, commas separate them, with
    or without brackets around them.

    Parameters
    ----------
    flag : str
    texts : sequence of str
    owner : callable
        Function or class whose annotations say which of its arguments take several values.

    Raises
    ------
    ValueError
        For what is no pair, or a name that is given twice.

    Examples
    --------
    >>> def model(*, names: Sequence[str], covariance: str = "full"): ...
    >>> read_pairs("option", ["names=a,b", "covariance=a,b"], model)
    {'names': ['a', 'b'], 'covariance': 'a,b'}
    """
    hints = get_type_hints(owner)
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"--{flag} {text!r}; expected name=value")
        if name in found:
            raise ValueError(f"--{flag} {name}=... is given twice; give it once")
        hint = hints.get(name)
        union = get_origin(hint) in (Union, UnionType)
        found[name] = _read(value, get_args(hint) if union else (hint,))
    return found


def _read(text: str, kinds: Sequence[Any]) -> Any:
    """A value of one of some types."""
    value = _plain(text)
    if not any(map(_holds_several, kinds)):
        return value
    inside = text.strip("[()] ")
    if isinstance(value, str) and ("," in inside or inside != text.strip()):
        return [_plain(one.strip().strip("'")) for one in inside.split(",")]
    alone = type(value) in (str, int, float) and type(value) not in kinds
    return [value] if alone and np.ndarray not in kinds else value


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _holds_several(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return (
        isinstance(origin, type)
        and issubclass(origin, Collection)
        and not issubclass(origin, str | Mapping)
    )
