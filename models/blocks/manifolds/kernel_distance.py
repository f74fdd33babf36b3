r"""Distance of point clouds without correspondence: the kernel distance of their empirical measures.

References
----------
Yu (2016), sections 3.4 and 3.5, eq. 3.3.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

__all__ = ["kernel_distance", "self_similarity"]


def kernel_distance(
    x: Array, subjects: Array, shapes: Array, width: ArrayLike, *, own: Array | None = None
) -> Array:
    r"""Squared kernel distance between the points of each individual and those of its shape.

    .. math:: d_i^2 = \frac{1}{N_i^2} \sum_{n n'} K(x_n, x_{n'}) + \frac{1}{T^2} \sum_{t t'} K(u_t, u_{t'})
              - \frac{2}{N_i T} \sum_{n t} K(x_n, u_t), \qquad
              K(a, b) = \exp\left(-\frac{|a - b|^2}{2 \sigma^2}\right)

    It is zero for equal clouds, and invariant if points are renumbered or both clouds are moved
    together. The source uses sums instead of averages, with which the least distance of a shape to
    N points of a curve would grow with N. With N = T, the source's distance is this one times N T.

    Parameters
    ----------
    x : Array, shape (num_rows, num_coordinates)
        Points of all individuals, in any order.
    subjects : Array of int, shape (num_rows,)
        Individual of each point, from 0 on; -1 for points that do not count.

    shapes : Array, shape (num_individuals, num_points, num_coordinates)
        Points u of the shape of each individual.
    width : float
        Width :math:`\sigma` of the kernel, positive, in the unit of `x`.
    own : Array, shape (num_individuals,), optional
        `self_similarity` of the data at this width, if it is known: it does not depend on the
        shapes.

    Returns
    -------
    Array, shape (num_individuals,)
        Not negative, up to rounding; zero for individuals without points.
    """
    x, subjects, shapes = map(jnp.asarray, (x, subjects, shapes))
    number = len(shapes)
    if own is None:
        own = self_similarity(x, subjects, number, width)
    width = jnp.asarray(width, x.dtype)
    across, counts = _across(x, jnp.argsort(subjects), subjects, shapes, width)
    points = shapes.reshape(-1, shapes.shape[-1])
    owners = jnp.repeat(jnp.arange(number), shapes.shape[1])
    within, _ = _across(points, jnp.arange(len(points)), owners, shapes, width)
    return jnp.where(counts > 0, own + within - 2 * across, 0.0)


def self_similarity(x: Array, subjects: Array, num_individuals: int, width: ArrayLike) -> Array:
    """Mean kernel between the points of each individual, including each point with itself.

    Parameters
    ----------
    x : Array, shape (num_rows, num_coordinates)
    subjects : Array of int, shape (num_rows,)
        Individual of each point, from 0 on; -1 for points that count nowhere.
    num_individuals : int
    width : float
        Positive, in the unit of `x`.

    Returns
    -------
    Array, shape (num_individuals,)
        Zero for individuals without points. It has no reverse-mode gradient, which is not needed
        because data and width are known.
    """
    order = jnp.argsort(jnp.asarray(subjects))
    points, codes = jnp.asarray(x)[order], jnp.asarray(subjects)[order]
    place = jnp.arange(len(x))

    def partner(shift: Array) -> tuple[Array, Array]:
        """Point at this shift, and whether it belongs to the same individual."""
        other = jnp.minimum(place + shift, len(x) - 1)
        return other, (place + shift < len(x)) & (codes[other] == codes) & (codes >= 0)

    def goes_on(carry: tuple[Array, Array]) -> Array:
        return partner(carry[0])[1].any()

    def add(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        # each pair of points of an individual is met once, at one shift, in order of individuals
        shift, total = carry
        other, same = partner(shift)
        found = _kernel(jnp.square(points - points[other]).sum(axis=-1), width)
        return shift + 1, total + jnp.where(same, found, 0.0)

    start = jnp.asarray(1), jnp.zeros(len(x), x.dtype)
    _, pairs = jax.lax.while_loop(goes_on, add, start)
    sums, counts = _by_subject(1 + 2 * pairs, codes, num_individuals)
    return sums / jnp.maximum(counts, 1) ** 2


@jax.custom_vjp
def _across(
    x: Array, order: Array, subjects: Array, shapes: Array, width: Array
) -> tuple[Array, Array]:
    """Mean kernel between the points of each individual and its shape, and its number of points.

    `order` sorts the points by individual.
    """
    square = jnp.square(x[:, None] - shapes[subjects]).sum(axis=-1)
    sums, counts = _by_subject(_kernel(square, width).mean(axis=1), subjects, len(shapes))
    return sums / jnp.maximum(counts, 1), counts


def _across_with_slopes(
    x: Array, order: Array, subjects: Array, shapes: Array, width: Array
) -> tuple:
    """`_across` with its gradients, one point of every individual after another.

    The gradient of JAX adds up entries row by row, with about ten times the time and memory.
    """
    number, size, _ = shapes.shape
    known = jnp.where(subjects < 0, number, subjects)
    counts = jnp.bincount(known, length=number)
    first = len(x) - counts[::-1].cumsum()[::-1]  # rows of no individual come before all others

    def add(place: Array, carry: tuple) -> tuple:
        total, along_shapes, along_x, along_width = carry
        row = order[jnp.minimum(first + place, len(x) - 1)]
        apart = x[row][:, None] - shapes
        square = jnp.square(apart).sum(axis=-1)
        share = (place < counts) / (size * jnp.maximum(counts, 1))
        found = share[:, None] * _kernel(square, width)
        slope = found[..., None] * apart / width**2
        return (
            total + found.sum(axis=1),
            along_shapes + slope,
            along_x.at[row].add(-slope.sum(axis=1)),
            along_width + (found * square).sum(axis=1) / width**3,
        )

    blank = jnp.zeros(number, x.dtype)
    start = blank, jnp.zeros_like(shapes), jnp.zeros_like(x), blank
    total, *slopes = jax.lax.fori_loop(0, counts.max(), add, start)
    return (total, counts), (known, slopes)


def _across_back(kept: tuple, change: tuple) -> tuple:
    known, (along_shapes, along_x, along_width) = kept
    share = change[0]
    of_rows = jnp.where(known < len(share), share[jnp.minimum(known, len(share) - 1)], 0.0)
    return (
        of_rows[:, None] * along_x,
        None,
        None,
        share[:, None, None] * along_shapes,
        share @ along_width,
    )


_across.defvjp(_across_with_slopes, _across_back)


def _kernel(square: Array, width: ArrayLike) -> Array:
    return jnp.exp(-square / (2 * jnp.square(width)))


def _by_subject(values: Array, subjects: Array, number: int) -> tuple[Array, Array]:
    """Sums of values by individual, and numbers of points."""
    known = jnp.where(subjects < 0, number, subjects)  # sums over segments leave out those beyond
    return jax.ops.segment_sum(values, known, number), jnp.bincount(known, length=number)
