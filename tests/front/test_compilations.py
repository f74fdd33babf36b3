"""Numbers of compilations: what users wait for most, and what other links must not cost again."""

from itertools import pairwise

import numpy as np
import pytest
from sidebayes.guides.engines.plumbing import programs
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph

import sidebayes

DATA = sidebayes.load_dataset("iris")
ENGINE = sidebayes.EM(num_restarts=2, max_steps=3)
STATEMENTS = {"reading": "relation", "flip_rate": "learned"}


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(programs, "_programs", type(programs._programs)())


def fitted(links, x=DATA.x, **options):
    options = {"num_clusters": 3, "engine": ENGINE, "progress": False} | options
    return sidebayes.fit("ppc", x, links, **options)


def draw(num_links, seed, hard=False):
    links = sidebayes.simulate_links(DATA.labels, num_links, seed=seed)
    return links if hard else links.with_strength(2.0)


@pytest.mark.parametrize(("num_links", "hard"), [(100, False), (200, True)])
def test_ten_draws_of_links_compile_two_climbs_at_most(num_links, hard):
    widths = set()
    with counted_compilations() as names:
        for seed in range(10):
            links = draw(num_links, seed, hard)
            fitted(links).labels()
            widths.add(int(LabelGraph.build(links, 150, 3).buckets.bag_size.max()))
    assert len(widths) > 1  # the loops do differ
    assert names.count("em") <= 2
    assert len(names) <= 4


def test_an_approximation_is_compiled_once_for_all_graphs():
    options = {"inference": "belief_propagation", **STATEMENTS}
    with counted_compilations() as names:
        fits = [fitted(draw(400, seed), **options) for seed in range(3)]
    assert all(fit.approximate for fit in fits)
    assert names.count("em") == 1


def test_a_second_fit_of_equal_shapes_compiles_nothing():
    fitted(draw(30, 0), **STATEMENTS)
    with counted_compilations() as names:
        fitted(draw(30, 1), **STATEMENTS).labels()
        fitted(draw(28, 2), **STATEMENTS).responsibilities()
    assert names == []


def test_folds_share_their_programs():
    """150 rows in five folds of thirty, whatever the links: one shape for all folds."""
    fit = fitted(draw(40, 0), engine=sidebayes.EM(num_restarts=2), **STATEMENTS)
    with counted_compilations() as names:
        fit.kfold(5, progress=False)
    first = len(names)
    assert names.count("em") == 1
    with counted_compilations() as names:
        fit.kfold(5, seed=1, progress=False)
    assert first <= 3
    assert names == []


def test_asking_for_links_again_and_again_compiles_once():
    links = draw(20, 0)
    counts, loopy = [], []
    for _ in range(4):
        with counted_compilations() as names:
            fit = fitted(links, **STATEMENTS)
            asked = sidebayes.suggest_links(fit, 3)
        pairs = asked[["i", "j"]].to_numpy()
        same = np.equal(*DATA.labels[pairs].T)
        answers = sidebayes.Links.from_pairs(pairs, same, num_points=150).with_strength(2.0)
        links = links + answers
        counts.append(len(names))
        loopy += [a.has_loops for a in fit.run.problem.args if isinstance(a, sidebayes.LabelGraph)]
    assert counts[0] > 0
    # answers that close the first loop bring another shape, all others none
    assert [count > 0 for count in counts[1:]] == [a != b for a, b in pairwise(loopy)]
