"""Positions of new points, given their distances from landmarks whose positions are drawn."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from .distances import distance_law

__all__ = ["Placement", "place_points"]

_STEPS = 60
"""Number of optimisation steps to each mode."""


class Placement(NamedTuple):
    """Positions of points for each draw of the landmarks.

    Attributes
    ----------
    mode : Array, shape (num_draws, num_points, num_dimensions)
    covariance : Array, shape (num_draws, num_points, num_dimensions, num_dimensions)
        Inverse of the curvature at the mode.
    log_density : Array, shape (num_draws, num_points)
        Log density of the distances of a point, with its position integrated out by Laplace's method.
    """

    mode: Array
    covariance: Array
    log_density: Array


@partial(jax.jit, static_argnames=("law",))
def place_points(
    distances: Array, anchors: Array, noise: Array, scale: Array, power: Array, law: str
) -> Placement:
    r"""Posterior of the positions of points under `NoisyDistances`, approximated at its mode.

    .. math:: p(x \mid d) \propto \mathcal N(x; 0, s^2 I) \prod_l p(d_l \mid \|x - a_l\|)^w

    The optimisation starts at the least-squares solution of the squared distances. Each step uses
    the absolute values of the curvatures, with at least the curvature of the prior, and is
    shortened until the density increases.

    Parameters
    ----------
    distances : Array, shape (num_points, num_landmarks)
        NaN where missing; a point without distances has its prior. If noise is relative, a point at
        distance zero from a landmark is placed there.
    anchors : Array, shape (num_draws, num_landmarks, num_dimensions)
        Draws of the positions of the landmarks.
    noise : Array, shape (num_draws,)
        Noise, in the unit of distances for law "normal".
    scale : Array, shape ()
    power : Array, shape ()
        w.
    law : str
        See `distance_law`.
    """
    on = (distances == 0) & (law != "normal")
    known = ~jnp.isnan(distances) & ~on
    table = jnp.where(known, distances, 1.0)

    def one(row: Array, is_known: Array, anchor: Array, sigma: Array) -> Placement:
        def loss(x: Array) -> Array:
            square = jnp.sum((x - anchor) ** 2, axis=-1)
            between = jnp.sqrt(jnp.maximum(square, 1e-24 * scale**2))
            terms = distance_law(between, sigma, law).log_prob(row)
            prior = -0.5 * jnp.sum((x / scale) ** 2) - len(x) * jnp.log(scale)
            return -power * jnp.sum(jnp.where(is_known, terms, 0.0)) - prior

        def step(_: int, x: Array) -> Array:
            values, vectors = jnp.linalg.eigh(jax.hessian(loss)(x))
            sizes = jnp.maximum(jnp.abs(values), scale**-2)
            move = vectors @ ((vectors.T @ jax.grad(loss)(x)) / sizes)
            tried = x - 0.25 ** jnp.arange(12.0)[:, None] * move
            losses = jax.vmap(loss)(tried)
            best = jnp.argmin(losses)
            return jnp.where(losses[best] < loss(x), tried[best], x)

        x = lax.fori_loop(0, _STEPS, step, _least_squares(row, is_known, anchor))
        values, vectors = jnp.linalg.eigh(jax.hessian(loss)(x))
        values = jnp.maximum(values, scale**-2)
        # -0.5 q log 2 pi of the prior cancels against that of Laplace's method
        log_density = -loss(x) - 0.5 * jnp.log(values).sum()
        return Placement(x, (vectors / values) @ vectors.T, log_density)

    over_points = jax.vmap(one, in_axes=(0, 0, None, None))
    found = lax.map(lambda drawn: over_points(table, known, *drawn), (anchors, noise))
    there = on.any(axis=1)[:, None]
    return found._replace(
        mode=jnp.where(there, anchors[:, jnp.argmax(on, axis=1)], found.mode),
        covariance=jnp.where(there[..., None], 0.0, found.covariance),
    )


def _least_squares(row: Array, known: Array, anchor: Array) -> Array:
    """Position by the squared distances, which are linear in it once centred."""
    weight = known / jnp.maximum(known.sum(), 1)
    middle = weight @ anchor
    apart = (anchor - middle) * weight[:, None]
    square = jnp.sum((anchor - middle) ** 2, axis=-1) - row**2
    square = square - weight @ square
    inner = apart.T @ (anchor - middle)
    ridge = 1e-9 * jnp.trace(inner) * jnp.eye(len(inner)) + 1e-300 * jnp.eye(len(inner))
    return middle + 0.5 * jnp.linalg.solve(inner + ridge, apart.T @ square)
