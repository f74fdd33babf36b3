"""Monte-Carlo EM where the mode is known, and where its last steps fail."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from arviz_stats.base import array_stats
from scipy.stats import gamma
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.expectation_maximisation import monte_carlo_walk

from sidebayes import MonteCarloEM

Y = np.array([0.2, 1.4, -0.3, 2.2, 0.9])
QUICK = MonteCarloEM(
    sampled=("effect",), num_samples=80, max_samples=160, num_warmup=50, num_final=4
)


def effects(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", len(y)):
        effect = numpyro.sample("effect", dist.Normal(mean, 1.0))
        numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def fitted():
    return QUICK.run(Problem(effects, (Y,)), progress=False)


def test_the_mode_is_found_within_its_monte_carlo_error():
    found = fitted()
    exact = Y.sum() / 2 / (len(Y) / 2 + 1 / 9)  # effects integrated out: y ~ Normal(mean, sqrt(2))
    error = found.standard_errors["mean"]
    assert 0 < error < 0.05
    assert abs(found.draws["mean"][0, 0] - exact) < 4 * error


def counts(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", len(y)):
        level = numpyro.sample("effect", dist.Gamma(2.0, rate))
        numpyro.sample("y", dist.Poisson(level), obs=y)


def test_draws_at_the_estimate_are_those_of_the_conditional_posterior():
    seen = np.array([0, 3, 1, 7, 2])
    found = replace(QUICK, num_final=0).run(Problem(counts, (seen,)), progress=False)
    draws, rate = found.conditional_draws["effect"], found.draws["rate"][0, 0]
    assert list(found.conditional_draws) == ["effect"]
    assert draws.shape == (4, 100, 5)
    ess = array_stats.ess(draws, chain_axis=0, draw_axis=1)
    exact = gamma(2 + seen, scale=1 / (rate + 1))
    np.testing.assert_array_less(abs(draws.mean((0, 1)) - exact.mean()), 4 * exact.std() / ess**0.5)
    share = (draws < exact.ppf(0.8)).mean((0, 1))
    np.testing.assert_array_less(abs(share - 0.8), 4 * 0.4 / ess**0.5)
    np.testing.assert_allclose(
        found.draws["effect"][0, 0], np.exp(np.log(draws).mean((0, 1))), rtol=0.1
    )


def test_only_newton_steps_that_were_taken_are_claimed(monkeypatch):
    newton, taken = monte_carlo_walk.Walk.newton, []

    def once(self, *given):
        taken.append(given)
        if len(taken) == 1:
            newton(self, *given)
        else:
            self.is_singular = True

    monkeypatch.setattr(monte_carlo_walk.Walk, "newton", once)
    found = fitted()
    assert len(taken) == 2
    assert found.standard_errors is None
    assert "after 1 Newton steps the observed information is singular" in str(found.status)


def test_more_draws_are_added_chain_by_chain():
    walk = monte_carlo_walk.Walk.__new__(monte_carlo_walk.Walk)
    walk.config = MonteCarloEM(sampled=("effect",), num_chains=2)
    few, more = {"b": np.array([0, 1, 10, 11])}, {"b": np.array([2, 12])}
    assert walk.joined(few, more)["b"].tolist() == [0, 1, 2, 10, 11, 12]
