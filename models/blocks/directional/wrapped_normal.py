"""Normal densities of tangent vectors, wrapped onto the unit sphere."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import gammaincc
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from scipy import special

from ..components.gaussians.gaussian import whitening
from ..manifolds import sphere

__all__ = ["MOST_STRETCH", "WrappedNormal", "log_map_scale", "log_stretch", "missing_mass"]

_NEAR = 1e-2
"""Squared tangent of the angle below which ratios of angle to sine are computed as series."""
_ARCTANGENT = tuple((-1) ** n / (2 * n + 1) for n in range(10))
_FAR = math.pi - 0.3
"""Angle to the mean from which on the Jacobian is held constant."""
MOST_STRETCH = _FAR / math.sin(_FAR)
"""Ratio of angle to sine at that angle."""


def log_map_scale(sine: Array, cosine: Array) -> Array:
    r"""Ratio of angle to sine, which converts tangent components of a point to its logarithm.

    Parameters
    ----------
    sine : Array
        **Squared** sine of the angle.
    cosine : Array
        Both may be multiplied by the length of the point (the squared sine by its square).

    Returns
    -------
    Array
        :math:`\theta / s`; smooth at an angle of zero, and zero where the point is opposite.
    """
    near = (cosine > 0) & (sine < _NEAR * cosine**2)
    square = jnp.where(near, sine / jnp.where(near, cosine, 1.0) ** 2, 0.0)
    series = jnp.polyval(jnp.asarray(_ARCTANGENT[::-1], square.dtype), square)
    defined = ~near & (sine > 0)
    length = jnp.sqrt(jnp.where(defined, sine, 1.0))
    far = jnp.where(defined, jnp.arctan2(length, cosine) / length, 0.0)
    return jnp.where(near, series / jnp.where(near, cosine, 1.0), far)


def log_stretch(ratio: Array) -> Array:
    """Log of the ratio of angle to sine, constant from `MOST_STRETCH` on; zero for a ratio of zero."""
    bounded = (ratio > 0) & (ratio < MOST_STRETCH)
    found = jnp.log(jnp.where(bounded, ratio, 1.0))
    return jnp.where(ratio >= MOST_STRETCH, math.log(MOST_STRETCH), found)


class WrappedNormal(dist.Distribution):
    r"""Density of :math:`y = \exp_\mu t` with :math:`t \sim N(0, C)` in the tangent space at :math:`\mu`.

    .. math:: \log p(y) = \log N(t; 0, C) - (Q - 1) \log \frac{\sin r}{r}, \qquad
              t = \log_\mu y, \quad r = \|t\|,

    with respect to area on the sphere of Q dimensions. The second term is the exact Jacobian, which
    the source leaves out. Tangent vectors longer than :math:`\pi` lie on further sheets, which are
    left out. For Q > 1 the exact density has a pole opposite the mean, where a shell of tangent
    vectors meets in a point: its likelihood is unbounded as the opposite of a mean approaches a
    row. Therefore the Jacobian is held constant from 0.3 radians before the opposite point on. The
    density then integrates to one minus at most :math:`P(\|t\| > \pi - 0.3)`; see `missing_mass`.
    Draws are from all sheets.

    Parameters
    ----------
    direction : Array, shape (..., dimension + 1)
        :math:`\mu`, unit vectors.
    basis : Array, shape (..., dimension + 1, dimension)
        Orthonormal bases of their tangent spaces.
    scale_tril : Array, shape (..., dimension, dimension)
        Cholesky factor of C in that basis, in radians.

    References
    ----------
    Yu (2016), section 2.8.1, eqs. 2.65-2.69, without the Jacobian.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields: ClassVar[tuple[str, ...]] = ("direction", "basis", "scale_tril")

    def __init__(
        self,
        direction: Array,
        basis: Array,
        scale_tril: Array,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.direction, self.basis, self.scale_tril = direction, basis, scale_tril
        super().__init__(
            batch_shape=jnp.shape(direction)[:-1],
            event_shape=jnp.shape(direction)[-1:],
            validate_args=validate_args,
        )

    @property
    def support(self) -> constraints.Constraint:
        """Vectors; their length is not checked."""
        return constraints.real_vector

    @property
    def covariance(self) -> Array:
        """Covariance of the tangent vectors in the coordinates of the ambient space."""
        root = self.basis @ self.scale_tril
        return root @ jnp.swapaxes(root, -1, -2)

    def log_prob(self, value: ArrayLike) -> Array:
        """Log density of points, with respect to area; their length does not matter."""
        value = jnp.asarray(value)
        matrix, log_scale = whitening(self.scale_tril)
        dimension = self.basis.shape[-1]
        across = jnp.swapaxes(self.basis, -1, -2)
        sine = jnp.square(_products(across, value)).sum(axis=-1)
        cosine = _products(self.direction[..., None, :], value)[..., 0]
        white = jnp.square(_products(matrix @ across, value)).sum(axis=-1)
        scale = log_map_scale(sine, cosine)
        # every vector of length pi is a logarithm of the opposite point: their mean square
        is_opposite = (sine == 0) & (cosine < 0)
        longest = math.pi**2 * jnp.square(matrix).sum(axis=(-2, -1)) / dimension
        square = jnp.where(is_opposite, longest, scale**2 * white)
        length = jnp.sqrt(jnp.square(value).sum(axis=-1))
        stretch = log_stretch(jnp.where(is_opposite, jnp.inf, scale * length))
        return log_scale - 0.5 * square + (dimension - 1) * stretch

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw tangent vectors, and follow their geodesics."""
        shape = (*sample_shape, *self.batch_shape, self.scale_tril.shape[-1])
        noise = jax.random.normal(key, shape, self.direction.dtype)
        tangent = jnp.einsum("...ij,...jk,...k->...i", self.basis, self.scale_tril, noise)
        return sphere.exp(self.direction, tangent)


def _products(matrix: Array, value: Array) -> Array:
    """Matrices (..., k, d) times vectors (..., d); for one batch of many points, one large product."""
    batch = matrix.shape[:-2]
    if value.ndim == len(batch) + 2 and set(value.shape[1:-1]) <= {1}:
        return jnp.tensordot(value.reshape(-1, value.shape[-1]), matrix, (1, -1))
    return jnp.einsum("...ij,...j->...i", matrix, value)


def missing_mass(spread: Any, dimension: int) -> Any:
    r"""Upper bound of a wrapped normal density's missing mass, at least :math:`P(\|t\| > \pi - 0.3)`.

    Parameters
    ----------
    spread : Array
        Greatest variance of a direction, in squared radians. The bound equals the probability if
        the variance is the same in every direction; otherwise the probability is smaller.
    dimension : int
        Dimension of the sphere.
    """
    # SciPy for values that are not traced, which avoids compilation
    tail: Any = gammaincc if isinstance(spread, jax.core.Tracer) else special.gammaincc
    return tail(dimension / 2, _FAR**2 / (2 * spread))
