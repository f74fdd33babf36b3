"""A linked mixture in which each value of a feature is relevant or not."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from ..mixtures.linked_categorical import LinkedCategorical
from ..mixtures.linked_mixture import LinkedMixture
from ..side_information.groups import Groups
from .salient_mixed import SalientMixed
from .salient_normal import SalientNormal

__all__ = ["OF_ONE_CLUSTER", "RELEVANT", "SaliencyMixture"]

OF_ONE_CLUSTER = (
    "with one cluster no feature separates clusters, so that saliencies say nothing about features"
)
RELEVANT = 0.5
"""Saliency from which a feature counts as relevant: most of its values are relevant."""


class SaliencyMixture(LinkedMixture):
    """A `LinkedMixture` of `SalientNormal`, with labels and indicators of relevance summed out.

    Labels may be tied by links and partly known. Drawn latent variables, as Gibbs sampling needs
    them, are the labels and an indicator of relevance for every value.
    """

    arg_constraints: ClassVar[dict] = {}
    components: SalientNormal | SalientMixed

    def draw(self, rng_key: Array, value: Array) -> tuple[Array, Array]:
        """Draw all labels jointly, then which values are relevant."""
        key_labels, key_relevant = jax.random.split(rng_key)
        labels, _ = super().draw(key_labels, value)
        chance = self.components.relevance(value, self._by_row(labels))
        return labels, jax.random.uniform(key_relevant, chance.shape) < chance

    def statistic(self, latent: Any) -> dict[str, Array]:
        """Sufficient statistics of drawn labels; ``relevant`` says which values are relevant."""
        labels, relevant = latent
        return super().statistic((labels, None)) | {"relevant": relevant}

    def among(
        self,
        labels: LinkedCategorical,
        components: Any,
        points: Any,
        groups: Groups | None,
    ) -> SaliencyMixture:
        """The same kind of distribution for some of the points, given their labels and components."""
        known = None if self.log_side is None else jnp.asarray(self.log_side)[points]
        return SaliencyMixture(labels, components, known, groups)
