"""A linked mixture whose features are relevant or not, row by row."""

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

__all__ = ["RELEVANT", "SaliencyMixture"]

RELEVANT = 0.5
"""Saliency from which a feature counts as relevant: it says something of most values."""


class SaliencyMixture(LinkedMixture):
    """A `LinkedMixture` of `SalientNormal`: labels are summed out, and so is which features are relevant.

    Labels may be tied by links and known in part. Drawn latent variables are labels, and for every value
    whether it is relevant, as Gibbs sampling needs them.
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
