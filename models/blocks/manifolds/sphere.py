r"""The unit sphere in explicit coordinates: angles, exp and log maps, transport, charts, means.

Functions take arrays whose last axis holds the coordinates of a point, and broadcast over all other
axes. Their derivatives of any order are finite where two points coincide. Angles and logarithms
keep their relative accuracy for points that nearly coincide or are nearly opposite.

References
----------
Yu (2016), section 2.5, eqs. 2.49-2.54.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

__all__ = [
    "KarcherMean",
    "angle",
    "exp",
    "flow",
    "karcher_mean",
    "log",
    "tangent",
    "tangent_basis",
    "transport",
]

_SMALL = 1e-2
"""Squared length below which functions of a length are computed as series in its square."""
_COSINE = (1.0, -1 / 2, 1 / 24, -1 / 720, 1 / 40320)
_SINE = (1.0, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880)
_ARCSINE = (1.0, 1 / 6, 3 / 40, 15 / 336, 105 / 3456, 945 / 42240, 10395 / 599040)


def angle(first: Array, second: Array) -> Array:
    """Length of the geodesic between two points, in radians, from 0 to pi.

    Parameters
    ----------
    first, second : Array, shape (..., dimension + 1)
        Unit vectors.

    Returns
    -------
    Array, shape (...)
        The gradient is zero if both points are the same.
    """
    apart = jnp.square(first - second).sum(axis=-1)
    across = jnp.square(first + second).sum(axis=-1)
    return 2 * jnp.arctan2(_length(apart), _length(across))


def exp(point: Array, tangent: Array) -> Array:
    """Follow the geodesic that starts at a point along a tangent vector, for the vector's length.

    Parameters
    ----------
    point : Array, shape (..., dimension + 1)
        Unit vectors.
    tangent : Array, shape (..., dimension + 1)
        Orthogonal to these.

    Returns
    -------
    Array, shape (..., dimension + 1)
        Unit vectors.
    """
    cosine, sine = _turn(jnp.square(tangent).sum(axis=-1, keepdims=True))
    return cosine * point + sine * tangent


def flow(point: Array, velocity: Array, time: Array | float) -> tuple[Array, Array]:
    """Move along the great circle that starts at a point with a velocity, for some time.

    Parameters
    ----------
    point : Array, shape (..., dimension + 1)
        Unit vectors.
    velocity : Array, shape (..., dimension + 1)
        Orthogonal to these.
    time : float

    Returns
    -------
    point, velocity : Array, shape (..., dimension + 1)
        Values at the end; the speed is that at the start. Reversing the velocity leads back in the
        same time.
    """
    square = jnp.square(velocity).sum(axis=-1, keepdims=True)
    cosine, sine = _turn(jnp.square(time) * square)
    return cosine * point + time * sine * velocity, cosine * velocity - time * square * sine * point


def tangent(point: Array, vector: Array) -> Array:
    """Part of a vector that is orthogonal to a point; arrays of shape (..., dimension + 1)."""
    return vector - (point * vector).sum(axis=-1, keepdims=True) * point


def log(point: Array, other: Array) -> Array:
    """Tangent vector at a point whose geodesic ends at another; the inverse of `exp`.

    Parameters
    ----------
    point, other : Array, shape (..., dimension + 1)
        Unit vectors.

    Returns
    -------
    Array, shape (..., dimension + 1)
        NaN for opposite points, because many geodesics of the same length join them.
    """
    cosine = (point * other).sum(axis=-1, keepdims=True)
    near = cosine >= 0
    # differences of close points, and sums of nearly opposite ones, lose no digits
    chord = other - jnp.where(near, 1.0, -1.0) * point
    across = chord - (point * chord).sum(axis=-1, keepdims=True) * point
    square = jnp.square(across).sum(axis=-1, keepdims=True)  # of the sine of the angle
    sine = jnp.sqrt(jnp.where(square < _SMALL, 1.0, square))
    acute = jnp.arctan2(sine, jnp.abs(cosine)) / sine
    short = jnp.where(square < _SMALL, _series(_ARCSINE, square), acute)
    is_zero = square == 0
    long = jnp.pi / jnp.sqrt(jnp.where(is_zero, 1.0, square)) - short
    return jnp.where(near, short, jnp.where(is_zero, jnp.nan, long)) * across


def transport(start: Array, end: Array, tangent: Array) -> Array:
    """Move a tangent vector along the geodesic from one point to another, without turning it.

    Parameters
    ----------
    start, end : Array, shape (..., dimension + 1)
        Unit vectors that are not opposite.
    tangent : Array, shape (..., dimension + 1)
        Orthogonal to `start`.

    Returns
    -------
    Array, shape (..., dimension + 1)
        Orthogonal to `end`, with the same length.
    """
    across = start + end
    scale = jnp.square(across).sum(axis=-1, keepdims=True) / 2
    return tangent - (end * tangent).sum(axis=-1, keepdims=True) / scale * across


def tangent_basis(point: Array) -> Array:
    """Orthonormal basis of the tangent space at a point, which depends piecewise smoothly on the point.

    The (Householder) reflection that maps the point to the first axis, or to its opposite, maps the
    other axes to the basis. The basis jumps where the first coordinate changes its sign.

    Parameters
    ----------
    point : Array, shape (..., dimension + 1)
        Unit vectors.

    Returns
    -------
    Array, shape (..., dimension + 1, dimension)
        In columns.
    """
    size = point.shape[-1]
    sign = jnp.where(point[..., :1] >= 0, 1.0, -1.0)
    normal = point + sign * jnp.eye(1, size, dtype=point.dtype)[0]
    scale = 2 / jnp.square(normal).sum(axis=-1)[..., None, None]
    return (jnp.eye(size, dtype=point.dtype) - scale * normal[..., :, None] * normal[..., None, :])[
        ..., 1:
    ]


class KarcherMean(NamedTuple):
    """Point whose squared angles to others have the least weighted mean.

    Attributes
    ----------
    mean : Array, shape (dimension + 1,)
    tangents : Array, shape (num_points, dimension + 1)
        Logarithms of the points at the mean; their weighted mean is zero.
    variance : Array, shape ()
        Weighted mean of the squared angles.
    slope : Array, shape ()
        Length of the weighted mean of the tangents, zero at the mean.
    steps : Array, shape ()
    """

    mean: Array
    tangents: Array
    variance: Array
    slope: Array
    steps: Array


class _Walk(NamedTuple):
    found: KarcherMean
    step: Array


def karcher_mean(
    points: Array,
    weights: Array | None = None,
    *,
    start: Array | None = None,
    tol: float = 1e-12,
    max_steps: int = 200,
) -> KarcherMean:
    r"""Weighted intrinsic mean, by gradient descent with steps that are halved if they would ascend.

    .. math:: \mu = \arg\min_\nu \sum_m p_m d^2(\nu, y_m), \qquad
              \mu \leftarrow \exp_\mu \left(\tau \sum_m p_m \log_\mu y_m / \sum_m p_m\right)

    The mean is unique if all points lie in an open hemisphere. Weights are divided by their sum,
    which the source's eq. 2.54 leaves out.

    Parameters
    ----------
    points : Array, shape (num_points, dimension + 1)
        Unit vectors.
    weights : Array, shape (num_points,), optional
        Not negative, not all zero.
    start : Array, shape (dimension + 1,), optional
        By default the direction of the weighted mean of the vectors.
    tol : float
        Length of the mean tangent, in radians, at which the descent stops.
    max_steps : int
    """
    share = jnp.ones(len(points)) if weights is None else jnp.asarray(weights)
    share = share / share.sum()

    def look(mean: Array, steps: Array) -> KarcherMean:
        tangents = log(mean, points)
        slope = jnp.linalg.norm(share @ tangents)
        variance = share @ jnp.square(tangents).sum(axis=-1)
        return KarcherMean(mean, tangents, variance, slope, steps)

    def goes_on(walk: _Walk) -> Array:
        found = walk.found
        return (found.slope > tol) & (found.steps < max_steps) & (walk.step > 1e-10)

    def move(walk: _Walk) -> _Walk:
        found, step = walk
        end = exp(found.mean, step * (share @ found.tangents))
        new = look(end / jnp.linalg.norm(end), found.steps + 1)
        # near the mean rounding hides the descent of the variance, but not that of the gradient
        level = new.variance <= found.variance * (1 + 1e-14)
        better = (new.variance < found.variance) | (level & (new.slope < found.slope))
        kept: KarcherMean = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, found)
        step = jnp.where(better, jnp.minimum(1.0, 2 * step), step / 2)
        return _Walk(kept._replace(steps=new.steps), step)

    if start is None:
        start = share @ points
    first = look(start / jnp.linalg.norm(start), jnp.asarray(0))
    return jax.lax.while_loop(goes_on, move, _Walk(first, jnp.ones_like(first.slope))).found


def _length(square: Array) -> Array:
    """Square root with gradient zero at zero."""
    is_zero = square == 0
    return jnp.where(is_zero, 0.0, jnp.sqrt(jnp.where(is_zero, 1.0, square)))


def _turn(square: Array) -> tuple[Array, Array]:
    """Cosine of an angle, and its sine divided by the angle, as functions of the squared angle."""
    angle = jnp.sqrt(jnp.where(square < _SMALL, 1.0, square))
    cosine = jnp.where(square < _SMALL, _series(_COSINE, square), jnp.cos(angle))
    sine = jnp.where(square < _SMALL, _series(_SINE, square), jnp.sin(angle) / angle)
    return cosine, sine


def _series(coefficients: tuple[float, ...], square: Array) -> Array:
    return jnp.polyval(jnp.asarray(coefficients[::-1], square.dtype), square)
