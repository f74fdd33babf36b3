"""Newton's method: one step on a quadratic, away from saddles, few steps to all digits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.optimisers.optimise import MAP, Newton

Y = np.array([0.3, 1.2, 0.8, 2.0])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def normal(y):
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(mu @ jnp.array([1.0, 0.3]), 0.5), obs=y)


def counts(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Poisson(rate), obs=y)


def saddle(y):
    flat = dist.ImproperUniform(dist.constraints.real_vector, (), (2,))
    u, v = numpyro.sample("x", flat)
    numpyro.factor("height", -((u**2 - 1) ** 2) - (v - u) ** 2 + 0 * y.sum())


def test_a_quadratic_takes_one_step():
    result = Newton().run(Problem(normal, (jnp.asarray(Y),)))
    assert result.status.converged
    assert result.objective.shape == (1, 2)  # the start, and the mode
    design = np.array([1.0, 0.3])
    precision = np.eye(2) / 4 + len(Y) / 0.25 * np.outer(design, design)
    expected = np.linalg.solve(precision, np.ones(2) / 4 + design * Y.sum() / 0.25)
    np.testing.assert_allclose(result.params["mu"], expected, rtol=1e-12)


def test_all_digits_in_fewer_gradients_than_lbfgs():
    problem = Problem(counts, (jnp.array([3.0, 5.0, 4.0]),))
    newton = Newton(tol=1e-14).run(problem, init={"rate": 40.0})
    lbfgs = MAP(tol=1e-14, num_restarts=1).run(problem, init={"rate": 40.0})
    # mode of the constrained density, Gamma(2 + 12, 1 + 3)
    np.testing.assert_allclose(newton.params["rate"], 13 / 4, rtol=1e-12)
    assert newton.objective.shape[1] < lbfgs.objective.shape[1]


def test_saddles_are_left():
    result = Newton().run(Problem(saddle, (jnp.asarray(Y),)), init={"x": [1e-3, 0.0]})
    assert result.status.converged
    np.testing.assert_allclose(result.params["x"], [1.0, 1.0], atol=1e-6)


def test_config_is_checked():
    with pytest.raises(ValueError, match=r"Newton\(num_restarts="):
        Newton(num_restarts=0)
