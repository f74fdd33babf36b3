"""Distances that contradict the others of a point by more than the noise explains."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

__all__ = ["Outlying", "outlying"]

_IMPOSSIBLE = 100.0
"""Loss in nats from which on a distance is reported: fourteen standard deviations of the noise."""
_LOOKED = 8
"""Number of points with the largest deviations, and with the shortest distances, that are checked."""
_TRIED = 400
"""Number of trial values between the observed distance and the one implied by the others."""
_TINY = 1e-12
"""Share of the other distances below which a distance counts as zero."""

Deviations = Callable[[NDArray, NDArray], NDArray]
"""Deviance residuals of distances, given those between positions."""


class Outlying(NamedTuple):
    """A distance that contradicts the others of its point.

    Attributes
    ----------
    row, column : int
        Indices in the table of distances.
    value : float
    expected : float
        Distance from the landmark that the other distances imply.
    """

    row: int
    column: int
    value: float
    expected: float


def outlying(
    distances: NDArray, positions: NDArray, anchors: NDArray, deviations: Deviations
) -> list[Outlying]:
    r"""Distances that noise and uncertainty of the position do not explain, the worst first.

    .. math:: \min_{b} \tfrac12 r(d, b)^2 + \tfrac12 (b - \hat b)^2 / c^2 > 100

    where :math:`\hat b`, with standard deviation c, is the distance from the landmark implied by
    the other distances of the point, with a robust loss. The other distances exclude both the most
    deviating one and the shortest one, which attracts the point if noise is relative. If the law
    has long tails, they explain any distance.

    Parameters
    ----------
    distances : ndarray, shape (num_points, num_landmarks)
        NaN where missing, and from landmarks to themselves.
    positions : ndarray, shape (num_points, num_dimensions)
    anchors : ndarray, shape (num_landmarks, num_dimensions)
        Positions of the landmarks.
    deviations : callable
        Deviance residuals ``r(d, b)`` under the law of the noise.
    """
    between = np.linalg.norm(positions[:, None] - anchors, axis=-1)
    excess = np.nan_to_num(np.abs(deviations(distances, between)), posinf=np.inf)
    short = np.where(np.isnan(distances), np.inf, distances)
    rows = {*np.argsort(-excess.max(axis=1))[:_LOOKED], *np.argsort(short.min(axis=1))[:_LOOKED]}
    found = []
    for row in sorted(rows):
        doubted = np.unique([excess[row].argmax(), short[row].argmin()])
        rest = ~np.isnan(distances[row])
        doubted = doubted[rest[doubted]]
        rest[doubted] = False
        if rest.sum() <= positions.shape[1]:
            continue
        place, covariance = _placed(positions[row], distances[row, rest], anchors[rest], deviations)
        for column in doubted:
            value, apart = distances[row, column], place - anchors[column]
            expected = max(np.linalg.norm(apart), _TINY * distances[row, rest].max())
            spread = max(np.sqrt(apart @ covariance @ apart) / expected, _TINY * expected)
            cost = _cost(value, expected, spread, deviations)
            if cost > _IMPOSSIBLE:
                found.append((cost, Outlying(int(row), int(column), float(value), float(expected))))
    return [one for _, one in sorted(found, reverse=True)]


def _placed(
    start: NDArray, distances: NDArray, anchors: NDArray, deviations: Deviations
) -> tuple[NDArray, NDArray]:
    """Position of a point from some of its distances, with its covariance."""
    scale = np.abs(distances).max()

    def residuals(x: NDArray) -> NDArray:
        between = np.linalg.norm(x - anchors, axis=1)
        return deviations(distances, np.maximum(between, _TINY * scale))

    starts = start, _by_squares(distances, anchors)
    ends = [least_squares(residuals, one, loss="soft_l1") for one in starts]
    found = min(ends, key=lambda end: float(end.cost))
    slope = np.asarray(found.jac)
    return found.x, np.linalg.pinv(slope.T @ slope)


def _by_squares(distances: NDArray, anchors: NDArray) -> NDArray:
    """Position by the squared distances, which are linear in it once centred."""
    apart = anchors - anchors.mean(axis=0)
    square = np.sum(apart**2, axis=1) - distances**2
    return anchors.mean(axis=0) + np.linalg.lstsq(2 * apart, square - square.mean())[0]


def _cost(value: float, expected: float, spread: float, deviations: Deviations) -> float:
    """Minimum loss, in nats, of noise and a shift of the point that explain this distance."""
    low, high = sorted((value, expected))
    near_zero = np.geomspace(max(low, _TINY * high), high, _TRIED)
    tried = np.concatenate([np.linspace(low, high, _TRIED), near_zero])
    by_noise = deviations(np.full(tried.shape, value), tried) ** 2
    by_shift = ((tried - expected) / spread) ** 2
    return float(np.min(by_noise + by_shift) / 2)
