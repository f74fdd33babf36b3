"""Classes as users name them, and their numbers."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .arrays import name_array, refuse_unwritable
from .warnings import warn_user

__all__ = [
    "check_class_names",
    "class_codes",
    "class_indices",
    "named_classes",
    "refuse_plus_minus",
    "warn_of_marks",
]

_MARKS = {"?", "-", "--", ".", "*", "unknown", "missing", "na", "n/a", "nan", "null", "<na>"}
"""What often stands for a value that is missing, in small letters."""


def check_class_names(names: Sequence[Any] | None) -> tuple[str, ...] | None:
    """Names of classes as text.

    Raises
    ------
    ValueError
        If a name repeats, or no file could hold one.
    """
    if names is None:
        return None
    found = tuple(map(str, names))
    refuse_unwritable("names of classes", found)
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise ValueError(f"names of classes repeat {twice[:5]}; give every class a name of its own")
    return found


def refuse_plus_minus(name: str, values: Any) -> None:
    """Refuse classes that are -1 and 1 only, of which nobody can tell whether -1 is a class."""
    found = pd.unique(np.asarray(values, object).ravel())
    if set(found[~pd.isna(found)].tolist()) == {-1, 1}:
        raise ValueError(
            f"{name} holds -1 and 1 only, and -1 stands for a class that is not known; number the "
            "classes from 0, with NaN where they are not known"
        )


def class_indices(
    values: NDArray, names: tuple[str, ...] | None
) -> tuple[NDArray[np.int64], tuple[str, ...] | None]:
    """Class indices of named classes, -1 where a class is not known, and the names.

    Parameters
    ----------
    values : ndarray of str or object, shape (num_points,)
        Objects that are all numbers are indices already.
    names : tuple of str, or None
        None numbers the classes in sorted order.

    Raises
    ------
    TypeError, ValueError
        See `named_classes`, except that no class need be known; or if a class is not among `names`.
    """
    codes, found = _codes_and_names(values, "labels")
    if not len(found):
        return codes, names
    warn_of_marks("the column of classes", codes, found)
    if found.dtype.kind in "iuf":
        return np.where(codes < 0, -1, found.astype(np.int64)[codes]), names
    own = check_class_names(found.tolist())
    assert own is not None
    if names is None:
        return codes, own
    strange = [name for name in own if name not in names]
    if strange:
        raise ValueError(f"labels have the classes {strange[:5]}, which are not in names")
    place = np.array([names.index(name) for name in own])
    return np.where(codes < 0, -1, place[codes]), names


def class_codes(values: Any, name: str = "labels") -> NDArray[np.int64]:
    """Classes numbered from 0 in sorted order; -1 where a class is not known. See `named_classes`."""
    return named_classes(values, name)[0]


def named_classes(values: Any, name: str = "labels") -> tuple[NDArray[np.int64], NDArray]:
    """Classes numbered from 0 in sorted order, -1 where a class is not known, and their names.

    Parameters
    ----------
    values : array_like, shape (num_points,)
        Names or whole numbers. Not known are -1, NaN, None, what is masked, and text that is blank;
        beside names also the text "-1", which NumPy makes of -1, unless all names are whole numbers.
    name : str
        Of the argument, for messages.

    Returns
    -------
    ndarray of int, shape (num_points,)
    ndarray, shape (num_classes,)

    Raises
    ------
    TypeError
        If names are mixed with something else, or there are neither names nor numbers.
    ValueError
        On another shape, numbers that are not whole, if no class is known, or if -1 and 1 are the
        only values: then nobody can tell whether -1 is a class.
    """
    codes, names = _codes_and_names(values, name)
    if not len(names):
        raise ValueError(f"{name} names no class of any point; name the classes of some")
    return codes, names


def _codes_and_names(values: Any, name: str) -> tuple[NDArray[np.int64], NDArray]:
    """See `named_classes`; there are no names where no class is known."""
    known = ~np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else True
    array = name_array(name, np.ma.getdata(values) if isinstance(known, np.ndarray) else values)
    if array.ndim != 1:
        raise ValueError(
            f"{name} has shape {array.shape}, expected one class per point, (num_points,)"
        )
    if array.dtype.kind == "c":
        raise TypeError(f"{name} holds complex numbers; give whole numbers or names")
    known = known & ~pd.isna(array)
    if array.dtype.kind in "OUST":
        known &= ~_unknown_text(array, known)
    found = pd.Series(array[known]).infer_objects()
    if pd.api.types.is_numeric_dtype(found) and found.dtype != bool:
        numbers = found.to_numpy(float)
        broken = ~np.isfinite(numbers) | (numbers != np.round(numbers))
        if broken.any():
            row = int(np.flatnonzero(known)[np.argmax(broken)])
            raise ValueError(
                f"{name}[{row}] = {array[row]} is no class; give whole numbers or names"
            )
        refuse_plus_minus(name, numbers)
        known[known] = numbers != -1
        found = found[numbers != -1]
    if len(found) and found.dtype == object:
        _refuse_mixed(name, found.set_axis(np.flatnonzero(known)))
    out = np.full(len(array), -1, np.int64)
    out[known], names = pd.factorize(found, sort=True)
    return out, np.asarray(names)


def _refuse_mixed(name: str, found: pd.Series) -> None:
    """Refuse names beside something else; the index of the series has the rows."""
    text = np.array([isinstance(value, str) for value in found], bool)
    odd = (text != text[0]) | [not np.isscalar(value) for value in found]
    if odd.any():
        shown = found.iloc[sorted({0, int(np.argmax(odd))})]
        told = " and ".join(f"{value!r} in row {row}" for row, value in shown.items())
        raise TypeError(
            f"{name} mixes names with other things, {told} (from 0 on); give names or whole numbers "
            "throughout"
        )


def _is_mark(value: Any, others: Collection[Any]) -> bool:
    """Whether a name among others looks like the mark of a missing value; "-" beside "+" is a class."""
    return (
        isinstance(value, str)
        and (value == "None" or value.strip().lower() in _MARKS)
        and not (value.strip() == "-" and "+" in others)
    )


def warn_of_marks(name: str, codes: NDArray[np.int64], names: Sequence[Any] | NDArray) -> None:
    """Warn of classes that are called like a missing value, such as "?"; they stay classes.

    Parameters
    ----------
    name : str
        What holds the classes, for messages.
    codes, names : ndarray
        See `named_classes`.
    """
    given = list(names)
    counts = np.bincount(codes[codes >= 0], minlength=len(given)).tolist()
    marks = [
        f"{one!r} in {number} of {len(codes)} rows"
        for one, number in zip(given, counts, strict=True)
        if number and _is_mark(one, given)
    ]
    if marks:
        warn_user(
            f"{name} holds {' and '.join(marks)}, which is read as the name of a class; where it means that "
            "the class is not known, leave the entry blank or write -1 in its place"
        )


def _unknown_text(array: NDArray, known: NDArray) -> NDArray[np.bool_]:
    """Which entries of text say that a class is not known."""
    text = np.array([v.strip() if isinstance(v, str) else None for v in array], object)
    named = [v for v, own in zip(text, known, strict=True) if own and v not in (None, "", "-1")]
    unknown: NDArray[np.bool_] = text == ""
    if any(not re.fullmatch(r"[+-]?\d+", name) for name in named):  # of which -1 is not one
        unknown |= text == "-1"
        unknown |= [isinstance(v, int | float | np.number) and v == -1 for v in array]
    return unknown
