"""Climbs of many points at once with dense quasi-Newton steps, in few dimensions, on the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..steps.climbs import rounding_of

__all__ = ["climb_all"]

_SLOPE = 1e-4
"""Share of the gain predicted by the slope that a step must reach."""

_SHORTER = 1 / 3
"""Factor by which a step that gains too little is shortened."""

_TRIES = 12
"""Number of lengths of a step that are tried."""

_BENT = 1e-10
"""Minimum cosine between a step and the change of the slope for the curvature to be updated."""

_GAIN = 1e-9
"""Gain, relative to the value, below which a climb ends."""

_SMALL = 1e-3
"""Gain above which it goes on whatever the value, unless the gain is of the size of rounding errors."""


def climb_all(
    slopes: Callable[[NDArray], tuple[NDArray, NDArray]], points: NDArray, max_steps: int
) -> tuple[NDArray, NDArray, NDArray]:
    """Climb from every point by the method of Broyden, Fletcher, Goldfarb and Shanno.

    Parameters
    ----------
    slopes : callable
        Function of points, shape (num_points, num_coordinates), that returns values and gradients there;
        values may be infinite.
    points : ndarray, shape (num_points, num_coordinates)
    max_steps : int

    Returns
    -------
    points : ndarray, shape (num_points, num_coordinates)
        Where climbs ended.
    values : ndarray, shape (num_points,)
    gradients : ndarray, shape (num_points, num_coordinates)
    """
    width = points.shape[1]
    value, slope = slopes(points)
    inverse = np.eye(width) / (1 + np.abs(slope).max(axis=1))[:, None, None]
    going = np.isfinite(value)
    for step in range(max_steps):
        ahead = np.einsum("nij,nj->ni", inverse, slope)
        new, new_value, new_slope = _line_search(slopes, points, value, slope, ahead, going)
        moved, bend = new - points, slope - new_slope
        product = (moved * bend).sum(axis=1)
        size = np.linalg.norm(moved, axis=1) * np.linalg.norm(bend, axis=1)
        learns = product > _BENT * size
        rate = np.where(learns, 1 / np.where(learns, product, 1.0), 0.0)
        if step == 0:
            first = product / np.where(learns, np.square(bend).sum(axis=1), 1.0)
            inverse[learns] = np.eye(width) * first[learns, None, None]
        turn = np.eye(width) - (rate[:, None] * moved)[:, :, None] * bend[:, None, :]
        inverse = turn @ inverse @ np.swapaxes(turn, 1, 2)
        inverse += (rate[:, None] * moved)[:, :, None] * moved[:, None, :]
        with np.errstate(invalid="ignore"):
            least = np.minimum(_GAIN * (1 + np.abs(value)), _SMALL)
            going &= new_value - value > np.maximum(least, rounding_of(value))
        points, value, slope = new, new_value, new_slope
        if not going.any():
            break
    return points, value, slope


def _line_search(
    slopes: Callable,
    points: NDArray,
    value: NDArray,
    slope: NDArray,
    ahead: NDArray,
    going: NDArray,
) -> tuple[NDArray, NDArray, NDArray]:
    """Return points further up along `ahead`, or the same points where no length of the step gains enough."""
    new, new_value, new_slope = points.copy(), value.copy(), slope.copy()
    length, left = np.ones(len(points)), going.copy()
    promised = (ahead * slope).sum(axis=1)
    for _ in range(_TRIES):
        if not left.any():
            break
        tried = points + length[:, None] * ahead
        found, gradient = slopes(tried)
        with np.errstate(invalid="ignore"):
            gains = left & (found >= value + _SLOPE * length * promised)
        new[gains], new_value[gains], new_slope[gains] = tried[gains], found[gains], gradient[gains]
        left &= ~gains
        length[left] *= _SHORTER
    return new, new_value, new_slope
