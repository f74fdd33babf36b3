"""A small long table, and its dense covariance, that tests of random effects share."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
from sidebayes.diagnostics.calibration import rank_of_truth
from sidebayes.models.blocks.effects.densities.random_effects import RandomEffects
from sidebayes.models.blocks.side_information.groups import Groups

SUBJECT = np.array(["d", "a", "b", "a", "d", "d", "c", "d", "b", "d", "a"])  # 3, 2, 1 and 5 rows
CODES = np.array([3, 0, 1, 0, 3, 3, 2, 3, 1, 3, 0])
FACTORS = {
    "full": [[1.3, 0.0], [-0.4, 0.7]],
    "singular": [[1.3, 0.0], [-0.4, 0.0]],
    "one": [[0.0, 0.0], [0.0, 0.7]],
    "zero": [[0.0, 0.0], [0.0, 0.0]],
}


def small_table():
    """Eleven rows of four groups, unbalanced and out of order."""
    rng = np.random.default_rng(5)
    rows = len(SUBJECT)
    return SimpleNamespace(
        mean=rng.normal(size=rows),
        design=np.column_stack([np.ones(rows), rng.normal(size=rows)]),
        groups=Groups(SUBJECT),
        noises={"one": np.array(0.6), "rows": rng.uniform(0.4, 1.5, size=rows)},
        y=2.0 * rng.normal(size=rows),
    )


def build(table, scale_tril="full", noise="one"):
    return RandomEffects(
        table.mean,
        table.design,
        table.groups,
        scale_tril=np.array(FACTORS[scale_tril]),
        noise=table.noises[noise],
    )


def dense_covariance(design, codes, scale_tril, noise):
    """Z blockdiag(T T') Z' + diag(noise^2), with explicit blocks; of NumPy's or of JAX's arrays."""
    num_groups, size = codes.max() + 1, design.shape[1]
    spread = np.zeros((len(codes), num_groups, size))
    for row, code in enumerate(codes):
        spread[row, code] = design[row]
    factor = (spread @ scale_tril).reshape(len(codes), num_groups * size)
    return factor @ factor.T + np.eye(len(codes)) * noise**2


def derivatives(function, at, step=3e-4):
    """Slope of a function of NumPy's arrays by complex steps, and differences of order four of that slope."""

    def slope(point):
        moved = (function(point + 1e-20j * row) for row in np.eye(len(at)))
        return np.array([value.imag for value in moved]) / 1e-20

    def rise(row):
        return slope(at + row) - slope(at - row)

    rises = [8 * rise(row) - rise(2 * row) for row in step * np.eye(len(at))]
    return slope(at), np.array(rises) / (12 * step)


def simulate(num_subjects=40, deviations=(1.0, 0.8), seed=8):
    """Growth curves of subjects with two to eight rows each, in no order."""
    rng = np.random.default_rng(seed)
    subject = np.repeat(np.arange(num_subjects) + 100, rng.integers(2, 9, size=num_subjects))
    rng.shuffle(subject)
    age = rng.uniform(-1, 1, size=len(subject))
    x = np.column_stack([np.ones(len(subject)), age])
    effects = rng.normal(size=(num_subjects, 2)) * deviations @ np.array([[1.0, 0.4], [0.0, 0.9]])
    y = x @ [2.0, -1.0] + (x * effects[subject - 100]).sum(axis=1) + 0.5 * rng.normal(size=len(x))
    return SimpleNamespace(x=x, y=y, subject=subject)


def simulate_joint(num_subjects=80, seed=0, slopes=(0.8, 0.5)):
    """Measures of a line per subject, until an event whose hazard depends on the line."""
    rng = np.random.default_rng(seed)
    effects = rng.normal(size=(num_subjects, 2)) @ np.array([[1.0, 0.2], [0.0, 0.5]])
    drug = rng.integers(0, 2, num_subjects)
    ratio = np.exp(effects @ np.array(slopes) - 0.7 * drug)
    died = rng.exponential(1 / (0.25 * ratio))
    end = rng.uniform(2, 8, num_subjects)
    time = np.minimum(died, end)
    visits = [np.concatenate([[0.0], np.sort(rng.uniform(0, t, 1 + int(t)))]) for t in time]
    who = np.repeat(np.arange(num_subjects), [len(v) for v in visits])
    year = np.concatenate(visits)
    y = 2.0 - 0.3 * year + effects[who, 0] + effects[who, 1] * year
    table = pd.DataFrame({"who": who, "year": year, "y": y + 0.3 * rng.normal(size=len(y))})
    persons = pd.DataFrame({"who": np.arange(num_subjects), "drug": drug, "years": time})
    return table, persons.assign(died=(died <= end).astype(int))


def ranks_of_truth(found, truth, names):
    """Ranks of drawn parameters among the draws of a fit by two chains, by entry of the sites named."""
    draws, real = {}, {}
    for name in names:
        values = found[name].to_numpy()
        values = values.reshape(values.shape[0] * values.shape[1], -1)
        for entry, drawn in enumerate(truth[name].to_numpy().reshape(-1)):
            draws[f"{name}[{entry}]"], real[f"{name}[{entry}]"] = values[:, entry], [drawn]
    return rank_of_truth(pd.DataFrame(real), pd.DataFrame(draws), num_chains=2)
