"""Columns of repeated measures that look like the clock by which subjects are followed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Measures", "clocks", "late_subjects"]

_MOST = 0.9
"""Share of the subjects whose rows must be in order of a column that need not be a clock."""

_ROUNDING = 1e-6
"""Of times, relative, in single precision."""


class Measures(NamedTuple):
    """Columns of repeated measures, and a time of each subject.

    Attributes
    ----------
    values : ndarray, shape (num_rows, num_columns)
    subjects : ndarray of int, shape (num_rows,)
        Subject of each row.
    time : ndarray, shape (num_subjects,)
    """

    values: NDArray
    subjects: NDArray[np.int64]
    time: NDArray


def late_subjects(
    fitted: Measures,
    names: Sequence[str] | None = None,
    *,
    of_effects: bool,
    new: Measures | None = None,
) -> Iterator[tuple[int, NDArray, NDArray]]:
    """Columns that may be the clock of the times, with which some subjects are measured after their time.

    Parameters
    ----------
    fitted : Measures
        With the times of the event or of the end of observation.
    names : sequence of str, optional
        Of the columns.
    of_effects : bool
        Whether columns are those of random effects: what these are of is the clock as a rule, while a column
        of fixed effects is one only where it increases along the rows of nearly every subject.
    new : Measures, optional
        Where to look for late measures, by default in the same rows.

    Yields
    ------
    column : int
    last : ndarray, shape (num_subjects,)
        Largest value of each subject.
    late : ndarray of int
        Subjects whose largest value is after their time.
    """
    found = clocks(*fitted, names, ordered=not of_effects)
    rows = fitted if new is None else new
    for number in found:
        last = np.full(len(rows.time), -np.inf)
        np.maximum.at(last, rows.subjects, rows.values[:, number])
        late = np.flatnonzero(last > rows.time * (1 + _ROUNDING))
        if late.size:
            yield number, last, late


def clocks(
    values: NDArray,
    subjects: NDArray[np.int64],
    time: NDArray,
    names: Sequence[str] | None = None,
    *,
    ordered: bool,
) -> list[int]:
    """Columns that may count time from the origin of `time`, by position.

    No value is negative, values differ, and for most subjects the first is before the event or the end of
    observation. Bases, interactions and indicators, as formulas name them, are none.

    Parameters
    ----------
    values : ndarray, shape (num_rows, num_columns)
    subjects : ndarray of int, shape (num_rows,)
        Subject of each row.
    time : ndarray, shape (num_subjects,)
        Of the event, or of the end of observation.
    names : sequence of str, optional
        Of the columns.
    ordered : bool
        Whether values must also increase along the rows of nearly every subject, zeros apart, as those of
        a covariate rarely do.
    """
    found = []
    for number, column in enumerate(np.asarray(values, float).T):
        if names is not None and re.search(r"[(\[]|:\S", names[number]):
            continue
        if not (column >= 0).all() or (column == column[0]).all():
            continue
        first = np.full(len(time), np.inf)
        np.minimum.at(first, subjects, column)
        if (first > time).mean() < 0.5 and not (ordered and not _increases(column, subjects)):
            found.append(number)
    return found


def _increases(column: NDArray, subjects: NDArray[np.int64]) -> bool:
    """Whether positive values increase along the rows of nearly every subject that has several."""
    rows = np.flatnonzero(column > 0)
    rows = rows[np.argsort(subjects[rows], kind="stable")]
    same = subjects[rows][1:] == subjects[rows][:-1]
    backwards = subjects[rows][1:][same & (np.diff(column[rows]) <= 0)]
    several = np.unique(subjects[rows][1:][same])
    return len(several) > 0 and len(np.unique(backwards)) <= (1 - _MOST) * len(several)
