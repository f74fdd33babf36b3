"""Mean directions, and frames of their tangent spaces that are smooth except at one point."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array
from jax.typing import ArrayLike

from ..block import Block
from ..manifolds.directions import Direction
from ..manifolds.sphere import tangent_basis

__all__ = ["central_pole", "sample_directions", "transported_basis", "unit_rows"]


def central_pole(points: ArrayLike) -> Any:
    """Point of the sphere whose opposite is far from given points.

    The candidates are the mean direction and the coordinate axes, with both signs. The one whose
    opposite is farthest from the nearest point is chosen.

    Parameters
    ----------
    points : array_like, shape (num_points, dimension + 1)
        Unit vectors.

    Returns
    -------
    Array or ndarray, shape (dimension + 1,)
    """
    # NumPy for values that are not traced, which avoids compilation
    traced = isinstance(points, jax.core.Tracer)
    table: Any = points if traced else np.asarray(points)
    xp: Any = jnp if traced else np
    total = table.sum(axis=0)
    length = xp.linalg.norm(total)
    mean = total / xp.where(length > 0, length, 1.0)
    axes = xp.eye(table.shape[1], dtype=table.dtype)
    candidates = xp.concatenate([mean[None], axes, -axes])
    # the cosine of the farthest point; a mean without direction is never chosen
    farthest = [(table @ mean).min(keepdims=True), table.min(axis=0), -table.max(axis=0)]
    nearness = xp.concatenate(farthest) - 2.0 * (xp.arange(len(candidates)) == 0) * (length == 0)
    return candidates[xp.argmax(nearness)]


@jax.jit
def transported_basis(pole: Array, point: Array) -> Array:
    """Orthonormal bases of the tangent spaces at points: that at a pole, transported along geodesics.

    There is none opposite the pole; everywhere else the basis depends smoothly on the point.

    Parameters
    ----------
    pole : Array, shape (dimension + 1,)
    point : Array, shape (..., dimension + 1)

    Returns
    -------
    Array, shape (..., dimension + 1, dimension)
        In columns.
    """
    basis = tangent_basis(pole)
    between = pole + point
    # 1 + cos(angle) = |between|^2 / 2 loses no digits near the opposite point
    scale = 2 / jnp.square(between).sum(axis=-1)[..., None, None]
    return basis - scale * between[..., :, None] * (point @ basis)[..., None, :]


def sample_directions(block: Block, num_clusters: int, dimension: int) -> Array:
    """Sample mean directions as `sample_direction` does, as a site of a block whose role is "vector".

    Returns
    -------
    Array, shape (num_clusters, dimension + 1)
        Unit vectors, recorded as ``direction``.
    """
    with numpyro.plate("clusters", num_clusters):
        vector = block.declare(
            "vector",
            "direction_vector",
            Direction(dimension + 1),
            ("features",),
            manifold="sphere",
        )
    clusters = numpyro.plate("clusters", num_clusters, dim=-2)
    with clusters, numpyro.plate("features", dimension + 1):
        return numpyro.deterministic("direction", unit_rows(vector))


def unit_rows(vectors: Array) -> Array:
    """Vectors divided by their lengths."""
    return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)
