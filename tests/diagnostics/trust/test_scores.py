import numpy as np
import pytest
import xarray as xr
from sidebayes.diagnostics.trust.scores import (
    accuracy,
    calibration_error,
    f_score,
    purity,
    purity_f_score,
    score_labels,
    scores_of,
    violated_links,
)
from sidebayes.models.blocks.classes.anchors import Anchors
from sklearn.metrics import normalized_mutual_info_score

from sidebayes import PartialLabels
from tests.diagnostics.fakes import TRUTH, FakeFit, make_tree


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


def test_f_of_purity():
    """Check R23 of Raghuram (2014): numbering does not count; a single group."""
    rng = np.random.default_rng(1)
    truth, labels = rng.integers(3, size=50), rng.integers(4, size=50)
    table = np.array([[np.sum((truth == i) & (labels == j)) for j in range(4)] for i in range(3)])
    pure, inverse = table.max(axis=0).sum() / 50, table.max(axis=1).sum() / 50
    assert pure != inverse
    expected = 2 * pure * inverse / (pure + inverse)
    assert purity_f_score(truth, labels) == pytest.approx(expected, rel=1e-12)
    renamed = rng.permutation(3)[truth], rng.permutation(4)[labels]
    assert purity_f_score(*renamed) == pytest.approx(expected, rel=1e-12)
    nmi = [
        normalized_mutual_info_score(*pair, average_method="geometric")
        for pair in (renamed, (truth, labels))
    ]
    assert nmi[0] == pytest.approx(nmi[1], rel=1e-12)
    # the grid of the balance scale: the class is the sign of the difference of two moments
    grid = np.stack(np.meshgrid(*[np.arange(1, 6)] * 4), axis=-1).reshape(-1, 4)
    scale = 1 + np.sign(grid[:, 0] * grid[:, 1] - grid[:, 2] * grid[:, 3])
    share = 288 / 625
    assert purity_f_score(scale, np.zeros(625)) == pytest.approx(2 * share / (1 + share))
    assert purity_f_score(scale, np.zeros(625)) == pytest.approx(0.6309, abs=5e-5)
    assert normalized_mutual_info_score(scale, np.zeros(625), average_method="geometric") == 0.0


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


def test_methods_that_learn_classes_are_scored_by_them():
    fit = FakeFit(make_tree()[0])
    by_cluster = scores_of(fit)
    assert by_cluster == score_labels(TRUTH, fit.labels())
    fit.has_classes = True
    wrong = np.where(np.arange(len(TRUTH)) < 4, 1, TRUTH)
    fit.class_probabilities = lambda: np.eye(3)[wrong]
    assert scores_of(fit) == pytest.approx(score_labels(TRUTH, wrong))
    swapped = np.array([1, 0, 2])[TRUTH]  # no class is right but the last, whatever a matching says
    fit.class_probabilities = lambda: np.eye(3)[swapped]
    found = scores_of(fit)
    assert found["ari"] == 1.0
    assert found["accuracy"] == pytest.approx((TRUTH == 2).mean())


def test_rows_whose_class_was_given_do_not_count():
    fit = FakeFit(make_tree()[0])
    labels = fit.labels()
    known = np.where(np.arange(len(TRUTH)) % 3 == 0, TRUTH, -1)
    fit.run.data["known"] = PartialLabels(known)
    rest = known < 0
    assert scores_of(fit) == score_labels(TRUTH[rest], labels[rest])
    fit.run.data["known"] = PartialLabels(TRUTH)
    assert scores_of(fit) == {}
    fit.run.data["known"] = PartialLabels(TRUTH[:5])  # of something else
    assert scores_of(fit) == score_labels(TRUTH, labels)
    anchors = Anchors(np.zeros((4, 1)), TRUTH[[0, 1, 2, 25]], np.zeros(4, int), np.eye(1, 3))
    rows = np.isin(np.arange(len(TRUTH)), [0, 1, 2, 25])
    fit.run.data["assigned"] = np.where(rows, 0, -1)  # to a component, whose row has a class
    fit.run.options["anchors"] = anchors
    assert scores_of(fit) == score_labels(TRUTH[~rows], labels[~rows])


@pytest.mark.parametrize("number", [[1, 2, 3], [2, 0, 1], [6, 7, 8]])
def test_classes_that_the_truth_numbers_otherwise_are_matched(number):
    """Rows of known class show it; where no number is that of a class, nothing else is left."""
    fit = FakeFit(make_tree()[0])
    wrong = np.where(np.arange(len(TRUTH)) % 8 == 1, 1, TRUTH)
    fit.has_classes, fit.class_probabilities = True, lambda: np.eye(3)[wrong]
    known = np.where(np.arange(len(TRUTH)) % 4 == 0, TRUTH, -1)
    fit.run.data["known"] = PartialLabels(known)
    fit.tree["observed_data"]["truth"] = xr.DataArray(np.array(number)[TRUTH], dims="points")
    right = (wrong == TRUTH)[known < 0].mean()
    assert 0.8 < right < 1
    assert scores_of(fit)["accuracy"] == pytest.approx(right)
