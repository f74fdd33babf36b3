"""Rows of the data that are copies of one another."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from .warnings import warn_user

__all__ = ["remark_on_copied_rows", "remark_on_copies", "warn_of_copied_rows"]

_COPIES, _DISTINCT = 0.9, 0.2
"""Copies are reported if at least this share of rows has one, and this share of outcomes is distinct."""

_TIMES = 2, 3, 5
"""How often rows may occur that were copied."""

_ALL, _FEWEST = 0.95, 10
"""Least share of the rows that occur so often or a multiple of it, and least number of distinct rows."""


def remark_on_copied_rows(name: str, rows: ArrayLike) -> str | None:
    """Return a sentence on rows of several columns that occur twice, three or five times; None otherwise.

    Rows that are equal by chance, such as scores, occur in even and in odd numbers.

    Parameters
    ----------
    name : str
        Of the rows, for messages.
    rows : array_like, shape (num_rows, num_columns)
    """
    table = np.asarray(rows)
    if table.ndim != 2 or table.shape[1] < 2:
        return None
    # where copies are equal as well
    first = pd.Series(table[:, 0]).value_counts(dropna=False, sort=False).to_numpy()
    if not any(_occurring(first, times) >= _ALL * len(table) for times in _TIMES):
        return None
    counts = pd.DataFrame(table).value_counts(dropna=False, sort=False).to_numpy()
    copied = max(_occurring(counts, times) for times in _TIMES)
    if len(counts) < _FEWEST or copied < _ALL * len(table):
        return None
    return _said(name, copied, len(table))


def warn_of_copied_rows(name: str, rows: ArrayLike) -> None:
    """Warn of what `remark_on_copied_rows` remarks on, before rows choose a number as if independent."""
    if (said := remark_on_copied_rows(name, rows)) is not None:
        warn_user(said)


def _occurring(counts: NDArray, times: int) -> int:
    """Return the number of rows that occur so often, or a multiple of it."""
    return int(counts[counts % times == 0].sum())


def remark_on_copies(name: str, y: ArrayLike, *columns: ArrayLike | None) -> str | None:
    """Return a sentence on rows nearly all of which have a copy; None if they are rows of their own.

    Outcomes of few distinct values, such as scores, are equal by chance.

    Parameters
    ----------
    name : str
        Of the outcomes, for messages.
    y : array_like, shape (num_rows,)
    *columns : array_like, shape (num_rows,) or (num_rows, num_columns), or None
        What else is known of the rows.
    """
    outcomes = np.asarray(y, float)
    size = len(outcomes)
    if not _DISTINCT * size <= len(np.unique(outcomes)) <= (1 - _COPIES / 2) * size:
        return None
    table = pd.DataFrame(
        np.column_stack([outcomes, *(np.asarray(c) for c in columns if c is not None)])
    )
    number = int(table.duplicated(keep=False).sum())
    if number < _COPIES * size:
        return None
    return _said(name, number, size)


def _said(name: str, number: int, size: int) -> str:
    return (
        f"{number} of {size} rows of {name} equal another one in all columns, and copies count as "
        "independent, so that standard errors are too small, and BIC and evidence prefer too large a model; "
        "keep one of each, table.drop_duplicates()"
    )
