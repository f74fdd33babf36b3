"""Columns of repeated measures that look like the clock by which subjects are followed."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["clocks", "last_by_subject"]

_MOST = 0.9
"""Share of the subjects whose rows must be in order of a column that need not be a clock."""


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


def last_by_subject(column: NDArray, subjects: NDArray[np.int64], number: int) -> NDArray:
    """Largest value of each subject, minus infinity of one without rows."""
    found = np.full(number, -np.inf)
    np.maximum.at(found, subjects, column)
    return found


def _increases(column: NDArray, subjects: NDArray[np.int64]) -> bool:
    """Whether positive values increase along the rows of nearly every subject that has several."""
    rows = np.flatnonzero(column > 0)
    rows = rows[np.argsort(subjects[rows], kind="stable")]
    same = subjects[rows][1:] == subjects[rows][:-1]
    backwards = subjects[rows][1:][same & (np.diff(column[rows]) <= 0)]
    several = np.unique(subjects[rows][1:][same])
    return len(several) > 0 and len(np.unique(backwards)) <= (1 - _MOST) * len(several)
