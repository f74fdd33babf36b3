"""Log density of point clouds without correspondence, about the points of shapes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["log_point_mixture"]


@jax.custom_vjp
def log_point_mixture(x: Array, subjects: Array, shapes: Array, scale: Array) -> Array:
    r"""Log density of the points of each individual, each about one of the points of its shape.

    .. math:: \sum_n \log \frac1T \sum_t N(x_n; u_t, s^2 I)

    Parameters
    ----------
    x : Array, shape (num_rows, num_axes)
        Points of all individuals, in any order.
    subjects : Array of int, shape (num_rows,)
        Individual of each point, from 0 on; -1 for points that do not count.
    shapes : Array, shape (num_individuals, num_points, num_axes)
        Points u of the shape of each individual.
    scale : Array, shape ()
        s, in the unit of `x`.

    Returns
    -------
    Array, shape (num_individuals,)
    """
    square = jnp.square(x[:, None] - shapes[subjects]).sum(axis=-1)
    found = jax.nn.logsumexp(-square / (2 * scale**2), axis=1) - _log_norm(shapes, scale)
    return jax.ops.segment_sum(found, subjects, len(shapes))  # which ignores negative indices


def _log_norm(shapes: Array, scale: Array) -> Array:
    """Minus the log density of a point at its only possible place."""
    _, number, axes = shapes.shape
    return jnp.log(number) + axes * jnp.log(scale * jnp.sqrt(2 * jnp.pi))


def _with_slopes(x: Array, subjects: Array, shapes: Array, scale: Array) -> tuple[Array, tuple]:
    """The log density with its gradients, one point of every individual after another.

    The gradient of JAX adds up entries row by row, with about ten times the time and memory.
    """
    known = jnp.where(subjects < 0, len(shapes), subjects)
    order = jnp.argsort(known)
    counts = jnp.bincount(known, length=len(shapes))
    first = counts.cumsum() - counts

    def add(place: Array, carry: tuple) -> tuple:
        total, along_shapes, along_x, along_scale = carry
        row = order[jnp.minimum(first + place, len(x) - 1)]
        there = place < counts
        apart = x[row][:, None] - shapes
        square = jnp.square(apart).sum(axis=-1)
        powers = -square / (2 * scale**2)
        top = powers.max(axis=1, keepdims=True)
        share = jnp.exp(powers - top)
        mass = share.sum(axis=1, keepdims=True)
        found = (top + jnp.log(mass))[:, 0]
        share = jnp.where(there[:, None], share / mass, 0.0)
        slope = share[..., None] * apart / scale**2
        return (
            total + jnp.where(there, found, 0.0),
            along_shapes + slope,
            along_x.at[row].add(-slope.sum(axis=1)),
            along_scale + (share * square).sum(axis=1) / scale**3,
        )

    blank = jnp.zeros(len(shapes), x.dtype)
    start = blank, jnp.zeros_like(shapes), jnp.zeros_like(x), blank
    total, *slopes = jax.lax.fori_loop(0, counts.max(), add, start)
    along_scale = slopes[2] - counts * shapes.shape[2] / scale
    return total - counts * _log_norm(shapes, scale), (subjects, *slopes[:2], along_scale)


def _back(kept: tuple, change: Array) -> tuple:
    subjects, along_shapes, along_x, along_scale = kept
    return (
        change[subjects][:, None] * along_x,
        None,
        change[:, None, None] * along_shapes,
        change @ along_scale,
    )


log_point_mixture.defvjp(_with_slopes, _back)
