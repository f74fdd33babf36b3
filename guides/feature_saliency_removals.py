"""Gains in the length of a message with feature saliencies by removing a cluster or a feature."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from .feature_saliency_steps import Weighed, log_prior

__all__ = ["Traced", "simpler", "worst_cluster"]

_AT_ONCE = 1_000_000
"""Maximum number of parameter entries of structures that are assessed at once."""

type Traced = Callable[[dict[str, Array]], dict[str, dict]]
"""Trace of the model at other parameters."""


def worst_cluster(at: Weighed, traced: Traced, min_clusters: int) -> tuple[Array, Array]:
    r"""Return the cluster whose removal shortens the message most, and the gain; -inf if all must stay.

    The densities of the others are held fixed and share its points. The log likelihood then changes by
    :math:`\sum_i \log (1 - w_{ij}) / (1 - \alpha_j)`, which is exact where no links tie points.
    """
    allowed = (at.weights > 0) & ~at.held() & (at.used.number > min_clusters)
    prior = _each(lambda k: log_prior(traced(at.without(k)), at.names), at, len(at.weights))
    prior = prior - at.log_prior
    rest = jnp.log1p(-jnp.where(allowed & (at.used.number > 1), at.weights, 0.0))
    gain = prior + at.log_share_of_others() - at.value.shape[0] * rest
    less_than_a_point = at.weights * at.value.shape[0] < 1.0  # its message length is meaningless
    gain = jnp.where(allowed, jnp.where(less_than_a_point, jnp.inf, gain), -jnp.inf)
    return gain.argmax(), gain.max()


def simpler(at: Weighed, traced: Traced, least: ArrayLike) -> tuple[dict[str, Array], Array]:
    """Set saliencies to zero or one where each shortens the message by more than `least` nats.

    A feature of saliency zero gets the common density that fits all its values.

    Returns
    -------
    params : dict of str to Array
    some : Array of bool
        Whether there is such a feature.
    """
    saliency, site, params = at.saliency, at.names.saliency, at.all_params()
    silent = traced(params | {site: jnp.zeros_like(saliency)})[at.names.observed]["fn"]
    alone = at._replace(fn=silent).common_densities(at.responsibilities())
    other = traced(params | alone)[at.names.observed]["fn"].components
    log_share = at.log_responsibilities()
    to_zero, to_one = at.fn.components.at_bounds(at.value, log_share, other, at.used)

    def left_out(where: Array) -> dict[str, Array]:
        return at.mixed_by_feature(alone, where)

    def prior(feature: Array) -> Array:
        where = jnp.arange(len(saliency)) == feature
        zero = params | left_out(where) | {site: jnp.where(where, 0.0, saliency)}
        one = params | {site: jnp.where(where, 1.0, saliency)}
        both = jax.tree.map(lambda *two: jnp.stack(two), zero, one)
        return jax.vmap(lambda new: log_prior(traced(new), at.names))(both)

    gain = _each(prior, at, len(saliency)) - at.log_prior
    zero = jnp.where(saliency > 0, to_zero + gain[:, 0], -jnp.inf)
    one = jnp.where((saliency > 0) & (saliency < 1), to_one + gain[:, 1], -jnp.inf)
    goes, stays = (zero > least) & (zero >= one), (one > least) & (one > zero)
    new = jnp.where(goes, 0.0, jnp.where(stays, 1.0, saliency))
    return params | left_out(goes) | {site: new}, (goes | stays).any()


def _each(of: Callable[[Array], Array], at: Weighed, number: int) -> Array:
    """Map a function over 0, 1, ..., many at once, so that common terms are computed only once."""
    together = max(1, _AT_ONCE // (len(at.weights) * len(at.saliency)))
    if number <= together:
        return jax.vmap(of)(jnp.arange(number))
    return lax.map(of, jnp.arange(number), batch_size=together)
