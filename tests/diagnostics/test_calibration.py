"""Ranks are uniform exactly when posteriors are right."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import kstest
from sidebayes.diagnostics.calibration import (
    Calibration,
    functionals,
    is_told,
    rank_of_truth,
    uniformity,
)

RNG = np.random.default_rng(0)


def ranks(size=200, num_draws=50, spread=1.0, shift=0.0, correlation=0.0, seed=0):
    """Ranks of conjugate normal posteriors: truth N(0, 1), one datum N(truth, 1)."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(size):
        truth = rng.normal()
        mean = (truth + rng.normal()) / 2
        noise = rng.normal(size=num_draws)
        for k in range(1, num_draws):
            noise[k] = correlation * noise[k - 1] + np.sqrt(1 - correlation**2) * noise[k]
        draws = pd.DataFrame({"f": mean + shift + spread * np.sqrt(0.5) * noise})
        found.append(rank_of_truth(pd.DataFrame({"f": [truth]}), draws, num_chains=1))
    return pd.DataFrame(found)


def test_exact_draws_are_calibrated():
    result = Calibration("exact", ranks(), level=1e-3)
    assert result.calibrated
    assert "no fault found in 200" in result.verdict
    table = result.table.loc["f"]
    error = np.sqrt(0.9 * 0.1 / 200)
    assert abs(table.coverage_90 - 0.9) < 4 * error
    assert "no fault" in str(result)


def test_overconfidence_is_found():
    result = Calibration("narrow", ranks(spread=0.6))
    assert not result.calibrated
    assert "90 % intervals hold the truth" in result.verdict
    assert result.table.loc["f"].coverage_90 < 0.8


def test_small_p_values_are_not_rounded_to_zero():
    result = Calibration("narrow", ranks(spread=0.4))
    small = f"{result.table.loc['f'].p_value:.2g}"
    assert 0 < float(small) < 5e-4
    assert small in str(result).splitlines()[-1]


def test_bias_is_found():
    result = Calibration("biased", ranks(shift=0.4))
    assert "the mean rank of the truth is" in result.verdict


def test_correlated_draws_are_thinned():
    """Without thinning, ranks among so few effective draws pile up at both ends."""
    result = Calibration("correlated", ranks(num_draws=400, correlation=0.95, size=100), level=1e-3)
    assert result.calibrated


def test_ties_are_broken_evenly():
    truth, found = pd.DataFrame({"f": [1.0], "g": [0.0]}), []
    for seed in range(300):
        noise = np.random.default_rng(seed).normal(size=20)
        draws = pd.DataFrame({"f": np.ones(20), "g": noise})
        found.append(rank_of_truth(truth, draws, num_chains=2)["f"])
        assert rank_of_truth(truth, draws, num_chains=2)["f"] == found[-1]
    assert kstest(found, "uniform").pvalue > 1e-3
    assert len(set(found)) == 300


def test_what_equals_the_truth_in_every_draw_is_named_and_not_judged():
    truth = pd.DataFrame({"f": [1.0], "g": [0.0]})
    draws = pd.DataFrame({"f": np.ones(20), "g": np.r_[np.zeros(19), 1e-6]})
    assert is_told(truth, draws).to_dict() == {"f": False, "g": True}
    text = str(Calibration("exact", ranks(size=30), untold=("entropy", "occupied")))
    assert text.endswith("Left out, equal to the truth in every draw: entropy, occupied.")


def test_p_values_of_uniform_ranks_are_uniform():
    values = [uniformity(RNG.random(40)) for _ in range(300)]
    assert abs(np.mean(np.array(values) < 0.1) - 0.1) < 4 * np.sqrt(0.09 / 300)


def test_failures_are_reported_and_too_many_are_no_pass():
    good = pd.DataFrame({"f": RNG.random(50)})
    assert "2 of 52 fits failed" in Calibration("few", good, failed=2).verdict
    many = Calibration("many", good, failed=20)
    assert not many.calibrated
    assert "too many fits failed" in many.verdict


def test_plot_marks_what_is_off():
    figure = Calibration("narrow", ranks(spread=0.6, size=60)).plot()
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["f"]
    figure.canvas.draw()
    axis = figure.axes[0]
    assert not axis.get_legend().get_window_extent().overlaps(axis.get_window_extent())
    assert Calibration("exact", ranks(size=60), level=1e-3).plot().axes[0].get_legend() is None


def test_functionals_do_not_see_how_clusters_are_numbered():
    rng = np.random.default_rng(4)
    draws = {
        "share": rng.dirichlet(np.ones(3), (2, 5)),
        "mean": rng.normal(size=(2, 5, 3, 2)),
        "rate": rng.random((2, 5)),
        "slope": rng.normal(size=(2, 5, 2)),
    }
    dims = {"share": ("clusters",), "mean": ("clusters", "features"), "rate": (), "slope": ("d",)}
    prob = rng.dirichlet(np.ones(3), (2, 5, 8))
    value, links = rng.normal(size=(2, 5)), np.array([[0, 1], [2, 3], [4, 5]])
    given = dims, {"share": "mixing_weights"}, {}
    found = functionals(draws, *given, prob, value, links)
    assert set(found) == {
        "log_likelihood", *(f"sorted_weights[{k}]" for k in range(3)), "rate", "slope[0]", "slope[1]",
        "occupied", "entropy", "same_linked[0]", "same_linked[1]",
        "same_sampled[0]", "same_sampled[1]",
    }  # fmt: skip
    ranked = np.sort(draws["share"], axis=-1)[..., ::-1].reshape(10, 3)
    np.testing.assert_allclose(found[[f"sorted_weights[{k}]" for k in range(3)]], ranked)
    np.testing.assert_allclose(
        found["same_linked[1]"], (prob[:, :, 2] * prob[:, :, 3]).sum(axis=-1).ravel()
    )
    order = rng.permuted(np.tile(np.arange(3), (2, 5, 1)), axis=2)
    moved = draws | {"share": np.take_along_axis(draws["share"], order, axis=2)}
    turned = np.take_along_axis(prob, order[:, :, None], axis=3)
    pd.testing.assert_frame_equal(functionals(moved, *given, turned, value, links), found)
    bare = functionals({"rate": draws["rate"]}, dims, {}, {}, None, value, links)
    assert list(bare) == ["log_likelihood", "rate"]


def test_entries_of_symmetric_matrices_count_once():
    root = np.random.default_rng(0).normal(size=(2, 5, 3, 3))
    draws = {"covariance": root @ root.swapaxes(-1, -2), "slopes": root}
    dims = dict.fromkeys(draws, ("a", "b"))
    found = functionals(draws, dims, {}, {}, None, np.zeros((2, 5)), np.zeros((0, 2), int))
    assert [f"covariance[{k}]" for k in (0, 1, 2, 4, 5, 8)] == [n for n in found if n[0] == "c"]
    assert sum(name.startswith("slopes") for name in found) == 9
