"""NumPyro's own mixtures, whose labels are independent, under the protocol of collapsed latents."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array

from .collapsed import Collapsed, unexpanded
from .label_inference.label_graph import LabelGraph
from .mixtures.finite_mixture import FiniteMixture
from .mixtures.linked_categorical import LinkedCategorical

__all__ = ["IndependentMixture", "as_collapsed"]


class IndependentMixture(FiniteMixture):
    """NumPyro's mixtures as a `FiniteMixture`, with independent labels of all points.

    Parameters
    ----------
    mixture : MixtureSameFamily or MixtureGeneral
    shape : tuple of int
        Shape of the points, which are numbered in this order.
    """

    pytree_data_fields: ClassVar[tuple[str, ...]] = ("mixture",)
    pytree_aux_fields = ("points",)

    def __init__(self, mixture: dist.Distribution, shape: tuple[int, ...]) -> None:
        self.mixture, self.points = mixture, shape
        super().__init__(mixture.batch_shape, mixture.event_shape, validate_args=False)

    @property
    def labels(self) -> LinkedCategorical:  # type: ignore[override]
        """Labels without links, with the mixing weights of the mixture: shared, or one set per point."""
        logits = self.mixture.mixing_distribution.logits
        log_weights = jax.nn.log_softmax(logits, axis=-1)
        if jnp.ndim(logits) > 1:
            size = logits.shape[-1]
            log_weights = jnp.broadcast_to(log_weights, (*self.points, size)).reshape(-1, size)
        return LinkedCategorical(log_weights, _unlinked(self.num_units))

    @property
    def num_clusters(self) -> int:
        """Number of components."""
        return self.mixture.mixture_size

    @property
    def num_units(self) -> int:  # type: ignore[override]
        """Number of points."""
        return prod(self.points)

    def links(self) -> None:
        """None: these mixtures take no links."""

    @property
    def support(self) -> Any:
        """Support of the mixture."""
        return self.mixture.support

    def log_factors(self, value: Array) -> dict[str, Array]:
        """Log densities ``unary`` (num_points, num_clusters), and the factors of labels without links."""
        joint = self.mixture.component_log_probs(value)
        joint = joint.reshape(-1, joint.shape[-1])
        factors = self.log_factors_of_labels()
        weights = factors["log_weights"]
        held = jnp.isfinite(weights)  # a component of weight zero has no factor that matters
        unary = jnp.where(held, joint - jnp.where(held, weights, 0.0), 0.0)
        return factors | {"unary": unary}

    def label_factors(self, factors: dict[str, Array]) -> Array:
        """Log densities of the points given their labels, shape (num_points, num_clusters)."""
        return factors["unary"]

    def draw(self, rng_key: Array, value: Array) -> Array:
        """Draw labels, shape (num_points,)."""
        return self.sample_labels(rng_key, value)

    def statistic(self, latent: Array) -> dict[str, Array]:
        """Membership of every point, and counts."""
        return self.label_statistic(latent)


@lru_cache(maxsize=8)
def _unlinked(num_points: int) -> LabelGraph:
    return LabelGraph.build(None, num_points)


def as_collapsed(fn: Any, value: Any = None) -> Collapsed | None:
    """Distribution of a site as a `Collapsed`; None if it has no latent variables.

    Parameters
    ----------
    fn : Distribution
        Distribution of an observed site; the expansion that a plate adds is removed.
    value : array, optional
        The data, which determine the number of points of NumPyro's mixtures.
    """
    fn = unexpanded(fn)
    if isinstance(fn, Collapsed):
        return fn
    if isinstance(fn, dist.MixtureSameFamily | dist.MixtureGeneral):
        return IndependentMixture(fn, jnp.shape(value)[: jnp.ndim(value) - fn.event_dim])
    return None
