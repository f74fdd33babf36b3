"""Checks of data on a sphere, and starts of mixtures at the cells of partitions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sidebayes.common.warnings import warn_user

from ..components.partition_starts import partitions

__all__ = ["SphereCells", "check_unit_vectors", "sphere_cells", "warn_of_axes"]

_ROUNDED = 1e-3
"""Tolerance of unit lengths for rounding in a file."""


def check_unit_vectors(name: str, value: Any) -> None:
    """Refuse rows that are not unit vectors; lengths within 0.001 of one count as rounded.

    Raises
    ------
    ValueError
        If there is such a row; the message names the row and the remedy.
    """
    rows = np.asarray(value, float)
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise ValueError(
            f"{name} has shape {rows.shape}; expected unit vectors of two coordinates or more, "
            "(num_points, dimension + 1)"
        )
    length = np.linalg.norm(rows, axis=1)
    off, zero = np.flatnonzero(np.abs(length - 1) > _ROUNDED), np.flatnonzero(length == 0)
    if len(zero):
        raise ValueError(
            f"row {zero[0]} of {name} has length zero and no direction{_first_of(zero)}; drop it"
        )
    if len(off):
        raise ValueError(
            f"row {off[0]} of {name} has length {length[off[0]]:.6g}{_first_of(off)}; points on a sphere "
            f"have length one. If only directions matter, pass {name} / np.linalg.norm({name}, axis=1, "
            "keepdims=True)"
        )


def _first_of(rows: NDArray) -> str:
    """Addition to a message: that a row is the first of several."""
    return f", the first of {len(rows)} such rows" if len(rows) > 1 else ""


def warn_of_axes(name: str, value: Any) -> None:
    """Warn if the opposites of most points are among the points, like both ends of an axis.

    There is no warning on a circle, because rounded hours have opposites as well.
    """
    rows = np.asarray(value, float)
    if rows.shape[1] == 2:
        return
    rounded = np.round(rows, 9) + 0.0
    first = np.take_along_axis(rounded, (rounded != 0).argmax(axis=1)[:, None], axis=1)
    table = pd.DataFrame(rounded * np.sign(first)).assign(side=first > 0)
    ends = table.groupby(list(table)[:-1])["side"]
    opposed = np.flatnonzero(ends.transform("nunique") > 1)
    if 2 * len(opposed) > len(rows):
        one = opposed[0]
        other = int(np.argmin(rows @ rows[one]))
        warn_user(
            f"{len(opposed)} of {len(rows)} points of {name} have their opposites among them, such as rows "
            f"{one} and {other}. If both ends of an axis mean the same, no component describes them: give "
            "one end of each axis, all in one half of the sphere"
        )


class SphereCells(NamedTuple):
    """Directions of the cells of partitions, and covariances of the tangent vectors at them.

    Attributes
    ----------
    direction : ndarray, shape (num_starts, num_clusters, dimension + 1)
    covariance : ndarray, shape (num_starts, num_clusters, dimension + 1, dimension + 1)
        In the coordinates of the ambient space; zero along the direction.
    """

    direction: NDArray
    covariance: NDArray


def sphere_cells(data: NDArray, num_clusters: int, seed: int, num_starts: int) -> SphereCells:
    """Cells of `partitions` of unit vectors, based on chord lengths.

    Covariances are computed as in `cell_moments`: they are shrunk to a share of the variance of all
    data, with a weight of two more points than there are dimensions. A cell without a direction
    takes that of a row.

    Parameters
    ----------
    data : ndarray, shape (num_points, dimension + 1)
    num_clusters, seed, num_starts : int
    """
    rng = np.random.default_rng([seed, 2])
    found = partitions(data, num_clusters, seed, num_starts, one_unit=data.shape[1])
    rows = found.rows / np.linalg.norm(found.rows, axis=1, keepdims=True)
    dimension = rows.shape[1] - 1
    eye = np.eye(dimension + 1)
    # twice the deficit of the resultant length: the variance of angles if these are small
    total = 2 * (1 - np.linalg.norm(rows.mean(axis=0))) / dimension + 1e-12
    typical, weight = total / num_clusters ** (2 / dimension), dimension + 2.0
    shape = (len(found.labels), num_clusters, dimension + 1)
    direction, covariance = np.empty(shape), np.empty((*shape, dimension + 1))
    for start, label in enumerate(found.labels):
        for cell in range(num_clusters):
            own = rows[label == cell]
            mean = own.sum(axis=0)
            length = np.linalg.norm(mean)
            if length <= 1e-6 * max(len(own), 1):
                mean, length = rows[rng.integers(len(rows))], 1.0
            mean = direction[start, cell] = mean / length
            tangent = _logarithms(mean, own)
            across = eye - np.outer(mean, mean)
            if found.plain[start]:
                covariance[start, cell] = typical * across
            elif found.wide[start]:
                covariance[start, cell] = total * across
            else:
                scatter = tangent.T @ tangent + weight * typical * across
                covariance[start, cell] = scatter / (len(own) + weight)
    return SphereCells(direction, covariance)


def _logarithms(mean: NDArray, rows: NDArray) -> NDArray:
    """Tangent vectors at a mean whose geodesics end at the rows."""
    cosine = rows @ mean
    across = rows - cosine[:, None] * mean
    sine = np.linalg.norm(across, axis=1)
    angle = np.arctan2(sine, cosine)
    return across * (angle / np.where(sine > 0, sine, 1.0))[:, None]
