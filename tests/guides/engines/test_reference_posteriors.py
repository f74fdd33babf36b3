"""Reference posteriors: their figures hold, their answers agree, and engines reproduce them."""

import json

import numpy as np
import pytest
from scipy.special import logsumexp, multigammaln
from scipy.stats import multivariate_normal

import sidebayes
from tests.reference import targets
from tests.reference.make_posteriors import CHAINS, DRAWS, FOLDER

NAMES = ("one_gaussian", "linked_points", "two_modes")
RECORDS = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in NAMES}
SAMPLED = [name for name in NAMES if RECORDS[name]["sampled"]]


@pytest.mark.parametrize("name", NAMES)
def test_stored_answers_are_the_exact_ones(name):
    known, stored = targets.truth(name), RECORDS[name]["exact"]
    np.testing.assert_allclose(stored["log_evidence"], known.log_evidence, rtol=1e-9)
    assert stored["functionals"].keys() == known.mean.keys()
    for key, moments in stored["functionals"].items():
        np.testing.assert_allclose(moments["mean"], known.mean[key], rtol=1e-9)
        if known.sd[key] is not None:
            np.testing.assert_allclose(moments["sd"], known.sd[key], rtol=1e-9)


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_are_acceptable(name):
    run = RECORDS[name]["sampled"]
    assert run["divergences"] == 0
    assert run["least_efmi"] > 0.2
    for key, found in run["functionals"].items():
        assert found["r_hat"] < 1.01
        assert abs(found["lag_1"]) < 0.05
        assert found["num_draws"] == CHAINS * (200 if key in targets.PAIRS else DRAWS)


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_agree_with_the_exact_answers(name):
    exact = RECORDS[name]["exact"]["functionals"]
    for key, found in RECORDS[name]["sampled"]["functionals"].items():
        assert abs(found["mean"] - exact[key]["mean"]) < 4 * found["mcse_mean"]
        if exact[key]["sd"] is not None and "covariance" not in key:  # those have heavy tails
            np.testing.assert_allclose(found["sd"], exact[key]["sd"], rtol=0.05)


def test_evidence_of_one_gaussian_by_determinants():
    """Murphy (2007), Conjugate Bayesian analysis of the Gaussian distribution, eq. 266."""
    (_, x), given = targets.posterior("one_gaussian")
    prior, (n, d) = given["prior"], x.shape
    away = x.mean(axis=0) - np.asarray(prior.mean)
    weight = prior.shrinkage * n / (prior.shrinkage + n)
    after = np.asarray(prior.scale) + n * np.cov(x.T, bias=True) + weight * np.outer(away, away)

    def half(df, scale):
        return multigammaln(df / 2, d) - df / 2 * np.linalg.slogdet(scale)[1]

    expected = half(prior.df + n, after) - half(prior.df, np.asarray(prior.scale))
    expected += d / 2 * np.log(prior.shrinkage / (prior.shrinkage + n)) - n * d / 2 * np.log(np.pi)
    assert targets.truth("one_gaussian").log_evidence == pytest.approx(expected)


def test_two_modes_on_a_grid():
    x = targets.posterior("two_modes")[0][1]
    side = np.linspace(-6.0, 6.0, 301)
    theta = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1)
    log_density = multivariate_normal([0.9, 0.5], 4 * np.eye(2)).logpdf(theta)
    both = [
        sum(multivariate_normal(np.zeros(2), np.eye(2)).logpdf(row - s * theta) for row in x)
        for s in (1, -1)
    ]
    log_density += logsumexp(both, axis=0) + np.log(0.5)
    known = targets.truth("two_modes")
    log_evidence = logsumexp(log_density) + 2 * np.log(side[1] - side[0])
    assert log_evidence == pytest.approx(known.log_evidence, abs=1e-6)
    mass = np.exp(log_density - logsumexp(log_density))
    for key, value in targets.functionals("two_modes", {"theta": theta}).items():
        mean = (mass * value).sum()
        assert mean == pytest.approx(known.mean[key], abs=1e-3)
        sd = np.sqrt((mass * (value - mean) ** 2).sum())
        assert sd == pytest.approx(known.sd[key], abs=1e-3)


ENGINES = {
    "one_gaussian": sidebayes.NUTS(num_warmup=500, num_chains=8),
    "linked_points": sidebayes.BlockedGibbs(num_samples=2000, num_chains=8),
    "two_modes": sidebayes.SMC(num_particles=500, num_runs=8),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:clusters cannot be matched")
@pytest.mark.parametrize("name", NAMES)
def test_an_engine_reproduces_the_reference(name):
    pytest.importorskip("blackjax")
    args, given = targets.posterior(name)
    fit = sidebayes.fit(*args, engine=ENGINES[name], seed=3, progress=False, **given)
    sites = {key: value.to_numpy() for key, value in fit.tree["posterior"].data_vars.items()}
    prob = fit.tree["responsibilities"]["prob"].to_numpy()
    values = targets.functionals(name, sites) | targets.label_functionals(name, prob)
    known = targets.truth(name)
    for key, value in values.items():
        # chains are independent, so the spread of their means is the error of the mean
        means = value.mean(axis=1)
        error = means.std(ddof=1) / np.sqrt(len(means))
        assert abs(means.mean() - known.mean[key]) < 5 * error
        assert error < 0.2 * value.std()
    if fit.log_evidence is not None:
        found = fit.log_evidence
        assert abs(found.value - known.log_evidence) < 4 * found.standard_error
