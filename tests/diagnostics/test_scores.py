import numpy as np
import pytest
from sidebayes.diagnostics.scores import (
    accuracy,
    calibration_error,
    f_score,
    purity,
    score_labels,
    violated_links,
)


def test_scores_do_not_depend_on_numbering():
    truth = np.array([0, 0, 0, 1, 1, 2])
    assert score_labels(truth, [2, 2, 2, 0, 0, 1]) == {"ari": 1.0, "nmi": 1.0, "accuracy": 1.0}
    assert accuracy(truth, [0, 0, 1, 1, 1, 2]) == pytest.approx(5 / 6)
    assert accuracy(truth, [0, 0, 3, 1, 1, 2]) == pytest.approx(5 / 6)  # more clusters than classes


def test_purity_by_hand():
    truth = np.array([0, 0, 0, 1, 1, 2])
    assert purity(truth, [2, 2, 2, 0, 0, 1]) == 1.0
    assert purity(truth, np.zeros(6)) == 0.5  # the share of the largest class
    assert purity(truth, [0, 0, 1, 2, 2, 3]) == 1.0  # accuracy matches one to one
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=6)
    assert purity(truth, labels) == purity(truth, rng.permutation(3)[labels])
    mostly = np.array([0, 0, 1, 1, 1, 2])
    assert purity(truth, mostly) == accuracy(truth, mostly)


def test_f_score_by_hand():
    truth = np.array([0, 0, 0, 1, 1, 2])
    assert f_score(truth, [5, 5, 5, 0, 0, 1]) == 1.0
    # class 0: cluster 0, 2 * 2 / (3 + 2); class 1: cluster 1, 2 * 2 / (2 + 3); class 2: its own
    assert f_score(truth, [0, 0, 1, 1, 1, 2]) == pytest.approx((3 * 0.8 + 2 * 0.8 + 1) / 6)
    assert f_score([0, 0, 1, 1], [7, 7, 7, 7]) == pytest.approx(2 / 3)  # one cluster: 2 / (k + 1)
    assert score_labels([0, 0, 1, 1], [7, 7, 7, 7])["nmi"] == 0.0


def test_violated_links_by_hand():
    labels = [0, 0, 1, 1]
    pairs = [[0, 1], [0, 2], [0, 3], [2, 3], [1, 2]]
    assert violated_links(labels, pairs, [1.0, 1.0, -np.inf, -2.0, 0.0]) == 2
    assert violated_links(labels, [], []) == 0


def test_calibration():
    rng = np.random.default_rng(0)
    prob = rng.random(20_000)
    assert calibration_error(prob, rng.random(20_000) < prob) < 0.02
    assert calibration_error(np.full(10, 0.9), np.zeros(10, bool)) == pytest.approx(0.9)
    assert calibration_error([0.0, 1.0], [False, True]) == 0.0


@pytest.mark.parametrize(
    ("prob", "outcome", "match"),
    [
        ([0.5], [True, False], "one, positive length"),
        ([], [], "positive"),
        ([2.0], [True], "log-odds"),
    ],
)
def test_calibration_refuses(prob, outcome, match):
    with pytest.raises(ValueError, match=match):
        calibration_error(prob, outcome)
