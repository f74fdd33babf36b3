"""Simulated visits like those of Ross and Dy (2013, section 5.2), whose data are private."""

import numpy as np

PRINTED, CORRECTED = 0.00011607, 0.00014098
"""Coefficient of squared height: in Ross and Dy (eq. 26), and of the mean in Hankinson (1999, Table 4)."""


def hankinson(age, height, coefficient):
    """FEV1 in litres of white men from 20 years on, by age in years and height in cm."""
    return 0.5536 - 0.01303 * age - 0.000172 * age**2 + coefficient * height**2


def visits(seed):
    """Forty men on one of three curves, each with a level and a slope of his own: who, age, height, FEV1."""
    rng = np.random.default_rng(seed)
    number = rng.integers(5, 9, 40)
    kind = rng.choice(3, 40, p=[0.40, 0.35, 0.25])
    gaps = [np.r_[0.0, rng.uniform(2.5, 4.5, size - 1)] for size in number]
    first = rng.uniform(45, 60, 40)
    age = np.concatenate([start + np.cumsum(gap) for start, gap in zip(first, gaps, strict=True)])
    who = np.repeat(np.arange(40), number)
    level, slope = np.array([[3.8, -0.020], [3.5, -0.035], [3.2, -0.055]])[kind[who]].T
    own_level, own_slope = rng.normal(0, 0.30, 40)[who], rng.normal(0, 0.006, 40)[who]
    fev = level + slope * (age - 45) + own_level + own_slope * (age - 60)
    height = rng.normal(174, 2, 40)[who]
    return who, age, height, fev + rng.normal(0, 0.18, len(age))


def folds(who, seed):
    """Five sets of rows, each with one visit of everybody, no visit in two."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(np.flatnonzero(who == one))[:5] for one in np.unique(who)]).T


def chains(who, most):
    """Pairs of neighbouring visits of everybody, in sets of so many visits at most."""
    place = np.concatenate([np.arange(size) for size in np.bincount(who)])
    first = np.flatnonzero((np.diff(who) == 0) & (place[1:] % most > 0))
    return np.column_stack([first, first + 1])
