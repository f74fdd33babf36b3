"""Positions of least stress, found without barriers where points would have to pass one another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

__all__ = ["relaxed"]

_STEPS = 60
"""Number of L-BFGS steps in each of the two spaces."""

_LIFT = 0.3
"""Standard deviation in the additional dimension, in standard deviations of the positions."""


def relaxed(
    positions: NDArray[np.float64], distances: NDArray, landmarks: NDArray[np.int64]
) -> NDArray[np.float64]:
    r"""Positions of small raw stress, through one additional dimension.

    .. math:: \sum_{i, j \text{ known}} (\|x_i - x_j\| - d_{ij})^2

    Points that would have to pass through others pass around them in the additional dimension. Then
    the positions are projected to their principal axes and optimised again.

    Parameters
    ----------
    positions : ndarray, shape (num_points, num_dimensions)
        Starting positions.
    distances : ndarray, shape (num_points, num_landmarks)
        NaN where missing.
    landmarks : ndarray of int, shape (num_landmarks,)
        Numbers of points.

    Returns
    -------
    ndarray, shape (num_points, num_dimensions)
        With mean zero.
    """
    unit = positions.std()
    if not unit > 0:
        return positions
    table, start = distances / unit, positions / unit
    further = _LIFT * np.random.default_rng(0).normal(size=(len(start), 1))
    above = _settled(np.hstack([start, further]), table, landmarks)
    above -= above.mean(axis=0)
    axes = np.linalg.svd(above, full_matrices=False)[2][: positions.shape[1]]
    found = _settled(above @ axes.T, table, landmarks)
    return unit * (found - found.mean(axis=0))


def _settled(
    start: NDArray[np.float64], distances: NDArray, landmarks: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Positions after L-BFGS steps on the stress."""
    known = np.isfinite(distances) & (np.arange(len(start))[:, None] != landmarks)
    tiny = np.finfo(float).tiny

    def stress(flat: NDArray) -> tuple[float, NDArray]:
        x = flat.reshape(start.shape)
        apart = x[:, None] - x[landmarks]
        between = np.sqrt(np.einsum("ijk,ijk->ij", apart, apart) + tiny)
        excess = np.where(known, between - distances, 0.0)
        pull = 2 * np.einsum("ij,ijk->ijk", excess / between, apart)
        slope = pull.sum(axis=1)
        np.subtract.at(slope, landmarks, pull.sum(axis=0))
        return float(np.sum(excess**2)), slope.ravel()

    found = minimize(
        stress, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}
    )
    return found.x.reshape(start.shape)
