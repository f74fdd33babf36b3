"""Small series of subjects, and dense Gaussian algebra, that tests of populations share."""

from __future__ import annotations

import numpy as np
from scipy.stats import multivariate_normal

from sidebayes import LongTable, Population

NORMAL = Population([0.4, -0.3], [[0.9, -0.2], [-0.2, 0.5]], 0.6)
IMPAIRED = Population([-0.2, 0.8], [[1.4, 0.3], [0.3, 0.7]], 0.6)


def series(num_subjects=7, seed=0, population=None, degree=1):
    """Rows in no order, one to five a subject."""
    rng = np.random.default_rng(seed)
    subject = np.repeat(np.arange(num_subjects), rng.integers(1, 6, num_subjects))
    rng.shuffle(subject)
    times = rng.uniform(-1, 2, len(subject))
    y = rng.normal(size=len(subject))
    if population is not None:
        x = times[:, None] ** np.arange(degree + 1)
        own = rng.normal(size=(num_subjects, degree + 1)) @ population.root.T
        y = x @ population.coefficients + (x * own[subject]).sum(axis=1) + population.noise[0] * y
    names = np.array([f"s{n:03d}" for n in subject])
    return LongTable.from_times(y, times, names, degree=degree)


def two_classes(num_subjects=60, seed=1):
    """Series of both populations, and their labels."""
    parts = [series(num_subjects, seed, NORMAL), series(num_subjects, seed + 1, IMPAIRED)]
    names = np.concatenate(
        [np.char.add(prefix, p.names[p.codes]) for prefix, p in zip("ni", parts, strict=True)]
    )
    y, times = (np.concatenate([getattr(p, n) for p in parts]) for n in ("y", "times"))
    table = LongTable.from_times(y, times, names)
    return table, np.array([name[0] == "i" for name in table.names]).astype(int)


def dense(population, table, subject):
    """Rows of a subject: random columns, residuals, and the marginal covariance."""
    rows = table.codes == subject
    z = table.random[rows]
    noise = population.noise[table.output_codes[rows]]
    residual = table.y[rows] - table.fixed[rows] @ population.coefficients
    return z, residual, z @ population.covariance @ z.T + np.diag(noise**2)


def log_densities(population, table):
    """By the multivariate normal density of every subject."""
    found = (dense(population, table, subject) for subject in range(len(table)))
    return np.array([multivariate_normal.logpdf(r, cov=c) for _, r, c in found])
