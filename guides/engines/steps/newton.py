"""Newton steps: with the full Hessian, and truncated ones that need only its products with vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

__all__ = ["full_newton_steps", "newton_steps"]

_MOST_PRODUCTS = 100
"""Maximum number of products with the Hessian in one step."""

_FLAT = 1e-10
"""Curvature, relative to the largest, below which a direction counts as flat."""


class _Solve(NamedTuple):
    """State of conjugate gradients; vectors are flat."""

    step: Array
    residual: Array
    direction: Array
    size: Array
    products: Array
    bent: Array


def newton_steps(loss: Callable[[Any], Array], metric: Callable[[Any], Callable]) -> Callable:
    r"""Make steps that solve :math:`H p = g` as far as the curvature of the loss is positive.

    Conjugate gradients end where the residual has fallen to a share :math:`\min(1/2, \sqrt{|g|})` of the
    gradient g, so that steps are exact near a minimum. They also end at a direction of negative curvature;
    if that is the first direction, it is the step. Norms are those of the metric.

    Parameters
    ----------
    loss : callable
        Function of a pytree.
    metric : callable
        ``metric(point)`` returns a linear, symmetric and positive map of gradients to steps, close to the
        inverse of the Hessian; it is the preconditioner.

    Returns
    -------
    callable
        ``solve(gradient, point)``, the step uphill.

    References
    ----------
    Nocedal and Wright (2006), algorithms 5.3 and 7.1.
    """

    def solve(gradient: Any, point: Any) -> Any:
        flat, unravel = ravel_pytree(gradient)
        _, bend = jax.linearize(jax.grad(loss), point)
        scale = metric(point)

        def product(vector: Array) -> Array:
            return ravel_pytree(bend(unravel(vector)))[0]

        def scaled(vector: Array) -> Array:
            return ravel_pytree(scale(unravel(vector)))[0]

        first = scaled(flat)
        norm = flat @ first
        wanted = jnp.minimum(0.25, jnp.sqrt(norm)) * norm

        def unfinished(state: _Solve) -> Array:
            return ~state.bent & (state.size > wanted) & (state.products < _MOST_PRODUCTS)

        def advance(state: _Solve) -> _Solve:
            bent_direction = product(state.direction)
            curvature = state.direction @ bent_direction
            bent = ~(curvature > 0)
            length = jnp.where(bent, 0.0, state.size / jnp.where(bent, 1.0, curvature))
            residual = state.residual - length * bent_direction
            preconditioned = scaled(residual)
            size = residual @ preconditioned
            direction = preconditioned + size / state.size * state.direction
            step = state.step + length * state.direction
            step = jnp.where(bent & (state.products == 0), first, step)
            return _Solve(step, residual, direction, size, state.products + 1, bent)

        start = _Solve(jnp.zeros_like(flat), flat, first, norm, jnp.asarray(0), jnp.asarray(False))
        return unravel(lax.while_loop(unfinished, advance, start).step)

    return solve


def full_newton_steps(loss: Callable[[Any], Array]) -> Callable:
    r"""Make steps :math:`|H|^{-1} g` by the Hessian of a loss of few coordinates.

    Its eigenvalues enter by their absolute values, so that steps lead away from saddles, and always downhill.

    Parameters
    ----------
    loss : callable
        Function of a pytree.

    Returns
    -------
    callable
        ``solve(gradient, point)``, the step uphill.

    References
    ----------
    Nocedal and Wright (2006), section 3.4.
    """

    def solve(gradient: Any, point: Any) -> Any:
        flat, unravel = ravel_pytree(point)
        slope, _ = ravel_pytree(gradient)
        bend = jax.jacfwd(jax.grad(lambda vector: loss(unravel(vector))))(flat)
        curvature, directions = jnp.linalg.eigh((bend + bend.T) / 2)
        size = jnp.abs(curvature)
        # at least the smallest number: all directions may be flat, as at a bad trial point
        least = jnp.maximum(_FLAT * size.max(initial=0.0), jnp.finfo(slope.dtype).tiny)
        return unravel(directions @ ((directions.T @ slope) / jnp.maximum(size, least)))

    return solve
