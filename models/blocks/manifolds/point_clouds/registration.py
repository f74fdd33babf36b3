"""Rotation of clouds of points to a common reference."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from ..preshape import nearest_rotation
from ..shape_chart import spacing
from .rough_shapes import nearby

__all__ = ["register"]

_WIDTHS = (6.0, 6.0, 4.0, 4.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0)
"""Widths of correspondences by round, in distances between neighbours on the reference."""


@partial(jax.jit, static_argnames="num_subjects")
def register(rows: Array, subjects: Array, reference: Array, num_subjects: int) -> Array:
    """Rotate individuals to a reference; return their rows, shape (num_rows, num_axes).

    Parameters
    ----------
    rows : Array, shape (num_rows, num_axes)
        Points of all individuals, centred and of size one like the reference.
    subjects : Array of int, shape (num_rows,)
    reference : Array, shape (num_points, num_axes)
        Centred, of norm one.
    num_subjects : int
    """

    def turn(rows: Array, width: Array) -> tuple[Array, None]:
        target = nearby(rows, reference, width) @ reference
        cross = jax.ops.segment_sum(rows[:, :, None] * target[:, None], subjects, num_subjects)
        return jnp.einsum("na,nab->nb", rows, nearest_rotation(cross)[subjects]), None

    return jax.lax.scan(turn, rows, spacing(reference) * jnp.asarray(_WIDTHS))[0]
