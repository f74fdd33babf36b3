"""Tests of groups of shapes: the statistics by hand and by R, level, power, labelings, refusals."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

import sidebayes as sb
from sidebayes.studies.group_tests import group_statistics
from sidebayes.studies.group_tests.group_statistics import all_labelings, num_labelings
from tests.support.shapes import Flat, ellipsoids, level_p_values

RNG = np.random.default_rng(0)
STATISTICS = ["goodall", "hotelling", "james"]


def by_hand(x, labels, ridge=0.0):
    """The three statistics from their definitions."""
    groups = np.unique(labels)
    parts = [x[labels == group] for group in groups]
    n, size, count = len(x), x.shape[1], len(groups)
    within = sum((len(p) - 1) * np.cov(p.T) for p in parts) / (n - count)
    apart = [p.mean(axis=0) - x.mean(axis=0) for p in parts]
    between = sum(len(p) * a @ a for p, a in zip(parts, apart, strict=True))
    goodall = between / (count - 1) / np.trace(within)
    inverse = np.linalg.inv(within + ridge * np.eye(size))
    hotelling = sum(len(p) * a @ inverse @ a for p, a in zip(parts, apart, strict=True))
    # James: differences of means, weighted by their own covariances
    weights = [len(p) * np.linalg.inv(np.cov(p.T) + ridge * np.eye(size)) for p in parts]
    means = [p.mean(axis=0) for p in parts]
    centre = np.linalg.solve(sum(weights), sum(w @ m for w, m in zip(weights, means, strict=True)))
    james = sum((m - centre) @ w @ (m - centre) for w, m in zip(weights, means, strict=True))
    return np.array([goodall, hotelling, james])


@pytest.mark.parametrize("sizes", [(9, 12), (8, 14, 10), (9, 9, 8, 11)])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_statistics_are_their_definitions(sizes, ridge):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    x = RNG.normal(size=(len(labels), 5)) * [1, 2, 3, 0.1, 5] + 0.4 * labels[:, None]
    found = sb.group_test(x, labels, ridge=ridge, num_permutations=50)
    np.testing.assert_allclose(found.table["value"], by_hand(x, labels, ridge), rtol=1e-9)
    assert found.table["ridge"].tolist() == [0, ridge, ridge]
    # and of other labelings
    some = np.array([np.random.default_rng(s).permutation(labels) for s in range(5)])
    ridges = dict(zip(STATISTICS, [0, ridge, ridge], strict=True))
    left, values, _ = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    many = group_statistics.GroupStatistics(left * values, np.array(sizes), ridges)(some)
    np.testing.assert_allclose(many, [by_hand(x, one, ridge) for one in some], rtol=1e-9)


def test_the_ridge_of_few_individuals():
    """Coordinates beyond the span of the individuals have no part in the statistic."""
    x = RNG.normal(size=(9, 20))
    labels = np.repeat([0, 1], [4, 5])
    found = sb.group_test(x, labels, ridge=0.5, statistics=["hotelling"])
    parts = x[:4], x[4:]
    pooled = sum((len(p) - 1) * np.cov(p.T) for p in parts) / 7
    d = parts[0].mean(axis=0) - parts[1].mean(axis=0)
    value = 20 / 9 * d @ np.linalg.solve(pooled + 0.5 * np.eye(20), d)
    np.testing.assert_allclose(found.table.loc["hotelling", "value"], value, rtol=1e-9)
    chosen = sb.group_test(x, labels).table["ridge"]
    assert chosen["goodall"] == 0
    assert chosen["hotelling"] == chosen["james"] > 0
    with pytest.raises(
        ValueError, match="ridge = 0, and the covariance of hotelling and james is singular"
    ):
        sb.group_test(x, labels, ridge=0)


@pytest.mark.filterwarnings("ignore:.* covariance is singular, and the p of 'james'")
@pytest.mark.parametrize("axes", [2, 3])
def test_labels_and_similarities_change_nothing(axes):
    """Names of groups, order of individuals, and place, size and turn of each are not asked."""
    rng = np.random.default_rng(axes)
    mean = rng.normal(size=(7, axes))
    x = mean + 0.1 * rng.normal(size=(30, 7, axes))
    x[:12, 0] += 0.1
    labels = np.repeat(["a", "b"], [12, 18])
    found = sb.group_test(x, labels, num_permutations=99)
    swapped = sb.group_test(x, np.repeat(["b", "a"], [12, 18]), num_permutations=99)
    turn = np.linalg.qr(rng.normal(size=(30, axes, axes)))[0]
    turn[:, 0] *= np.linalg.det(turn)[:, None]
    moved = rng.uniform(0.1, 9, (30, 1, 1)) * x @ turn + rng.normal(size=(30, 1, axes))
    order = rng.permutation(30)
    other = sb.group_test(moved[order], labels[order], num_permutations=99)
    for one in (swapped, other):
        np.testing.assert_allclose(one.table["value"], found.table["value"], rtol=1e-7)


def test_all_labelings_of_few():
    labels = all_labelings([4, 6])
    assert len(labels) == num_labelings([4, 6]) == 210
    assert len({tuple(one) for one in labels.tolist()}) == 210
    many = all_labelings([2, 1, 3])
    assert len({tuple(one) for one in many.tolist()}) == len(many) == num_labelings([2, 1, 3]) == 60
    assert all(Counter(one) == {0: 2, 1: 1, 2: 3} for one in many.tolist())
    x = RNG.normal(size=(10, 2))
    groups = np.repeat([0, 1], [4, 6])
    x[:4] += 50
    found = sb.group_test(x, groups, num_permutations=209)
    assert found.is_exact
    assert len(found.distribution) == 210
    assert found.floor == 1 / 210
    np.testing.assert_allclose(found.table.loc[["goodall", "hotelling"], "p"], 1 / 210)
    assert (found.table["error"] == 0).all()
    assert "210 labelings (all), least p 0.0048" in repr(found)
    assert not sb.group_test(x, groups, num_permutations=208).is_exact


def test_groups_of_one_size_may_change_places():
    """Then every value occurs for each order of the groups, and the least p-value is larger."""
    x = RNG.normal(size=(6, 1)) + np.repeat([0, 100, 1000], 2)[:, None]
    found = sb.group_test(x, np.repeat([0, 1, 2], 2), statistics="goodall")
    assert len(found.distribution) == 90
    assert found.floor == 6 / 90
    np.testing.assert_allclose(found.table.loc["goodall", "p"], 6 / 90)


def test_p_values_count_labelings():
    x = RNG.normal(size=(40, 3))
    groups = np.repeat([0, 1], 20)
    found = sb.group_test(x, groups, num_permutations=199)
    for name, row in found.table.iterrows():
        count = (found.distribution[name] >= row["value"]).sum()
        assert row["p"] == (1 + count) / 200
        np.testing.assert_allclose(row["error"], np.sqrt(row["p"] * (1 - row["p"]) / 200))
    assert found.distribution.shape == (199, 3)
    again = sb.group_test(x, groups, num_permutations=199)
    assert again.distribution.equals(found.distribution)
    other = sb.group_test(x, groups, num_permutations=199, seed=1)
    assert not other.distribution.equals(found.distribution)
    exact = sb.group_test(x[:16], groups[12:28], num_permutations=10**5)
    drawn = sb.group_test(x[:16], groups[12:28], num_permutations=3000)
    assert exact.is_exact
    assert not drawn.is_exact
    np.testing.assert_array_less(
        np.abs(exact.table["p"] - drawn.table["p"]), 4 * drawn.table["error"]
    )


def test_parts_of_labelings(monkeypatch):
    """Memory bounds the labelings that are compared at once, and changes nothing."""
    x = RNG.normal(size=(30, 4))
    groups = np.repeat([0, 1, 2], 10)
    whole = sb.group_test(x, groups, num_permutations=500)
    monkeypatch.setattr(group_statistics, "_BYTES", 2**16)
    parts = sb.group_test(x, groups, num_permutations=500)
    np.testing.assert_allclose(parts.distribution, whole.distribution, rtol=1e-10)


def rejections(mode, replicates, seed):
    return int((level_p_values(mode, replicates, seed=seed) <= 0.05).sum())


def test_level_of_shapes_that_know_no_labels():
    """Rejections at 5 % are binomial where labels have not been used (check 22)."""
    assert level_p_values("pooled", 20).min() >= 1 / 200
    low, high = binom.ppf([1e-4, 1 - 1e-4], 600, 0.05)
    assert low <= rejections(None, 600, 1) <= high
    assert low <= rejections("pooled", 600, 2) <= high


def test_labels_leak_into_shapes():
    """Shapes inferred under the labels that are tested reject too often, some 20 % in place of 5 %."""
    assert binom.sf(rejections("naive", 600, 3) - 1, 600, 0.05) < 1e-4


def test_refit_finds_what_the_data_say():
    """Shapes inferred again for each labeling: a function of data and labels, as any statistic is."""
    low, high = binom.ppf([1e-4, 1 - 1e-4], 40, 0.05)
    assert low <= rejections("refit", 40, 4) <= high
    flat = Flat(np.random.default_rng(0), size=4)
    asked = []

    def infer(labels):
        asked.append(tuple(labels.tolist()))
        return flat.infer(labels)

    found = sb.group_test(infer, flat.labels, mode="refit", statistics="goodall", progress=False)
    assert found.is_exact
    assert Counter(asked[1:]).keys() == {tuple(one) for one in all_labelings([4, 4]).tolist()}
    asked.clear()
    sb.group_test(infer, flat.labels, statistics="goodall")
    assert asked == [(0,) * 8]
    naive = sb.group_test(infer, flat.labels, mode="naive", statistics="goodall")
    assert asked[1:] == [tuple(flat.labels.tolist())]
    np.testing.assert_allclose(naive.table["value"], found.table["value"])


@pytest.mark.slow
def test_level_at_length():
    """Check 22: 400 replicates of each mode."""
    assert 0.03 <= rejections("pooled", 400, 5) / 400 <= 0.075
    assert 0.03 <= rejections("refit", 400, 6) / 400 <= 0.075
    assert rejections("naive", 400, 7) / 400 > 0.07


@pytest.mark.parametrize("noise", [0.0, 0.002])
def test_ellipsoids_differ_for_any_ridge(noise):
    """Check 23, the dossier's E-H3."""
    x, labels = ellipsoids(noise=noise, seed=1)
    for ridge in (1e-3, 1e-4, 1e-7, 1e-10):
        found = sb.group_test(
            x, labels, ridge=ridge, statistics=["hotelling"], num_permutations=199
        )
        assert found.table.loc["hotelling", "p"] <= 0.01
    assert sb.group_test(x, labels, num_permutations=199).table["p"].max() <= 0.01


def test_groups_by_covariate_and_missing_landmarks():
    x, labels = ellipsoids(seed=2)
    marks = sb.Landmarks.from_array(x, covariates={"kind": labels})
    whole = sb.group_test(marks, "kind", num_permutations=99)
    np.testing.assert_allclose(
        sb.group_test(x, labels, num_permutations=99).distribution, whole.distribution
    )
    x[3, 5] = np.nan
    with pytest.warns(sb.SideBayesWarning, match="1 landmarks are missing"):
        less = sb.group_test(x, labels, num_permutations=99)
    np.testing.assert_allclose(
        less.table.loc["goodall", "value"], whole.table.loc["goodall", "value"], rtol=0.1
    )
    assert whole.sizes.to_dict() == {0: 20, 1: 20}


def test_a_group_of_one():
    x, labels = RNG.normal(size=(9, 2)), np.array([0] * 8 + [1])
    with pytest.warns(sb.SideBayesWarning, match="'james' is left out"):
        found = sb.group_test(x, labels)
    assert found.table.index.tolist() == STATISTICS[:2]
    assert len(found.distribution) == 9
    with pytest.raises(ValueError, match=r"groups \['1'\] have one individual each; leave"):
        sb.group_test(x, labels, statistics=["james"])


POOLED = (
    "the p of {} is for equal covariances, and not to be used here, at any size; 'james' is valid"
)
SMALL = (
    "'a' has 8 individuals for 3 coordinates, and with fewer than 5 per coordinate equal means are"
)


@pytest.mark.parametrize(
    ("sizes", "sd", "asked", "said"),
    [
        (
            (8, 24),
            4.0,
            None,
            [POOLED.format("'goodall' and 'hotelling'"), f"; group {SMALL}", "'james'; take"],
        ),
        ((8, 24), 4.0, ["james"], ["groups 'a' and 'b' differ more than 3-fold: group " + SMALL]),
        (
            (3, 24),
            1.0,
            None,
            ["3 individuals for 3 coordinates, so that its own covariance is singular"],
        ),
        ((15, 24), 4.0, None, [POOLED.format("'goodall' and 'hotelling'")]),
        ((40, 120), 0.25, ["goodall"], ["groups 'b' and 'a' differ", POOLED.format("'goodall'")]),
        ((15, 15, 15), 4.0, ["hotelling"], [POOLED.format("'hotelling'")]),
        ((15, 24), 4.0, ["james"], []),
        ((15, 15), 4.0, None, []),
        ((8, 8), 4.0, ["goodall"], []),
        ((8, 8), 4.0, ["hotelling"], [SMALL, "often by 'hotelling'; take"]),
        ((1, 8), 1.0, ["goodall"], []),
        ((8, 24), 1.0, None, []),
    ],
)
def test_statistics_that_do_not_keep_their_level(sizes, sd, asked, said):
    """Where `benchmarks/group_level.py` finds equal means rejected too often, or a covariance is singular."""
    labels = np.repeat(["a", "b", "c"][: len(sizes)], sizes)
    x = np.random.default_rng(4).normal(size=(len(labels), 3))
    x[labels == "a"] *= sd
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sb.group_test(x, labels, statistics=asked, num_permutations=9)
    told = [str(one.message) for one in caught]
    assert len(told) == bool(said)
    assert all(part in told[0] for part in said)


def test_variances_that_differ_by_chance_are_no_doubt():
    told = []
    for seed in range(100):
        x = np.random.default_rng(seed).normal(size=(12, 2))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sb.group_test(x, [0] * 4 + [1] * 8, statistics=["goodall"], num_permutations=1)
        told += caught
    assert len(told) < 5


@pytest.mark.filterwarnings(
    "ignore:.*equal means are rejected too often by 'hotelling' and 'james'"
)
def test_hotelling_is_james_for_two_groups_of_one_size():
    x = np.random.default_rng(0).normal(size=(24, 3)) * np.repeat([4, 1], 12)[:, None]
    found = sb.group_test(x, np.repeat([0, 1], 12), num_permutations=99)
    values = found.distribution
    np.testing.assert_allclose(values["hotelling"], values["james"], rtol=1e-9)
    few = sb.group_test(x[8:16], np.repeat([0, 1], 4), ridge=0.3, statistics=STATISTICS[1:])
    np.testing.assert_allclose(few.distribution["hotelling"], few.distribution["james"], rtol=1e-9)


X, LABELS = RNG.normal(size=(8, 5, 2)), [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"groups": [0] * 8}, "1 groups with individuals; at least two"),
        ({"groups": range(8)}, "every group has one individual"),
        ({"groups": [0] * 4 + [None] * 4}, "individual 4 has no group"),
        ({"groups": [0, 0, 1, 1]}, "8 individuals and groups has 4"),
        ({"groups": [0] * 5}, "8 individuals and groups has 5"),
        ({"groups": "sex"}, "'sex' is no covariate"),
        ({"shapes": np.zeros(8)}, r"shapes has shape \(8,\)"),
        ({"shapes": np.full((8, 2), np.nan)}, r"shapes\[0, 0\] = nan, the first of 16"),
        ({"shapes": np.ones((8, 3))}, "all shapes are the same"),
        ({"shapes": X[:, :2]}, "2 landmarks in 2 dimensions, which have no shape"),
        ({"statistics": ["f"]}, r"expected some of \['goodall'"),
        ({"mode": "pooled"}, "for shapes that a function infers, and these are given"),
        ({"mode": "best"}, r"mode = 'best'; expected one of"),
        ({"ridge": -1}, "ridge = -1; expected"),
        ({"num_permutations": 0}, "num_permutations = 0"),
    ],
)
def test_refusals(change, match):
    with pytest.raises(ValueError, match=match):
        sb.group_test(**{"shapes": X, "groups": LABELS} | change)


@pytest.mark.filterwarnings("ignore:.* covariance is singular, and the p of 'james'")
def test_result_is_shown():
    found = sb.group_test(X, LABELS)
    assert repr(found).startswith("GroupTest(0 4, 1 4; 70 labelings (all)")
    assert "goodall" in found._repr_html_()
    figure = found.plot()
    assert [axis.get_title().split(",")[0] for axis in figure.axes] == STATISTICS


R_SHAPES = {
    ("apes", "gorf", "gorm"): (22.238292, 26.452336, 391.583178),
    ("apes", "panf", "panm"): (2.591277, 1.530012, 23.45605),
    ("apes", "gorf", "pongom"): (63.14093, 104.9259, 1553.796),
    ("mice_t2", "l", "s"): (18.27307, 15.51118, 147.5658),
}
"""G, H and J of `testmeanshapes(A, B, resamples = 0)`, shapes 1.2.7 in R 4.2.2."""


@pytest.mark.data
@pytest.mark.parametrize("case", R_SHAPES)
def test_statistics_of_r(case):
    name, *kinds = case
    marks = sb.read_landmarks(Path(os.environ["SIDEBAYES_DATA"]) / f"shape_{name}.csv")
    marks = marks.take(marks.covariates["label"].isin(kinds).to_numpy())
    found = sb.group_test(marks, "label", num_permutations=99)
    value = found.table["value"]
    n, q = len(marks), 2 * marks.num_landmarks - 4
    as_f = value["hotelling"] * (n - q - 1) / ((n - 2) * q)
    np.testing.assert_allclose([value["goodall"], as_f, value["james"]], R_SHAPES[case], rtol=2e-6)


@pytest.mark.data
@pytest.mark.parametrize(("name", "kinds", "value"), [("brains3d", "fm", 0.8832249)])
def test_goodall_of_r_in_space(name, kinds, value):
    path = Path(os.environ["SIDEBAYES_DATA"]) / f"shape_{name}.csv"
    table = pd.read_csv(path)
    x = table.filter(regex="^[xyz]").to_numpy().reshape(len(table), -1, 3)
    found = sb.group_test(x, table["label"], num_permutations=99)
    np.testing.assert_allclose(found.table.loc["goodall", "value"], value, rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_copies_of_one_shape_are_refused():
    """Also where they were scaled and turned, which leaves rounding."""
    one = np.random.default_rng(0).normal(size=(8, 2))
    turn = np.array([[np.cos(2.0), -np.sin(2.0)], [np.sin(2.0), np.cos(2.0)]])
    groups = np.repeat([0, 1], [12, 8])
    for other in (3 * one, one @ turn):
        shapes = np.where(groups[:, None, None] == 0, one, other)
        with pytest.raises(ValueError, match="all shapes are the same"):
            sb.group_test(shapes, groups)
    groups = np.repeat([0, 1], [25, 15])
    with pytest.raises(ValueError, match="'james' has a singular covariance"):
        sb.group_test(np.ones((40, 3)) + groups[:, None], groups)
