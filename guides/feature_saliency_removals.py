"""What a message with feature saliencies gains where a cluster or a feature is left out."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from .feature_saliency_steps import Weighed, log_prior

__all__ = ["Traced", "shortened", "worst_cluster"]

type Traced = Callable[[dict[str, Array]], dict[str, dict]]
"""Trace of the model at other parameters."""


def worst_cluster(at: Weighed, traced: Traced, min_clusters: int) -> tuple[Array, Array]:
    r"""Cluster whose removal shortens the message most, and by how much: minus infinity if all must stay.

    The densities of the others are held and share its points, for which the log likelihood changes by
    :math:`\sum_i \log (1 - w_{ij}) / (1 - \alpha_j)`, exactly where no links tie points.
    """
    allowed = (at.weights > 0) & ~at.held() & (at.used.number > min_clusters)
    number = jnp.arange(len(at.weights))
    prior = lax.map(lambda k: log_prior(traced(at.without(k)), at.names), number) - at.log_prior
    rest = jnp.log1p(-jnp.where(allowed & (at.used.number > 1), at.weights, 0.0))
    gain = prior + at.log_share_of_others() - at.value.shape[0] * rest
    less_than_a_point = at.weights * at.value.shape[0] < 1.0  # its length means nothing
    gain = jnp.where(allowed, jnp.where(less_than_a_point, jnp.inf, gain), -jnp.inf)
    return gain.argmax(), gain.max()


def shortened(
    at: Weighed, traced: Traced, cluster: Array, gain: Array
) -> tuple[dict[str, Array], Array]:
    """Parameters with less in use than settled ones, and whether nothing may be left out any more.

    The `worst_cluster` goes first if the message is shorter without it. Else all features go whose
    saliency makes it shorter at zero or one; if there are none, that cluster all the same.
    """

    def fewer() -> tuple[dict[str, Array], Array]:
        return at.without(cluster), jnp.isneginf(gain)

    def simpler() -> tuple[dict[str, Array], Array]:
        params, some = _simpler(at, traced)
        return lax.cond(some, lambda: (params, jnp.zeros((), bool)), fewer)

    return lax.cond(gain > 0, fewer, simpler)


def _simpler(at: Weighed, traced: Traced) -> tuple[dict[str, Array], Array]:
    """Parameters with saliencies of zero or one where that shortens the message, and whether it does.

    A feature of saliency zero gets the common density that fits all its values.
    """
    saliency, site, params = at.saliency, at.names.saliency, at.all_params()
    silent = Weighed.of(traced(params | {site: jnp.zeros_like(saliency)}), at.names)
    alone = silent.common_densities(at.responsibilities())
    other = traced(params | alone)[at.names.observed]["fn"].components
    to_zero, to_one = at.fn.components.at_bounds(at.value, at.log_responsibilities(), other)

    def left_out(where: Array) -> dict[str, Array]:
        return at.mixed_by_feature(alone, where)

    def prior(feature: Array) -> Array:
        where = jnp.arange(len(saliency)) == feature
        zero = params | left_out(where) | {site: jnp.where(where, 0.0, saliency)}
        one = params | {site: jnp.where(where, 1.0, saliency)}
        return jnp.stack([log_prior(traced(new), at.names) for new in (zero, one)])

    gain = lax.map(prior, jnp.arange(len(saliency))) - at.log_prior
    zero = jnp.where(saliency > 0, to_zero + gain[:, 0], -jnp.inf)
    one = jnp.where((saliency > 0) & (saliency < 1), to_one + gain[:, 1], -jnp.inf)
    goes, stays = (zero > 0) & (zero >= one), (one > 0) & (one > zero)
    new = jnp.where(goes, 0.0, jnp.where(stays, 1.0, saliency))
    return params | left_out(goes) | {site: new}, (goes | stays).any()
