"""Scores that do not tell models apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..names import listed

__all__ = ["SURE", "not_told_by_bic", "tied_in_bic", "tied_in_evidence"]

SURE = 2.0
"""Standard errors of a difference beyond which it is told from zero."""

_POSITIVE, _STRONG = 2.0, 6.0
"""Differences of BIC, or of twice the log evidence, from which on evidence is positive, or strong: Raftery
(1995), Sociol. Methodol. 25, 111-163. Below, it is not worth more than a bare mention."""


def tied_in_bic[K](gaps: Mapping[K, float]) -> list[K]:
    """Models that BIC does not tell from the best one.

    Parameters
    ----------
    gaps : mapping of K to float
        How far the BIC of each of the others is above that of the best one.
    """
    return [name for name, gap in gaps.items() if gap < _POSITIVE]


def tied_in_evidence[K](gaps: Mapping[K, float], errors: Mapping[K, float]) -> list[K]:
    """Models that the log evidence does not tell from the best one.

    Parameters
    ----------
    gaps : mapping of K to float
        How far the log evidence of each of the others is below that of the best one.
    errors : mapping of K to float
        Standard errors of these differences. Where one is not known (NaN), the evidence must be strong.
    """
    least = {
        name: _STRONG / 2 if np.isnan(error) else max(_POSITIVE / 2, SURE * error)
        for name, error in errors.items()
    }
    return [name for name, gap in gaps.items() if gap < least[name]]


def not_told_by_bic(best: str, tied: Sequence[str]) -> str:
    """Sentence about models that BIC does not tell from the best one."""
    return f"BIC does not tell {listed([best, *tied])} apart"
