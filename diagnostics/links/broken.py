"""Links that labels or points contradict, compared with the error probabilities implied by their weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammainc
from sidebayes.models.blocks.side_information.hard_links import contradiction
from sidebayes.models.blocks.side_information.links import Links

__all__ = ["certain_contradiction", "links_against_labels", "links_against_points"]

_RARE = 1e-3
"""Probability, if weights are right, below which a verdict says that too many links are contradicted."""

_LEAST, _SHARE = 3, 0.05
"""Minimum number and share of contradicted links for such a verdict."""

_CLEAR = 0.01
"""Probability that a link holds below which points contradict it."""

_REMEDY = (
    'either links are wrong: lower their weights (estimate_flip_rate, flip_rate="learned"); or the model '
    "does not fit them: add components, or take another model; see fit.suspect_links()"
)


def links_against_labels(links: Links, prob: NDArray) -> str | None:
    """Say where labels break more links than their weights allow for; None where they do not.

    Broken links are counted by the smallest probability that two labels differ, or agree, given the
    probabilities of each label (Fréchet's bounds), so that a pair with uncertain labels counts little.

    Parameters
    ----------
    links : Links
    prob : ndarray, shape (num_draws, num_points, num_clusters)
        Probabilities of labels given data and links.
    """
    first, second = (prob[:, end] for end in links.pairs.T)
    differ = 1 - np.minimum(first, second).sum(axis=-1)
    agree = (first + second).max(axis=-1) - 1
    broken = np.where(links.weights > 0, differ, agree).clip(0.0).mean(axis=0)
    found = _beyond_weights(links, broken)
    return found and f"The labels break {found}: {_REMEDY}"


def links_against_points(links: Links, same: NDArray) -> str | None:
    """Say where points, each judged by itself, contradict more links than weights allow for; else None.

    Labels keep a link of large weight whatever the data of its points, so that broken links do not show it.

    Parameters
    ----------
    links : Links
    same : ndarray, shape (num_draws, num_links)
        Probability that the labels of each link agree if no link ties them.
    """
    agree = same.mean(axis=0)
    holds = np.where(links.weights > 0, agree, 1 - agree)
    found = _beyond_weights(links, holds < _CLEAR)
    return found and f"Points, each judged by itself, all but rule out {found}: {_REMEDY}"


def _beyond_weights(links: Links, contradicted: NDArray) -> str | None:
    r"""Return how many links are contradicted, and how many weights allow for, if these are clearly fewer.

    A link of weight w is wrong with probability :math:`\sigma(-|w|)`. From one above the mean on, the
    Poisson-binomial probability that so many are wrong is at most that of a Poisson distribution of the same
    mean (Anderson and Samuels 1967, Proc. Fifth Berkeley Symp. 1, 1-12).
    """
    weight = np.abs(links.weights)
    stated = weight > 0
    total, allowed = contradicted[stated].sum(), expit(-weight[stated]).sum()
    if total < max(_LEAST, _SHARE * stated.sum()) or gammainc(total, allowed) >= _RARE:
        return None
    kinds = (links.weights > 0, "must"), (links.weights < 0, "cannot")
    named = " and ".join(
        f"{contradicted[kind].sum():.0f} of {kind.sum()} {name}-links"
        for kind, name in kinds
        if kind.any()
    )
    return f"{named}, where weights allow for {allowed:.2g} in all"


def certain_contradiction(links: Links, least: float | None = None) -> str | None:
    """Name links that are nearly certain by their weights and contradict one another; None if there are none.

    Where weights are prices, links of one pair that contradict each other are named at any price.

    Parameters
    ----------
    links : Links
    least : float, optional
        Minimum price of a certain link, where weights are prices. By default, the weight with which none
        of so many links is wrong.
    """
    certain = np.abs(links.weights) >= (np.log(len(links) / _RARE) if least is None else least)
    must, cannot = (links.pairs[certain & (sign * links.weights > 0)] for sign in (1, -1))
    found = contradiction(must, cannot)
    if found is None:
        return None if least is None else _stated_both_ways(links)
    return (
        f"Of links that are next to certain by their weights, {found}: labels break one of them at least; "
        "drop the one that is wrong, or lower the weights"
    )


def _stated_both_ways(links: Links) -> str | None:
    """Name a pair that is both a must-link and a cannot-link; None if there is none."""
    ends = np.sort(links.pairs, axis=1)
    must, cannot = (set(map(tuple, ends[sign * links.weights > 0].tolist())) for sign in (1, -1))
    both = sorted(must & cannot)
    if not both:
        return None
    others = f" (one of {len(both)} such pairs)" if len(both) > 1 else ""
    return (
        f"Pair {both[0]} is both a must-link and a cannot-link{others}: labels break one of them at any "
        "price; drop the one that is wrong"
    )
