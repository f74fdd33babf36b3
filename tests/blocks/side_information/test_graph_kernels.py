"""Graph kernels against dense formulas, brute force and each other."""

from itertools import product

import numpy as np
import pytest
from scipy.linalg import expm
from sidebayes.models.blocks.kernels import graph_kernels, neighbor_graph
from sidebayes.models.blocks.kernels.graph_kernels import (
    GraphKernel,
    choose_graph_kernel,
    expected_agreement,
)
from sidebayes.models.blocks.side_information.links import Links

import sidebayes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)) * [1.0, 2.0, 0.5]
ALL = {"num_neighbors": None, "num_eigenpairs": 40, "constant": True}


def laplacian(x, bandwidth, num_neighbors=None):
    """Written out point by point."""
    distance = np.linalg.norm(x[:, None] - x, axis=2)
    near = np.ones_like(distance, bool)
    if num_neighbors is not None:
        near = distance <= np.sort(distance, axis=1)[:, [num_neighbors - 1]]
    affinity = np.where(near | near.T, np.exp(-((distance / bandwidth) ** 2)), 0.0)
    root = np.diag(affinity.sum(axis=1) ** -0.5)
    return np.eye(len(x)) - root @ affinity @ root


def gram(kernel):
    features = kernel.features()
    return features @ features.T


@pytest.mark.parametrize("num_neighbors", [None, 8])
@pytest.mark.parametrize("kind", ["diffusion", "random_walk", "step"])
def test_kernels_against_matrix_functions(kind, num_neighbors):
    full = laplacian(X, 1.3, num_neighbors)
    values, vectors = np.linalg.eigh(full)
    dense = {
        "diffusion": expm(-2.5 * full),
        "random_walk": np.linalg.inv(full + 0.3 * np.eye(40)),
        "step": vectors[:, values <= 0.4] @ vectors[:, values <= 0.4].T,
    }[kind]
    parameter = {"diffusion": 2.5, "random_walk": 0.3, "step": 0.4}[kind]
    options = ALL | {"num_neighbors": num_neighbors}
    kernel = GraphKernel.build(X, kind, parameter, bandwidth=1.3, **options)
    np.testing.assert_allclose(gram(kernel), dense * 40 / np.trace(dense), atol=1e-8)
    np.testing.assert_allclose(np.diag(gram(kernel)).mean(), 1.0)


def test_constant_is_left_out():
    kernel = GraphKernel.build(X, bandwidth=1.3, num_neighbors=8, num_eigenpairs=39)
    full = GraphKernel.build(X, bandwidth=1.3, num_neighbors=8, num_eigenpairs=40, constant=True)
    assert np.abs(np.sqrt(kernel.degree) @ kernel.vectors).max() < 1e-10
    np.testing.assert_allclose(full.frequencies[0], 0.0, atol=1e-12)
    np.testing.assert_allclose(kernel.frequencies, full.frequencies[1:], atol=1e-12)


def test_constant_of_a_graph_in_pieces():
    """Two far clouds: frequency zero occurs twice, and only the global constant goes."""
    x = np.concatenate([X, X + 1000])
    kernel = GraphKernel.build(x, num_neighbors=6, num_eigenpairs=5)
    np.testing.assert_allclose(kernel.frequencies[0], 0.0, atol=1e-10)
    side = kernel.vectors[:, 0] / np.sqrt(kernel.degree)
    assert np.ptp(side[:40]) < 1e-8
    assert side[0] * side[-1] < 0


def test_sparse_eigenpairs_are_the_dense_ones(monkeypatch):
    x = np.random.default_rng(1).normal(size=(300, 2))
    dense = GraphKernel.build(x, parameter=100.0, num_neighbors=10, num_eigenpairs=25)
    monkeypatch.setattr(neighbor_graph, "_DENSE", 0)
    sparse = GraphKernel.build(x, parameter=100.0, num_neighbors=10, num_eigenpairs=25)
    np.testing.assert_allclose(sparse.frequencies, dense.frequencies, atol=1e-10)
    np.testing.assert_allclose(gram(sparse), gram(dense), atol=1e-4)


@pytest.mark.parametrize("num_neighbors", [None, 8])
def test_extension_gives_points_of_the_graph_their_features(num_neighbors):
    kernel = GraphKernel.build(
        X,
        parameter=20.0,
        bandwidth=1.3,
        num_neighbors=num_neighbors,
        num_eigenpairs=10,
        whiten=True,
    )
    np.testing.assert_allclose(kernel.features(X), kernel.features(), atol=1e-8)
    if num_neighbors is None:  # a neighbour more or less is a jump
        near = kernel.features(X + 1e-6)
        np.testing.assert_allclose(near, kernel.features(), atol=1e-3)
    assert np.isfinite(kernel.features(X[:1] + 1e6)).all()


@pytest.mark.parametrize("num_neighbors", [None, 20])
def test_features_of_new_points_are_bounded_by_those_of_the_graph(num_neighbors):
    """Many eigenvalues of the affinities are near zero, and are no divisors."""
    x = sidebayes.load_dataset("iris").standardized().x
    held = np.arange(150) % 3 == 0
    kernel = GraphKernel.build(
        x[~held], "random_walk", 0.1, num_neighbors=num_neighbors, num_eigenpairs=99
    )
    assert np.abs(1 - kernel.frequencies).min() < 0.01
    own, new = ((kernel.features(points) ** 2).sum(axis=1) for points in (None, x[held]))
    assert new.max() < 2 * own.max()
    assert np.median(new) < 2 * np.median(own)
    clear = np.abs(1 - kernel.frequencies) > graph_kernels._DAMPED
    assert 0 < clear.sum() < len(clear)
    again = kernel.features(x[~held])
    np.testing.assert_allclose(again[:, clear], kernel.features()[:, clear], atol=1e-8)
    assert (again**2).sum(axis=1).max() <= own.max() * (1 + 1e-8)


def test_whitening_makes_units_immaterial():
    mix = np.array([[1.0, 0.4, 0.0], [0.0, 50.0, 3.0], [0.2, 0.0, 0.01]])
    one = GraphKernel.build(X, whiten=True)
    other = GraphKernel.build(X @ mix, whiten=True)
    np.testing.assert_allclose(gram(one), gram(other), atol=1e-6)


def brute_agreement(links, num_points, num_clusters, first, second):
    z = np.array(list(product(range(num_clusters), repeat=num_points)))
    score = sum(
        w * (z[:, i] == z[:, j]) for (i, j), w in zip(links.pairs, links.weights, strict=True)
    )
    prob = np.exp(score - score.max())
    same = prob @ (z[:, first] == z[:, second]) / prob.sum()
    return (num_clusters * same - 1) / (num_clusters - 1)


@pytest.mark.parametrize("num_clusters", [2, 3])
def test_agreement_is_exact_for_a_link_with_paths_of_two(num_clusters):
    """Check 22, second part; the diagonal has no entry."""
    links = Links([(0, 1), (0, 2), (1, 2), (0, 3), (1, 3)], [0.4, 2.0, -1.5, 0.7, 3.0])
    pairs, agreement = expected_agreement(links, num_clusters)
    assert (pairs[:, 0] < pairs[:, 1]).all()
    row = pairs.tolist().index([0, 1])
    expected = brute_agreement(links, 4, num_clusters, 0, 1)
    np.testing.assert_allclose(agreement[row], expected, atol=1e-10)


def test_agreement_without_a_link_of_its_own():
    links = Links([(0, 2), (1, 2), (0, 3), (1, 3)], [2.0, -1.5, 0.7, 3.0])
    pairs, agreement = expected_agreement(links)
    np.testing.assert_allclose(agreement[pairs.tolist().index([0, 1])], -0.2104, atol=5e-4)
    alone = expected_agreement(Links([(0, 1)], [2.0]))[1]
    np.testing.assert_allclose(alone, np.tanh(1.0))


def test_alignment_is_the_mean_over_labelings():
    """Check 22, first part, off-diagonal: a path of two links has no longer paths to leave out."""
    links = Links([(0, 1), (1, 2), (3, 4)], [1.2, -0.7, 2.0])
    x = np.random.default_rng(2).normal(size=(6, 2))
    kernel = GraphKernel.build(
        x, parameter=3.0, num_neighbors=None, num_eigenpairs=6, constant=True
    )
    k = gram(kernel)
    y = np.array(list(product([-1, 1], repeat=6)))
    score = sum(
        w * (y[:, i] == y[:, j]) for (i, j), w in zip(links.pairs, links.weights, strict=True)
    )
    prob = np.exp(score) / np.exp(score).sum()
    aligned = (np.einsum("yi,ij,yj->y", y, k, y) - np.trace(k)) / (6 * np.linalg.norm(k))
    np.testing.assert_allclose(kernel.alignment(links), prob @ aligned, atol=1e-10)


def test_choice_is_the_best_of_the_grid():
    data = sidebayes.load_dataset("two_spirals", num_points=60)
    links = sidebayes.simulate_links(data.labels, 20, seed=1)
    kinds = ("diffusion", "random_walk", "step")
    found = choose_graph_kernel(data.x, links, kinds=kinds)
    best = found.alignment(links)
    for kind in kinds:
        for parameter in graph_kernels.GRIDS[kind]:
            other = GraphKernel.build(data.x, kind, parameter, bandwidth=found.bandwidth)
            if kind != "step" or parameter >= other.frequencies[0]:
                assert other.alignment(links) <= best + 1e-12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GraphKernel.build(X, "heat"), "expected one of"),
        (lambda: GraphKernel.build(X[0]), "x has shape"),
        (lambda: GraphKernel.build(X, num_neighbors=1), "num_neighbors = 1"),
        (lambda: GraphKernel.build(X, bandwidth=0.0), "bandwidth"),
        (lambda: GraphKernel.build(X, num_eigenpairs=0), "num_eigenpairs"),
        (lambda: GraphKernel.build(X, "step", 1e-9).features(), "no frequency left"),
        (lambda: GraphKernel.build(X).features(X[:, :2]), "x_new has shape"),
        (lambda: choose_graph_kernel(X, Links.empty()), "no links"),
        (lambda: choose_graph_kernel(X, Links.must_link([(0, 40)])), "out of range"),
        (
            lambda: choose_graph_kernel(X, Links.must_link([(0, 1)]), kind="step"),
            r"choose_graph_kernel has no option 'kind' \(did you mean 'kinds'\?\)",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_kernel_prints_without_its_arrays():
    kernel = GraphKernel.build(X, "step", 0.5, bandwidth=2.0)
    assert repr(kernel) == "GraphKernel(kind='step', parameter=0.5, bandwidth=2.0)"


def test_few_points_have_fewer_neighbours():
    x = np.random.default_rng(0).normal(size=(12, 2))
    assert GraphKernel.build(x).graph.num_neighbors == 12
    links = Links([(0, 1), (2, 3)], [2.0, -2.0], 12)
    assert choose_graph_kernel(x, links).graph.num_neighbors == 12
    with pytest.raises(ValueError, match="num_neighbors = 20; expected 2 to 12"):
        GraphKernel.build(x, num_neighbors=20)
