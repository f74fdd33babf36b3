"""Links that a fit contradicts are set against how often their weights say that they are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from sidebayes.diagnostics.links.broken import (
    certain_contradiction,
    links_against_labels,
    links_against_points,
)

import sidebayes
from sidebayes import Links
from tests.support.draws import at_one

DATA = sidebayes.load_dataset("iris").standardized()
SPECIES = [DATA.x[DATA.labels == label] for label in np.unique(DATA.labels)]
KNOWN = {
    "weights": np.full(3, 1 / 3),
    "mean": np.stack([rows.mean(axis=0) for rows in SPECIES]),
    "covariance": np.stack([np.cov(rows.T) for rows in SPECIES]),
}
BEYOND = "where weights allow for"


def pairs(number):
    return np.arange(2 * number).reshape(-1, 2)


def stated(must, weight):
    return Links.from_pairs(pairs(len(must)), must, weight)


def labelled(broken, sure):
    """Labels of pairs, of which some differ though they are must-linked, given with some certainty."""
    own = np.zeros((2 * len(broken), 2))
    own[:, 0] = sure
    own[1::2, 0] = np.where(broken, 1 - sure, sure)
    own[:, 1] = 1 - own[:, 0]
    return own[None]


def test_broken_links_are_counted_beside_their_weights():
    must, broken = np.ones(40, bool), np.arange(40) < 6
    said = links_against_labels(stated(must, 5.0), labelled(broken, 0.999))
    assert said.startswith(
        "The labels break 6 of 40 must-links, where weights allow for 0.27 in all"
    )
    assert (
        links_against_labels(stated(must, 1.5), labelled(broken, 0.999)) is None
    )  # weights allow for it
    assert (
        links_against_labels(stated(must, 5.0), labelled(broken, 0.6)) is None
    )  # uncertain labels
    assert links_against_labels(stated(must, 5.0), labelled(np.arange(40) < 2, 0.999)) is None
    assert (
        links_against_labels(stated(must, 0.0), labelled(broken, 0.999)) is None
    )  # nothing stated
    cannot = stated(np.arange(40) >= 34, 5.0)  # whose labels agree
    said = links_against_labels(cannot, labelled(np.zeros(40, bool), 0.999))
    assert "0 of 6 must-links and 34 of 34 cannot-links" in said


def test_links_that_points_rule_out_are_counted_beside_their_weights():
    must = np.arange(40) < 20
    links, chance = stated(must, np.inf), np.array([0.5])
    agree = np.where(must, 0.9, 0.2)
    assert links_against_points(links, agree[None], chance) is None  # points near a boundary
    agree[[0, 1, 30]] = 0.001, 0.001, 0.999
    said = links_against_points(links, agree[None], chance)
    assert "of the 40 links are wrong, where weights allow for 0.0%" in said
    assert links_against_points(links.with_strength(2.0), agree[None], chance) is None


def test_points_that_are_unsure_contradict_many_links_together():
    """No link is ruled out, and a quarter of them is improbable."""
    must, chance = np.arange(40) % 2 == 0, np.array([0.4])
    agree = np.where(must, 0.95, 0.05)
    improbable = np.arange(40) < 10
    agree[improbable] = 1 - agree[improbable]
    said = links_against_points(stated(must, np.inf), agree[None], chance)
    assert "of the 40 links are wrong" in said
    agree[improbable] = np.where(must, 0.55, 0.45)[improbable]
    assert links_against_points(stated(must, np.inf), agree[None], chance) is None


@pytest.mark.parametrize("kind", [True, False, None])
def test_right_links_are_seldom_doubted(kind):
    """Whether pairs are drawn first, or among those that agree or that differ."""
    rng, doubted = np.random.default_rng(5), 0
    for _ in range(300):
        agree = rng.beta(0.4, 0.8, size=2000)
        same = rng.random(2000) < agree
        rows = np.flatnonzero(np.ones(2000, bool) if kind is None else same == kind)[:40]
        links = stated(same[rows], np.inf)
        doubted += links_against_points(links, agree[None, rows], np.array([1 / 3])) is not None
    assert doubted <= 5  # 3 by the level, and fewer as the smaller of two ratios counts


def test_contradictions_of_certain_links_are_told_with_their_path():
    chain = [(0, 1), (1, 2), (2, 3), (3, 0)]
    links = Links.from_pairs(chain, [True, True, True, False], 12.0)
    said = certain_contradiction(links)
    assert "cannot-link (3, 0) contradicts must-links 3–2–1–0" in said
    assert certain_contradiction(links.with_strength(8.0)) is None  # one in some thousands is wrong
    assert certain_contradiction(links, 150.0) is None  # as prices
    assert certain_contradiction(Links.from_pairs(chain, [True, True, False, False], 12.0)) is None
    assert certain_contradiction(Links.must_link(chain, 12.0)) is None


def test_a_pair_that_is_stated_both_ways_is_named_at_any_price():
    chain = [(0, 1), (1, 2), (2, 3), (2, 1), (0, 2)]
    links = Links.from_pairs(chain, [True, True, True, False, False], 2.0)
    said = (
        "Pair (1, 2) is both a must-link and a cannot-link: labels break one of them at any price"
    )
    assert said in certain_contradiction(links, 150.0)
    assert certain_contradiction(links) is None  # as odds, which weigh the two
    more = links + Links.cannot_link([(3, 2)], 1.0)
    assert "(1, 2) is both a must-link and a cannot-link (one of 2" in certain_contradiction(
        more, 9.0
    )
    assert certain_contradiction(links.with_weights(np.array([2.0, 0, 2, -2, -2])), 150.0) is None


@pytest.fixture(scope="module")
def wrong():
    """Links of which a fifth is wrong, though their weight says one in 400."""
    return sidebayes.simulate_links(DATA.labels, 60, flip_rate=0.2, weight=6.0, seed=3)


def of(links, method="ppc", engine=at_one(KNOWN), **options):  # noqa: B008
    options = {"num_clusters": 3, "engine": engine, "progress": False, **options}
    return sidebayes.fit(method, DATA.x, links, **options)


def test_a_fit_says_where_weights_are_too_large(wrong):
    level, said = of(wrong).verdict
    assert level == "caution"
    assert f"cannot-links, {BEYOND} 0.15 in all" in said
    true = sidebayes.simulate_links(DATA.labels, 60, weight=6.0, seed=3)
    assert BEYOND not in of(true).verdict[1]


def test_weights_are_not_doubted_where_flip_rates_are_learned(wrong):
    learned = {"reading": "relation", "flip_rate": "learned"}
    assert BEYOND not in of(wrong, engine=at_one(KNOWN | {"flip_rate": 0.2}), **learned).verdict[1]


def test_a_fit_says_where_hard_links_are_against_the_points():
    wrong = sidebayes.simulate_links(DATA.labels, 37, flip_rate=0.3, disjoint=True)
    level, said = of(wrong).verdict
    assert level == "caution"
    assert f"{BEYOND} 0.0%" in said
    true = sidebayes.simulate_links(DATA.labels, 37, disjoint=True)
    assert BEYOND not in of(true).verdict[1]


def test_prices_contradict_one_another_where_they_exceed_the_points():
    links = Links.from_pairs([(0, 1), (1, 2), (2, 0)], [True, True, False], 1e6, len(DATA.x))
    shared = at_one(KNOWN | {"covariance": KNOWN["covariance"].mean(axis=0)})
    fit = of(links, "constraint_fit", shared)
    assert "contradicts must-links 2–1–0" in fit.verdict[1]


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_hard_links_of_kmeans_are_set_against_its_clusters(unit):
    for flip_rate in (0.0, 0.2):
        links = sidebayes.simulate_links(
            DATA.labels, 40, flip_rate=flip_rate, disjoint=True, seed=2
        )
        given = {"num_clusters": 3, "progress": False}
        level, said = sidebayes.fit("constrained_kmeans", unit * DATA.x, links, **given).verdict
        assert ("are wrong, and K-means keeps them all" in said) == (flip_rate > 0)
        assert level == "caution" or not flip_rate
