"""Pairwise Gaussian-process classifier: enumeration, closed forms, the propositions of Lu (2008)."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy.special import log_softmax
from sidebayes.diagnostics.trust.scores import accuracy
from sidebayes.guides.code_length import code_length
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import log_joint, trace_model
from sidebayes.models.blocks.label_inference.approximate import MeanField
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.pairwise_gp import pairwise_gp

import sidebayes
from tests.support.basics import responsibilities
from tests.support.draws import at_one

RNG = np.random.default_rng(0)
LOOPY = [(0, 1), (1, 2), (0, 2), (2, 3), (4, 5)]
STRENGTHS = np.array([1.3, -0.8, 2.0, np.inf, -np.inf])
ENGINE = sidebayes.MAP(num_restarts=4, tol=1e-10)
K = np.exp(-0.3 * np.abs(np.arange(6)[:, None] - np.arange(6)))
"""A kernel of unit diagonal."""
APART = Links([(0, 1), (3, 5)], [3.0, -3.0])
"""One must-link, one cannot-link."""
SOME = Links.from_pairs([(0, 1), (3, 4)], [1, 0], 2.0, 24)
QUICK = {"num_clusters": 2, "engine": sidebayes.MAP(num_restarts=2), "progress": False}
"""With links among 24 points of three features, so that fits of several tests share their programs."""


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def problem(x, links, **options):
    return Problem(pairwise_gp, (jnp.asarray(x), LabelGraph.build(links, len(x))), options)


def statements(latent, links, likelihood="exact"):
    """Log-probability of the links at given latent functions, shape (num_points, num_clusters)."""
    points, clusters = latent.shape
    kwargs = {"num_clusters": clusters, "variance": 2.0, "likelihood": likelihood}
    given = problem(np.eye(points), links, **kwargs)

    @jax.jit
    def value(latent):
        site = trace_model(given, {"coefficients": latent.T})["statements"]
        return site["fn"].log_prob(site["value"])

    return value(latent)


def as_two(f):
    """The thesis' one function as two of opposite sign."""
    return jnp.stack([f, -f], axis=-1) / 2


def enumerated(latent, pairs, weights):
    """Sum over all labelings of a product of statement probabilities."""
    points, clusters = latent.shape
    log_prob = log_softmax(latent, axis=1)
    right = 1 / (1 + np.exp(-np.asarray(weights)))
    total = 0.0
    for z in product(range(clusters), repeat=points):
        term = np.exp(log_prob[np.arange(points), z].sum())
        for (i, j), p in zip(pairs, right, strict=True):
            term *= p if z[i] == z[j] else 1 - p
        total += term
    return np.log(total)


@pytest.mark.parametrize("clusters", [2, 3])
def test_exact_likelihood_is_the_sum_over_labelings(clusters):
    latent = 2 * RNG.normal(size=(6, clusters))
    expected = enumerated(latent, LOOPY, STRENGTHS)
    np.testing.assert_allclose(statements(latent, Links(LOOPY, STRENGTHS)), expected, atol=1e-10)


@pytest.mark.parametrize("clusters", [2, 3])
def test_factorised_likelihood_is_exact_for_disjoint_pairs(clusters):
    """Check 17; soft and hard."""
    pairs, weights = [(0, 1), (2, 3), (4, 5)], [-1.2, np.inf, -np.inf]
    latent = 2 * RNG.normal(size=(6, clusters))
    found = statements(latent, Links(pairs, weights), "factorised")
    np.testing.assert_allclose(found, enumerated(latent, pairs, weights), atol=1e-10)


def test_likelihoods_of_a_forest_and_of_a_triangle_at_zero():
    """Check 17: values of the thesis' unnormalised factors."""
    zero = np.zeros((3, 2))
    triangle = Links([(0, 1), (1, 2), (0, 2)], 1.0)
    unit = 3 * np.log(1 + np.e)
    np.testing.assert_allclose(statements(zero, triangle) + unit, 1.954459, atol=1e-6)
    factorised = statements(zero, triangle, "factorised")
    np.testing.assert_allclose(factorised + unit, 1.860344, atol=1e-6)
    forest = Links([(0, 1), (1, 2)], [1.0, -2.0])
    exact, factorised = statements(zero, forest), statements(zero, forest, "factorised")
    np.testing.assert_allclose(exact, factorised, atol=1e-10)
    tilted = as_two(jnp.array([1.0, -2.0, 0.5]))
    assert abs(statements(tilted, forest) - statements(tilted, forest, "factorised")) > 1e-3


def test_product_is_nearer_than_the_bound():
    """Fig. 4.2: ten random statements among twelve points."""
    rng = np.random.default_rng(4)
    code = rng.choice(66, 10, replace=False)
    pairs = np.stack(np.triu_indices(12, 1), axis=1)[code]
    links = Links(pairs, 10 * rng.normal(size=10))
    latent = as_two(5 * rng.normal(size=(50, 12)))
    value = {
        name: np.asarray(jax.vmap(lambda one, n=name: statements(one, links, n))(latent))
        for name in ("exact", "factorised", "jensen")
    }
    assert (value["jensen"] <= value["exact"] + 1e-9).all()
    off = {name: np.abs(found - value["exact"]).mean() for name, found in value.items()}
    assert off["factorised"] < off["jensen"] / 2


def test_slope_and_curvature_at_zero():
    """Check 18; hard links keep finite slopes."""
    links = Links([(0, 1), (2, 3), (4, 5)], [1.5, -0.7, -np.inf], 6)

    def value(f):
        return statements(as_two(f), links, "factorised")

    slope = jax.jit(jax.grad(value))
    np.testing.assert_array_equal(slope(jnp.zeros(6)), 0.0)
    curvature = np.zeros((6, 6))
    for (i, j), w in zip(links.pairs, links.weights, strict=True):
        curvature[i, j] = curvature[j, i] = np.tanh(w / 2) / 4
    np.testing.assert_allclose(jax.jit(jax.hessian(value))(jnp.zeros(6)), curvature, atol=1e-12)
    assert np.isfinite(slope(jnp.array([9.0, 9, 9, 9, 40, 40]))).all()


def test_labels_are_exchangeable():
    """Proposition 1 for three classes: the density does not see how they are numbered."""
    links = Links(LOOPY, STRENGTHS)
    given = problem(RNG.normal(size=(6, 4)), links, num_clusters=3)
    coefficients = RNG.normal(size=(3, 4))
    density = jax.jit(lambda values: log_joint(given, {"coefficients": values}))
    value = density(coefficients)
    for order in ([1, 2, 0], [2, 1, 0]):
        other = density(coefficients[order])
        np.testing.assert_allclose(other, value, atol=1e-10)


def mode(variance, links=APART):
    """The thesis' f at the mode, its variance in the features: one program for all calls."""
    root = np.linalg.cholesky(K) * np.sqrt(variance)
    found = ENGINE.run(problem(root, links, num_clusters=2, variance=1.0), seed=1)
    first, second = found.params["coefficients"]
    np.testing.assert_allclose(first, -second, atol=1e-6)
    return root @ (first - second) / np.sqrt(2)


def test_mode_is_at_zero_until_the_variance_suffices():
    """Check 18: below 4 over the largest eigenvalue of K T."""
    agreement = np.zeros((6, 6))
    agreement[[0, 1], [1, 0]], agreement[[3, 5], [5, 3]] = np.tanh(1.5), -np.tanh(1.5)
    least = 4 / np.linalg.eigvals(K @ agreement).real.max()
    assert np.abs(mode(0.95 * least)).max() < 1e-3
    assert np.abs(mode(1.05 * least)).max() > 0.1


def test_a_mode_at_zero_says_that_labels_are_arbitrary():
    x = np.random.default_rng(1).normal(size=(24, 3))

    def verdict(weight, coefficients):
        links = Links.from_pairs(SOME.pairs, SOME.weights > 0, weight, 24)
        engine = at_one({"variance": 1.0, "coefficients": coefficients})
        return sidebayes.fit("pairwise_gp", x, links, **QUICK | {"engine": engine}).verdict

    level, said = verdict(0.01, np.zeros((2, 3)))
    assert level == "caution"
    assert "labels are arbitrary" in said
    assert "arbitrary" not in verdict(2.0, [[1.0, -1.0, 0.5], [-1.0, 1.0, -0.5]])[1]


def test_points_without_links_follow_those_with():
    """Check 20, proposition 2; and 21: without cannot-links all points are of one class."""
    f = mode(20.0)
    linked, free = [0, 1, 3, 5], [2, 4]
    expected = K[np.ix_(free, linked)] @ np.linalg.solve(K[np.ix_(linked, linked)], f[linked])
    np.testing.assert_allclose(f[free], expected, atol=1e-4)
    assert f[3] * f[5] < 0
    alike = mode(20.0, Links([(0, 1), (3, 5)], [3.0, 3.0]))
    assert (alike > 0.1).all() or (alike < -0.1).all()


@pytest.mark.parametrize(("weight", "exact"), [(np.inf, -0.4430), (-np.inf, -1.0276)])
def test_evidence_of_two_points(weight, exact):
    """Dossier's value of the integral over f, here by Gauss-Hermite quadrature."""
    node, mass = np.polynomial.hermite_e.hermegauss(60)
    root = np.linalg.cholesky(20 * np.array([[1, 0.5], [0.5, 1]]))
    f = np.stack(np.meshgrid(node, node), axis=-1).reshape(-1, 2) @ root.T
    links = Links([(0, 1)], [weight])
    value = jax.jit(jax.vmap(lambda one: statements(as_two(one), links, "factorised")))(f)
    weights = np.outer(mass, mass).ravel() / mass.sum() ** 2
    np.testing.assert_allclose(np.log(weights @ np.exp(value)), exact, atol=2e-3)


@pytest.mark.parametrize(("weight", "one_mode"), [(np.inf, -0.4810), (-np.inf, -0.9651)])
def test_laplace_of_two_points(weight, one_mode):
    """Check 24: the dossier's value counts the two modes, which differ in sign alone."""
    root = np.linalg.cholesky(np.array([[1, 0.5], [0.5, 1]]))
    given = problem(root, Links([(0, 1)], [weight]), num_clusters=2, variance=20.0)
    found = sidebayes.Laplace(num_restarts=4).run(given, progress=False)
    assert found.log_evidence.value + np.log(2) == pytest.approx(one_mode, abs=1e-3)
    latent = np.sqrt(10.0) * root @ found.draws["coefficients"].mean(axis=(0, 1)).T
    mode = np.abs(latent[:, 0] - latent[:, 1])
    np.testing.assert_allclose(mode, 2.347 if weight > 0 else 1.4033, atol=0.4)


def test_laplace_of_statements_that_overlap():
    """A product over statements can be differentiated twice, fixed points cannot."""
    links = Links([(0, 1), (1, 2), (0, 2)], [2.0, 1.0, -2.0], 6)
    options = {"num_clusters": 2, "variance": 20.0, "inference": MeanField(max_table=0)}
    engine = sidebayes.Laplace(num_restarts=4)
    found = engine.run(problem(K, links, likelihood="factorised", **options), progress=False)
    assert "statements factorised" in found.approximate
    with pytest.raises(ValueError, match="second derivatives"):
        engine.run(problem(K, links, **options), progress=False)


def test_fit_predicts_points_outside_the_graph():
    data = sidebayes.load_dataset("two_spirals", num_points=160)
    links = sidebayes.simulate_links(data.labels, 30, seed=1)
    kernel = sidebayes.choose_graph_kernel(data.x, links)
    fit = sidebayes.fit(
        "pairwise_gp", kernel.features(), links, num_clusters=2, engine=ENGINE, progress=False
    )
    assert fit.status.converged
    z = fit.labels()
    np.testing.assert_array_equal(z[links.pairs[:, 0]] == z[links.pairs[:, 1]], links.same)
    assert accuracy(data.labels, z) > 0.95
    new = sidebayes.load_dataset("two_spirals", num_points=100, seed=9)
    assert accuracy(new.labels, fit.predict(kernel.features(new.x))) > 0.95
    latent = kernel.features() @ fit.params["coefficients"].T * np.sqrt(5.0)
    prob = np.exp(log_softmax(latent, axis=1))
    np.testing.assert_allclose(fit.predict_proba(kernel.features()), prob, atol=1e-8)
    with pytest.raises(ValueError, match="pairwise_gp is a classifier"):
        fit.log_prob(kernel.features(new.x))


@pytest.mark.parametrize("unit", [1e-4, 1.0, 1e5])
def test_default_variance_is_in_units_of_the_kernel(unit):
    def coefficients(x, **options):
        given = problem(x, APART, num_clusters=2, **options)
        trace = trace_model(given, {"coefficients": np.ones((2, x.shape[1]))})
        return trace["statements"]["fn"].components.coefficients

    x = np.random.default_rng(1).normal(size=(6, 3))
    np.testing.assert_allclose(unit * coefficients(unit * x), coefficients(x), rtol=1e-12)
    root = np.linalg.cholesky(K)  # of unit diagonal
    np.testing.assert_allclose(coefficients(root), coefficients(root, variance=10.0), rtol=1e-12)


def test_predictions_have_the_variance_of_the_fit():
    x = np.random.default_rng(1).normal(size=(24, 3))
    fit = sidebayes.fit("pairwise_gp", x, SOME, **QUICK)
    variance = float(fit.tree["posterior"]["variance"].squeeze())
    assert variance == pytest.approx(10 / np.square(x).sum(axis=1).mean())
    alone, all_rows = fit.predict_proba(x[:1]), fit.predict_proba(x)
    np.testing.assert_allclose(alone, all_rows[:1], rtol=1e-10)


def test_features_far_from_zero_are_said():
    x = np.random.default_rng(1).normal(size=(24, 3))
    with pytest.warns(sidebayes.SideBayesWarning, match="x lies far from zero: 9[0-9]%"):
        sidebayes.fit("pairwise_gp", x + 5.0, SOME, **QUICK)
    with pytest.raises(ValueError, match="x is zero at all points"):
        sidebayes.fit("pairwise_gp", 0.0 * x, SOME, **QUICK)


def test_features_that_vanish_nearly_everywhere_are_no_far_rows():
    """Columns of a kernel's features may be of a few points; a row of another length is told."""
    x = np.random.default_rng(1).normal(size=(24, 2))
    sparse = np.concatenate([x, 1e-6 * RNG.normal(size=(24, 1))], axis=1)
    sparse[3, 2] = 1.0
    engine = at_one({"coefficients": np.ones((2, 3)), "variance": 1.0})
    given = {"num_clusters": 2, "engine": engine, "progress": False}
    sidebayes.fit("pairwise_gp", sparse, SOME, **given)
    sparse[3] = 1e6
    with pytest.warns(sidebayes.SideBayesWarning, match="length of the rows of x .* in row 3;"):
        sidebayes.fit("pairwise_gp", sparse, SOME, **given)


def test_labels_given_the_functions_heed_the_links():
    x = RNG.normal(size=(6, 3))
    links = Links([(0, 1), (1, 2), (3, 4)], [1.0, -2.0, np.inf], 6)
    coefficients = RNG.normal(size=(3, 3))
    given = problem(x, links, num_clusters=3, variance=2.0, likelihood="factorised")
    found = responsibilities(given, {"coefficients": coefficients})
    log_prob = log_softmax(x @ coefficients.T, axis=1)
    z = np.array(list(product(range(3), repeat=6)))
    score = log_prob[np.arange(6), z].sum(axis=1)
    for (i, j), w in zip(links.pairs, [1.0, -2.0, 40.0], strict=True):
        score += w * (z[:, i] == z[:, j])
    weight = np.exp(score - score.max())
    expected = np.stack([weight @ (z == k) for k in range(3)], axis=1) / weight.sum()
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_learned_sites():
    given = problem(
        K, APART, num_clusters=2, variance=dist.LogNormal(2.0, 1.0), flip_rate="learned",
        likelihood="factorised",
    )  # fmt: skip
    values = {"variance": 3.0, "flip_rate": 0.2, "coefficients": RNG.normal(size=(2, 6))}

    @jax.jit
    def weights(values):
        trace = trace_model(given, values)
        assert {n for n, s in trace.items() if s["type"] == "sample"} == {*values, "statements"}
        return trace["statements"]["fn"].labels.pair_weights

    np.testing.assert_allclose(weights(values), np.log(4) * np.array([1.0, -1.0]))


def test_approximations_are_named():
    def name(links, likelihood):
        model = handlers.seed(pairwise_gp, jax.random.key(0))
        options = {"num_clusters": 2, "likelihood": likelihood}
        return (
            handlers.trace(model).get_trace(K, links, **options)["statements"]["fn"].approximation()
        )

    chain = Links([(0, 1), (1, 2)], 1.0)
    assert name(chain, "exact") is None
    assert name(APART, "factorised") is None
    assert name(chain, "factorised") == "statements factorised"
    assert name(APART, "jensen") == "Jensen's bound"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"likelihood": "product"}, "expected one of"),
        ({"variance": 0.0}, "variance = 0.0"),
        ({"variance": [1.0, 2.0]}, r"variance = \[1.0, 2.0\]"),
        ({"likelihood": "jensen", "links": APART.hardened()}, "soft links only"),
        ({"x": None}, "no density of points"),
    ],
)
def test_bad_input(options, message):
    given = {"x": K, "links": APART, "num_clusters": 2} | options
    with pytest.raises(ValueError, match=message), handlers.seed(rng_seed=0):
        pairwise_gp(**given)


def test_a_variance_that_is_no_number_is_named():
    with pytest.raises(TypeError, match="variance = 'wide'; expected real numbers"):
        pairwise_gp(K, APART, num_clusters=2, variance="wide")


@pytest.mark.slow
def test_marginals_of_the_full_posterior_are_uniform():
    """Check 19, proposition 1, and the agreement of a hard-linked pair, which has a meaning."""
    links = Links([(0, 1), (3, 5)], [np.inf, -np.inf])
    root = np.linalg.cholesky(K)
    engine = sidebayes.NUTS(num_warmup=300, num_samples=1500, num_chains=4)
    found = engine.run(problem(root, links, num_clusters=2), seed=1, progress=False)
    f = np.sqrt(5.0) * np.einsum("nd,csmd->csnm", root, found.draws["coefficients"])
    prob = np.exp(log_softmax(f, axis=-1))
    np.testing.assert_allclose(prob.mean(axis=(0, 1))[:, 0], 0.5, atol=0.05)
    agree = np.sum(prob[:, :, 0] * prob[:, :, 1], axis=-1).mean()
    assert agree > 0.7


def test_overlapping_statements_factorised_are_fitted_and_named():
    x = np.random.default_rng(0).normal(size=(12, 2))
    links = Links.from_pairs([(0, 1), (1, 2), (3, 4)], [1, 0, 1], 2.0, 12)
    given = {"num_clusters": 2, "likelihood": "factorised", "engine": sidebayes.MAP(num_restarts=1)}
    found = sidebayes.fit("pairwise_gp", x, links, **given, progress=False)
    assert found.approximate == "statements factorised"
    assert found.labels().shape == (12,)
    np.testing.assert_array_equal(found.labels(), found.responsibilities().argmax(axis=1))


def test_rows_that_no_statement_is_about_are_not_charged_for():
    x = np.random.default_rng(1).normal(size=(24, 3))
    fit = sidebayes.fit("pairwise_gp", x, SOME, **QUICK)
    likelihood = float(fit.unit_terms.sum())
    assert fit.bic == pytest.approx(3 * np.log(2) - 2 * likelihood)


@pytest.mark.parametrize("clusters", [2, 3])
def test_only_differences_of_the_latent_functions_are_charged_for(clusters):
    """The softmax is the same where one function is added to all."""
    x = np.random.default_rng(2).normal(size=(24, 5))
    problem = Problem(pairwise_gp, (x, SOME), {"num_clusters": clusters})
    cost = code_length(problem, {"coefficients": np.ones((clusters, 5))}, 7)
    assert cost == pytest.approx((clusters - 1) * 5 * np.log(7) / 2)
