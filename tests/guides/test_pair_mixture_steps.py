"""EM steps of the mixture with pairwise relations: Yu (2016), acceptance checks 28-30, 33."""

import jax
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import multigammaln
from scipy.stats import multivariate_normal
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.expectation_maximisation.em import EM
from sidebayes.guides.engines.problem.density import log_joint, trace_model
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.pair_mixture import (
    annealed_start,
    augmented_weights,
    log_evidence,
)
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.pair_laws import PAIR_LAWS
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.pair_mixture import pair_mixture

import sidebayes
from tests.reference import pair_relations
from tests.support.basics import best_trace, weights_mode, without_blocks
from tests.support.pairs import DISJOINT, X, Y, latent, log_prior, problem_of, some_params


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    ("law", "num_components"), [("shared", 2), ("conditional", 1), ("joint", 2)]
)
def test_em_takes_the_steps_of_the_thesis(law, num_components):
    """P.3-P.4 in plain NumPy, step by step."""
    links = sidebayes.simulate_links(Y, 30, disjoint=True, seed=3)
    start = some_params(num_components=num_components)
    problem = problem_of(X, links, num_components=num_components, pair_law=law)
    result = EM(tol=0.0, max_steps=12).run(problem, init=latent(start))
    must, cannot = links.pairs[links.same], links.pairs[~links.same]
    params, expected = pair_relations.fit(X, must, cannot, start, law, 12)
    np.testing.assert_allclose(best_trace(result)[:12] - log_prior(start), expected, rtol=1e-9)
    for name in latent(params):
        np.testing.assert_allclose(result.params[name], params[name], atol=1e-6)


def test_em_never_falls():
    """Check 28."""
    links = sidebayes.simulate_links(Y, 30, disjoint=True, seed=3)
    problem = problem_of(X, links, num_components=2, prior="empirical")
    result = EM(tol=0.0, max_steps=200, num_restarts=3).run(problem)
    assert np.nanmin(np.diff(result.objective)) > -1e-8


def test_generic_em_ends_where_the_closed_steps_end():
    options = {"num_components": 2, "prior": "empirical"}
    closed = problem_of(X, DISJOINT, **options)
    start = latent(some_params(seed=2))
    found = EM(tol=1e-13, max_steps=3000).run(closed, init=start)
    generic = Problem(without_blocks(pair_mixture), closed.args, closed.kwargs)
    other = EM(tol=1e-11, max_steps=300).run(generic, init=found.params)
    np.testing.assert_allclose(other.sample_stats["lp"], found.sample_stats["lp"], atol=1e-6)
    for name in start:
        np.testing.assert_allclose(other.params[name], found.params[name], atol=2e-3)
    assert np.diff(best_trace(other)).min() > -1e-8


@pytest.mark.parametrize("covariance", ["tied", "spherical"])
def test_other_covariances_end_where_the_log_joint_is_flat(covariance):
    problem = problem_of(
        X, DISJOINT, num_clusters=2, num_components=2, prior="empirical", covariance=covariance
    )
    params = EM(tol=1e-15, max_steps=3000, num_restarts=1).run(problem).params
    sites = {"mean", "covariance" if covariance == "tied" else "variance"}
    fixed = {name: value for name, value in params.items() if name not in sites}
    slope = jax.jit(jax.grad(lambda free, args: log_joint(problem, fixed | free, args)))
    for value in slope({name: params[name] for name in sites}, problem.args).values():
        np.testing.assert_allclose(value, 0.0, atol=1e-3)


def negative(logits, count, num_must, num_cannot, law):
    """Eq. 4.19 with one normaliser per pair, in logits."""
    log_weights = logits - np.logaddexp.reduce(logits)
    same = np.exp(2 * log_weights).sum()
    value = count @ log_weights - num_cannot * np.log1p(-same)
    return -(value - num_must * np.log(same) * (law == "conditional"))


@pytest.mark.parametrize("law", ["shared", "conditional"])
def test_weights_by_three_routes(law):
    """Check 29: Newton steps, repeated augmented sweeps, and SciPy's SLSQP."""
    rng = np.random.default_rng(1)
    links = sidebayes.simulate_links(rng.integers(3, size=100), 40, disjoint=True, seed=1)
    num_must, num_cannot = links.same.sum(), (~links.same).sum()
    each = 1 if law == "shared" else 2
    count = 20 * rng.dirichlet(np.ones(3)) + each * num_must * rng.dirichlet(np.ones(3))
    split = rng.dirichlet(np.ones(3))
    count = count + num_cannot * (split + (1 - split) / 2)
    graph, start = LabelGraph.build(links, 100), np.full(3, 1 / 3)
    exact = weights_mode(count, start, graph, **PAIR_LAWS[law])
    sweep = jax.jit(lambda w, g: augmented_weights(count, w, g, **PAIR_LAWS[law]))
    weights, value = start, []
    for _ in range(400):
        value.append(-negative(np.log(weights), count, num_must, num_cannot, law))
        weights = sweep(weights, graph)
    assert np.diff(value).min() > -1e-9
    np.testing.assert_allclose(weights, exact, atol=1e-7)
    found = minimize(
        lambda w: negative(np.log(w), count, num_must, num_cannot, law),
        np.full(3, 1 / 3),
        method="SLSQP",
        bounds=[(1e-6, 1)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    np.testing.assert_allclose(found.x, exact, atol=1e-5)


def test_weights_of_linked_chains_by_two_routes():
    """Augmentation on links that share points, a soft one among them."""
    links = Links([(0, 1), (1, 2), (3, 4), (5, 6)], [-np.inf, -np.inf, 1.5, np.inf], 20)
    graph = LabelGraph.build(links, 20)
    count, weights = np.array([9.0, 7.0, 4.0]), np.full(3, 1 / 3)
    exact = weights_mode(count, weights, graph)
    sweep = jax.jit(lambda w, g: augmented_weights(count, w, g))
    for _ in range(300):
        weights = sweep(weights, graph)
    np.testing.assert_allclose(weights, exact, atol=1e-7)
    closed = weights_mode(count, weights, graph, reading="relation")
    found = jax.jit(lambda w, g: augmented_weights(count, w, g, reading="relation"))(weights, graph)
    np.testing.assert_allclose(found, closed)


def test_cannot_links_between_two_classes_say_nothing_about_weights():
    """Dossier P.4: their share of the counts is one half each, whatever the weights."""
    graph = LabelGraph.build(Links.cannot_link([(0, 1), (2, 3)]), 10)
    weights = weights_mode(
        np.array([4.5, 1.5]) + 2.0, np.full(2, 0.5), graph, weight_per="chunklet"
    )
    np.testing.assert_allclose(weights, [0.75, 0.25], atol=1e-7)


@pytest.mark.parametrize(("law", "weight"), [("joint", 0.8), ("shared", 0.91)])
def test_only_the_joint_law_suits_random_pairs(law, weight):
    """Check 30: two far classes of weight .8 and .2, 450 random pairs among 1000 points."""
    labels = np.arange(1000) >= 800
    links = sidebayes.simulate_links(labels, 450, disjoint=True, seed=0)
    count = np.bincount(labels).astype(float)  # eight deviations apart, no label is in doubt
    if law == "shared":
        count -= np.bincount(labels[links.pairs[links.same, 0]])
    problem = problem_of(np.eye(2)[labels * 1], links, num_clusters=2, pair_law=law)
    start = {name: value[0] for name, value in initial_values(problem, 0, 1).items()}

    @jax.jit
    def mode(count):
        trace = trace_model(problem, start)
        block = trace["weights"]["infer"]["block"]
        found = block.update(count, [trace["x"]["fn"]])
        return block.mode(found, {"mixing_weights": start["weights"]})["mixing_weights"]

    np.testing.assert_allclose(mode(count)[0], weight, atol=0.02)


def test_a_few_links_turn_an_ambiguous_mixture():
    """Check 33: generator of experiment E-P1, 16 draws from one poor start each."""
    right = {False: 0, True: 0}
    for draw in range(16):
        rng = np.random.default_rng(draw)
        y, s = rng.integers(2, size=60), rng.choice([-1, 1], 60)
        x = np.stack([1.3 * s, 2 * y - 1], axis=1) + 0.5 * rng.normal(size=(60, 2))
        corner = {(a, b): np.flatnonzero((y == a) & (s == b)) for a in (0, 1) for b in (-1, 1)}
        must = [(corner[a, -1][0], corner[a, 1][0]) for a in (0, 1)]
        cannot = [(corner[0, b][1], corner[1, b][1]) for b in (-1, 1)]
        centre = 0.3 * np.array([1.3, 1.0])
        start = {
            "weights": np.full(2, 0.5),
            "mean": np.stack([-centre, centre])[:, None],
            "covariance": np.tile(np.cov(x.T), (2, 1, 1, 1)),
        }
        for linked in (False, True):
            links = Links.must_link(must) + Links.cannot_link(cannot) if linked else None
            problem = problem_of(x, links, num_clusters=2, prior="empirical")
            params = EM().run(problem, init=start).params
            gap = [
                multivariate_normal(m[0], c[0]).logpdf(x)
                for m, c in zip(params["mean"], params["covariance"], strict=True)
            ]
            label = np.argmax(np.log(params["weights"])[:, None] + gap, axis=0)
            right[linked] += max(np.mean(label == y), np.mean(label != y)) > 0.9
    assert right[True] - right[False] >= 4


def test_starts_are_cells_within_cells():
    problem = problem_of(X, num_clusters=2, num_components=3)
    starts = initial_values(problem, 0, 2)
    assert starts["mean"].shape == (2, 2, 3, 2)
    assert starts["covariance"].shape == (2, 2, 3, 2, 2)
    coarse = initial_values(problem_of(X, num_clusters=2), 0, 2)["mean"][:, :, 0]
    distance = np.linalg.norm(starts["mean"][:, :, :, None] - coarse[:, None, None], axis=-1)
    np.testing.assert_array_equal(distance.argmin(axis=-1), np.tile([[[0], [1]]], (2, 1, 3)))


def test_annealing_without_heat_is_em():
    problem = problem_of(X, DISJOINT, prior="empirical")
    found = annealed_start(problem, seed=4, num_steps=20, heat=1.0)
    start = {name: value[0] for name, value in initial_values(problem, 4, 1).items()}
    plain = EM(tol=0.0, max_steps=20).run(problem, init=start).params
    for name, value in found.items():
        np.testing.assert_allclose(value, plain[name], atol=1e-9)
    with pytest.raises(ValueError, match="heat = 0"):
        annealed_start(problem, heat=0)


def test_evidence_of_one_gaussian_is_exact():
    """Its conjugate marginal likelihood, chained point by point as Student's t."""
    prior = GaussianPrior(X.mean(axis=0), 0.5, 5.0, np.eye(2))
    problem = problem_of(X[:20], num_clusters=1, prior=prior)
    params = EM(num_restarts=1).run(problem).params
    n, d, k = 20, 2, 0.5
    centre = X[:20].mean(axis=0)
    scatter = (X[:20] - centre).T @ (X[:20] - centre)
    away = centre - X.mean(axis=0)
    after = np.eye(2) + scatter + k * n / (k + n) * np.outer(away, away)
    exact = multigammaln((5 + n) / 2, d) - multigammaln(2.5, d)
    exact += d / 2 * np.log(k / (k + n)) - n * d / 2 * np.log(np.pi)
    exact -= (5 + n) / 2 * np.linalg.slogdet(after)[1]
    np.testing.assert_allclose(log_evidence(problem, params), exact, rtol=1e-9)


@pytest.mark.slow
def test_evidence_counts_components():
    """Two bent classes: two Gaussians per class have the higher evidence, four no longer."""
    rng = np.random.default_rng(0)
    centres = np.array([(-6, 0), (-6, 5), (6, 0), (6, 5)])
    x = np.repeat(centres, 30, axis=0) + rng.normal(size=(120, 2))
    links = Links.must_link([(0, 30), (60, 90)]) + Links.cannot_link([(1, 61)])
    value = []
    for number in (1, 2, 4):
        problem = problem_of(x, links, num_clusters=2, num_components=number, prior="empirical")
        value.append(log_evidence(problem, EM(num_restarts=4).run(problem).params))
    assert np.argmax(value) == 1
    with pytest.raises(ValueError, match="prior = 'flat' has no evidence"):
        log_evidence(problem_of(x, links, num_clusters=2), latent(some_params(2, 1)))
    with pytest.raises(ValueError, match="log_evidence is for covariance='full'"):
        log_evidence(problem_of(x, links, covariance="tied"), latent(some_params(3, 1)))
