"""Links that labels or points contradict, compared with the error probabilities implied by their weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammainc
from scipy.stats import chi2
from sidebayes.models.blocks.side_information.hard_links import contradiction
from sidebayes.models.blocks.side_information.links import Links

__all__ = ["certain_contradiction", "links_against_labels", "links_against_points"]

_RARE = 1e-3
"""Probability, if weights are right, below which a verdict says that too many links are contradicted."""

_LEAST, _SHARE = 3, 0.05
"""Minimum number and share of contradicted links for such a verdict."""

_FLOOR = 0.01
"""Smallest probability with which a link holds, so that a single one decides nothing."""

_RATES = np.linspace(0.005, 0.5, 100)
"""Rates of wrong links that are compared."""

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


def links_against_points(
    links: Links, same: NDArray, chance: NDArray, level: float = 0.01, remedy: str = _REMEDY
) -> str | None:
    r"""Say where points, each judged by itself, contradict more links than weights allow for; else None.

    Labels keep a link of large weight whatever the data of its points, so that broken links do not show it.
    Let :math:`h_l` be the probability by the points that a link holds. If links are wrong at a rate
    :math:`\epsilon`, the statement that it makes has probability

    .. math:: q_l(\epsilon) = (1 - \epsilon) h_l + \epsilon (1 - h_l),

    and the rate has the likelihood :math:`\prod_l q_l(\epsilon)` where the pairs were chosen first, even by
    their data, and :math:`\prod_l q_l(\epsilon) / \bar q_l(\epsilon)` where they were drawn among those that
    make the same statement, with :math:`\bar q_l` at the probability by chance in place of :math:`h_l`. How
    they were chosen is unknown, so that the smaller likelihood ratio counts, of any one larger rate against
    the rates :math:`\sigma(-|w_l|)` of the weights, at the boundary of a one-sided test.

    Parameters
    ----------
    links : Links
    same : ndarray, shape (num_draws, num_links)
        Probability that the labels of each link agree if no link ties them.
    chance : ndarray, shape (num_draws,)
        Probability that the labels of any two points agree.
    level : float
        Of the test.
    remedy : str
        What the sentence ends with.
    """
    stated = links.weights != 0
    must, allowed = links.weights[stated] > 0, expit(-np.abs(links.weights[stated]))
    agree, any_two = same.mean(axis=0)[stated], np.mean(chance)
    holds = np.where(must, agree, 1 - agree).clip(_FLOOR, 1 - _FLOOR)
    by_chance = np.where(must, any_two, 1 - any_two).clip(_FLOOR, 1 - _FLOOR)
    if (holds < 0.5).sum() < max(_LEAST, _SHARE * len(holds)):
        return None
    # one rate after another, as there may be a million links
    likely = np.array([_log_likelihoods(np.maximum(r, allowed), holds, by_chance) for r in _RATES])
    ratios = (likely - _log_likelihoods(allowed, holds, by_chance)).T
    best, top = min((ratio.max(), ratio.argmax()) for ratio in ratios)
    rate = np.maximum(_RATES[top], allowed).mean()
    if best < chi2.isf(2 * level, 1) / 2:
        return None
    return (
        f"Points, each judged by itself, imply that {rate:.0%} of the {len(holds)} links are wrong, where "
        f"weights allow for {allowed.mean():.1%} (log likelihood ratio {best:.1f}): {remedy}"
    )


def _log_likelihoods(
    rate: NDArray, holds: NDArray, by_chance: NDArray
) -> tuple[np.float64, np.float64]:
    """Return log likelihoods of rates: of pairs chosen first, and of pairs drawn by what they state."""
    chosen, chance = (np.log((1 - rate) * p + rate * (1 - p)).sum() for p in (holds, by_chance))
    return chosen, chosen - chance


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
