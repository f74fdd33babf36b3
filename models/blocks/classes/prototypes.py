"""Classes that depend on a point's location within its component: soft nearest prototypes."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array, lax

from ..mixtures.linked_categorical import LinkedCategorical
from ..side_information.groups import Groups
from .class_mixture import ClassifiedMixture, log_of

__all__ = ["PrototypeMixture", "Prototypes", "log_add", "without_prototypes"]


class Prototypes(NamedTuple):
    r"""Randomised nearest prototype within each component (Raghuram 2014, eq. 2.17).

    .. math:: P(c \mid j, x) = \frac{\sum_{l \in j,\, m_l = c} k_l(x) + \epsilon\, \beta_{jc} \max_l k_l(x)}
                                    {\sum_{l \in j} k_l(x) + \epsilon \max_l k_l(x)}, \qquad
              k_l(x) = e^{-a_j \|x - s_l\|^2}

    With :math:`\epsilon = 0` it is (2.17). A component without prototypes has the probabilities
    :math:`\beta` if :math:`\epsilon > 0`. Infinite scales give the hard nearest prototype; scales
    of zero give the shares of the classes among the prototypes.

    Attributes
    ----------
    points : Array, shape (num_prototypes, num_features)
    classes, clusters : Array of int, shape (num_prototypes,)
        Class :math:`m_l` and component of each prototype.
    scale : Array, shape (num_clusters,)
        :math:`a_j`, one over a squared distance.
    table : Array, shape (num_clusters, num_classes)
        :math:`\beta`; only its shape is used if `smoothing` is 0.
    smoothing : float, or Array of shape () or (num_clusters,)
        :math:`\epsilon`, at least 0.
    live : Array of bool, shape (num_prototypes,), or None
        Mask of the actual prototypes; the others are padding.
    """

    points: Array
    classes: Array
    clusters: Array
    scale: Array
    table: Array
    smoothing: Any = 0.0
    live: Array | None = None

    def log_kernels(self, x: Array) -> Array:
        """Log kernel of each prototype at each point, shape (num_points, num_prototypes)."""
        live = None if self.live is None else self.live[:, None]
        centre = lax.stop_gradient(self.points.mean(axis=0, where=live))  # to avoid cancellation
        x, points = x - centre, self.points - centre
        square = jnp.sum(x**2, axis=1)[:, None] + jnp.sum(points**2, axis=1)
        apart = jnp.maximum(square - 2 * x @ points.T, 0.0)
        found = -self.scale[self.clusters] * apart
        return found if self.live is None else jnp.where(self.live, found, -jnp.inf)

    def log_told(self, x: Array, stated: Array) -> Array:
        """Log probability of each statement given component and point, (num_points, num_clusters)."""
        logs = self.log_kernels(x)
        least = log_of(jnp.zeros((), logs.dtype))
        own = jnp.where(
            stated[:, self.classes] > 0, logs + log_of(stated[:, self.classes]), -jnp.inf
        )
        smooth = self._smooth(logs)
        above = log_add(self._sums(own), smooth + log_of(stated @ self.table.T))
        below = log_add(self._sums(logs), smooth)
        return jnp.where(jnp.isfinite(above), jnp.maximum(above - below, least), least)

    def class_probabilities(self, x: Array, member: Array) -> Array:
        """Sum of P(class | component, x) weighted by `member`, shape (num_points, num_classes)."""
        logs = self.log_kernels(x)
        smooth = self._smooth(logs)
        below = log_add(self._sums(logs), smooth)
        share = member[:, self.clusters] * jnp.exp(logs - below[:, self.clusters])
        found = share @ jax.nn.one_hot(self.classes, self.table.shape[1], dtype=logs.dtype)
        return found + (member * jnp.exp(smooth - below)) @ self.table

    def _smooth(self, logs: Array) -> Array:
        """Log of the smoothing term in the denominator, shape (num_points, num_clusters)."""
        most = jax.ops.segment_max(logs.T, self.clusters, len(self.scale)).T
        nearest = jnp.where(jnp.isfinite(most), most, 0.0)
        return jnp.log(jnp.asarray(self.smoothing, logs.dtype)) + nearest

    def _sums(self, logs: Array) -> Array:
        """Log sums over the prototypes of each component, shape (num_points, num_clusters)."""
        number = len(self.scale)
        most = jax.ops.segment_max(logs.T, self.clusters, number)
        most = lax.stop_gradient(jnp.where(jnp.isfinite(most), most, 0.0))
        total = jax.ops.segment_sum(jnp.exp(logs.T - most[self.clusters]), self.clusters, number)
        positive = total > 0
        return jnp.where(positive, most + jnp.log(jnp.where(positive, total, 1.0)), -jnp.inf).T


def without_prototypes(clusters: Array, num_clusters: int, live: Array | None = None) -> Array:
    """Smoothing of one for components without prototypes, which then have their table; else zero."""
    counted = jnp.ones(len(clusters)) if live is None else live.astype(float)
    return (jax.ops.segment_sum(counted, clusters, num_clusters) == 0).astype(float)


def log_add(one: Array, other: Array) -> Array:
    """`jnp.logaddexp` with gradients of zero, not NaN, where both are minus infinity."""
    most = lax.stop_gradient(jnp.maximum(one, other))
    most = jnp.where(jnp.isfinite(most), most, 0.0)
    total = jnp.exp(one - most) + jnp.exp(other - most)
    positive = total > 0
    return jnp.where(positive, most + jnp.log(jnp.where(positive, total, 1.0)), -jnp.inf)


class PrototypeMixture(ClassifiedMixture):
    r"""Data of all points with labels summed out, and classes by the component's nearest prototype.

    .. math:: p(x_i, y_i) = \sum_j \pi_j\, p(x_i | \theta_j) \sum_c P(c \mid j, x_i)\, P(y_i | c)

    (Raghuram 2014, eq. 2.18). Unlike in `ClassMixture` class and data depend on each other given the
    component.

    Parameters
    ----------
    labels, components
        See `LinkedMixture`.
    prototypes : Prototypes
    stated : Array, shape (num_points, num_classes), optional
        See `ClassMixture`.
    """

    pytree_data_fields: ClassVar[tuple[str, ...]] = ("prototypes",)
    has_side_factors = True  # type: ignore[assignment]
    is_exchangeable = False

    def __init__(
        self,
        labels: LinkedCategorical,
        components: dist.Distribution,
        prototypes: Prototypes,
        stated: Array | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        super().__init__(labels, components, validate_args=validate_args)
        self.prototypes, self.stated = prototypes, stated
        self.check_stated(self.num_classes)

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Number of classes."""
        return self.prototypes.table.shape[1]

    def without_statements(self) -> PrototypeMixture:
        """The same law without any statement."""
        return PrototypeMixture(self.labels, self.components, self.prototypes)

    def among(
        self,
        labels: LinkedCategorical,
        components: dist.Distribution,
        points: Any,
        groups: Groups | None,
    ) -> PrototypeMixture:
        """The same kind of distribution for some of the points, given their labels and components."""
        stated = None if self.stated is None else self.stated[points]
        return PrototypeMixture(labels, components, self.prototypes, stated)

    def log_factors(self, value: Array) -> dict[str, Array]:
        """Log-factors of `LinkedMixture`, and ``log_side``, log probabilities of the statements."""
        return super().log_factors(value) | {"log_side": self._log_told(value)}

    def _log_told(self, value: Array) -> Array:
        if self.stated is None:
            return jnp.zeros((len(value), self.num_clusters))
        told = self.prototypes.log_told(value, self.stated)
        return jnp.where(self.is_told[:, None], told, 0.0)

    def class_probabilities(self, value: Array) -> Array:
        """Probabilities of the classes of all points (eq. 2.27), shape (num_points, num_classes)."""
        member = self.responsibilities(value)
        member = member * jnp.exp(-self._log_told(value))
        found = self.prototypes.class_probabilities(value, member)
        return found if self.stated is None else found * self._says

    def classes_within(self, value: Array) -> Array:
        """P(class | component, point)."""
        return jax.vmap(
            lambda own: self.prototypes.class_probabilities(value, jnp.tile(own, (len(value), 1))),
            out_axes=1,
        )(jnp.eye(self.num_clusters))

    @property
    def _says(self) -> Array:
        assert self.stated is not None  # asked for with statements only
        return jnp.where(self.is_told[:, None], self.stated, 1.0)

    def statistic(self, latent: tuple[Array, Array | None]) -> dict[str, Array]:
        """Sufficient statistics of drawn labels."""
        return super().statistic(latent) | {
            "log_side": jax.nn.one_hot(latent[0], self.num_clusters)
        }
