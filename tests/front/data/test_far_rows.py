"""One row far from all others: it spoils nothing for these, or it is named."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb
from sidebayes import Links, SideBayesWarning
from sidebayes.common.magnitudes import warn_of_far_rows, warn_of_other_units
from sidebayes.runs.arguments import read_run
from tests.support.draws import at_one

QUICK = {"engine": sb.EM(num_restarts=1, max_steps=5), "progress": False}
X = np.concatenate([np.random.default_rng(k).normal(4.0 * k, 1.0, (8, 2)) for k in range(2)])
NEW = X[[0, 3, 5, 9, 12]]
OTHERS = [0, 1, 3, 4]
FILLED = np.where(np.arange(5)[:, None] == 2, [1e15, 0.0], NEW)


PARAMS = {
    "weights": [0.5, 0.5],
    "mean": np.array([[-0.4, -0.1], [4.0, 4.2]]),
    "covariance": np.array([[[0.7, 0.3], [0.3, 0.4]], [[0.3, 0.1], [0.1, 0.4]]]),
}
KNOWN = {"num_clusters": 2, "engine": at_one(PARAMS), "progress": False}


@pytest.fixture(scope="module")
def fits():
    links = Links.must_link([(0, 1), (8, 9)], 2.0, num_points=16)
    known = np.where(np.arange(16) % 4, -1, np.arange(16) // 8)
    classes = at_one(PARAMS | {"class_table": [[0.9, 0.1], [0.2, 0.8]]})
    return {
        "ppc": sb.fit("ppc", X, links, **KNOWN),
        "moe": sb.fit("moe", X, known, num_classes=2, **KNOWN | {"engine": classes}),
    }


def test_other_rows_keep_their_labels(fits):
    alone = fits["ppc"].predict_proba(NEW)
    with pytest.warns(SideBayesWarning, match="row 2; the first is 1e\\+15"):
        beside = fits["ppc"].predict_proba(FILLED)
    np.testing.assert_allclose(beside[OTHERS], alone[OTHERS], rtol=1e-12)
    np.testing.assert_allclose(beside.sum(axis=1), 1.0)


def test_rows_in_other_units_are_told(fits):
    with pytest.warns(
        SideBayesWarning, match=r"outside .* in columns 0, 1 of x; in the first it is 13, .*units"
    ):
        fits["ppc"].predict_proba(10 * NEW)
    beside = np.stack(np.meshgrid(*[np.linspace(-20, 30, 9)] * 2), axis=-1).reshape(-1, 2)
    fits["ppc"].predict_proba(beside)  # a grid around the data, of which most lies outside
    fits["ppc"].predict_proba(10 * NEW[:4])  # too few to say


def test_columns_in_other_units_are_named():
    fitted = np.column_stack([X[:, 0], np.ones(16), np.arange(16.0)])
    new = fitted[:6] + np.array([0.0, 0.0, 17.0])
    new[0, 2] = np.nan
    with pytest.warns(
        SideBayesWarning, match="column 'day' of x; in the first it is 20, .* 0 to 15"
    ):
        warn_of_other_units("x", new, fitted, ["size", "one", "day"])
    warn_of_other_units("x", fitted[:6] + np.array([0.0, 1e-9, 10.0]), fitted)
    warn_of_other_units("x", np.where([0, 0, 1], np.nan, new), fitted)


def shapes_on_a_table():
    """Five landmarks of twelve individuals, one of them elsewhere on the table, one in another unit."""
    rng = np.random.default_rng(0)
    moved = rng.normal(size=(5, 2)) + 0.1 * rng.normal(size=(12, 5, 2))
    moved[3] += 1e5
    moved[5] *= 1e5
    return moved


def test_place_and_unit_of_shapes_do_not_count_where_they_are_read():
    moved, sizes = shapes_on_a_table(), {"num_clusters": 1, "num_modes": 2}
    read_run("hierarchical_shape", (sb.Landmarks.from_array(moved),), sizes, None)
    new = moved[:2] * np.array([1e6, 1.0])[:, None, None] - 1e5
    frames = {"frames": np.repeat([0, 1], 5), "reference_frames": np.repeat(np.arange(12), 5)}
    warn_of_far_rows("x", new.reshape(10, 2), moved.reshape(60, 2), **frames)
    moved[7, 2, 0] = 1e7  # a slip
    said = r"in row 37; the first is 1e\+07 in column 0"
    with (
        pytest.warns(SideBayesWarning, match=said),
        pytest.warns(SideBayesWarning, match="as is usual.*: landmark 2 of individual 7"),
    ):
        read_run("hierarchical_shape", (sb.Landmarks.from_array(moved),), sizes, None)


def test_place_and_unit_of_shapes_do_not_count():
    moved = shapes_on_a_table()
    params = {"weights": [1.0], "mean": [[0.0, 0.0]], "covariance": 0.01 * np.eye(2)}
    given = {"num_clusters": 1, "num_modes": 2, "engine": at_one(params), "progress": False}
    fit = sb.fit("hierarchical_shape", sb.Landmarks.from_array(moved), **given)
    new = moved[:2] * np.array([1e6, 1.0])[:, None, None] - 1e5
    rows = {"subjects": np.repeat([0, 1], 5), "landmarks": np.tile(np.arange(5), 2)}
    fit.predict_proba(new.reshape(10, 2), **rows)
    moved[7, 2, 0] = 1e7  # a slip
    said = r"in row 37; the first is 1e\+07 in column 0"
    with (
        pytest.warns(SideBayesWarning, match=said),
        pytest.warns(SideBayesWarning, match="as is usual.*: landmark 2 of individual 7"),
    ):
        sb.fit("hierarchical_shape", sb.Landmarks.from_array(moved), **given)


def test_no_rows_are_told_without_a_fit(fits):
    for call in (lambda: fits["ppc"].predict(X[:0]), lambda: sb.fit("gmm", X[:0], **QUICK)):
        with pytest.raises(ValueError, match=r"x has shape \(0, 2\): it holds no value; check how"):
            call()


def test_rows_linked_to_it_follow_the_density(fits):
    links = Links.must_link([(0, 2), (2, 4)], 3.0, num_points=5)
    with pytest.warns(SideBayesWarning, match="its predictions there are extrapolations"):
        prob = fits["ppc"].predict_proba(FILLED, links)
    np.testing.assert_allclose(prob.sum(axis=1), 1.0)
    np.testing.assert_allclose(prob[[1, 3]], fits["ppc"].predict_proba(NEW)[[1, 3]], rtol=1e-12)


def test_other_rows_keep_their_density_and_classes(fits):
    with pytest.warns(SideBayesWarning):
        density = fits["ppc"].log_prob(FILLED)
    with pytest.warns(SideBayesWarning):
        classes = fits["moe"].class_probabilities(FILLED)
    np.testing.assert_allclose(density[OTHERS], fits["ppc"].log_prob(NEW)[OTHERS], rtol=1e-12)
    assert -np.inf < density[2] < -1e25
    alone = fits["moe"].class_probabilities(NEW)
    np.testing.assert_allclose(classes[OTHERS], alone[OTHERS], rtol=1e-12)


def test_a_row_that_no_cluster_explains_is_named(fits):
    narrow = {"mean": 1e-8 * PARAMS["mean"], "covariance": 1e-16 * PARAMS["covariance"]}
    small = sb.fit("gmm", X * 1e-8, **KNOWN | {"engine": at_one(PARAMS | narrow)})
    far = np.where(np.arange(5)[:, None] == 2, [1e149, 0.0], NEW * 1e-8)
    with pytest.warns(SideBayesWarning), pytest.raises(ValueError, match="for 1 of 5 rows: 2"):
        small.predict_proba(far)
    hard = Links.cannot_link([(0, 1), (1, 2), (0, 2)], num_points=5)
    with pytest.raises(ValueError, match="cannot|clusters"):
        fits["ppc"].predict_proba(NEW, hard)


@pytest.mark.parametrize(
    ("x", "dtype", "said"),
    [
        (np.where(np.arange(16)[:, None] == 3, 1e300, X), "float64", "x holds 1e\\+300 in row 3"),
        (np.where(np.arange(16)[:, None] == 3, 1e17, X), "float32", "x holds 1e\\+17 in row 3"),
        (X + 1e8, "float32", "x has values near 1e\\+08.* column 0, 1; float32"),
        ((X + 1e7).astype(np.float32), "float64", "x has values near 1e\\+07.*float32"),
        (X + 1e15, "float64", "x has values near 1e\\+15.*float64"),
        (X * 1e-300, "float64", "x has values that differ by .* smaller units"),
    ],
)
def test_numbers_that_cannot_be_computed_with_are_named(x, dtype, said):
    with pytest.raises(ValueError, match=said):
        sb.fit("gmm", x, num_clusters=2, dtype=dtype, **QUICK)


@pytest.mark.parametrize(
    ("x", "dtype"),
    [(np.column_stack([X[:, 0], 2020.0 + np.arange(16)]), "float32"), (X * 1e12, "float64")],
)
def test_years_and_large_units_are_fine(x, dtype):
    fitted = sb.fit("gmm", x, num_clusters=2, dtype=dtype, **QUICK)
    assert np.isfinite(fitted.predict_proba(x)).all()


def test_a_fill_value_in_the_data_is_pointed_out():
    x = X.copy()
    x[5, 1] = -999e12
    with pytest.warns(SideBayesWarning, match="x has values .* in row 5; the first is -9.99e\\+14"):
        read_run("gmm", (x,), {"num_clusters": 2}, None)


def test_a_misplaced_decimal_point_is_named():
    x = np.random.default_rng(0).normal(size=(16, 2))
    x[7, 1] = 5000.0
    with pytest.warns(SideBayesWarning, match="in row 7; the first is 5e\\+03 in column 1"):
        read_run("gmm", (x,), {"num_clusters": 2}, None)


def test_columns_with_names_are_named():
    x = pd.DataFrame(X, columns=["a", "b c"])
    far = x.assign(**{"b c": np.where(np.arange(16) == 7, 5e9, X[:, 1])})
    with pytest.warns(SideBayesWarning, match="in row 7; the first is 5e\\+09 in column 'b c'"):
        read_run("gmm", (far,), {"num_clusters": 2}, None)
    with pytest.raises(ValueError, match="at most in column 'b c'; float64 rounds"):
        read_run("gmm", (x.assign(**{"b c": 1e15 + np.arange(16)}),), {"num_clusters": 2}, None)
    said = r"constant features, in columns 'b c'; .* drop them, x.drop\(columns=\['b c'\]\)$"
    with pytest.raises(ValueError, match=said):
        sb.fit("gmm", x.assign(**{"b c": 1.0}), num_clusters=2, **QUICK)
