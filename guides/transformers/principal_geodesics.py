r"""Intrinsic mean and principal directions of points on a sphere of any dimension, by inner products.

Vectors are combinations of a basis: either of the points themselves, whose Gram matrix is known, or of
orthonormal axes. In both cases ``points @ coefficients`` are the inner products of a vector with the points.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from sidebayes.common.warnings import warn_user

__all__ = ["Mean", "Points", "intrinsic_mean", "principal_directions", "tangent_scale"]

_FEW = 10
"""Maximum number of eigenvectors for which Lanczos iterations are faster than a full factorisation."""
_NEGLIGIBLE = 1e-10
"""Share of the largest eigenvalue below which one counts as zero."""


class Points(NamedTuple):
    """Unit vectors, as inner products with a basis.

    Attributes
    ----------
    products : ndarray, shape (num_points, size)
        The Gram matrix, or coordinates along orthonormal axes.
    is_gram : bool
        Whether the basis is the points themselves.
    """

    products: NDArray[np.float64]
    is_gram: bool

    def combined(self, weights: NDArray) -> NDArray[np.float64]:
        """Return coefficients of a weighted sum of the points; `weights` may have a column for each sum."""
        return weights if self.is_gram else self.products.T @ weights

    def norm(self, coefficients: NDArray, images: NDArray) -> float:
        """Return the length of a vector whose inner products with the points are `images`."""
        square = coefficients @ (images if self.is_gram else coefficients)
        return float(np.sqrt(max(square, 0.0)))


class Mean(NamedTuple):
    """Intrinsic mean of points.

    Attributes
    ----------
    coefficients : ndarray, shape (size,)
    cosines : ndarray, shape (num_points,)
        Inner products with the points.
    slope : float
        Length of the mean tangent vector at it, zero at the mean.
    num_steps : int
    """

    coefficients: NDArray[np.float64]
    cosines: NDArray[np.float64]
    slope: float
    num_steps: int


def tangent_scale(cosines: NDArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return angles to the mean, and their ratios to the sines, which give tangents the angle's length."""
    cosines = np.clip(cosines, -1.0, 1.0)
    sines = np.sqrt((1 - cosines) * (1 + cosines))
    angles = np.arctan2(sines, cosines)
    safe = np.where(sines > 0, sines, 1.0)
    return angles, np.where(sines > 0, angles / safe, 1.0)


def intrinsic_mean(
    points: Points, weights: NDArray, *, tol: float = 1e-10, max_steps: int = 500
) -> Mean:
    r"""Find the unit vector with the smallest weighted mean squared angle to the points.

    It takes steps along the mean tangent vector, each halved until the mean squared angle does not rise.

    Parameters
    ----------
    points : Points
    weights : ndarray, shape (num_points,)
        With sum one.
    tol : float
        Length of the mean tangent vector, in radians.
    max_steps : int

    Raises
    ------
    ValueError
        If the weighted sum of the points vanishes, or a point is opposite to the mean.

    Warns
    -----
    SideBayesWarning
        If points fill more than a hemisphere, where there may be other means, or after `max_steps`.
    """
    mean = points.combined(weights)
    cosines = points.products @ mean
    length = points.norm(mean, cosines)
    if length < 1e-8:
        raise ValueError(
            "the points cancel one another in the feature space of the kernel, so that they have no mean "
            "direction; choose a kernel that is not negative, such as 'rbf'"
        )
    mean, cosines = mean / length, cosines / length
    angles, scale = tangent_scale(cosines)
    step, num_steps, slope = 1.0, 0, np.inf
    while num_steps < max_steps and step > 1e-10:
        tangent = points.combined(weights * scale) - (weights * scale) @ cosines * mean
        images = points.products @ tangent
        slope = points.norm(tangent, images)
        if slope <= tol:
            break
        variance = weights @ angles**2
        while step > 1e-10:
            num_steps += 1
            along, across = np.cos(step * slope), step * np.sinc(step * slope / np.pi)
            there = along * cosines + across * images
            new_angles, new_scale = tangent_scale(there)
            if weights @ new_angles**2 <= variance * (1 + 1e-14):
                mean, cosines = along * mean + across * tangent, there
                angles, scale, step = new_angles, new_scale, min(1.0, 2 * step)
                break
            step /= 2
    cosines = points.products @ mean  # removes accumulated rounding errors of the steps
    length = points.norm(mean, cosines)
    mean, cosines = mean / length, cosines / length
    _judge(np.where(weights > 0, cosines, 1.0), slope, tol, num_steps)
    return Mean(mean, cosines, slope, num_steps)


def _judge(cosines: NDArray, slope: float, tol: float, num_steps: int) -> None:
    if cosines.min() < -1 + 1e-12:
        raise ValueError(
            f"the point of row {np.argmin(cosines)} is opposite to the mean, where it has no tangent vector; "
            "drop the row, or choose a kernel that is not negative, such as 'rbf'"
        )
    if cosines.min() <= 0:
        warn_user(
            f"{np.sum(cosines <= 0)} points lie beyond a right angle from the mean that was found, so that "
            "it need not be the only one; a kernel that is not negative, such as 'rbf', has a single mean"
        )
    if slope > max(100 * tol, 1e-7):
        warn_user(
            f"the intrinsic mean was not reached in {num_steps} steps: the mean tangent vector has length "
            f"{slope:.2g}; raise max_iter"
        )


def principal_directions(
    points: Points, weights: NDArray, mean: Mean, wanted: int | float | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Find the directions of largest variance of the tangent vectors at the mean.

    These are eigenvectors of the covariance, or of the matrix of inner products of the tangent vectors where
    the basis is the points themselves; both have the same eigenvalues.

    Parameters
    ----------
    points : Points
    weights : ndarray, shape (num_points,)
        With sum one.
    mean : Mean
    wanted : int, float or None
        Number of directions, a share of the total variance, or all.

    Returns
    -------
    directions : ndarray, shape (size, num_directions)
        Coefficients; orthonormal, and orthogonal to the mean.
    eigenvalues : ndarray, shape (num_directions,)
    total : float
        Sum of all eigenvalues.

    Raises
    ------
    ValueError
        If all points are the same, or fewer eigenvalues than `wanted` differ from zero.
    """
    angles, scale = tangent_scale(mean.cosines)
    total = float(weights @ angles**2)
    root = np.sqrt(weights) * scale
    if total < 1e-28:
        raise ValueError("all points are the same in the feature space of the kernel; give others")
    if points.is_gram:
        matrix = np.outer(-mean.cosines, mean.cosines)
        matrix += points.products
        matrix *= root
        matrix *= root[:, None]
    else:
        tangents = root[:, None] * (points.products - np.outer(mean.cosines, mean.coefficients))
        matrix = tangents.T @ tangents
    values, vectors = _leading(matrix, wanted)
    kept = values > _NEGLIGIBLE * values[0]
    if isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > kept.sum():
        raise ValueError(
            f"n_components = {wanted}, but the points vary in {kept.sum()} directions only; ask for at most "
            "that many"
        )
    values, vectors = values[kept], vectors[:, kept]
    if isinstance(wanted, float):
        enough = np.cumsum(values) >= wanted * total * (1 - 1e-12)
        number = int(np.argmax(enough)) + 1 if enough.any() else len(values)
        values, vectors = values[:number], vectors[:, :number]
    if points.is_gram:
        mixed = root[:, None] * vectors
        vectors = (mixed - np.outer(mean.coefficients, mean.cosines @ mixed)) / np.sqrt(values)
    # signs as in KernelPCA: the largest coefficient is positive
    largest = np.abs(vectors).argmax(axis=0)
    return vectors * np.sign(vectors[largest, range(len(values))]), values, total


def _leading(matrix: NDArray, wanted: int | float | None) -> tuple[NDArray, NDArray]:
    """Return the leading eigenvalues in descending order, with their vectors."""
    size = len(matrix)
    if isinstance(wanted, int) and wanted <= min(_FEW, size // 20):
        values, vectors = eigsh(matrix, k=wanted, v0=np.random.default_rng(0).normal(size=size))
    else:
        fewest = size - wanted if isinstance(wanted, int) and wanted < size else 0
        values, vectors = scipy.linalg.eigh(matrix, subset_by_index=[fewest, size - 1])
    order = np.argsort(-values)
    return values[order], vectors[:, order]
