"""Small trees side by side: the same sums as by leaves, and the pass that sums, weighs and counts at once."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.models.blocks.components.gaussians.gaussian_stats import (
    gaussian_log_prob,
    weighted_moments,
)
from sidebayes.models.blocks.components.gaussians.linked_pass import linked_pass
from sidebayes.models.blocks.label_inference import label_graph, padding, partition
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.label_inference.trees.lanes import LEVELS, ROOT, SLOTS, SPARE, WIDTH
from sidebayes.models.blocks.side_information.links import Links

import sidebayes as sb

pytestmark = pytest.mark.usefixtures("x64")

NUMBERS = np.array([20, 20, 20, 12, 9, 9, 9, 9, 6, 6, 6])
SIZES = np.repeat(np.arange(1, 12), NUMBERS)
"""Nodes of random trees; the largest fit into no lane."""


@pytest.fixture(scope="module")
def x64():
    with jax.enable_x64(True):
        yield


def forest(*, hard, seed=0, sizes=SIZES):
    """Links of trees of all sizes, one of them closed to a loop, among points in random order."""
    rng = np.random.default_rng(seed)
    begin = np.cumsum(sizes) - sizes
    pairs = [
        (start + rng.integers(child), start + child)
        for start, size in zip(begin, sizes, strict=True)
        for child in range(1, size)
    ]
    pairs.append(
        (begin[-1], begin[-1] + 10) if (begin[-1], begin[-1] + 10) not in pairs else (0, 1)
    )
    weights = 2 * rng.normal(size=len(pairs))
    if hard:
        weights[rng.random(len(pairs)) < 0.2] = -np.inf
        weights[:3] = np.inf
    number = rng.permutation(sizes.sum())
    return Links(number[np.array(pairs)], weights, len(number))


def always(monkeypatch):
    """Lanes in graphs of any size."""
    for module in (label_graph, padding):
        monkeypatch.setattr(module, "FEW_NODES", 0)
    monkeypatch.setattr(label_graph, "MANY_NODES", 0)


def both(links, monkeypatch):
    """A graph that takes trees apart leaf by leaf, and one with lanes."""
    monkeypatch.setattr(label_graph, "MANY_NODES", 10**6)
    plain = LabelGraph.build(links, links.num_points, 3)
    always(monkeypatch)
    lanes = LabelGraph.build(links, links.num_points, 3)
    assert plain.lanes is None
    assert (lanes.lanes.place < lanes.lanes.num_cells).sum() > 0.4 * lanes.num_nodes
    return plain, lanes


def unary(links, seed=1):
    return 3 * np.random.default_rng(seed).normal(size=(links.num_points, 3))


@jax.jit
def summed(unary, log_weights, weights, graph):
    def total(*given):
        terms = partition.by_connected_set(given[0], graph, *given[1:])
        return terms @ jnp.cos(jnp.arange(len(terms))), terms

    slopes, terms = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(unary, log_weights, weights)
    return (*slopes, terms, partition.log_partition(unary, graph, log_weights, weights))


@pytest.mark.parametrize("hard", [False, True])
def test_lanes_sum_like_leaves(hard, monkeypatch):
    """Slopes of single connected sets, weighed differently, and chunklets of hard must-links."""
    links = forest(hard=hard)
    graphs = both(links, monkeypatch)
    log_weights = np.log([0.5, 0.3, 0.2])
    found = [summed(unary(links), log_weights, graph.pair_weights, graph) for graph in graphs]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_modes_and_curvature_in_lanes(monkeypatch):
    links = forest(hard=True)
    graphs = both(links, monkeypatch)
    modes = [np.asarray(jax.jit(partition.mode)(unary(links), graph)) for graph in graphs]
    np.testing.assert_array_equal(*modes)

    def curve(graph):
        def slope(log_weights):
            return jax.grad(partition.log_partition, argnums=2)(unary(links), graph, log_weights)

        return jax.jit(jax.jacfwd(slope))(jnp.zeros(3))  # blank weights: ties

    np.testing.assert_allclose(curve(graphs[0]), curve(graphs[1]), rtol=1e-10)


DIRECTION = np.array([0.6, -1.1, 0.3])


def test_sums_without_data_in_lanes(monkeypatch):
    """Values and slopes of the normaliser of a field, and its curvature along a direction."""
    links = forest(hard=False)
    links = Links(links.pairs, links.weights, links.num_points + 3)  # points without links
    log_weights = np.log([0.5, 0.3, 0.2])

    def all_of(graph):
        def total(log_weights, weights):
            return partition.log_partition(None, graph, log_weights, weights)

        @jax.jit
        def along(log_weights, weights):
            slopes = jax.value_and_grad(total, argnums=(0, 1))
            return jax.jvp(lambda at: slopes(at, weights), (log_weights,), (DIRECTION,))

        return jax.tree.leaves(along(log_weights, graph.pair_weights))

    for one, other in zip(*map(all_of, both(links, monkeypatch)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


def test_no_clusters_for_a_link_leave_no_field(monkeypatch):
    always(monkeypatch)
    graph = LabelGraph.build(Links([(0, 1)], -np.inf, 5), 5)
    blank = jax.jit(lambda graph, weights: partition.log_partition(None, graph, weights))
    assert blank(graph, np.array([0.0, -np.inf])) == -np.inf


def test_draws_in_lanes_have_the_marginals(monkeypatch):
    links = forest(hard=False)
    _, graph = both(links, monkeypatch)
    keys = jax.random.split(jax.random.key(0), 1000)
    given = unary(links) / 3
    drawn = jax.jit(jax.vmap(lambda key: partition.sample(key, given, graph)))(keys)
    share = np.stack([(np.asarray(drawn) == k).mean(axis=0) for k in range(3)], axis=1)
    exact = np.asarray(jax.jit(partition.responsibilities)(given, graph))
    z = (share - exact) / np.sqrt(exact * (1 - exact) / len(keys) + 1e-9)
    assert np.abs(z).max() < 5
    first, second = graph.pairs.T
    agree = np.asarray(drawn[:, first] == drawn[:, second]).mean(axis=0)
    pairs = np.asarray(jax.jit(partition.pair_marginals)(given, graph))
    assert np.abs(agree - pairs).max() < 5 * np.sqrt(0.25 / len(keys))


@pytest.mark.parametrize(("backend", "width"), [("cpu", WIDTH), ("gpu", 64 * WIDTH)])
def test_every_node_stands_below_its_parent(backend, width, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    links = forest(hard=False)
    _, graph = both(links, monkeypatch)
    lanes = graph.lanes
    assert lanes.node.shape[-1] == width
    level = np.repeat(np.arange(len(LEVELS)), [end - first for first, end in LEVELS])
    chunk, slot, lane = np.nonzero(lanes.parent < ROOT)
    parent = lanes.parent[chunk, slot, lane]
    assert (level[parent] > level[slot]).all()
    # each edge of a small tree once, between the nodes that stand there
    ends = np.sort([lanes.node[chunk, slot, lane], lanes.node[chunk, parent, lane]], axis=0).T
    numbers = lanes.edge[chunk, slot, lane]
    assert len(np.unique(numbers)) == len(numbers)
    pairs = np.sort(graph.pairs, axis=1)
    by_edge = dict(zip(graph.edge_of_link.tolist(), map(tuple, pairs), strict=True))
    assert [by_edge[number] for number in numbers.tolist()] == list(map(tuple, ends))
    placed = lanes.node[lanes.parent != SPARE]
    assert len(np.unique(placed)) == len(placed)
    np.testing.assert_array_equal(lanes.node.ravel()[lanes.place[placed]], placed)
    used = (lanes.parent != SPARE).any(axis=1).sum()
    assert len(placed) > 0.95 * used * SLOTS  # lanes are well filled


def data(links, num_features=4, seed=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(links.num_points, num_features))
    root = np.linalg.qr(rng.normal(size=(3, num_features, num_features)))[0]
    covariance = root @ (np.linspace(0.5, 2, num_features)[:, None] * np.swapaxes(root, 1, 2))
    mean = rng.normal(size=(3, num_features))
    return x, np.log([0.5, 0.3, 0.2]), mean, np.linalg.cholesky(covariance)


def three_passes(x, graph, log_weights, mean, scale_tril):
    factors = gaussian_log_prob(x, mean, scale_tril), log_weights, graph.pair_weights

    def total(unary, log_weights, pair_weights):
        return partition.log_partition(unary, graph, log_weights, pair_weights)

    log_z, (share, counts, agree) = jax.value_and_grad(total, argnums=(0, 1, 2))(*factors)
    return log_z, weighted_moments(x, share, mean), agree, counts


def one_pass(x, graph, log_weights, mean, scale_tril):
    found = linked_pass(x, graph, log_weights, graph.pair_weights, mean, scale_tril)
    return *found, found.moments.total


@pytest.fixture(scope="module")
def many(x64):
    """Links of many points in small trees, as many points without links, and the pass over them."""
    sizes = np.repeat(np.arange(1, 12), np.where(np.arange(1, 12) == 2, 15_000, NUMBERS))
    links = forest(hard=False, sizes=sizes)
    links = Links(links.pairs, links.weights, 2 * links.num_points)
    x, *parameters = data(links)
    with pytest.MonkeyPatch.context() as patch:
        _, lanes = both(links, patch)
        return links, jax.jit(one_pass).lower(x, lanes, *parameters).compile()


@pytest.mark.parametrize("hard", [False, True])
def test_one_pass_equals_three(hard, many, monkeypatch):
    links, program = many
    if hard:
        weights = np.where(np.arange(len(links)) % 5, links.weights, -np.inf)
        links = Links(links.pairs, weights, links.num_points)
    plain, lanes = both(links, monkeypatch)
    assert lanes.has_lanes
    given = data(links)
    x = 30 * given[0]  # far from the clusters, where densities differ by hundreds of nats
    found = program(x, lanes, *given[1:])
    expected = jax.jit(three_passes)(x, plain, *given[1:])
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_accelerators_take_more_at_a_time(monkeypatch):
    """And find the same."""
    always(monkeypatch)
    links = forest(hard=False)
    x, *parameters = data(links)
    found, widths = [], []
    for backend in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        graph = LabelGraph.build(links, links.num_points, 3)
        widths.append(graph.lanes.node.shape[-1])
        found.append(jax.tree.leaves(jax.jit(one_pass)(x, graph, *parameters)))
    assert widths == [WIDTH, 64 * WIDTH]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_contradiction_in_a_lane_has_no_density(monkeypatch):
    always(monkeypatch)
    pairs = [(0, 1), (1, 2)]
    graph = LabelGraph.build(Links(pairs, -np.inf, 5), 5)
    given = (np.zeros((5, 2)), graph, np.array([0.0, -np.inf]), np.zeros((2, 2)))
    found = linked_pass(*given[:3], graph.pair_weights, given[3], np.stack([np.eye(2)] * 2))
    assert found.log_partition == -np.inf


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="accelerators visit more rows at a time")
def test_pass_keeps_nothing_of_the_size_of_points_by_clusters(many):
    """Of points without links, and of those in small trees, no table of densities leaves the cache."""
    links, program = many
    num_points = links.num_points
    table = num_points * 3 * np.dtype(float).itemsize
    assert program.memory_analysis().temp_size_in_bytes < table
    assert not re.search(rf"f64\[(3,)?{num_points}(,3)?\]", program.as_text())


@pytest.mark.parametrize("options", [{}, {"flip_rate": "learned", "reading": "relation"}])
def test_em_by_one_pass_is_em(options, monkeypatch):
    links = forest(hard=False)
    x = data(links)[0] + 3 * np.sign(np.arange(links.num_points) % 2 - 0.5)[:, None]
    engine = sb.EM(num_restarts=1, max_steps=20)
    fits = []
    for prepare in (lambda patch: None, always):
        prepare(monkeypatch)
        fits.append(
            sb.fit("ppc", x, links, num_clusters=2, engine=engine, progress=False, **options)
        )
    one, other = fits
    np.testing.assert_allclose(one.objective, other.objective, rtol=1e-10)
    for name, value in one.params.items():
        np.testing.assert_allclose(other.params[name], value, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(other.responsibilities(), one.responsibilities(), atol=1e-8)
