"""Values by group without names, where rows name groups in another order than the sorted one."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sidebayes.models.blocks.side_information.groups import Groups, check_order_of_groups

import sidebayes
from tests.support.draws import at_one

NAMES = [f"s{i}" for i in range(12)]
ROWS = Groups(np.repeat(NAMES, 3))
CLASSES = pd.Series(np.arange(12) % 2, NAMES)


@pytest.mark.parametrize(
    "values", [CLASSES.tolist(), CLASSES.to_numpy(), CLASSES.reset_index(drop=True)]
)
def test_values_without_names_are_warned_of(values):
    """Both orders are said: s10 stands before s2 in the sorted one."""
    with pytest.warns(sidebayes.SideBayesWarning) as found:
        check_order_of_groups("known", values, ROWS)
    said = str(found[0].message)
    assert "known has no names" in said
    assert (
        "'s0', 's1', 's10', 's11', ..., while rows name them in the order 's0', 's1', 's2'" in said
    )
    assert "set_index(column).sort_index()" in said


def test_values_with_names_or_in_the_one_order_are_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_order_of_groups("known", CLASSES.sort_index(), ROWS)
        check_order_of_groups("known", CLASSES.tolist(), Groups(np.repeat(np.arange(12), 3)))
        check_order_of_groups("since", 1.0, ROWS)
        check_order_of_groups("since", np.ones(12), ROWS)
    with pytest.raises(ValueError, match="known has 's2' at place 2"):
        check_order_of_groups("known", CLASSES, ROWS)


def long_table():
    rng = np.random.default_rng(0)
    who, time = np.repeat(np.arange(24), 4), np.tile(np.arange(4.0), 24)
    level = 10 * (np.arange(24) % 2) + rng.normal(size=24)
    names = np.array([f"s{i}" for i in range(24)])
    return pd.DataFrame({"y": level[who] + rng.normal(size=96), "t": time, "s": names[who]}), names


def test_survival_data_have_names():
    table, names = long_table()
    persons = pd.DataFrame(
        {"s": names, "until": 4.0 + np.arange(24), "seen": 1, "w": np.arange(24) % 5}
    )
    data = sidebayes.design("y ~ t + (1 | s)", table).survival("Surv(until, seen) ~ w", persons)
    for name in ("time", "event", "covariates"):
        assert data[name].index.tolist() == sorted(names)
    assert data["time"]["s10"] == 14.0


WRONG = {
    "coefficients": [[8.0, 0.26], [1.8, -0.1]],
    "covariance": [[[17.2]], [[17.2]]],
    "factor": [4.15],
    "noise": 0.96,
    "weights": [0.5, 0.5],
}
"""Where EM ends if it is told classes in another order."""


class Placed(sidebayes.EM):
    """Knows where it ends if it is told classes, and otherwise climbs from there."""

    def run(self, problem, *, init=None, **given):
        if init is not None:
            return super().run(problem, init=init, **given)
        return replace(at_one(WRONG).run(problem), objective=np.full((1, 2), -200.7))


def classed(known, engine):
    """A fit to subjects of two levels, told their classes as `known` turns a Series by name into them."""
    table, names = long_table()
    data = sidebayes.design("y ~ t + (1 | s)", table)
    classes = pd.Series(np.arange(24) % 2, names).map({0: "low", 1: "high"})
    shared = {"num_clusters": 2, "shared": ("covariance", "noise"), "progress": False}
    shared |= {"engine": engine, "known": known(classes)}
    return sidebayes.fit("mixed_effects_mixture", **data, **shared)


def test_known_classes_of_the_wrong_subjects_are_a_caution():
    """Without a class of its own, a row is told little better than by shares, and is sure of another one."""
    with pytest.warns(sidebayes.SideBayesWarning, match="known has no names"):
        wrong = classed(pd.Series.to_numpy, Placed(num_restarts=1))
    assert wrong.verdict[0] == "caution"
    assert "Known classes contradict the rows: once no class is known" in wrong.verdict[1]


def test_known_classes_of_the_right_subjects_are_good():
    right = classed(pd.Series.sort_index, sidebayes.EM(num_restarts=2))
    assert right.verdict[0] == "good"
    table = right.coefficients()
    assert set(table.index.get_level_values("cluster")) == {"low", "high"}
    estimate = table["estimate"]
    assert estimate["high", "Intercept"] > estimate["low", "Intercept"] + 5
