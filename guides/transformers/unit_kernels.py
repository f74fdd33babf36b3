"""Kernels with unit diagonal: what maps inputs to points of a sphere, whole or by a few of its columns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from sklearn.metrics.pairwise import pairwise_kernels

from sidebayes.common.warnings import SideBayesWarning

__all__ = ["Columns", "UnitKernel", "pivoted_columns"]

_ALWAYS_POSITIVE = {"rbf", "laplacian", "linear", "cosine"}
"""Kernels that no arguments make indefinite."""
_DEVIATION = 1e-8
"""Of a diagonal from one, and of an eigenvalue below zero, that is put down to rounding."""


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

    def diagonal(self, x: NDArray) -> NDArray[np.float64]:
        """The kernel of every row with itself, before it is divided.

        Raises
        ------
        ValueError
            If some are not positive.
        """
        if self.metric in ("rbf", "laplacian", "cosine"):
            values = np.ones(len(x)) if self.metric != "cosine" else (x != 0).any(axis=1) * 1.0
        elif self.metric == "linear":
            values = np.square(x).sum(axis=1)
        else:
            values = np.array([self._raw(row[None], row[None])[0, 0] for row in x], float)
        _need_positive(values)
        return values

    def gram(self, x: NDArray) -> NDArray[np.float64]:
        """Gram matrix of the rows, or a given one, with unit diagonal.

        Raises
        ------
        ValueError
            If it is not symmetric and positive semidefinite.

        Warns
        -----
        SideBayesWarning
            If the diagonal was not one.
        """
        raw = x if self.metric == "precomputed" else self._raw(x, x)
        scale = np.diag(raw).copy()
        _need_positive(scale)
        if np.abs(scale - 1).max() > _DEVIATION:
            self._warn(scale)
            root = np.sqrt(scale)
            raw = raw / root / root[:, None]
        if self.metric not in _ALWAYS_POSITIVE:
            _need_symmetric(raw)
            _need_semidefinite(raw)
        return raw

    def between(self, x: NDArray, training: NDArray) -> NDArray[np.float64]:
        """Kernel of each row with each training row, shape (len(x), len(training))."""
        raw = self._raw(x, training)
        if self.metric in ("rbf", "laplacian", "cosine"):
            return raw
        return raw / np.sqrt(np.outer(self.diagonal(x), self.diagonal(training)))

    def _raw(self, x: NDArray, y: NDArray) -> NDArray[np.float64]:
        named = isinstance(self.metric, str)
        return pairwise_kernels(x, y, metric=self.metric, filter_params=named, **self.arguments)

    def _warn(self, scale: NDArray) -> None:
        name = self.metric if isinstance(self.metric, str) else "callable"
        warnings.warn(
            f"the diagonal of the {name} kernel runs from {scale.min():.4g} to {scale.max():.4g}; the kernel "
            "is divided by the square roots of its diagonal, so that the norms of points in its feature "
            "space do not count",
            SideBayesWarning,
            stacklevel=3,
        )


class Columns(NamedTuple):
    """Unit vectors whose inner products are nearly the kernel, from its columns at some rows.

    Attributes
    ----------
    pivots : ndarray of int, shape (rank,)
        Rows whose columns of the Gram matrix are used.
    factor : ndarray, shape (rank, rank)
        Lower triangular; the Cholesky factor of the kernel between the pivots.
    vectors : ndarray, shape (num_rows, rank)
        With norm one.
    residual : float
        Mean share of a point's squared norm that lies outside the span of the pivots.
    """

    pivots: NDArray[np.int64]
    factor: NDArray[np.float64]
    vectors: NDArray[np.float64]
    residual: float


def pivoted_columns(kernel: UnitKernel, x: NDArray, rank: int, tol: float = 1e-12) -> Columns:
    """Approximate a Gram matrix by pivoted Cholesky factorisation, without forming it.

    The row whose point lies farthest from the span of those before it comes next; time and memory are in
    O(num_rows * rank^2) and O(num_rows * rank).

    Parameters
    ----------
    kernel : UnitKernel
    x : ndarray, shape (num_rows, num_features)
    rank : int
        Most columns.
    tol : float
        Squared distance from the span at which no more are needed.

    References
    ----------
    Fine and Scheinberg (2001), Journal of Machine Learning Research 2.
    """
    rank = min(rank, len(x))
    rest, factor = np.ones(len(x)), np.zeros((len(x), rank))
    pivots = np.zeros(rank, int)
    for step in range(rank):
        pivot = int(np.argmax(rest))
        if rest[pivot] < tol:
            rank = step
            break
        column = (
            kernel.between(x, x[pivot : pivot + 1])[:, 0] - factor[:, :step] @ factor[pivot, :step]
        )
        factor[:, step] = column / np.sqrt(rest[pivot])
        rest = np.maximum(rest - factor[:, step] ** 2, 0)
        rest[pivots[: step + 1]] = 0
        pivots[step], rest[pivot] = pivot, 0
    pivots, factor = pivots[:rank], factor[:, :rank]
    norm = np.linalg.norm(factor, axis=1)
    if norm.min() < 1e-6:
        row = int(np.argmin(norm))
        raise ValueError(
            f"row {row} is orthogonal to the {rank} rows that stand for the others; raise rank, or "
            "choose a kernel that falls more slowly with the distance"
        )
    residual = float(1 - np.square(factor).sum(axis=1).mean())
    return Columns(pivots, factor[pivots], factor / norm[:, None], max(residual, 0.0))


def _need_positive(diagonal: NDArray) -> None:
    bad = np.flatnonzero(~(diagonal > 0))
    if len(bad):
        raise ValueError(
            f"the kernel of row {bad[0]} with itself is {diagonal[bad[0]]:.4g}; expected a positive number. "
            "Drop rows without direction (all zero under a linear kernel), or choose a kernel that is "
            "positive there, such as 'rbf'"
        )


def _need_symmetric(gram: NDArray) -> None:
    apart = np.abs(gram - gram.T).max()
    if apart > 1e-6:
        raise ValueError(
            f"the kernel is not symmetric: entries differ from those of its transpose by {apart:.3g}; "
            "pass a symmetric kernel"
        )


def _need_semidefinite(gram: NDArray) -> None:
    """Refuse a matrix that no inner products make; its Cholesky factorisation tells at least cost."""
    try:
        scipy.linalg.cholesky(gram + _DEVIATION * len(gram) * np.eye(len(gram)), lower=True)
    except scipy.linalg.LinAlgError:
        least = scipy.linalg.eigh(gram, eigvals_only=True, subset_by_index=[0, 0])[0]
        raise ValueError(
            f"the kernel is not positive semidefinite: its least eigenvalue is {least:.3g}; choose a "
            "kernel that is an inner product, such as 'rbf'"
        ) from None
