"""Random effects integrated out, against the linear mixed models of statsmodels."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import statsmodels.api as sm
from sidebayes.models.blocks.effects.densities.random_effects import RandomEffects
from sidebayes.models.blocks.side_information.groups import Groups

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def growth():
    """Simulated growth curves with random intercepts and slopes, and their ML fit."""
    rng = np.random.default_rng(8)
    subject = np.repeat(np.arange(40) + 100, rng.integers(2, 9, size=40))
    rng.shuffle(subject)
    age = rng.uniform(-1, 1, size=len(subject))
    x = np.column_stack([np.ones(len(subject)), age])
    effects = rng.normal(size=(40, 2)) @ np.array([[1.0, 0.3], [0.0, 0.8]])
    y = x @ [2.0, -1.0] + (x * effects[subject - 100]).sum(axis=1) + 0.5 * rng.normal(size=len(x))
    fit = sm.MixedLM(y, x, subject, exog_re=x).fit(reml=False, gtol=1e-7, maxiter=500)
    fn = RandomEffects(
        x @ fit.fe_params,
        x,
        Groups(subject),
        scale_tril=np.linalg.cholesky(fit.cov_re),
        noise=np.sqrt(fit.scale),
    )
    return SimpleNamespace(x=x, y=y, subject=subject, fit=fit, fn=fn)


def test_log_likelihood_of_statsmodels(growth):
    fit, fn = growth.fit, growth.fn
    assert fit.converged
    np.testing.assert_allclose(
        jax.jit(fn.log_prob)(growth.y), fit.model.loglike(fit.params_object), atol=1e-6
    )

    def density(flat):
        scale_tril = jnp.zeros((2, 2)).at[jnp.tril_indices(2)].set(flat[2:5])
        loc = growth.x @ flat[:2]
        fn = RandomEffects(loc, growth.x, growth.fn.groups, scale_tril=scale_tril, noise=flat[5])
        return fn.log_prob(growth.y)

    corner = fn.scale_tril[jnp.tril_indices(2)]
    flat = jnp.concatenate([fit.fe_params, corner, fn.noise[None]])
    slope = jax.jit(jax.grad(density))
    np.testing.assert_allclose(slope(flat), 0.0, atol=2e-3)  # their optimum is ours
    assert np.abs(slope(1.01 * flat)).max() > 0.1


def test_posterior_means_are_the_blups_of_statsmodels(growth):
    found = jax.device_get(jax.jit(growth.fn.posterior)(growth.y))
    blups, spreads = growth.fit.random_effects, growth.fit.random_effects_cov
    for code, name in enumerate(growth.fn.groups.names):
        np.testing.assert_allclose(found["effects"].values[code], blups[name], atol=1e-8)
        np.testing.assert_allclose(
            found["effects_covariance"].values[code], spreads[name], atol=1e-8
        )
