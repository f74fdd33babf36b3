"""MAP against modes known in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.optimisers.optimise import MAP
from sidebayes.guides.engines.steps.lbfgs import search_step, start_search

Y = np.array([0.3, 1.2, 0.8, 2.0])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def normal(y):
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0))
    numpyro.deterministic("twice", 2 * mu)
    numpyro.sample("y", dist.Normal(mu, 0.5), obs=y)


def coin(y):
    heads = numpyro.sample("heads", dist.Beta(2.0, 3.0))
    numpyro.sample("y", dist.Bernoulli(heads), obs=y)


def mixture(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(2, 2.0)))
    with numpyro.plate("clusters", 2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    parts = dist.Normal(mean, 1.0)
    numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=x)


def test_steps_are_those_of_the_inverse_hessian_built_from_the_last_differences():
    """By the dense recursion (Nocedal and Wright 2006, equations 6.17 and 7.19), memory of two."""

    @jax.jit
    def searches():
        scale = jnp.array([1.0, 5.0, 30.0])
        loss = jax.value_and_grad(lambda point: scale @ (point - 1) ** 2 + (point**4).sum())

        def go(search, _):
            search = search_step(loss, search)
            return search, (search.point, search.gradient, search.direction)

        start = start_search(jnp.array([2.0, -1.0, 0.5]), 2)
        return jax.lax.scan(go, start, length=14)[1]

    kept, pairs, before = 0, [], None
    for point, gradient, direction in zip(*map(np.asarray, searches()), strict=True):
        if before is not None and (point != before[0]).any():
            pairs = [*pairs, (point - before[0], gradient - before[1])][-2:]
            move, bend = pairs[-1]
            inverse = np.eye(3) * (move @ bend) / (bend @ bend)
            for move, bend in pairs:
                keep = np.eye(3) - np.outer(bend, move) / (bend @ move)
                inverse = keep.T @ inverse @ keep + np.outer(move, move) / (bend @ move)
            np.testing.assert_allclose(direction, -inverse @ gradient, rtol=1e-7)
            kept += 1
        before = point, gradient
    assert kept > 5


def test_normal_mode_is_exact():
    result = MAP(num_restarts=3).run(Problem(normal, (jnp.asarray(Y),)))
    expected = (1.0 / 4 + Y.sum() / 0.25) / (1 / 4 + len(Y) / 0.25)
    np.testing.assert_allclose(result.params["mu"], expected, rtol=1e-8)
    np.testing.assert_allclose(result.draws["twice"], [[2 * expected]], rtol=1e-8)
    assert result.status.converged
    assert result.sample_stats["gradient"].item() < 1e-6
    assert set(result.seconds) == {"compile", "run"}


def test_mode_is_that_of_the_constrained_density():
    y = jnp.array([1, 1, 0, 1, 1, 0, 1])
    result = MAP(num_restarts=2).run(Problem(coin, (y,)))
    # Beta(2 + 5, 3 + 2): its mode, where the unconstrained density peaks at the mean, 7/12
    np.testing.assert_allclose(result.params["heads"], 6 / 10, rtol=1e-6)
    assert result.density_space == "constrained"


def test_mixture_is_stationary_and_rises():
    rng = np.random.default_rng(0)
    x = jnp.asarray(np.concatenate([rng.normal(-4, 1, 30), rng.normal(3, 1, 20)]))
    result = MAP(num_restarts=4).run(Problem(mixture, (x,)), seed=2)
    mean, weights = result.params["mean"], result.params["weights"]
    # at the mode, each mean is the responsibility-weighted average, shrunk by its prior
    log_p = np.log(weights) - 0.5 * (np.asarray(x)[:, None] - mean) ** 2
    resp = np.exp(log_p - np.logaddexp.reduce(log_p, axis=1, keepdims=True))
    size = resp.sum(axis=0)
    np.testing.assert_allclose(mean, (resp.T @ np.asarray(x)) / (size + 0.01), rtol=1e-5)
    np.testing.assert_allclose(weights, (size + 1) / (size.sum() + 2), rtol=1e-5)
    for path in result.objective:
        assert np.all(np.diff(path[np.isfinite(path)]) >= -1e-9)
    assert result.objective.shape[0] == 4
    assert result.sample_stats["lp"].item() == pytest.approx(np.nanmax(result.objective))


def test_seed_and_init_decide_the_run():
    problem = Problem(normal, (jnp.asarray(Y),))
    first, again = (MAP(num_restarts=3).run(problem, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.objective, again.objective)
    assert again.seconds["compile"] == 0.0
    warm = MAP(num_restarts=3).run(problem, init=first)
    assert warm.objective.shape == (1, 1)
    np.testing.assert_allclose(warm.params["mu"], first.params["mu"], rtol=1e-9)


def test_broken_starts_are_set_aside_and_counted():
    def picky(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.factor("wall", jnp.where(mu > 0, 0.0, jnp.nan) * mu)
        numpyro.sample("y", dist.Normal(mu, 0.5), obs=y)

    result = MAP(num_restarts=12).run(Problem(picky, (jnp.asarray(Y),)))
    broken = int((~np.isfinite(result.objective).any(axis=1)).sum())
    assert 0 < broken < 12
    assert f"{broken} starts that broke down were set aside" in result.status.message
    np.testing.assert_allclose(result.params["mu"], Y.sum() / 0.25 / (1 + 16), rtol=1e-6)


def test_no_finite_start_names_the_site():
    with pytest.raises(FitError, match="site 'y' has log density -inf") as caught:
        MAP(num_restarts=3).run(Problem(normal, (jnp.array([0.3, jnp.nan, 0.8, 2.0]),)))
    assert set(caught.value.params) == {"mu"}


def test_too_few_steps_say_so():
    result = MAP(num_restarts=1, max_steps=1).run(
        Problem(coin, (jnp.array([1, 0, 1, 1, 1, 1, 1]),))
    )
    assert not result.status.converged
    assert "max_steps=1" in result.status.message


@pytest.mark.parametrize("wrong", [{"tol": -1.0}, {"max_steps": 0}, {"num_restarts": 0}])
def test_config_is_checked(wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=rf"MAP\({name}="):
        MAP(**wrong)
