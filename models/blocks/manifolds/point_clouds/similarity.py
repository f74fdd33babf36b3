"""Place, size and rotation of shapes beside landmarks, of which some may be missing."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..preshape import nearest_rotation

__all__ = ["laid_on", "moves"]


def moves(points: Array) -> Array:
    """Derivatives of points in place, size and rotation, shape (num_points, num_axes, num_moves)."""
    num_axes = points.shape[1]
    first, second = np.triu_indices(num_axes, 1)
    plane = np.arange(len(first))
    turns = np.zeros((len(first), num_axes, num_axes))
    turns[plane, first, second], turns[plane, second, first] = -1.0, 1.0
    place = jnp.broadcast_to(jnp.eye(num_axes), (len(points), num_axes, num_axes))
    rotation = jnp.einsum("kab,nb->nak", turns, points)
    return jnp.concatenate([place, points[:, :, None], rotation], axis=2)


def laid_on(shapes: Array, places: Array, weight: Array, used: Array) -> Array:
    """Shapes moved, scaled and rotated by weighted least squares to landmarks.

    Parameters
    ----------
    shapes, places : Array, shape (num_subjects, num_landmarks, num_axes)
    weight : Array, shape (num_subjects, num_landmarks)
        Zero for landmarks that are missing.
    used : Array of bool, shape (num_subjects,)
        Individuals with at least two landmarks; the results of others are arbitrary, but finite.

    Returns
    -------
    Array, shape (num_subjects, num_landmarks, num_axes)
    """
    share = jnp.where(used[:, None], weight, 1.0)
    share = (share / share.sum(axis=1, keepdims=True))[..., None]
    middle, target = ((share * table).sum(axis=1, keepdims=True) for table in (shapes, places))
    own, rows = shapes - middle, jnp.where(used[:, None, None], places - target, shapes - middle)
    square = (share * own**2).sum(axis=(1, 2))[:, None, None]
    if shapes.shape[2] == 2:  # faster, and the same
        one, two = (lax.complex(table[..., 0], table[..., 1]) for table in (own, rows))
        factor = (share[..., 0] * one.conj() * two).sum(axis=1, keepdims=True)
        laid = factor * one
        turned = jnp.stack([laid.real, laid.imag], axis=2)
    else:
        turned = own @ nearest_rotation(jnp.swapaxes(share * own, 1, 2) @ rows)
        turned = (share * turned * rows).sum(axis=(1, 2))[:, None, None] * turned
    return target + turned / square
