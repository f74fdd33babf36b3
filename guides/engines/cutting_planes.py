"""Modes at edges of a density, such as absolute values have, by cutting planes.

At an edge slopes jump, so that they do not vanish at the mode, and quasi-Newton steps stop anywhere along it.
A concave log density lies below each of its tangent planes. The highest point below all of those known so far
is found by a linear program; its height bounds what a climb still lacks (Kelley 1960), and the plane there is
added to the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

__all__ = ["Summit", "summit"]

_MOST = 50
"""Coordinates up to which planes are looked at."""

_STEPS, _BASE, _IDLE = 10, 100, 60
"""Planes at most, so many per coordinate and some more; and programs after which one that bears none of their
solutions is let go."""

_LACK = 1e-4
"""Nats below which nothing is lacking."""

_SHARE = 0.1
"""Part of the promised rise by which the density must rise for a step to be taken."""

_WIDER, _NARROWER, _TRIES, _AT_BOUND = 10.0, 0.5, 3, 0.999
"""Factors of the reach after a step that was taken at its bound, and after so many that were not; and the
part of the reach from which on a step is at its bound."""

_BENT = 0.01
"""Part of a change by which a plane may pass below the density, as where scales are estimated: such a density
is concave only in its slopes."""

_ROUNDING = 100.0
"""Rounding of log densities, in units of the last place."""

_PRECISION = 1e-10
"""Tolerance of linear programs, whose planes may be all but parallel."""


class Summit(NamedTuple):
    """Where a climb by cutting planes ended.

    Attributes
    ----------
    move : ndarray, shape (num_coordinates,)
        From where it began.
    rise : float
        Nats by which the density is higher there.
    certain : bool
        Whether the planes leave room for less than a ten-thousandth of a nat, and the density is concave
        nearby.
    """

    move: NDArray
    rise: float
    certain: bool


class _Planes(NamedTuple):
    """Tangent planes: where they touch, their heights and slopes, and programs since they bore a solution."""

    points: NDArray
    values: NDArray
    slopes: NDArray
    idle: NDArray

    def above(self, point: NDArray) -> NDArray:
        """Heights above a point, shape (num_planes,)."""
        heights: NDArray = self.values + ((point - self.points) * self.slopes).sum(axis=1)
        return heights

    def bound(self, points: NDArray, values: NDArray) -> NDArray[np.bool_]:
        """Whether each passes above log densities at points, shape (num_planes, num_points)."""
        rises = (points - self.points[:, None]) * self.slopes[:, None]
        change, own = np.abs(rises).sum(axis=2), self.values[:, None]
        with np.errstate(invalid="ignore"):  # where the density is not finite, nothing is bound
            below = values - own - rises.sum(axis=2)
            allowed = _BENT * (change + np.abs(values - own)) + _rounding(np.abs(own) + change)
            return np.asarray(below <= allowed)

    def bound_one_another(self) -> bool:
        """Whether this is so where the others touch, as planes of a concave density."""
        return bool(self.bound(self.points, self.values).all())

    def with_others(self, others: _Planes) -> _Planes:
        return _Planes(*map(np.concatenate, zip(self, others, strict=True)))

    def only(self, kept: NDArray[np.bool_]) -> _Planes:
        return _Planes(*(leaf[kept] for leaf in self))


def summit(
    spots: NDArray[np.intp],
    here: NDArray,
    width: NDArray,
    density: Callable[[NDArray], tuple[NDArray, NDArray]],
) -> Summit:
    """Climb to a mode by cutting planes; nothing is certain where they do not bound the density nearby.

    Parameters
    ----------
    spots : ndarray of int, shape (num_moved,)
        Coordinates that are moved; the climb does not begin if they are too many.
    here : ndarray, shape (num_coordinates,)
        Where the climb begins.
    width : ndarray, shape (num_moved,)
        Length of the first steps.
    density : callable
        Log densities and their gradients at rows of coordinates.
    """

    def at(moves: NDArray) -> _Planes:
        rows = np.repeat(here[None], len(moves), axis=0)
        rows[:, spots] += moves
        values, slopes = density(rows)
        return _Planes(moves, values, slopes[:, spots], np.zeros(len(moves), int))

    def around(move: NDArray) -> _Planes:
        steps = np.diag(width)
        return at(move + np.concatenate([np.zeros((1, len(spots))), steps, -steps]))

    moved, certain = np.zeros_like(here), False
    if not 0 < len(spots) <= _MOST:
        return Summit(moved, 0.0, certain)
    move, reach, failed = np.zeros(len(spots)), 1.0, 0
    planes, fresh, whole = around(move), True, True
    start = height = planes.values[0]
    for _ in range(_STEPS * len(spots) + _BASE):
        if _rounding(np.abs(height)) > _LACK or (fresh and not planes.bound_one_another()):
            break
        valid = planes.bound(move[None], height)[:, 0]
        whole = whole and bool(valid.all())
        found = _highest(planes.only(valid), move, height, reach * width)
        if found is None:
            break
        step, promised, planes = found
        at_bound = np.abs(step / width).max() >= _AT_BOUND * reach
        if promised <= _LACK and not at_bound:
            certain = whole and planes.bound_one_another()
            if certain or fresh:
                break
            planes, reach, fresh, whole = around(move), 1.0, True, True
            continue
        new, fresh = at((move + step)[None]), False
        planes = planes.with_others(new)
        if new.values[0] - height >= _SHARE * promised:
            move, height, failed = new.points[0], new.values[0], 0
            reach *= _WIDER if at_bound else 1.0
        else:
            failed += 1
            if at_bound and failed >= _TRIES:
                reach, failed = _NARROWER * reach, 0
    moved[spots] = move
    return Summit(moved, float(height - start), certain)


def _rounding(size: NDArray) -> NDArray:
    rounding: NDArray = _ROUNDING * np.finfo(size.dtype).eps * (1 + size)
    return rounding


def _highest(
    planes: _Planes, here: NDArray, height: float, reach: NDArray
) -> tuple[NDArray, float, _Planes] | None:
    """Step to the highest point below all planes within reach, its height, and the planes of use.

    Parameters
    ----------
    planes : _Planes
    here : ndarray, shape (num_moved,)
        From where the step is taken.
    height : float
        Log density there.
    reach : ndarray, shape (num_moved,)
        Largest step.

    Returns
    -------
    tuple or None
        None if the linear program fails.
    """
    slopes = planes.slopes * reach
    size = np.abs(slopes).max() or 1.0
    found = linprog(
        np.append(np.zeros(len(here)), -1.0),
        A_ub=np.column_stack([-slopes / size, np.ones(len(slopes))]),
        b_ub=np.maximum(planes.above(here) - height, 0.0) / size,
        bounds=[(-1.0, 1.0)] * len(here) + [(None, None)],
        method="highs-ds",
        options={
            "presolve": False,
            "primal_feasibility_tolerance": _PRECISION,
            "dual_feasibility_tolerance": _PRECISION,
        },
    )
    if not found.success or found.x is None or found.fun is None:
        return None
    idle = np.where(found.ineqlin.marginals < 0, 0, planes.idle + 1)
    used = planes._replace(idle=idle).only(idle <= _IDLE)
    return reach * found.x[:-1], -size * found.fun, used
