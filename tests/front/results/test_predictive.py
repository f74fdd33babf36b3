"""Data drawn at draws of the parameters, against exact moments and probabilities."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.typing import ArrayLike
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem import posterior
from sidebayes.models.gmm import gmm

import sidebayes as sb
from tests.probes import data, models
from tests.reference.brute_force import enumerate_labelings
from tests.support.draws import Told, assert_moments, told, values

GROWTH = {"beta": [1.0, 0.5], "spread": [0.8, 0.4], "noise": 0.5}


def covariance(times, subjects, others=None, other_subjects=None):
    """Of outcomes of the growth model, between two sets of rows."""
    same = others is None
    others, other_subjects = (times, subjects) if same else (others, other_subjects)
    effects = GROWTH["spread"][0] ** 2 + GROWTH["spread"][1] ** 2 * np.outer(times, others)
    shared = np.equal.outer(subjects, other_subjects)
    return effects * shared + same * GROWTH["noise"] ** 2 * np.eye(len(times), len(others))


def conditioned(y, times, subjects, new_times, new_subjects):
    """Normal distribution of new rows given the fitted ones."""
    line = lambda t: GROWTH["beta"][0] + GROWTH["beta"][1] * t  # noqa: E731
    inside = covariance(times, subjects)
    across = covariance(new_times, new_subjects, times, subjects)
    gain = across @ np.linalg.inv(inside)
    mean = line(new_times) + gain @ (y - line(times))
    return mean, covariance(new_times, new_subjects) - gain @ across.T


@pytest.fixture(scope="module")
def growth():
    y, times, subjects = data.long_table(num_subjects=4)
    names = np.array(["dora", "abel", "carl", "bert"])[subjects]
    return (y, times, names), told(models.growth, (y, times, names), GROWTH)


def test_new_rows_of_known_and_of_unseen_subjects(growth):
    given, fit = growth
    times = np.array([0.5, 4.0, 2.5, 1.0, 3.0])
    subjects = np.array(["carl", "zoe", "carl", "abel", "zoe"])
    tree = fit.predictive(times=times, subjects=subjects, seed=1)
    assert list(tree) == ["predictions", "predictions_constant_data"]
    mean, cov = conditioned(*given, times, subjects)
    assert cov[0, 2] > 0.01
    assert cov[1, 4] > cov[0, 2]  # an unseen subject is known less
    assert_moments(values(tree, "predictions", "y"), mean, cov)


def test_own_rows_are_drawn_for_the_same_subjects(growth):
    (y, times, subjects), fit = growth
    tree = fit.predictive(seed=2)
    mean, cov = conditioned(y, times, subjects, times, subjects)
    assert_moments(values(tree, "posterior_predictive", "y"), mean, cov)
    np.testing.assert_array_equal(tree["observed_data"]["y"], y)
    np.testing.assert_array_equal(tree["constant_data"]["subjects"], subjects)


def chain(y: Annotated[ArrayLike, "rows"], w: Annotated[ArrayLike, "rows"]):
    mean = numpyro.sample("mean", dist.Normal())
    with numpyro.plate("rows", len(y)):
        seen = numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        numpyro.sample("w", dist.Normal(2 * seen, 0.1), obs=w)


def test_draws_are_those_that_densities_are_stored_at():
    far = np.broadcast_to(np.arange(500.0) * 1e3, (2, 500))
    fit = sb.fit(chain, np.zeros(1), np.zeros(1), engine=Told({"mean": far}))
    drawn = fit.predictive()["posterior_predictive"]["y"]
    assert drawn.shape == (2, 400, 1)
    np.testing.assert_array_equal(drawn.draw, fit.tree["log_likelihood"].draw)
    own = far[:, drawn.draw.to_numpy()]
    assert np.abs(drawn[..., 0] - own).max() < 10


def test_few_chains_store_as_many_draws_as_four(monkeypatch):
    problem = Problem(chain, (np.zeros(5), np.zeros(5)))
    assert [posterior.num_derived(problem, n) for n in (1, 2, 4, 10)] == [800, 400, 200, 200]
    mixture = Problem(gmm, (np.zeros((9, 1)),), {"num_clusters": 2})
    monkeypatch.setattr(posterior, "_MOST_NUMBERS", 300 * 27)  # 9 densities, 18 label probabilities
    assert [posterior.num_derived(mixture, n) for n in (1, 2)] == [300, 200]


def test_seeds_reproduce(growth):
    _, fit = growth
    first, again, other = (fit.predictive(seed=s)["posterior_predictive"]["y"] for s in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def test_moments_of_a_mixture():
    rng = np.random.default_rng(0)
    params = {
        "weights": [0.3, 0.7],
        "mean": [[-2.0, 0.0], [1.0, 3.0]],
        "covariance": [[[1.0, 0.6], [0.6, 0.5]], [[0.4, 0.0], [0.0, 2.0]]],
    }
    fit = told("gmm", (rng.normal(size=(5, 2)),), params, num_clusters=2)
    drawn = values(fit.predictive(), "posterior_predictive", "x").reshape(-1, 2)
    weights, mean, cov = (np.array(params[n]) for n in ("weights", "mean", "covariance"))
    centre = weights @ mean
    spread = np.einsum("k,kij->ij", weights, cov) + (weights * (mean - centre).T) @ (mean - centre)
    assert_moments(drawn, centre, spread)


APART = {"weights": [0.2, 0.8], "mean": [[-50.0], [50.0]], "covariance": [[[1.0]], [[1.0]]]}
"""Clusters so far apart that data show their labels."""


@pytest.mark.parametrize("reading", ["field", "relation"])
def test_labels_are_drawn_given_the_links(reading):
    links = sb.Links([(0, 1), (1, 2), (3, 4)], [1.0, -0.7, np.inf], 5)
    x = np.zeros((5, 1)) + np.arange(5)[:, None]
    fit = told("ppc", (x, links), APART, num_clusters=2, reading=reading)
    label = values(fit.predictive(), "posterior_predictive", "x")[:, :, 0] > 0
    assert (label[:, 3] == label[:, 4]).all()
    unary = np.tile(np.log(APART["weights"]), (5, 1))
    every, score = enumerate_labelings(unary, links.pairs, links.weights)
    prob = np.exp(score) / np.exp(score).sum()
    for number in range(5):
        expected = prob @ every[:, number]
        error = np.sqrt(expected * (1 - expected) / len(label))
        assert abs(label[:, number].mean() - expected) < 4.5 * error
    agree = prob @ (every[:, 0] == every[:, 1])
    error = np.sqrt(agree * (1 - agree) / len(label))
    assert abs((label[:, 0] == label[:, 1]).mean() - agree) < 4.5 * error


def test_labels_are_drawn_given_known_classes():
    params = APART | {"class_probs": [[0.9, 0.1], [0.4, 0.6]]}
    known = np.array([0, 1, -1])
    fit = told(
        models.labelled, (np.arange(3.0)[:, None], known), params, num_clusters=2, num_classes=2
    )
    table, prior = np.array(params["class_probs"]), np.array(params["weights"])
    for tree, group, classes in (
        (fit.predictive(), "posterior_predictive", known),
        (fit.predictive(known=[1, -1]), "predictions", np.array([1, -1])),
    ):
        label = values(tree, group, "x")[:, :, 0] > 0
        for number, one in enumerate(classes):
            joint = prior if one < 0 else prior * table[:, one]
            expected = joint[1] / joint.sum()
            error = np.sqrt(expected * (1 - expected) / len(label))
            assert abs(label[:, number].mean() - expected) < 4.5 * error


LINES = {
    "weights": [0.3, 0.7],
    "intercept": [-50.0, 50.0],
    "slope": [1.0, -1.0],
    "noise": [60.0, 60.0],
}


def test_labels_of_known_groups_are_drawn_given_their_data():
    y, times = np.array([-10.0, 20.0, 30.0, -5.0]), np.array([0.0, 1.0, 0.0, 2.0])
    subjects = np.array(["a", "b", "c", "c"])
    links = sb.Links([(0, 1)], [2.0], 3)
    fit = told(models.lines, (y, times, subjects, links), LINES, num_clusters=2)
    prob = fit.responsibilities()
    assert 0.02 < prob[0, 0] < 0.98
    sharp = LINES | {"noise": [1.0, 1.0]}
    apart = told(models.lines, (y, times, subjects, links), sharp, num_clusters=2)
    # labels follow the wide densities that were fitted, and the data the same ones: told apart by mean
    for tree, group, names in (
        (fit.predictive(), "posterior_predictive", subjects),
        (
            fit.predictive(times=np.zeros(3), subjects=["c", "z", "a"]),
            "predictions",
            ["c", "z", "a"],
        ),
    ):
        drawn = values(tree, group, "y")
        when = times if group == "posterior_predictive" else np.zeros(3)
        for row, name in enumerate(names):
            own = LINES["weights"] if name == "z" else prob["abc".index(name)]
            lines = np.array(LINES["intercept"]) + np.array(LINES["slope"]) * when[row]
            error = drawn[:, row].std() / np.sqrt(len(drawn))
            assert abs(drawn[:, row].mean() - own @ lines) < 4.5 * error
    # rows of one subject share its label
    both = values(apart.predictive(times=np.zeros(2), subjects=["z", "z"]), "predictions", "y") > 0
    assert (both[:, 0] == both[:, 1]).all()
    assert 0.6 < both.mean() < 0.8


def test_counts_at_new_designs():
    rng = np.random.default_rng(0)
    design, new = rng.normal(size=(4, 2)), rng.normal(size=(4, 2))
    beta = np.array([0.7, -0.4])
    fit = told(models.counts, (np.array([1.0, 0, 2, 5]), design), {"beta": beta})
    for tree, group, rows in (
        (fit.predictive(), "posterior_predictive", design),
        (fit.predictive(design=new), "predictions", new),
    ):
        drawn = values(tree, group, "events")
        assert drawn.dtype.kind == "i"
        assert_moments(drawn, np.exp(rows @ beta), np.diag(np.exp(rows @ beta)))
    assert fit.predictive()["observed_data"]["events"].dtype.kind == "i"


SURVIVAL = {"level": 1.0, "spread": 2.0, "noise": 0.3, "hazard": 0.2, "pull": -0.5}


@pytest.fixture(scope="module")
def survival():
    effect = np.array([-1.0, 0.5, 3.0])
    y, times, subjects = np.zeros(4), np.arange(4.0), np.array(["c", "a", "b", "a"])
    known = pd.Series([1.0, 0.0, 1.0], index=["a", "b", "c"])
    given = (y, times, subjects, np.ones(3), known)
    return told(models.joint_survival, given, SURVIVAL | {"effect": effect})


def test_sites_of_known_subjects_keep_their_draws(survival):
    tree = survival.predictive(times=np.zeros(3), subjects=["c", "a", "c"])
    mean = SURVIVAL["level"] + SURVIVAL["spread"] * np.array([3.0, -1.0, 3.0])
    drawn = values(tree, "predictions", "y")
    assert_moments(drawn, mean, SURVIVAL["noise"] ** 2 * np.eye(3))
    until = tree["predictions"]["until"]
    assert until.dims == ("chain", "draw", "subjects")
    assert until["subjects"].to_numpy().tolist() == ["a", "c"]
    expected = np.exp(-SURVIVAL["hazard"] - SURVIVAL["pull"] * np.array([-1.0, 3.0]))
    assert_moments(values(tree, "predictions", "until"), expected, np.diag(expected**2))


def offsets(y: Annotated[ArrayLike, "rows"]):
    own = numpyro.sample("own", dist.Normal().expand([len(y)]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(own, 0.1), obs=y)


def test_rows_with_sites_of_their_own_keep_them():
    own = np.array([-3.0, 0.0, 8.0])
    fit = told(offsets, (np.zeros(3),), {"own": own})
    assert_moments(values(fit.predictive(), "posterior_predictive", "y"), own, 0.01 * np.eye(3))


def slopes(y: Annotated[ArrayLike, "rows"], times: Annotated[ArrayLike, "rows"]):
    slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
    mean = numpyro.deterministic("mean", slope * times)
    with numpyro.plate("rows", len(times)):
        numpyro.sample("log_y", dist.Normal(mean, 1.0), obs=jnp.log(y))


def test_deterministic_sites_by_row_are_computed_anew():
    times = np.arange(3.0)
    told_mean = {"slope": 2.0, "mean": 2.0 * times}
    fit = told(slopes, (np.exp(2 * times), times), told_mean)
    drawn = values(fit.predictive(times=[5.0, 0.0, 1.0]), "predictions", "log_y")
    assert_moments(drawn, [10.0, 0.0, 2.0], np.eye(3))
    exact = dist.Normal(np.array([10.0, 0.0]), 1.0).log_prob(jnp.array([1.0, 0.0]))
    np.testing.assert_allclose(fit.log_prob(np.exp([1.0, 0.0]), [5.0, 0.0]), exact, rtol=1e-6)
    np.testing.assert_allclose(
        fit.log_prob(np.exp([1.0, 0.0, 0.0]), [5.0, 0.0, 0.0])[:2], exact, rtol=1e-6
    )
    own = fit.predictive()
    np.testing.assert_allclose(own["observed_data"]["log_y"], 2 * times)
    assert_moments(values(own, "posterior_predictive", "log_y"), 2 * times, np.eye(3))


def test_deterministic_sites_by_row_are_held_out():
    times = np.arange(1.0, 7.0)
    y = np.exp(2 * times + np.random.default_rng(0).normal(size=6))
    fit = sb.fit(slopes, y, times, engine=sb.MAP(num_restarts=1), progress=False)
    folds = fit.kfold(3, progress=False)
    assert np.isfinite(folds.elpd_i).all()


def test_outcomes_of_outcomes_are_drawn_in_turn():
    fit = told(chain, (np.zeros(2), np.zeros(2)), {"mean": 1.0})
    tree = fit.predictive()
    y, w = (values(tree, "posterior_predictive", name) for name in ("y", "w"))
    assert np.abs(w - 2 * y).max() < 0.6
    assert_moments(w, [2.0, 2.0], 4.01 * np.eye(2))


def test_single_numbers_are_drawn():
    def total(y: Annotated[ArrayLike, "rows"]):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
        numpyro.sample("total", dist.Normal(mean, 0.5), obs=jnp.sum(y))

    tree = told(total, (np.ones(2),), {"mean": 1.0}).predictive()
    drawn = values(tree, "posterior_predictive", "total")
    assert tree["observed_data"]["total"] == 2.0
    assert drawn.mean() == pytest.approx(1.0, abs=0.15)
    assert drawn.std() == pytest.approx(0.5, abs=0.1)


def test_unseen_names_among_text_are_new_subjects(growth):
    """A name that was not fitted is a subject of its own, whatever it is."""
    (y, times, subjects), fit = growth
    drawn = values(fit.predictive(times=[0.0], subjects=["abe"]), "predictions", "y")
    mean, cov = conditioned(y, times, subjects, np.zeros(1), np.array(["abe"]))
    assert_moments(drawn, mean, cov)


def test_loaded_fits_predict(growth, tmp_path):
    _, fit = growth
    fit.save(tmp_path / "fit.nc")
    with pytest.raises(ValueError, match="model"):
        sb.load(tmp_path / "fit.nc", engine=fit.config).predictive()
    again = sb.load(tmp_path / "fit.nc", models.growth, engine=fit.config)
    for arguments in ({}, {"times": [0.0], "subjects": ["carl"]}):
        old, new = fit.predictive(**arguments), again.predictive(**arguments)
        for group in old:
            assert old[group].to_dataset().equals(new[group].to_dataset())
