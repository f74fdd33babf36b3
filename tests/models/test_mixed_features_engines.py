"""Engines on tables of mixed kinds, and what their fits offer."""

from __future__ import annotations

import numpy as np
import pytest
from sidebayes.diagnostics.pictures.report import write_report

import sidebayes as sb

KINDS = ("category:3", "normal", "count", "ordered:5")
OPTIONS = {"num_clusters": 2, "kinds": KINDS, "selection": "sparse", "progress": False}


@pytest.fixture(scope="module")
def table():
    """Two clusters that differ in all columns but the last; a category and a count are missing."""
    rng = np.random.default_rng(0)
    cluster = np.repeat([0, 1], 30)
    category = np.where(
        cluster, rng.choice(3, 60, p=[0.8, 0.1, 0.1]), rng.choice(3, 60, p=[0.1, 0.1, 0.8])
    )
    columns = [
        category,
        rng.normal(4.0 * cluster),
        rng.poisson(np.where(cluster, 9, 2)),
        rng.integers(5, size=60),
    ]
    x = np.column_stack(columns).astype(float)
    x[3, 0] = x[10, 2] = np.nan
    return x, cluster


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(sb.NUTS(num_warmup=150, num_samples=150), marks=pytest.mark.slow),
        sb.EM(num_restarts=4),
        pytest.param(sb.BlockedGibbs(num_warmup=100, num_samples=300), marks=pytest.mark.slow),
        pytest.param(sb.SMC(num_particles=300), marks=pytest.mark.slow),
    ],
    ids=lambda engine: engine.name,
)
def test_engines_find_the_clusters_and_the_missing_values(table, engine, tmp_path):
    x, cluster = table
    fit = sb.fit("feature_saliency", x, engine=engine, truth=cluster, **OPTIONS)
    assert sb.compare({"fit": fit}).frame.loc["fit", "ari"] > 0.9
    found = fit.features().frame["saliency"].to_numpy()
    assert found[:3].min() > found[3]
    filled = fit.imputed().set_index(["row", "feature"])
    assert filled.loc[(3, 0), "level"] == 2
    assert 1 < filled.loc[(10, 2), "mean"] < 4

    drawn = fit.predictive()["posterior_predictive"]["x"].to_numpy()
    assert set(np.unique(drawn[..., 0])) <= {0, 1, 2}
    assert np.all((drawn[..., 2] >= 0) & (drawn[..., 2] == np.round(drawn[..., 2])))
    assert set(np.unique(drawn[..., 3])) <= set(range(5))
    # means of what is drawn are those of the data, to the error of both
    known = ~np.isnan(x)
    gap = drawn.mean(axis=(0, 1, 2)) - np.nanmean(x, axis=0)
    assert np.all(np.abs(gap) < 4 * np.nanstd(x, axis=0) / np.sqrt(known.sum(axis=0)))

    fit.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    assert again.options["kinds"] == KINDS
    np.testing.assert_array_equal(again.labels(), fit.labels())
    write_report({"again": again}, tmp_path / "report.html")
    assert "saliency" in (tmp_path / "report.html").read_text()


def test_rows_drawn_from_the_prior_have_their_kinds(table):
    x, _ = table
    options = {name: value for name, value in OPTIONS.items() if name != "progress"}
    drawn = sb.prior_predictive("feature_saliency", x, num_draws=20, **options)
    rows = drawn["prior_predictive"]["x"].to_numpy()[0]
    assert rows.shape == (20, 60, 4)
    assert set(np.unique(rows[..., 0])) == {0, 1, 2}
    assert np.all((rows[..., 2] >= 0) & (rows[..., 2] == np.round(rows[..., 2])))
    assert set(np.unique(rows[..., 3])) == set(range(5))
    fit = sb.fit("feature_saliency", rows[0], **OPTIONS, engine="em")
    assert np.isfinite(fit.tree["sample_stats"]["lp"].item())
