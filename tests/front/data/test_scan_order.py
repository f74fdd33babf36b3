"""Tables on disk whose rows have an order, by class: fits do not depend on it, or say that they do."""

from __future__ import annotations

import numpy as np
import pytest
from sidebayes.guides.engines.expectation_maximisation import streamed_data

import sidebayes
from sidebayes import streams
from tests.support.draws import at_one

RNG = np.random.default_rng(2)
CLASSES = np.sort(RNG.integers(3, size=12_000))
X = RNG.normal(4.0 * CLASSES[:, None], 1.0, (12_000, 2))
HEIGHT = -3.97
"""Mean log density of the rows; it is -3.93 at the mode."""
GIVEN = {"num_clusters": 3, "covariance": "diagonal", "progress": False}


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Six blocks; a tenth of the rows is the sample."""
    monkeypatch.setattr("sidebayes.data.scan._FEW", 4000)
    monkeypatch.setattr(streams, "_SAMPLE", 1200)

    def written(rows):
        np.save(tmp_path / "points.npy", rows)
        return sidebayes.scan(tmp_path / "points.npy")

    return written


def means(found):
    return np.sort(found.params["mean"][:, 0])


@pytest.fixture
def engine():
    return sidebayes.StochasticEM(batch_size=500, tol=0.01)


def test_sorted_rows_are_mixed(table, engine):
    """Classes in a row make every batch one class, if batches are neighbouring rows."""
    found = sidebayes.fit("gmm", table(X), engine=engine, **GIVEN)
    assert found.verdict[0] == "good"
    expected = [X[one == CLASSES, 0].mean() for one in range(3)]
    np.testing.assert_allclose(means(found), expected, atol=0.02)
    assert found.log_prob(X).mean() > HEIGHT


def test_sorted_rows_that_cannot_be_mixed_end_at_the_mode(table, engine, monkeypatch):
    """EM over all rows, which takes over from the epochs, does not depend on their order."""
    monkeypatch.setattr(streamed_data, "_POOL", 1)
    found = sidebayes.fit("gmm", table(X), engine=engine, **GIVEN)
    assert found.verdict[0] == "good"
    assert found.log_prob(X).mean() > HEIGHT


def test_an_order_that_moves_the_result_is_said(table, engine, monkeypatch):
    """Blocks that are too large to be mixed with others; epochs of them end near another mode."""
    monkeypatch.setattr(streamed_data, "_POOL", 1)
    rng = np.random.default_rng(2)
    z = np.sort(rng.integers(3, size=12_000))
    rows = rng.normal(0.0, 4.0, (3, 2))[z] + rng.normal(size=(12_000, 2))
    found = sidebayes.fit("gmm", table(rows), engine=engine, **GIVEN)
    level, said = found.verdict
    assert level == "bad"
    assert found.log_prob(rows).mean() < -3.9  # it is -3.805 at the mode
    assert "rows seem to be sorted" in said
    assert "shuffle the rows" in said
    assert "fewer clusters" not in said


def test_rows_in_no_order_need_no_mixing(table, engine, monkeypatch):
    monkeypatch.setattr(streamed_data, "_POOL", 1)
    shuffled = np.random.default_rng(0).permutation(X)
    other = sidebayes.fit("gmm", table(shuffled), engine=engine, **GIVEN)
    assert other.verdict[0] == "good", other.verdict
    assert other.log_prob(X).mean() > HEIGHT


@pytest.mark.parametrize(("numbers", "pools"), [(10**9, 1), (8000, 3), (1, 6)])
def test_pools_reach_over_the_whole_table(table, numbers, pools, monkeypatch):
    monkeypatch.setattr(streamed_data, "_POOL", numbers)
    seen = streamed_data.look_over(table(X), 100, 0, progress=False)
    found = streamed_data._pools(seen)
    assert len(found) == pools
    assert sorted(block for pool in found for block in pool) == list(range(6))
    rows = np.concatenate([streamed_data._mixed(seen, found, n) for n in range(pools)])
    np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(X, axis=0))
    apart = [np.ptp(one) for one in found]
    assert min(apart) >= 6 - pools


def test_a_comparison_says_that_a_fit_keeps_a_sample(table, engine):
    """Beside a fit of all rows in memory, whose posterior is the same."""
    few = X[::4]
    read = sidebayes.fit("gmm", table(few), engine=engine, **GIVEN)
    held = sidebayes.fit("gmm", few, engine=at_one(read.params), **GIVEN)
    text = str(sidebayes.compare({"read": read, "held": held}))
    assert "among read and held, as read is described by a sample of the rows" in text
    assert "whose posteriors are of different" not in text
