"""Wrapped normal components of mixtures on the unit sphere, as one block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray
from numpyro.distributions.transforms import Transform

from ..block import Block, Observation, WholeData
from ..collapsed import Collapsed
from ..manifolds import sphere
from ..mixtures.data_units import fitted_statistic
from .directional_prior import DirectionalPrior, held_by_directional_prior, improper_prior
from .frames import central_pole, sample_directions, transported_basis, unit_rows
from .sphere_starts import check_unit_vectors, sphere_cells, warn_of_axes
from .spreads import FullSpread, LowRankSpread, SphericalSpread, Spread
from .tangent_sums import TangentSums, tangent_sums
from .wrapped_normal import WrappedNormal, missing_mass

__all__ = ["SPREADS", "WrappedComponents"]

SPREADS = ("full", "spherical", "low_rank")

_SINGULAR = 1e-10
"""A covariance counts as singular if its least eigenvalue, relative to the largest of all, is smaller."""

_HALVINGS = 30
"""Number of times that a step of the mean is halved before the mean is left unchanged."""

_FAR_AWAY = 0.7
"""Angle to the nearest point, in radians, above which a mean counts as far away."""

_AROUND = 0.5
"""Bound of the missing mass above which a component counts as reaching around the sphere."""

_LACKING = 1e-3
"""Missing mass of densities above which a fit reports it."""


class _Members(NamedTuple):
    """Points as unit vectors, and their responsibilities."""

    points: Array
    member: Array


class _Search(NamedTuple):
    """Steps of the means, and the results of the accepted ones."""

    step: Array
    direction: Array
    scatter: Array
    done: Array
    number: Array


class WrappedComponents(Block, WholeData):
    r"""Mean directions and covariances of wrapped normals; see `WrappedNormal`.

    Mean directions are uniform on the sphere; covariances of tangent vectors have a
    `DirectionalPrior` or a flat prior. They are sampled in frames that are transported from a pole
    to the means, and recorded in the coordinates of the ambient space. The pole, recorded with a
    fit, is such that no data lie near its opposite, which is the only point without a frame.

    The M-step of EM moves each mean by the gradient of the exact density, scaled by the covariance.
    For one variance in all directions and small angles, this is a step towards the Karcher mean. A
    step that would lower the objective is halved, so that EM is monotone.

    Parameters
    ----------
    num_clusters, dimension : int
    covariance : {"full", "spherical", "low_rank"}
    rank : int
        Rank of "low_rank".
    prior : DirectionalPrior or None
        None is an improper flat prior: maximum likelihood.
    data : array_like, shape (num_points, dimension + 1), optional
    """

    factor: ClassVar[str] = "unary"
    derived: ClassVar[Mapping[str, str]] = {"direction": "location", "covariance": "spread"}

    def __init__(
        self,
        num_clusters: int,
        dimension: int,
        covariance: str,
        rank: int,
        prior: DirectionalPrior | None,
        data: ArrayLike | None = None,
        *,
        from_data: bool = False,
    ) -> None:
        self.num_clusters, self.dimension, self.prior = num_clusters, dimension, prior
        self.data, self.from_data = data, from_data
        self.spread: Spread
        if covariance == "low_rank":
            self.spread = LowRankSpread(dimension, rank, prior)
        else:
            kind = FullSpread if covariance == "full" else SphericalSpread
            self.spread = kind(dimension, prior)
        self.unit: Any = 1.0
        self.pole: Any = np.eye(dimension + 1)[0]
        if data is not None:
            self.unit = DirectionalPrior.empirical(data, num_clusters).scale
            self.pole = central_pole(data)

    @property
    def remedy(self) -> str:  # type: ignore[override]
        """What to do about a collapsed cluster."""
        options = {
            "prior='empirical'": self.prior is None,
            "fewer clusters": self.num_clusters > 1,
            "covariance='spherical'": not isinstance(self.spread, SphericalSpread),
            "a DirectionalPrior of larger scale": self.prior is not None,
        }
        return self.offered("use", options)

    @property
    def roles(self) -> tuple[str, ...]:  # type: ignore[override]
        """Roles of the sites."""
        return ("vector", *self.spread.roles)

    def sample(self) -> dist.Distribution:
        """Sample means and covariances; return the components, batch shape (num_clusters,)."""
        with numpyro.plate("features", self.dimension + 1):
            self.pole = fitted_statistic("pole", jnp.asarray(self.pole))
        direction = sample_directions(self, self.num_clusters, self.dimension)
        with numpyro.plate("clusters", self.num_clusters):
            values = self.spread.sample(self)
        covariance = self.spread.covariance(values)
        basis = transported_basis(self.pole, direction)
        fn = WrappedNormal(direction, basis, jnp.linalg.cholesky(covariance))
        self._note(fn, covariance)
        return fn

    def _note(self, fn: WrappedNormal, covariance: Array) -> None:
        """Record covariances in the ambient space, and the largest missing mass of their densities."""
        clusters = numpyro.plate("clusters", self.num_clusters, dim=-3)
        rows = numpyro.plate("features", self.dimension + 1, dim=-2)
        with clusters, rows, numpyro.plate("features_1", self.dimension + 1):
            numpyro.deterministic("covariance", fn.covariance)
        widest = jnp.linalg.eigvalsh(covariance)[..., -1]
        with numpyro.plate("clusters", self.num_clusters):
            numpyro.deterministic("missing_mass", missing_mass(widest, self.dimension))

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in which angles are measured in a unit of the data."""
        if role == "vector":
            return bijector
        return self.spread.bijector(role, bijector, self.unit)

    def statistics(self, observation: Observation) -> _Members:
        """Return points and responsibilities, because no smaller sums are sufficient for other means."""
        return _Members(unit_rows(jnp.asarray(observation.value)), observation.expected["unary"])

    def update(self, statistics: _Members, sources: Sequence[Collapsed]) -> _Members:
        """Return the statistics unchanged: nothing is available in closed form before the means."""
        return statistics

    def mode(self, found: _Members, values: Mapping[str, Array]) -> dict[str, Array]:
        """Means and covariances at which the objective is not lower than at the current ones."""
        direction = unit_rows(values["vector"])
        covariance = self.spread.covariance(values)
        precision = jnp.linalg.inv(covariance)
        here = self._sums(found, direction, precision)
        size = jnp.maximum(here.size, jnp.finfo(here.size.dtype).tiny)
        move = jnp.einsum("kpq,kq->kp", covariance, here.slope) / size[:, None]
        length = jnp.linalg.norm(move, axis=-1, keepdims=True)
        move = move / jnp.maximum(length, 1.0)  # at most a radian
        tangent = jnp.einsum("kdp,kp->kd", transported_basis(self.pole, direction), move)
        height = self._height(here)
        level = height - 8 * jnp.finfo(height.dtype).eps * (1 + jnp.abs(height))

        def attempt(state: _Search) -> _Search:
            end = unit_rows(sphere.exp(direction, state.step[:, None] * tangent))
            there = self._sums(found, end, precision)
            now = self._height(there)
            better = ~state.done & (now >= level)
            return _Search(
                jnp.where(better | state.done, state.step, state.step / 2),
                jnp.where(better[:, None], end, state.direction),
                jnp.where(better[:, None, None], there.scatter, state.scatter),
                state.done | better,
                state.number + 1,
            )

        still = ~jnp.isfinite(height) | ~jnp.isfinite(length[:, 0])
        first = _Search(jnp.ones_like(height), direction, here.scatter, still, jnp.asarray(0))
        state = lax.while_loop(
            lambda state: ~state.done.all() & (state.number < _HALVINGS), attempt, first
        )
        best, _ = self.spread.best(here.size, state.scatter)
        return {"vector": state.direction, **best}

    def _sums(self, found: _Members, direction: Array, precision: Array) -> TangentSums:
        basis = transported_basis(self.pole, direction)
        return tangent_sums(found.points, found.member, direction, basis, precision)

    def _height(self, sums: TangentSums) -> Array:
        """Objective of each component at its optimal covariance."""
        _, height = self.spread.best(sums.size, sums.scatter)
        return height + (self.dimension - 1) * sums.stretch

    def improper(self) -> str | None:
        """Say that there is no posterior under a flat prior."""
        return improper_prior(self.prior)

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Mean directions and spreads of the cells of partitions; see `partitions`."""
        data = np.asarray(value, float).reshape(len(value), -1)
        if data.shape[1] != self.dimension + 1:
            return {}
        cells = sphere_cells(data, self.num_clusters, seed, num_starts)
        basis = np.asarray(transported_basis(central_pole(data), jnp.asarray(cells.direction)))
        inside = np.swapaxes(basis, -1, -2) @ cells.covariance @ basis
        return {"vector": cells.direction, **self.spread.start(inside)}

    def degenerate(self, values: Mapping[str, Any]) -> tuple[int, str] | None:
        """First cluster whose covariance is numerically singular."""
        given = {role: jnp.asarray(value) for role, value in values.items()}
        spread = np.linalg.eigvalsh(np.asarray(self.spread.covariance(given)))
        worst = int(np.argmin(spread[:, 0]))
        if spread[worst, 0] < _SINGULAR * spread.max():
            return worst, "its covariance is singular"
        return None

    def doubts(self, values: Mapping[str, Any], data: Any) -> tuple[float, str] | None:
        """Say that a component reaches around the sphere, with all points far from its mean.

        Covariances of such components are stretched, which a prior favours if it is wide relative
        to the clusters.
        """
        if self.data is None or isinstance(self.data, Tracer):
            return None
        mean = np.asarray(values["vector"])
        mean = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
        is_far = (mean @ np.asarray(self.data).T).max(axis=1) < math.cos(_FAR_AWAY)
        around = (is_far & (self._lacking(values) > _AROUND)).any()
        return (math.inf, "where a component reaches around the sphere") if around else None

    def _lacking(self, values: Mapping[str, Any]) -> NDArray[np.float64]:
        """Bound of the missing mass of each component's density; see `missing_mass`."""
        given = {role: jnp.asarray(values[role]) for role in self.spread.roles}
        widest = np.linalg.eigvalsh(np.asarray(self.spread.covariance(given)))[..., -1]
        return np.asarray(missing_mass(widest, self.dimension))

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say which component reaches around the sphere, or is held by a prior that was not given."""
        lacking = self._lacking(values).mean(axis=(0, 1))
        worst = int(np.argmax(lacking))
        if lacking[worst] < _LACKING:
            given = {role: jnp.asarray(values[role]) for role in self.spread.roles}
            spread = np.asarray(self.spread.covariance(given))
            return held_by_directional_prior(self, spread, values, self.spread.per_point)
        return (
            f"Cluster {worst} reaches around the sphere: up to {lacking[worst]:.1%} of its mass is left out "
            "of its density; family='von_mises_fisher' has the whole"
        )

    def check(self, name: str, value: Any) -> None:
        """Refuse rows that are not directions."""
        check_unit_vectors(name, value)
        warn_of_axes(name, value)

    def check_rows(self, name: str, value: Any) -> None:
        """Refuse rows that are not directions."""
        check_unit_vectors(name, value)
