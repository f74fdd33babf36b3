"""The prior of spreads on the sphere: one law for covariances, variances, concentrations; a weak one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import invgamma, invwishart, kstest
from sidebayes.models.blocks.directional.directional_prior import DirectionalPrior
from sidebayes.models.blocks.directional.spreads import SphericalSpread
from sidebayes.models.blocks.directional.von_mises_fisher_components import best_concentration


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("dimension", [1, 3, 8])
def test_the_law_of_one_variance_is_that_of_a_covariance_along_a_direction(dimension):
    prior = DirectionalPrior(dimension + 3.5, 0.4)
    shape, rate = prior.of_variance(dimension)
    scale = 0.4**2 * np.eye(dimension)
    draws = invwishart(prior.df, scale).rvs(4000, random_state=0).reshape(4000, -1)[:, 0]
    assert kstest(draws, invgamma(float(shape), scale=float(rate)).cdf).pvalue > 0.01


def test_the_empirical_prior_hardly_moves_a_variance_in_many_dimensions():
    """By less than half the standard error of 25 points."""
    dimension, rng = 49, np.random.default_rng(0)
    x = np.column_stack([np.ones(25), 0.1 * rng.normal(size=(25, dimension))])
    prior = DirectionalPrior.empirical(x / np.linalg.norm(x, axis=1, keepdims=True), 1)
    own = float(prior.scale) ** 2  # the mean variance of the data

    @jax.jit
    def best(size):
        scatter = 25 * own * jnp.eye(dimension)[None]
        wrapped = SphericalSpread(dimension, prior).best(size, scatter)[0]["spread"]
        deficit = size * own * dimension / 2
        return wrapped, *(
            1 / best_concentration(size, deficit, *law, dimension)
            for law in (prior.of_variance(dimension), (1.0, 0.0))
        )

    wrapped, mises, flat = best(jnp.array([25.0]))
    error = np.sqrt(2 / (25 * dimension))
    assert abs(np.log(wrapped / own)) < error / 2
    assert abs(np.log(mises / flat)) < error / 2
