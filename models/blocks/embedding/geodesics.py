"""Tables of distances to landmarks: geodesics of a neighbour graph, and checks of given tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components, dijkstra
from sklearn.neighbors import NearestNeighbors, kneighbors_graph

from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import listed

from .landmarks import spread_landmarks

__all__ = [
    "NUM_NEIGHBORS",
    "check_distances",
    "choose_distances",
    "choose_landmarks",
    "geodesics_from",
    "joined",
    "landmark_number",
    "nearest",
]

NUM_NEIGHBORS = 8
"""Default number of nearest neighbours."""

_COMPLETE = 500
"""Maximum number of points up to which all are landmarks by default."""
_LANDMARKS = 100
"""Default number of landmarks of more points."""
_SYMMETRIC = 1e-8
"""Tolerance for the difference of a pair's two distances, relative to the largest distance."""


def choose_landmarks(
    data: Mapping[str, Any], options: Mapping[str, Any]
) -> NDArray[np.float64] | None:
    """Numbers of the landmarks: all points, or points far from one another along the graph of `x`."""
    distances, x = data.get("distances"), data.get("x")
    if distances is not None:
        if distances.shape[0] != distances.shape[1]:
            raise ValueError(
                f"distances has shape {distances.shape}; give the numbers of the "
                f"{distances.shape[1]} points that its columns are for as landmarks, or the distances "
                "between all points"
            )
        return np.arange(float(len(distances)))
    if x is None:
        return None
    number = landmark_number(len(x), options)
    if number == len(x):
        return np.arange(float(number))
    return spread_landmarks(_graph(x, options), number)[0].astype(float)


def landmark_number(num_points: int, options: Mapping[str, Any]) -> int:
    """Number of landmarks of a table of points, as requested or by default."""
    asked = options.get("num_landmarks")
    if asked is None:
        return num_points if num_points <= _COMPLETE else _LANDMARKS
    least = options.get("num_dimensions", 2) + 1
    return check_integer("num_landmarks", asked, least, num_points + 1)


def choose_distances(
    data: Mapping[str, Any], options: Mapping[str, Any]
) -> NDArray[np.float64] | None:
    """Lengths of the shortest paths to the landmarks in the graph of the nearest neighbours in `x`.

    Raises
    ------
    ValueError
        If the graph is not connected, or points are equal.
    """
    x, landmarks = data.get("x"), data.get("landmarks")
    if x is None:
        return None
    graph = _graph(x, options)
    num_parts, part = connected_components(graph, directed=False)
    if num_parts > 1:
        sizes = np.bincount(part)
        rows = [int(np.flatnonzero(part == one)[0]) for one in range(num_parts)]
        raise ValueError(
            f"the graph of {_num_neighbors(x, options)} nearest neighbours has {num_parts} parts, of "
            f"{listed(sizes)} points (a point of each: {listed(rows)}), between which there is no "
            "geodesic; raise num_neighbors, or fit the parts one by one"
        )
    return np.ascontiguousarray(dijkstra(graph, indices=np.asarray(landmarks, int)).T)


def geodesics_from(
    x_new: NDArray, x: NDArray, distances: NDArray, options: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Distances of new points from the landmarks, through their nearest points in `x`.

    Parameters
    ----------
    x_new : ndarray, shape (num_new, num_features)
    x : ndarray, shape (num_points, num_features)
    distances : ndarray, shape (num_points, num_landmarks)
        Distances of the points in `x`.
    options : mapping

    Returns
    -------
    ndarray, shape (num_new, num_landmarks)
    """
    middle = x.mean(axis=0)  # avoids cancellation of squared distances
    near = NearestNeighbors(n_neighbors=_num_neighbors(x, options)).fit(x - middle)
    length, number = near.kneighbors(x_new - middle)
    return np.min(length[:, :, None] + distances[number], axis=1)


def check_distances(data: Mapping[str, Any]) -> None:
    """Refuse a table that does not hold distances of points from landmarks.

    Raises
    ------
    ValueError
        If landmarks are not points, or distances are negative, nonzero from a point to itself, not
        symmetric between landmarks, missing altogether for a point, or do not connect all points.
    """
    distances, landmarks = np.asarray(data["distances"]), data.get("landmarks")
    num_points, width = distances.shape
    if landmarks is None:
        choose_landmarks(data, {})
        landmarks = np.arange(width)
    numbers = np.asarray(landmarks)
    if len(np.unique(numbers)) != width or not np.isin(numbers, np.arange(num_points)).all():
        raise ValueError(
            f"landmarks = {listed(numbers)}; expected {width} different numbers of points, one for each "
            f"column of distances, from 0 to {num_points - 1}"
        )
    numbers = numbers.astype(int)
    known = np.isfinite(distances)
    if (distances[known] < 0).any():
        row, column = np.argwhere(known & (distances < 0))[0]
        raise ValueError(
            f"distances[{row}, {column}] = {distances[row, column]:.4g}; expected none below zero, and "
            "NaN where a distance is missing"
        )
    own = distances[numbers, np.arange(width)]
    if (bad := np.flatnonzero(own != 0)).size:
        raise ValueError(
            f"distances[{numbers[bad[0]]}, {bad[0]}] = {own[bad[0]]:.4g} is that of a point from itself; "
            "expected zero"
        )
    among = distances[numbers]
    apart = np.abs(among - among.T)
    if (np.nan_to_num(apart) > _SYMMETRIC * np.nanmax(distances)).any():
        row, column = np.argwhere(np.nan_to_num(apart) == np.nanmax(apart))[0]
        raise ValueError(
            f"distances is not symmetric: {among[row, column]:.6g} from point {numbers[row]} to point "
            f"{numbers[column]}, and {among[column, row]:.6g} back; average the two, or leave one out (NaN)"
        )
    _refuse_parts(known, numbers)


def _refuse_parts(known: NDArray[np.bool_], landmarks: NDArray[np.int64]) -> None:
    """Refuse points that distances do not connect, not even through other points."""
    row, column = np.nonzero(known)
    size = len(known)
    pairs = scipy.sparse.coo_array((np.ones(len(row)), (row, landmarks[column])), (size, size))
    num_parts, part = connected_components(pairs, directed=False)
    if num_parts > 1:
        first = [int(np.flatnonzero(part == one)[0]) for one in range(num_parts)]
        raise ValueError(
            f"distances fall into {num_parts} parts, of {listed(np.bincount(part))} points (a point of "
            f"each: {listed(first)}), between which none is known; fit the parts one by one"
        )


def _num_neighbors(x: NDArray, options: Mapping[str, Any]) -> int:
    return check_integer("num_neighbors", options.get("num_neighbors", NUM_NEIGHBORS), 1, len(x))


def _graph(x: NDArray, options: Mapping[str, Any]) -> scipy.sparse.csr_array:
    """Graph of the nearest neighbours in `x`.

    Raises
    ------
    ValueError
        If points are equal.
    """
    values = np.asarray(x, float)
    _, first, number = np.unique(values, axis=0, return_inverse=True, return_index=True)
    if len(first) < len(values):
        row = int(np.flatnonzero(first[number] != np.arange(len(values)))[0])
        raise ValueError(
            f"x: point {row} equals point {first[number[row]]} ({len(values) - len(first)} points equal an "
            "earlier one), and points at distance zero have one position; keep one of each: "
            "x[np.sort(np.unique(x, axis=0, return_index=True)[1])]"
        )
    return joined(nearest(values, _num_neighbors(values, options)))


def nearest(x: NDArray, number: int) -> scipy.sparse.csr_array:
    """Distances of each point from its nearest neighbours, as many in each row."""
    middle = x.mean(axis=0)  # avoids cancellation of squared distances
    return scipy.sparse.csr_array(kneighbors_graph(x - middle, number, mode="distance"))


def joined(near: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Distances between points if one of them is among the nearest neighbours of the other."""
    return scipy.sparse.csr_array(near.maximum(near.T))
