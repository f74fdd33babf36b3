"""Columns of few different values, for which a normal density is wrong: what they are taken for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kinds import Columns

__all__ = ["check_levels", "kinds_of_columns", "levels_of", "say_levels"]

_ROUNDING = 1e-8
"""Difference of values, relative to their range, that is rounding."""

_FEW = 5
"""Different values of a column, and the known values for each of them, with which it is levels."""

_GLANCE = 1000
"""Rows that are looked at first."""


def levels_of(column: NDArray) -> tuple[float, ...]:
    """Different values of a column if they are levels: at most five, of five rows each on average, or two.

    Parameters
    ----------
    column : ndarray, shape (num_rows,)
        NaN where values are missing.

    Returns
    -------
    tuple of float
        Empty where it has more values, or one.
    """
    if len(_apart(column[:_GLANCE])) > _FEW:
        return ()
    values, known = _apart(column), int((~np.isnan(column)).sum())
    two = len(values) == 2 < known
    several = 2 < len(values) <= _FEW and known >= _FEW * len(values)
    return tuple(map(float, values)) if two or several else ()


def _apart(column: NDArray) -> NDArray:
    """Different values of a column, the first of those that differ by rounding alone."""
    values = np.unique(column[~np.isnan(column)])
    if len(values) < 2:
        return values
    return values[np.insert(np.diff(values) > _ROUNDING * np.ptp(values), 0, True)]


def kinds_of_columns(data: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Kinds of the columns of x where none are given: levels are categories, all else is normal.

    A column of two values, or of a few that each stand for many rows, has no least width to which a normal
    density could shrink. None where there is no such column, or where a prior of all columns as normal
    features is given.
    """
    x, prior = data.get("x"), options.get("prior", "empirical")
    if x is None or not isinstance(prior, str) or prior != "empirical":
        return None
    table = np.asarray(x, float)
    levels = [levels_of(column) for column in table.T]
    if not any(levels):
        return None
    return tuple(
        "category:" + ",".join(repr(v).removesuffix(".0") for v in own) if own else "normal"
        for own in levels
    )


def check_levels(kinds: Any, data: Mapping[str, Any]) -> None:
    """Refuse new rows with values that are none of those of their columns.

    Raises
    ------
    ValueError
        Naming the column and the value.
    """
    x = data.get("x")
    if kinds is None or isinstance(kinds, str) or x is None:
        return
    table = np.asarray(x, float)
    for kind in Columns.of(kinds, table.shape[1]).kinds:
        kind.check("x_new", table)


def say_levels(kinds: Any, names: Sequence[str]) -> str | None:
    """Which columns are categories of their values, in a sentence; None if there are none."""
    if kinds is None or isinstance(kinds, str):
        return None
    own = [name for name, kind in zip(names, kinds, strict=True) if "," in kind]
    if not own:
        return None
    shown = ", ".join(own[:5]) + ", ..." * (len(own) > 5)
    if len(own) == 1:
        return (
            f"column {shown} has few different values, and is taken for a category, since a normal density "
            "would be as narrow as it may be there; kinds='normal' takes it for normal"
        )
    return (
        f"columns {shown} have few different values, and are taken for categories, since normal densities "
        "would be as narrow as they may be there; kinds='normal' takes them for normal"
    )
