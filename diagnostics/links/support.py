"""Checks whether the points support the links."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sidebayes.models.blocks.side_information.links import Links

__all__ = ["FEWEST", "doubt_links", "doubt_unseen_links"]

FEWEST = 10
"""Minimum number of links for a verdict on them."""

_ERRORS = 2
"""Number of standard errors within which links hold as often as by chance."""

_CLEAR = 0.6
"""Support, from 0 at chance to 1 at certainty, that standard errors must rule out."""

_BROKEN, _BREAKS = 0.05, 3
"""Minimum share and number of hard links broken by the labels for a remark on them."""


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
        The price of a hard link, where links do not tie labels but have prices, so that labels may break
        hard links. Links of at least this price count as hard.
    """
    stated = links.weights != 0
    if stated.sum() < FEWEST:
        return None
    holds, guess = _held(links, same.mean(axis=0), float(np.mean(chance)))
    if _are_chance(holds, guess):
        return (
            f"Each point judged by itself, {holds.mean():.0%} of the {len(holds)} links hold, where chance "
            f"gives {guess.mean():.0%}: they may be wrong, or about classes that the features do not show; "
            "see fit.suspect_links()"
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


def doubt_unseen_links(links: Links, same: NDArray, chance: NDArray) -> str | None:
    """Say where parameters fitted without the links predict them no better than chance.

    Parameters
    ----------
    links : Links
    same : ndarray, shape (num_links,)
        Probability that the labels of each link agree, with its points judged by themselves.
    chance : ndarray, shape (num_links,)
        Probability that the labels of any two points agree, by the same parameters.
    """
    holds, guess = _held(links, same, chance)
    if len(holds) < FEWEST or not _are_chance(holds, guess):
        return None
    return (
        f"Fitted without them, it tells {holds.mean():.0%} of the {len(holds)} links, where chance gives "
        f"{guess.mean():.0%}: they may be wrong, or about classes that the features do not show, and the "
        "labels of points without links are guesses. Take features that show the classes, fewer of them, or "
        "more links; see fit.suspect_links()"
    )


def _held(
    links: Links, same: NDArray, chance: NDArray | float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return probabilities that the stated links hold, and that such links between any two points would."""
    stated = links.weights != 0
    must = links.weights[stated] > 0
    agree, any_two = same[stated], np.broadcast_to(chance, same.shape)[stated]
    return np.where(must, agree, 1 - agree), np.where(must, any_two, 1 - any_two)


def _are_chance(holds: NDArray, guess: NDArray) -> bool:
    """Return whether links hold no more often than by chance, and clearly not all of them."""
    room = 1 - guess.mean()
    if not room > 0:
        return False
    support = (holds - guess).mean() / room
    error = _ERRORS * (holds - guess).std(ddof=1) / np.sqrt(len(holds)) / room
    return bool(support < error and support + error < _CLEAR)
