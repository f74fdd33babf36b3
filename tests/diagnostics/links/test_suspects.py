"""Suspect links against enumeration, with each link left out in turn."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp
from sidebayes.diagnostics.links.link_scores import agreement
from sidebayes.diagnostics.links.suspects import link_agreement, rank_suspects
from sidebayes.guides.engines.base import Problem
from sidebayes.models.blocks.label_inference.approximate import MeanField

import sidebayes
from sidebayes import EM, LabelGraph, LinkedCategorical, LinkedMixture, Links, flip_rate_weight
from tests.support.draws import at_one

X = np.array([[-1.0], [-0.2], [0.1], [0.9], [1.4], [-1.2]])
LINKS = (
    Links.must_link([(0, 1)], 1.2)
    + Links.must_link([(2, 3), (1, 4)])
    + Links.cannot_link([(1, 2)], 0.7)
    + Links.cannot_link([(3, 5)])
    + Links.must_link([(0, 5)], 0.4)  # closes a loop
)
DRAWS = {"mean": np.array([[-1.0, 1.0], [-0.6, 1.3], [-1.2, 0.4]])}
LOG_WEIGHTS = np.log([0.3, 0.7])


def model(x, links, inference="exact"):
    mean = numpyro.sample("mean", dist.Normal().expand([2]).to_event(1))
    labels = LinkedCategorical(jnp.asarray(LOG_WEIGHTS), links, inference=inference)
    mixture = LinkedMixture(labels, dist.Normal(mean[:, None], 1.0).to_event(1))
    numpyro.sample("x", mixture, obs=x)


def problem(**options):
    return Problem(model, (jnp.asarray(X), LabelGraph.build(LINKS, 6)), options)


def enumerated(mean, weights, skip=None):
    """Probability of agreement of every link, one link's potential left out."""
    terms, agree = [], []
    for labels in itertools.product(range(2), repeat=6):
        z = np.array(labels)
        same = z[LINKS.pairs[:, 0]] == z[LINKS.pairs[:, 1]]
        pull = np.where(np.arange(len(weights)) == skip, 0.0, weights) @ same
        terms.append(LOG_WEIGHTS[z].sum() - 0.5 * ((X[:, 0] - mean[z]) ** 2).sum() + pull)
        agree.append(same)
    return np.exp(np.array(terms) - logsumexp(terms)) @ np.array(agree)


def test_against_enumeration():
    rate = 0.1
    strength = np.where(LINKS.hard, flip_rate_weight(rate), np.abs(LINKS.weights))
    weights = np.where(LINKS.same, strength, -strength)
    with jax.enable_x64(True):
        same, used, approximate = link_agreement(problem(), DRAWS, LINKS, flip_rate=rate)
    assert approximate is None
    np.testing.assert_allclose(used, np.tile(weights, (3, 1)))
    table = rank_suspects(LINKS, same, used)
    assert (table.probability.diff().dropna() <= 0).all()
    for link, row in table.iterrows():
        others = np.array([enumerated(mean, weights, skip=link)[link] for mean in DRAWS["mean"]])
        assert row.same_without == pytest.approx(np.mean(others), rel=1e-9)
        # Bayes' rule: what the others say, against a statement that is wrong with its flip rate
        flip = 1 / (1 + np.exp(abs(weights[link])))
        agree = others if row.sign > 0 else 1 - others
        wrong = (1 - agree) * flip / ((1 - agree) * flip + agree * (1 - flip))
        assert row.probability == pytest.approx(wrong.mean(), rel=1e-9)


def test_pairs_of_one_connected_set_against_enumeration():
    """All pairs: linked ones, softly or not, points of one chunklet, and others that links tie."""
    labels = np.array(list(itertools.product(range(2), repeat=6)))
    pairs = np.array(list(itertools.combinations(range(6), 2)))
    same = labels[:, pairs[:, 0]] == labels[:, pairs[:, 1]]
    linked = labels[:, LINKS.pairs[:, 0]] == labels[:, LINKS.pairs[:, 1]]
    kept = (linked | ~(LINKS.hard & LINKS.same)) & ~(linked & LINKS.hard & ~LINKS.same)
    due = []
    for mean in DRAWS["mean"]:
        terms = LOG_WEIGHTS[labels].sum(axis=1) - 0.5 * ((X[:, 0] - mean[labels]) ** 2).sum(axis=1)
        terms += linked @ np.where(LINKS.hard, 0.0, LINKS.weights)
        due.append(np.exp(terms - logsumexp(terms, b=kept.all(axis=1))) * kept.all(axis=1) @ same)
    with jax.enable_x64(True):
        found, _, approximate = agreement(problem(), DRAWS, pairs)
    assert approximate is None
    np.testing.assert_allclose(found, due, atol=1e-12)


def test_belief_propagation_stands_in_for_mean_field():
    with jax.enable_x64(True):
        exact, _, _ = link_agreement(problem(), DRAWS, LINKS)
        changed = problem(inference=MeanField(max_table=0))
        swapped, _, approximate = link_agreement(changed, DRAWS, LINKS)
    assert approximate is not None
    assert "belief_propagation" in approximate
    np.testing.assert_allclose(swapped, exact, atol=0.02)


def test_certain_links_are_ordered_without_overflow():
    same = np.array([[1.0, 0.0, 1e-12, 1.0]])
    links = Links.from_pairs([(0, 1), (2, 3), (4, 5), (6, 7)], [1, 1, 1, 0], 2.0)
    table = rank_suspects(links, same, np.tile(links.weights, (1, 1)))
    assert table.index.tolist() == [1, 3, 2, 0]
    assert np.isfinite(table).all(axis=None)


@pytest.fixture(scope="module")
def fitted():
    data = sidebayes.load_dataset("iris")
    x, labels = data.x[::3], data.labels[::3]
    links = sidebayes.simulate_links(labels, 30, flip_rate=0.2, weight=1.4, seed=2)
    engine = EM(num_restarts=2, max_steps=60)
    return labels, sidebayes.fit(
        "ppc",
        x,
        links,
        num_clusters=3,
        engine=engine,
        inference="belief_propagation",
        progress=False,
    )


def test_wrong_links_come_first(fitted):
    labels, fit = fitted
    table = fit.suspect_links()
    wrong = (labels[table.i] == labels[table.j]) != (table.sign > 0)
    assert wrong.sum() == 6
    assert wrong[:6].sum() >= 5
    assert table.attrs["approximate"] == fit.approximate


def test_bad_input():
    params = {"weights": [0.3, 0.7], "mean": [[-1.0], [1.0]], "covariance": np.ones((2, 1, 1))}
    options = {"num_clusters": 2, "engine": at_one(params), "progress": False}
    fit = sidebayes.fit("ppc", X, LINKS.take([0, 1]), **options)
    with pytest.raises(ValueError, match=r"flip_rate = 0.7; expected a number between 0 and 1/2"):
        fit.suspect_links(flip_rate=0.7)
    none = sidebayes.fit("gmm", X, **options)
    with pytest.raises(ValueError, match="no links"):
        none.suspect_links()
