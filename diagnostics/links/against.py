"""What the labels and the points of a fit say against its links."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import softmax
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.declared import (
    finite_mixtures,
    observed_table,
    site_roles,
)
from sidebayes.guides.engines.problem.density import abstract_trace
from sidebayes.guides.engines.problem.posterior import Derived, mixture_structure
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture
from sidebayes.models.blocks.side_information.links import Links

from .broken import certain_contradiction, links_against_labels, links_against_points
from .support import doubt_links

__all__ = ["said_against_links"]

_OF_CENTRES = (
    1e-3,
    "either links are wrong, and K-means keeps them all: take 'ppc' with links of finite weight; or classes "
    "are not spheres of one width: take another model; see fit.suspect_links()",
)
"""Level and remedy where K-means' spheres of one width are set against links; they are seldom exact."""


def said_against_links(
    problem: Problem,
    links: Links,
    derived: Derived,
    params: Mapping[str, NDArray],
    *,
    hard_labels: bool,
    is_own: bool,
) -> list[str]:
    """What labels and points say against the links; nothing where there are none.

    Parameters
    ----------
    problem : Problem
    links : Links
    derived : Derived
    params : mapping of str to ndarray
        A draw of each site, which hard labels are of.
    hard_labels : bool
        Whether the engine gives labels, and no probabilities of them.
    is_own : bool
        Whether the model is the user's.
    """
    prob = derived.responsibilities
    if not links or prob is None or links.pairs.max() >= prob.shape[1]:
        return []
    fn, _ = mixture_structure(problem)
    ties = fn.links()
    tied = ties is not None and ties.num_links > 0
    # where weights are prices, in nats, the price of a hard link
    price = prob.shape[1] if hard_labels or not tied else None
    alone: tuple[NDArray, NDArray] | None = derived.agreement
    if alone is None and not tied and fn.is_density:
        first, second = (prob[:, end] for end in links.pairs.T)
        chance = np.square(prob.mean(axis=1)).sum(axis=-1)
        alone = (first * second).sum(axis=-1), chance
    if hard_labels:
        alone = _by_centres(problem, links, params)
    elif alone is not None:
        alone = alone[0][:, : len(links)], alone[1]
    against = alone and doubt_links(links, *alone, None if tied else price)
    hard = links.with_weights(np.where(links.hard, links.weights, 0.0))
    if tied and _learns_rates(problem, fn, is_own):
        links = hard
    if price is None:
        against = against or links_against_labels(links, prob)
        against = against or (alone and links_against_points(links, *alone))
    elif hard_labels:
        against = against or (alone and links_against_points(hard, *alone, *_OF_CENTRES))
    return list(filter(None, [certain_contradiction(links, price), against]))


def _learns_rates(problem: Problem, fn: FiniteMixture, is_own: bool) -> bool:
    """Whether it is learned how often links are wrong, so that their weights do not say it."""
    own = is_own and fn.labels.pair_weights is not fn.labels.graph.pair_weights
    return own or "reliability" in site_roles(problem).values()


def _by_centres(
    problem: Problem, links: Links, params: Mapping[str, NDArray]
) -> tuple[NDArray, NDArray] | None:
    """Probabilities that labels agree, and that any two do, where spheres have the width of the clusters.

    K-means has labels whatever the `scale` of its model. Given the centres, the width is that of largest
    likelihood if each point is at the nearest one.
    """
    site = next((n for n, role in site_roles(problem).items() if role == "location"), None)
    table = observed_table(problem, next(iter(finite_mixtures(abstract_trace(problem)))))
    if site is None or table is None or table.ndim != 2:
        return None
    squared = cdist(table, params[site], "sqeuclidean")
    width = squared.min(axis=1).mean() / table.shape[1]
    if not width > 0:
        return None
    share = softmax(-squared / (2 * width), axis=1)
    first, second = (share[end] for end in links.pairs.T)
    agree, any_two = (first * second).sum(axis=-1), np.square(share.mean(axis=0)).sum()
    return agree[None], any_two[None]
