"""Classical scaling of geodesic distances, from all points or from landmarks, and its updates."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh

__all__ = [
    "ROUNDING",
    "Scaling",
    "between_all",
    "from_landmarks",
    "placed",
    "ritz_step",
    "spectrum_shift",
]

ROUNDING = 1e-12
"""Share of the largest eigenvalue up to which one counts as zero."""
_BLOCK = 256
"""Number of rows whose squares are held at once."""
_SMALL = 200
"""Maximum number of points for which all eigenvalues are computed."""


class Scaling(NamedTuple):
    """Coordinates of points, and of the sources as they enter inner products.

    Attributes
    ----------
    points : ndarray, shape (num_points, num_dimensions)
        Centred, along principal axes.
    sources : ndarray, shape (num_sources, num_dimensions)
        Inner products of sources and points are `sources @ points.T`. If all points are sources, the
        two are the same.
    eigenvalues : ndarray, shape (num_dimensions,)
        Sums of squares of the coordinates, in descending order.
    residual : float
        Size of an update: the sine of the largest angle between the subspaces of coordinates before and
        after it; 0 if they are converged.
    """

    points: NDArray[np.float64]
    sources: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]
    residual: float

    def padded(self, number: int) -> Scaling:
        """Return the same with zero coordinates where there are fewer points than dimensions."""
        missing = number - len(self.eigenvalues)
        points, sources = (np.pad(one, ((0, 0), (0, missing))) for one in self[:2])
        return Scaling(points, sources, np.pad(self.eigenvalues, (0, missing)), self.residual)

    def flipped(self, before: NDArray[np.float64] | None) -> Scaling:
        """Return the same with the previous signs, or such that the largest coordinates are positive."""
        if before is None:
            largest = np.abs(self.points).argmax(axis=0)
            signs = np.sign(self.points[largest, np.arange(self.points.shape[1])])
        else:
            signs = np.sign(np.sum(self.points[: len(before)] * before, axis=0))
        signs = np.where(signs == 0, 1.0, signs)
        return self._replace(points=self.points * signs, sources=self.sources * signs)


def _squares_times(rows: NDArray, vectors: NDArray) -> NDArray[np.float64]:
    """Multiply squared distances by vectors, block by block."""
    return np.concatenate(
        [np.square(rows[low : low + _BLOCK]) @ vectors for low in range(0, len(rows), _BLOCK)]
    )


def _centred(values: NDArray) -> NDArray[np.float64]:
    return values - values.mean(axis=0)


def _products_times(rows: NDArray, vectors: NDArray) -> NDArray[np.float64]:
    """Multiply the inner products of squared distances, B = -H C H / 2, by vectors."""
    return -0.5 * _centred(_squares_times(rows, _centred(vectors)))


def _extreme(
    rows: NDArray, number: int, which: Any, start: NDArray | None
) -> tuple[NDArray, NDArray]:
    """Return the largest or smallest eigenvalues of the inner products, in descending order, with vectors."""
    size = len(rows)
    if size <= max(_SMALL, 2 * number + 1):
        values, vectors = np.linalg.eigh(_products_times(rows, np.eye(size)))
        at = np.arange(size)[::-1][:number] if which == "LA" else np.arange(number)[::-1]
        return values[at], vectors[:, at]
    operator = LinearOperator(
        (size, size),
        matvec=lambda v: _products_times(rows, v.reshape(-1, 1)).ravel(),
        matmat=lambda v: _products_times(rows, v),
        dtype=float,
    )
    first = np.random.default_rng(0).normal(size=size) if start is None else start.sum(axis=1)
    tol = 1e-12 if which == "LA" else 1e-2  # a shift need not be exact
    values, vectors = eigsh(operator, number, which=which, v0=first, tol=tol)
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]


def between_all(
    rows: NDArray[np.float64], number: int, start: NDArray[np.float64] | None = None
) -> Scaling:
    """Compute classical scaling to convergence.

    Parameters
    ----------
    rows : ndarray, shape (num_points, num_points)
        Distances.
    number : int
        Of dimensions.
    start : ndarray, shape (num_points, number), optional
        Coordinates to start from.
    """
    values, vectors = _extreme(rows, number, "LA", start)
    positive = np.where(values > ROUNDING * values.max(initial=0.0), values, 0.0)
    points = _centred(vectors) * np.sqrt(positive)
    return Scaling(points, points, positive, 0.0)


def spectrum_shift(rows: NDArray[np.float64], eigenvalues: NDArray[np.float64]) -> float:
    r"""Return the shift of inner products by which iterations do not follow negative eigenvalues.

    .. math:: a = \max(-0.7 \lambda_\min - 0.3 \lambda_d,\ 0)

    Law (2006), section 3.4.3: the smallest eigenvalue is then at most 3/7 of the last one kept.
    """
    least = _extreme(rows, 1, "SA", None)[0][0]
    return float(max(-0.7 * least - 0.3 * eigenvalues[-1], 0.0))


def ritz_step(rows: NDArray[np.float64], points: NDArray[np.float64], shift: float) -> Scaling:
    """Take one step of subspace iteration with Rayleigh-Ritz acceleration (Law 2006, section 3.2.1.4).

    Parameters
    ----------
    rows : ndarray, shape (num_points, num_points)
        Distances.
    points : ndarray, shape (num_points, num_dimensions)
        Coordinates before.
    shift : float
        See `spectrum_shift`.
    """
    from .products import squares_times

    before = _basis(points)
    image = -0.5 * _centred(squares_times(rows, np.ascontiguousarray(before.T)))
    basis, _ = np.linalg.qr(image + shift * before)
    image = -0.5 * _centred(squares_times(rows, np.ascontiguousarray(basis.T)))
    values, turn = np.linalg.eigh(basis.T @ image)
    values, turn = np.maximum(values[::-1], 0), turn[:, ::-1]
    coordinates = basis @ turn * np.sqrt(values)
    return Scaling(coordinates, coordinates, values, _sine(before, basis))


def from_landmarks(
    rows: NDArray[np.float64],
    landmarks: NDArray[np.int64],
    number: int,
    before: NDArray[np.float64] | None = None,
) -> Scaling:
    """Scale by distances from landmarks: to convergence, or in one pass from previous coordinates.

    The inner products of landmarks and points, B = -H C H / 2, have the factors Q and X of a singular
    value decomposition (Law 2006, section 3.2.2, which leaves out the factor -1/2, and the turn of Q by
    the second pass). Its symmetric split is not isometric if there are fewer landmarks than points:
    Q = W X_L with the coordinates X_L of the landmarks among the points. The square root of W restores
    distances, exactly where they are Euclidean.

    Parameters
    ----------
    rows : ndarray, shape (num_landmarks, num_points)
        Distances.
    landmarks : ndarray of int, shape (num_landmarks,)
        Numbers of the landmarks among the points.
    number : int
        Of dimensions.
    before : ndarray, shape (num_points, number), optional
        Coordinates before.
    """
    if before is None:
        inner = np.square(rows)
        inner -= inner.mean(axis=0)
        inner -= inner.mean(axis=1, keepdims=True)
        left = np.linalg.eigh(inner @ inner.T)[1][:, ::-1][:, :number]
    else:
        image = _each("ij,ij,j->i", rows, _centred(before))
        left = np.linalg.svd(_centred(image), full_matrices=False)[0]
    image = -0.5 * _centred(_each("ij,ij,i->j", rows, _centred(left)))
    right, size, turn = np.linalg.svd(image, full_matrices=False)
    points = right * np.sqrt(size)
    sources = left @ turn.T * np.sqrt(size)
    metric = np.linalg.lstsq(_centred(points[landmarks]), sources, rcond=1e-10)[0]
    values, vectors = np.linalg.eigh((metric + metric.T) / 2)
    root = np.sqrt(np.where(values > 1e-10 * values[-1], values, 1.0))
    points, sources = points @ (vectors * root), sources @ (vectors / root)
    values, turn = np.linalg.eigh(points.T @ points)
    values, turn = np.maximum(values[::-1], 0), turn[:, ::-1]
    moved = 0.0 if before is None else _sine(_basis(before), _basis(points))
    return Scaling(points @ turn, sources @ turn, values, moved)


def _each(sums: str, rows: NDArray, vectors: NDArray) -> NDArray[np.float64]:
    """Multiply squared distances by each of some vectors, without an array of the squares."""
    return np.stack([np.einsum(sums, rows, rows, vector) for vector in vectors.T], axis=1)


def placed(
    squares: NDArray[np.float64], means: NDArray[np.float64], sources: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return coordinates of other points by least squares on their inner products with the sources.

    Law (2006), eqs. 3.4 and 3.5. Terms of the inner products that are equal for all sources do not
    matter, since the coordinates of the sources sum to zero.

    Parameters
    ----------
    squares : ndarray, shape (num_new, num_sources)
        Squared distances to the sources.
    means : ndarray, shape (num_sources,)
        Mean squared distance of each source to all points.
    sources : ndarray, shape (num_sources, num_dimensions)
        See `Scaling`.
    """
    return -0.5 * (squares - means) @ np.linalg.pinv(sources, rcond=1e-8).T


def _basis(coordinates: NDArray) -> NDArray[np.float64]:
    """Return an orthonormal basis of the space of some coordinates."""
    return np.linalg.qr(_centred(coordinates))[0]


def _sine(before: NDArray, after: NDArray) -> float:
    """Return the sine of the largest angle between the spans of two orthonormal bases."""
    return float(np.linalg.norm(before - after @ (after.T @ before), 2))
