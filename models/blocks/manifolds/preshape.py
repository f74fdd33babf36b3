r"""Shapes of landmarks in the plane or in space: configurations modulo place, size and rotation.

A preshape is a centred configuration of landmarks with norm one, a point of the unit sphere. Its shape is
its orbit under rotations. Vectors that are orthogonal to the orbit are horizontal; geodesics that start
along them are geodesics of shapes. Arrays have the axes ``(..., landmarks, coordinates)``.

References
----------
Yu (2016), sections 3.3 and 3.6; Kendall (1984); Le (2003).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.linalg import helmert

from . import sphere

__all__ = [
    "Preshape",
    "align",
    "exp",
    "from_helmert",
    "horizontal",
    "horizontal_basis",
    "log",
    "nearest_rotation",
    "num_dimensions",
    "shape_angle",
    "to_helmert",
    "to_preshape",
    "transport",
]


class Preshape(NamedTuple):
    """A configuration of landmarks without place and size, and its place and size.

    Attributes
    ----------
    shape : Array, shape (..., landmarks, coordinates)
        Centred, with Frobenius norm one.
    size : Array, shape (...)
        Centroid size: the norm of the centred configuration.
    centre : Array, shape (..., coordinates)
    """

    shape: Array
    size: Array
    centre: Array


@jax.jit
def to_preshape(landmarks: Array) -> Preshape:
    """Remove place and size; landmarks that coincide have no shape, and give NaN."""
    centre = landmarks.mean(axis=-2)
    centred = landmarks - centre[..., None, :]
    size = jnp.linalg.norm(centred, axis=(-2, -1))
    return Preshape(centred / size[..., None, None], size, centre)


def to_helmert(landmarks: Array) -> Array:
    """Coordinates of configurations without place, in which preshapes are a unit sphere.

    Parameters
    ----------
    landmarks : Array, shape (..., landmarks, coordinates)

    Returns
    -------
    Array, shape (..., landmarks - 1, coordinates)
        Products with the rows of Helmert's matrix, which are orthonormal and each sum to zero.
    """
    return jnp.asarray(helmert(landmarks.shape[-2])) @ landmarks


def from_helmert(coordinates: Array) -> Array:
    """Centred configuration with given coordinates; the inverse of `to_helmert`."""
    return jnp.asarray(helmert(coordinates.shape[-2] + 1).T) @ coordinates


def num_dimensions(num_landmarks: int, num_coordinates: int) -> int:
    """Dimension of the space of shapes: that of the preshape sphere minus that of the rotations."""
    rotations = num_coordinates * (num_coordinates - 1) // 2
    return num_landmarks * num_coordinates - num_coordinates - 1 - rotations


def align(preshape: Array, reference: Array) -> Array:
    """Rotate a preshape to be as near to a reference as possible; reflections are not used.

    Parameters
    ----------
    preshape, reference : Array, shape (..., landmarks, coordinates)

    Returns
    -------
    Array, shape (..., landmarks, coordinates)
        Its product with the transposed reference is symmetric. The rotation is not unique, and its
        gradient not finite, if the two least singular values of that product sum to zero, where one
        has a negative sign if the best orthogonal matrix is a reflection.
    """
    return preshape @ nearest_rotation(jnp.swapaxes(preshape, -1, -2) @ reference)


def shape_angle(first: Array, second: Array) -> Array:
    """Distance of two shapes: the angle between their aligned preshapes, from 0 to pi / 2.

    Parameters
    ----------
    first, second : Array, shape (..., landmarks, coordinates)
        Preshapes.
    """
    return sphere.angle(_flat(first), _flat(align(second, first)))


def exp(preshape: Array, tangent: Array) -> Array:
    """Follow the geodesic that starts at a preshape along a horizontal vector."""
    return _folded(sphere.exp(_flat(preshape), _flat(tangent)), preshape)


def log(preshape: Array, other: Array) -> Array:
    """Horizontal vector at a preshape whose geodesic ends at the shape of another."""
    return _folded(sphere.log(_flat(preshape), _flat(align(other, preshape))), preshape)


def horizontal(preshape: Array, vector: Array) -> Array:
    r"""Part of a vector that changes neither place, nor size, nor rotation.

    The part along the preshape u and the rotation u A are subtracted from the centred vector w,
    with

    .. math:: u^\top u A + A u^\top u = u^\top w - w^\top u

    Parameters
    ----------
    preshape, vector : Array, shape (..., landmarks, coordinates)

    Returns
    -------
    Array, shape (..., landmarks, coordinates)
        Not finite if all landmarks of a solid shape lie on a line: rotations about it move none.
    """
    vector = vector - vector.mean(axis=-2, keepdims=True)
    vector = vector - (preshape * vector).sum(axis=(-2, -1), keepdims=True) * preshape
    turned = jnp.swapaxes(preshape, -1, -2) @ vector
    return vector - preshape @ _rotation(_moments(preshape), turned - jnp.swapaxes(turned, -1, -2))


def horizontal_basis(preshape: Array) -> NDArray[np.float64]:
    """Orthonormal basis of the horizontal vectors at a preshape, which defines a chart of shapes.

    The basis is built along the principal axes of the landmarks. It therefore rotates with the
    preshape, and coordinates do not depend on the orientation of the data.

    Parameters
    ----------
    preshape : Array, shape (landmarks, coordinates)

    Returns
    -------
    ndarray, shape (landmarks * coordinates, num_dimensions)
        Basis in columns, with the landmark first: a column has the form of a flattened preshape.

    Raises
    ------
    ValueError
        If rotations change the preshape in fewer directions than in general, because the landmarks
        lie on a line or there are too few.
    """
    axes = _principal_axes(np.asarray(preshape, float))
    shape = np.asarray(preshape, float) @ axes
    num_landmarks, num_coordinates = shape.shape
    turns = [
        shape @ (np.outer(one, two) - np.outer(two, one))
        for i, one in enumerate(np.eye(num_coordinates))
        for two in np.eye(num_coordinates)[:i]
    ]
    moves = [np.outer(np.ones(num_landmarks), axis) for axis in np.eye(num_coordinates)]
    barred = np.stack([one.ravel() for one in (*moves, shape, *turns)], axis=1)
    values = np.linalg.svd(barred, compute_uv=False)
    if len(barred) <= barred.shape[1] or values[-1] < 1e-8 * values[0]:
        raise ValueError(
            f"a preshape of {num_landmarks} landmarks in {num_coordinates} dimensions has no horizontal "
            "chart: its landmarks lie on a line, or are too few; give landmarks that span the space"
        )
    whole, _ = np.linalg.qr(barred, mode="complete")
    found = whole[:, barred.shape[1] :].reshape(num_landmarks, num_coordinates, -1)
    return np.einsum("ij,ljd->lid", axes, found).reshape(shape.size, -1)


def _principal_axes(shape: NDArray[np.float64]) -> NDArray[np.float64]:
    """Principal axes of landmarks as columns of a rotation, in decreasing order of variance.

    The first landmark that lies far out along an axis is on its positive side. The last axis
    follows from the others, because the landmarks may lie in a plane.
    """
    axes = np.linalg.eigh(shape.T @ shape)[1][:, ::-1]
    along = np.abs(shape @ axes)
    first = (along >= 0.45 * along.max(axis=0)).argmax(axis=0)
    axes = axes * np.copysign(1.0, (shape[first] * axes.T).sum(axis=1))
    axes[:, -1] *= np.linalg.det(axes)
    return axes


def transport(preshape: Array, direction: Array, vector: Array, *, num_steps: int = 64) -> Array:
    r"""Parallel transport of a horizontal vector along the geodesic of shapes that `exp` follows.

    Along the geodesic u(t), the vector v(t) solves

    .. math:: \dot v = -\langle \dot u, v \rangle u + u A, \qquad
              u^\top u A + A u^\top u = v^\top \dot u - \dot u^\top v

    with A antisymmetric, so that v stays horizontal (Le 2003). The equation is integrated by the
    Runge-Kutta method of order four; the error decreases with the fourth power of the number of
    steps.

    Parameters
    ----------
    preshape : Array, shape (landmarks, coordinates)
    direction : Array, shape (landmarks, coordinates)
        Horizontal at the preshape; its length is that of the path.
    vector : Array, shape (landmarks, coordinates)
        Horizontal at the preshape.
    num_steps : int

    Returns
    -------
    Array, shape (landmarks, coordinates)
        Horizontal at the end of the geodesic.
    """
    length = 1.0 / num_steps

    def slope(time: Array, moved: Array) -> Array:
        where = exp(preshape, time * direction)
        speed = _folded(sphere.transport(_flat(preshape), _flat(where), _flat(direction)), preshape)
        turned = moved.T @ speed
        back = (speed * moved).sum() * where
        return where @ _rotation(_moments(where), turned - turned.T) - back

    def move(moved: Array, number: Array) -> tuple[Array, None]:
        time = number * length
        one = slope(time, moved)
        two = slope(time + length / 2, moved + length / 2 * one)
        three = slope(time + length / 2, moved + length / 2 * two)
        four = slope(time + length, moved + length * three)
        return moved + length / 6 * (one + 2 * two + 2 * three + four), None

    return jax.lax.scan(move, vector, jnp.arange(num_steps))[0]


@jax.custom_jvp
def nearest_rotation(cross: Array) -> Array:
    """Rotation R that maximises the trace of R' `cross` (Kabsch).

    Parameters
    ----------
    cross : Array, shape (..., coordinates, coordinates)
        Transposed configuration times the one with which R, from the right, aligns it.
    """
    left, _, right = jnp.linalg.svd(cross, full_matrices=False)
    sign = jnp.sign(jnp.linalg.det(left @ right))
    return left.at[..., -1].multiply(sign[..., None]) @ right


@nearest_rotation.defjvp
def _turned(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # gradients of singular vectors are not finite for equal singular values; that of the rotation
    # is
    (cross,), (change,) = primals, tangents
    rotation = nearest_rotation(cross)
    back = jnp.swapaxes(rotation, -1, -2)
    moved = back @ change
    return rotation, rotation @ _rotation(back @ cross, moved - jnp.swapaxes(moved, -1, -2))


def _rotation(moments: Array, wanted: Array) -> Array:
    """Antisymmetric A with S A + A S = `wanted`, where S is the symmetric `moments`."""
    size = moments.shape[-1]
    ones = np.eye(size)
    axes = np.stack(
        [
            np.outer(ones[i], ones[j]) - np.outer(ones[j], ones[i])
            for i in range(size)
            for j in range(i)
        ]
    )
    sums = moments[..., None, :, :] @ axes + axes @ moments[..., None, :, :]
    system = jnp.einsum("aij,...bij->...ab", axes / 2, sums)
    right = jnp.einsum("aij,...ij->...a", axes / 2, wanted)
    return jnp.einsum("...a,aij->...ij", jnp.linalg.solve(system, right[..., None])[..., 0], axes)


def _moments(preshape: Array) -> Array:
    return jnp.swapaxes(preshape, -1, -2) @ preshape


def _flat(preshape: Array) -> Array:
    return preshape.reshape(*preshape.shape[:-2], -1)


def _folded(flat: Array, like: Array) -> Array:
    return flat.reshape(*flat.shape[:-1], *like.shape[-2:])
