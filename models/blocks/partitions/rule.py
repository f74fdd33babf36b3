"""One rule of assignment for all points: discriminants of monomials of the features."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

__all__ = ["Rule", "matched_discriminants", "monomials"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rule:
    r"""Discriminants :math:`\psi_k(x) = \phi_k^\top m((x - c) / u)` of monomials m; a pytree.

    Parameters
    ----------
    coefficients : Array, shape (num_components, num_monomials)
    centre, unit : Array, shape (num_features,)
        Units of the features.
    covariance : {"full", "tied", "diagonal", "spherical"}
        See `monomials`.
    """

    coefficients: Any
    centre: Any
    unit: Any
    covariance: str = field(metadata={"static": True})

    @staticmethod
    def num_monomials(num_features: int, covariance: str) -> int:
        """Number of coefficients of a discriminant."""
        products = {"full": num_features * (num_features + 1) // 2, "tied": 0}
        return 1 + num_features + products.get(covariance, num_features)

    def basis(self, x: ArrayLike) -> Array:
        """Monomials of points, shape (num_points, num_monomials)."""
        return monomials((jnp.asarray(x) - self.centre) / self.unit, self.covariance)

    def scores(self, x: ArrayLike) -> Array:
        """Discriminants of points, shape (num_points, num_components)."""
        return self.basis(x) @ self.coefficients.T


def monomials(z: ArrayLike, covariance: str) -> Array:
    """One, the features, and the products of two that discriminate Gaussians of such covariances.

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
    r"""Discriminants that reproduce the mixture's own posterior (Raghuram 2014, section 3.2.2.2).

    :math:`W_k = -\Sigma_k^{-1}/2`, :math:`v_k = \Sigma_k^{-1}\mu_k`, :math:`b_k = \log\pi_k -
    \log|\Sigma_k|/2 - \mu_k^\top\Sigma_k^{-1}\mu_k/2`, up to a term common to all components.

    Parameters
    ----------
    log_weights : array_like, shape (num_components,)
    mean : array_like, shape (num_components, num_features)
    spread : array_like
        Covariances, or variances, in the form of `GaussianComponents`.
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
