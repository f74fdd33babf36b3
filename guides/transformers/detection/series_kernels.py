"""Kernels on series without a model of classes, by least squares or smoothing by Gaussian processes."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from sidebayes.common.fields import Range, check_number

from .population import refuse_other_columns
from .table import LongTable

__all__ = ["LeastSquaresFeatures", "SeriesKernel"]


class LeastSquaresFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Least-squares coefficients of every subject, each divided by its deviation over subjects.

    With ``SVC(kernel="rbf")`` they are the least-squares kernel of Lu (2008, eqs. 10.28-10.29).

    Attributes
    ----------
    scale_ : ndarray, shape (num_effects,)
        Standard deviations of the coefficients of the training subjects.
    columns_ : dict of str to tuple of str
        See `LongTable`.
    """

    def fit(self, X: LongTable, y: ArrayLike | None = None) -> Self:
        """Estimate the standard deviations of the coefficients.

        Parameters
        ----------
        X : LongTable
            Table of one output; its random columns are the regressors.
        y : ignored

        Raises
        ------
        TypeError, ValueError
            If a subject's rows do not determine its coefficients.
        """
        spread = _coefficients(X).std(axis=0)
        self.scale_ = np.where(spread > 0, spread, 1.0)
        self.columns_ = X.columns
        return self

    @property
    def _n_features_out(self) -> int:
        return len(self.scale_)

    def transform(self, X: LongTable) -> NDArray[np.float64]:
        """Scaled coefficients of every subject, shape (num_subjects, num_effects)."""
        check_is_fitted(self)
        found = _coefficients(X)
        refuse_other_columns("the table", X.columns, "that of the fit", self.columns_)
        return found / self.scale_


def _coefficients(table: LongTable) -> NDArray[np.float64]:
    if not isinstance(table, LongTable):
        raise TypeError(
            f"X is a {type(table).__name__}; pass a LongTable, whose samples are subjects"
        )
    if table.num_outputs > 1:
        raise ValueError(f"the table has {table.num_outputs} outputs; pass a table of one")
    padded = _padded(table, table.random, table.y)
    design, y = padded.columns * padded.mask[..., None], padded.y * padded.mask
    rank = np.linalg.matrix_rank(design)
    if (rank < design.shape[2]).any():
        first = int(np.argmax(rank < design.shape[2]))
        raise ValueError(
            f"subject {table.names.tolist()[first]!r} has {int(padded.mask[first].sum())} rows, which do not "
            f"determine {design.shape[2]} coefficients; drop such subjects"
        )
    return np.einsum("sij,sj->si", np.linalg.pinv(design), y)


class _Padded(NamedTuple):
    """Rows of subjects, padded to shape (num_subjects, most_rows, ...), and a mask of the real rows."""

    columns: NDArray
    y: NDArray
    mask: NDArray


def _padded(table: LongTable, columns: NDArray, y: NDArray) -> _Padded:
    order, first = _in_order(table)
    place = np.arange(len(order)) - first[table.codes[order]]
    where = table.codes[order], place
    shape = len(table), place.max() + 1
    wide = np.zeros((*shape, columns.shape[1]))
    tall, mask = np.zeros(shape), np.zeros(shape, bool)
    wide[where], tall[where], mask[where] = columns[order], y[order], True
    return _Padded(wide, tall, mask)


def _in_order(table: LongTable) -> tuple[NDArray, NDArray]:
    """Return rows in the order of subjects, and where those of each subject begin."""
    order = np.argsort(table.codes, kind="stable")
    return order, np.searchsorted(table.codes[order], np.arange(len(table)))


class SeriesKernel(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Kernel of smoothed series, for ``SVC(kernel="precomputed")`` (Lu 2008, eq. 10.31).

    Every series is smoothed by Gaussian-process regression with covariance C and noise,
    :math:`\hat f^i = C(\cdot, t^i) v^i`, :math:`v^i = (C(t^i, t^i) + \sigma^2 I)^{-1} y^i`.
    Subjects, whose times may differ, are compared by the distance of their curves in the Hilbert
    space of C:

    .. math:: d_{ij} = \|\hat f^i - \hat f^j\|^2 = v^{i\top} C_{ii} v^i + v^{j\top} C_{jj} v^j
              - 2 v^{i\top} C_{ij} v^j, \qquad K_{ij} = \exp(-d_{ij} / 2 s^2)

    C is :math:`v \exp(-(t - t')^2 / 2 \ell^2)`. Measurements are standardised by those of the training
    subjects. Parameters that are not given are estimated: :math:`\ell`, v and :math:`\sigma` by maximum
    likelihood over all training series, s by the median of d.

    Parameters
    ----------
    length : float, optional
        :math:`\ell`, in the units of the times.
    noise : float, optional
        :math:`\sigma`, in standard deviations of all measurements; with `length`, v is then 1.
    bandwidth : float, optional
        s.

    Attributes
    ----------
    length_, variance_, noise_, bandwidth_ : float
    n_features_out_ : int
        Number of training subjects.

    Examples
    --------
    >>> import sidebayes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.svm import SVC
    >>> seen = sidebayes.simulate_decline("steps", 30, 20)
    >>> table = LongTable.from_times(seen["value"], seen["age"], seen["subject"], center=80, unit=10)
    >>> machine = make_pipeline(SeriesKernel(length=8.0, noise=0.5), SVC(kernel="precomputed", C=10))
    >>> machine.fit(table, table.by_subject(seen["impaired"])).predict(table).shape
    (50,)
    """

    def __init__(
        self,
        *,
        length: float | None = None,
        noise: float | None = None,
        bandwidth: float | None = None,
    ) -> None:
        self.length = length
        self.noise = noise
        self.bandwidth = bandwidth

    def fit(self, X: LongTable, y: ArrayLike | None = None) -> Self:
        """Estimate the parameters that are not given, and keep the training series.

        Parameters
        ----------
        X : LongTable
            Table of one output, with times.
        y : ignored

        Raises
        ------
        TypeError, ValueError
        """
        if (self.length is None) != (self.noise is None):
            raise ValueError("give both length and noise, or neither")
        for name in ("length", "noise", "bandwidth"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, Range(above=0))
        times = self._times(X)
        self.mean_, self.deviation_ = float(X.y.mean()), float(X.y.std() or 1.0)
        padded = self._standardised(X)
        if self.length is None or self.noise is None:
            found = _maximise_evidence(padded, times)
        else:
            found = float(self.length), 1.0, float(self.noise)
        self.length_, self.variance_, self.noise_ = found
        self.table_ = X
        self.weights_ = self._smoothing(X)
        self.squares_ = self._squares(X, self.weights_)
        self.n_features_out_ = len(X)
        if self.bandwidth is None:
            above = self._distances(X)[np.triu_indices(len(X), 1)]
            self.bandwidth_ = float(np.sqrt(np.median(above))) if above.size else 1.0
            self.bandwidth_ = self.bandwidth_ or 1.0
        else:
            self.bandwidth_ = self.bandwidth
        return self

    @property
    def _n_features_out(self) -> int:
        return self.n_features_out_

    def transform(self, X: LongTable) -> NDArray[np.float64]:
        """Kernel between subjects and the training subjects, shape (num_subjects, num_training)."""
        check_is_fitted(self)
        return np.exp(-0.5 * self._distances(X) / self.bandwidth_**2)

    def _times(self, table: Any) -> NDArray[np.float64]:
        if not isinstance(table, LongTable):
            raise TypeError(
                f"X is a {type(table).__name__}; pass a LongTable, whose samples are subjects"
            )
        if table.times is None:
            raise ValueError("the table has no times; build it with times=, or by from_times")
        if table.num_outputs > 1:
            raise ValueError(f"the table has {table.num_outputs} outputs; pass a table of one")
        return table.times

    def _standardised(self, table: LongTable) -> _Padded:
        y = (table.y - self.mean_) / self.deviation_
        return _padded(table, self._times(table)[:, None], y)

    def _covariance(self, times: NDArray, others: NDArray) -> NDArray[np.float64]:
        return self.variance_ * np.exp(-0.5 * ((times - others) / self.length_) ** 2)

    def _smoothing(self, table: LongTable) -> NDArray[np.float64]:
        """Return weights v of all rows, in the order of the table's subjects, shape (num_rows,)."""
        padded = self._standardised(table)
        times = padded.columns[..., 0]
        inside = padded.mask[:, :, None] & padded.mask[:, None, :]
        matrix = np.where(inside, self._covariance(times[:, :, None], times[:, None, :]), 0.0)
        matrix = matrix + self.noise_**2 * np.eye(times.shape[1])
        found = np.linalg.solve(matrix, (padded.y * padded.mask)[..., None])[..., 0]
        return found[padded.mask]

    def _squares(self, table: LongTable, weights: NDArray) -> NDArray[np.float64]:
        """Return squared norms of smoothed series, shape (num_subjects,)."""
        padded = _padded(table, self._times(table)[:, None], table.y)
        times, wide = padded.columns[..., 0], np.zeros(padded.mask.shape)
        wide[padded.mask] = weights
        inner = self._covariance(times[:, :, None], times[:, None, :])
        return np.einsum("si,sij,sj->s", wide, inner, wide)

    def _products(self, table: LongTable, weights: NDArray) -> NDArray[np.float64]:
        """Return inner products of smoothed series with those of the training subjects."""
        (rows, first), (others, starts) = _in_order(table), _in_order(self.table_)
        inner = self._covariance(
            self._times(table)[rows][:, None], self._times(self.table_)[others]
        )
        inner = weights[:, None] * inner * self.weights_
        return np.add.reduceat(np.add.reduceat(inner, first, axis=0), starts, axis=1)

    def _distances(self, table: LongTable) -> NDArray[np.float64]:
        weights = self._smoothing(table)
        own, cross = self._squares(table, weights), self._products(table, weights)
        return np.maximum(own[:, None] + self.squares_ - 2 * cross, 0.0)


def _maximise_evidence(padded: _Padded, all_times: NDArray) -> tuple[float, float, float]:
    """Return length, variance and noise that maximise the likelihood of all series, given mean zero."""
    times, y, mask = padded.columns[..., 0], padded.y * padded.mask, padded.mask
    inside = mask[:, :, None] & mask[:, None, :]
    square = (times[:, :, None] - times[:, None, :]) ** 2
    eye = np.eye(times.shape[1])
    span = float(np.ptp(all_times)) or 1.0

    def loss(point: NDArray) -> tuple[float, NDArray]:
        length, variance, noise = np.exp(point)
        signal = np.where(inside, variance * np.exp(-0.5 * square / length**2), 0.0)
        matrix = signal + np.where(mask[:, :, None], noise**2, 1.0) * eye
        inverse = np.linalg.inv(matrix)
        white = np.einsum("sij,sj->si", inverse, y)
        value = 0.5 * np.linalg.slogdet(matrix)[1].sum() + 0.5 * (white * y).sum()
        # gradient of half the log determinant and quadratic form along each derivative of the matrix
        rest = 0.5 * (inverse - white[:, :, None] * white[:, None, :])
        along = [signal * square / length**2, signal, 2 * noise**2 * eye * mask[:, None, :]]
        return value / mask.sum(), np.array([(rest * one).sum() for one in along]) / mask.sum()

    start = np.log([span / 4, 0.7, 0.5])
    bounds = [np.log([span / 100, span * 10]), np.log([1e-3, 1e3]), np.log([1e-3, 1e1])]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    length, variance, noise = np.exp(found.x)
    return float(length), float(variance), float(noise)
