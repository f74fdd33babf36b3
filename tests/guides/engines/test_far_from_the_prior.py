"""Data far from their prior, whose log joint density has a large offset."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.optimisers.moments import judge_draws
from sidebayes.guides.engines.plumbing.clock import Clock
from sidebayes.guides.engines.problem.importance import smoothed_weights
from sidebayes.guides.engines.steps.climbs import at_rest
from sidebayes.guides.engines.steps.lbfgs import minimise

import sidebayes as sb

NOISE = np.random.default_rng(5).normal(0, 1, 12)


@dataclass(frozen=True)
class Far:
    """Rows about a mean whose prior has a scale."""

    scale: float

    def __call__(self, y):
        m = numpyro.sample("m", dist.Normal(0, self.scale))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(m, 1.0), obs=y)

    def mean(self, y):
        return y.sum() / (len(y) + self.scale**-2)


def fit(offset, scale, engine, **given):
    y = offset + NOISE
    found = sb.fit(Far(scale), y, engine=engine, progress=False, **given)
    return found, Far(scale).mean(y)


def test_a_slope_that_is_small_beside_the_density_is_no_end():
    found, mean = fit(1e8, 10.0, "map")
    assert found.status.converged
    assert float(found.params["m"]) == pytest.approx(mean, abs=0.1)


def test_svi_starts_at_the_mode():
    found, mean = fit(1e6, 1e6, "svi")
    assert found.verdict[0] == "good"
    assert float(found.tree["posterior"]["m"].mean()) == pytest.approx(mean, abs=0.1)


def test_moments_are_checked_whatever_the_offset():
    assert fit(1e6, 10.0, sb.Laplace(num_restarts=1), init={"m": 1e6})[0].status.converged


def test_where_rounding_hides_differences_nothing_is_judged():
    found, _ = fit(1e9, 10.0, sb.Laplace())
    level, said = found.verdict
    assert level == "caution"
    assert "Rounding leaves errors of some" in said


def test_weights_sum_to_one_beside_a_large_offset():
    rng = np.random.default_rng(0)
    weights = smoothed_weights(-5e9 + 0.1 * rng.normal(size=1000))
    assert weights.sum() == pytest.approx(1, abs=1e-9)
    assert np.ptp(np.log(weights)) > 0.1


def test_gains_of_whole_nats_are_no_rest():
    """A gain of 2000 nats is little beside 5e13, and yet sixty standard deviations."""
    import jax

    with jax.enable_x64(True):
        value = np.asarray(-5e13)
        assert not at_rest(value, value - 2000.0, np.asarray(4000.0), 1e-7)[0]
        assert at_rest(np.asarray(-5e5), np.asarray(-5e5 - 0.01), np.asarray(0.02), 1e-7)[0]


def test_minimisation_goes_on_where_its_slope_leads_far_down():
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        scale = jnp.array([1.0, 30.0])
        end = minimise(lambda x: 1e13 + scale @ (x - 7.0) ** 2 / 2, jnp.zeros(2), 100)
        np.testing.assert_allclose(end, 7.0, atol=0.5)


def test_draws_far_out_do_not_hide_that_others_have_all_the_weight():
    """Their log densities are rounded by more than a nat, and do not matter."""
    problem = Problem(Far(10.0), (NOISE,))
    draws = np.linspace(-1.0, 1.0, 4)[:, None]
    heavy = -np.random.default_rng(0).exponential(30.0, 500)
    given = {"m": np.zeros(())}, draws, {"m": draws[:, 0]}
    for log_weights in (heavy, np.concatenate([heavy, [-1e60]])):
        judged = judge_draws(problem, *given, log_weights, Clock(), 0)
        assert not judged.close
        assert "Pareto k-hat" in judged.sentence
