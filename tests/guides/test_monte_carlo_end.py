"""Monte-Carlo EM where steps are short beside what is left: when it ends, and what it says."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.optimize import minimize_scalar
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.expectation_maximisation.monte_carlo_walk import (
    Gain,
    hidden_rise,
    left_to_rise,
)
from sidebayes.models.blocks.block import Block

import sidebayes as sb

SPREAD, NOISE = 0.6, 1.0


class Rows(Block):
    """Latent rows of individuals, near their data."""

    factor, roles = "none", ("rows",)

    def __init__(self, x):
        self.x = x

    def guess(self):
        return self.x

    def schedule(self):
        return None


def noisy(x):
    """Individuals whose spread is small beside the noise that they are seen in, so that EM is slow."""
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    prior = dist.Normal(0.0, spread).expand(jnp.shape(x)).to_event(1)
    with numpyro.plate("rows", len(x)):
        rows = numpyro.sample("latent", prior, infer={"block": Rows(x), "role": "rows"})
        numpyro.sample("x", dist.Normal(rows, NOISE).to_event(1), obs=x)


def lacking(x, spread):
    """Nats that the log posterior of a spread lacks of its maximum."""

    def loss(value):
        variance = value**2 + NOISE**2
        return (x**2).sum() / variance / 2 + x.size * np.log(variance) / 2 + value**2 / 8

    best = minimize_scalar(loss, bounds=(1e-3, 3.0), method="bounded")
    return loss(float(spread)) - best.fun


def test_a_run_that_converged_is_near_the_top():
    x = np.random.default_rng(0).normal(size=(400, 5)) * math.sqrt(SPREAD**2 + NOISE**2)
    engine = sb.MonteCarloEM(num_samples=64, max_samples=256, num_warmup=20)
    fit = sb.fit(noisy, x, engine=engine, progress=False)
    assert fit.status.converged
    assert lacking(x, fit.params["spread"]) < 1.0


def test_a_run_that_was_cut_short_says_what_is_left():
    x = np.random.default_rng(0).normal(size=(400, 5)) * math.sqrt(SPREAD**2 + NOISE**2)
    engine = sb.MonteCarloEM(num_samples=64, max_samples=64, num_warmup=20, max_steps=4)
    with jax.enable_x64(True):
        found = engine.run(Problem(noisy, (jnp.asarray(x),)), progress=False)
    assert not found.status.converged
    said = found.status.message
    left = float(said.split(" nats may be left")[0].split()[-1])
    true = lacking(x, found.params["spread"])
    assert true / 4 < left < 4 * true


@pytest.mark.parametrize("r", [0.3, 0.7, 0.95])
def test_what_is_left_of_a_geometric_climb_is_known(r):
    """Of a quadratic log likelihood, whose surrogate is steeper by 1 / (1 - r)."""
    apart = r ** np.arange(9)
    gains = [Gain(g, 0.0, 9) for g in (apart[:-1] - apart[1:]) ** 2 / 2 / (1 - r)]
    left = left_to_rise(gains, 1.645)
    exact = apart[-1] ** 2 / 2
    assert exact <= left < 1.01 * exact / r**6  # the mean of four rises stands for the last
    noisy = left_to_rise([gain._replace(error=1e-3 * gain.mean) for gain in gains], 1.645)
    assert noisy > left


def test_rises_that_do_not_fall_tell_nothing():
    assert left_to_rise([], 1.645) == math.inf
    assert left_to_rise([Gain(1.0, 0.1, 9)], 1.645) == math.inf
    assert left_to_rise([Gain(1.0, 0.1, 9)] * 8, 1.645) == math.inf


def test_only_steps_of_all_draws_show_no_rise():
    still = Gain(-0.2, 0.1, 400)
    assert hidden_rise([still] * 3, 2.0, 400) is None
    assert hidden_rise([still._replace(num_draws=200), *[still] * 3], 2.0, 400) is None
    assert hidden_rise([Gain(0.3, 0.1, 400)] * 4, 2.0, 400) is None
    assert hidden_rise([still] * 4, 2.0, 400) == pytest.approx((0.8 + 0.4) / 4)
