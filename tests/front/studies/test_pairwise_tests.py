"""Tests of all pairs of groups: each is the test of the pair, and p-values are adjusted."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

import sidebayes as sb

GROUPS = np.repeat(["a", "b", "c", "d"], 8)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 2)) + 0.1 * RNG.normal(size=(32, 6, 2))
X[GROUPS == "d", 0] += 0.1
GIVEN = {"num_permutations": 19, "statistics": ["goodall", "hotelling"]}


@pytest.mark.parametrize(("adjustment", "theirs"), [("holm", "holm"), ("fdr", "fdr_by")])
def test_p_values_are_those_of_each_pair_and_adjusted_over_pairs(adjustment, theirs):
    names = [f"s{number}" for number in range(32)]  # s10 comes before s2
    marks = sb.Landmarks.from_array(X, subjects=names, covariates={"group": GROUPS})
    found = sb.pairwise_tests(marks, "group", adjustment=adjustment, **GIVEN)
    assert len(found) == 12
    assert found.index.names == ["first", "second", "statistic"]
    pair = marks.take(marks.covariates["group"].isin(["b", "d"]).to_numpy())
    alone = sb.group_test(pair, "group", **GIVEN).table
    np.testing.assert_array_equal(found.loc["b", "d"]["p"], alone["p"])
    np.testing.assert_array_equal(found.loc["b", "d"]["value"], alone["value"])
    for statistic in GIVEN["statistics"]:
        own = found.xs(statistic, level="statistic")
        expected = multipletests(own["p"], method=theirs)[1]
        np.testing.assert_allclose(own["adjusted"], expected)
    assert (found["adjusted"] >= found["p"]).all()
    plain = sb.pairwise_tests(X, GROUPS, adjustment="none", **GIVEN)
    np.testing.assert_array_equal(plain["adjusted"], plain["p"])
    np.testing.assert_allclose(plain["value"], found["value"])


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="adjustment = 'tukey'; expected one of"):
        sb.pairwise_tests(X, GROUPS, adjustment="tukey")
    with pytest.raises(TypeError, match="shapes is a function"):
        sb.pairwise_tests(lambda labels: X, GROUPS)
    with pytest.raises(ValueError, match="32 individuals and groups has 31"):
        sb.pairwise_tests(X, GROUPS[1:])
    alone = np.where(np.arange(32) == 0, "z", GROUPS)
    alone[1] = "y"
    with pytest.raises(ValueError, match=r"groups \['y', 'z'\] have one individual each"):
        sb.pairwise_tests(X, alone)


@pytest.mark.filterwarnings("ignore:.* covariance is singular, and the p of 'james'")
def test_a_group_of_one_is_named_once():
    groups = np.repeat(["a", "b", "z"], [8, 8, 1])
    with pytest.warns(sb.SideBayesWarning) as told:
        found = sb.pairwise_tests(X[:17], groups, num_permutations=19)
    told = [one for one in told if "covariance is singular" not in str(one.message)]
    assert len(told) == 1
    assert "group 'z' has one individual" in str(told[0].message)
    assert "out of its 2 pairs, and its p-values are adjusted over the other 1" in str(
        told[0].message
    )
    assert found.xs("james", level="statistic").index.tolist() == [("a", "b")]
    assert len(found) == 7
    with pytest.raises(ValueError, match=r"groups \['z'\] have one individual each; leave 'james'"):
        sb.pairwise_tests(X[:17], groups, statistics=["james"])
