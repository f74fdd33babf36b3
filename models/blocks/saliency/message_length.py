"""Minimum message length of a mixture with feature saliencies: the improper prior of its structure."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from sidebayes.common.magnitudes import shown

from ..label_inference.label_graph import LabelGraph

__all__ = ["PER_DENSITY", "check_selection", "improper_weights", "structure_length"]

PER_DENSITY = 2
"""Number of parameters of the density of a feature: a mean and a variance."""


def check_selection(selection: str, graph: LabelGraph, reading: str, **priors: Any) -> bool:
    """Check the options; return whether the structure has a proper prior, to which `priors` belong.

    Raises
    ------
    ValueError
        If there is no such selection, if priors are given under "mml", or if links are a field
        under "mml": its partition function depends on the weights, and message lengths do not
        account for it.
    """
    if not isinstance(selection, str) or selection not in ("mml", "sparse"):
        raise ValueError(f"selection = {shown(selection)}; expected 'mml' or 'sparse'")
    if selection == "mml" and reading != "relation" and graph.num_links:
        raise ValueError(
            f"selection='mml' takes links as statements, and reading = {shown(reading)} makes them a field "
            "whose partition function depends on the weights; pass reading='relation', or "
            "selection='sparse'"
        )
    given = [name for name, value in priors.items() if value is not None]
    if selection == "mml" and given:
        raise ValueError(
            f"{given[0]} = {shown(priors[given[0]])} is a prior of selection='sparse', and 'mml' has "
            f"none; pass selection='sparse', or leave {given[0]} out"
        )
    return selection == "sparse"


class _Flat(dist.ImproperUniform):
    """Flat distribution on the simplex, so that the other factors are the prior."""

    def __init__(self, size: int) -> None:
        super().__init__(constraints.simplex, (), (size,))
        self.support = constraints.simplex  # this object identifies weights


def improper_weights(num_clusters: int) -> Array:
    """Sample mixing weights whose prior is defined elsewhere, e.g. by `structure_length`."""
    return numpyro.sample("weights", _Flat(num_clusters))


def structure_length(
    weights: ArrayLike,
    saliency: ArrayLike,
    num_points: ArrayLike,
    per_density: ArrayLike = PER_DENSITY,
    num_known: ArrayLike | None = None,
) -> Array:
    r"""Message length of the parameters in nats, in addition to minus the log likelihood.

    .. math:: \tfrac k2 \log n + \sum_{l \in A \cap U} \tfrac12 \log n_l
              + \sum_{l \in A} \tfrac{r_l}2 \sum_j \log(n_l \alpha_j \rho_l)
              + \sum_{l \in U} \tfrac{r_l}2 \log(n_l (1 - \rho_l))

    (Law 2006, eq. 4.24, where all :math:`n_l` are n; a missing value has no information about
    parameters, so that their Fisher information is that of the :math:`n_l` known ones). The sums
    are over the k clusters with weight, the features A with nonzero saliency, and the features U
    with saliency other than one. The thesis states it for parameters off their bounds, and only
    says that parameters on bounds are removed; this is what remains then. Minus this length is the
    logarithm of an improper prior: parameters on a bound are not likelier, but cost nothing. A
    density that represents less than one value counts as representing one. Otherwise the length
    would be unbounded near zero weights and near saliencies of zero and one.

    Parameters
    ----------
    weights : array_like, shape (num_clusters,)
    saliency : array_like, shape (num_features,)
    num_points : int
    per_density : array_like, shape (num_features,) or ()
        :math:`r_l`, the free parameters of one density of each feature.
    num_known : array_like, shape (num_features,), optional
        :math:`n_l`, the known values of each feature; n by default.
    """
    per_density = jnp.broadcast_to(jnp.asarray(per_density), jnp.shape(saliency))
    weights, saliency = jnp.asarray(weights), jnp.asarray(saliency)
    used, on, off = weights > 0, saliency > 0, saliency < 1
    known = jnp.asarray(num_points if num_known is None else num_known)

    def precision(share: ArrayLike, where: Array) -> Array:
        return jnp.where(where, jnp.log(jnp.maximum(known * share, 1.0)), 0.0)

    within = precision(weights[:, None] * saliency, used[:, None] & on).sum(axis=0)
    by_feature = precision(1.0, on & off) + per_density * (within + precision(1 - saliency, off))
    return 0.5 * (used.sum() * jnp.log(num_points) + by_feature.sum())
