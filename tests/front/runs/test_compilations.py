"""Numbers of compilations: what users wait for most, and what other links must not cost again."""

from itertools import pairwise

import jax
import numpy as np
import pytest
from sidebayes.guides.engines.plumbing import programs
from sidebayes.guides.engines.plumbing.identity import structure
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph

import sidebayes
from sidebayes.runs.arguments import read_run

DATA = sidebayes.load_dataset("iris")
ENGINE = sidebayes.EM(num_restarts=2, max_steps=3)
SLOW = pytest.mark.slow
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


@pytest.mark.parametrize("given", ["read off the data", "by evidence"])
def test_predictions_of_fits_to_other_rows_share_their_programs(given):
    """Numbers of a prior, which the rows decide, are no constants of programs."""

    def predicted(rows):
        prior = "empirical"
        if given == "by evidence":
            prior = sidebayes.GaussianPrior.by_evidence(DATA.x[rows], 3)
        fit = fitted(None, DATA.x[rows], prior=prior)
        return fit.predict_proba(DATA.x[:30]), fit.log_prob(DATA.x[:30])

    predicted(np.arange(0, 150, 2))
    with counted_compilations() as names:
        predicted(np.arange(1, 150, 2))
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


def voted(x, first, number=15):
    """`nfgl` of so many given anchors, every tenth row."""
    rows = np.arange(first, 150, 10)[:number]
    clusters, table = (DATA.labels[rows] > 0) * 1, np.full((2, 3), 1 / 3)
    assigned = np.full(150, -1)
    assigned[rows] = clusters
    anchors = sidebayes.Anchors(x[rows], DATA.labels[rows], clusters, table)
    return ("nfgl", x, assigned), {"anchors": anchors, "num_classes": 3}


def placed(x, first):
    """`pfgl` of given prototypes."""
    prototypes = ((0, first), (1, 1 - first), (1, 2))
    known = np.where(np.arange(150) % 10 == first, DATA.labels, -1)
    return ("pfgl", x, known), {"prototypes": prototypes, "num_classes": 3}


def adapted(x, first):
    """`domain_adaptation` of a given source."""
    mean = x[[first, 60 + first, 120 + first]]
    covariance = np.stack([np.eye(4) * (1 + first)] * 3)
    source = sidebayes.SourceMixture(np.full(3, 1 / 3), mean, covariance, np.arange(3))
    return ("domain_adaptation", x), {"source": source}


def test_problems_with_other_numbers_in_options_have_one_structure():
    """By which, and by the types of their arguments, programs are known."""
    found = []
    for first in (0, 1):
        (method, *data), options = voted(DATA.x, first)
        problem = read_run(method, tuple(data), options | {"num_clusters": 2}, ENGINE).problem
        leaves, tree = jax.tree.flatten(problem.args)
        found.append((structure(problem), tree, list(map(jax.typeof, leaves))))
    assert found[0] == found[1]


def test_problems_with_other_numbers_of_labelled_rows_have_one_structure():
    """As folds of a cross-validation have."""
    found = []
    for number in (13, 15):
        (method, *data), options = voted(DATA.x, 0, number)
        run = read_run(method, tuple(data), options | {"num_clusters": 2}, ENGINE)
        assert len(run.options["anchors"].points) == number  # as given
        leaves, tree = jax.tree.flatten(run.problem.args)
        found.append((structure(run.problem), tree, list(map(jax.typeof, leaves))))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "case", [voted, pytest.param(placed, marks=SLOW), pytest.param(adapted, marks=SLOW)]
)
def test_other_numbers_in_options_compile_nothing(case):
    """Labelled rows, classes of prototypes and sources are data of a program; only their shapes are not."""
    x, found = (DATA.x - DATA.x.mean(axis=0)) / DATA.x.std(axis=0), []
    for first in (0, 1):
        data, options = case(x, first)
        if case is not adapted:
            options["num_clusters"] = 2
        with counted_compilations() as names:
            fit = sidebayes.fit(*data, engine=ENGINE, progress=False, **options)
            found.append(fit.class_probabilities())
        assert names.count("em") == 1 - first
    assert names == []
    assert np.abs(found[0] - found[1]).max() > 0.1


@pytest.mark.parametrize(
    "engine",
    [sidebayes.EM, pytest.param(sidebayes.MAP, marks=SLOW)],
    ids=lambda engine: engine.__name__,
)
def test_another_limit_of_steps_compiles_no_climb(engine):
    fitted(draw(30, 0), engine=engine(num_restarts=2, max_steps=3))
    with counted_compilations() as names:
        fit = fitted(draw(30, 0), engine=engine(num_restarts=2, max_steps=5))
    assert names == []
    assert fit.objective.shape[1] <= 6
