"""Distances of posteriors with known answers, and what the comparison concludes from them."""

import numpy as np
import pytest
from scipy.stats import norm
from sidebayes.diagnostics.comparison.compare import compare_fits
from sidebayes.diagnostics.symmetry.distance import comparable, farthest, wasserstein

from tests.diagnostics.fakes import FakeFit, make_tree

DRAWS = norm.ppf((np.arange(4000) + 0.5) / 4000)


@pytest.mark.parametrize(
    ("other", "distance"),
    [
        (DRAWS, 0.0),
        (DRAWS + 0.7, 0.7),
        (0.5 * DRAWS, 0.5 * np.sqrt(2 / np.pi)),
        (np.zeros(7), np.sqrt(2 / np.pi)),
    ],
)
def test_wasserstein_of_normals(other, distance):
    assert wasserstein(other, DRAWS) == pytest.approx(distance, abs=0.01)
    assert wasserstein(3 - 5 * other, 3 - 5 * DRAWS) == pytest.approx(distance, abs=0.01)


def test_a_lost_mode_costs_its_mass_times_the_way():
    both = np.concatenate([DRAWS[::4] - 10, DRAWS[::2] + 10, DRAWS[1::4] + 10])
    assert wasserstein(DRAWS + 10, both) == pytest.approx(0.25 * 20 / both.std(), rel=0.02)


def test_truth_values_are_as_far_apart_as_their_means():
    """A quantile function of a few rare zeros is that of none."""
    rare, none = np.arange(4000) > 7, np.ones(4000)
    expected = 0.002 / np.sqrt(0.001 * 0.999)
    assert wasserstein(rare, none) == wasserstein(none, rare) == pytest.approx(expected)
    half = np.arange(4000) % 2
    assert wasserstein(half == 1, 1.0 * half) == 0.0


def test_wasserstein_without_spread():
    assert wasserstein(np.ones(5), np.ones(9)) == 0.0
    assert wasserstein(np.zeros(5), np.ones(9)) == np.inf


def test_functionals_do_not_depend_on_the_numbering():
    tree, _ = make_tree(2, 30)
    turned = tree.copy(deep=True)
    for name in ("weights", "mean", "covariance"):
        values = turned["posterior"][name].to_numpy()
        values[:, ::2] = np.roll(values[:, ::2], 1, axis=2)
    before, after = comparable(tree), comparable(turned)
    assert len(before) == 3 + 2 * 3 + 2 * 9 + 1
    for key, value in before.items():
        np.testing.assert_allclose(after[key], value, rtol=1e-12)
    assert farthest(turned, tree)[0] < 1e-9


def test_the_worst_functional_is_named():
    tree, _ = make_tree(2, 200)
    moved = tree.copy(deep=True)
    rate = moved["posterior"]["flip_rate"]
    moved["posterior"]["flip_rate"] = rate + 2 * rate.std()
    found, name = farthest(moved, tree)
    assert name == "flip_rate"
    assert found == pytest.approx(2.0, rel=0.1)
    empty = tree.copy(deep=True)
    empty["posterior"] = tree["posterior"].to_dataset()[[]]
    found, name = farthest(empty, tree)
    assert np.isnan(found)
    assert name == ""


def explorer(seed):
    """A sampler whose runs started at the prior: its evidence has an error."""
    tree = make_tree(4, 400, 50, seed=seed, engine="smc")[0]
    tree["fit_info"].attrs["log_evidence_error"] = 0.1
    return tree


def test_the_table_says_whom_to_trust():
    stuck = make_tree(4, 400, 50, seed=2)[0]
    stuck["posterior"]["flip_rate"] = 0.5 * stuck["posterior"]["flip_rate"]
    fits = {
        "stuck": stuck,
        "sound": make_tree(4, 400, 50, seed=3)[0],
        "explorer": explorer(4),
        "failed": make_tree(4, 400, 50, seed=5, converged=False)[0],
        "point": make_tree(seed=6)[0],
        "other data": make_tree(4, 400, 50, seed=7)[0],
    }
    fits["other data"]["observed_data"]["x"] = fits["other data"]["observed_data"]["x"] + 1.0
    table = compare_fits({name: FakeFit(tree) for name, tree in fits.items()})
    assert table.frame["trust"].to_dict() == {
        "stuck": "differs",
        "sound": "agrees",
        "explorer": "reference",
        "failed": "no",
        "point": "",
        "other data": "",
    }
    assert table.frame.loc["stuck", "shift_of"] == "flip_rate"
    assert np.isnan(table.frame.loc["explorer", "shift"])
    assert np.isnan(table.frame.loc["point", "shift"])
    assert table.frame.loc["point", "distance"] > 0
    assert '<td class="text suspect" data-heading="trust">differs</td>' in table.html()
    assert "differs" in str(table)


def test_nothing_to_measure_against():
    lonely = compare_fits({"one": FakeFit(explorer(0))}).frame
    assert not {"trust", "shift", "distance"} & set(lonely)
    points = compare_fits({str(seed): FakeFit(make_tree(seed=seed)[0]) for seed in (0, 1)}).frame
    assert not {"trust", "shift", "distance"} & set(points)
