"""Columns of a table that are linear functions of others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr, solve_triangular

__all__ = ["dependent_columns", "say_dependent"]

_GLANCE = 2000
"""Rows that are looked at first; they are more where there are many columns."""

_ROUNDING = 1e-6
"""Coefficient of a standardised column, relative to the largest, that is zero but for rounding."""


def dependent_columns(table: NDArray, tolerance: float = 1e-14) -> dict[int, list[int]]:
    """Columns that are linear functions of earlier ones and of a constant, with those that they depend on.

    Some of the rows are looked at first, and all of them for a column that depends on others there.

    Parameters
    ----------
    table : ndarray, shape (num_rows, num_columns)
        Finite numbers. Where there are no more rows than columns, nothing is found.
    tolerance : float
        Variance about the linear function, relative to that of the column, that is rounding.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(20, 2))
    >>> dependent_columns(np.c_[x, x.sum(axis=1), 1e6 - 2 * x[:, 0]])
    {2: [0, 1], 3: [0]}
    """
    size, width = table.shape
    if size <= width or width < 2:
        return {}
    some = np.asarray(table[:: max(1, size // max(_GLANCE, 4 * width))], float)
    values = some - some.mean(axis=0)
    length = np.sqrt(np.square(values).sum(axis=0))
    vary = np.flatnonzero(length > 0)
    values = values[:, vary] / length[vary]
    if np.square(np.diagonal(qr(values, mode="r", check_finite=False)[0])).min() > tolerance:
        return {}
    basis: NDArray = np.empty_like(values)
    kept: list[int] = []
    found: dict[int, list[int]] = {}
    for number, column in enumerate(values.T):
        own = basis[:, : len(kept)]
        rest = column - own @ (own.T @ column)
        rest -= own @ (own.T @ rest)
        apart = np.sqrt(np.square(rest).sum())
        if apart**2 > tolerance:
            basis[:, len(kept)] = rest / apart
            kept.append(number)
            continue
        slopes = solve_triangular(own.T @ values[:, kept], own.T @ column)
        matter = np.abs(slopes) > _ROUNDING * np.abs(slopes).max(initial=0.0)
        used = vary[kept][matter]
        scaled = slopes[matter] * length[vary[number]] / length[used]
        if len(some) == size or _holds(table, int(vary[number]), used, scaled, tolerance):
            found[int(vary[number])] = used.tolist()
    return found


def say_dependent(name: str, found: dict[int, list[int]]) -> str:
    """Name the columns that depend on others, for messages."""
    if len(found) == 1:
        [(column, others)] = found.items()
        several = "s" * (len(others) > 1)
        return (
            f"column {column} of {name} is a linear function of column{several} {_listed(others)}"
        )
    parts = [f"{column} (of {_listed(others)})" for column, others in found.items()]
    shown = ", ".join(parts[:5]) + ", ..." * (len(parts) > 5)
    return f"columns of {name} are linear functions of others, {shown}"


def _holds(table: NDArray, column: int, others: NDArray, slopes: NDArray, tolerance: float) -> bool:
    """Whether all rows keep to a linear function that some of them keep to."""
    rest = np.asarray(table[:, column], float) - np.asarray(table[:, others], float) @ slopes
    return bool(rest.var() <= 4 * tolerance * table[:, column].var())


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + ", ..." * (len(numbers) > 5)
