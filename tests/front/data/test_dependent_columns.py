"""Columns that are linear functions of others are found by their rank, and told from noise."""

from __future__ import annotations

import numpy as np
import pytest

from sidebayes.common.dependence import dependent_columns, say_dependent

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))


@pytest.mark.parametrize(
    ("column", "others"),
    [(2 * X[:, 0], [0]), (X.sum(axis=1), [0, 1, 2]), (1e6 - 5 * X[:, 1], [1])],
)
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_functions_of_others_are_named(column, others, offset):
    assert dependent_columns(np.c_[X, column] + offset) == {3: others}


def test_what_only_looks_alike_is_left_alone():
    groups = np.repeat(np.eye(3), 20, axis=0)
    assert dependent_columns(np.c_[X, X[:, 0] + 1e-3 * RNG.normal(size=60)], 1e-8) == {}
    assert dependent_columns(np.c_[X, groups[:, :2]]) == {}
    assert dependent_columns(np.c_[X, groups]) == {5: [3, 4]}
    assert dependent_columns(X[:3]) == {}


def test_rows_that_are_not_looked_at_first_count():
    x = RNG.normal(size=(6000, 2))
    copied = np.c_[x, x[:, 0]]
    assert dependent_columns(copied) == {2: [0]}
    copied[1, 2] += 0.01
    assert dependent_columns(copied) == {}


def test_several_are_said_in_one_sentence():
    assert say_dependent("x", {3: [0]}) == "column 3 of x is a linear function of column 0"
    several = say_dependent("x", {3: [0, 1], 4: [2]})
    assert several == "columns of x are linear functions of others, 3 (of 0, 1), 4 (of 2)"
