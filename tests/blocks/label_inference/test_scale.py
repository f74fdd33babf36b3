"""Shapes that break naive engines: long chains, wide stars, many loops, one loop too wide."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp
from scipy.stats import norm
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.label_inference.approximate import Exact
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.side_information.links import Links

from sidebayes.data.simulators import simulate_links
from tests.reference import brute_force

pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(scope="module")
def x64():
    with jax.enable_x64(True):
        yield


def chain(num_points, rng):
    pairs = np.stack([np.arange(num_points - 1), np.arange(1, num_points)], axis=1)
    return Links(pairs, 2 * rng.normal(size=num_points - 1), num_points)


evaluate = jax.jit(jax.value_and_grad(partition.log_partition))


def test_long_chain_against_the_forward_recursion():
    rng = np.random.default_rng(0)
    links = chain(10_000, rng)
    unary = rng.normal(size=(10_000, 3))
    value, prob = evaluate(unary, LabelGraph.build(links, 10_000))
    forward, backward = unary.copy(), np.zeros_like(unary)
    step = links.weights[:, None, None] * np.eye(3)
    for t in range(1, 10_000):
        forward[t] += np.logaddexp.reduce(forward[t - 1][:, None] + step[t - 1], axis=0)
    for t in range(9_998, -1, -1):
        backward[t] = np.logaddexp.reduce(unary[t + 1] + backward[t + 1] + step[t], axis=1)
    log_z = logsumexp(forward[-1])
    np.testing.assert_allclose(value, log_z, rtol=1e-12)
    np.testing.assert_allclose(prob, np.exp(forward + backward - log_z), atol=1e-9)


def test_program_does_not_grow_with_the_chain():
    def size(num_points):
        graph = LabelGraph.build(chain(num_points, np.random.default_rng(0)), num_points)
        return len(evaluate.lower(np.zeros((num_points, 3)), graph).as_text().splitlines())

    assert size(10_000) <= size(1_000) <= 2 * size(100)


def test_wide_star_has_its_closed_form():
    rng = np.random.default_rng(1)
    unary, weights = rng.normal(size=(10_001, 3)), 2 * rng.normal(size=10_000)
    hub, leaves = 4321, np.delete(np.arange(10_001), 4321)
    links = Links(np.stack([np.full(10_000, hub), leaves], axis=1), weights, 10_001)
    value, prob = evaluate(unary, LabelGraph.build(links, 10_001))
    log_weights = links.weights[np.argsort(links.pairs.sum(axis=1))]  # in the order of the leaves
    table = unary[leaves][:, None, :] + log_weights[:, None, None] * np.eye(3)  # hub, leaf label
    centre = unary[hub] + logsumexp(table, axis=2).sum(axis=0)
    np.testing.assert_allclose(value, logsumexp(centre), rtol=1e-12)
    at_hub = np.exp(centre - logsumexp(centre))
    np.testing.assert_allclose(prob[hub], at_hub, atol=1e-9)
    given = np.exp(table - logsumexp(table, axis=2, keepdims=True))
    np.testing.assert_allclose(prob[leaves], np.einsum("h,nhk->nk", at_hub, given), atol=1e-9)


def test_many_small_loops_are_exact():
    rng = np.random.default_rng(2)
    square = np.array([(0, 1), (1, 2), (2, 3), (0, 3)])
    weights, unary = np.array([1.0, -0.5, 2.0, -1.5]), rng.normal(size=(4, 3))
    rows = rng.permutation(4_000).reshape(1_000, 4)
    links = Links(rows[:, square].reshape(-1, 2), np.tile(weights, 1_000), 4_000)
    graph = LabelGraph.build(links, 4_000, 3)
    assert graph.buckets.num_chunks < 5_000  # one for each node
    everywhere = np.empty((4_000, 3))
    everywhere[rows] = unary
    value, prob = evaluate(everywhere, graph)
    log_z, marginals, *_ = brute_force.infer(unary, square, weights)
    np.testing.assert_allclose(value, 1_000 * log_z, rtol=1e-12)
    np.testing.assert_allclose(prob[rows], np.broadcast_to(marginals, (1_000, 4, 3)), atol=1e-10)


@pytest.mark.parametrize("inference", ["exact", "mean_field"])
@pytest.mark.parametrize(("num_points", "num_clusters"), [(150, 3), (178, 3), (569, 2), (1797, 10)])
@pytest.mark.parametrize("num_links", [50, 100, 200, 400])
def test_other_links_share_compiled_code(num_points, num_clusters, num_links, inference):
    """Ten draws, hard and soft: what differs between them is index data of two shapes at most."""
    labels = np.arange(num_points) % num_clusters
    for hard in (False, True):
        shapes = set()
        for seed in range(10):
            links = simulate_links(labels, num_links, seed=seed)
            links = links if hard else links.with_strength(2.0)
            graph = LabelGraph.build(links, num_points, num_clusters, inference)
            leaves, structure = jax.tree.flatten(graph)
            shapes.add((structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)))
        assert len(shapes) <= 2


def grid(side):
    return LabelGraph.build(Links.from_grid((side, side), 0.5), side * side)


def test_a_connected_set_too_wide_is_refused_with_all_one_needs_to_know():
    graph = grid(12)
    wide = graph.suited("exact", 5).wide
    assert 11 <= wide.width <= 16
    with pytest.raises(ValueError, match="chunklets") as refused:
        partition.log_partition(np.zeros((144, 5)), graph)
    for words in (
        "144 chunklets",
        f"elimination width {wide.width}",
        f"all loops: {wide.cells:.3g} cells",
        "max_table is 6.71e+07",
        "'mean_field', 'belief_propagation' or 'gibbs_labels'",
        "Exact(max_table=...)",
    ):
        assert words in str(refused.value)
    for routine in (partition.mode, partition.responsibilities, partition.by_connected_set):
        with pytest.raises(ValueError, match="elimination width"):
            routine(np.zeros((144, 5)), graph)
    with pytest.raises(ValueError, match="elimination width"):
        partition.sample(jax.random.key(0), np.zeros((144, 5)), graph)


def test_a_connected_set_beyond_any_budget_is_given_up_at_once():
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 20_000, (60_000, 2))
    graph = LabelGraph.build(Links(pairs[pairs[:, 0] != pairs[:, 1]], 0.1), 20_000)
    with pytest.raises(
        ValueError, match=r"\d{5} chunklets in loops have elimination width beyond any budget"
    ):
        partition.check_inference(graph, 2, Exact(max_table=2**60))
    said = partition.check_inference(graph, 2, "mean_field")
    wide = graph.suited("mean_field", 2).wide
    assert said == f"mean_field on {wide.num_real} chunklets in loops"


def test_a_long_band_is_not_given_up():
    """Two thousand points, each linked to the next six: tree-width six, many edges."""
    pairs = np.concatenate(
        [np.stack([np.arange(2_000 - s), np.arange(s, 2_000)], 1) for s in range(1, 7)]
    )
    graph = LabelGraph.build(Links(pairs, 0.1, 2_000), 2_000)
    assert 6 <= graph.suited("exact", 2).buckets.bag_size.max() <= 9
    assert partition.check_inference(graph, 2, "exact") is None


def test_densities_of_many_points_need_no_array_of_points_by_clusters_by_features():
    num_points, num_features = 50_000, 16
    means = np.random.default_rng(0).normal(size=(4, num_features))
    graph = LabelGraph.build(None, num_points)

    @jax.jit
    def densities(x, means):
        components = dist.MultivariateNormal(means, scale_tril=jnp.eye(num_features))
        labels = LinkedCategorical(jnp.log(jnp.full(4, 0.25)), graph)
        return LinkedMixture(labels, components).log_factors(x)["unary"]

    x = np.random.default_rng(1).normal(size=(num_points, num_features))
    program = densities.lower(x, means).compile()
    assert program.memory_analysis().temp_size_in_bytes < 0.5 * num_points * 4 * num_features * 8
    found = np.asarray(program(x, means))[::777]
    want = norm.logpdf(x[::777, None], means).sum(axis=2)
    np.testing.assert_allclose(found, want, rtol=1e-10)
