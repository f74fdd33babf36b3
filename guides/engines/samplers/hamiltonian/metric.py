"""Mass matrices of Hamiltonian samplers, as linear maps to coordinates of similar widths."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

__all__ = ["MassMatrix", "Metric", "by_axes", "by_covariance", "by_variances", "unit_metric"]

MassMatrix = bool | Literal["low_rank"]
"""Whether the mass matrix is full, as in NumPyro's ``dense_mass``, or diagonal except along few axes."""

_MOST_AXES = 32
"""Maximum number of directions in which a mass matrix of low rank differs from a diagonal one."""

_TRUST = 10.0
"""Maximum ratio of successive estimates of a coordinate's mass, as few draws may lie along a ridge."""

_SHRINKAGE = 5e-3
"""Product of the share of the diagonal in a full mass matrix and the number of draws."""

_PRIOR_DRAWS = 0.3
"""Weight of the diagonal in a mass matrix of low rank, in draws."""

_CLEAR = 2.0
"""Ratio of variances along an axis and without it above which the axis is used."""


class Metric(NamedTuple):
    r"""Linear map :math:`A = S (I + U (D - I) U')` whose :math:`A A'` is the inverse mass matrix.

    Trajectories are followed in coordinates :math:`y` with unit masses, where :math:`z = z_0 + A y`.

    Attributes
    ----------
    scale : Array, shape (size,) or (size, size)
        The diagonal of S, or all of it, which is lower triangular.
    axes : Array, shape (size, rank)
        U, with orthonormal columns; none unless the matrix is of low rank.
    stretch : Array, shape (rank,)
        The diagonal of D.
    """

    scale: Array
    axes: Array
    stretch: Array

    def moved(self, unit: Array) -> Array:
        """Map moves of the coordinates to those of the sites, :math:`A y`."""
        inner = self._stretched(unit, self.stretch)
        return self.scale @ inner if self.scale.ndim == 2 else self.scale * inner

    def slope_of_coordinates(self, slope: Array) -> Array:
        """Map a gradient in the sites to one in the coordinates, :math:`A' g`."""
        inner = self.scale.T @ slope if self.scale.ndim == 2 else self.scale * slope
        return self._stretched(inner, self.stretch)

    def slope_of_sites(self, slope: Array) -> Array:
        """Map a gradient in the coordinates to one in the sites."""
        inner = self._stretched(slope, 1 / self.stretch)
        if self.scale.ndim == 2:
            return jax.scipy.linalg.solve_triangular(self.scale, inner, trans=1, lower=True)
        return inner / self.scale

    @property
    def covariance(self) -> Array:
        """The inverse mass matrix, shape (size, size)."""
        factor = jax.vmap(self.moved, out_axes=1)(jnp.eye(len(self.scale)))
        return factor @ factor.T

    def _stretched(self, vector: Array, stretch: Array) -> Array:
        if not len(stretch):
            return vector
        return vector + self.axes @ ((stretch - 1) * (self.axes.T @ vector))


def unit_metric(size: int, dense_mass: MassMatrix) -> Metric:
    """Return the metric of unit masses."""
    scale = jnp.eye(size) if dense_mass is True else jnp.ones(size)
    rank = min(size, _MOST_AXES) if dense_mass == "low_rank" else 0
    return Metric(scale, jnp.zeros((size, rank)), jnp.ones(rank))


def by_variances(last: Metric, scatter: Array, count: Array, by_slopes: Array) -> Metric:
    """Estimate a diagonal mass matrix; a coordinate that has not moved keeps its mass.

    Where slopes are zero, variances are those of the draws.

    Parameters
    ----------
    last : Metric
        The previous metric, whose axes are kept.
    scatter : Array, shape (2, size)
        Sums of squared deviations from the mean, of coordinates and of gradients.
    count : Array, shape ()
        Number of draws.
    by_slopes : Array of bool, shape ()
        Whether gradients are used.
    """
    spread, bend = scatter
    before = (last.scale**2).sum(-1) if last.scale.ndim == 2 else last.scale**2
    real = jnp.finfo(spread.dtype)
    known = by_slopes & (bend > real.tiny)
    found = jnp.where(known, jnp.sqrt(spread / bend), spread / (count - 1))
    usable = (spread > real.tiny) & jnp.isfinite(found) & (found > 0)
    variances = jnp.where(usable, jnp.clip(found, before / _TRUST, before * _TRUST), before)
    return last._replace(scale=jnp.sqrt(variances))


def by_covariance(diagonal: Metric, last: Metric, products: Array, count: Array) -> Metric:
    """Estimate a full mass matrix, once there are two draws per coordinate.

    Parameters
    ----------
    diagonal, last : Metric
        The metric from `by_variances`, which is used with fewer draws, and the previous metric.
    products : Array, shape (size, size)
        Scatter matrix of the draws.
    count : Array, shape ()
    """
    share = jnp.where(count > 2 * len(products), 1 - _SHRINKAGE / count, 0.0)
    covariance = share * products / (count - 1) + (1 - share) * jnp.diag(diagonal.scale**2)
    scale = jnp.linalg.cholesky(covariance)
    return last._replace(scale=jnp.where(jnp.isfinite(scale).all(), scale, last.scale))


def by_axes(diagonal: Metric, draws: Array, slopes: Array, weight: Array) -> Metric:
    r"""Estimate a mass matrix that differs from a diagonal one along few axes.

    In scaled coordinates, along the principal axes of draws and of gradients, the covariance :math:`C` solves
    :math:`C\, \Gamma\, C = \Sigma`, where :math:`\Sigma` is the covariance of draws and :math:`\Gamma` that
    of gradients. On a normal posterior, this is the posterior covariance, whatever the draws.

    Parameters
    ----------
    diagonal : Metric
        The metric from `by_variances`.
    draws, slopes : Array, shape (places, size)
    weight : Array, shape (places,)
        1 for a draw, 0 for a place without one.

    References
    ----------
    Seyboldt, Carlson and Carpenter (2026), arXiv:2603.18845, algorithm 1.
    """
    count, rank = weight.sum(), len(diagonal.stretch)

    def centred(rows: Array) -> Array:
        mean = weight @ rows / count
        return weight[:, None] * (rows - mean)

    draws, slopes = centred(draws) / diagonal.scale, centred(slopes) * diagonal.scale
    size = draws.shape[1]
    if size <= 2 * rank:
        basis = jnp.eye(size)
    else:
        main = [_principal(rows, rank) for rows in (draws, slopes)]
        basis = jnp.linalg.qr(jnp.concatenate(main, axis=1))[0]
    unit = _PRIOR_DRAWS * jnp.eye(basis.shape[1])
    of_draws, of_slopes = (
        (part.T @ part + unit) / (count + _PRIOR_DRAWS) for part in (draws @ basis, slopes @ basis)
    )
    values, vectors = jnp.linalg.eigh(_that_makes_alike(of_slopes, of_draws))
    log_values = jnp.log(jnp.maximum(values, jnp.finfo(values.dtype).tiny))
    most = jnp.log(_TRUST)
    # most directions share about one variance, which is moved to the scale
    usual = jnp.clip(jnp.median(log_values), -most, most)
    far = jnp.argsort(-jnp.abs(log_values - usual))[:rank]
    before = 2 * jnp.abs(jnp.log(diagonal.stretch)).max()
    rise = jnp.clip(log_values[far] - usual, -before - most, before + most)
    axes = basis @ vectors[:, far]
    stretch = jnp.exp(jnp.where(jnp.abs(rise) > jnp.log(_CLEAR), rise, 0.0) / 2)
    fine = jnp.isfinite(axes).all() & jnp.isfinite(stretch).all()
    return diagonal._replace(
        scale=jnp.where(fine, diagonal.scale * jnp.exp(usual / 2), diagonal.scale),
        axes=jnp.where(fine, axes, diagonal.axes),
        stretch=jnp.where(fine, stretch, diagonal.stretch),
    )


def _that_makes_alike(first: Array, second: Array) -> Array:
    r"""Return the symmetric positive definite :math:`C` with :math:`C A C = B` for two such matrices."""
    lower = jnp.linalg.cholesky(first)
    values, vectors = jnp.linalg.eigh(lower.T @ second @ lower)
    half = jax.scipy.linalg.solve_triangular(lower, vectors, trans=1, lower=True)
    return (half * jnp.sqrt(jnp.maximum(values, 0.0))) @ half.T


def _principal(rows: Array, rank: int) -> Array:
    """Approximate the leading principal axes by two steps of subspace iteration (randomised SVD)."""
    found = jax.random.normal(jax.random.key(0), (rows.shape[1], rank), rows.dtype)
    for _ in range(2):
        found = jnp.linalg.qr(rows.T @ (rows @ found))[0]
    return found
