"""Centres of spheres of one known width, under a flat prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import constraints

from sidebayes.common.fields import Range, check_number

from ..block import Block, Observation
from ..collapsed import Collapsed
from ..mixtures.data_units import remark_on_units
from .partition_starts import cell_moments, partitions

__all__ = ["Centroids"]


class _Normal(NamedTuple):
    """Means of independent normals, and the number of points in each."""

    mean: Array
    size: Array


class Centroids(Block):
    """Centres of clusters, shape (num_clusters, num_features), with known standard deviation `scale`."""

    factor: ClassVar[str] = "unary"
    roles: ClassVar[tuple[str, ...]] = ("location",)

    def __init__(self, num_clusters: int, num_features: int, scale: float) -> None:
        if not isinstance(scale, Array):  # which may be a value that the model computes
            scale = check_number("scale", scale, Range(above=0.0))
        self.num_clusters, self.num_features, self.scale = num_clusters, num_features, scale

    def sample(self, name: str = "mean") -> dist.Distribution:
        """Sample the centres; return the components, batch shape (num_clusters,)."""
        flat = dist.ImproperUniform(constraints.real_vector, (), (self.num_features,))
        with numpyro.plate("clusters", self.num_clusters):
            centre = self.declare("location", name, flat, ("features",))
        return dist.Normal(centre, self.scale).to_event(1)

    def statistics(self, observation: Observation) -> tuple[Array, Array]:
        """Expected number of points of each cluster, and their sum."""
        member = observation.expected["unary"]
        return member.sum(axis=0), member.T @ jnp.asarray(observation.value)

    def update(self, statistics: tuple[Array, Array], sources: Sequence[Collapsed]) -> _Normal:
        """Posterior given the members of each cluster."""
        size, total = statistics
        return _Normal(total / jnp.maximum(size, jnp.finfo(size.dtype).tiny)[:, None], size)

    def mode(self, found: _Normal, values: Mapping[str, Array]) -> dict[str, Array]:
        """Mean of the members; an empty cluster stays in place."""
        empty = found.size[:, None] == 0
        return {"location": jnp.where(empty, values["location"], found.mean)}

    def improper(self) -> str | None:
        """Say that the flat prior leaves no posterior."""
        return "centres under a flat prior have no posterior: an empty cluster could be anywhere"

    def log_density(self, found: _Normal, values: Mapping[str, Array]) -> Array:
        """Log density of the centres."""
        width = self.scale / jnp.sqrt(found.size)[:, None]
        return (
            dist.Normal(found.mean, width, validate_args=False).log_prob(values["location"]).sum()
        )

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Centres of the cells of partitions; see `partitions`."""
        data = np.asarray(value, float).reshape(len(value), -1)
        found = partitions(data, self.num_clusters, seed, num_starts, one_unit=data.shape[1])
        return {"location": cell_moments(found, self.num_clusters)[0]}

    def remark_on_data(self, name: str, value: Any, draws: Mapping[str, Any]) -> str | None:
        """Say that the units of the features determine which points are near."""
        return remark_on_units(name, np.asarray(value, float))
