"""Classifiers taught by links alone are judged by links that they have not seen."""

from __future__ import annotations

import numpy as np
import pytest
import sidebayes.diagnostics.links.support as support

import sidebayes
from sidebayes import Links
from sidebayes.runs.checks import check_links
from tests.support.draws import at_one

DATA = sidebayes.load_dataset("iris")
X = (DATA.x - DATA.x.mean(axis=0)) / DATA.x.std(axis=0)


def verdict(x, labels, weight=np.inf, engine=None):
    links = sidebayes.simulate_links(labels, 40, seed=1, weight=weight)
    clusters = len(np.unique(labels))
    given = {"num_clusters": clusters, "engine": engine, "progress": False}
    return sidebayes.fit("pairwise_gp", x, links, **given).verdict


def test_links_that_say_nothing_of_other_points_are_a_caution():
    """Fifteen columns of noise tell any forty links apart, and no others."""
    rng = np.random.default_rng(5)
    given = at_one({"coefficients": np.zeros((2, 15))})  # the verdict fits without links
    level, why = verdict(rng.normal(size=(150, 15)), rng.integers(0, 2, 150), engine=given)
    assert level == "caution"
    assert "Fitted without them, it tells" in why
    assert "of the 40 links, where chance gives 50%" in why


def test_links_that_features_show_are_not_doubted():
    """Columns of iris, repeated to fifteen, which tell one species from the others."""
    wide = np.tile(X, 4)[:, :15]
    assert verdict(wide, DATA.labels == 0, 2.0)[0] == "good"


def test_links_unseen_are_beside_chance():
    links = Links.from_pairs(np.arange(60).reshape(-1, 2), np.arange(30) % 2 == 0)
    must, chance = links.weights > 0, np.full(30, 0.5)
    right = np.where(np.arange(30) % 5 == 0, ~must, must).astype(float)
    assert support.doubt_unseen_links(links, right, chance) is None
    wrong = np.where(np.arange(30) % 4 < 2, ~must, must).astype(float)
    assert "the 30 links, where chance gives 50%" in support.doubt_unseen_links(
        links, wrong, chance
    )
    few = links.take(np.arange(9))
    assert support.doubt_unseen_links(few, wrong[:9], chance[:9]) is None


def test_hard_links_may_be_left_out_of_a_method_that_takes_no_others():
    """The verdict gives links a weight of zero, which states nothing, and so is not soft."""
    links = Links([(0, 1), (1, 2)], [0.0, 0.0], 3)
    assert check_links(links, 3, 2, "hard", "constrained_kmeans").num_links == 2
    with pytest.raises(ValueError, match="hard links only and 1 are soft"):
        check_links(links.with_weights([0.0, 1.0]), 3, 2, "hard", "constrained_kmeans")
