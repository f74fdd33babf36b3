"""Covariances of wrapped normals in the tangent spaces at their means: sites, priors and modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpy.typing import NDArray
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    IndependentTransform,
    Transform,
)

from ..block import Block
from ..mixtures.data_units import Rescaled
from .directional_prior import DirectionalPrior

__all__ = ["FullSpread", "LowRankSpread", "SphericalSpread", "Spread"]


class Spread(Protocol):
    """Covariances of tangent vectors as sites of a block, one per component."""

    roles: ClassVar[tuple[str, ...]]
    per_point: int
    """Number of squares of a point that the least variance is read off."""

    def sample(self, block: Block) -> dict[str, Array]:
        """Sample the sites inside the plate of the components; return values by role."""
        ...

    def covariance(self, values: Mapping[str, Array]) -> Array:
        """Covariances in the frames of the tangent spaces, shape (num_clusters, dimension, dimension)."""
        ...

    def best(self, size: Array, scatter: Array) -> tuple[dict[str, Array], Array]:
        """Most probable values, and the log density of points and values at them, up to a constant.

        Parameters
        ----------
        size : Array, shape (num_clusters,)
            Expected number of points of each component.
        scatter : Array, shape (num_clusters, dimension, dimension)
            Sum of the products of their tangent vectors.
        """
        ...

    def start(self, covariance: NDArray) -> dict[str, NDArray]:
        """Values near given covariances, which may have any number of leading axes."""
        ...

    def bijector(self, role: str, bijector: Transform, unit: Array) -> Transform:
        """Coordinates in which angles are measured in a unit of the data."""
        ...


class FullSpread:
    """Unrestricted covariances, under an inverse Wishart prior."""

    roles: ClassVar[tuple[str, ...]] = ("tangent_covariance",)
    per_point = 1

    def __init__(self, dimension: int, prior: DirectionalPrior | None) -> None:
        self.dimension, self.prior = dimension, prior

    def sample(self, block: Block) -> dict[str, Array]:
        """Sample covariances in the frame."""
        shape = (self.dimension, self.dimension)
        density: dist.Distribution
        if self.prior is None:
            density = dist.ImproperUniform(constraints.positive_definite, (), shape)
        else:
            scale = self.prior.scale**2 * jnp.eye(self.dimension)
            density = dist.InverseWishart(self.prior.df, scale_matrix=scale)
        names = ("tangents", "tangents_1")
        role = "tangent_covariance"
        return {role: block.declare(role, role, density, names)}

    def covariance(self, values: Mapping[str, Array]) -> Array:
        """The sites themselves."""
        return values["tangent_covariance"]

    def best(self, size: Array, scatter: Array) -> tuple[dict[str, Array], Array]:
        """Mode of the inverse Wishart posterior."""
        if self.prior is not None:
            scatter = scatter + self.prior.scale**2 * jnp.eye(self.dimension)
            size = size + self.prior.df + self.dimension + 1
        covariance = scatter / _positive(size)[:, None, None]
        return {"tangent_covariance": covariance}, -0.5 * size * jnp.linalg.slogdet(covariance)[1]

    def start(self, covariance: NDArray) -> dict[str, NDArray]:
        """The covariances themselves."""
        return {"tangent_covariance": covariance}

    def bijector(self, role: str, bijector: Transform, unit: Array) -> Transform:
        """Coordinates with one unit for all directions."""
        return ComposeTransform([bijector, Rescaled(jnp.full(self.dimension, unit))])


class SphericalSpread:
    """One variance in all directions, under an inverse gamma prior."""

    roles: ClassVar[tuple[str, ...]] = ("spread",)

    def __init__(self, dimension: int, prior: DirectionalPrior | None) -> None:
        self.dimension, self.prior = dimension, prior
        self.per_point = dimension

    def sample(self, block: Block) -> dict[str, Array]:
        """Sample variances."""
        density = variance_prior(self.prior, self.dimension)
        return {"spread": block.declare("spread", "variance", density)}

    def covariance(self, values: Mapping[str, Array]) -> Array:
        """Multiples of the identity."""
        return values["spread"][..., None, None] * jnp.eye(self.dimension)

    def best(self, size: Array, scatter: Array) -> tuple[dict[str, Array], Array]:
        """Mode of the inverse gamma posterior."""
        square, number = jnp.trace(scatter, axis1=-2, axis2=-1), size * self.dimension
        if self.prior is not None:
            shape, rate = self.prior.of_variance(self.dimension)
            square, number = square + 2 * rate, number + 2 * shape + 2
        variance = square / _positive(number)
        return {"spread": variance}, -0.5 * number * jnp.log(variance)

    def start(self, covariance: NDArray) -> dict[str, NDArray]:
        """Mean variances."""
        return {"spread": np.trace(covariance, axis1=-2, axis2=-1) / self.dimension}

    def bijector(self, role: str, bijector: Transform, unit: Array) -> Transform:
        """Coordinates of variances, in squared units."""
        return _scaled(bijector, unit**2, constraints.positive)


class LowRankSpread:
    r"""Variance along a few directions plus one variance in all directions, :math:`W W^\top + s^2 I`.

    W is lower trapezoidal, which determines its columns up to their signs, and does not restrict
    :math:`W W^\top`. Its entries are normal with the scale of the prior; s^2 is inverse gamma.
    """

    roles: ClassVar[tuple[str, ...]] = ("loadings", "noise")

    def __init__(self, dimension: int, rank: int, prior: DirectionalPrior | None) -> None:
        if rank >= dimension:
            raise ValueError(
                f"rank = {rank}; expected less than the {dimension} dimensions of the sphere, or "
                "covariance='full'"
            )
        self.dimension, self.rank, self.prior = dimension, rank, prior
        self.per_point = dimension - rank
        rows, columns = np.tril_indices(dimension, 0, rank)
        self.entries = rows, columns

    def sample(self, block: Block) -> dict[str, Array]:
        """Sample the entries of W on and below its diagonal, and the variances."""
        number = len(self.entries[0])
        density: dist.Distribution
        if self.prior is None:
            density = dist.ImproperUniform(constraints.real_vector, (), (number,))
        else:
            density = dist.Normal(0.0, jnp.full(number, self.prior.scale)).to_event(1)
        return {
            "loadings": block.declare("loadings", "loadings", density, ("entries",)),
            "noise": block.declare("noise", "noise", variance_prior(self.prior, self.dimension)),
        }

    def covariance(self, values: Mapping[str, Array]) -> Array:
        """Full matrices."""
        given = values["loadings"]
        blank = jnp.zeros((*given.shape[:-1], self.dimension, self.rank), given.dtype)
        root = blank.at[..., *self.entries].set(given)
        eye = jnp.eye(self.dimension, dtype=given.dtype)
        return root @ jnp.swapaxes(root, -1, -2) + values["noise"][..., None, None] * eye

    def best(self, size: Array, scatter: Array) -> tuple[dict[str, Array], Array]:
        """Principal directions of the scatter (Tipping and Bishop 1999), with shrunk variances."""
        return jax.vmap(self._best)(size, scatter)

    def _best(self, size: Array, scatter: Array) -> tuple[dict[str, Array], Array]:
        number = _positive(size)
        values, vectors = jnp.linalg.eigh(scatter / number)
        values, vectors = jnp.maximum(values[::-1], 0.0), vectors[:, ::-1][:, : self.rank]
        along, noise, height = jax.vmap(lambda active: self._variances(number, values, active))(
            jnp.arange(self.rank + 1)
        )
        chosen = jnp.argmax(height)
        length = jnp.sqrt(jnp.maximum(along[chosen] - noise[chosen], 0.0))
        turned = jnp.linalg.qr((vectors * length).T, mode="r").T  # W up to a rotation
        found = {"loadings": turned[self.entries], "noise": noise[chosen]}
        return found, height[chosen]

    def _variances(self, size: Array, values: Array, active: Array) -> tuple[Array, Array, Array]:
        """Variances along the first `active` directions and across, and the log density at them."""
        first = jnp.arange(self.rank) < active
        leading = values[: self.rank]
        rest = values.sum() - jnp.where(first, leading, 0.0).sum()
        shape, rate, pull = 0.0, jnp.zeros(()), jnp.zeros(())
        if self.prior is not None:
            half, half_rate = self.prior.of_variance(self.dimension)
            shape, rate = 2 * half + 2, 2 * half_rate
            pull = 1 / rate
        across = size * (self.dimension - active) + shape
        energy = size * rest + rate
        along = 2 * leading / (1 + jnp.sqrt(1 + 4 * leading * pull / size))
        # the noise adds to the variance along the loadings and reduces their penalty accordingly
        gap = across**2 - 4 * active * pull * energy
        noise = 2 * energy / (across + jnp.sqrt(jnp.maximum(gap, 0.0)))
        height = -0.5 * (across * jnp.log(noise) + energy / noise)
        terms = size * (jnp.log(along) + leading / along) + (along - noise) * pull
        height -= 0.5 * jnp.where(first, terms, 0.0).sum()
        possible = (~first | (along >= noise)).all() & (gap >= 0)
        return along, noise, jnp.where(possible | (active == 0), height, -jnp.inf)

    def start(self, covariance: NDArray) -> dict[str, NDArray]:
        """Leading directions, and half of the mean variance across."""
        values, vectors = np.linalg.eigh(covariance)
        noise = 0.5 * values[..., : -self.rank].mean(axis=-1)
        length = np.sqrt(values[..., -self.rank :] - noise[..., None])
        root = np.swapaxes(vectors[..., -self.rank :] * length[..., None, :], -1, -2)
        turned = np.swapaxes(np.linalg.qr(root, mode="r"), -1, -2)
        return {"loadings": turned[..., *self.entries], "noise": noise}

    def bijector(self, role: str, bijector: Transform, unit: Array) -> Transform:
        """Coordinates of loadings in units of the data, and of the noise in squared units."""
        if role == "noise":
            return _scaled(bijector, unit**2, constraints.positive)
        scaled = IndependentTransform(AffineTransform(0.0, unit), 1)
        return ComposeTransform([bijector, scaled])


def variance_prior(prior: DirectionalPrior | None, dimension: int) -> dist.Distribution:
    """Prior of a variance in squared radians; None is flat."""
    if prior is None:
        return dist.ImproperUniform(constraints.positive, (), ())
    return dist.InverseGamma(*prior.of_variance(dimension))


def _scaled(bijector: Transform, unit: Array, domain: Any) -> Transform:
    return ComposeTransform([bijector, AffineTransform(0.0, unit, domain)])


def _positive(number: Array) -> Array:
    """Numbers of points, kept positive for divisions."""
    return jnp.maximum(number, jnp.finfo(number.dtype).tiny)
