"""Columns of few different values, by which clusters part where densities may be narrow."""

import numpy as np
import pytest
from sidebayes.models.blocks.components.gaussians.single_values import (
    say_single_values,
    single_value_excess,
)

import sidebayes as sb

RNG = np.random.default_rng(0)
CLOUDS = np.concatenate([RNG.normal(size=(100, 2)), RNG.normal(size=(100, 2)) + 6])
TRUTH = np.repeat([0, 1], 100)
COIN = RNG.integers(0, 2, 200)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (COIN, "ended where clusters have a single value of a feature were set aside"),
        (COIN * RNG.gamma(1.0, size=200), "ended where clusters have a single value"),
        (TRUTH, "hardly more than one in some clusters (column 2 of x in 2 clusters)"),
        (np.where(np.arange(200) % 10 == 0, 1 - TRUTH, TRUTH), "EM converged"),
    ],
    ids=["coin", "half zero", "their number", "their number with errors"],
)
def test_a_column_of_few_values_does_not_divide_clouds(column, said):
    fit = sb.fit("gmm", np.column_stack([CLOUDS, column]), num_clusters=2, progress=False)
    assert np.unique(fit.labels()[:100]).size == np.unique(fit.labels()[100:]).size == 1
    assert said in fit.verdict[1]


def test_what_is_said_of_starts_set_aside_does_not_contradict_itself():
    """A mode by a coin is higher with the prior and without it, and is set aside for neither."""
    rng = np.random.default_rng(3)
    clouds = np.concatenate([rng.normal(size=(30, 2)), rng.normal(size=(30, 2)) + 2])
    coin = np.concatenate([rng.random(30) < 0.3, rng.random(30) < 0.7])
    why = sb.fit("gmm", np.column_stack([clouds, coin]), num_clusters=2, progress=False).verdict[1]
    assert "have a single value of a feature were set aside" in why
    assert "leaves out the prior" not in why


def test_modes_by_a_coin_are_cautions():
    """A mode of the density is what was asked for."""
    table, engine = np.column_stack([CLOUDS, COIN]), sb.MAP(num_restarts=2)
    level, why = sb.fit("gmm", table, num_clusters=2, engine=engine, progress=False).verdict
    assert level == "caution"
    assert "hardly more than one in some clusters (column 2 of x in 2 clusters)" in why


@pytest.mark.parametrize("form", ["full", "diagonal"])
@pytest.mark.parametrize(
    ("column", "mean", "deviation", "alone"),
    [
        (COIN, [0.0, 1.0], [0.05, 0.05], [True, True]),
        (COIN, [0.5, 0.5], [0.5, 0.5], [False, False]),
        (COIN + RNG.poisson(3.0, 200) * COIN, [0.0, 4.0], [0.05, 2.0], [True, False]),
        (CLOUDS[:, 0], [0.0, 6.0], [1e-3, 1e-3], [False, False]),
        (np.round(CLOUDS[:, 0], 1), [0.0, 6.0], [0.1, 1.0], [False, False]),
    ],
    ids=["one side each", "both sides", "zero and counts", "continuous", "rounded"],
)
def test_where_clusters_have_a_single_value(column, mean, deviation, alone, form):
    centres = np.column_stack([[0.0, 0.0], mean])
    variance = np.column_stack([[9.0, 9.0], np.square(deviation)])
    spread = variance if form == "diagonal" else variance[:, :, None] * np.eye(2)
    found = single_value_excess(np.column_stack([CLOUDS[:, 1], column]), centres, spread)
    np.testing.assert_array_equal(found > 0, np.stack([[False, False], alone], axis=1))
    assert (say_single_values("x", found) is None) == (not any(alone))


def test_what_single_values_are_worth():
    """As much as a density of probability one at the value, of which the next one is at distance one."""
    number = np.array([(COIN == 0).sum(), (COIN == 1).sum()])
    centres, variance = np.array([[3.0, 0.0], [3.0, 1.0]]), np.array([[10.0, 0.01], [10.0, 0.01]])
    found = single_value_excess(np.column_stack([CLOUDS[:, 0], COIN]), centres, variance)
    np.testing.assert_allclose(found[:, 1], number * np.log(10 / np.sqrt(2 * np.pi)))
