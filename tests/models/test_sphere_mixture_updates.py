"""Updates of mixtures on the sphere: agreement with independent programs, of EM and of its parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import vonmises_fisher
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.problem.declared import collapsed_sites
from sidebayes.guides.engines.problem.density import log_joint, trace_model
from sidebayes.models.blocks.directional.directional_prior import DirectionalPrior
from sidebayes.models.blocks.directional.spreads import LowRankSpread
from sidebayes.models.blocks.directional.von_mises_fisher import log_constant
from sidebayes.models.blocks.directional.von_mises_fisher_components import best_concentration
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.manifolds.directions import Direction
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.sphere_mixture import sphere_mixture

import sidebayes as sb
from tests.reference import brute_force, von_mises_fisher_em
from tests.support.sphere_fits import fit
from tests.support.spheres import around

UNIT = Direction(3).log_prob(np.eye(3)[0])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def test_von_mises_fisher_em_is_that_of_an_independent_program():
    rng = np.random.default_rng(4)
    x = np.vstack([around(rng, np.eye(5)[0], 0.4, 50), around(rng, np.eye(5)[1], 0.3, 40)])
    start = {
        "weights": np.full(2, 0.5),
        "direction_vector": x[[0, -1]],
        "concentration": np.array([3.0, 4.0]),
    }
    problem = Problem(
        sphere_mixture,
        (jnp.asarray(x),),
        {"num_clusters": 2, "family": "von_mises_fisher", "prior": "flat"},
    )
    ours = EM(max_steps=12, tol=0).run(problem, init=start, progress=False)
    weights, direction, concentration, history = von_mises_fisher_em.em(x, *start.values(), 13)
    found = ours.objective[0][np.isfinite(ours.objective[0])]
    np.testing.assert_allclose(
        found - 2 * Direction(5).log_prob(jnp.eye(5)[0]), history, rtol=1e-10
    )
    again = von_mises_fisher_em.em(x, *start.values(), 12)
    np.testing.assert_allclose(ours.params["weights"], again[0], rtol=1e-9)
    np.testing.assert_allclose(ours.params["direction"], again[1], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ours.params["concentration"], again[2], rtol=1e-8)
    assert not np.allclose(concentration, start["concentration"])
    del weights, direction


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_one_von_mises_fisher_cluster_is_that_of_scipy(size):
    rng = np.random.default_rng(size)
    x = around(rng, np.eye(size)[0], 0.5, 50)
    found = fit(x, num_clusters=1, family="von_mises_fisher", prior="flat").params
    direction, concentration = vonmises_fisher.fit(x)
    np.testing.assert_allclose(found["direction"][0], direction, atol=1e-9)
    np.testing.assert_allclose(found["concentration"][0], concentration, rtol=1e-7)


@pytest.mark.parametrize("dimension", [1, 2, 20])
def test_best_concentrations(dimension):
    """From points all over the sphere to points that coincide, with and without a prior."""
    size = jnp.full(6, 30.0)
    deficit = size * jnp.asarray([1.0, 0.999, 0.6, 1e-2, 1e-6, 0.0])
    flat = best_concentration(size, deficit, 1.0, 0.0, dimension)
    assert flat[0] < 1e-6
    assert flat[-1] > 1e14
    assert (jnp.diff(flat) > 0).all()
    found = np.asarray(best_concentration(size, deficit, 2.5, 0.05, dimension))
    assert np.isfinite(found).all()

    def height(kappa):
        prior = 1.5 * jnp.log(kappa) - 0.05 * kappa
        return size * log_constant(kappa, dimension) - kappa * deficit + prior

    for factor in (0.999, 1.001):
        assert (height(found) > height(factor * found)).all()


@pytest.mark.parametrize("prior", [None, DirectionalPrior(6.0, 0.3)])
def test_best_spread_of_low_rank(prior):
    rng = np.random.default_rng(0)
    spread = LowRankSpread(4, 2, prior)
    root = rng.normal(size=(4, 4)) * [1.0, 0.6, 0.2, 0.2]
    scatter, size = root @ root.T, jnp.asarray([9.0])
    found, height = spread.best(size, jnp.asarray(scatter)[None])

    def cost(free):
        values = {"loadings": jnp.asarray(free[:-1]), "noise": jnp.exp(jnp.asarray(free[-1]))}
        covariance = spread.covariance(values)
        value = 9 * jnp.linalg.slogdet(covariance)[1]
        value += jnp.trace(jnp.linalg.solve(covariance, jnp.asarray(scatter)))
        if prior is not None:
            value += (values["loadings"] ** 2).sum() / 0.09
            value += 8 * free[-1] + 0.09 / values["noise"]
        return value / 2

    start = np.append(np.asarray(found["loadings"][0]), np.log(found["noise"][0]))
    np.testing.assert_allclose(-cost(start), height[0], rtol=1e-10)
    assert jnp.abs(jax.grad(cost)(jnp.asarray(start))).max() < 1e-8
    for _ in range(4):
        other = minimize(jax.value_and_grad(cost), rng.normal(size=8), jac=True)
        assert other.fun >= cost(start) - 1e-7


def test_sums_over_labels_are_those_of_all_labelings():
    rng = np.random.default_rng(0)
    x = np.vstack([around(rng, np.eye(3)[0], 0.5, 3), around(rng, np.eye(3)[1], 0.5, 3)])
    links = Links([(0, 1), (1, 4), (2, 5), (3, 4)], [1.0, -0.5, -np.inf, 2.0], 6)
    known = sb.PartialLabels(np.array([-1, 0, -1, -1, -1, -1]))
    params = fit(x, num_clusters=2).params
    args = (jnp.asarray(x), as_label_graph(links, 6, 2), known)
    problem = Problem(sphere_mixture, args, {"num_clusters": 2, "reading": "relation"})
    names = ("weights", "direction_vector", "tangent_covariance")
    given = {name: jnp.asarray(params[name]) for name in names}
    ((fn, value),) = collapsed_sites(trace_model(problem, given)).values()
    factors = fn.log_factors(value)
    unary = np.asarray(fn.label_factors(factors) + factors["log_weights"])
    total, member, *_ = brute_force.infer(unary, links.pairs, links.weights)
    np.testing.assert_allclose(fn.log_partition(factors), total, rtol=1e-12)
    np.testing.assert_allclose(fn.posterior(value)["responsibilities"].values, member, atol=1e-12)
    assert np.isfinite(jax.jit(lambda at: log_joint(problem, at))(given))
