"""Coordinate ascent over tables on disk, against coordinate ascent in memory."""

from __future__ import annotations

import numpy as np
import pytest
from sidebayes.guides.engines.variational import streamed_ascent

import sidebayes
from sidebayes import streams
from tests.support.draws import Asked, Asking

FEW = {"num_clusters": 3, "covariance": "diagonal", "progress": False}
ENGINE = sidebayes.CoordinateAscent(num_restarts=3, num_draws=400)
CENTRES = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 5.0]])


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return CENTRES[rng.integers(3, size=900)] + rng.normal(size=(900, 2))


@pytest.fixture(scope="module")
def table(rows, tmp_path_factory):
    """Nine hundred rows in blocks of three hundred and batches of one hundred, of which 200 are kept."""
    path = tmp_path_factory.mktemp("table") / "points.npy"
    np.save(path, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidebayes.data.scan._FEW", 600)
        patch.setattr(streams, "_SAMPLE", 200)
        patch.setattr(streamed_ascent, "_ROWS", 100)
        yield sidebayes.scan(path)


@pytest.fixture(scope="module")
def found(table):
    return sidebayes.fit("gmm", table, engine=ENGINE, **FEW)


def by_mean(draws):
    """Means and weights of the clusters, in one order."""
    mean, weights = (np.asarray(draws[name]).mean(axis=(0, 1)) for name in ("mean", "weights"))
    order = np.lexsort(np.round(mean).T)
    return mean[order], weights[order]


def test_factors_are_those_of_all_rows(found, rows):
    """The ascent in memory is that of the engine alone, whose fit would derive more."""
    with pytest.raises(Asked) as asked:
        sidebayes.fit("gmm", rows, engine=Asking(), **FEW)
    with found.run.precision:
        expected = ENGINE.run(asked.value.problem, progress=False)
    assert "200 of 900 points" in repr(found)
    assert found.run.sample_of == 900
    # both stop with next to nothing to gain, at the same bound
    assert found.log_evidence.kind == "bound"
    assert found.log_evidence.value == pytest.approx(expected.log_evidence.value, rel=1e-7)
    history = found.objective[0]
    assert np.all(np.diff(history) >= -1e-9 * np.abs(history[1:]))
    assert history[-1] == found.log_evidence.value
    both = found.tree["posterior"], expected.draws
    for ours, theirs in zip(*map(by_mean, both), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.02)  # draws of factors
    deviations = [np.asarray(draws["mean"])[0].std(axis=0).mean() for draws in both]
    assert deviations[0] == pytest.approx(deviations[1], rel=0.1)


def test_what_is_of_a_sample_is_said(found, table, tmp_path):
    assert found.verdict[0] == "caution"
    assert "was not looked at" in found.verdict[1]
    with pytest.raises(ValueError, match="loo needs all 900 rows"):
        found.loo()
    with pytest.raises(ValueError, match="kfold needs all 900 rows"):
        found.kfold(2)
    assert found.predict(table).shape == (900,)
    found.save(tmp_path / "fit.nc")
    loaded = sidebayes.load(tmp_path / "fit.nc")
    again = sidebayes.fit("gmm", table, engine=ENGINE, init=loaded, **FEW)
    assert again.log_evidence.value == pytest.approx(found.log_evidence.value, rel=1e-7)


def test_a_table_that_is_kept_whole_is_like_an_array(rows, tmp_path, monkeypatch):
    """Of as many rows as `found` keeps, whose programs are shared."""
    monkeypatch.setattr("sidebayes.data.scan._FEW", 100)
    np.save(tmp_path / "few.npy", rows[:200])
    table = sidebayes.scan(tmp_path / "few.npy")
    found, expected = (sidebayes.fit("gmm", x, engine=ENGINE, **FEW) for x in (table, rows[:200]))
    assert not found.run.sample_of
    assert found.log_evidence == expected.log_evidence
    assert "k-hat" in found.verdict[1]


def test_a_checkpoint_goes_on_after_a_pass(found, table, tmp_path, monkeypatch):
    expected, given = found, FEW | {"engine": ENGINE}
    number, whole, calls = expected.objective.shape[1], streamed_ascent.at_rest, []
    assert number > 3

    def breaks(*values):
        calls.append(values)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*values)

    kept = given | {"checkpoint": tmp_path / "state", "checkpoint_every": 0}
    with monkeypatch.context() as patch:
        patch.setattr(streamed_ascent, "at_rest", breaks)
        with pytest.raises(KeyboardInterrupt):
            sidebayes.fit("gmm", table, **kept)
    monkeypatch.setattr(streamed_ascent, "at_rest", lambda *v: calls.append(v) or whole(*v))
    found = sidebayes.fit("gmm", table, **kept)
    assert len(calls) == 3 + number - 2  # two passes were kept
    np.testing.assert_array_equal(found.params["mean"], expected.params["mean"])


def test_what_needs_all_rows_is_refused(table, monkeypatch):
    given = {"num_clusters": 2, "engine": "cavi", "progress": False}
    links = sidebayes.Links.from_pairs([(0, 1)], [True])
    with pytest.raises(ValueError, match="neither links"):
        sidebayes.fit("ppc", table, links, **given)
    plan = streamed_ascent.plan_factors

    def with_a_point(problem):
        return plan(problem)._replace(rest=("weights",), lacking=("no reason",))

    monkeypatch.setattr(streamed_ascent, "plan_factors", with_a_point)
    with pytest.raises(ValueError, match=r"weights have none \(no reason\); pass an array"):
        sidebayes.fit("gmm", table, **given)
