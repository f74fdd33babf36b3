"""Numbers that are too large, too close to one another, or too far from all others to compute with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .columns import ColumnsError
from .warnings import warn_user

__all__ = [
    "check_precision",
    "counted",
    "far_rows",
    "listed",
    "refuse_huge",
    "refuse_tiny",
    "shown",
    "warn_of_far_rows",
    "warn_of_other_units",
]

_MOST_SHOWN = 60
"""Largest number of characters of a value in a message."""

_LEVELS = 256
"""Steps between the least and the largest value of a column that its floating-point type must resolve."""

_FAR = 1000
"""Interquartile ranges from the median beyond which one value outweighs all others in a column's spread."""

_ENOUGH = 10_000
"""Rows that suffice to estimate the quartiles of a column."""

_FEWEST = 5
"""Number of new values whose median says where the column as a whole lies."""

_MARGIN = 0.1
"""Distance from the fitted range of a column, in widths of it, from which a median lies elsewhere."""


def refuse_huge(
    name: str,
    values: NDArray,
    dtype: str = "float64",
    numbers: NDArray[np.int64] | None = None,
    place: Callable[[int], str] = str,
) -> None:
    """Refuse finite numbers whose squares, or sums of these, overflow.

    Parameters
    ----------
    name : str
        Of the argument, for messages.
    values : ndarray
    dtype : {"float64", "float32"}
    numbers : ndarray of int, shape (num_rows,), optional
        Of the rows, where they are some of a larger table.
    place : callable
        What to call a row, by its number in that table.

    Raises
    ------
    ValueError
        Naming the rows.
    """
    if values.dtype.kind == "b":
        return
    most = np.sqrt(np.finfo(dtype).max) * 1e-4
    above, below = (f.reduce(values, axis=None, initial=0.0) for f in (np.fmax, np.fmin))
    if max(above, -below) <= most:  # of the values that are not missing
        return
    flat = values.reshape(len(values), -1)
    rows = np.flatnonzero((np.abs(flat) > most).any(axis=1))
    largest = flat[rows[0]][np.argmax(np.abs(flat[rows[0]]))]
    row, many = rows[0], f"and {len(rows)} of {len(values)} rows have numbers"
    if numbers is not None:
        row, many = place(int(numbers[row])), "one of the numbers"
    raise ValueError(
        f"{name} holds {largest:.3g} in row {row}, {many} beyond {most:.0e}, whose squares overflow in "
        f"{dtype}; correct or drop such rows, or give {name} in larger units"
    )


def refuse_tiny(name: str, values: NDArray) -> None:
    """Refuse rows that differ, but so little that squares of all differences underflow.

    Raises
    ------
    ValueError
        Naming the largest difference.
    """
    width = float(np.ptp(values, axis=0).max())
    if 0 < width < _least_width("float64"):
        raise _too_near(name, "", width, "float64")


def check_precision(
    name: str, values: NDArray, dtype: str, numbers: NDArray[np.int64] | None = None
) -> None:
    """Refuse a table with columns that a floating-point type rounds to a few values, or to none.

    Parameters
    ----------
    name : str
        Of the argument, for messages.
    values : ndarray
        Numbers, NaN where one is missing; columns are along the last axis, if there are several axes.
    dtype : {"float64", "float32"}
        Type in which they will be computed with. What they were given in counts as well.
    numbers : ndarray of int, optional
        See `refuse_huge`.

    Raises
    ------
    ValueError
        Naming the columns.
    """
    refuse_huge(name, values, dtype, numbers)
    columns = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values[:, None]
    least, most = (f.reduce(columns, axis=0).astype(float) for f in (np.fmin, np.fmax))
    size, width = np.maximum(np.abs(least), np.abs(most)), most - least
    tiny = np.flatnonzero((width > 0) & (width < _least_width(dtype)))
    if len(tiny):
        raise _too_near(name, f" in column {listed(tiny)}", width[tiny[0]], dtype)
    given = values.dtype if values.dtype.kind == "f" else np.dtype(float)
    coarse = max((np.dtype(dtype), given), key=lambda one: np.finfo(one).eps)
    step = np.finfo(coarse).eps * size
    bad = np.flatnonzero((width > 0) & (step * _LEVELS > width))
    if len(bad):
        first = bad[0]
        finer = "" if coarse == np.dtype(float) else ", or use float64 from the start"
        near = f"{name} has values near {size[first]:.3g} that differ by {width[first]:.3g} at most in column"
        remedy = (
            f"{coarse} rounds them to steps of {step[first]:.2g}. Subtract an offset, "
            f"{name} - {name}.mean(axis=0), before they are rounded{finer}"
        )
        raise ColumnsError(lambda names: f"{near} {_columns(bad, names)}; {remedy}")


def _columns(numbers: NDArray, names: Sequence[str] | None) -> str:
    """Columns by name, or by number where they have no names."""
    return listed(numbers if names is None else [repr(names[n]) for n in numbers])


def _too_near(name: str, where: str, width: float, dtype: str) -> ValueError:
    return ValueError(
        f"{name} has values that differ by {width:.3g} at most{where}, whose squares are zero in {dtype}; "
        f"give {name} in smaller units"
    )


def _least_width(dtype: str) -> float:
    """Range of a column whose squares are safely above the smallest number."""
    return float(np.sqrt(np.finfo(dtype).tiny)) * 1e4


def warn_of_far_rows(
    name: str,
    values: NDArray,
    reference: NDArray | None = None,
    numbers: NDArray[np.int64] | None = None,
    *,
    frames: NDArray[np.int64] | None = None,
    reference_frames: NDArray[np.int64] | None = None,
    by_length: bool = False,
    names: Sequence[str] | None = None,
    are_new: bool = False,
) -> None:
    """Warn of rows that lie further from all others than measurements do, such as fill values.

    Parameters
    ----------
    name : str
        Of the argument, for messages.
    values : ndarray
        Numbers, NaN where one is missing; rows are along the first axis.
    reference : ndarray, optional
        Rows that they should be like, such as those that were fitted; themselves by default.
    numbers : ndarray of int, shape (num_rows,), optional
        Of the rows, in their order by default.
    frames, reference_frames : ndarray of int, shape (num_rows,), optional
        Number of the frame of each row, whose place and unit do not count.
    by_length : bool
        Look at the lengths of the rows, and not at single values.
    names : sequence of str, optional
        Of the columns.
    are_new : bool
        Whether rows are to be predicted, and were not fitted.
    """
    if values.dtype.kind == "b":
        return
    if by_length:
        known = None if reference is None else _lengths(reference)
        of = f"the length of the rows of {name}"
        warn_of_far_rows(of, _lengths(values), known, numbers, are_new=are_new)
        return
    flat = _in_frames(values.reshape(len(values), -1), frames)
    known = flat
    if reference is not None:
        known = _in_frames(reference.reshape(len(reference), -1), reference_frames)
    rows, columns = far_rows(flat, known)
    if not len(rows):
        return
    column = f" in column {_columns(columns[:1], names)}" if values.ndim > 1 else ""
    first = values.reshape(flat.shape)[rows[0], columns[0]]
    named = np.unique(rows if numbers is None else numbers[rows])
    does = "Such a value decides means and spreads almost alone"
    if are_new:
        does = "The fit has seen nothing like it, and its predictions there are extrapolations"
    warn_user(
        f"{name} has values more than {_FAR:,} interquartile ranges away from the median, in row "
        f"{listed(named)}; the first is {first:.3g}{column}. {does}. "
        "If it is a slip or stands for a missing value, "
        "correct it, drop the row or impute it; if it is right, consider logarithms"
    )


def warn_of_other_units(
    name: str, new: NDArray, fitted: NDArray, names: Sequence[str] | None = None
) -> None:
    """Warn of columns of new rows whose median lies outside the range of the rows that were fitted.

    Parameters
    ----------
    name : str
        Of the argument, for messages.
    new, fitted : ndarray, shape (num_rows, num_columns)
        Numbers, NaN where one is missing.
    names : sequence of str, optional
        Of the columns.
    """
    if new.dtype.kind == "b" or len(new) < _FEWEST or not len(fitted):
        return
    least, largest = (f.reduce(fitted, axis=0) for f in (np.fmin, np.fmax))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns in which all values are missing
        middle = np.nanmedian(new[:: -(-len(new) // _ENOUGH)], axis=0)
    room = _MARGIN * (largest - least) + 1e-6 * np.maximum(np.abs(least), np.abs(largest))
    apart = (middle < least - room) | (middle > largest + room)
    (columns,) = np.nonzero(apart & ((~np.isnan(new)).sum(axis=0) >= _FEWEST))
    if len(columns):
        first = columns[0]
        warn_user(
            "the median of the new rows lies outside the range of the fitted rows in "
            f"column{'s' * (len(columns) > 1)} {_columns(columns, names)} of {name}; in the first it is "
            f"{middle[first]:.3g}, and the fitted range is {least[first]:.3g} to {largest[first]:.3g}. If "
            "these rows are in other units, or were not centred and scaled as the fitted ones, bring them to "
            "the same; if they are right, predictions for them are extrapolations"
        )


def far_rows(
    values: NDArray, reference: NDArray | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of values that lie further from the median than measurements do.

    Parameters
    ----------
    values : ndarray, shape (num_rows, num_columns)
        Numbers, NaN where one is missing.
    reference : ndarray, shape (num_others, num_columns), optional
        Rows that they should be like; themselves by default.
    """
    known = values if reference is None else reference
    some = known[:: -(-len(known) // _ENOUGH)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns in which all values are missing
        low, middle, high = np.nanpercentile(some, (25, 50, 75), axis=0)
    most = np.where(high > low, _FAR * (high - low), np.inf)
    largest, least = (f.reduce(values, axis=0) for f in (np.fmax, np.fmin))
    if not ((largest - middle > most) | (middle - least > most)).any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.nonzero(np.abs(values - middle) > most)


def _lengths(rows: NDArray) -> NDArray:
    return np.sqrt(np.square(rows.reshape(len(rows), -1)).sum(axis=1))


def _in_frames(rows: NDArray, frames: NDArray[np.int64] | None) -> NDArray:
    """Rows less the median of their frame, in units of the median distance from there."""
    if frames is None:
        return rows
    table = pd.DataFrame(rows)
    apart = table - table.groupby(frames).transform("median")
    distance = pd.Series(np.sqrt(np.square(apart).sum(axis=1)))
    unit = distance.groupby(frames).transform("median")
    return apart.div(unit.where(unit > 0, 1.0), axis=0).to_numpy()


def counted(number: int | np.integer, what: str) -> str:
    """A number of things, such as "1 link" and "2 links"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def listed(items: Sequence[int] | Sequence[str] | NDArray) -> str:
    """The first five of some numbers or names, for messages."""
    return ", ".join(map(str, items[:5])) + (", ..." if len(items) > 5 else "")


def shown(value: Any) -> str:
    """Text of a value in messages: its beginning if it is long, its type if it has no text of its own."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    text = " ".join(repr(value).split())
    if text.startswith("<") and text.endswith(">"):
        return f"<{type(value).__name__}>"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
