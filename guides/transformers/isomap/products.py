"""Products of squared distances and a few vectors in one pass, compiled by numba."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["squares_times"]


@njit("float64[:, :](float64[:, :], float64[:, ::1])", cache=True, nogil=True, fastmath=True)
def squares_times(rows, vectors):
    """Multiply the squares of all entries by vectors, without an array of the squares.

    A product with so few columns is bound by memory, and BLAS threads would wait for one another.

    Parameters
    ----------
    rows : ndarray, shape (num_rows, num_columns)
        Finite numbers.
    vectors : ndarray, shape (num_vectors, num_columns)

    Returns
    -------
    ndarray, shape (num_rows, num_vectors)
    """
    size = rows.shape[1]
    found = np.empty((rows.shape[0], vectors.shape[0]))
    squares = np.empty(size)
    for number in range(rows.shape[0]):
        row = rows[number]
        for at in range(size):
            squares[at] = row[at] * row[at]
        for one in range(vectors.shape[0]):
            vector, total = vectors[one], 0.0
            for at in range(size):
                total += squares[at] * vector[at]
            found[number, one] = total
    return found
