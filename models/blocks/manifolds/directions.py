r"""Sites on spheres and among preshapes, as the directions of vectors that every engine can move.

A point of a sphere has no unconstrained coordinates. A model therefore samples a vector whose
direction is the point, and whose length is not used: `sample_direction` and `sample_preshape`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import gammaln
from numpy.typing import NDArray
from numpyro.distributions import constraints

from sidebayes.common.arrays import refuse_unwritable
from sidebayes.common.fields import check_integer

from .preshape import from_helmert

__all__ = ["Direction", "draw_lengths", "sample_direction", "sample_preshape"]

_PULL = 10
"""Strength of the pull of lengths to one; lengths near zero, without direction, are negligible."""


class Direction(dist.Distribution):
    r"""A vector whose direction is uniform on the unit sphere, independent of its length r.

    .. math:: \log p(x) = a \left(\log r - r^2 / 2\right) - \log Z, \quad r = |x|, \qquad
              Z = \frac{\pi^{d/2}\, \Gamma((a + d) / 2)}{\Gamma(d / 2)} (2 / a)^{(a + d) / 2}

    Thus :math:`a r^2` is chi-squared with a + d degrees of freedom, and a is 10. The density of the
    vector, rather than that of its length, has its mode at length one, where its gradient is zero.
    A mode of a posterior therefore lies on the sphere, and its curvature along the sphere is that
    of the data alone: MAP and the Laplace approximation refer to the sphere.

    Parameters
    ----------
    dimension : int
        Number d of coordinates, at least 2.
    batch_shape : tuple of int
    """

    arg_constraints: ClassVar[dict] = {}
    support = constraints.real_vector

    def __init__(
        self,
        dimension: int,
        *,
        batch_shape: tuple[int, ...] = (),
        validate_args: bool | None = None,
    ) -> None:
        dimension = check_integer("Direction(dimension=...)", dimension, 2)
        super().__init__(tuple(batch_shape), (dimension,), validate_args=validate_args)

    def expand(self, batch_shape: tuple[int, ...]) -> Direction:
        """The same law for every entry of a larger batch."""
        (size,) = self.event_shape
        return Direction(size, batch_shape=batch_shape)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw vectors, (..., dimension): the sum of a + d squared normals is chi-squared."""
        (size,) = self.event_shape
        shape = (*sample_shape, *self.batch_shape, size + _PULL)
        noise = jax.random.normal(key, shape)
        along, beyond = noise[..., :size], noise[..., size:]
        square = jnp.square(along).sum(axis=-1, keepdims=True)
        length = jnp.sqrt((square + jnp.square(beyond).sum(axis=-1, keepdims=True)) / _PULL)
        return length * along / jnp.sqrt(square)

    def log_prob(self, value: Array) -> Array:
        """Log density of vectors (..., dimension) with respect to volume; minus infinity at zero."""
        (size,) = self.event_shape
        square = jnp.square(value).sum(axis=-1)
        half = (_PULL + size) / 2
        log_constant = size / 2 * jnp.log(jnp.pi) - gammaln(size / 2)
        log_constant += gammaln(half) + half * jnp.log(2 / _PULL)
        return _PULL / 2 * (jnp.log(square) - square) - log_constant


def draw_lengths(
    rng: np.random.Generator, dimension: int, shape: tuple[int, ...]
) -> tuple[NDArray, NDArray]:
    """Draw lengths of vectors from the law of `Direction`, on the host.

    Returns
    -------
    lengths : ndarray of the given shape
    log_ratio : ndarray of the given shape
        Log density of vectors of these lengths minus that of unit vectors.
    """
    square = rng.chisquare(dimension + _PULL, shape) / _PULL
    return np.sqrt(square), _PULL / 2 * (np.log(square) - square + 1)


def sample_direction(name: str, dimension: int, *, infer: Mapping[str, Any] | None = None) -> Array:
    """Sample a point of a unit sphere, uniform a priori; other knowledge enters as factors or data.

    The latent site is ``f"{name}_vector"``, a `Direction`, declared by ``infer={"manifold": "sphere"}``; the
    point is the deterministic site `name`. Plates give one point per entry.

    Parameters
    ----------
    name : str
    dimension : int
        Number of coordinates, at least 2: that of the sphere, plus one.
    infer : mapping, optional
        Further declarations of the latent site.

    Returns
    -------
    Array, shape (..., dimension)
        Unit vectors.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, or is out of range.

    Examples
    --------
    Directions about a mean, under a von Mises-Fisher law of known concentration:

    >>> import jax.numpy as jnp
    >>> import numpyro
    >>> import sidebayes
    >>> def model(x):
    ...     mean = sidebayes.sample_direction("mean", 3)
    ...     numpyro.factor("likelihood", 10.0 * (x @ mean).sum())
    >>> x = jnp.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.8, 0.0, 0.6]])
    >>> fit = sidebayes.fit(model, x, engine="laplace", progress=False)
    >>> fit.tree["posterior"]["mean"].shape[-1]
    3
    """
    return numpyro.deterministic(name, _sampled(name, dimension, infer))


def sample_preshape(
    name: str,
    num_landmarks: int,
    num_coordinates: int,
    *,
    infer: Mapping[str, Any] | None = None,
) -> Array:
    """Sample a preshape, a centred configuration of landmarks with norm one, uniform a priori.

    Preshapes are a unit sphere in Helmert coordinates. The latent site is ``f"{name}_vector"``, as in
    `sample_direction`, with these coordinates; the preshape is the deterministic site `name`.

    Parameters
    ----------
    name : str
    num_landmarks, num_coordinates : int
        At least 2 landmarks in at least 2 dimensions.
    infer : mapping, optional
        Further declarations of the latent site.

    Returns
    -------
    Array, shape (..., num_landmarks, num_coordinates)
    """
    landmarks = check_integer("num_landmarks", num_landmarks, 2)
    coordinates = check_integer("num_coordinates", num_coordinates, 2)
    point = _sampled(name, (landmarks - 1) * coordinates, infer)
    folded = point.reshape(*point.shape[:-1], landmarks - 1, coordinates)
    return numpyro.deterministic(name, from_helmert(folded))


def _sampled(name: str, dimension: int, infer: Mapping[str, Any] | None) -> Array:
    if not isinstance(name, str) or not name:
        raise TypeError(f"name = {name!r}; expected the name of a site")
    refuse_unwritable("name", (name,))
    if not isinstance(infer, Mapping | None):
        raise TypeError(f"infer = {infer!r}; expected a mapping, as of numpyro.sample, or None")
    declared = {**(infer or {}), "manifold": "sphere"}
    vector = numpyro.sample(f"{name}_vector", Direction(dimension), infer=declared)
    return vector / jnp.linalg.norm(vector, axis=-1, keepdims=True)
