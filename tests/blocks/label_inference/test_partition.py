"""Label inference against enumeration, by structure of the link graph."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sidebayes.models.blocks.label_inference import label_graph, loops, partition
from sidebayes.models.blocks.label_inference import padding as rows
from sidebayes.models.blocks.label_inference.approximate import (
    BeliefPropagation,
    Exact,
    GibbsLabels,
    MeanField,
)
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links

from tests.reference import brute_force
from tests.support.inference import LOOPY, ROOM, inferred

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(scope="module")
def x64():
    with jax.enable_x64(True):
        yield


def random_links(rng, num_points, num_links, hard=0.2, scale=2.0):
    every = list(itertools.combinations(range(num_points), 2))
    pairs = np.array([every[i] for i in rng.permutation(len(every))[:num_links]])
    weights = scale * rng.normal(size=len(pairs))
    draw = rng.random(len(pairs))
    weights[draw < hard] = -np.inf
    weights[draw < hard / 2] = np.inf
    return Links(pairs.reshape(-1, 2).astype(int), weights, num_points)


LOG_PARTITION = jax.jit(partition.log_partition, static_argnames=("weight_per", "inference"))
WITH_SLOPE = jax.jit(jax.value_and_grad(partition.log_partition), static_argnames="inference")


def check_against_enumeration(unary, links, room=ROOM):
    graph = LabelGraph.build(links, *unary.shape, room=room)
    links = graph.links
    expected = brute_force.infer(unary, links.pairs, links.weights)
    log_z, in_parts, found, agreement, labels = inferred(unary, graph)
    if expected[0] == -np.inf:
        assert log_z == -np.inf
        return
    np.testing.assert_allclose(log_z, expected[0], atol=1e-10)
    np.testing.assert_allclose(in_parts.sum(), expected[0], atol=1e-10)
    np.testing.assert_allclose(found, expected[1], atol=1e-10)
    np.testing.assert_allclose(agreement[: len(links)], expected[2], atol=1e-10)
    agree = labels[links.pairs[:, 0]] == labels[links.pairs[:, 1]]
    assert (agree == links.same)[links.hard].all()
    soft = ~links.hard
    energy = unary[np.arange(len(unary)), labels].sum() + links.weights[soft] @ agree[soft]
    np.testing.assert_allclose(energy, expected[4], atol=1e-10)


STRUCTURES = {
    "none": [],
    "pairs": [(0, 1), (2, 3)],
    "chain": [(i, i + 1) for i in range(6)],
    "star": [(0, i) for i in range(1, 7)],
    "triangle": [(0, 1), (1, 2), (0, 2), (2, 3)],
    "cycle": [(i, (i + 1) % 7) for i in range(7)],
    "clique": list(itertools.combinations(range(5), 2)),
    "two triangles": [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)],
}

WITH_LOOPS = {"triangle", "cycle", "clique", "two triangles"}


@pytest.mark.parametrize("chunk", [2, 4, 100])
def test_messages_are_cut_into_chunks(monkeypatch, chunk):
    """Bags wider than a chunk, several children a bucket."""
    monkeypatch.setattr(loops, "CHUNK_CELLS", chunk)
    rng = np.random.default_rng(7)
    tangle = random_links(rng, 11, 20, hard=0.0)
    triangle = Links(np.array([(11, 12), (12, 13), (11, 13)]), np.array([1.0, -2.0, 0.5]))
    links = Links(tangle.pairs, tangle.weights) + triangle
    graph, unary = LabelGraph.build(links, 14, 2), rng.normal(size=(14, 2))
    assert graph.buckets.bag_size.max() == 4
    assert graph.buckets.num_children.max() > 1
    value, slope = WITH_SLOPE(unary, graph)
    log_z, marginals, *_ = brute_force.infer(unary, links.pairs, links.weights)
    np.testing.assert_allclose(value, log_z, atol=1e-10)
    np.testing.assert_allclose(slope, marginals, atol=1e-10)


@pytest.fixture(params=["as for few nodes", "as for many"])
def padding(request, monkeypatch):
    if request.param == "as for many":
        for module in (label_graph, rows):
            monkeypatch.setattr(module, "FEW_NODES", 0)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_structures_agree_with_enumeration(structure, padding):
    rng = np.random.default_rng(3)
    pairs = np.array(STRUCTURES[structure]).reshape(-1, 2).astype(int)
    links = Links(pairs, 2 * rng.normal(size=len(pairs)), 7)
    unary = 3 * rng.normal(size=(7, 3))
    check_against_enumeration(unary, links, LOOPY if structure in WITH_LOOPS else ROOM)


def test_spare_rows_hold_nothing(padding):
    links = Links([(0, 1), (2, 3), (4, 5), (0, 6)], [np.inf, np.inf, 1.3, -0.7], 11)
    rows = len(LabelGraph.build(links, 11).node_size)
    assert rows > 9  # chunklets
    check_against_enumeration(np.random.default_rng(4).normal(size=(11, 2)), links)


@pytest.mark.parametrize("seed", range(6))
def test_mixed_hard_and_soft_links_agree_with_enumeration(seed, padding):
    """Six points in links and one apart."""
    rng = np.random.default_rng(seed)
    while True:
        try:
            links = random_links(rng, 6, int(rng.integers(3, 12)))
            links.check()
        except ValueError:
            continue
        break
    links = Links(links.pairs, links.weights, 7)
    check_against_enumeration(3 * rng.normal(size=(7, 3)), links, LOOPY)


def test_partition_function_of_disjoint_pairs_has_its_closed_form():
    weights = np.log([0.5, 0.3, 0.2])
    blank = np.zeros((6, 3))
    pairs = np.array([[0, 1], [2, 3], [4, 5]])
    hard = LabelGraph.build(Links(pairs, [np.inf, -np.inf, -np.inf], 6), 6)
    value = LOG_PARTITION(blank, hard, weights)
    np.testing.assert_allclose(np.exp(value), 0.38 * 0.62**2, rtol=1e-12)
    half = np.array([0.8, -0.6, 1.2])  # Lu's W, so the weight of the unordered pair is twice that
    soft = LabelGraph.build(Links(pairs, 2 * half, 6), 6)
    expected = np.prod(1 + np.expm1(2 * half) * 0.38)
    np.testing.assert_allclose(expected, 8.837218, atol=1e-6)
    value = LOG_PARTITION(blank, soft, weights)
    np.testing.assert_allclose(np.exp(value), expected, rtol=1e-12)


def test_star_of_hard_cannot_links_has_its_closed_form():
    weights = np.array([0.5, 0.3, 0.2])
    graph = LabelGraph.build(Links.cannot_link([(0, i) for i in range(1, 5)]), 5)
    value = LOG_PARTITION(np.zeros((5, 3)), graph, np.log(weights))
    np.testing.assert_allclose(np.exp(value), np.sum(weights * (1 - weights) ** 4), rtol=1e-12)


def test_chunklets_carry_their_weight_once_or_once_a_point():
    weights = np.array([0.5, 0.3, 0.2])
    graph = LabelGraph.build(Links.must_link([(0, 1), (1, 2)]), 4)
    blank = np.zeros((4, 3))
    points = LOG_PARTITION(blank, graph, np.log(weights))
    np.testing.assert_allclose(points, np.log(np.sum(weights**3)), rtol=1e-12)
    chunklets = LOG_PARTITION(blank, graph, np.log(weights), weight_per="chunklet")
    np.testing.assert_allclose(chunklets, 0.0, atol=1e-12)


def test_unlinked_points_keep_their_mixture_posterior():
    rng = np.random.default_rng(0)
    unary = 3 * rng.normal(size=(7, 3))
    links = random_links(rng, 5, 6, hard=0.0)
    graph = LabelGraph.build(Links(links.pairs, links.weights, 7), 7, 3, room=LOOPY)
    found = inferred(unary, graph).responsibilities
    np.testing.assert_allclose(found[5:], softmax(unary[5:], axis=1), atol=1e-12)


def test_huge_weights_and_gaps_do_not_underflow():
    unary = np.zeros((7, 3))
    unary[:3] = [[0.0, -900.0, -2000.0], [-900.0, 0.0, -2000.0], [0.0, 1.0, -2000.0]]
    links = Links([(0, 1), (1, 2)], [1e6, -800.0], 7)
    check_against_enumeration(unary, links)
    hard = Links([(0, 1), (1, 2)], [np.inf, -np.inf], 7)
    check_against_enumeration(unary, hard)


def test_impossible_hard_links_have_partition_zero():
    graph = LabelGraph.build(Links.cannot_link([(0, 1), (1, 2), (0, 2)]), 3)
    assert LOG_PARTITION(np.zeros((3, 2)), graph) == -np.inf
    assert np.isfinite(LOG_PARTITION(np.zeros((3, 3)), graph))


def test_hessian_agrees_with_finite_differences():
    rng = np.random.default_rng(0)
    graph = LabelGraph.build(random_links(rng, 5, 6, hard=0.0), 5)
    unary = rng.normal(size=(5, 2))
    direction = rng.normal(size=(5, 2))
    slope = jax.grad(partition.log_partition)

    @jax.jit
    def slope_and_change(unary):
        return jax.jvp(lambda u: slope(u, graph), (unary,), (direction,))

    exact = slope_and_change(unary)[1]
    step = 1e-5
    above, below = (slope_and_change(unary + side * direction)[0] for side in (step, -step))
    numeric = (above - below) / (2 * step)
    np.testing.assert_allclose(exact, numeric, atol=1e-8)


def test_joint_samples_have_the_exact_marginals(monkeypatch):
    for module in (label_graph, rows):
        monkeypatch.setattr(module, "FEW_NODES", 0)  # fewer spare rows to draw
    rng = np.random.default_rng(1)
    unary = rng.normal(size=(6, 2))
    links = Links([(0, 1), (1, 2), (0, 2), (3, 4)], [2.0, -1.0, 1.0, -np.inf], 6)
    graph = LabelGraph.build(links, 6)
    num_draws = 4000
    keys = jax.random.split(jax.random.key(0), num_draws)
    draw = jax.jit(jax.vmap(lambda key: partition.sample(key, unary, graph)))
    drawn = np.asarray(draw(keys))
    _, marginals, agree, _, _ = brute_force.infer(unary, graph.links.pairs, graph.links.weights)
    bars = 4.5 * np.sqrt(0.25 / num_draws)
    assert np.abs(drawn.mean(axis=0) - marginals[:, 1]).max() < bars
    pairs = graph.links.pairs
    assert np.abs((drawn[:, pairs[:, 0]] == drawn[:, pairs[:, 1]]).mean(0) - agree).max() < bars


def test_entropy_agrees_with_enumeration():
    rng = np.random.default_rng(2)
    unary = rng.normal(size=(5, 3))
    links = random_links(rng, 5, 6, hard=0.0)
    graph = LabelGraph.build(links, 5)
    _, energy = brute_force.enumerate_labelings(unary, graph.links.pairs, graph.links.weights)
    log_prob = energy - np.logaddexp.reduce(energy)
    found = jax.jit(partition.entropy)(unary, graph)
    np.testing.assert_allclose(found, -np.sum(np.exp(log_prob) * log_prob), atol=1e-10)


@pytest.mark.parametrize(
    ("pairs", "num_points"),
    [
        (np.stack([np.arange(9_999), np.arange(1, 10_000)], 1), 10_000),
        (np.stack([np.zeros(9_999, int), np.arange(1, 10_000)], 1), 10_000),
        (np.arange(30_000).reshape(-1, 3)[:, [[0, 1], [1, 2], [0, 2]]].reshape(-1, 2), 30_000),
    ],
    ids=["chain", "star", "triangles"],
)
def test_large_structures_are_exact(pairs, num_points):
    graph = LabelGraph.build(Links(pairs, np.array(1.5), num_points), num_points)
    weights = np.array([0.5, 0.3, 0.2])
    value = LOG_PARTITION(np.zeros((num_points, 3)), graph, np.log(weights))
    transfer = 1 + np.expm1(1.5) * np.eye(3)
    if num_points == 30_000:
        table = np.einsum("a,b,c,ab,bc,ac->", weights, weights, weights, *[transfer] * 3)
        expected = 10_000 * np.log(table)
    elif pairs[1, 0] == 0:
        messages = 9_999 * np.log(transfer @ weights)
        expected = np.logaddexp.reduce(np.log(weights) + messages)
    else:
        belief, expected = weights, 0.0
        for _ in range(9_999):
            belief = weights * (transfer @ belief)
            expected += np.log(belief.sum())
            belief = belief / belief.sum()
    np.testing.assert_allclose(value, expected, rtol=1e-11)


def test_too_wide_connected_set_is_refused_with_its_size():
    rng = np.random.default_rng(0)
    links = random_links(rng, 60, 400, hard=0.0)
    graph = LabelGraph.build(links, 60)
    with pytest.raises(ValueError, match=r"60 chunklets .* width .*belief_propagation"):
        partition.log_partition(np.zeros((60, 4)), graph)


class TestApproximations:
    links = Links([(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)], [1.0, -0.8, 0.6, 0.5, 1.2], 6)
    unary = np.random.default_rng(5).normal(size=(6, 3))
    settled = MeanField(max_table=0, num_sweeps=500, tol=1e-12)

    def exact(self):
        return brute_force.infer(self.unary, self.links.pairs, self.links.weights)

    def run(self, method):
        return WITH_SLOPE(self.unary, LabelGraph.build(self.links, 6), inference=method)

    def test_mean_field_is_a_lower_bound_near_the_truth(self):
        log_z, marginals, *_ = self.exact()
        value, found = self.run(self.settled)
        assert value <= log_z
        assert log_z - value < 0.3
        np.testing.assert_allclose(found, marginals, atol=0.1)

    def test_mean_field_stops_where_each_factor_is_optimal(self):
        found = np.asarray(self.run(self.settled)[1])
        pairs, weights = self.links.pairs, self.links.weights
        core = [0, 1, 2]  # nodes of the cycle without a tree hanging on them
        for i in core:
            field = self.unary[i].copy()
            for (a, b), w in zip(pairs, weights, strict=True):
                if i in (a, b):
                    field += w * found[b if i == a else a]
            np.testing.assert_allclose(found[i], softmax(field), atol=1e-8)

    def test_belief_propagation_is_close(self):
        log_z, marginals, *_ = self.exact()
        value, found = self.run(BeliefPropagation(max_table=0))
        np.testing.assert_allclose(value, log_z, atol=0.02)
        np.testing.assert_allclose(found, marginals, atol=0.02)

    def test_gibbs_reaches_the_exact_marginals(self):
        _, marginals, *_ = self.exact()
        value, found = self.run(GibbsLabels(max_table=0, num_sweeps=20_000, num_burn_in=500))
        np.testing.assert_allclose(found, marginals, atol=0.01)
        assert value <= self.exact()[0]

    def test_without_need_they_stay_exact(self):
        log_z, *_ = self.exact()
        graph = LabelGraph.build(self.links, 6)
        value = LOG_PARTITION(self.unary, graph, inference=MeanField())
        np.testing.assert_allclose(value, log_z, atol=1e-10)
        assert partition.check_inference(graph, 3, MeanField()) is None
        assert "mean_field" in partition.check_inference(graph, 3, MeanField(max_table=0))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_renumbering_rows_or_labels_changes_nothing(seed):
    rng = np.random.default_rng(seed)
    links = random_links(rng, 6, 7, hard=0.0)
    unary = rng.normal(size=(6, 3))
    value = LOG_PARTITION(unary, LabelGraph.build(links, 6, 3))
    rows, labels = rng.permutation(6), rng.permutation(3)
    place = np.argsort(rows)
    moved = Links(place[links.pairs], links.weights, 6)
    again = LOG_PARTITION(unary[rows][:, labels], LabelGraph.build(moved, 6, 3))
    np.testing.assert_allclose(value, again, atol=1e-10)


def test_budget_is_respected():
    graph = LabelGraph.build(Links([(0, 1), (1, 2), (0, 2)], np.array(1.0)), 3)
    with pytest.raises(ValueError, match="max_table"):
        partition.log_partition(np.zeros((3, 2)), graph, inference=Exact(max_table=5))
