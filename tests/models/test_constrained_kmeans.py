"""Constrained K-means: limits of the mixture, exact assignment, feasibility."""

import jax
import numpy as np
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.label_inference.approximate import BeliefPropagation, Exact, MeanField
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.constrained_kmeans import constrained_kmeans

import sidebayes as sb
from tests.reference import brute_force

MODE = jax.jit(partition.mode)


@pytest.fixture(scope="module", autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def problem(seed, num_points=6, num_clusters=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_points, 2))
    centre = rng.normal(size=(num_clusters, 2))
    half = 0.5 * ((x[:, None] - centre) ** 2).sum(-1)
    pairs = np.array([(0, 1), (1, 2), (3, 4), (0, 4), (2, 5)])[rng.permutation(5)[:3]]
    return half, pairs, rng.exponential(size=3), rng.random(3) < 0.5


@pytest.mark.parametrize("seed", range(20))
def test_soft_limit_finds_the_least_penalised_cost(seed):
    half, pairs, penalty, same = problem(seed)
    sigma, alpha = 0.6, 0.05
    z, cost = brute_force.enumerate_labelings(half, [], [])
    agree = z[:, pairs[:, 0]] == z[:, pairs[:, 1]]
    cost = cost + ((agree != same) * penalty).sum(axis=1)
    # per unordered pair the weight is a / sigma^2, where the thesis prints W = a
    weight = np.where(same, penalty, -penalty) / sigma**2
    graph = LabelGraph.build(Links(pairs, weight / alpha**2, 6), 6)
    labels = MODE(-half / (alpha * sigma) ** 2, graph)
    np.testing.assert_array_equal(labels, z[cost.argmin()])


@pytest.mark.parametrize("seed", range(10))
def test_hard_limit_is_the_best_feasible_assignment(seed):
    half, pairs, _, same = problem(seed)
    z, cost = brute_force.enumerate_labelings(half, [], [])
    agree = z[:, pairs[:, 0]] == z[:, pairs[:, 1]]
    cost = np.where((agree == same).all(axis=1), cost, np.inf)
    beta = 0.01
    weight = np.where(same, 1.0, -1.0) / beta**3
    graph = LabelGraph.build(Links(pairs, weight, 6), 6)
    labels = MODE(-half / (0.6 * beta) ** 2, graph)
    np.testing.assert_array_equal(labels, z[cost.argmin()])
    hard = LabelGraph.build(Links.from_pairs(pairs, same, num_points=6), 6)
    np.testing.assert_array_equal(MODE(-half, hard), z[cost.argmin()])


def test_finds_a_labeling_where_greedy_assignment_dead_ends():
    x = np.array([[0.0], [0.1], [5.0], [0.05]])
    links = Links.cannot_link([(1, 3), (2, 3)])
    labels = sb.fit("constrained_kmeans", x, links, num_clusters=2).labels()
    assert labels[1] != labels[3]
    assert labels[2] != labels[3]


def test_infeasible_links_are_named():
    x = np.random.default_rng(0).normal(size=(6, 2))
    odd = Links.cannot_link([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)])
    with pytest.raises(ValueError, match="odd cycle"):
        sb.fit("constrained_kmeans", x, odd, num_clusters=2)
    clique = Links.cannot_link([(i, j) for i in range(4) for j in range(i)])
    with pytest.raises(ValueError, match="need 4 clusters"):
        sb.fit("constrained_kmeans", x, clique, num_clusters=3)
    wheel = Links.cannot_link([(i, (i + 1) % 5) for i in range(5)] + [(i, 5) for i in range(5)])
    problem = Problem(constrained_kmeans, (x, LabelGraph.build(wheel, 6)), {"num_clusters": 3})
    with pytest.raises(sb.FitError, match="no labeling"):
        sb.KMeans(num_restarts=1).run(problem)


def test_cost_never_rises_and_without_links_it_is_kmeans():
    from sklearn.cluster import KMeans

    x = np.random.default_rng(1).normal(size=(200, 3))
    fit = sb.fit("soft_kmeans", x, num_clusters=4, engine=sb.KMeans(num_restarts=20))
    assert np.nanmin(np.diff(fit.objective, axis=1)) > -1e-9
    peer = KMeans(4, n_init=20, random_state=0).fit(x)
    assert -2 * np.nanmax(fit.objective) < peer.inertia_ * 1.01


def test_a_single_step_to_a_cost_of_zero_is_told_as_such():
    told = sb.fit("soft_kmeans", [[0.0], [0.0], [1.0]], num_clusters=2).status.message
    assert told.startswith("K-means settled in 1 step; the best of 10 starts has cost 0")


@pytest.mark.parametrize("method", [BeliefPropagation(max_table=0), MeanField(max_table=0)])
def test_wide_connected_sets_are_assigned_to_a_local_optimum_of_the_cost(method):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 2))
    weights = rng.normal(size=60)
    pairs = rng.permutation([(i, j) for i in range(40) for j in range(i)])[:60]
    with pytest.raises(ValueError, match="elimination width"):
        sb.fit(
            "soft_kmeans",
            x,
            Links(pairs, weights, 40),
            num_clusters=3,
            inference=Exact(max_table=9),
        )
    fit = sb.fit("soft_kmeans", x, Links(pairs, weights, 40), num_clusters=3, inference=method)
    assert method.name in fit.approximate
    labels, mean = fit.labels(), fit.params["mean"]
    cost = 0.5 * ((x[:, None] - mean) ** 2).sum(axis=2)
    each = np.eye(3)[labels]
    for (i, j), weight in zip(pairs, weights, strict=True):
        cost[i] -= weight * each[j]
        cost[j] -= weight * each[i]
    np.testing.assert_array_equal(cost.argmin(axis=1), labels)
    assert np.nanmin(np.diff(fit.objective, axis=1)) >= 0
    least = sb.fit("soft_kmeans", x, Links(pairs, weights, 40), num_clusters=3)
    assert np.nanmax(fit.objective) > 1.05 * np.nanmax(least.objective)
