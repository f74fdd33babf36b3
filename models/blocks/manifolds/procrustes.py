r"""Generalised Procrustes analysis: the mean shape of landmarks, and configurations aligned with it.

References
----------
Gower (1975); Dryden and Mardia (2016), Statistical Shape Analysis, chapter 7, where the full Procrustes
mean is eq. 7.2, and the mean of sizes and shapes is section 7.5.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from . import preshape

__all__ = ["Procrustes", "procrustes"]


class Procrustes(NamedTuple):
    """Configurations of landmarks, aligned with their mean.

    Attributes
    ----------
    mean : Array, shape (landmarks, coordinates)
        Mean shape as a preshape: centred, with norm one.
    mean_size : Array, shape ()
        Centroid size of the mean of sizes and shapes, or the mean of `sizes` if sizes were scaled.
    shapes : Array, shape (individuals, landmarks, coordinates)
        Preshapes that are rotated onto the mean. Missing landmarks are taken from the mean.
    sizes : Array, shape (individuals,)
        Centroid sizes in the units of the data, of likewise completed configurations.
    steps : Array, shape ()
    change : Array, shape ()
        Distance between the last two means, as preshapes.
    """

    mean: Array
    mean_size: Array
    shapes: Array
    sizes: Array
    steps: Array
    change: Array


class _Walk(NamedTuple):
    mean: Array
    steps: Array
    change: Array


@partial(jax.jit, static_argnames=("scale", "max_steps"))
def procrustes(
    landmarks: Array, *, scale: bool = True, tol: float = 1e-12, max_steps: int = 1000
) -> Procrustes:
    r"""Mean shape by alternating least squares; reflections are not used.

    With `scale` this is the full Procrustes mean

    .. math:: \hat\mu = \arg\min_{\|\mu\| = 1} \sum_i \min_{\beta, R, t}
              \sum_{k \in O_i} \| \beta R x_{ik} + t - \mu_k \|^2,

    where :math:`O_i` are the landmarks that individual i has. Without it every :math:`\beta` is
    one, and the norm of :math:`\mu` is free: the mean of sizes and shapes. The sum decreases with
    every step, which aligns the configurations with the mean, fills in missing landmarks, and
    averages. Sets of configurations of one size are a batch under `jax.vmap`.

    Parameters
    ----------
    landmarks : Array, shape (individuals, landmarks, coordinates)
        NaN where a landmark is missing. Every individual must share at least as many landmarks as
        there are coordinates with the individual that has the most landmarks.
    scale : bool
        Whether to scale configurations.
    tol : float
        Distance of two successive means, as preshapes, at which the iteration stops.
    max_steps : int
    """
    present = jnp.isfinite(landmarks).all(axis=-1)
    x = jnp.where(present[..., None], landmarks, 0.0)
    first = present.sum(axis=-1).argmax()
    start = _centred(x[first], present[first])
    start = start / jnp.linalg.norm(start) if scale else start
    begun, _ = _laid(x, present & present[first], start, scale)
    begun = begun.mean(axis=0, where=present[..., None])

    def complete(mean: Array) -> tuple[Array, Array]:
        laid, factors = _laid(x, present, mean, scale)
        return jnp.where(present[..., None], laid, mean), factors

    def goes_on(walk: _Walk) -> Array:
        return (walk.change > tol) & (walk.steps < max_steps)

    def move(walk: _Walk) -> _Walk:
        new = _normed(complete(walk.mean)[0].mean(axis=0), scale)
        change = jnp.linalg.norm(new - walk.mean) / jnp.linalg.norm(new)
        return _Walk(new, walk.steps + 1, change)

    begin = _Walk(_normed(begun, scale), jnp.asarray(0), jnp.asarray(jnp.inf, x.dtype))
    mean, steps, change = jax.lax.while_loop(goes_on, move, begin)
    laid, factors = complete(mean)
    completed, found = preshape.to_preshape(laid), preshape.to_preshape(mean)
    sizes = completed.size / factors
    shapes = preshape.align(completed.shape, found.shape)
    return Procrustes(
        found.shape, sizes.mean() if scale else found.size, shapes, sizes, steps, change
    )


def _laid(x: Array, used: Array, mean: Array, scale: bool) -> tuple[Array, Array]:
    """Configurations moved, rotated and scaled to minimise the distance of used landmarks to the mean."""
    rows = used[..., None]
    own = x.mean(axis=-2, where=rows, keepdims=True)
    place = jnp.broadcast_to(mean, x.shape).mean(axis=-2, where=rows, keepdims=True)
    centred, target = jnp.where(rows, x - own, 0.0), jnp.where(rows, mean - place, 0.0)
    turn = preshape.nearest_rotation(jnp.swapaxes(centred, -1, -2) @ target)
    along = (centred @ turn * target).sum(axis=(-2, -1))
    factors = along / jnp.square(centred).sum(axis=(-2, -1)) if scale else jnp.ones_like(along)
    return factors[..., None, None] * ((x - own) @ turn) + place, factors


def _centred(x: Array, used: Array) -> Array:
    return jnp.where(used[:, None], x - x.mean(axis=0, where=used[:, None]), 0.0)


def _normed(mean: Array, scale: bool) -> Array:
    mean = mean - mean.mean(axis=0)
    return mean / jnp.linalg.norm(mean) if scale else mean
