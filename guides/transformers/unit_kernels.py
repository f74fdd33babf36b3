"""Kernels with unit diagonal, which map inputs to points of a sphere, in full or by a few columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from sklearn.metrics.pairwise import pairwise_kernels

from sidebayes.common.warnings import warn_user

__all__ = ["Columns", "UnitKernel", "nearest_inputs", "pivoted_columns"]

_ALWAYS_POSITIVE = {"rbf", "laplacian", "linear", "cosine"}
"""Kernels that are positive semidefinite for all arguments."""
_UNIT = {"rbf", "laplacian", "chi2"}
"""Kernels that are one for a row with itself."""
_OF_PRODUCTS = {"linear", "poly", "polynomial", "sigmoid"}
"""Kernels that are functions of inner products, and so of the squared norm for a row with itself."""
_DEVIATION = 1e-6
"""Deviation by rounding of norms from one, of a matrix from its transpose, or of squared norms below zero."""
_RIDGE = 1e-8
"""Multiple of the number of rows, added to eigenvalues that rounding may have made negative."""
_VARIATION = 1e-3
"""Share of the points' variation that is not rounding, however close to one another they lie."""
_EXACT = 100 * np.finfo(float).eps
"""Rounding errors of a kernel that is computed."""


class UnitKernel(NamedTuple):
    r"""A kernel divided by the square roots of its diagonal, :math:`k(x,y) / \sqrt{k(x,x)\,k(y,y)}`.

    Attributes
    ----------
    metric : str or callable
        As `sklearn.metrics.pairwise.pairwise_kernels` takes it; "precomputed" for a Gram matrix.
    arguments : mapping of str to object
    """

    metric: str | Callable[..., float]
    arguments: Mapping[str, Any]

    def norms(self, x: NDArray) -> NDArray[np.float64]:
        """Return norms of the rows' points in feature space, the square roots of the kernel's diagonal.

        Raises
        ------
        ValueError
            If some are not positive numbers.
        """
        if self.metric in _UNIT:
            return np.ones(len(x))
        if self.metric == "cosine":
            square = np.any(x != 0, axis=1).astype(float)
        elif self.metric in _OF_PRODUCTS:
            # the kernel of a row with itself is that of the numbers |x|^2 and 1
            square = self.raw(np.square(x).sum(axis=1, keepdims=True), np.ones((1, 1)))[:, 0]
        else:
            square = np.array([self.raw(row[None], row[None])[0, 0] for row in x], float)
        return _roots(square)

    def gram(self, x: NDArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the Gram matrix of the rows, or a given one, with unit diagonal, and the norms.

        Raises
        ------
        ValueError
            If it is not symmetric and positive semidefinite.

        Warns
        -----
        SideBayesWarning
            If the diagonal was not one.
        """
        raw = x if self.metric == "precomputed" else self.raw(x, x)
        norms = _roots(np.diag(raw))
        self.warn_of_norms(norms)
        if (norms != 1).any():
            raw = raw / norms / norms[:, None]
        if self.metric not in _ALWAYS_POSITIVE:
            _need_symmetric(raw)
            _need_semidefinite(raw)
        return raw, norms

    def between(self, x: NDArray, training: NDArray, norms: NDArray) -> NDArray[np.float64]:
        """Return the kernel of each row with each training row, whose `norms` are known."""
        return self.raw(x, training) / norms / self.norms(x)[:, None]

    def raw(self, x: NDArray, y: NDArray) -> NDArray[np.float64]:
        """Return the kernel of each row of one table with each of another, before normalisation."""
        named = isinstance(self.metric, str)
        if self.metric == "rbf":  # centred, so that squared distances do not cancel
            moved = y - y.mean(axis=0)
            x, y = moved if x is y else x - y.mean(axis=0), moved
        return pairwise_kernels(x, y, metric=self.metric, filter_params=named, **self.arguments)

    def warn_of_norms(self, norms: NDArray) -> None:
        """Warn that norms other than one are divided out."""
        if np.abs(norms - 1).max() <= _DEVIATION:
            return
        name = self.metric if isinstance(self.metric, str) else "callable"
        warn_user(
            f"the diagonal of the {name} kernel runs from {norms.min() ** 2:.4g} to "
            f"{norms.max() ** 2:.4g}; the kernel is divided by the square roots of its diagonal, so that the "
            "norms of points in its feature space do not count"
        )


class Columns(NamedTuple):
    """Unit vectors whose inner products are nearly the kernel, from its columns at some rows.

    Attributes
    ----------
    pivots : ndarray of int, shape (rank,)
        Rows whose columns of the Gram matrix are used.
    norms : ndarray, shape (rank,)
        Norms of their points in feature space.
    factor : ndarray, shape (rank, rank)
        Lower triangular; the Cholesky factor of the kernel between the pivots.
    vectors : ndarray, shape (num_rows, rank)
        Vectors of norm one; zero for a row without weight that is orthogonal to the pivots.
    residual : float
        Weighted mean share of a point's squared norm that lies outside the span of the pivots.
    """

    pivots: NDArray[np.int64]
    norms: NDArray[np.float64]
    factor: NDArray[np.float64]
    vectors: NDArray[np.float64]
    residual: float


def pivoted_columns(
    kernel: UnitKernel, x: NDArray, weights: NDArray, rank: int, tol: float = 1e-12
) -> Columns:
    """Approximate a Gram matrix by pivoted Cholesky factorisation, without forming it.

    The row whose point lies farthest from the span of those before it comes next; time and memory are in
    O(num_rows * rank^2) and O(num_rows * rank).

    Parameters
    ----------
    kernel : UnitKernel
    x : ndarray, shape (num_rows, num_features)
    weights : ndarray, shape (num_rows,)
        Weights that sum to one. Rows without weight are never chosen.
    rank : int
        Maximum number of columns.
    tol : float
        Squared distance from the span at which no more columns are needed.

    Raises
    ------
    ValueError
        If the kernel is not positive semidefinite, or a row with weight is orthogonal to the chosen ones.

    Warns
    -----
    SideBayesWarning
        If the diagonal of the kernel is not one.

    References
    ----------
    Fine and Scheinberg (2001), Journal of Machine Learning Research 2.
    """
    norms = kernel.norms(x)
    kernel.warn_of_norms(norms)
    counts = weights > 0
    rank = min(rank, int(counts.sum()))
    rest, factor = np.ones(len(x)), np.zeros((len(x), rank))
    pivots = np.zeros(rank, int)
    for step in range(rank):
        pivot = int(np.argmax(np.where(counts, rest, 0.0)))
        if rest[pivot] < tol:
            rank = step
            break
        whole = kernel.raw(x, x[pivot : pivot + 1])[:, 0] / norms / norms[pivot]
        column = whole - factor[:, :step] @ factor[pivot, :step]
        factor[:, step] = column / np.sqrt(rest[pivot])
        rest -= factor[:, step] ** 2
        pivots[step], rest[pivot] = pivot, 0
        if step == 0:
            least = -min(_DEVIATION, _VARIATION * max(rest.mean(), 0.0)) - _EXACT * len(x)
        if rest.min() < least:
            raise ValueError(
                f"the kernel is not positive semidefinite: row {np.argmin(rest)} is nearer to others than "
                "inner products allow; choose a kernel that is an inner product, such as 'rbf'"
            )
        rest[pivots[: step + 1]] = 0
    pivots, factor = pivots[:rank], factor[:, :rank]
    length = np.linalg.norm(factor, axis=1)
    if length[counts].min() < 1e-6:
        row = int(np.argmin(np.where(counts, length, np.inf)))
        raise ValueError(
            f"row {row} is orthogonal to the {rank} rows that stand for the others; raise rank, or "
            "choose a kernel that falls more slowly with the distance"
        )
    residual = float(1 - weights @ np.square(length))
    vectors = factor / np.where(length > 0, length, 1.0)[:, None]
    return Columns(pivots, norms[pivots], factor[pivots], vectors, max(residual, 0.0))


def _roots(diagonal: NDArray) -> NDArray[np.float64]:
    bad = np.flatnonzero(~((diagonal > 0) & (diagonal < np.inf)))
    if len(bad):
        raise ValueError(
            f"the kernel of row {bad[0]} with itself is {diagonal[bad[0]]:.4g}; expected a positive number. "
            "Drop rows without direction (all zero under a linear kernel), or choose a kernel that is "
            "positive there, such as 'rbf'"
        )
    return np.sqrt(diagonal)


def _need_symmetric(gram: NDArray) -> None:
    apart = np.abs(gram - gram.T).max()
    if apart > _DEVIATION:
        raise ValueError(
            f"the kernel is not symmetric: entries differ from those of its transpose by {apart:.3g}; "
            "pass a symmetric kernel"
        )


def _need_semidefinite(gram: NDArray) -> None:
    """Refuse a matrix that is not positive semidefinite, by the cheapest test, a Cholesky factorisation."""
    size = len(gram)
    variation = max(np.trace(gram) - gram.sum() / size, 0.0)
    ridge = min(_RIDGE * size, _VARIATION * variation) + _EXACT * size
    try:
        scipy.linalg.cholesky(gram + ridge * np.eye(size), lower=True)
    except scipy.linalg.LinAlgError:
        least = scipy.linalg.eigh(gram, eigvals_only=True, subset_by_index=[0, 0])[0]
        raise ValueError(
            f"the kernel is not positive semidefinite: its least eigenvalue is {least:.3g}; choose a "
            "kernel that is an inner product, such as 'rbf'"
        ) from None


def nearest_inputs(
    weights: NDArray, rows: NDArray, kernel: UnitKernel, max_iter: int
) -> NDArray[np.float64]:
    """Find inputs whose points have the largest inner products with combinations of points of `rows`."""
    norms = np.ones(len(rows))
    found = rows[(weights @ kernel.between(rows, rows, norms)).argmax(axis=1)]
    near = kernel.between(found, rows, norms)
    value = (weights * near).sum(axis=1)
    step = np.ones(len(found))
    for _ in range(max_iter):
        pull = weights * near
        total = pull.sum(axis=1, keepdims=True)
        target = np.where(total > 0, pull @ rows / np.where(total > 0, total, 1.0), found)
        moved = found + step[:, None] * (target - found)
        close = kernel.between(moved, rows, norms)
        new = (weights * close).sum(axis=1)
        better = new > value
        left = np.where(better, new - value, step)  # rows that did not rise take shorter steps
        found = np.where(better[:, None], moved, found)
        near = np.where(better[:, None], close, near)
        value = np.where(better, new, value)
        step = np.where(better, np.minimum(1.0, 2 * step), step / 2)
        if left.max() < 1e-12:
            break
    return found
