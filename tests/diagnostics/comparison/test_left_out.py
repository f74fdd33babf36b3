"""Scores of units left out stand in a column only where they can be used and compared."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from sidebayes.diagnostics.comparison.compare import compare_fits

import sidebayes
from tests.diagnostics.comparison.test_reference import sampled


def with_unit(fit, unit):
    constant = fit.tree["constant_data"].to_dataset().assign(unit=("points", unit))
    fit.tree["constant_data"] = xr.DataTree(constant)
    return fit


def test_a_score_with_high_k_is_not_to_be_used():
    wide = sampled(1)
    terms = wide.tree["log_likelihood"]["x"]
    terms[..., 3] = -np.random.default_rng(0).exponential(20.0, size=terms.shape[:2])
    table = compare_fits({"wide": wide, "sound": sampled(2)})
    assert np.isnan(table.frame.loc["wide", "elpd_loo"])
    assert np.isfinite(table.frame.loc["sound", "elpd_loo"])
    assert table.frame.loc["wide", "bad_k"] == 1 / 36
    for text in (str(table), table.html()):
        assert "do not use" in text
        assert "of wide (1 of 36 units), where Pareto k is too high; .loo(refit=True)" in text
    alone = compare_fits({"wide": wide})
    assert "do not use" in str(alone)


def test_a_score_of_a_run_that_failed_is_said_not_to_count():
    failed = sampled(1)
    failed.tree["fit_info"].attrs["converged"] = 0
    table = compare_fits({"failed": failed, "sound": sampled(2)})
    assert table.frame.loc["failed", ["trust", "bad_k"]].tolist() == ["no", 0]
    assert "The LOO elpd of failed is of a run that failed, and does not count" in str(table)
    assert "of sound" not in str(table.notes)
    parts = table.frame[["compile_s", "run_s", "search_s", "other_s"]].sum(axis=1)
    np.testing.assert_allclose(parts, table.frame["total_s"])


def test_a_score_whose_k_has_no_value_is_not_to_be_used():
    wild = sampled(1)
    terms = wild.tree["log_likelihood"]["x"]
    terms[:] = -(10.0 ** np.random.default_rng(0).uniform(0, 9, size=terms.shape))
    with pytest.warns(sidebayes.SideBayesWarning, match="Pareto k is above"):
        found = wild.loo()
    assert np.isnan(found.pareto_k).any()
    assert found.warning
    table = compare_fits({"wild": wild, "sound": sampled(2)})
    assert table.frame.loc["wild", "bad_k"] == 1
    assert np.isnan(table.frame.loc["wild", "elpd_loo"])


def test_scores_of_other_data_or_units_are_said_not_to_compare():
    other = sampled(2)
    other.tree["observed_data"]["x"] = np.log(1 + other.tree["observed_data"]["x"] ** 2)
    table = compare_fits({"a": sampled(1), "b": other})
    assert "cannot be compared between a (36 units) and b (36 units): they score other data" in str(
        table
    )
    points = np.arange(40)
    rows, sets = with_unit(sampled(1), points), with_unit(sampled(2), points // 2)
    table = compare_fits({"rows": rows, "sets": sets})
    assert "they score other units; .loo(unit='row') scores rows" in str(table)
    table = compare_fits({"a": sampled(1), "b": sampled(2)})
    assert "cannot be compared" not in str(table)


def normal(x, scaled=False):
    x = (x - x.mean()) / x.std() if scaled else x
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    with numpyro.plate("points", len(x)):
        numpyro.sample("x", dist.Normal(mean, 3.0).expand([1]).to_event(1), obs=x)


def test_data_that_the_model_changes_are_other_data():
    x = np.random.default_rng(0).normal(4.0, 3.0, size=(30, 1))
    given = {"engine": "laplace", "progress": False}
    fits = {
        "plain": sidebayes.fit(normal, x, **given),
        "scores": sidebayes.fit(normal, x, scaled=True, **given),
        "single": sidebayes.fit(normal, x, dtype="float32", **given),
    }
    notes = compare_fits(fits).notes
    assert any(
        "between (plain and single) (30 units) and scores (30 units)" in note for note in notes
    )
