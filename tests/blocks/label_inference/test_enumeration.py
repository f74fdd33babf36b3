"""Unions of small random graphs against enumeration and against NumPyro's own: every routine."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpyro.infer.util import log_density
from scipy.special import logsumexp
from scipy.stats import chisquare
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links

from tests.reference import brute_force

pytestmark = pytest.mark.usefixtures("x64")

NUM_POINTS = 5
EVERY_PAIR = np.array(list(itertools.combinations(range(NUM_POINTS), 2)))


@pytest.fixture(scope="module")
def x64():
    with jax.enable_x64(True):
        yield


@jax.jit
def every_routine(key, unary, graph, log_weights, weights):
    value, slopes = jax.value_and_grad(partition.log_partition, argnums=(0, 2, 3))(
        unary, graph, log_weights, weights
    )
    return {
        "value": value,
        "unary": slopes[0],
        "log_weights": slopes[1],
        "pairs": slopes[2],
        "terms": partition.by_connected_set(unary, graph, log_weights, weights),
        "mode": partition.mode(unary, graph, log_weights, weights),
        "sample": partition.sample(key, unary, graph, log_weights, weights),
    }


def check_small_graph(found, rows, links, unary, graph, weights):
    """Compare rows and links that make up whole connected sets with enumeration."""
    pairs, w = graph.pairs[links] - rows.start, weights[links]
    z, energy = brute_force.enumerate_labelings(unary[rows], pairs, w)
    log_z, marginals, agree, _, peak = brute_force.infer(unary[rows], pairs, w)
    own = np.unique(graph.connected_set[rows])
    np.testing.assert_allclose(found["terms"][own].sum(), log_z, atol=1e-9)
    np.testing.assert_allclose(found["unary"][rows], marginals, atol=1e-9)
    soft = np.isfinite(w)
    np.testing.assert_allclose(found["pairs"][links][soft], agree[soft], atol=1e-9)
    chosen = energy[(z == found["mode"][rows]).all(axis=1)]
    np.testing.assert_allclose(chosen, peak, atol=1e-9)
    assert energy[(z == found["sample"][rows]).all(axis=1)] > -np.inf


@pytest.mark.parametrize("num_clusters", [1, 2, 3, 4])
def test_mixed_links_agree_with_enumeration(num_clusters):
    """Forty graphs at once: none, soft, zero and hard links, the hard ones satisfiable."""
    rng = np.random.default_rng(num_clusters)
    num_graphs = 40
    num_points = NUM_POINTS * num_graphs
    density = rng.uniform(0.1, 0.9, num_graphs)[:, None]
    here = rng.random((num_graphs, len(EVERY_PAIR))) < density
    pairs = (EVERY_PAIR + NUM_POINTS * np.arange(num_graphs)[:, None, None])[here]
    weights = rng.choice([-30.0, -2.0, -0.5, 0.0, 0.7, 3.0, 30.0], len(pairs))
    hidden = rng.integers(0, num_clusters, num_points)
    agree = hidden[pairs[:, 0]] == hidden[pairs[:, 1]]
    weights = np.where(rng.random(len(pairs)) < 0.25, np.where(agree, np.inf, -np.inf), weights)
    # a link of weight zero would be dropped at the door, so it enters by pair_weights
    links = Links(pairs, np.where(weights == 0, 1.0, weights), num_points)
    graph = LabelGraph.build(links, num_points)
    unary = 3 * rng.normal(size=(num_points, num_clusters))
    log_weights = np.log(rng.dirichlet(np.ones(num_clusters)))

    found = every_routine(jax.random.key(0), unary, graph, log_weights, weights)
    found = jax.tree.map(np.asarray, found)
    np.testing.assert_allclose(found["terms"].sum(), found["value"], rtol=1e-10)
    np.testing.assert_allclose(found["log_weights"], found["unary"].sum(axis=0), atol=1e-9)
    stops = np.cumsum(here.sum(axis=1))
    for g, stop in enumerate(stops):
        rows = slice(NUM_POINTS * g, NUM_POINTS * (g + 1))
        own = slice(stop - here[g].sum(), stop)
        check_small_graph(found, rows, own, unary + log_weights, graph, weights)


SKELETONS = {
    "loop": [(0, 1), (1, 2), (2, 3), (0, 3), (3, 4)],
    "clique": EVERY_PAIR,
}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(SKELETONS)),
    st.lists(st.floats(-1e3, 1e3), min_size=10, max_size=10),
    st.lists(st.floats(-1e3, 1e3) | st.just(-np.inf), min_size=10, max_size=10),
)
def test_any_weights_agree_with_enumeration(skeleton, weights, potentials):
    num_clusters = 3
    graph = LabelGraph.build(Links(SKELETONS[skeleton], 1.0), NUM_POINTS)
    weights = np.array(weights)[: graph.num_links]
    unary = np.zeros((NUM_POINTS, num_clusters))
    unary[:, 1] = potentials[:NUM_POINTS]
    unary[:, -1] = potentials[NUM_POINTS:]
    unary[:, 0] = np.where(np.isinf(unary[:, 1:]).all(axis=1), 1.0, 0.0)  # one label is possible
    found = every_routine(jax.random.key(0), unary, graph, np.zeros(num_clusters), weights)
    found = jax.tree.map(np.asarray, found)
    check_small_graph(found, slice(0, NUM_POINTS), slice(None), unary, graph, weights)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_second_slopes_are_covariances(scale):
    """Deep tree, loop and chunklet at once; without potentials all labels tie."""
    pairs = np.array(
        [(0, 1), (1, 2), (2, 3), (3, 4), (1, 5), (6, 7), (7, 8), (6, 8), (8, 9), (9, 10)]
    )
    weights = np.array([1.0, -0.5, 2.0, 0.4, -1.2, 0.8, 0.5, -0.9, np.inf, 1.1])
    graph = LabelGraph.build(Links(pairs, weights, 11), 11)
    unary = scale * np.random.default_rng(0).normal(size=(11, 2))
    slope = jax.grad(partition.log_partition)
    found = jax.jit(jax.jacfwd(slope))(unary, graph).reshape(22, 22)
    z, energy = brute_force.enumerate_labelings(unary, graph.pairs, graph.pair_weights)
    chosen = (z[:, :, None] == np.arange(2)).reshape(len(z), -1).astype(float)
    expected = np.cov(chosen.T, aweights=np.exp(energy - energy.max()), ddof=0)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_joint_samples_have_the_joint_distribution():
    """Chi-square over all joint labelings of each connected set: tree, loop, chunklet, clique."""
    num_clusters, num_draws = 3, 20_000
    parts = [
        [((0, 1), 1.5), ((1, 2), -2.0), ((1, 3), 0.5)],
        [((0, 1), 1.0), ((1, 2), 0.8), ((2, 3), -1.0), ((0, 3), 1.2)],
        [((0, 1), np.inf), ((1, 2), -np.inf), ((2, 3), 0.7)],
        [((i, j), (-1) ** (i + j) * 0.6) for i, j in itertools.combinations(range(4), 2)],
    ]
    pairs = np.array([np.add(pair, 4 * g) for g, part in enumerate(parts) for pair, _ in part])
    weights = np.array([weight for part in parts for _, weight in part])
    graph = LabelGraph.build(Links(pairs, weights, 16), 16)
    unary = np.random.default_rng(0).normal(size=(16, num_clusters))
    keys = jax.random.split(jax.random.key(1), num_draws)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: partition.sample(key, unary, graph)))(keys))
    for g, part in enumerate(parts):
        rows = slice(4 * g, 4 * g + 4)
        small, w = [pair for pair, _ in part], [weight for _, weight in part]
        _, energy = brute_force.enumerate_labelings(unary[rows], small, w)
        expected = num_draws * np.exp(energy - np.logaddexp.reduce(energy))
        code = drawn[:, rows] @ num_clusters ** np.arange(3, -1, -1)
        seen = np.bincount(code, minlength=num_clusters**4)
        assert (seen[expected == 0] == 0).all()
        rare = expected < 5
        seen = np.append(seen[~rare], seen[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        # one draw more in the pooled cell than expected of none must not divide by zero
        keep = expected > 0
        assert chisquare(seen[keep], expected[keep]).pvalue > 1e-5
    # labels of different connected sets are independent
    assert abs(np.corrcoef(drawn[:, 1] == 0, drawn[:, 5] == 0)[0, 1]) < 5 / np.sqrt(num_draws)


def test_numpyros_own_enumeration_agrees():
    """Lone sites, one a point: on a plated, enumerated label `z[i] == z[j]` would go wrong."""
    from numpyro.contrib.funsor import enum
    from numpyro.contrib.funsor import log_density as enumerated_log_density

    pairs = [(0, 1), (1, 2), (0, 2), (2, 3)]
    weights = np.array([1.2, -0.7, 0.4, -1.5])
    log_weights = np.log([0.5, 0.3, 0.2])
    unary = np.random.default_rng(4).normal(size=(4, 3))

    def model():
        z = [
            numpyro.sample(
                f"z_{i}",
                dist.Categorical(logits=log_weights),
                infer={"enumerate": "parallel"},
            )
            for i in range(4)
        ]
        for i in range(4):
            numpyro.factor(f"unary_{i}", jnp.asarray(unary)[i][z[i]])
        for (i, j), w in zip(pairs, weights, strict=True):
            numpyro.factor(f"link_{i}_{j}", w * (z[i] == z[j]))

    expected, _ = enumerated_log_density(enum(model, first_available_dim=-1), (), {}, {})
    graph = LabelGraph.build(Links(pairs, weights, 4), 4)
    found = jax.jit(partition.log_partition)(unary, graph, log_weights)
    np.testing.assert_allclose(found, expected, atol=1e-10)


def test_normaliser_of_chunklets_drawn_point_by_point():
    """A site a chunklet, its logits times its size: NumPyro divides by a sum that a field keeps."""
    labels = [np.array([0, 1, 2]), np.array([3]), np.array([4, 5])]
    links = Links.must_link([(0, 1), (1, 2), (4, 5)], num_points=6)
    graph = LabelGraph.build(links, 6)
    log_weights = np.log([0.5, 0.3, 0.2])
    unary = np.random.default_rng(6).normal(size=(6, 3))

    def model(z):
        for t, rows in enumerate(labels):
            numpyro.sample(f"z_{t}", dist.Categorical(logits=len(rows) * log_weights), obs=z[t])
            numpyro.factor(f"unary_{t}", jnp.asarray(unary)[rows, z[t]].sum())

    @jax.jit
    @jax.vmap
    def density(z):
        return log_density(model, (z,), {}, {})[0]

    expected = logsumexp(density(np.array(list(itertools.product(range(3), repeat=3)))))
    dropped = sum(logsumexp(len(rows) * log_weights) for rows in labels)
    routine = jax.jit(partition.log_partition)
    value, blank = (routine(u, graph, log_weights) for u in (unary, np.zeros((6, 3))))
    np.testing.assert_allclose(value - dropped, expected, atol=1e-10)
    np.testing.assert_allclose(blank, dropped, atol=1e-10)
