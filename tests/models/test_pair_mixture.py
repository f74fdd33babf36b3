"""Mixture with pairwise relations: Yu (2016), acceptance checks 25-28, 30-32, 34."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.handlers import seed, trace
from scipy.special import gammaln
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.problem.density import abstract_trace, log_joint, trace_model
from sidebayes.guides.engines.steps.surrogate import expectation, shares
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.side_information.copies import separate_pairs
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.constrained_em import constrained_em
from sidebayes.models.gmm import gmm
from sidebayes.models.pair_mixture import pair_mixture
from sidebayes.models.ppc import ppc
from sklearn.mixture import GaussianMixture

import sidebayes
from tests.reference import brute_force, pair_relations
from tests.support.pairs import (
    CANNOT,
    DISJOINT,
    MUST,
    X,
    Y,
    latent,
    log_prior,
    problem_of,
    some_params,
)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def likelihood(problem, params):
    """Log likelihood, and the posterior that the E-step finds."""
    step = jax.jit(lambda params, args: expectation(problem, params, args))
    value, posterior = step(latent(params), problem.args)
    return value - log_prior(params), jax.tree.map(np.asarray, posterior["x"])


def density_of(problem, params):
    return jax.jit(lambda p, a: log_joint(problem, p, a))(params, problem.args)


def test_without_links_it_is_the_plain_mixture():
    """Check 25: steps and value are scikit-learn's."""
    given = some_params(num_components=1)
    plain = GaussianMixture(
        3,
        max_iter=2000,
        tol=1e-12,
        reg_covar=0.0,
        weights_init=given["weights"],
        means_init=given["mean"][:, 0],
        precisions_init=np.linalg.inv(given["covariance"][:, 0]),
    ).fit(X)
    result = EM(tol=1e-14, max_steps=2000).run(problem_of(), init=latent(given))
    np.testing.assert_allclose(result.params["mean"][:, 0], plain.means_, atol=1e-5)
    np.testing.assert_allclose(result.params["covariance"][:, 0], plain.covariances_, atol=1e-5)
    value = result.sample_stats["lp"].item() - log_prior(given)
    np.testing.assert_allclose(value, plain.score(X) * len(X), atol=1e-8)


def test_without_links_only_the_set_of_components_counts():
    params = some_params(2, 3)
    flat = {
        "weights": (params["weights"][:, None] * params["component_weights"]).ravel(),
        "mean": params["mean"].reshape(6, 2),
        "covariance": params["covariance"].reshape(6, 2, 2),
    }
    other = Problem(gmm, (jnp.asarray(X),), {"num_clusters": 6, "prior": "flat"})
    value, _ = likelihood(problem_of(num_clusters=2, num_components=3), params)
    np.testing.assert_allclose(value, density_of(other, flat) - gammaln(6))


@pytest.mark.parametrize(
    ("law", "num_components"), [("shared", 1), ("shared", 2), ("conditional", 2), ("joint", 2)]
)
def test_density_and_posterior_are_those_of_the_thesis(law, num_components):
    """Checks 31 and 32: value, class and component probabilities against plain NumPy."""
    params = some_params(num_components=num_components)
    value, share, count = pair_relations.e_step(X, MUST, CANNOT, params, law)
    problem = problem_of(X, DISJOINT, num_components=num_components, pair_law=law)
    found, slope = likelihood(problem, params)
    np.testing.assert_allclose(found, value, rtol=1e-12)
    np.testing.assert_allclose(slope["unary"], share, atol=1e-10)
    np.testing.assert_allclose(slope["log_within"], share.sum(axis=0), atol=1e-9)
    np.testing.assert_allclose(slope["log_weights"], count, atol=1e-9)
    member = shares(slope)
    np.testing.assert_allclose(member, share.sum(axis=2), atol=1e-10)
    np.testing.assert_allclose(member.sum(axis=1), 1.0)
    np.testing.assert_allclose(member[MUST[:, 0]], member[MUST[:, 1]])


def test_pair_laws_are_laws():
    """Checks 26 and 27: masses one, or those of agreeing and differing; one normaliser a pair."""
    for num_clusters in (2, 3, 5):
        weights = np.random.default_rng(num_clusters).dirichlet(np.ones(num_clusters))
        agree = np.sum(weights**2)
        for law in ("shared", "conditional"):
            np.testing.assert_allclose(pair_relations.must_law(weights, law).sum(), 1.0)
            np.testing.assert_allclose(pair_relations.cannot_law(weights, law).sum(), 1.0)
        np.testing.assert_allclose(pair_relations.must_law(weights, "joint").sum(), agree)
        np.testing.assert_allclose(pair_relations.cannot_law(weights, "joint").sum(), 1 - agree)
    half = pair_relations.cannot_law(np.array([0.9, 0.1]), "shared")
    np.testing.assert_allclose(half, [[0, 0.5], [0.5, 0]])
    params = some_params() | {"weights": np.array([0.5, 0.3, 0.2])}
    value = [
        likelihood(
            problem_of(X, Links.cannot_link(CANNOT), num_components=2, pair_law=law), params
        )[0]
        for law in ("shared", "joint")
    ]
    np.testing.assert_allclose(value[0] - value[1], len(CANNOT) * 0.4780, atol=1e-3)


@pytest.mark.parametrize(("law", "same"), [("shared", False), ("conditional", True)])
def test_density_of_a_pair_integrates_to_one(law, same):
    """Check 26, by quadrature over both points."""
    grid = np.linspace(-8, 8, 81)
    points = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    params = {
        "weights": jnp.array([0.6, 0.3, 0.1]),
        "mean": jnp.linspace(-3, 3, 6).reshape(3, 2, 1),
        "component_weights": jnp.tile(jnp.array([0.3, 0.7]), (3, 1)),
        "covariance": jnp.full((3, 2, 1, 1), 0.5),
    }
    links = Links.from_pairs([(0, 1)], [same])
    problem = problem_of(np.zeros((2, 1)), links, num_components=2, pair_law=law)

    @jax.jit
    def total(params, args, points):
        density = trace_model(problem, params, args)["x"]["fn"].log_prob
        return jnp.exp(jax.vmap(density)(points)).sum() * (grid[1] - grid[0]) ** 2

    np.testing.assert_allclose(total(params, problem.args, points), 1.0, atol=1e-6)


def test_overlapping_links_are_summed_jointly():
    """Dossier P.7, exact: a chain and a triangle against all labelings."""
    links = Links.must_link([(0, 1)]) + Links.cannot_link([(1, 2), (2, 3), (4, 5), (5, 6), (4, 6)])
    few, params = X[::10][:8], some_params()
    logs = pair_relations.component_logs(few, params)
    unary = np.logaddexp.reduce(logs, axis=2) + np.log(params["weights"])
    log_z, marginals, *_ = brute_force.infer(unary, links.pairs, links.weights)
    value, slope = likelihood(problem_of(few, links, num_components=2, pair_law="joint"), params)
    np.testing.assert_allclose(value, log_z, rtol=1e-12)
    np.testing.assert_allclose(shares(slope), marginals, atol=1e-12)


def test_separate_pairs_count_every_link_by_itself():
    """Dossier P.7, copies: the product of the densities of all links and of the lone points."""
    links = Links.must_link([(0, 1), (1, 2)]) + Links.cannot_link([(0, 2), (2, 3)])
    few, params = X[::12], some_params()
    rows, apart = separate_pairs(links, len(few))
    lone = few[np.setdiff1d(np.arange(len(few)), links.pairs)]
    none, one = np.zeros((0, 2), int), np.array([[0, 1]])
    expected = pair_relations.e_step(lone, none, none, params, "shared")[0]
    for pair, same in zip(links.pairs, links.same, strict=True):
        must, cannot = (one, none) if same else (none, one)
        expected += pair_relations.e_step(few[pair], must, cannot, params, "shared")[0]
    value, _ = likelihood(problem_of(few[rows], apart, num_components=2), params)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    with pytest.raises(ValueError, match="3"):
        separate_pairs(links, 3)


@pytest.mark.parametrize(
    ("law", "model", "extra"),
    [
        ("shared", constrained_em, {}),
        ("conditional", ppc, {}),
        ("joint", ppc, {"reading": "relation"}),
    ],
)
def test_other_methods_are_special_cases(law, model, extra):
    """Check 34: two-point chunklets, hard PPC, and links as statements."""
    params = some_params(num_components=1)
    plain = {n: v[:, 0] if v.ndim > 2 else v for n, v in latent(params).items()}
    ours = problem_of(X, DISJOINT, pair_law=law)
    theirs = Problem(model, ours.args, {"num_clusters": 3, "prior": "flat"} | extra)
    value, _ = likelihood(ours, params)
    np.testing.assert_allclose(value + log_prior(params), density_of(theirs, plain))


def test_posterior_constraints_at_level_zero_are_the_joint_law():
    """Check 34: EM-PC, the projection of the posterior on labels that differ."""
    params = some_params(num_components=1)
    joint = pair_relations.component_logs(X, params)[:, :, 0] + np.log(params["weights"])
    prob = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    for a, b in CANNOT:  # the dual of each constraint in its limit
        table = np.outer(prob[a], prob[b]) * np.exp(-60 * np.eye(3))
        table /= table.sum()
        prob[a], prob[b] = table.sum(axis=1), table.sum(axis=0)
    _, slope = likelihood(problem_of(X, Links.cannot_link(CANNOT), pair_law="joint"), params)
    np.testing.assert_allclose(shares(slope), prob, atol=1e-9)
    np.testing.assert_allclose(slope["log_weights"], prob.sum(axis=0), atol=1e-9)


def test_it_simulates():
    prior = GaussianPrior(np.zeros(2), 0.05, 6.0, np.eye(2))
    options = {"num_clusters": 3, "num_components": 2, "prior": prior, "pair_law": "joint"}

    @jax.jit
    def simulate(key):
        sites = trace(seed(pair_mixture, key)).get_trace(None, num_points=50, **options)
        return {name: sites[name]["value"] for name in ("weights", "mean", "x")}

    drawn = simulate(jax.random.key(0))
    assert {name: value.shape for name, value in drawn.items()} == {
        "weights": (3,),
        "mean": (3, 2, 2),
        "x": (50, 2),
    }


def test_a_fit_answers_for_classes():
    links = sidebayes.simulate_links(Y, 15, seed=2)
    engine = sidebayes.EM(num_restarts=1, max_steps=20)
    fit = sidebayes.fit(
        "pair_mixture", X, links, num_clusters=3, num_components=2, engine=engine, progress=False
    )
    prob, labels = fit.responsibilities(), fit.labels()
    assert prob.shape == (len(X), 3)
    first, second = labels[links.pairs].T
    np.testing.assert_array_equal(first == second, links.same)
    assert fit.tree["posterior"]["mean"].dims[2:] == ("clusters", "components", "features")
    assert fit.tree["posterior"]["component_weights"].dims[2:] == ("clusters", "components")
    free = np.setdiff1d(np.arange(len(X)), links.pairs)
    np.testing.assert_allclose(fit.predict_proba(X)[free], prob[free], atol=1e-9)
    assert len(fit.plot().axes) > 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"pair_law": "thesis"}, ValueError, "pair_law = 'thesis'; expected one of"),
        ({"num_components": 0}, ValueError, "num_components = 0; expected an integer >= 1"),
        ({"num_components": 1.5}, ValueError, "num_components = 1.5; expected an integer"),
        ({"covariance": "banded"}, ValueError, "covariance = 'banded'; expected one of"),
    ],
)
def test_bad_options_are_named(options, error, message):
    with pytest.raises(error, match=message):
        sidebayes.fit("pair_mixture", X, num_clusters=2, progress=False, **options)


def test_inexact_sums_need_the_joint_law():
    pairs = np.array([(i, j) for i in range(25) for j in range(i)])
    links = Links.from_pairs(pairs, Y[pairs[:, 0]] == Y[pairs[:, 1]], 1.0)
    with pytest.raises(ValueError, match="pair_law = 'shared' needs the normaliser"):
        abstract_trace(problem_of(X, links, inference="mean_field"))
    abstract_trace(problem_of(X, links, inference="mean_field", pair_law="joint"))
