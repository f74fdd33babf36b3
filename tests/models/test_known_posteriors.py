"""Known posteriors: their moments and evidence against importance sampling from the prior."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro import handlers

from tests.reference.posteriors import EXACT
from tests.reference.posteriors.hard import POSTERIORS
from tests.reference.posteriors.known import on_grid

NUM_DRAWS, ERRORS = 200_000, 5.0


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def near_the_spike(key):
    """Half the draws lie about the mode that the prior hardly reaches."""
    wide, narrow = dist.Normal(0.0, 3.0), dist.Normal(4.0, 0.5)
    which, where = jax.random.split(key)
    theta = jnp.where(
        jax.random.bernoulli(which), wide.sample(where, (4,)), narrow.sample(where, (4,))
    )
    densities = [one.log_prob(theta).sum() for one in (wide, narrow)]
    return {"theta": theta}, densities[0] - jnp.logaddexp(*densities) + jnp.log(2.0)


def weighted(known, proposal):
    """Draws of the latent sites and their log weights."""

    def one(key):
        given, extra = proposal(key) if proposal else ({}, 0.0)
        model = handlers.substitute(handlers.seed(known.model, key), given)
        sites = handlers.trace(model).get_trace(*known.data, **known.options)
        sites = {n: site for n, site in sites.items() if site["type"] == "sample"}
        likelihood = sum(
            s["fn"].log_prob(s["value"]).sum() for s in sites.values() if s["is_observed"]
        )
        return {n: s["value"] for n, s in sites.items() if not s["is_observed"]}, likelihood + extra

    keys = jax.random.split(jax.random.key(3), NUM_DRAWS)
    draws, log_weight = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=10_000))(keys)
    return {n: np.asarray(v)[None] for n, v in draws.items()}, np.asarray(log_weight)


# ten slopes are too many for draws from the prior; `collinear` is the same formula
@pytest.mark.parametrize("name", [name for name in POSTERIORS if name != "mild_regression"])
def test_moments_and_evidence_are_those_of_weighted_draws(name):
    known = EXACT[name]()
    proposal = near_the_spike if name == "rare_mode" else None
    draws, log_weight = weighted(known, proposal)
    weight = np.exp(log_weight - log_weight.max())
    share = weight / weight.sum()
    assert 1 / (share**2).sum() > 200  # enough to tell
    evidence = np.log(weight.mean()) + log_weight.max()
    error = weight.std() / weight.mean() / np.sqrt(NUM_DRAWS)
    assert abs(evidence - known.log_evidence) < ERRORS * error
    found = known.functionals(draws)
    assert set(known.truth) <= set(found)
    for functional, (mean, sd) in known.truth.items():
        value = found[functional][0]
        for power, moment in ((value, mean), ((value - mean) ** 2, sd**2)):
            gap = power - moment
            error = np.sqrt((share**2 * gap**2).sum())
            assert abs(share @ gap) < ERRORS * error, (functional, share @ gap, error)


def test_answers_are_measured_in_standard_deviations():
    known = EXACT["no_events"]()
    mean, sd = known.truth["rate"]
    draws = {"rate": np.array([[mean + sd * (0.25 - 1.2), mean + sd * (0.25 + 1.2)]])}
    shift, spread, worst = known.errors(draws)
    assert (shift, spread, worst) == (pytest.approx(0.25), pytest.approx(0.2), "rate")


def test_grid_integrates_a_normal():
    nodes = np.append(np.linspace(-9, 0, 500), np.linspace(0.01, 9, 900))  # of uneven width
    moments, log_total = on_grid(
        lambda x: -((x - 1.0) ** 2) / 2, {"x": nodes}, {"square": lambda x: x**2}
    )
    assert log_total == pytest.approx(np.log(2 * np.pi) / 2, abs=1e-4)
    assert moments["square"] == pytest.approx((2.0, np.sqrt(6.0)), abs=1e-4)
