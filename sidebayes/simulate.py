"""Simulate side information from known labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sidebayes.models.blocks.fields import Range, check_integer, check_number
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import class_codes

from .checks import check_seed

__all__ = ["simulate_links"]


def simulate_links(
    labels: ArrayLike,
    num_pairs: int,
    *,
    flip_rate: float = 0.0,
    weight: float = np.inf,
    disjoint: bool = False,
    seed: int = 0,
) -> Links:
    """Draw random pairs and state whether their labels agree, some statements being wrong.

    Parameters
    ----------
    labels : array_like, shape (num_points,)
        Names or whole numbers. Points whose class is not known (-1, NaN, None, blank) occur in no pair.
    num_pairs : int
        Distinct pairs, drawn without replacement.
    flip_rate : float in [0, 1]
        Share of statements turned round, exactly ``round(flip_rate * num_pairs)`` of them.
    weight : float
        Strength of each link.
    disjoint : bool
        No point occurs in two pairs (the thesis' non-overlapping pairs).
    seed : int

    Raises
    ------
    ValueError
        If there are fewer such pairs than asked for, or the flip rate is no probability.
    """
    classes = class_codes(labels)
    known = np.flatnonzero(classes >= 0)
    num_points = len(known)
    num_pairs = check_integer("num_pairs", num_pairs, 0)
    flip_rate = check_number("flip_rate", flip_rate, Range(least=0, most=1))
    most = num_points // 2 if disjoint else num_points * (num_points - 1) // 2
    if num_pairs > most:
        kind = "disjoint pairs" if disjoint else "pairs"
        raise ValueError(
            f"num_pairs = {num_pairs}; {num_points} points of known class have at most {most} {kind}"
        )
    rng = np.random.default_rng(check_seed(seed))
    if disjoint:
        pairs = rng.permutation(num_points)[: 2 * num_pairs].reshape(-1, 2)
    else:
        code = rng.choice(most, num_pairs, replace=False, shuffle=False)
        pairs = _decode(code, num_points)
    pairs = known[pairs]
    same = classes[pairs[:, 0]] == classes[pairs[:, 1]]
    flipped = rng.permutation(num_pairs)[: round(flip_rate * num_pairs)]
    same[flipped] = ~same[flipped]
    return Links.from_pairs(pairs, same, weight, len(classes))


def _decode(code: np.ndarray, num_points: int) -> np.ndarray:
    """Turn numbers of pairs i < j, in lexicographic order, into the pairs."""
    size = 2 * num_points - 1
    i = ((size - np.sqrt(size**2 - 8.0 * code)) / 2).astype(np.int64)
    first = i * (2 * num_points - i - 1) // 2
    i = np.where(first > code, i - 1, i)
    i = np.where(code >= (i + 1) * (2 * num_points - i - 2) // 2, i + 1, i)
    first = i * (2 * num_points - i - 1) // 2
    return np.stack([i, i + 1 + code - first], axis=1)
