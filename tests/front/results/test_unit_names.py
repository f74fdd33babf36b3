"""Scores of units name the rows or subjects of each unit."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from arviz_stats import compare

import sidebayes as sb
from sidebayes.results.scores import unit_names as naming
from tests.support.draws import Told

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.normal(-3, 1, (8, 1)), RNG.normal(3, 1, (8, 1))])
PRIOR = sb.GaussianPrior(np.zeros(1), 0.05, 4.0, np.eye(1))


def linked(pair, seed=0):
    """A fit whose draws are given."""
    links, shape = sb.Links.must_link([pair], weight=2.0), (1, 100)
    mean = np.random.default_rng(seed).normal([[-3.0], [3.0]], 0.2, (*shape, 2, 1))
    draws = {
        "weights": np.full((*shape, 2), 0.5),
        "mean": mean,
        "covariance": np.ones((*shape, 2, 1, 1)),
    }
    given = {"prior": PRIOR, "engine": Told(draws), "progress": False}
    return sb.fit("ppc", X, links, num_clusters=2, **given)


@pytest.fixture(scope="module")
def fits():
    return linked([0, 1]), linked([5, 2])


@pytest.mark.filterwarnings("ignore::sidebayes.SideBayesWarning")
def test_rows_of_every_unit_are_named(fits):
    first, second = fits
    alone = [str(row) for row in range(16)]
    for score in (first.loo(), first.kfold(2, progress=False)):
        assert score.elpd_i["unit"].to_numpy().tolist() == ["0+1", *alone[2:]]
    found = second.kfold(2, progress=False)
    assert found.elpd_i["unit"].to_numpy().tolist() == ["0", "1", "2+5", "3", "4", *alone[6:]]
    assert found.p_kfold_i["unit"].equals(found.elpd_i["unit"])
    by_row = second.loo(unit="row")
    assert by_row.elpd_i["unit"].to_numpy().tolist() == alone
    assert by_row.pareto_k["unit"].equals(by_row.elpd_i["unit"])


@pytest.mark.filterwarnings("ignore::sidebayes.SideBayesWarning")
def test_other_units_are_refused_by_an_exact_alignment(fits):
    first, second = (fit.kfold(2, progress=False) for fit in fits)
    assert first.n_data_points == second.n_data_points
    with pytest.raises(ValueError, match="exact"):
        xr.align(first.elpd_i, second.elpd_i, join="exact")
    assert (first.elpd_i - second.elpd_i).sizes == {"unit": 12}
    again = linked([0, 1], seed=1).kfold(2, progress=False)
    table = compare({"a": first, "b": again}, round_to="none")
    gap = float(np.abs((first.elpd_i - again.elpd_i).sum()))
    assert table["elpd_diff"].abs().max() == pytest.approx(gap)


def test_subjects_are_named_and_dimensions_told_apart(monkeypatch):
    monkeypatch.setattr(naming, "coordinates", lambda run: run.names)
    run = SimpleNamespace(names={"subjects": np.array(["ann", "bob", "eve"])})
    joined, rows = np.array([0, 1, 0]), np.arange(2)
    assert naming.unit_names(run, {"subjects": joined}).tolist() == ["ann+eve", "bob"]
    both = naming.unit_names(run, {"subjects": joined, "rows": rows})
    assert both.tolist() == ["subjects ann+eve", "subjects bob", "rows 0", "rows 1"]
