r"""Angles as places on a line that is wound around the circle, without a cut at half a turn.

NumPyro's coordinates of an angle are those of an interval, which splits a posterior about
:math:`\pi` in two. A place x on the line represents the angle :math:`x \bmod 2 \pi`; the weight

.. math:: w(x) = \Phi((x + \pi) / s) - \Phi((x - \pi) / s), \qquad \sum_k w(x + 2 \pi k) = 1,

times the density of the angle is a density on the line, under which the angle has its own law. It
is approximately normal, up to ripples, which provides a scale for samplers where the law of the
angle is flat.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import log_ndtr
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import ParameterFreeTransform

__all__ = ["Wound", "is_circular", "unwound", "wound"]

_WIDTH = 12.0
"""s in radians; within the first turn the weight decreases by a thirtieth."""


def is_circular(fn: dist.Distribution) -> bool:
    """Whether the values of a distribution are angles."""
    return getattr(fn.support, "base_constraint", fn.support) is constraints.circular


class Wound(ParameterFreeTransform):
    """Map from places, shape (..., 1), to angles between -pi and pi, shape (...)."""

    domain = constraints.real_vector
    codomain = constraints.circular

    def __call__(self, x: Array) -> Array:
        """Angles of places."""
        return jnp.remainder(x[..., 0] + math.pi, 2 * math.pi) - math.pi

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        """Log weights of places, shape (...)."""
        # a difference of normal probabilities that keeps its digits in the tails
        high, low = (log_ndtr((side * math.pi - jnp.abs(x[..., 0])) / _WIDTH) for side in (1, -1))
        return high + jnp.log1p(-jnp.exp(low - high))


def wound(free: Mapping[str, Array], circles: Collection[str]) -> dict[str, Array]:
    """Convert unconstrained values of angles to places on the line.

    Parameters
    ----------
    free : mapping of str to Array
        Unconstrained values of sites.
    circles : collection of str
        Sites whose values are angles; not all of them need be among the values.
    """
    found = dict(free)
    for name in free.keys() & set(circles):
        found[name] = biject_to(constraints.circular)(free[name])[..., None]
    return found


def unwound(free: Mapping[str, Array], circles: Collection[str]) -> Array:
    """Change of the log density from places on the line to NumPyro's coordinates of angles, shape ().

    Other engines use NumPyro's coordinates, and log densities are compared with theirs.

    Parameters
    ----------
    free : mapping of str to Array
        Unconstrained values, with angles as places on the line.
    circles : collection of str
    """
    interval, line = biject_to(constraints.circular), Wound()
    gain = jnp.zeros(())
    for name in free.keys() & set(circles):
        angle = line(free[name])
        of_interval = interval.log_abs_det_jacobian(interval.inv(angle), angle)
        gain += jnp.sum(of_interval - line.log_abs_det_jacobian(free[name], angle))
    return gain
