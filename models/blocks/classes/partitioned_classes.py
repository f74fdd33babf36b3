"""Mixture whose components have classes, under a posterior that partitions space."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array

from ..mixtures.linked_categorical import LinkedCategorical
from ..partitions.partitioned_mixture import PartitionedMixture
from ..partitions.rule import Rule
from .class_mixture import log_statements

__all__ = ["PartitionedClasses"]


class PartitionedClasses(PartitionedMixture):
    r"""Data of all points; a known class affects the space around its point, not only the point.

    The law is that of `ClassMixture` with components of one class each. Its log density is bounded
    from below by factors :math:`q_i = \text{softmax}(\psi(x_i))`, with discriminants that all
    points share:

    .. math:: \sum_{ik} q_{ik} \log \frac{\pi_k p(x_i | \theta_k)\, P(y_i | c_k)}{q_{ik}}

    (Raghuram 2014, eqs. 4.11 and 4.17). Labels are the components.

    Parameters
    ----------
    labels : LinkedCategorical
        See `PartitionedMixture`.
    components : Distribution, batch_shape (num_components,)
    log_within : Array, shape (num_components,)
        Log weights of the components.
    rule : Rule
        Discriminants of points.
    classes : Array, shape (num_components, num_classes)
        One if a component belongs to a class, else zero.
    stated : Array, shape (num_points, num_classes), optional
        See `ClassMixture`.
    """

    pytree_data_fields: ClassVar[tuple[str, ...]] = ("classes",)

    def __init__(
        self,
        labels: LinkedCategorical,
        components: dist.Distribution,
        log_within: Array,
        rule: Rule,
        classes: Array,
        stated: Array | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        log_side = None if stated is None else log_statements(stated, classes)
        super().__init__(
            labels,
            components,
            log_within,
            jnp.eye(len(classes)),
            rule,
            log_side=log_side,
            validate_args=validate_args,
        )
        self.classes = classes

    @property
    def num_classes(self) -> int:  # type: ignore[override]
        """Number of classes."""
        return jnp.shape(self.classes)[1]

    def told_of_classes(self) -> Array | None:
        """Probability of the statement about each point given its class; labels are the components."""
        told = self.told()
        return None if told is None else (told[:, :, None] * self.classes).max(axis=1)

    def class_probabilities(self, value: Array) -> Array:
        """Probabilities of the classes of all points, shape (num_points, num_classes) (eq. 4.20)."""
        return self.memberships(value) @ self.classes
