"""Directions in which a density under flat priors has no peak: ridges, and rises that level off far out.

The gradient vanishes there as it does at a mode. From a peak the density falls on all sides.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .base import Problem
from .problem.density import abstract_trace, latent_sites
from .problem.honoured import is_improper

__all__ = ["flat_sites", "without_peak"]

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

_SHORT = 0.5
"""Nats that Newton's step promises from which on a climb has stopped short of the mode."""

_SHARE = 0.01
"""Share of a direction, squared, from which on it lies in a site."""

_NEAR, _APART = 0.01, 0.1
"""Nats between ends of one height, and distance from which on they are at two places, in sizes of these."""


def flat_sites(problem: Problem) -> tuple[str, ...]:
    """Latent sites under flat priors but those of blocks, which know what data determine."""
    return tuple(
        name
        for name, site in latent_sites(abstract_trace(problem)).items()
        if is_improper(site["fn"]) and (site.get("infer") or {}).get("block") is None
    )


def _flat(sites: tuple[str, ...]) -> str:
    """Say that nothing determines sites but flat priors."""
    one = len(sites) == 1
    return (
        f"the density does not fall along a direction in {', '.join(sites)}, whose "
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
    if not 0 < len(spots) <= _MOST:
        return ""

    def along(moves: NDArray, where: NDArray) -> NDArray:
        rows = np.zeros((len(moves), len(here)))
        rows[:, where] = moves
        return slopes(here + rows)[:, where]

    eps = np.finfo(points.dtype).eps
    width = np.cbrt(eps) * (1 + np.abs(here[spots]))
    still = np.zeros((1, len(spots)))
    found = along(np.concatenate([np.diag(width), -np.diag(width), still]), spots)
    ahead, behind, slope = found[: len(spots)], found[len(spots) : -1], found[-1]
    bend = (behind - ahead) / (2 * width)[:, None]
    if not np.isfinite(bend).all():
        return ""
    bend = (bend + bend.T) / 2
    curvature, axes, size = _curvature(bend)
    along_axes, steep = axes.T @ (slope / size), np.abs(curvature) > _SHALLOW
    gains = np.square(along_axes[steep]) / np.abs(curvature[steep]) / 2
    if gains.sum() > _SHORT:
        most = axes[:, steep][:, gains.argmax()] / size
        return _short(_named(sites[spots], most), float(gains.sum()))
    line = straight[spots]
    where = spots[line]
    for move in _outwards(bend[np.ix_(line, line)], slope[line]):
        reach = _REACH * (1 + np.abs(here[where]).max()) / np.abs(move).max()
        moves = np.multiply.outer(_FARTHER, min(1.0, reach) * move)
        falls = -(along(moves, where) * moves).sum(axis=1)
        if (falls < _FALL).all():  # a density that is not finite there counts as fallen
            return _flat(_named(sites[where], move))
    apart = np.abs(points[:, spots] - here[spots]) > _APART * (1 + np.abs(here[spots]))
    alike = (np.abs(values - values[end]) < _NEAR) & apart.any(axis=1)
    if curvature[0] < np.sqrt(eps) and alike.any():  # a ridge that is no line
        return _flat(_named(sites[spots], axes[:, 0] / size))
    return ""


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
