"""A basis for columns, in which neither their units nor their origin cost precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.scipy.linalg import solve_triangular
from numpy.typing import NDArray

__all__ = ["least_squares", "lower_basis"]

_RIDGE = 1e-12
"""Ridge added to products of unit-length columns, so that dependent columns can be inverted."""

_LEFT = 1e-10
"""Relative squared length below which what remains of a column is rounding error."""


def lower_basis(xp: Any, columns: Any, blocks: Sequence[NDArray[np.int64]] | None = None) -> Any:
    """Lower triangular F such that its product with the columns is orthogonal with mean square 1.

    Later columns come first: an intercept is the part of a column of ones outside their span. Two
    passes suffice for columns whose spread is a hundred-millionth of their distance from zero. F is
    regular even if columns depend on others.

    Parameters
    ----------
    xp : module
        NumPy or JAX's.
    columns : array, shape (num_rows, num_columns)
    blocks : sequence of ndarray of int, optional
        Numbers of columns that have a basis of their own. By default all columns share one basis.

    Returns
    -------
    array, shape (num_columns, num_columns)
    """
    size = columns.shape[1]
    mask = np.zeros((size, size), bool)
    for block in [np.arange(size)] if blocks is None else blocks:
        mask[np.ix_(block, block)] = True
    square = (columns**2).mean(axis=0)
    found = xp.diag(xp.where(square > 0, square, 1.0) ** -0.5)
    for _ in range(2):
        moved = columns @ found
        gram = xp.where(mask, moved.T @ moved / len(columns), 0.0)
        diagonal = xp.diagonal(gram)
        gram = gram + xp.diag(_RIDGE + xp.where(diagonal > _LEFT, 0.0, 1.0))
        found = found @ _inverse_root(xp, gram)
    return found


def least_squares(xp: Any, y: Any, columns: Any) -> Any:
    """Coefficients of a least-squares fit to columns in their basis; arbitrary for dependent columns."""
    gram = columns.T @ columns
    return xp.linalg.solve(gram + _RIDGE * len(columns) * xp.eye(len(gram)), columns.T @ y)


def _inverse_root(xp: Any, gram: Any) -> Any:
    """Cholesky factor of the inverse: the transposed inverse of that of the matrix in reverse order."""
    lower = xp.linalg.cholesky(gram[::-1, ::-1])
    eye = xp.eye(len(lower))
    if xp is np:
        return np.tril(np.linalg.solve(lower, eye)).T[::-1, ::-1]
    return solve_triangular(lower, eye, lower=True).T[::-1, ::-1]
