"""Warm-up of Hamiltonian samplers, on normal posteriors, whose best mass matrices are known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.samplers.hamiltonian.transitions import (
    MOST_STEPS,
    UNKNOWN,
    hamiltonian,
)
from sidebayes.guides.engines.samplers.mcmc import HMC, NUTS

SCALES = np.geomspace(1e-3, 1e3, 7)
CORRELATION = 0.9
MIXED = np.array([[1.0, CORRELATION, 0.0], [CORRELATION, 1.0, 0.0], [0.0, 0.0, 1e-4]])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def normal(covariance):
    precision = jnp.asarray(np.linalg.inv(covariance))

    def energy(free):
        return free["z"] @ precision @ free["z"] / 2

    return energy


def learned(covariance, num_moves, start=1.0, **settings):
    """States of a chain after each transition."""
    ready, move = hamiltonian(400, **settings)
    energy = normal(covariance)
    first = ready({"z": jnp.full(len(covariance), start)}, jax.random.key(0))

    def step(chain, _):
        chain = move(chain, energy)
        return chain, (chain.warm_up.metric.inverse, chain.warm_up.step_size, chain.accept_prob)

    return jax.jit(lambda chain: jax.lax.scan(step, chain, length=num_moves))(first)[1]


def test_a_diagonal_finds_six_orders_of_magnitude_in_fifty_transitions():
    inverse, _, _ = learned(np.diag(SCALES**2), 50)
    np.testing.assert_allclose(np.log10(inverse[-1]), 2 * np.log10(SCALES), atol=0.5)


def test_a_diagonal_is_the_geometric_mean_of_variances_and_conditional_variances():
    inverse, _, _ = learned(MIXED, 400)
    given = 1 / np.diag(np.linalg.inv(MIXED))
    np.testing.assert_allclose(inverse[-1], np.sqrt(np.diag(MIXED) * given), rtol=0.4)


def test_trajectories_of_one_length_are_measured_in_standard_deviations():
    inverse, _, _ = learned(MIXED, 400, trajectory_length=1.5)
    np.testing.assert_allclose(inverse[-1], np.diag(MIXED), rtol=0.4)


def test_a_full_matrix_is_the_covariance():
    inverse, _, _ = learned(MIXED, 400, dense_mass=True)
    scale = np.sqrt(np.diag(MIXED))
    np.testing.assert_allclose(
        inverse[-1] / np.outer(scale, scale), MIXED / np.outer(scale, scale), atol=0.25
    )


def test_mass_matrix_and_step_rest_where_they_should():
    inverse, step, _ = learned(MIXED, 420)
    np.testing.assert_array_equal(inverse[341:], np.broadcast_to(inverse[341], (79, 3)))
    assert len(np.unique(step[341:400])) > 50
    np.testing.assert_array_equal(step[400:], np.full(20, step[400]))


def test_a_start_in_the_tail_of_a_funnel_is_left():
    ready, move = hamiltonian(300)

    def funnel(free):
        width, rest = free["z"][0], free["z"][1:]
        return width**2 / 18 + (rest**2).sum() / (2 * jnp.exp(width)) + width * len(rest) / 2

    chain = ready({"z": jnp.array([-6.0, *np.full(4, 2.0)])}, jax.random.key(1))
    chain = jax.jit(lambda c: jax.lax.fori_loop(0, 300, lambda _, c: move(c, funnel), c))(chain)
    assert funnel(chain.z) < 20  # 8e3 where it began
    assert np.all(np.isfinite(chain.warm_up.metric.inverse))


def test_the_first_transition_goes_nowhere_and_finds_energy_and_slope():
    for settings in ({}, {"trajectory_length": 1.5}):
        ready, move = hamiltonian(10, **settings)
        blank = ready({"z": jnp.array([1.0, -2.0, 3.0])}, jax.random.key(0))
        assert blank.potential_energy == UNKNOWN
        chain = jax.jit(lambda c, move=move: move(c, normal(MIXED)))(blank)
        value, slope = jax.value_and_grad(normal(MIXED))(blank.z)
        np.testing.assert_allclose(chain.potential_energy, value, rtol=1e-12)
        np.testing.assert_allclose(chain.slope, slope["z"], rtol=1e-12)
        np.testing.assert_array_equal(chain.z["z"], blank.z["z"])
        assert chain.warm_up.number == 0


def hundred():
    numpyro.sample(
        "z", dist.Normal(jnp.zeros(100), jnp.asarray(np.geomspace(0.1, 10, 100))).to_event(1)
    )


@pytest.mark.parametrize("target", [0.7, 0.9])
@pytest.mark.parametrize(("kind", "error"), [(NUTS, 0.04), (HMC, 0.06)])
def test_acceptance_is_what_was_asked_for(kind, error, target):
    """NumPyro's dual averaging gives .82 and .78 for .7; the number of steps of HMC is whole."""
    engine = kind(num_warmup=600, num_samples=300, num_chains=2, target_accept=target)
    stats = engine.run(Problem(hundred, ()), seed=3, progress=False).sample_stats
    assert abs(stats["acceptance_rate"].mean() - target) < error


def test_long_trajectories_are_cut_off_and_said_to_be():
    engine = HMC(num_warmup=1, num_samples=3, num_chains=1, trajectory_length=1e6)
    found = engine.run(Problem(hundred, ()), seed=3, progress=False)
    np.testing.assert_array_equal(found.sample_stats["n_steps"], MOST_STEPS)
    assert f"3 trajectories were cut off at {MOST_STEPS}" in found.status.message
