"""Discriminants that share one rule of assignment among all points, as a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike

from ..block import Block
from .gaussian_block import GaussianComponents
from .partitioned_mixture import PartitionedMixture
from .units import data_units

__all__ = ["Discriminants", "matched_discriminants", "monomials"]

_RIDGE = 1e-9
"""Share of its mean added to the diagonal of the monomials' second moments, which may be singular."""


def monomials(z: ArrayLike, covariance: str) -> Array:
    """One, the features, and those products of two that tell Gaussians of such covariances apart.

    Parameters
    ----------
    z : array_like, shape (num_points, num_features)
    covariance : {"full", "tied", "diagonal", "spherical"}
        Products of all pairs for "full", none for "tied", else squares.

    Returns
    -------
    Array, shape (num_points, num_monomials)
    """
    z = jnp.asarray(z)
    one = jnp.ones((*z.shape[:-1], 1), z.dtype)
    if covariance == "tied":
        return jnp.concatenate([one, z], axis=-1)
    if covariance == "full":
        row, column = np.triu_indices(z.shape[-1])
        return jnp.concatenate([one, z, z[..., row] * z[..., column]], axis=-1)
    return jnp.concatenate([one, z, z**2], axis=-1)


def matched_discriminants(
    log_weights: ArrayLike, mean: ArrayLike, spread: ArrayLike, covariance: str
) -> Array:
    r"""Discriminants that give the mixture's own posterior (Raghuram 2014, section 3.2.2.2).

    :math:`W_k = -\Sigma_k^{-1}/2`, :math:`v_k = \Sigma_k^{-1}\mu_k`,
    :math:`b_k = \log\pi_k - \log|\Sigma_k|/2 - \mu_k^\top\Sigma_k^{-1}\mu_k/2`, up to what is common to
    all components.

    Parameters
    ----------
    log_weights : array_like, shape (num_components,)
    mean : array_like, shape (num_components, num_features)
    spread : array_like
        Covariances, or variances, as `GaussianComponents` has them.
    covariance : {"full", "tied", "diagonal", "spherical"}

    Returns
    -------
    Array, shape (num_components, num_monomials)
        Coefficients of `monomials`.
    """
    mean, spread = jnp.asarray(mean), jnp.asarray(spread)
    size = mean.shape[-1]
    if covariance in ("full", "tied"):
        precision = jnp.broadcast_to(jnp.linalg.inv(spread), (*mean.shape, size))
        log_det = jnp.linalg.slogdet(spread)[1]
    else:
        each = jnp.broadcast_to(1.0 / (spread[:, None] if spread.ndim == 1 else spread), mean.shape)
        precision = each[..., None] * jnp.eye(size)
        log_det = -jnp.log(each).sum(axis=-1)
    slope = jnp.einsum("kij,kj->ki", precision, mean)
    offset = jnp.asarray(log_weights) - 0.5 * (log_det + (slope * mean).sum(axis=-1))
    parts = [offset[:, None], slope]
    if covariance == "full":
        row, column = np.triu_indices(size)
        parts.append(jnp.where(row == column, -0.5, -1.0) * precision[:, row, column])
    elif covariance != "tied":
        parts.append(-0.5 * jnp.diagonal(precision, axis1=1, axis2=2))
    return jnp.concatenate(parts, axis=-1)


class Discriminants(Block):
    r"""Coefficients :math:`\phi_k` of the discriminants :math:`\psi_k(x)` of all components.

    They describe the restricted posterior :math:`q(k | x) = \text{softmax}_k \psi_k(x)` of a
    `PartitionedMixture`, and nothing else: EM moves them by `tighten` before each of its steps.

    Parameters
    ----------
    num_components : int
    covariance : {"full", "tied", "diagonal", "spherical"}
        The discriminants are of the form that Gaussians of such covariances have.
    gaussians : GaussianComponents
        Block of the components, beside whose starts the discriminants start.
    plate : str
        Axis of the components.
    weights : array_like, shape (num_components,), optional
        Of the components where runs start; by default all are equal.
    """

    factor: ClassVar[str] = "scores"
    roles: ClassVar[tuple[str, ...]] = ("discriminants",)
    tightens: ClassVar[bool] = True

    def __init__(
        self,
        num_components: int,
        covariance: str,
        gaussians: GaussianComponents,
        plate: str = "components",
        weights: ArrayLike | None = None,
    ) -> None:
        self.num_components, self.covariance = num_components, covariance
        self.gaussians, self.plate = gaussians, plate
        equal = np.full(num_components, 1.0 / num_components)
        self.weights = equal if weights is None else weights
        self.basis: Array
        """Monomials of the points."""

    @property
    def has_update(self) -> bool:
        """There is none in closed form."""
        return False

    def sample(self, x: ArrayLike, name: str) -> Array:
        """Sample coefficients; return the scores of the points, (num_points, num_components).

        Features are taken in the units of the data that were fitted, which are sites as well, so
        that the same coefficients hold for other points.
        """
        centre, unit = data_units(x, jnp.shape(x)[1])
        centre = numpyro.deterministic("centre", centre)
        unit = numpyro.deterministic("unit", unit)
        self.basis = monomials((jnp.asarray(x) - centre) / unit, self.covariance)
        size = self.basis.shape[1]
        flat = dist.ImproperUniform(dist.constraints.real_vector, (), (size,))
        with numpyro.plate(self.plate, self.num_components):
            coefficients = self.declare("discriminants", name, flat, ("monomials",))
        return self.basis @ coefficients.T

    def tighten(
        self,
        fn: PartitionedMixture,
        value: Array,
        values: Mapping[str, Array],
        minimise: Callable[[Callable[[Array], Array], Array], Array],
    ) -> dict[str, Array]:
        """Raise the bound of an observed site in the coefficients.

        They are climbed in coordinates in which the monomials of the points are uncorrelated and of
        unit size.

        Parameters
        ----------
        fn : PartitionedMixture
        value : Array
            Its data.
        values : mapping of str to Array
        minimise : callable
            ``minimise(loss, start)`` never raises the loss.
        """
        factors = fn.log_factors(value)
        moments = self.basis.T @ self.basis / len(self.basis)
        ridge = _RIDGE * jnp.diagonal(moments).mean() * jnp.eye(len(moments))
        root = jnp.linalg.cholesky(moments + ridge)
        basis = solve_triangular(root, self.basis.T, lower=True).T
        shape = values["discriminants"].shape

        def loss(flat: Array) -> Array:
            return -fn.bound(factors, fn.log_rule(basis @ flat.reshape(shape).T))

        found = minimise(loss, (values["discriminants"] @ root).ravel()).reshape(shape)
        return {"discriminants": solve_triangular(root, found.T, lower=True, trans=1).T}

    def matched(
        self, log_weights: ArrayLike, mean: ArrayLike, spread: ArrayLike, centre: Any, unit: Any
    ) -> Array:
        """`matched_discriminants` of Gaussians of the data, in the units of the data."""
        if self.covariance in ("full", "tied"):
            spread = jnp.asarray(spread) / unit[:, None] / unit
        elif self.covariance == "diagonal":
            spread = jnp.asarray(spread) / unit**2
        else:  # spheres of the data are none in other units
            spread = jnp.asarray(spread)[..., None] / unit**2
        mean = (jnp.asarray(mean) - centre) / unit
        return matched_discriminants(log_weights, mean, spread, self.covariance)

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Give each start the posterior of its mixture."""
        data = np.asarray(value, float).reshape(len(value), -1)
        size = (self.num_components, data.shape[1])
        given = self.gaussians.starts(value, {"location": size}, seed, num_starts)
        if not given:
            return {}
        centre, unit = data_units(data, size[1])
        spread = np.asarray(given["spread"])
        tail = self.gaussians.spread_shape
        spread = np.broadcast_to(spread, (num_starts, *tail))
        match = jax.vmap(self.matched, in_axes=(None, 0, 0, None, None))
        return {
            "discriminants": match(
                jnp.log(self.weights), jnp.asarray(given["location"]), spread, centre, unit
            )
        }
