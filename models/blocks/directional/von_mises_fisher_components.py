"""Von Mises-Fisher components of mixtures on the unit sphere, as one block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from numpyro.distributions.transforms import AffineTransform, ComposeTransform, Transform

from ..block import Block, Observation
from ..collapsed import Collapsed
from .directional_prior import DirectionalPrior, held_by_directional_prior, improper_prior
from .frames import sample_directions, unit_rows
from .sphere_starts import check_unit_vectors, sphere_cells, warn_of_axes
from .von_mises_fisher import VonMisesFisher, mean_deficit, mean_deficit_slope

__all__ = ["VonMisesFisherComponents", "best_concentration"]

_LEAST, _MOST = 1e-8, 1e15
"""Bounds of the concentrations of an M-step."""

_STEPS = 60
"""Maximum number of Newton steps; about five are needed if none leaves the bracket."""

_POINT = 1e10
"""Ratio of a concentration to the least one above which a component counts as a point."""


class _Resultants(NamedTuple):
    """Expected number of points of each component, and the sum of their unit vectors."""

    size: Array
    total: Array


class VonMisesFisherComponents(Block):
    r"""Mean directions and concentrations of von Mises-Fisher densities.

    Mean directions are uniform on the sphere. Concentrations :math:`\kappa` have a flat prior, or
    the gamma prior that corresponds to a `DirectionalPrior` of the variance :math:`1 / \kappa`. The
    M-step of EM is exact: the mean is the direction of the resultant, and the concentration solves
    :math:`n (A(\kappa) - \bar R) = (a - 1) / \kappa - s^2 / 2`, with the shape a of that prior and
    a ratio A of Bessel functions, by Newton steps in a bracket.

    Parameters
    ----------
    num_clusters, dimension : int
    prior : DirectionalPrior or None
        None is flat: maximum likelihood.
    data : array_like, shape (num_points, dimension + 1), optional

    References
    ----------
    Banerjee, Dhillon, Ghosh and Sra (2005), J. Mach. Learn. Res. 6, 1345-1382.
    """

    factor: ClassVar[str] = "unary"
    roles: ClassVar[tuple[str, ...]] = ("vector", "concentration")
    derived: ClassVar[Mapping[str, str]] = {"direction": "location", "variance": "spread"}

    def __init__(
        self,
        num_clusters: int,
        dimension: int,
        prior: DirectionalPrior | None,
        data: ArrayLike | None = None,
        *,
        from_data: bool = False,
    ) -> None:
        self.num_clusters, self.dimension, self.prior = num_clusters, dimension, prior
        self.data, self.from_data = data, from_data
        self.unit: Any = 1.0
        if data is not None:
            self.unit = DirectionalPrior.empirical(data, num_clusters).scale

    @property
    def remedy(self) -> str:  # type: ignore[override]
        """What to do about a collapsed cluster."""
        options = {
            "prior='empirical'": self.prior is None,
            "fewer clusters": self.num_clusters > 1,
            "a DirectionalPrior of larger scale": self.prior is not None,
        }
        return self.offered("use", options)

    def sample(self) -> dist.Distribution:
        """Sample directions and concentrations; return the components, batch shape (num_clusters,)."""
        density: dist.Distribution
        if self.prior is None:
            density = dist.ImproperUniform(constraints.positive, (), ())
        else:
            density = dist.Gamma(*self.prior.of_variance(self.dimension))
        direction = sample_directions(self, self.num_clusters, self.dimension)
        with numpyro.plate("clusters", self.num_clusters):
            concentration = self.declare("concentration", "concentration", density)
            numpyro.deterministic("variance", 1 / concentration)
        return VonMisesFisher(direction, concentration)

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Concentrations in a unit of the data."""
        if role == "vector":
            return bijector
        unit = 1 / jnp.asarray(self.unit) ** 2
        return ComposeTransform([bijector, AffineTransform(0.0, unit, constraints.positive)])

    def statistics(self, observation: Observation) -> _Resultants:
        """Expected members of each component, and their sum."""
        member = observation.expected["unary"]
        return _Resultants(member.sum(axis=0), member.T @ unit_rows(jnp.asarray(observation.value)))

    def update(self, statistics: _Resultants, sources: Sequence[Collapsed]) -> _Resultants:
        """Return the statistics unchanged."""
        return statistics

    def mode(self, found: _Resultants, values: Mapping[str, Array]) -> dict[str, Array]:
        """Directions of the resultants, and the concentrations that fit their lengths."""
        length = jnp.linalg.norm(found.total, axis=-1)
        known = length > 0
        direction = found.total / jnp.where(known, length, 1.0)[:, None]
        shape: Any = 1.0
        rate: Any = 0.0
        if self.prior is not None:
            shape, rate = self.prior.of_variance(self.dimension)
        best = best_concentration(
            found.size, jnp.maximum(found.size - length, 0.0), shape, rate, self.dimension
        )
        return {
            "vector": jnp.where(known[:, None], direction, values["vector"]),
            "concentration": best,
        }

    def improper(self) -> str | None:
        """Say that there is no posterior under a flat prior."""
        return improper_prior(self.prior)

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Mean directions and concentrations of the cells of partitions; see `partitions`."""
        data = np.asarray(value, float).reshape(len(value), -1)
        if data.shape[1] != self.dimension + 1:
            return {}
        cells = sphere_cells(data, self.num_clusters, seed, num_starts)
        variance = np.trace(cells.covariance, axis1=-2, axis2=-1) / self.dimension
        return {"vector": cells.direction, "concentration": 1 / variance}

    def degenerate(self, values: Mapping[str, Any]) -> tuple[int, str] | None:
        """First cluster that has collapsed to a point."""
        concentration = np.asarray(values["concentration"])
        worst = int(np.argmax(concentration))
        least = max(concentration.min(), 1.0)
        if concentration[worst] < min(_POINT * least, _MOST / 2):
            return None
        return worst, "its points coincide, and its concentration has no bound"

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that a prior that was not given holds the spread of clusters."""
        variance = 1 / np.asarray(values["concentration"])[..., None]
        return held_by_directional_prior(self, variance, values, self.dimension)

    def check(self, name: str, value: Any) -> None:
        """Refuse rows that are not directions."""
        check_unit_vectors(name, value)
        warn_of_axes(name, value)

    def check_rows(self, name: str, value: Any) -> None:
        """Refuse rows that are not directions."""
        check_unit_vectors(name, value)


def best_concentration(size: Array, deficit: Array, shape: Any, rate: Any, dimension: int) -> Array:
    r"""Most probable concentrations of von Mises-Fisher densities under a gamma prior.

    Parameters
    ----------
    size : Array, shape (num_clusters,)
        Expected numbers of points.
    deficit : Array, shape (num_clusters,)
        Expected numbers minus the lengths of the resultants, :math:`n (1 - \bar R)`.
    shape, rate : float or Array
        Parameters of the prior; 1 and 0 make it flat.
    dimension : int
        Dimension of the sphere.

    Returns
    -------
    Array, shape (num_clusters,)
        Between 1e-8 and 1e15.
    """
    target = jnp.log(deficit + rate)
    middle = 0.5 * dimension * size + shape - 1.0
    start = jnp.log(jnp.clip(middle / (deficit + rate), _LEAST, _MOST))
    bounds = jnp.log(_LEAST), jnp.log(_MOST)
    low, high = (jnp.full_like(target, bound) for bound in bounds)

    def step(_: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        at, low, high = state
        kappa = jnp.exp(at)
        level = size * mean_deficit(kappa, dimension) + (shape - 1.0) / kappa
        slope = size * mean_deficit_slope(kappa, dimension) * kappa - (shape - 1.0) / kappa
        above = jnp.log(level) - target  # positive where the concentration is too low
        low, high = jnp.where(above > 0, at, low), jnp.where(above > 0, high, at)
        moved = at - above * level / jnp.where(slope < 0, slope, -1.0)
        inside = (moved > low) & (moved < high) & (slope < 0)
        return jnp.where(inside, moved, (low + high) / 2), low, high

    return jnp.exp(lax.fori_loop(0, _STEPS, step, (start, low, high))[0])
