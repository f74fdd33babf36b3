"""Links that the points do not support are said; those that they do are not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from sidebayes.diagnostics.links.support import doubt_links
from sidebayes.guides.engines.plumbing.programs import counted_compilations

import sidebayes
from sidebayes import MAP, Links
from tests.support.draws import Told, at_one

RNG = np.random.default_rng(0)
DATA = sidebayes.load_dataset("iris")
WRONG = RNG.permutation(DATA.labels)


def verdict(method, labels, engine):
    links = sidebayes.simulate_links(labels, 40, seed=1)
    options = {"num_clusters": 3, "engine": engine, "progress": False}
    return sidebayes.fit(method, DATA.x, links, **options).verdict


SPECIES = [DATA.x[label == DATA.labels] for label in range(3)]
KNOWN = {"weights": np.full(3, 1 / 3), "mean": [rows.mean(axis=0) for rows in SPECIES]}
SPREAD = [np.cov(rows.T) for rows in SPECIES]
APART, TIED = (at_one(KNOWN | {"covariance": own}) for own in (SPREAD, np.mean(SPREAD, axis=0)))


def test_links_that_points_contradict_are_said():
    assert "links hold, where chance gives" not in verdict("ppc", DATA.labels, APART)[1]
    level, why = verdict("ppc", WRONG, APART)
    assert level != "good"
    assert "of the 40 links hold, where chance gives" in why


HARD = "constraint_fit", MAP(num_restarts=2, max_steps=200)


def test_hard_links_that_labels_break_are_said():
    some_wrong = np.where(np.arange(150) % 4 == 0, WRONG, DATA.labels)
    assert "of 40 hard links, which contradict" in verdict("constraint_fit", some_wrong, TIED)[1]


def test_hard_links_that_labels_keep_are_not_doubted():
    method, engine = HARD
    assert "hard links" not in verdict(method, DATA.labels, engine)[1]


def stated(number, must=True):
    pairs = np.arange(2 * number).reshape(-1, 2)
    return Links.from_pairs(pairs, np.full(number, must))


@pytest.mark.parametrize("must", [True, False])
def test_support_is_beside_chance(must):
    """Of three equal clusters a must-link holds by chance in a third of all cases."""
    links, chance = stated(30, must), np.array([1 / 3])
    agree = np.where(np.arange(30) % 3 == 0, 0.95, 0.05)[None]
    assert "30 links hold" in doubt_links(links, agree, chance)
    true = np.where(np.arange(30) % 10 == 0, 1 / 3, 0.95)[None]
    assert doubt_links(links, true if must else 1 - true, chance) is None


def test_what_cannot_be_judged_is_not_doubted():
    chance = np.array([1 / 3])
    assert doubt_links(stated(9), np.full((1, 9), 0.3), chance) is None  # few links
    scattered = (np.arange(12) % 2 * 0.98)[None]  # too few to rule support out
    assert doubt_links(stated(12), scattered, chance) is None
    assert doubt_links(stated(30), np.ones((1, 30)), np.ones(1)) is None  # one cluster


def test_broken_links_count_where_labels_are_free():
    agree = np.where(np.arange(40) < 3, 0.1, 0.99)[None]
    said = doubt_links(stated(40), agree, np.array([1 / 3]), price=80.0)
    assert said.startswith("The labels break 3 of 40 hard links")
    assert doubt_links(stated(40), agree, np.array([1 / 3])) is None
    soft = stated(40).with_strength(3.0)
    assert doubt_links(soft, agree, np.array([1 / 3]), price=80.0) is None
    dear = stated(40).with_strength(100.0)
    assert "of 40 hard links" in doubt_links(dear, agree, np.array([1 / 3]), price=80.0)


@dataclass(frozen=True)
class Climbing(Told):
    """Climbs to what it is told in three steps, with links or without."""

    climbs: ClassVar[bool] = True

    def run(self, problem, **given):
        return replace(super().run(problem, **given), objective=np.zeros((1, 3)))


@pytest.mark.parametrize("weight", [np.inf, 3.0])
def test_links_that_make_the_data_less_probable_are_said(weight):
    said = "Without the links the log likelihood is higher by"
    for labels, wrong in ((DATA.labels, False), (WRONG, True)):
        links = sidebayes.simulate_links(labels, 40, seed=1, weight=weight)
        engine = Climbing(APART.draws)
        fit = sidebayes.fit("ppc", DATA.x, links, num_clusters=3, engine=engine, progress=False)
        with counted_compilations() as compiled:
            level, why = fit.verdict
        assert (said in why) == wrong
        assert level != "good" or not wrong
        assert compiled == []


@pytest.mark.parametrize("weight", [np.inf, 6.0])
def test_links_of_which_some_make_the_data_less_probable_are_said(weight):
    said = "With weights that allow 15% of the links to be wrong, the log likelihood is higher by"
    for flip_rate in (0.0, 0.2):
        links = sidebayes.simulate_links(
            DATA.labels, 40, flip_rate=flip_rate, disjoint=True, seed=1
        )
        given = {"engine": Climbing(APART.draws), "num_clusters": 3, "progress": False}
        level, why = sidebayes.fit("ppc", DATA.x, links.with_strength(weight), **given).verdict
        assert (said in why) == (flip_rate > 0)
        assert "Without the links" not in why
        assert level != "good" or not flip_rate
