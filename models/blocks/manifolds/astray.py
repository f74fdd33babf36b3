"""Individuals with a landmark far from where others have it, or far from all others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from sidebayes.common.warnings import warn_user

from . import preshape

__all__ = ["distances_from", "few", "warn_of_astray"]

_angles = jax.jit(preshape.shape_angle)
_ASTRAY = 10.0
"""Multiple of the usual deviation from which on a landmark or an individual is far off."""
_LEAST = 6
"""Minimum number of individuals for a usual deviation."""
_MOST = 20
"""Maximum number of individuals that are looked at."""
_NONE = 1e-9
"""Distance of preshapes that counts as none."""


def warn_of_astray(
    shapes: NDArray,
    present: NDArray[np.bool_],
    reference: NDArray,
    names: NDArray,
    far: NDArray,
    usual: float,
    marks: tuple[str, ...] | None,
) -> None:
    """Warn about distant individuals with one landmark far off, or that are far from all others.

    More than a tenth of the individuals may be a group of their own.

    Parameters
    ----------
    shapes : ndarray, shape (num_individuals, num_landmarks, num_axes)
        Preshapes rotated to their mean.
    present : ndarray of bool, shape (num_individuals, num_landmarks)
        Landmarks that were seen. Others were filled in, and tell nothing.
    reference : ndarray, shape (num_landmarks, num_axes)
    names : ndarray, shape (num_individuals,)
    far : ndarray, shape (num_individuals,)
        Distances from the reference; zero for individuals that need not be looked at.
    usual : float
        Median distance.
    marks : tuple of str, optional
        Names of the landmarks.
    """
    if len(shapes) < _LEAST:
        return
    deviation = np.where(present, np.linalg.norm(shapes - reference, axis=2), np.nan)
    by_mark = np.maximum(np.nanmedian(deviation, axis=0), np.nanmedian(deviation))
    whole = float(np.median(np.sqrt(np.nanmean(np.square(deviation), axis=1))))
    one_off, all_off = [], []
    # a few landmarks fit whichever is left out
    is_told = present.sum(axis=1) > 2 * shapes.shape[2]
    for one in np.argsort(-far)[:_MOST]:
        if not far[one] > max(usual, _NONE):
            continue
        seen = np.flatnonzero(present[one])
        worst, off, rest = _worst_landmark(shapes[one, seen], reference[seen])
        mark = int(seen[worst])
        if is_told[one] and off > _ASTRAY * by_mark[mark] and rest < 3 * whole:
            one_off.append((one, mark))
        elif _nearest(shapes, present, one) > _ASTRAY * usual:
            all_off.append(one)
    if 0 < len(one_off) <= max(1, len(shapes) // 10):
        shown = [
            f"landmark {marks[k] if marks else k} of individual {names[one]!r}"
            for one, k in sorted(one_off)
        ]
        warn_user(
            f"landmarks lie more than {_ASTRAY:g} times as far off as is usual, and the others of their "
            f"individuals do not: {', '.join(shown[:5])}{', ...' * (len(shown) > 5)}. Look whether they are "
            "right, or leave them out as missing"
        )
    if 0 < len(all_off) <= max(1, len(shapes) // 10):
        warn_user(
            f"individuals are more than {_ASTRAY:g} times as far from all others as is usual: "
            f"{few(names[np.sort(all_off)])}. Look whether their landmarks are right, or drop them"
        )


def distances_from(shapes: NDArray, reference: NDArray) -> NDArray[np.float64]:
    """Riemannian distances of preshapes from one of them, by their best rotations."""
    with jax.enable_x64(True):
        return np.asarray(_angles(jnp.asarray(reference), jnp.asarray(shapes)))


def few(names: NDArray) -> str:
    """At most five names."""
    shown = ", ".join(repr(one) for one in names[:5])
    return shown + (", ..." if len(names) > 5 else "")


def _nearest(shapes: NDArray, present: NDArray[np.bool_], one: int) -> float:
    """Distance of an individual to the nearest of the others, by the landmarks that it has."""
    some = shapes[:, present[one]]
    some = some - some.mean(axis=1, keepdims=True)
    some = some / np.maximum(np.linalg.norm(some, axis=(1, 2), keepdims=True), _NONE)
    return float(np.delete(distances_from(some, some[one]), one).min())


def _worst_landmark(shape: NDArray, reference: NDArray) -> tuple[int, float, float]:
    """Landmark without which a shape fits a reference best, how far off it is, and the rest (RMS)."""
    used = ~np.eye(len(shape), dtype=bool)[:, :, None]
    count = len(shape) - 1

    own, target = (one - (one.sum(axis=0) - one)[:, None] / count for one in (shape, reference))
    left, values, right = np.linalg.svd(np.swapaxes(own * used, 1, 2) @ target)
    sign = np.sign(np.linalg.det(left @ right))
    left[..., -1] *= sign[:, None]
    values[:, -1] *= sign
    scale = values.sum(axis=1) / np.maximum(np.square(own * used).sum(axis=(1, 2)), _NONE**2)
    off = np.linalg.norm(scale[:, None, None] * own @ left @ right - target, axis=2)
    rest = np.sqrt((np.square(off) * used[..., 0]).sum(axis=1) / count)
    worst = int(rest.argmin())
    return worst, float(off[worst, worst]), float(rest[worst])
