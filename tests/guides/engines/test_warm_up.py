"""Warm-up of Hamiltonian samplers, on normal posteriors, whose best mass matrices are known."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.samplers.hamiltonian.metric import (
    by_axes,
    by_variances,
    unit_metric,
)
from sidebayes.guides.engines.samplers.hamiltonian.paths import (
    MOST_STEPS,
    isokinetic,
    of_one_length,
    until_turning,
)
from sidebayes.guides.engines.samplers.hamiltonian.transitions import UNKNOWN, hamiltonian
from sidebayes.guides.engines.samplers.mcmc import HMC, NUTS
from sidebayes.guides.engines.samplers.microcanonical import MCLMC

SCALES = np.geomspace(1e-3, 1e3, 7)
CORRELATION = 0.9
TREE = until_turning(10)
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


def learned(covariance, num_moves, follow=TREE, **settings):
    """States of a chain after each transition."""
    ready, move = hamiltonian(follow, 400, **settings)
    energy = normal(covariance)
    first = ready({"z": jnp.ones(len(covariance))}, jax.random.key(0))

    def step(chain, _):
        chain = move(chain, energy)
        learned = chain.warm_up
        return chain, (
            learned.metric.covariance,
            learned.step_size,
            learned.metric,
            chain.num_steps,
        )

    return jax.jit(lambda chain: jax.lax.scan(step, chain, length=num_moves))(first)[1]


@cache
def mixed(dense_mass):
    """The same under `MIXED`, to the end of the warm-up and beyond."""
    return learned(MIXED, 420, dense_mass=dense_mass)


def test_a_diagonal_finds_six_orders_of_magnitude_in_fifty_transitions():
    inverse, *_ = learned(np.diag(SCALES**2), 50)
    np.testing.assert_allclose(np.log10(np.diagonal(inverse[-1])), 2 * np.log10(SCALES), atol=0.5)


def test_a_diagonal_is_the_geometric_mean_of_variances_and_conditional_variances():
    inverse, *_ = mixed(False)
    given = 1 / np.diag(np.linalg.inv(MIXED))
    np.testing.assert_allclose(np.diagonal(inverse[-1]), np.sqrt(np.diag(MIXED) * given), rtol=0.4)


def test_trajectories_of_one_length_are_measured_in_standard_deviations():
    inverse, *_ = learned(MIXED, 400, follow=of_one_length(1.5), by_slopes=False)
    inverse = np.diagonal(inverse[-1])
    np.testing.assert_allclose(inverse, np.diag(MIXED), rtol=0.4)


def test_a_full_matrix_is_the_covariance():
    inverse, *_ = mixed(True)
    scale = np.sqrt(np.diag(MIXED))
    np.testing.assert_allclose(
        inverse[-1] / np.outer(scale, scale), MIXED / np.outer(scale, scale), atol=0.4
    )


def test_mass_matrix_and_step_rest_where_they_should():
    inverse, step, *_ = mixed(False)
    np.testing.assert_array_equal(inverse[341:], np.broadcast_to(inverse[341], (79, 3, 3)))
    assert len(np.unique(step[341:400])) > 50
    np.testing.assert_array_equal(step[400:], np.full(20, step[400]))


def test_a_start_in_the_tail_of_a_funnel_is_left():
    ready, move = hamiltonian(TREE, 300)

    def funnel(free):
        width, rest = free["z"][0], free["z"][1:]
        return width**2 / 18 + (rest**2).sum() / (2 * jnp.exp(width)) + width * len(rest) / 2

    chain = ready({"z": jnp.array([-6.0, *np.full(4, 2.0)])}, jax.random.key(1))
    chain = jax.jit(lambda c: jax.lax.fori_loop(0, 300, lambda _, c: move(c, funnel), c))(chain)
    assert funnel(chain.z) < 30  # 8e3 where it began
    assert np.all(np.isfinite(chain.warm_up.metric.covariance))


@pytest.mark.parametrize("kind", ["tree", "one length", "isokinetic"])
def test_the_first_transition_goes_nowhere_and_finds_energy_and_slope(kind):
    paths = {"tree": TREE, "one length": of_one_length(1.5), "isokinetic": isokinetic(1.5)}
    ready, move = hamiltonian(paths[kind], 10)
    blank = ready({"z": jnp.array([1.0, -2.0, 3.0])}, jax.random.key(0))
    assert blank.potential_energy == UNKNOWN
    chain = jax.jit(lambda c: move(c, normal(MIXED)))(blank)
    slope = np.linalg.inv(MIXED) @ blank.z["z"]
    np.testing.assert_allclose(chain.potential_energy, blank.z["z"] @ slope / 2, rtol=1e-12)
    np.testing.assert_allclose(chain.slope, slope, rtol=1e-12)
    np.testing.assert_array_equal(chain.z["z"], blank.z["z"])
    assert chain.warm_up.number == 0


adapted, turned = jax.jit(by_variances), jax.jit(by_axes)


def factors(size, rank):
    """Covariance of a factor model, whose leading directions a diagonal cannot follow."""
    loadings = np.random.default_rng(0).normal(size=(size, rank)) * np.geomspace(10, 2, rank)
    return loadings @ loadings.T + np.diag(np.geomspace(0.7, 1.4, size))


def condition(metric, covariance):
    """Ratio of the largest and least variance in the coordinates of a metric."""
    to_sites = jax.vmap(metric.moved, out_axes=1)(jnp.eye(len(covariance)))
    inverse = np.linalg.inv(to_sites)
    return np.linalg.cond(inverse @ covariance @ inverse.T)


@pytest.mark.parametrize(
    ("size", "rank", "number", "before", "after"), [(30, 3, 40, 300, 8), (200, 4, 100, 2e3, 20)]
)
def test_axes_take_few_draws_of_a_normal(size, rank, number, before, after):
    """Slopes and draws together: forty draws of thirty coordinates, a hundred of two hundred."""
    covariance, diagonal, metric = turned_to_axes(size, rank, number)
    assert condition(diagonal, covariance) > before
    assert condition(metric, covariance) < after
    axes = metric.axes
    np.testing.assert_allclose(axes.T @ axes, np.eye(axes.shape[1]), atol=1e-8)


@cache
def turned_to_axes(size, rank, number):
    """Covariance of a factor model, and what is learned of it without axes and with them."""
    covariance = factors(size, rank)
    draws = np.random.default_rng(1).multivariate_normal(np.zeros(size), covariance, number)
    slopes = draws @ np.linalg.inv(covariance)
    scatter = jnp.stack([draws.var(axis=0), slopes.var(axis=0)]) * number
    metric = unit_metric(size, "low_rank")._replace(scale=jnp.full(size, 5.0))
    diagonal = adapted(metric, scatter, jnp.asarray(number), jnp.asarray(True))
    empty = jnp.zeros((20, size))  # places without draws, which must not matter
    rows = [jnp.concatenate([part, empty + 1e6]) for part in (draws, slopes)]
    weight = jnp.concatenate([jnp.ones(number), jnp.zeros(20)])
    for _ in range(5):  # each moves variances by at most ten times
        found = adapted(metric, scatter, jnp.asarray(number), jnp.asarray(True))
        metric = turned(found, *rows, weight)
    return covariance, diagonal, metric


def test_without_slopes_masses_are_of_draws():
    """As where the density jumps: a coordinate whose slopes are zero beside one that has some."""
    draws = np.random.default_rng(2).normal(0.0, [0.2, 3.0], (100, 2))
    slopes = draws / [np.inf, 9.0]
    scatter = jnp.stack([draws.var(axis=0), slopes.var(axis=0)]) * 100
    start = unit_metric(2, False)._replace(scale=jnp.array([0.3, 2.0]))
    found = adapted(start, scatter, jnp.asarray(100), jnp.asarray(True))
    np.testing.assert_allclose(found.scale, [draws[:, 0].std(ddof=1), 3.0], rtol=1e-6)


@pytest.mark.parametrize("draws", [np.zeros((5, 3)), np.ones((5, 3)) * np.arange(5)[:, None]])
def test_draws_that_have_not_moved_leave_the_axes(draws):
    start = unit_metric(3, "low_rank")
    found = turned(start, jnp.asarray(draws), jnp.zeros((5, 3)), jnp.ones(5))
    assert all(np.isfinite(part).all() for part in found)
    assert np.all(found.stretch > 0)


def test_slopes_go_to_the_coordinates_and_back():
    rng = np.random.default_rng(0)

    @jax.jit
    def both_ways(metric, slope):
        there = metric.slope_of_coordinates(slope)
        return there, metric.slope_of_sites(there)

    last = (jax.tree.map(lambda part: part[-1], mixed(dense)[2]) for dense in (False, True))
    for metric in (*last, turned_to_axes(30, 3, 40)[2]):
        slope = rng.normal(size=len(metric.covariance))
        there, back = both_ways(metric, slope)
        np.testing.assert_allclose(back, slope, rtol=1e-8)
        np.testing.assert_allclose(there @ there, slope @ metric.covariance @ slope, rtol=1e-8)


def test_a_low_rank_shortens_trajectories_where_coordinates_are_correlated():
    covariance = factors(20, 2)
    steps = [
        learned(covariance, 500, dense_mass=kind)[3][-100:].mean() for kind in (False, "low_rank")
    ]
    assert steps[1] < 0.7 * steps[0]


def test_a_start_far_off_leaves_no_chain_stuck():
    """Draws on the way down a steep wall lie along it, and say little of other directions."""
    heights = np.random.default_rng(0).normal(66.0, 4.0, 1000)
    rows = np.column_stack([np.ones(1000), heights])
    best, square = np.array([-61_000.0, 1300.0]), jnp.asarray(rows.T @ rows)

    def energy(free):  # a regression of earnings on heights, by its sums of squares
        beta, log_scale = free["z"][:2], free["z"][2]
        residual = 1000 * 19_000.0**2 + (beta - best) @ square @ (beta - best)
        return 999 * log_scale + residual / (2 * jnp.exp(2 * log_scale))

    ready, move = hamiltonian(TREE, 500, dense_mass="low_rank")

    @jax.jit
    def last(start, key):
        chain = ready({"z": start}, key)
        chain = jax.lax.fori_loop(0, 500, lambda _, chain: move(chain, energy), chain)
        return chain.warm_up.step_size, chain.num_steps

    for seed in range(20):
        start = jnp.asarray(np.random.default_rng(seed).uniform(-2, 2, 3))
        step, num_steps = last(start, jax.random.key(seed))
        assert step > 0.3
        assert num_steps <= 15


def test_long_trajectories_are_met_with_advice():
    steps = {"n_steps": np.array([[19, 25], [31, 21]])}
    said = [NUTS(dense_mass=kind)._report(steps)[1] for kind in (False, "low_rank", True)]
    assert said[0] == '; 24 leapfrog steps per draw, of which dense_mass="low_rank" may need fewer'
    assert said[1:] == ["", ""]
    assert not NUTS()._report({"n_steps": np.array([[19, 15]])})[1]


@pytest.mark.parametrize("engine", [NUTS(max_tree_depth=3), HMC(), MCLMC()], ids=lambda e: e.name)
def test_advice_for_trajectories_cut_off_is_what_the_model_needs(engine):
    steps = {"n_steps": np.full((2, 3), 2 * MOST_STEPS)}
    assert "rescale the data" in engine._report(steps)[1]
    said = engine._report(steps, "use SMC")[1]
    assert said.endswith(": use SMC")


def hundred():
    numpyro.sample(
        "z", dist.Normal(jnp.zeros(100), jnp.asarray(np.geomspace(0.1, 10, 100))).to_event(1)
    )


@pytest.mark.parametrize("target", [0.7, 0.9])
@pytest.mark.parametrize(("kind", "error"), [(NUTS, 0.04), (HMC, 0.06), (MCLMC, 0.04)])
def test_acceptance_is_what_was_asked_for(kind, error, target):
    """NumPyro's dual averaging gives .82 and .78 for .7; the number of steps of HMC is whole."""
    if kind is MCLMC:
        pytest.importorskip("blackjax")
    engine = kind(num_warmup=600, num_samples=300, num_chains=2, target_accept=target)
    stats = engine.run(Problem(hundred, ()), seed=3, progress=False).sample_stats
    assert abs(stats["acceptance_rate"].mean() - target) < error


def test_long_trajectories_are_cut_off_and_said_to_be():
    engine = HMC(num_warmup=1, num_samples=3, num_chains=1, trajectory_length=1e6)
    found = engine.run(Problem(hundred, ()), seed=3, progress=False)
    np.testing.assert_array_equal(found.sample_stats["n_steps"], MOST_STEPS)
    assert f"3 trajectories were cut off at {MOST_STEPS}" in found.status.message
