"""Rows of the data that are copies of one another."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jax.typing import ArrayLike

__all__ = ["remark_on_copied_rows", "remark_on_copies"]

_COPIES, _DISTINCT = 0.9, 0.2
"""Copies are reported if at least this share of rows has one, and this share of outcomes is distinct."""


def remark_on_copied_rows(name: str, rows: ArrayLike) -> str | None:
    """Return a sentence on rows of several columns nearly all of which have a copy; None if there is no such.

    Parameters
    ----------
    name : str
        Of the rows, for messages.
    rows : array_like, shape (num_rows, num_columns)
    """
    table = np.asarray(rows)
    if table.ndim != 2 or table.shape[1] < 2 or not len(table):
        return None
    finest = max(table.T, key=lambda column: len(np.unique(column)))
    return remark_on_copies(name, finest, table)


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
    return (
        f"{number} of {size} rows of {name} equal another one in all columns, and copies count as "
        "independent, so that standard errors are too small and BIC takes too large a model; keep one of "
        "each, table.drop_duplicates()"
    )
