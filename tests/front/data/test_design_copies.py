"""Designs are copied and pickled with what their formulas call."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb

TABLE = pd.DataFrame(
    {
        "y": np.arange(12.0),
        "t": np.tile([0.5, 1.0, 3.0], 4),
        "kind": np.repeat(["a", "b"], 6),
        "who": np.repeat(list("abcd"), 3),
    }
)
NEW = TABLE.iloc[[4, 0]].assign(t=[2.0, 7.0])


def doubled(values):
    return 2 * values


def copies(design):
    return pickle.loads(pickle.dumps(design)), copy.deepcopy(design)


@pytest.mark.parametrize(
    "terms", ["t", "poly(t, 2) + C(kind)", "np.log(t + shift) * kind + doubled(t)"]
)
def test_a_copy_makes_the_same_columns_of_other_rows(terms):
    shift = 1.0
    design = sb.design(f"y ~ {terms} + (t | who)", TABLE)
    expected = design.at(NEW)
    if "shift" in terms:
        np.testing.assert_allclose(expected["fixed"]["np.log(t + shift)"], np.log(NEW["t"] + shift))
    for other in copies(design):
        assert other.formulas == design.formulas
        pd.testing.assert_frame_equal(other["fixed"], design["fixed"])
        found = other.at(NEW)
        for name in ("fixed", "random"):
            pd.testing.assert_frame_equal(found[name], expected[name])


def test_a_copy_of_a_design_of_shapes():
    x = np.random.default_rng(0).normal(size=(12, 2))
    covariates = pd.DataFrame({"age": [1.0, 2.0, 4.0]}, index=list("abc"))
    who, marks = np.repeat(list("abc"), 4), np.tile(np.arange(4), 3)
    landmarks = sb.Landmarks(x, who, marks, covariates=covariates)
    design = sb.shape_design("~ np.log(age)", landmarks)
    for other in copies(design):
        found = other.at(landmarks)["covariates"]
        pd.testing.assert_frame_equal(found, design["covariates"])


def test_what_a_formula_does_not_call_is_not_in_the_pickle():
    around = bytes(10**6)
    design = sb.design("y ~ t + (t | who)", TABLE)
    assert len(pickle.dumps(design)) < len(around) / 4
