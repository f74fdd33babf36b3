"""Suggested pairs: information by the definition, spread over points, none asked twice."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import entr
from sidebayes.diagnostics.links.selection import information, select_pairs

import sidebayes
from sidebayes import Links
from tests.diagnostics.fakes import PAIRS, make_tree, soft_labels
from tests.support.draws import at_one


def test_information_is_about_labels_and_parameters_together():
    """Mutual information of the answer with draw and labels, by enumeration."""
    first, second = np.random.default_rng(0).dirichlet(np.ones(3), (2, 4))
    joint = first[:, :, None] * second[:, None, :] / 4
    yes = np.stack([np.eye(3), 1 - np.eye(3)])
    table = np.einsum("aij,sij->asij", yes, joint).reshape(2, -1)
    expected = entr(table.sum(axis=0)).sum() + entr(table.sum(axis=1)).sum() - entr(table).sum()
    same = np.einsum("si,si->s", first, second)
    np.testing.assert_allclose(information(same[:, None]), [expected], rtol=1e-12)


def doubtful(points, draws=1, seed=0):
    """Tree in which only some points are in doubt, between clusters 0 and 1."""
    prob = np.broadcast_to(soft_labels(sure=1.0), (1, draws, 40, 3)).copy()
    share = np.random.default_rng(seed).uniform(0.05, 0.95, (draws, len(points)))
    share = np.full((draws, len(points)), 0.5) if draws == 1 else share
    prob[0, :, points] = np.stack([share, 1 - share, 0 * share], axis=-1).transpose(1, 0, 2)
    return make_tree(draws=draws, prob=prob)[0]


@pytest.mark.parametrize("draws", [1, 60])
def test_pairs_hold_doubtful_points_and_repeat_none(draws):
    points = np.array([3, 22, 30])
    found = select_pairs([doubtful(points, draws)], 6)
    ends = found[["i", "j"]].to_numpy()
    assert np.isin(ends, points).any(axis=1).all()
    assert np.isin(points, ends[:3]).all()
    assert (found.information > 0.01).all()


def test_redundant_pairs_are_passed_over():
    """All points of cluster 0 move together over the draws: one answer tells about all of them."""
    draws = 40
    prob = np.broadcast_to(soft_labels(sure=1.0), (1, draws, 40, 3)).copy()
    group, alone = np.arange(10), 25
    swing = np.where(np.arange(draws) % 2, 0.98, 0.02)
    prob[0, :, group] = np.stack([swing, 1 - swing, 0 * swing], axis=-1)
    other = np.where(np.arange(draws) // 2 % 2, 0.9, 0.1)
    prob[0, :, alone] = np.stack([0 * other, other, 1 - other], axis=-1)
    found = select_pairs([make_tree(draws=draws, prob=prob)[0]], 2)
    ends = found[["i", "j"]].to_numpy()
    assert np.isin(ends[0], group).any()
    assert alone in ends[1]


def test_linked_pairs_are_not_asked_again():
    tree = doubtful(np.array([0, 2, 3, 21]))
    found = select_pairs([tree], 700, seed=1)
    code = np.sort(found[["i", "j"]].to_numpy(), axis=1) @ [40, 1]
    assert not np.isin(np.sort(PAIRS, axis=1) @ [40, 1], code).any()
    assert len(np.unique(code)) == 700
    with pytest.raises(ValueError, match=r"only 775 candidates"):
        select_pairs([tree], 776)


def test_few_candidates_of_many_pairs():
    found = select_pairs([doubtful(np.array([3, 22]))], 2, num_candidates=100)
    assert np.isin(found[["i", "j"]].to_numpy(), [3, 22]).any(axis=1).all()


def test_probabilities_rounded_beyond_one_do_no_harm():
    assert information(np.array([[1 + 1e-15, -1e-15]])).tolist() == [0.0, 0.0]


def test_fits_are_pooled_by_pairs_on_which_they_disagree():
    trees = [make_tree()[0] for _ in range(3)]
    for number, odd in ((1, 4), (2, 9)):
        labels = np.repeat([0, 1, 2], [20, 14, 6])
        labels[odd] = 2
        swapped = soft_labels((labels + 1) % 3)
        trees[number]["responsibilities"]["prob"][:] = swapped[None, None]
    found = select_pairs(trees, 2)
    assert np.isin([4, 9], found[["i", "j"]].to_numpy()).all()


def test_rows_in_another_order_are_not_pooled():
    first, turned, scaled, coarse = (make_tree()[0] for _ in range(4))
    turned["observed_data"]["x"][:] = first["observed_data"]["x"].to_numpy()[::-1]
    with pytest.raises(
        ValueError, match=r"fit\[2\] has the rows of fit\[0\] in another order \(of 'x'"
    ):
        select_pairs([first, scaled, turned], 2)
    scaled["observed_data"]["x"] = (
        2 * scaled["observed_data"]["x"]
    )  # features of their own are allowed
    select_pairs([first, scaled], 2)
    coarse["observed_data"]["x"][:] = first["observed_data"]["x"].to_numpy()[::-1] > 0
    first["observed_data"]["x"][:] = first["observed_data"]["x"].to_numpy() > 0
    select_pairs([first, coarse], 2)


def test_pairs_that_tell_nothing_are_warned_of():
    sure = make_tree(prob=soft_labels(sure=1.0)[None, None])[0]
    with pytest.warns(sidebayes.SideBayesWarning, match=r"no answer is expected to tell anything"):
        select_pairs([sure], 2)


def test_suggestions_sharpen_a_fit():
    data = sidebayes.load_dataset("iris")
    x, labels = data.x[::3], data.labels[::3]
    species = [x[labels == label] for label in range(3)]
    known = {
        "weights": np.full(3, 1 / 3),
        "mean": [rows.mean(axis=0) for rows in species],
        "covariance": [np.cov(rows.T) for rows in species],
    }
    fit = sidebayes.fit("gmm", x, num_clusters=3, engine=at_one(known), progress=False)
    ask = sidebayes.suggest_links(fit, 4)
    assert (ask.information >= 0).all()
    rows = ask[["i", "j"]].to_numpy()
    np.testing.assert_allclose(ask.same, fit.same_cluster(rows))
    assert Links.from_pairs(rows, labels[ask.i] == labels[ask.j]).num_links == 4


def test_bad_input():
    with pytest.raises(TypeError, match="fit holds a int"):
        sidebayes.suggest_links([1], 3)
    with pytest.raises(ValueError, match="empty list"):
        sidebayes.suggest_links([], 3)


@pytest.mark.parametrize(
    ("num_candidates", "message"),
    [
        (780, r"only \d+ candidates are not linked yet; ask for fewer$"),
        (779, r"only \d+ candidates are not linked yet; ask for fewer, or raise num_candidates$"),
    ],
)
def test_advice_where_too_few_pairs_are_left(num_candidates, message):
    with pytest.raises(ValueError, match=f"num_pairs = 780, but {message}"):
        select_pairs([doubtful([0, 1])], 780, num_candidates=num_candidates)
