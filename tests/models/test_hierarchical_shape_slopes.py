"""Updates of slopes of covariates in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.steps.update_checks import check_updates
from sidebayes.guides.engines.steps.updates import drawable, plan_updates
from sidebayes.models.blocks.block import Observation
from sidebayes.models.blocks.components.gaussians.gaussian import Gaussian
from sidebayes.models.blocks.manifolds.covariates import Slopes
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.hierarchical_shape import hierarchical_shape

import sidebayes as sb
from tests.support.two_groups import LABELS, SHAPES, SIZE, fitted, rows

pytestmark = pytest.mark.usefixtures("double")
RNG = np.random.default_rng(5)
TABLE = RNG.normal(size=(SIZE, 6)) @ RNG.normal(size=(6, 6))
TABLE[:, 0] += 3 * LABELS  # close to the difference between the groups
KNOWN = np.where(np.arange(SIZE) % 3 == 0, -1, LABELS)
COVARIANCES = ("full", "tied", "diagonal", "spherical")


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_em_rises_with_many_covariates_to_the_mode(covariance):
    given = {"covariates": TABLE, "known": KNOWN, "covariance": covariance, "num_modes": 3}
    fit = fitted(sb.EM(num_restarts=1, tol=1e-10), **given)
    rises = np.diff(fit.objective[0])
    assert fit.status.converged
    assert len(rises) < 100
    assert (rises > -1e-9 * abs(fit.objective[0, -1])).all()
    mode = sb.fit(
        "hierarchical_shape",
        **rows(SHAPES),
        **given,
        num_clusters=2,
        engine=sb.MAP(num_restarts=1),
        init=fit.params,
        progress=False,
    )
    assert mode.tree["sample_stats"]["lp"] <= fit.objective[0, -1] + 1e-4
    np.testing.assert_allclose(
        fit.params["slopes"], mode.params["slopes"], atol=2e-3 * np.abs(mode.params["slopes"]).max()
    )


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_slopes_are_drawn_from_the_full_conditional_that_the_density_has(covariance):
    def of_the_user(*data):
        hierarchical_shape(*data, num_clusters=2, num_modes=3, covariance=covariance)

    given = rows(SHAPES)
    data = given["x"], given["subjects"], jnp.asarray(given["landmarks"])
    known = sb.PartialLabels(KNOWN)
    chart = sb.shape_chart(SHAPES, 3)
    problem = Problem(of_the_user, (*data, None, known, jnp.asarray(TABLE), jnp.asarray(chart)))
    plan = drawable(plan_updates(problem), problem)
    assert not plan.rest
    chained = {name: part.chained for part in plan.parts for name in part.sites.values()}
    assert chained["mean"]
    start = {name: value[0] for name, value in initial_values(problem, 0, 1).items()}
    start["standard_slopes"] = 0.01 * RNG.normal(size=(6, 3))
    check_updates(problem, plan, start)  # against the density


def test_draws_have_mean_and_covariance_of_generalised_least_squares():
    table, size = jnp.asarray(RNG.normal(size=(30, 2))), 2
    spread = np.array([[[1.0, 0.6], [0.6, 2.0]], [[0.5, -0.2], [-0.2, 0.3]]])
    mean, deviation = RNG.normal(size=(2, size)), np.array([0.5, 3.0])
    member = RNG.dirichlet([1.0, 1.0], size=30)
    values = RNG.normal(size=(30, size))
    block = Slopes(table, jnp.asarray(deviation))
    block.slopes = jnp.asarray(RNG.normal(size=(2, size)))
    fn = LinkedMixture.__new__(LinkedMixture)
    fn.components = Gaussian(jnp.asarray(mean), covariance_matrix=jnp.asarray(spread))
    given = Observation(fn, values, {"unary": member})
    found = block.update(block.statistics(given), [fn])
    # the same, row by row
    bend, pull = np.diag(np.tile(deviation**-2, 2)), np.zeros(4)
    whole = values + np.asarray(table @ block.slopes)
    for i in range(30):
        design = np.kron(np.asarray(table)[i : i + 1], np.eye(size))  # rows of features
        for g in range(2):
            weight = member[i, g] * np.linalg.inv(spread[g])
            bend = bend + design.T @ weight @ design
            pull = pull + design.T @ weight @ (whole[i] - mean[g])
    exact = multivariate_normal(np.linalg.solve(bend, pull), np.linalg.inv(bend))
    np.testing.assert_allclose(block.mode(found, {})["slopes"].ravel(), exact.mean)
    one = jnp.asarray(RNG.normal(size=(2, size)))
    np.testing.assert_allclose(
        block.log_density(found, {"slopes": one}), exact.logpdf(np.ravel(one))
    )
    keys = jax.random.split(jax.random.key(0), 4000)
    draws = np.asarray(jax.vmap(lambda key: block.draw(key, found)["slopes"].ravel())(keys))
    z = (draws - exact.mean) @ np.linalg.inv(np.linalg.cholesky(exact.cov)).T
    assert np.abs(z.mean(axis=0)).max() < 4.5 / np.sqrt(4000)
    assert np.abs(np.cov(z.T) - np.eye(4)).max() < 4.5 * np.sqrt(2 / 4000)
