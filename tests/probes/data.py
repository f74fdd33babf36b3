"""Small data for the probes."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_iris

from sidebayes import Links

IRIS, SPECIES = load_iris(return_X_y=True)


def long_table(num_subjects=12, seed=0, spread=(1.0, 0.5)):
    """Outcome, times and subjects, each with its own number of rows."""
    rng = np.random.default_rng(seed)
    subjects = np.repeat(np.arange(num_subjects), rng.integers(3, 7, num_subjects))
    times = rng.uniform(0, 3, len(subjects))
    own = rng.normal(size=(num_subjects, 2)) * spread
    noise = 0.5 * rng.normal(size=len(subjects))
    return 2 + 1.5 * times + own[subjects, 0] + own[subjects, 1] * times + noise, times, subjects


def two_lines(num_subjects=14, seed=1):
    """Subjects on one of two lines, and links between some of them."""
    rng = np.random.default_rng(seed)
    subjects = np.repeat(np.arange(num_subjects), rng.integers(3, 7, num_subjects))
    times, label = rng.uniform(0, 3, len(subjects)), np.arange(num_subjects) % 2
    mean = np.where(label[subjects] == 0, 1 + times, 2 - times)
    pairs = np.array([(0, 2), (1, 3), (4, 5), (2, 7)])
    links = Links.from_pairs(
        pairs, label[pairs[:, 0]] == label[pairs[:, 1]], num_points=num_subjects
    )
    return mean + 0.3 * rng.normal(size=len(times)), times, subjects, links


def survival(num_subjects=15, seed=2):
    """A measure over time, and a censored time to an event, that share an effect."""
    rng = np.random.default_rng(seed)
    effect = rng.normal(size=num_subjects)
    subjects = np.repeat(np.arange(num_subjects), 3)
    y = 1 + 0.8 * effect[subjects] + 0.3 * rng.normal(size=len(subjects))
    death, end = rng.exponential(np.exp(0.5 - 0.6 * effect)), rng.exponential(3, num_subjects)
    times = rng.uniform(size=len(subjects))
    return y, times, subjects, np.minimum(death, end), (death <= end).astype(float)


def partly_labelled(seed=3):
    """Two features of iris, and the species of a fifth of the flowers."""
    known = np.where(np.random.default_rng(seed).random(150) < 0.2, SPECIES, -1)
    return IRIS[:, :2], known


def heavy_tails(seed=4):
    """Two clusters on a line with outliers."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.standard_t(3, 40), 6 + 0.7 * rng.standard_t(3, 40), [30.0]])
