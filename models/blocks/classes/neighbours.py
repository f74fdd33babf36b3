"""Mixture in which labelled rows belong to given components and vote on the classes of others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike

from ..label_inference.partition import FORBIDDEN
from ..mixtures.data_units import remark_on_units
from ..mixtures.linked_categorical import LinkedCategorical
from ..mixtures.linked_mixture import LinkedMixture
from ..side_information.groups import Groups
from .anchors import Anchors, conditionals
from .prototypes import Prototypes

__all__ = ["NeighbourMixture", "anchor_distances", "assigned_mixture"]


def anchor_distances(anchors: Anchors) -> tuple[Array, Array]:
    """Squared distances between anchors, and the log of the median one to the nearest other anchor."""
    return _distances(jnp.asarray(anchors.points), anchors.live)


@jax.jit
def _distances(points: Array, live: Array) -> tuple[Array, Array]:
    points = points - points.mean(axis=0, where=live[:, None])
    square = jnp.sum(points**2, axis=1)
    apart = jnp.maximum(square[:, None] + square - 2 * points @ points.T, 0.0)
    own = jnp.eye(len(points), dtype=bool)
    apart = jnp.where(own, 0.0, apart)
    nearest = jnp.min(jnp.where(own | ~live | (apart <= 0), jnp.inf, apart), axis=1)
    nearest = jnp.where(jnp.isfinite(nearest), nearest, 1.0)
    typical = jnp.nanmedian(jnp.where(live, nearest, jnp.nan))
    return apart, jnp.log(typical)


def _assigned_factors(assigned: ArrayLike, num_clusters: int) -> Array:
    """Log-factors that fix points to components, shape (num_points, num_clusters); -1 is unassigned."""
    given = jnp.asarray(assigned)[:, None]
    return jnp.where((given >= 0) & (given != jnp.arange(num_clusters)), FORBIDDEN, 0.0)


def assigned_mixture(
    labels: LinkedCategorical, components: dist.Distribution, assigned: ArrayLike
) -> LinkedMixture:
    """Distribution of all points, some of them assigned to given components; it has no classes."""
    log_side = _assigned_factors(assigned, labels.log_weights.shape[-1])
    return LinkedMixture(labels, components, log_side)


class NeighbourMixture(LinkedMixture):
    """Data of all points; labelled ones are in given components (Raghuram 2014, eq. 2.10).

    Parameters
    ----------
    labels, components
        See `LinkedMixture`.
    anchors : Prototypes
        The labelled points.
    assigned : array_like of int, shape (num_points,), optional
        Component of each labelled point, -1 for all others.
    """

    pytree_data_fields: ClassVar[tuple[str, ...]] = ("anchors", "assigned")
    is_exchangeable = False

    def __init__(
        self,
        labels: LinkedCategorical,
        components: dist.Distribution,
        anchors: Prototypes,
        assigned: ArrayLike | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        log_side = None
        if assigned is not None:
            log_side = _assigned_factors(assigned, labels.log_weights.shape[-1])
        super().__init__(labels, components, log_side, validate_args=validate_args)
        self.anchors, self.assigned = anchors, assigned

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Number of classes."""
        return self.anchors.table.shape[1]

    def among(
        self,
        labels: LinkedCategorical,
        components: dist.Distribution,
        points: Any,
        groups: Groups | None,
    ) -> NeighbourMixture:
        """The same kind of distribution for some of the points, given their labels and components."""
        assigned = None if self.assigned is None else jnp.asarray(self.assigned)[points]
        return NeighbourMixture(labels, components, self.anchors, assigned)

    def class_probabilities(self, value: Array) -> Array:
        """Probabilities of classes by rule B (eq. 2.16); labelled points keep their class."""
        found = self.anchors.class_probabilities(value, self.responsibilities(value))
        told = self.told()
        return found if told is None else jnp.where(self._is_anchor[:, None], told, found)

    def remark_on_data(self, name: str, value: Any, draws: Mapping[str, Any]) -> str | None:
        """Say that the units of the features determine which labelled points are near, or name copies."""
        said = remark_on_units(name, np.asarray(value, float))
        return said or super().remark_on_data(name, value, draws)

    @property
    def _is_anchor(self) -> Array:
        return jnp.asarray(self.assigned) >= 0

    @property
    def _place(self) -> Array:
        """Number of each labelled point among the anchors; arbitrary for other points."""
        return jnp.clip(jnp.cumsum(self._is_anchor) - 1, 0, len(self.anchors.classes) - 1)

    def told(self) -> Array | None:
        """Classes of labelled points as ones; rows of ones state nothing."""
        if self.assigned is None:
            return None
        own = jax.nn.one_hot(self.anchors.classes[self._place], self.num_classes, dtype=float)
        return jnp.where(self._is_anchor[:, None], own, 1.0)

    def classes_within(self, value: Array) -> Array:
        """Votes of the other labelled points of each component, for labelled points."""
        live = self.anchors.live
        assert live is not None  # as `Anchors` makes them
        apart, _ = _distances(self.anchors.points, live)
        member = jax.nn.one_hot(self.anchors.clusters, self.num_clusters, dtype=apart.dtype)
        member = jnp.where(live[:, None], member, 0.0)
        given = apart, self.anchors.classes, member, self.anchors.scale, self.anchors.table
        votes = conditionals(*given, smoothing=self.anchors.smoothing)
        return jnp.moveaxis(votes, 0, 1)[self._place]
