"""Simulate side information from known labels, and series of subjects who decline or do not."""

from __future__ import annotations

from numbers import Real

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from sidebayes.guides.transformers.detection.population import Population
from sidebayes.models.blocks.side_information.links import Links

from ..common.class_names import class_codes
from ..common.fields import Range, check_integer, check_number, check_seed
from ..common.magnitudes import shown

__all__ = ["decline_populations", "simulate_decline", "simulate_links"]

_CENTER, _DECADE = 80.0, 10.0

_OBAS = {
    "seconds": (
        (0.7111, 0.0202, 0.9714, -0.0122, 1.65e-4, 0.1635),
        (-1.0952, 0.0406, 1.6234, -0.0182, 2.1e-4, 0.1709),
    ),
    "steps": (
        (1.2408, 0.0203, 0.7019, -0.0083, 1e-4, 0.1304),
        (-0.1618, 0.0358, 2.8816, -0.0326, 3.7e-4, 0.1359),
    ),
    "tapping_dominant": (
        (4.2518, -0.0069, 0.1980, -0.0024, 3.2e-5, 0.1284),
        (4.9858, -0.0158, 5.7261, -0.0672, 8e-4, 0.1626),
    ),
    "tapping_other": (
        (4.1580, -0.0066, 0.2672, -0.0030, 3.5e-5, 0.1012),
        (4.3362, -0.0092, 1.9736, -0.02291, 2.7e-4, 0.1041),
    ),
    "delayed_recall": (
        (9.8435, -0.0395, 24.3887, -0.2972, 0.0039, 1.2240),
        (28.8741, -0.2693, 236.8424, -2.6264, 0.0295, 1.3725),
    ),
    "logical_memory": (
        (-1.6665, 0.1838, 399.3892, -4.7566, 0.0587, 2.5274),
        (30.8248, -0.2394, 514.0913, -5.9009, 0.0700, 2.7569),
    ),
}
"""Lu (2008), appendix B, order 1: intercept, slope, their variances and covariance (D11, D12, D22), noise.

Of normal and impaired subjects, ages in years. As printed, the covariance of ``seconds`` of the impaired is
indefinite, as D22 has one digit; the two D22 of ``seconds`` are within its rounding.
"""

_NORMAL_SIZES = {"delayed_recall": 86, "logical_memory": 82}
"""Normal subjects of the study, where they are not 97."""


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
        Number of distinct pairs, drawn without replacement.
    flip_rate : float in [0, 1]
        Share of statements that are reversed, exactly ``round(flip_rate * num_pairs)`` of them.
    weight : float
        Strength of each link.
    disjoint : bool
        Whether no point may occur in two pairs (the thesis' non-overlapping pairs).
    seed : int

    Raises
    ------
    ValueError
        If there are fewer such pairs than `num_pairs`, or the flip rate is not a probability.
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


def simulate_decline(
    measure: str = "seconds",
    num_normal: int | None = None,
    num_impaired: int = 46,
    *,
    df: float = np.inf,
    seed: int = 0,
) -> pd.DataFrame:
    """Simulate series of elderly subjects like those of the Oregon Brain Aging Study.

    Some of the subjects become impaired. The data of the study are private. These series are drawn from
    the lines that Lu (2008, appendix B) fitted to it, with two variances corrected within their
    rounding: 4 to 12 yearly visits, the first at an age of 68 to 88, each subject with an intercept and
    slope of its own.

    Parameters
    ----------
    measure : str
        Log seconds or log steps to walk 9 m (``seconds``, ``steps``), log finger taps of either hand in
        10 s (``tapping_dominant``, ``tapping_other``), words recalled (``delayed_recall``), points of
        recalling a story (``logical_memory``).
    num_normal : int, optional
        Subjects who stay well; by default as many as in the study, 82 to 97.
    num_impaired : int
    df : float
        Degrees of freedom, above 2, of the multivariate t distribution of intercepts and slopes;
        infinity gives the normal distribution. Finite values keep the covariance, and make the
        likelihood ratio of normal distributions a wrong model.
    seed : int

    Returns
    -------
    DataFrame
        Columns ``subject`` (int), ``age`` (years), ``value`` and ``impaired`` (0 or 1); a row for each
        visit, in order of visits.

    Raises
    ------
    ValueError
        For an unknown measure, negative numbers of subjects, or `df` not above 2.
    """
    populations = decline_populations(measure)
    if num_normal is None:
        num_normal = _NORMAL_SIZES.get(measure, 97)
    sizes = [
        check_integer("num_normal", num_normal, 0),
        check_integer("num_impaired", num_impaired, 0),
    ]
    is_normal = isinstance(df, Real) and df == np.inf
    if not is_normal:
        df = check_number("df", df, Range(above=2))
    if not sum(sizes):
        raise ValueError("num_normal and num_impaired are both 0; ask for a subject")
    rng = np.random.default_rng(check_seed(seed))
    impaired = np.repeat([0, 1], sizes)
    visits = rng.integers(4, 13, len(impaired))
    subject = np.repeat(np.arange(len(impaired)), visits)
    nth = np.arange(len(subject)) - np.repeat(np.cumsum(visits) - visits, visits)
    age = rng.uniform(68, 88, len(impaired))[subject] + nth + rng.uniform(-0.15, 0.15, len(nth))
    white = rng.normal(size=(len(impaired), 2))
    if not is_normal:
        white *= np.sqrt((df - 2) / rng.chisquare(df, len(impaired)))[:, None]
    means, roots = (
        np.stack([getattr(one, name) for one in populations])[impaired]
        for name in ("coefficients", "root")
    )
    lines = means + np.einsum("sij,sj->si", roots, white)
    noise = np.stack([one.noise[0] for one in populations])[impaired]
    value = lines[subject, 0] + lines[subject, 1] * (age - _CENTER) / _DECADE
    value += noise[subject] * rng.normal(size=len(subject))
    return pd.DataFrame(
        {"subject": subject, "age": age, "value": value, "impaired": impaired[subject]}
    )


def decline_populations(measure: str) -> tuple[Population, Population]:
    """Laws of normal and impaired subjects that `simulate_decline` draws from.

    Parameters
    ----------
    measure : str

    Returns
    -------
    tuple of Population
        Of an intercept and a slope over ``(age - 80) / 10``, columns of
        ``LongTable.from_times(..., center=80, unit=10)``.
    """
    if not isinstance(measure, str) or measure not in _OBAS:
        raise ValueError(f"measure = {shown(measure)}; expected one of {sorted(_OBAS)}")
    # an intercept and slope of age become those of decades from 80 years on
    basis = np.array([[1.0, _CENTER], [0.0, _DECADE]])

    def centred(row: tuple[float, ...]) -> Population:
        mean, covariance = np.array(row[:2]), np.array([row[2:4], row[3:5]])
        return Population(basis @ mean, basis @ covariance @ basis.T, np.array(row[5]))

    normal, impaired = _OBAS[measure]
    return centred(normal), centred(impaired)


def _decode(code: np.ndarray, num_points: int) -> np.ndarray:
    """Turn numbers of pairs i < j, in lexicographic order, into the pairs."""
    size = 2 * num_points - 1
    i = ((size - np.sqrt(size**2 - 8.0 * code)) / 2).astype(np.int64)
    first = i * (2 * num_points - i - 1) // 2
    i = np.where(first > code, i - 1, i)
    i = np.where(code >= (i + 1) * (2 * num_points - i - 2) // 2, i + 1, i)
    first = i * (2 * num_points - i - 1) // 2
    return np.stack([i, i + 1 + code - first], axis=1)
