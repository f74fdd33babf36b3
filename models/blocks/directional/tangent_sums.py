"""Sums over points of mixtures on a sphere, in the tangent spaces at component means."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from .wrapped_normal import MOST_STRETCH, log_map_scale, log_stretch

__all__ = ["TangentSums", "tangent_sums"]

_ROWS = 1024
"""Rows visited at a time; more would not fit a processor's cache."""


class TangentSums(NamedTuple):
    r"""Weighted sums over points, of their logarithms t at the mean of each component.

    Attributes
    ----------
    size : Array, shape (num_clusters,)
        Sum of the weights.
    scatter : Array, shape (num_clusters, dimension, dimension)
        Sum of :math:`t t^\top`.
    stretch : Array, shape (num_clusters,)
        Sum of :math:`-\log(\sin r / r)`.
    slope : Array, shape (num_clusters, dimension)
        Gradient of the log density of the points in the mean, with the covariances held fixed.
    """

    size: Array
    scatter: Array
    stretch: Array
    slope: Array


def tangent_sums(
    points: Array, weights: Array, direction: Array, basis: Array, precision: Array
) -> TangentSums:
    r"""Weighted sums over the points, visited in chunks.

    As the mean moves along v, the logarithm of a point at an angle r changes by minus
    :math:`u u^\top v + r \cot r\, (I - u u^\top) v`, where u is its direction.

    Parameters
    ----------
    points : Array, shape (num_points, dimension + 1)
        Unit vectors.
    weights : Array, shape (num_points, num_clusters)
    direction : Array, shape (num_clusters, dimension + 1)
    basis : Array, shape (num_clusters, dimension + 1, dimension)
    precision : Array, shape (num_clusters, dimension, dimension)
        Inverse covariances, for the gradient.
    """
    dimension = basis.shape[-1]
    count = len(points) // _ROWS

    def visit(rows: Array, own: Array) -> TangentSums:
        across = jnp.tensordot(rows, basis, (1, 1))
        sine, cosine = jnp.square(across).sum(axis=-1), rows @ direction.T
        scale = log_map_scale(sine, cosine)
        tangent = scale[..., None] * across
        pulled = jnp.einsum("nkp,kpq->nkq", tangent, precision)
        square = sine * scale**2
        bend = scale * cosine  # r cot r
        known = square > 1e-8
        curve = jnp.where(known, (1 - bend) / jnp.where(known, square, 1.0), 1 / 3)
        stretched = jnp.where(scale < MOST_STRETCH, dimension - 1.0, 0.0)
        along = curve * ((pulled * tangent).sum(axis=-1) - stretched)
        weighted = own[..., None] * tangent
        slope = jnp.einsum("nk,nkq->kq", own * bend, pulled)
        return TangentSums(
            own.sum(axis=0),
            jnp.einsum("nkp,nkq->kpq", weighted, tangent),
            (own * log_stretch(scale)).sum(axis=0),
            slope + jnp.einsum("nk,nkq->kq", along, weighted),
        )

    return _in_chunks(visit, points, weights, count)


def _in_chunks(
    visit: Callable[[Array, Array], TangentSums], points: Array, weights: Array, count: int
) -> TangentSums:
    """Add up the sums of chunks of rows, the last of which is shorter."""
    full = count * _ROWS
    last = visit(points[full:], weights[full:])
    if not count:
        return last
    blocks = (points[:full].reshape(count, _ROWS, -1), weights[:full].reshape(count, _ROWS, -1))

    def add(total: TangentSums, block: tuple[Array, Array]) -> tuple[TangentSums, None]:
        return jax.tree.map(jnp.add, total, visit(*block)), None

    return jax.lax.scan(add, last, blocks)[0]
