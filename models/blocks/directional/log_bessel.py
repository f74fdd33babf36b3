r"""Logarithm of the modified Bessel function of the first kind, for every order and argument.

The module computes :math:`\log h_\nu(x)` with :math:`h_\nu(x) = x^{-\nu} e^{-x} I_\nu(x)`, which
neither overflows for large arguments nor has a pole at zero. Debye's expansion, uniform in the
argument, gives it at orders of forty or more. The recurrence of ratios of neighbouring orders,
which is stable downwards, leads from there to the requested order.

References
----------
NIST Digital Library of Mathematical Functions, sections 10.29, 10.41, https://dlmf.nist.gov/10.
Amos (1974), Mathematics of Computation 28, 239-251, doi:10.1090/S0025-5718-1974-0333287-7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from numpy.polynomial import Polynomial

__all__ = ["bessel_deficit", "log_scaled_bessel"]

_LARGE = 40.0
"""Order from which eight terms of Debye's expansion are exact to rounding."""


def _debye_polynomials(number: int) -> list[Polynomial]:
    """Polynomials u_1, u_2, ... of DLMF 10.41.10."""
    found = [Polynomial([1.0])]
    for _ in range(number):
        last = found[-1]
        slope = Polynomial([0, 0, 0.5, 0, -0.5]) * last.deriv()
        found.append(slope + (Polynomial([1.0, 0, -5.0]) * last).integ() / 8)
    return found[1:]


_DEBYE = _debye_polynomials(8)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def log_scaled_bessel(order: float, x: Array) -> Array:
    r"""Logarithm of :math:`x^{-\nu} e^{-x} I_\nu(x)`.

    Parameters
    ----------
    order : float
        :math:`\nu \geq 0`, a number.
    x : Array
        Not negative.

    Returns
    -------
    Array
        In double precision accurate to 1e-13, relative to its size, or absolutely if that is below
        one.
    """
    return _down(order, x)[0]


@log_scaled_bessel.defjvp
def _(order: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (moved,) = primals, tangents
    return log_scaled_bessel(order, x), -bessel_deficit(order, x) * moved


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def bessel_deficit(order: float, x: Array) -> Array:
    r""":math:`1 - I_{\nu+1}(x) / I_\nu(x)`, which decreases from one to zero.

    Parameters
    ----------
    order : float
        :math:`\nu \geq 0`, a number.
    x : Array
        Not negative.

    Returns
    -------
    Array
        Relative accuracy is that of rounding, for large arguments too.
    """
    _, excess = _down(order, x)
    return excess / (x + excess)


@bessel_deficit.defjvp
def _(order: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (moved,) = primals, tangents
    _, excess = _down(order, x)
    rest = excess - (order + 0.5)
    slope = (2 * x * rest + rest**2 - (order + 0.5) ** 2) / (x + excess) ** 2
    return excess / (x + excess), -slope * moved


def _down(order: float, x: Array) -> tuple[Array, Array]:
    r"""`log_scaled_bessel`, and :math:`x I_\nu / I_{\nu+1} - x`, which loses no digits for large x."""
    x = jnp.asarray(x)
    steps = max(0, math.ceil(_LARGE - order))
    top = float(order + steps)

    def lower(below: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        value, above = state
        excess = 2 * (top - below) - x * above / (x + above)
        return value + jnp.log(x + excess), excess

    return jax.lax.fori_loop(0, steps, lower, (_debye(top, x), _debye_excess(top, x)))


def _debye(order: float, x: Array) -> Array:
    """`log_scaled_bessel` at a large order (DLMF 10.41.3)."""
    root = jnp.hypot(order, x)
    stretch = order * (order / (root + x))  # root - x, without cancellation
    scale = order * jnp.log(order + root) + 0.5 * jnp.log(2 * math.pi * root)
    return stretch - scale + jnp.log1p(_series(_DEBYE, order, order / root))


def _debye_excess(order: float, x: Array) -> Array:
    """The second part of `_down` at a large order: from the derivative of `_debye`, or two orders."""
    root = jnp.hypot(order, x)
    angle = order / root
    slope = _series([term.deriv() for term in _DEBYE], order, angle) * -angle * x / root**2
    flat = order**2 / (root * (root + x)) + order * x / (root * (order + root)) + x / (2 * root**2)
    deficit = flat - slope / (1 + _series(_DEBYE, order, angle))
    from_slope = x * deficit / jnp.where(x > order, 1 - deficit, 1.0)
    ratio = jnp.exp(_debye(order, x) - _debye(order + 1, x))
    return jnp.where(x > order, from_slope, ratio - x)


def _series(terms: Sequence[Polynomial], order: float, angle: Array) -> Array:
    """Sum of polynomials at an angle, divided by powers of the order."""
    found = jnp.zeros_like(angle)
    for power, term in enumerate(terms, 1):
        found += jnp.polyval(jnp.asarray(term.coef[::-1], angle.dtype), angle) / order**power
    return found
