"""What slopes near the ends of climbs tell: short of the mode, at a corner, or where there is no peak at all.

Gradients may be small far from a mode in units in which it is wide. Under flat priors they vanish along
ridges, and where a rise levels off far out, as they do at a mode. At a corner, such as a Laplace prior has,
they never vanish. From a peak the density falls on all sides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .base import Problem
from .cutting_planes import summit
from .problem.density import abstract_trace, latent_sites
from .problem.honoured import is_improper

__all__ = [
    "FLAT",
    "Short",
    "at_corner",
    "flat_sites",
    "own_sites",
    "short_of_mode",
    "short_of_summit",
    "without_peak",
]

FLAT = "the density does not fall along a direction in"
"""Beginning of what is said where nothing but flat priors determines sites."""

_MOST = 100
"""Coordinates up to which curvature is looked at; each costs two gradients."""

_SHALLOW = 1e-4
"""Curvature, with a unit diagonal, below which it is asked whether the density falls in its direction."""

_WIDTHS, _FARTHER = 3.0, np.array([1.0, 10.0, 100.0, 1000.0])
"""Where slopes are looked at: standard deviations out, as the curvature has it, and multiples of that."""

_REACH = 1e3
"""The first of these distances at most, in sizes of the coordinates. Farther out a slope is rounding."""

_FALL = 0.5
"""Nats that a slope must promise over such a distance for the density to fall. A density that falls as slowly
as a power of the distance does so by at least as many as its exponent."""

_SHORT, _LITTLE = 0.5, 1e-4
"""Nats that Newton's step promises from which on a climb has stopped short of the mode, and from which on it
goes on: it is then farther away than a hundredth of a standard deviation."""

_PARTS = np.array([1.0, 0.5, 0.1, 0.01])
"""Parts of Newton's step that a climb may take, the longest first."""

_BEYOND = 0.1
"""Share of the first slope by which the density may fall again at the end of such a part."""

_CLOSER, _KEPT, _TRACE = 0.01, 0.5, 0.05
"""Part of a distance, and parts of the change of a slope over it that are left there at a corner, for the
slope in the coordinate that moves and for others. Where the density is smooth, all parts are equal."""

_ROUNDING, _UNRELATED = 1e-9, 1e-3
"""Smaller changes of a slope may be rounding: relative to the largest slope, or as correlations."""

_SHARE = 0.01
"""Share of a direction, squared, from which on it lies in a site."""

_NEAR, _APART = 0.01, 0.1
"""Nats between ends of one height, and distance from which on they are at two places, in sizes of these."""


class Short(NamedTuple):
    """A climb that has not arrived at the mode.

    Attributes
    ----------
    move : ndarray, shape (num_coordinates,)
        Where it should go on from, as a difference; zero if the density does not rise that way.
    said : str
        That it stopped short of the mode; empty if little is missing.
    """

    move: NDArray
    said: str


def own_sites(problem: Problem) -> tuple[str, ...]:
    """Latent sites but those of blocks, which know their units and what data determine."""
    return tuple(
        name
        for name, site in latent_sites(abstract_trace(problem)).items()
        if (site.get("infer") or {}).get("block") is None
    )


def flat_sites(problem: Problem) -> tuple[str, ...]:
    """Those of `own_sites` whose priors are flat."""
    latent = latent_sites(abstract_trace(problem))
    return tuple(name for name in own_sites(problem) if is_improper(latent[name]["fn"]))


def _flat(sites: tuple[str, ...]) -> str:
    """Say that nothing determines sites but flat priors."""
    one = len(sites) == 1
    return (
        f"{FLAT} {', '.join(sites)}, whose "
        f"{'prior is' if one else 'priors are'} flat: the data do not determine {'it' if one else 'them'}, "
        f"or send {'it' if one else 'them'} to infinity, as where classes are separated; take "
        f"{'a proper prior' if one else 'proper priors'}"
    )


def _short(sites: tuple[str, ...], gain: float) -> str:
    """Say that a climb has not arrived."""
    return (
        f"it stopped where the density still rises along {', '.join(sites)}, by some {gain:.2g} nats; "
        "rescale the data so that their values are near one, or pass init= closer to the mode"
    )


class _Bend(NamedTuple):
    """Slope and negative Hessian at a point, and eigenvalues and axes of the latter with a unit diagonal."""

    slope: NDArray
    hessian: NDArray
    curvature: NDArray
    axes: NDArray
    size: NDArray

    def newton(self, sites: NDArray) -> tuple[NDArray, float, str]:
        """Newton's step, the gain that it promises, and a sentence on that; empty if it is little."""
        along, steep = self.axes.T @ (self.slope / self.size), np.abs(self.curvature) > _SHALLOW
        steps = np.where(steep, along / np.abs(np.where(steep, self.curvature, 1.0)), 0.0)
        gains = along * steps / 2
        most = self.axes[:, gains.argmax()] / self.size
        gain = float(gains.sum())
        said = _short(_named(sites, most), gain) if gain > _SHORT else ""
        return self.axes @ steps / self.size, gain, said


def at_corner(
    sites: NDArray, here: NDArray, slopes: Callable[[NDArray], NDArray]
) -> tuple[NDArray[np.bool_], bool]:
    """Find the coordinates in which the density falls both ways, and across which no other slope jumps.

    Parameters
    ----------
    sites, here, slopes
        See `short_of_mode`.

    Returns
    -------
    corners : ndarray of bool, shape (num_coordinates,)
    aslant : bool
        Whether slopes jump elsewhere, as at an edge along which the density may rise.
    """
    spots = np.flatnonzero(sites != "")
    found = np.zeros(here.shape, bool)
    if not 0 < len(spots) <= _MOST:
        return found, False
    moves = np.diag(_width(here[spots]))
    along = _along(spots, here, slopes)
    ahead, behind = along(moves), along(-moves)
    near, close = along(_CLOSER * moves), along(-_CLOSER * moves)
    own = np.eye(len(spots), dtype=bool)
    over, change = np.abs(behind - ahead), np.abs(close - near)
    size = np.sqrt(np.diagonal(change))
    least = np.maximum(_ROUNDING * np.abs(near).max(), _UNRELATED * np.outer(size, size))
    jumps = change > np.maximum(np.where(own, _KEPT, _TRACE) * over, least)
    falls = np.diagonal((np.maximum(ahead, near) < 0) & (np.minimum(behind, close) > 0))
    found[spots] = falls & (jumps == own).all(axis=1)
    return found, bool((jumps & ~found[spots, None]).any())


def short_of_mode(
    sites: NDArray, here: NDArray, slopes: Callable[[NDArray], NDArray]
) -> Short | None:
    """Say whether a climb stopped short of the mode, and from where it may go on; None if it arrived.

    Parameters
    ----------
    sites : ndarray of str, shape (num_coordinates,)
        Sites of the coordinates that are not far out; empty for those that are passed over.
    here : ndarray, shape (num_coordinates,)
        Where it stopped.
    slopes : callable
        Gradients of the log density at rows of coordinates.
    """
    spots = np.flatnonzero(sites != "")
    bend = _bent(spots, here, slopes)
    if bend is None:
        return None
    step, gain, said = bend.newton(sites[spots])
    if gain <= _LITTLE:
        return None
    rises = _along(spots, here, slopes)(np.multiply.outer(_PARTS, step)) @ step
    taken = _PARTS[rises >= -_BEYOND * (bend.slope @ step)]
    move = np.zeros_like(here)
    if len(taken):
        move[spots] = taken[0] * step
    return Short(move, said)


def short_of_summit(
    sites: NDArray, here: NDArray, density: Callable[[NDArray], tuple[NDArray, NDArray]]
) -> Short | None:
    """Look from an edge for where the density is highest, by cutting planes; None if that is hardly higher.

    Parameters
    ----------
    sites, here
        See `short_of_mode`.
    density : callable
        Log densities and their gradients at rows of coordinates.
    """
    spots = np.flatnonzero(sites != "")
    top = summit(spots, here, _width(here[spots]), density)
    if top.certain and top.rise <= _LITTLE:
        return None
    return Short(top.move if top.certain or top.rise > _SHORT else np.zeros_like(here), "")


def without_peak(
    sites: NDArray,
    straight: NDArray[np.bool_],
    points: NDArray,
    values: NDArray,
    end: int,
    slopes: Callable[[NDArray], NDArray],
) -> str:
    """Say in which direction the density does not fall from where a climb ended; empty if it falls.

    Parameters
    ----------
    sites : ndarray of str, shape (num_coordinates,)
        Sites of the coordinates under flat priors that are not far out; empty for others.
    straight : ndarray of bool, shape (num_coordinates,)
        Coordinates whose map to the support is nowhere flat.
    points : ndarray, shape (num_ends, num_coordinates)
    values : ndarray, shape (num_ends,)
        Log densities there.
    end : int
    slopes : callable
        Gradients of the log density at rows of coordinates.
    """
    spots, here = np.flatnonzero(sites != ""), points[end]
    bend = _bent(spots, here, slopes)
    if bend is None:
        return ""
    if said := bend.newton(sites[spots])[2]:
        return said
    line = straight[spots]
    where = spots[line]
    along = _along(where, here, slopes)
    for move in _outwards(bend.hessian[np.ix_(line, line)], bend.slope[line]):
        reach = _REACH * (1 + np.abs(here[where]).max()) / np.abs(move).max()
        moves = np.multiply.outer(_FARTHER, min(1.0, reach) * move)
        falls = -(along(moves) * moves).sum(axis=1)
        if (falls < _FALL).all():  # a density that is not finite there counts as fallen
            return _flat(_named(sites[where], move))
    apart = np.abs(points[:, spots] - here[spots]) > _APART * (1 + np.abs(here[spots]))
    alike = (np.abs(values - values[end]) < _NEAR) & apart.any(axis=1)
    if (
        bend.curvature[0] < np.sqrt(np.finfo(points.dtype).eps) and alike.any()
    ):  # a ridge that is no line
        return _flat(_named(sites[spots], bend.axes[:, 0] / bend.size))
    return ""


def _along(
    spots: NDArray, here: NDArray, slopes: Callable[[NDArray], NDArray]
) -> Callable[[NDArray], NDArray]:
    """Gradients in some coordinates, at rows of moves in them."""

    def along(moves: NDArray) -> NDArray:
        rows = np.zeros((len(moves), len(here)))
        rows[:, spots] = moves
        return slopes(here + rows)[:, spots]

    return along


def _bent(spots: NDArray, here: NDArray, slopes: Callable[[NDArray], NDArray]) -> _Bend | None:
    """Curvature in some coordinates by finite differences; None if they are too many, or it is not finite."""
    if not 0 < len(spots) <= _MOST:
        return None
    width = _width(here[spots])
    still = np.zeros((1, len(spots)))
    moves = np.concatenate([np.diag(width), -np.diag(width), still])
    found = _along(spots, here, slopes)(moves)
    if not np.isfinite(found).all():
        return None
    ahead, behind, slope = found[: len(spots)], found[len(spots) : -1], found[-1]
    hessian = (behind - ahead) / (2 * width)[:, None]
    hessian = (hessian + hessian.T) / 2
    return _Bend(slope, hessian, *_curvature(hessian))


def _width(values: NDArray) -> NDArray:
    """Distances over which slopes are compared."""
    width: NDArray = np.cbrt(np.finfo(values.dtype).eps) * (1 + np.abs(values))
    return width


def _curvature(bend: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Eigenvalues and axes of the negative Hessian with a unit diagonal, and roots of its diagonal."""
    size = np.sqrt(np.abs(np.diag(bend)))
    size[size == 0] = 1.0
    values, axes = np.linalg.eigh(bend / np.outer(size, size))
    return values, axes, size


def _outwards(bend: NDArray, slope: NDArray) -> list[NDArray]:
    """Moves in which the density may not fall: both ways along shallow axes, and where Newton's step goes."""
    if not len(bend):
        return []
    curvature, axes, size = _curvature(bend)
    positive = np.maximum(curvature, np.finfo(bend.dtype).eps)
    shallow = [axis / root for axis, root in zip(axes.T, np.sqrt(positive), strict=True)]
    shallow = [axis for axis, value in zip(shallow, curvature, strict=True) if value < _SHALLOW]
    newton = axes @ ((axes.T @ (slope / size)) / positive)
    length = np.sqrt(np.square(axes.T @ newton) @ positive)
    moves = [sign * axis for axis in shallow for sign in (1.0, -1.0)]
    moves += [newton / length] if length > 0 else []
    return [_WIDTHS * move / size for move in moves]


def _named(sites: NDArray, move: NDArray) -> tuple[str, ...]:
    """Sites that a move goes along."""
    share = np.square(move) / np.square(move).sum()
    return tuple(dict.fromkeys(sites[share > _SHARE].tolist()))
