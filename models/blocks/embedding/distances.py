"""Distances between points and landmarks, observed with noise."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray
from numpyro.distributions import constraints
from numpyro.distributions.transforms import ExpTransform

from ..missing import RealOrMissing
from .outlying import Outlying, outlying

__all__ = ["NOISES", "NoisyDistances", "deviance_residuals", "distance_law"]

NOISES = ("log_normal", "log_t", "normal")

_DEGREES = 4.0
"""Degrees of freedom of Student's t."""
_RIGID = 1e-5
"""Share of the median distance below which relative noise keeps two points together."""


def distance_law(between: Array, noise: ArrayLike, law: str) -> dist.Distribution:
    """Law of each observed distance, given the distance of the positions; see `NoisyDistances`."""
    if law == "normal":
        return dist.TruncatedNormal(between, noise, low=0.0)
    middle = jnp.log(between)
    if law == "log_normal":
        return dist.LogNormal(middle, noise)
    return dist.TransformedDistribution(dist.StudentT(_DEGREES, middle, noise), ExpTransform())


def deviance_residuals(value: NDArray, between: NDArray, noise: float, law: str) -> NDArray:
    """Deviance residuals: signed roots of twice the loss of log density from its maximum."""
    with np.errstate(divide="ignore", invalid="ignore"):  # zeros
        if law == "normal":
            return (value - between) / noise
        residual = np.where(value == between, 0.0, np.log(value / between)) / noise
        if law == "log_normal":
            return residual
        nats = (_DEGREES + 1) / 2 * np.log1p(residual**2 / _DEGREES)
        return np.sign(residual) * np.sqrt(2 * nats)


class NoisyDistances(dist.Distribution):
    r"""Distances of points from landmarks; each pair of points counts once.

    .. math:: \log d_{ij} \sim \mathcal N(\log\|x_i - x_j\|, \sigma^2), \qquad
              \log d_{ij} \sim t_4(\log\|x_i - x_j\|, \sigma), \qquad
              d_{ij} \sim \mathcal N(\|x_i - x_j\|, \sigma^2)\,[d_{ij} \ge 0]

    The distance of two landmarks is in the table twice and counts one half each time, so that no
    term depends on the order of the points. The distance of a point from itself and missing
    distances (NaN) do not count.

    Parameters
    ----------
    positions : Array, shape (num_points, num_dimensions)
    landmarks : Array of int, shape (num_landmarks,)
        Numbers of points.
    noise : Array, shape ()
        :math:`\sigma`: without unit, or in the unit of distances for "normal".
    law : {"log_normal", "log_t", "normal"}
    """

    arg_constraints: ClassVar[dict] = {}
    support = constraints.independent(RealOrMissing(), 1)
    pytree_data_fields: ClassVar[tuple[str, ...]] = ("positions", "landmarks", "noise")
    pytree_aux_fields: ClassVar[tuple[str, ...]] = ("law",)

    def __init__(
        self,
        positions: Array,
        landmarks: Array,
        noise: ArrayLike,
        law: str,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.positions, self.landmarks, self.noise, self.law = positions, landmarks, noise, law
        shapes = jnp.shape(positions)[:1], jnp.shape(landmarks)
        super().__init__(*shapes, validate_args=validate_args)

    @property
    def between(self) -> Array:
        """Distances of the positions, (num_points, num_landmarks); set to one from a point to itself."""
        apart = self.positions[:, None] - self.positions[self.landmarks]
        square = jnp.where(self._own, 1.0, jnp.sum(apart**2, axis=-1))
        return jnp.sqrt(jnp.maximum(square, jnp.finfo(square.dtype).tiny))

    @property
    def _own(self) -> Array:
        return jnp.arange(len(self.positions))[:, None] == self.landmarks

    def _single(self) -> dist.Distribution:
        return distance_law(self.between, self.noise, self.law)

    def counts(self, value: Array) -> Array:
        """Weight of each entry of a table: one, one half, or zero."""
        known = ~jnp.isnan(value)
        among = known[self.landmarks]
        weights = known.astype(self.positions.dtype)
        weights = weights.at[self.landmarks].multiply(jnp.where(among & among.T, 0.5, 1.0))
        return jnp.where(self._own, 0.0, weights)

    def log_prob(self, value: Array) -> Array:
        """Log density by point, shape (num_points,)."""
        counts = self.counts(value)
        terms = self._single().log_prob(jnp.where(counts > 0, value, 1.0))
        return jnp.sum(jnp.where(counts > 0, counts * terms, 0.0), axis=-1)

    def remark_on_draw(self, name: str, value: NDArray, is_density: bool) -> str | None:
        """Name a distance that contradicts the others of its point, or that merges two points.

        If the density is raised to a power, or if points are on a line, where they cannot pass one
        another, a contradiction may be due to the map.
        """
        positions, landmarks = np.asarray(self.positions), np.asarray(self.landmarks)
        table = np.array(value, float)
        table[landmarks, np.arange(len(landmarks))] = np.nan
        residuals = partial(deviance_residuals, noise=float(np.asarray(self.noise)), law=self.law)
        found: list[Outlying] = []
        if is_density and positions.shape[1] > 1:
            found = outlying(table, positions, positions[landmarks], residuals)
        if not found:
            return None if self.law == "normal" else self._remark_on_short(name, table)
        first = found[0]
        pairs = {frozenset((one.row, int(landmarks[one.column]))) for one in found}
        more = f"; {len(pairs) - 1} more are like it" if len(pairs) > 1 else ""
        return (
            f"{name}[{first.row}, {first.column}] = {first.value:.4g} is impossible beside the other "
            f"distances of point {first.row} in the noise that was fitted: they put it {first.expected:.4g} "
            f"from point {landmarks[first.column]}{more}. Correct what is wrong, give NaN for what is not "
            "known, or take noise='log_t', which lets some be wrong"
        )

    def _remark_on_short(self, name: str, table: NDArray) -> str | None:
        """Name the shortest distance if relative noise ties its two points together."""
        row, column = np.unravel_index(np.nanargmin(table), table.shape)
        share = table[row, column] / np.nanmedian(table)
        if share > _RIGID or np.asarray(self.between)[row, column] > _RIGID * np.nanmedian(table):
            return None
        point = np.asarray(self.landmarks)[column]
        return (
            f"{name}[{row}, {column}] = {table[row, column]:.4g} is {share:.1g} of the median distance: in "
            f"relative noise points {row} and {point} move as one, and a climb may not end. Keep one of the "
            "two, give NaN if the distance is not known, or take noise='normal'"
        )

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw a table, symmetric between landmarks."""
        drawn = jnp.where(self._own, 0.0, self._single().sample(key, sample_shape))
        among = drawn[..., self.landmarks, :]
        upper = jnp.triu(among, 1)
        whole = upper + jnp.swapaxes(upper, -1, -2)
        return drawn.at[..., self.landmarks, :].set(whole)
