"""Nested sampling where the likelihood is zero, or constant, on a part of the prior."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.samplers.from_prior import nested
from sidebayes.guides.engines.samplers.from_prior.nested import NestedSlice
from sidebayes.guides.engines.samplers.from_prior.smc import SMC

pytest.importorskip("blackjax")

SMALL = NestedSlice(num_live=100, num_delete=20, num_samples=100)
NUM_RUNS = 8
LOG_LIKELIHOODS = {
    "zero below 1": lambda mu, xp: xp.where(mu > 1, -((mu - 0.4) ** 2), -xp.inf),
    "zero on 99 per cent": lambda mu, xp: xp.where(mu > 2.3, -((mu - 0.4) ** 2), -xp.inf),
    "three values": lambda mu, xp: xp.where(mu > 1.5, 3.0, xp.where(mu > 0.5, 1.0, -2.0)),
    "plateau below a peak": lambda mu, xp: xp.maximum(-50 * (mu - 1.2) ** 2, -4.0),
    "plateau at the top": lambda mu, xp: xp.minimum(-50 * (mu - 1.2) ** 2, -1.0),
    "constant": lambda mu, xp: 2.5 + 0 * mu,
    "narrow peak": lambda mu, xp: xp.where(mu > 2.5, 8.0 - mu, -4.0),
    "zero everywhere": lambda mu, xp: xp.where(mu > 30, 0.0, -xp.inf),
}
WITHIN_ERRORS = list(LOG_LIKELIHOODS)[:5]


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def model(which):
    """All likelihoods are one program: which of them counts is a number in the data."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    values = jnp.stack([own(mu, jnp) for own in LOG_LIKELIHOODS.values()])
    numpyro.factor("likelihood", values[which])


def problem_of(name):
    return Problem(model, (jnp.asarray(list(LOG_LIKELIHOODS).index(name)),))


def exact(log_likelihood):
    """Log evidence and posterior mean, by quadrature."""
    mu = np.linspace(-8, 8, 400_001)
    density = stats.norm.pdf(mu) * np.exp(log_likelihood(mu, np))
    total = np.trapezoid(density, mu)
    return np.log(total), np.trapezoid(mu * density, mu) / total


@pytest.mark.parametrize("name", WITHIN_ERRORS)
def test_stated_errors_cover_the_evidence(name):
    problem, (expected, mean) = problem_of(name), exact(LOG_LIKELIHOODS[name])
    found = [SMALL.run(problem, seed=seed, progress=False) for seed in range(NUM_RUNS)]
    error = np.array([one.log_evidence.value - expected for one in found])
    stated = np.array([one.log_evidence.standard_error for one in found])
    assert np.sum(np.abs(error) <= 2 * stated) >= NUM_RUNS - 1
    assert abs(error.mean()) < 0.12  # some three standard errors of the mean of these runs
    assert stated.mean() < 0.25
    assert np.mean([one.draws["mu"].mean() for one in found]) == pytest.approx(mean, abs=0.1)


def test_the_status_tells_the_share_of_the_prior():
    found = SMALL.run(problem_of("zero on 99 per cent"), progress=False)
    assert "; the likelihood is not zero on 0.0" in found.status.message
    assert (found.draws["mu"] > 2.3).all()


def test_a_constant_likelihood_is_known_at_once():
    found = SMALL.run(problem_of("constant"), progress=False)
    assert found.log_evidence.value == pytest.approx(2.5, abs=1e-12)
    assert "after 0 replacements" in found.status.message
    assert abs(found.draws["mu"].mean()) < 0.2


def test_a_peak_that_few_live_points_see_is_said():
    found = SMALL.run(problem_of("narrow peak"), progress=False)
    assert not found.status.converged
    assert "raise num_live" in found.status.message


@pytest.mark.parametrize("engine", [SMALL, SMC(num_particles=50)])
def test_a_likelihood_that_is_zero_everywhere_is_refused(engine):
    with pytest.raises(FitError, match="no draw of the prior has a finite likelihood"):
        engine.run(problem_of("zero everywhere"), progress=False)


def test_widths_of_plateaus_are_shares_of_points():
    """Of 40 draws 10 have a likelihood; of these 6 tie, one is above them alone, and 3 tie on top."""
    rng = np.random.default_rng(0)
    found = np.mean(
        [
            np.exp(nested._log_widths(rng, np.array([10, 4, 3]), np.array([6, 1, 3]), 40, 10))
            for _ in range(40)
        ],
        axis=(0, 1),
    )
    above = 0.25 * 0.4  # of the volume, above the first plateau
    shell = above * (1 - 0.8)  # the largest of four uniform numbers is 0.8 on average
    expected = [0.25 * 0.6 + shell / 2, shell / 2, above * 0.8]
    np.testing.assert_allclose(found, expected, rtol=0.05)
