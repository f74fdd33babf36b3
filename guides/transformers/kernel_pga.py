"""Kernel principal geodesic analysis: principal components of points that a kernel maps to a sphere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from sidebayes.models.blocks.side_information.groups import refuse_mixed_orders
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from sidebayes.common.arrays import point_table
from sidebayes.common.fields import Range, check_integer, check_number
from sidebayes.common.magnitudes import listed, refuse_huge, warn_of_far_rows
from sidebayes.common.warnings import warn_user

from .kernel_options import checked_number, checked_weights, kernel_arguments
from .principal_geodesics import Points, intrinsic_mean, principal_directions, tangent_scale
from .unit_kernels import UnitKernel, nearest_inputs, pivoted_columns

__all__ = ["KernelPGA"]

_LOST = 0.01
"""Share of the points' squared norms whose loss leads to a warning."""
_ALONE = 0.05
"""Kernel with all other rows below which a row is like none of them; angles are then above 87 degrees."""
_UNLIKE = 1e-8
"""Kernel with all training rows below which a row counts as similar to none of them."""


class KernelPGA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Principal geodesic analysis of points in the feature space of a kernel.

    A kernel with :math:`k(x, x) = 1` maps inputs to a sphere. There the analysis finds their intrinsic mean
    :math:`\mu`, and the directions :math:`v_q` in which they vary most around it,

    .. math:: \mu = \arg\min_\nu \sum_n p_n d^2(\nu, \Phi(x_n)), \qquad
              C = \sum_n p_n z_n z_n^\top / \sum_n p_n, \quad z_n = \log_\mu \Phi(x_n), \quad
              C v_q = \lambda_q v_q,

    where kernel principal component analysis (`sklearn.decomposition.KernelPCA`) takes the mean and the
    directions of the flat space around the sphere. Coordinates are :math:`e_{nq} = \langle z_n, v_q
    \rangle`. If angles are small both agree up to the scale of eigenvalues.

    Parameters
    ----------
    n_components : int, float or None
        Number of coordinates; or the least share of the mean squared angle that they keep, in (0, 1); or
        all with a nonzero eigenvalue.
    kernel : str or callable
        A name that `sklearn.metrics.pairwise.pairwise_kernels` knows, "precomputed", or a function of two
        rows. A diagonal other than one is divided out, with a warning.
    gamma : float, optional
        Parameter of "rbf", "laplacian", "polynomial" and "sigmoid". By default 1 / (2 s^2) for
        "rbf", where s^2 is the weighted mean squared distance over all pairs of rows, each with
        itself among them; else scikit-learn's.
    degree, coef0 : float
        Parameters of "polynomial" and "sigmoid".
    kernel_params : mapping of str to object, optional
        Arguments of a callable kernel only.
    rank : int, optional
        Approximate the kernel by its columns at this many rows, chosen by pivoted Cholesky
        factorisation. Time and memory then grow with n * rank^2 and n * rank, not with n^2: for up
        to about 50,000 rows. The warning states what share of the points' squared norms is lost.
    tol : float
        Length of the mean tangent vector, in radians, at which the search for the mean stops.
    max_iter : int
        Maximum number of steps to the mean.

    Attributes
    ----------
    eigenvalues_ : ndarray, shape (n_components,)
        Variances along the directions, in squared radians.
    explained_variance_ratio_ : ndarray, shape (n_components,)
        Shares of the mean squared angle to the mean.
    n_iter_ : int
        Steps to the mean.
    residual_ : float
        Share of the points' mean squared norm that `rank` columns lose; 0 without `rank`.

    References
    ----------
    Awate, Yu, Whitaker (2014), Kernel principal geodesic analysis; Yu (2016), sections 2.5-2.7, where
    eqs. 2.54 and 2.56 lack the sum of the weights, which is divided by here.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sidebayes.guides.transformers.kernel_pga import KernelPGA
    >>> KernelPGA(n_components=2).fit_transform(load_iris().data).shape
    (150, 2)
    """

    def __init__(
        self,
        n_components: int | float | None = 2,
        *,
        kernel: str | Callable[..., float] = "rbf",
        gamma: float | None = None,
        degree: float = 3,
        coef0: float = 1,
        kernel_params: Mapping[str, Any] | None = None,
        rank: int | None = None,
        tol: float = 1e-10,
        max_iter: int = 500,
    ) -> None:
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.kernel_params = kernel_params
        self.rank = rank
        self.tol = tol
        self.max_iter = max_iter

    def __sklearn_tags__(self) -> Any:
        """Say that a Gram matrix is cut along both axes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.eigenvalues_)

    def fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Find the mean and the principal directions.

        Parameters
        ----------
        X : array_like, shape (n, num_features), or (n, n) if the kernel is "precomputed"
        y : ignored
        sample_weight : array_like, shape (n,), optional
            Nonnegative weights. Rows of weight zero have no influence; `fit_transform` returns
            their coordinates.

        Raises
        ------
        ValueError
            If the kernel is not symmetric, positive semidefinite, with a positive diagonal; if a point is
            opposite to the mean; or if rows, weights or components are too few.

        Warns
        -----
        SideBayesWarning
            If most rows are similar to no other row under the kernel, so that directions single out rows.
        """
        self._fit(X, sample_weight)
        return self

    def fit_transform(
        self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Find the directions, and return the coordinates of the rows, shape (n, n_components)."""
        return self._coordinates(self._fit(X, sample_weight).products)

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """Coordinates of rows, shape (len(X), n_components).

        Parameters
        ----------
        X : array_like, shape (num_rows, num_features)
            Or the kernel of each row with each training row, if it is "precomputed". The kernel of
            new rows with themselves is then taken to be one, so that of the training rows must have
            been one.

        Raises
        ------
        ValueError
            If a "precomputed" kernel did not have, or cannot have, a unit diagonal.

        Warns
        -----
        SideBayesWarning
            If rows are similar to no training row under the kernel, so that their coordinates are
            zero.
        """
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        if self.kernel == "precomputed":
            points = self._given(x)
        else:
            refuse_huge("X", x)
            points = self._kernel.between(x, self._rows, self._norms)
        unlike = np.flatnonzero(np.abs(points).max(axis=1) < _UNLIKE)
        if len(unlike):
            rows, are = ("row", "is") if len(unlike) == 1 else ("rows", "are")
            warn_user(
                f"{rows} {listed(unlike)} of X {are} like no training row under the kernel, but "
                "orthogonal to all of them, and coordinates are zero, which is not near the mean"
            )
        if self.rank is not None:
            points = scipy.linalg.solve_triangular(self._factor, points.T, lower=True).T
            length = np.linalg.norm(points, axis=1, keepdims=True)
            points /= np.where(length > 0, length, 1.0)
        return self._coordinates(points)

    def sphere_coordinates(self, embedded: ArrayLike) -> NDArray[np.float64]:
        r"""Points of the great subsphere that coordinates stand for: :math:`\exp_\mu \sum_q e_q v_q`.

        Angles between these points are the distances that the analysis keeps, and mixtures on the
        sphere take these points.

        Parameters
        ----------
        embedded : array_like, shape (num_rows, n_components)

        Returns
        -------
        ndarray, shape (num_rows, n_components + 1)
            Unit vectors in the frame of the mean and the directions.

        Raises
        ------
        ValueError
            If coordinates have the wrong number of columns, or are longer than pi.
        """
        check_is_fitted(self)
        given = self._checked(embedded)
        length = np.linalg.norm(given, axis=1, keepdims=True)
        if length.max() > np.pi:
            row = int(np.argmax(length))
            raise ValueError(
                f"row {row} of the coordinates has length {length[row, 0]:.4g}; expected at most pi, the "
                "largest angle to the mean"
            )
        return np.hstack([np.cos(length), np.sinc(length / np.pi) * given])

    def inverse_transform(self, X: ArrayLike, *, max_iter: int = 200) -> NDArray[np.float64]:
        """Rows whose points lie nearest to those of some coordinates.

        For "rbf" the rows are found by fixed-point iterations from the best training row, each of
        which is taken only if it brings the point nearer (Mika et al. 1999); for "linear" and
        "cosine" they have a closed form, with length one, since lengths are divided out. Other
        kernels have no known pre-images.

        Parameters
        ----------
        X : array_like, shape (num_rows, n_components)
        max_iter : int

        Returns
        -------
        ndarray, shape (num_rows, num_features)

        Raises
        ------
        ValueError
            If no pre-images are known for the kernel.
        """
        check_is_fitted(self)
        max_iter = check_integer("max_iter", max_iter)
        if self.kernel not in ("rbf", "linear", "cosine"):
            raise ValueError(
                f"kernel = {self.kernel!r}: pre-images are known for 'rbf', 'linear' and 'cosine'; take "
                "sphere_coordinates instead"
            )
        frame = np.column_stack([self._mean, self._directions])
        weights = self.sphere_coordinates(X) @ frame.T
        if self.rank is not None:
            weights = scipy.linalg.solve_triangular(self._factor, weights.T, lower=True, trans=1).T
        if self.kernel != "rbf":
            found = weights @ (self._rows / np.linalg.norm(self._rows, axis=1, keepdims=True))
            return found / np.linalg.norm(found, axis=1, keepdims=True)
        return nearest_inputs(weights, self._rows, self._kernel, max_iter)

    def _fit(self, X: ArrayLike, sample_weight: ArrayLike | None) -> Points:
        """Fit, and return the points of the training rows."""
        refuse_mixed_orders(X=X, sample_weight=sample_weight)
        x = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        if self.kernel == "precomputed" and x.shape[0] != x.shape[1]:
            raise ValueError(
                f"X has shape {x.shape}, and kernel='precomputed' takes a Gram matrix, which is square"
            )
        refuse_huge("X", x)
        warn_of_far_rows("X", x)
        weights = checked_weights(sample_weight, len(x))
        wanted = checked_number(self.n_components)
        tol = check_number("tol", self.tol, Range(above=0))
        max_steps = check_integer("max_iter", self.max_iter)
        self._kernel = UnitKernel(self.kernel, kernel_arguments(self, x, weights))
        self._rows = x
        points = self._points(x, weights)
        mean = intrinsic_mean(points, weights, tol=tol, max_steps=max_steps)
        self._mean, self.n_iter_ = mean.coefficients, mean.num_steps
        self._directions, self.eigenvalues_, total = principal_directions(
            points, weights, mean, wanted
        )
        self.explained_variance_ratio_ = self.eigenvalues_ / total
        return points

    def _points(self, x: NDArray, weights: NDArray) -> Points:
        """Return the training rows as points of the sphere, and keep what new rows need."""
        if self.rank is None:
            self.residual_ = 0.0
            gram, self._norms = self._kernel.gram(x)
            _warn_of_lone_rows(gram)
            return Points(gram, is_gram=True)
        if self.kernel == "precomputed":
            raise ValueError(
                "rank is for kernels that are computed; leave it out for a Gram matrix"
            )
        columns = pivoted_columns(self._kernel, x, weights, check_integer("rank", self.rank, 2))
        self._rows, self._norms = x[columns.pivots], columns.norms
        self._factor, self.residual_ = columns.factor, columns.residual
        if columns.residual > _LOST:
            warn_user(
                f"{len(columns.pivots)} columns of the kernel keep {1 - columns.residual:.1%} of the points' "
                "squared norms; raise rank for more"
            )
        return Points(columns.vectors, is_gram=False)

    def _coordinates(self, products: NDArray) -> NDArray[np.float64]:
        """Return tangent coordinates of points from their inner products with the basis."""
        _, scale = tangent_scale(products @ self._mean)
        return scale[:, None] * (products @ self._directions)

    def _checked(self, embedded: ArrayLike) -> NDArray[np.float64]:
        given = point_table("X", embedded)
        if given.shape[1] != len(self.eigenvalues_):
            raise ValueError(
                f"X has {given.shape[1]} coordinates; expected {len(self.eigenvalues_)}, as transform "
                "returns them"
            )
        return given

    def _given(self, products: NDArray) -> NDArray[np.float64]:
        """Check the kernel of new rows with the training rows."""
        apart = np.abs(self._norms - 1).max()
        if apart > 1e-6 or np.abs(products).max() > 1 + 1e-6:
            raise ValueError(
                "kernel='precomputed': new rows have no coordinates unless the kernel of every row with "
                "itself is one; divide the kernel by the square roots of k(x, x) k(y, y) before fit and "
                "transform"
            )
        return products


def _warn_of_lone_rows(gram: NDArray) -> None:
    apart = np.abs(gram - np.diag(np.diag(gram))).max(axis=1)
    if np.mean(apart < _ALONE) > 0.5:
        warn_user(
            f"{np.sum(apart < _ALONE)} of {len(gram)} rows are like no other row (their kernel with each is "
            f"below {_ALONE}), so that directions single out rows; take a wider kernel, such as 'rbf' with a "
            "smaller gamma"
        )
