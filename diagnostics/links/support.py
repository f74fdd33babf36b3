"""Whether what the points say supports the links."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sidebayes.models.blocks.side_information.links import Links

__all__ = ["doubt_links"]

_FEWEST = 10
"""Links from which on they are judged."""

_ERRORS = 2
"""Standard errors within which links hold as often as by chance."""

_CLEAR = 0.6
"""Support, of none at 0 and certainty at 1, that standard errors must rule out."""

_BROKEN, _BREAKS = 0.05, 3
"""Share and number of hard links broken by the labels from which on that is said."""


def doubt_links(
    links: Links, same: NDArray, chance: NDArray, price: float | None = None
) -> str | None:
    r"""Say where the points do not support the links, in a sentence; None where they do.

    A must-link is supported by the probability :math:`a_l` that its labels agree, a cannot-link by
    :math:`1 - a_l`, where :math:`a_l = \sum_k r_{ik} r_{jk}` with the responsibilities r that the fitted
    densities give each point by itself. By chance :math:`a_l` is the sum of the squared shares of the
    clusters. Support is the mean over all links, 0 at chance and 1 where all are certain to hold.

    Parameters
    ----------
    links : Links
    same : ndarray, shape (num_draws, num_links)
        :math:`a_l`.
    chance : ndarray, shape (num_draws,)
        Probability that the labels of any two points agree.
    price : float, optional
        The price of a hard link where links do not tie labels but have prices, so that labels may break hard
        ones. Links of at least this price count as hard.
    """
    sign = np.sign(links.weights)
    stated = sign != 0
    if stated.sum() < _FEWEST:
        return None
    agree, any_two = same.mean(axis=0)[stated], float(np.mean(chance))
    must = sign[stated] > 0
    holds, guess = np.where(must, agree, 1 - agree), np.where(must, any_two, 1 - any_two)
    room = 1 - guess.mean()
    if not room > 0:
        return None
    number = len(holds)
    support = (holds - guess).mean() / room
    error = _ERRORS * (holds - guess).std(ddof=1) / np.sqrt(number) / room
    if support < error and support + error < _CLEAR:
        return (
            f"Each point judged by itself, {holds.mean():.0%} of the {number} links hold, where chance gives "
            f"{guess.mean():.0%}: they may be wrong, or about classes that the features do not show; see "
            "fit.suspect_links()"
        )
    if price is None:
        return None
    hard = np.abs(links.weights[stated]) >= price
    broken = int((holds < 0.5)[hard].sum())
    if broken >= max(_BREAKS, _BROKEN * hard.sum()):
        return (
            f"The labels break {broken} of {hard.sum()} hard links, which contradict the points or one "
            "another; see fit.suspect_links()"
        )
    return None
