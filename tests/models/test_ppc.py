"""Penalized probabilistic clustering: Lu (2008), acceptance checks 1, 2, 8-12, 15, 16."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.optimize import minimize
from sidebayes.diagnostics.scores import accuracy
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.density import linked_site, log_joint
from sidebayes.guides.engines.surrogate import expectation, surrogate
from sidebayes.guides.ppc import match_moments, ppc_m_step
from sidebayes.models.blocks import partition
from sidebayes.models.blocks.label_graph import LabelGraph
from sidebayes.models.blocks.links import Links, certainty_weight
from sidebayes.models.ppc import ppc
from sklearn.datasets import load_iris
from sklearn.mixture import GaussianMixture

import sidebayes as sb
from tests.reference import brute_force

X, Y = load_iris(return_X_y=True)


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def reference():
    """scikit-learn's maximum-likelihood mixture of iris."""
    return GaussianMixture(3, n_init=5, random_state=0, tol=1e-9, max_iter=2000).fit(X)


@pytest.fixture(scope="module")
def reference_params(reference):
    return {
        "weights": reference.weights_,
        "mean": reference.means_,
        "covariance": reference.covariances_,
    }


def disjoint_links(num_pairs, weight=np.inf, flip_rate=0.0, seed=0):
    return sb.simulate_links(
        Y, num_pairs, flip_rate=flip_rate, weight=weight, disjoint=True, seed=seed
    )


def test_without_links_it_is_the_gaussian_mixture(reference, reference_params):
    options = {"num_clusters": 3, "prior": "flat"}
    graph = LabelGraph.build(None, 150)
    problem = Problem(ppc, (jnp.asarray(X), graph), options)
    value = float(log_joint(problem, reference_params)) - np.log(2)  # density of Dirichlet(1, 1, 1)
    np.testing.assert_allclose(value, reference.score(X) * 150, atol=1e-8)
    np.testing.assert_allclose(value, -180.1855, atol=1e-3)
    _, posterior = expectation(problem, reference_params, problem.args)
    new = ppc_m_step(**options)(reference_params, problem.args, posterior)
    for name, start in reference_params.items():
        np.testing.assert_allclose(new[name], start, atol=1e-5)


def test_soft_links_grow_into_hard_ones(reference_params):
    links = disjoint_links(30)
    found = []
    for strength in (6.0, 16.0, 40.0, np.inf):
        fit = sb.fit(
            "ppc",
            X,
            links.with_strength(strength),
            num_clusters=3,
            prior="flat",
            init=reference_params,
            engine=sb.EM(tol=1e-12, max_steps=2000),
        )
        found.append((fit.objective[0][~np.isnan(fit.objective[0])][-1], fit.params))
    gaps = [abs(value - found[-1][0]) for value, _ in found]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-6
    for name in reference_params:
        np.testing.assert_allclose(found[2][1][name], found[3][1][name], atol=1e-5)


@pytest.mark.parametrize("prior", ["flat", "empirical"])
@pytest.mark.parametrize("sampling", ["points", "chunklets"])
def test_exact_em_never_falls_and_ends_stationary(prior, sampling):
    links = disjoint_links(20, weight=2.0) + Links.must_link([(0, 1), (1, 2)])
    links = links + Links.cannot_link([(0, 140), (50, 149)])
    fit = sb.fit(
        "constrained_em",
        X,
        links,
        num_clusters=3,
        prior=prior,
        sampling=sampling,
        engine=sb.EM(num_restarts=4, tol=1e-11, max_steps=3000),
    )
    steps = np.diff(fit.objective, axis=1)
    assert np.nanmin(steps) > -1e-8
    options = {"num_clusters": 3, "prior": prior, "sampling": sampling}
    problem = Problem(ppc, (jnp.asarray(X), LabelGraph.build(links, 150)), options)
    slope = jax.grad(lambda p: log_joint(problem, p))(
        {name: jnp.asarray(value) for name, value in fit.params.items()}
    )
    assert np.abs(slope["mean"]).max() < 0.05
    tangent = slope["weights"] - (slope["weights"] * fit.params["weights"]).sum()
    assert np.abs(fit.params["weights"] * tangent).max() < 0.05


@pytest.mark.parametrize("covariance", ["full", "tied", "diagonal", "spherical"])
@pytest.mark.parametrize("prior", ["flat", "empirical"])
def test_closed_step_maximises_the_surrogate(covariance, prior):
    links = disjoint_links(15, weight=1.5) + Links.must_link([(3, 4)])
    options = {"num_clusters": 2, "covariance": covariance, "prior": prior, "concentration": 1.5}
    problem = Problem(ppc, (jnp.asarray(X), LabelGraph.build(links, 150)), options)
    start = sb.fit("ppc", X, links, engine=sb.EM(num_restarts=1, max_steps=2), **options).params
    start = {name: jnp.asarray(value) for name, value in start.items()}
    value, posterior = expectation(problem, start, problem.args)
    # Fisher's identity: at the current parameters Q and the log joint have one gradient
    of_q = jax.grad(lambda p: surrogate(problem, p, problem.args, posterior))(start)
    of_joint = jax.grad(lambda p: log_joint(problem, p))(start)
    for name in start:
        np.testing.assert_allclose(of_q[name], of_joint[name], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(value, log_joint(problem, start), atol=1e-9)
    new = ppc_m_step(**options)(start, problem.args, posterior)
    slope = jax.grad(lambda p: surrogate(problem, p, problem.args, posterior))(new)
    for name in set(start) - {"weights"}:
        np.testing.assert_allclose(slope[name], 0.0, atol=1e-6)
    tangent = slope["weights"] - slope["weights"] @ new["weights"]
    np.testing.assert_allclose(tangent, 0.0, atol=1e-5)


def test_weights_step_matches_moments():
    rng = np.random.default_rng(0)
    weights = np.array([1.2, -0.7, 2.0, np.inf, -np.inf])
    graph = LabelGraph.build(Links(np.arange(10).reshape(5, 2), weights, 12), 12)
    blank = np.zeros((12, 3))
    count = jnp.asarray(12 * rng.dirichlet(np.full(3, 4.0)))

    def log_omega(log_weights):
        return partition.log_partition(blank, graph, log_weights)

    found = match_moments(count, jnp.log(jnp.full(3, 1 / 3)), log_omega)
    expected_count = jax.grad(log_omega)(jnp.log(found))
    np.testing.assert_allclose(expected_count, count, atol=1e-6)
    eta = jnp.asarray(rng.normal(size=3))

    def value(eta):
        return count @ eta - log_omega(eta)

    np.testing.assert_allclose(value(eta), value(eta + 1.7), atol=1e-9)
    solution = minimize(
        lambda e: -float(value(e)), np.zeros(3), jac=lambda e: -np.asarray(jax.grad(value)(e))
    )
    np.testing.assert_allclose(found, jax.nn.softmax(solution.x), atol=1e-5)


def test_when_every_point_is_in_a_hard_pair_weights_are_root_counts():
    graph = LabelGraph.build(Links.must_link(np.arange(12).reshape(6, 2)), 12)
    count = jnp.array([8.0, 3.0, 1.0])
    found = match_moments(
        count,
        jnp.log(jnp.full(3, 1 / 3)),
        lambda w: partition.log_partition(np.zeros((12, 3)), graph, w),
    )
    np.testing.assert_allclose(found, jnp.sqrt(count) / jnp.sqrt(count).sum(), atol=1e-8)


def test_chunklet_weights_are_mean_chunklet_responsibilities():
    links = Links.must_link([(0, 1), (1, 2), (50, 51), (100, 101)])
    fit = sb.fit("constrained_em", X, links, num_clusters=3, engine=sb.EM(tol=1e-12))
    graph = LabelGraph.build(links, 150)
    prob = fit.responsibilities()
    first = [int(np.argmax(graph.node == c)) for c in range(graph.num_nodes)]
    np.testing.assert_allclose(fit.params["weights"], prob[first].mean(axis=0), atol=1e-4)


def test_both_readings_of_a_disjoint_pair_agree_on_labels():
    rng = np.random.default_rng(0)
    unary = rng.normal(size=(4, 3))
    links = Links.from_confidence([(0, 1), (2, 3)], [True, False], [0.8, 0.9])
    log_weights = np.log([0.5, 0.3, 0.2])
    z, energy = brute_force.enumerate_labelings(unary + log_weights, [], [])
    same = z[:, links.pairs[:, 0]] == z[:, links.pairs[:, 1]]
    channel = np.log(np.where(same[:, 0], 0.8, 0.2)) + np.log(np.where(same[:, 1], 0.1, 0.9))
    joint = np.logaddexp.reduce(energy + channel)
    labels = sb.LinkedCategorical(log_weights, LabelGraph.build(links, 4), reading="relation")
    value = partition.log_partition(unary, labels.graph, log_weights) - labels.log_normalizer()
    np.testing.assert_allclose(value, joint, atol=1e-12)


def test_certainty_weight_gives_the_prior_probability_of_agreement():
    weights = np.array([0.5, 0.3, 0.2])
    strength = certainty_weight([0.9, 0.8], [True, False], weights)
    graph = LabelGraph.build(Links([(0, 1), (2, 3)], strength, 4), 4)
    agree = partition.pair_marginals(np.zeros((4, 3)), graph, np.log(weights))
    np.testing.assert_allclose(agree, [0.9, 0.2], atol=1e-12)


def test_generic_and_closed_m_steps_reach_one_mode():
    links = disjoint_links(20, weight=2.0)
    start = sb.fit("ppc", X, links, num_clusters=2, engine=sb.EM(num_restarts=1, max_steps=3))
    closed = sb.fit("ppc", X, links, num_clusters=2, init=start, engine=sb.EM(tol=1e-10))
    generic = sb.fit(
        ppc, X, links, num_clusters=2, init=start, engine=sb.EM(tol=1e-10, num_inner_steps=15)
    )
    by_map = sb.fit("ppc", X, links, num_clusters=2, init=start, engine="map")
    for other in (generic, by_map):
        np.testing.assert_allclose(
            np.nanmax(other.objective), np.nanmax(closed.objective), atol=1e-4
        )
        np.testing.assert_allclose(other.params["mean"], closed.params["mean"], atol=0.02)


def test_own_components_run_under_em():
    def laplace_components():
        import numpyro

        with numpyro.plate("clusters", 2):
            loc = numpyro.sample("loc", dist.Normal(5, 5).expand([4]).to_event(1))
            scale = numpyro.sample("scale", dist.HalfNormal(2.0).expand([4]).to_event(1))
        return dist.Laplace(loc, scale).to_event(1)

    fit = sb.fit(
        "ppc",
        X[:100],
        disjoint_links(0) + Links.cannot_link([(0, 60)]),
        num_clusters=2,
        components=laplace_components,
        engine=sb.EM(num_restarts=4, tol=1e-6),
    )
    assert np.nanmin(np.diff(fit.objective, axis=1)) > -1e-8
    assert accuracy(Y[:100], fit.labels()) > 0.95
    site = linked_site(
        Problem(fit.model, (jnp.asarray(X[:100]), LabelGraph.build(None, 100)), dict(fit.options)),
        fit.params,
    )
    assert site is not None


def test_learned_flip_rate_is_near_the_truth():
    links = sb.simulate_links(Y, 120, flip_rate=0.15, disjoint=False, weight=1.7, seed=3)
    fit = sb.fit(
        "ppc",
        X,
        links,
        num_clusters=3,
        covariance="tied",
        reading="relation",
        flip_rate="learned",
        inference="belief_propagation",
    )
    assert abs(fit.params["flip_rate"] - 0.15) < 0.05


def test_accuracy_grows_with_hard_pairs():
    def mean_accuracy(num_pairs):
        scores = []
        for seed in range(4):
            fit = sb.fit(
                "ppc",
                X,
                disjoint_links(num_pairs, seed=seed),
                num_clusters=3,
                engine=sb.EM(num_restarts=5, tol=1e-6),
                prior="flat",
            )
            scores.append(accuracy(Y, fit.labels()))
        return np.mean(scores)

    assert mean_accuracy(60) > 0.96


def test_noisy_pairs_call_for_soft_links():
    flips = [
        disjoint_links(37, flip_rate=0.15, weight=np.log(0.85 / 0.15), seed=s) for s in range(3)
    ]
    engine = sb.EM(num_restarts=6, tol=1e-6)
    soft = np.mean(
        [
            accuracy(Y, sb.fit("ppc", X, f, num_clusters=3, prior="flat", engine=engine).labels())
            for f in flips
        ]
    )
    hard = np.mean(
        [
            accuracy(
                Y,
                sb.fit(
                    "ppc", X, f.hardened(), num_clusters=3, engine=engine, prior="flat"
                ).labels(),
            )
            for f in flips
        ]
    )
    assert soft > hard + 0.1
