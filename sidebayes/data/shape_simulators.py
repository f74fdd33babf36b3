"""Simulate outlines and surfaces of individuals in two groups, whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from sidebayes.models.blocks.side_information.groups import Groups

from ..common.fields import Range, check_integer, check_number, check_seed

__all__ = [
    "SimulatedShapes",
    "simulate_box_bumps",
    "simulate_ellipsoids",
    "simulate_leaves",
    "simulate_tubes",
]

_BUMPS = np.array([-0.6, -0.5, -0.4, -0.3, 0.3, 0.4, 0.5, 0.6])
"""Centres of the bumps of both groups."""


@dataclass(frozen=True, eq=False)
class SimulatedShapes:
    """Points of individuals in two groups, and the truth.

    Attributes
    ----------
    x : ndarray, shape (num_rows, num_coordinates)
        A row for each point, those of an individual one after the other.
    subjects : Groups
        Individual of each row.
    landmarks : ndarray of int, shape (num_rows,), or None
        Landmark of each row; None if points of different individuals do not correspond.
    classes : ndarray of int, shape (num_individuals,)
        Group of each individual, 0 or 1.
    parameters : DataFrame
        Parameters from which each individual was made, one row each.
    shapes : ndarray, shape (num_individuals, num_points, num_coordinates), or None
        Points that correspond, without noise or change of their order. None if there are none.
    """

    x: NDArray[np.float64]
    subjects: Groups
    landmarks: NDArray[np.int64] | None
    classes: NDArray[np.int64]
    parameters: pd.DataFrame
    shapes: NDArray[np.float64] | None


def simulate_box_bumps(
    *, noise: float = 0.02, is_shifted: bool = True, seed: int = 0
) -> SimulatedShapes:
    """Boxes of width 2 with a bump on the upper side, left in one group and right in the other.

    Four outlines of 64 points each per group (Yu 2016, section 3.7.1). Each coordinate is linear in the
    centre of the bump, so that shapes vary in one direction, within groups and between them. The thesis does
    not print its boxes; sizes are ours.

    Parameters
    ----------
    noise : float
        Standard deviation of each coordinate.
    is_shifted : bool
        Whether the outline of each individual begins at a random point, so that points no longer
        correspond.
    seed : int

    Returns
    -------
    SimulatedShapes
        With the parameter ``centre``.
    """
    rng, noise = np.random.default_rng(check_seed(seed)), _noise(noise)
    shapes = np.stack([_box(centre) for centre in _BUMPS])
    size = shapes.shape[1]
    first = rng.integers(0, size, (len(shapes), 1)) if is_shifted else np.zeros((8, 1), int)
    order = (np.arange(size) + first) % size
    x = np.take_along_axis(shapes, order[..., None], axis=1)
    return _simulated(
        x + noise * rng.normal(size=x.shape),
        np.repeat([0, 1], 4),
        pd.DataFrame({"centre": _BUMPS}),
        shapes,
        corresponds=not is_shifted,
    )


def simulate_ellipsoids(
    num_individuals: int = 20, *, num_points: int = 64, noise: float = 0.0, seed: int = 0
) -> SimulatedShapes:
    """Ellipsoids with two axes of 1, and a third of mean 0.9 in one group and 1.1 in the other.

    The variance of the third axis is 0.01 (Yu 2016, section 3.7.3.3). Points are those of a Fibonacci
    lattice on the sphere, centred and with centroid size one before noise is added.

    Parameters
    ----------
    num_individuals : int
        In each group.
    num_points : int
        At least 4.
    noise : float
        Standard deviation of each coordinate.
    seed : int

    Returns
    -------
    SimulatedShapes
        With the parameter ``axis``.
    """
    rng, noise = np.random.default_rng(check_seed(seed)), _noise(noise)
    number = check_integer("num_individuals", num_individuals)
    size = check_integer("num_points", num_points, 4)
    classes = np.repeat([0, 1], number)
    axis = np.where(classes == 0, 0.9, 1.1) + 0.1 * rng.normal(size=2 * number)
    place = np.arange(size) + 0.5
    height, turn = 1 - 2 * place / size, np.pi * (1 + np.sqrt(5)) * place
    across = np.sqrt(1 - height**2)
    lattice = np.stack([across * np.cos(turn), across * np.sin(turn), height], axis=1)
    scale = np.stack([np.ones_like(axis), np.ones_like(axis), axis], axis=1)
    shapes = lattice * scale[:, None]
    shapes = shapes - shapes.mean(axis=1, keepdims=True)
    shapes = shapes / np.linalg.norm(shapes, axis=(1, 2), keepdims=True)
    x = shapes + noise * rng.normal(size=shapes.shape)
    return _simulated(x, classes, pd.DataFrame({"axis": axis}), shapes)


def simulate_leaves(
    num_individuals: int = 23,
    *,
    asymmetry: float = 0.45,
    width_deviation: float = 0.03,
    noise: float = 0.01,
    seed: int = 0,
) -> SimulatedShapes:
    r"""Outlines of leaves: those of one group have one blunt and one pointed end, those of the other do not.

    .. math:: (\cos\theta, b \sin\theta\,(1 + e \cos\theta))\,(1 + 0.02 \sin(5\theta + \phi))

    with 150 to 300 points each, equally spaced along the outline, centred and with a mean square distance of
    one from the centre. They stand in for the leaves of Yu (2016, section 3.7.2).

    Parameters
    ----------
    num_individuals : int
        In each group.
    asymmetry : float
        Mean of e in the first group; in the second it is 0.05. The deviation is 0.05 in both.
    width_deviation : float
        Standard deviation of b, whose mean is 0.55.
    noise : float
        Standard deviation of each coordinate, before scaling.
    seed : int

    Returns
    -------
    SimulatedShapes
        With parameters ``width`` (b), ``asymmetry`` (e) and ``phase``. Points do not correspond.
    """
    rng, noise = np.random.default_rng(check_seed(seed)), _noise(noise)
    number = check_integer("num_individuals", num_individuals)
    asymmetry = check_number("asymmetry", asymmetry, Range())
    deviation = check_number("width_deviation", width_deviation, Range(least=0))
    classes = np.repeat([0, 1], number)
    made = pd.DataFrame(
        {
            "width": 0.55 + deviation * rng.normal(size=2 * number),
            "asymmetry": np.where(classes == 0, asymmetry, 0.05)
            + 0.05 * rng.normal(size=2 * number),
            "phase": rng.uniform(0, 2 * np.pi, 2 * number),
        }
    )
    sizes = rng.integers(150, 301, 2 * number)
    leaves = []
    for size, *values in zip(sizes, *made.to_numpy().T, strict=True):
        leaf = _leaf(int(size), *values) + noise * rng.normal(size=(size, 2))
        leaf = leaf - leaf.mean(axis=0)
        leaves.append(leaf / np.sqrt(np.square(leaf).sum(axis=1).mean()))
    subjects = Groups(np.repeat(np.arange(2 * number), sizes))
    return SimulatedShapes(np.concatenate(leaves), subjects, None, classes, made, None)


def simulate_tubes(
    num_controls: int = 6, num_cases: int = 4, *, noise: float = 0.01, seed: int = 0
) -> SimulatedShapes:
    r"""Bent tubes with a swelling at one end, thinner and less swollen in cases than in controls.

    A tube about the arc :math:`(\cos s, \sin s, 0)` for s from 0 to a length of N(1.6, 0.1²), with radius
    :math:`r (1 + h e^{-(s / 0.25)^2})`, where r is N(0.22, 0.01²), times 0.9 in cases, and h is
    N(0.5, 0.05²) in controls and N(0.35, 0.05²) in cases. Each has 16 rings of 8 points, and is turned
    by up to ten degrees. They stand in for the hippocampi of Yu (2016, section 3.7.3.4).

    Parameters
    ----------
    num_controls, num_cases : int
    noise : float
        Standard deviation of each coordinate.
    seed : int

    Returns
    -------
    SimulatedShapes
        Controls are class 0. With parameters ``length``, ``radius`` and ``swelling``; shapes are not turned.
    """
    rng, noise = np.random.default_rng(check_seed(seed)), _noise(noise)
    controls = check_integer("num_controls", num_controls)
    cases = check_integer("num_cases", num_cases)
    classes = np.repeat([0, 1], [controls, cases])
    deviates = rng.normal(size=(3, len(classes)))
    length = 1.6 + 0.1 * deviates[0]
    radius = (0.22 + 0.01 * deviates[1]) * np.where(classes == 1, 0.9, 1.0)
    swelling = np.where(classes == 1, 0.35, 0.5) + 0.05 * deviates[2]

    along = np.repeat(np.linspace(0, 1, 16), 8) * length[:, None]
    around = np.tile(2 * np.pi * np.arange(8) / 8, 16)
    thick = radius[:, None] * (1 + swelling[:, None] * np.exp(-np.square(along / 0.25)))
    outward = 1 + thick * np.cos(around)
    shapes = np.stack(
        [outward * np.cos(along), outward * np.sin(along), thick * np.sin(around)], axis=-1
    )
    axis = rng.normal(size=(len(classes), 3))
    angle = np.deg2rad(rng.uniform(0, 10, (len(classes), 1)))
    turns = Rotation.from_rotvec(angle * axis / np.linalg.norm(axis, axis=1, keepdims=True))
    turned = shapes @ turns.as_matrix()
    made = pd.DataFrame({"length": length, "radius": radius, "swelling": swelling})
    return _simulated(turned + noise * rng.normal(size=shapes.shape), classes, made, shapes)


def _noise(noise: float) -> float:
    return check_number("noise", noise, Range(least=0))


def _simulated(
    x: NDArray,
    classes: NDArray,
    parameters: pd.DataFrame,
    shapes: NDArray,
    *,
    corresponds: bool = True,
) -> SimulatedShapes:
    """Points of equally many per individual, (num_individuals, num_points, num_coordinates), as rows."""
    number, size, _ = x.shape
    landmarks = np.tile(np.arange(size), number) if corresponds else None
    subjects = Groups(np.repeat(np.arange(number), size))
    return SimulatedShapes(
        x.reshape(number * size, -1), subjects, landmarks, classes, parameters, shapes
    )


def _box(centre: float) -> NDArray:
    """Outline of 64 points against the clock from the lower left corner, (64, 2)."""
    left, right, rise = (-1.0, 0.0), (1.0, 0.0), 0.6
    first, last = (centre + 0.2, rise), (centre - 0.2, rise)
    turn = np.pi * np.arange(16) / 16
    bump = np.stack([centre + 0.2 * np.cos(turn), rise + 0.2 * np.sin(turn)], axis=1)
    return np.concatenate(
        [
            _line(left, right, 16),
            _line(right, (1.0, rise), 6),
            _line((1.0, rise), first, 10),
            bump,
            _line(last, (-1.0, rise), 10),
            _line((-1.0, rise), left, 6),
        ]
    )


def _line(start: tuple[float, float], end: tuple[float, float], size: int) -> NDArray:
    """Points at equal distances, the end left out, (size, 2)."""
    return np.linspace(start, end, size, endpoint=False)


def _leaf(size: int, width: float, asymmetry: float, phase: float) -> NDArray:
    """Points equally spaced along the outline, (size, 2)."""
    turn = np.linspace(0, 2 * np.pi, 4001)
    wave = 1 + 0.02 * np.sin(5 * turn + phase)
    across = width * np.sin(turn) * (1 + asymmetry * np.cos(turn))
    dense = np.stack([np.cos(turn) * wave, across * wave], axis=1)
    length = np.r_[0, np.cumsum(np.linalg.norm(np.diff(dense, axis=0), axis=1))]
    at = np.linspace(0, length[-1], size, endpoint=False)
    return np.stack([np.interp(at, length, column) for column in dense.T], axis=1)
