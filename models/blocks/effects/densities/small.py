"""Many small symmetric matrices at once, by arithmetic that a compiler fuses."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular

__all__ = ["cholesky", "forward_solve", "inverse", "log_determinant"]

_UNROLLED = 6
"""Largest size at which entries are computed one by one; a LAPACK call per matrix is slower."""


def cholesky(matrix: Array) -> Array:
    """Lower Cholesky factors of positive definite matrices, shape (..., size, size).

    Entries are NaN where a matrix is not positive definite.
    """
    size = matrix.shape[-1]
    if size > _UNROLLED:
        return jnp.linalg.cholesky(matrix)
    entry: dict[tuple[int, int], Array] = {}
    for col in range(size):
        for row in range(col, size):
            known = sum(
                (entry[row, k] * entry[col, k] for k in range(col)),
                start=jnp.zeros((), matrix.dtype),
            )
            here = (matrix[..., row, col] + matrix[..., col, row]) / 2  # slopes are symmetric then
            rest = here - known
            entry[row, col] = jnp.sqrt(rest) if row == col else rest / entry[col, col]
    zero = jnp.zeros_like(matrix[..., 0, 0])
    rows = [
        jnp.stack([entry.get((row, col), zero) for col in range(size)], axis=-1)
        for row in range(size)
    ]
    return jnp.stack(rows, axis=-2)


def forward_solve(lower: Array, right: Array) -> Array:
    """Solve L X = B for lower triangular L.

    Parameters
    ----------
    lower : Array, shape (..., size, size)
    right : Array, shape (..., size, columns)

    Returns
    -------
    Array, shape (..., size, columns)
    """
    size = lower.shape[-1]
    if size > _UNROLLED:
        return solve_triangular(lower, right, lower=True)
    solved: list[Array] = []
    for row in range(size):
        rest = right[..., row, :]
        for col in range(row):
            rest = rest - lower[..., row, col, None] * solved[col]
        solved.append(rest / lower[..., row, row, None])
    return jnp.stack(solved, axis=-2)


def inverse(lower: Array) -> Array:
    """Inverses of lower triangular matrices, shape (..., size, size)."""
    eye = jnp.eye(lower.shape[-1], dtype=lower.dtype)
    return forward_solve(lower, jnp.broadcast_to(eye, lower.shape))


def log_determinant(lower: Array) -> Array:
    """Half the log determinant of matrices with the given Cholesky factors, shape (...)."""
    return jnp.log(jnp.diagonal(lower, axis1=-2, axis2=-1)).sum(axis=-1)
