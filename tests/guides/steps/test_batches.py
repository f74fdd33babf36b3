"""Batches of connected sets: their terms add up to the log density, and they share one shape."""

from __future__ import annotations

from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.optimisers.ascent import ascend
from sidebayes.guides.engines.plumbing import programs
from sidebayes.guides.engines.plumbing.clock import Clock
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.guides.engines.problem.density import place, sum_log_prob
from sidebayes.guides.engines.problem.importance import flat_density
from sidebayes.guides.engines.steps import batches as dealing
from sidebayes.guides.engines.steps.batches import (
    batched_log_prob,
    deal_batches,
    deal_connected_sets,
)
from sidebayes.guides.engines.variational.svi import SVI
from sidebayes.models.blocks.label_inference.approximate import MeanField
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.label_inference.padding import Sizes
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels
from sidebayes.models.trajectories import trajectories

from tests.probes.data import two_lines
from tests.probes.models import lines
from tests.support.basics import ppc_problem

X = np.random.default_rng(0).normal(size=(60, 2)) + np.repeat([[-2.0], [2.0]], 30, axis=0)
LINKS = (
    Links.must_link([(i, i + 5) for i in (0, 10, 20, 30, 40)])  # pairs: hard,
    + Links.must_link([(i, i + 5) for i in (1, 11, 21, 31, 41)], weight=1.3)  # soft,
    + Links.cannot_link([(i, i + 5) for i in (2, 12, 22, 32)])  # and hard the other way
    + Links(  # chains of three, the weights all different
        [(3, 8), (8, 9), (13, 18), (18, 19), (23, 28), (28, 29), (33, 38), (38, 39)],
        [0.5, -0.6, 0.7, -0.8, 0.9, -1.0, 1.1, -1.2],
    )
    + Links.must_link([(43, 44), (44, 48), (43, 48)], weight=0.4)  # one loop
)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def own_clusters(x, links):
    """Two clusters at mirrored centres."""
    centre = numpyro.sample("centre", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    labels = LinkedCategorical(jnp.log(jnp.stack([share, 1 - share])), links)
    parts = dist.Normal(jnp.stack([-centre, centre]), 1.0).to_event(1)
    numpyro.sample("x", LinkedMixture(labels, parts), obs=x)


def both_ways(problem, batches, free):
    """Log density of all data, and the estimate from each batch."""

    def go(free, args, batches):
        trace, _ = place(problem, free, args)
        each = jax.lax.map(
            lambda number: batched_log_prob(trace, batches, number), jnp.arange(len(batches))
        )
        return sum_log_prob(trace), each

    return jax.jit(go)(free, problem.args, batches)


def free_values(shapes, seed):
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}


def shapes_of(batches):
    """Structure and shapes of each batch alone."""
    found = set()
    for number in range(len(batches)):
        leaves, tree = jax.tree.flatten(batches.at(number))
        found.add((tree, tuple((np.shape(leaf), np.result_type(leaf)) for leaf in leaves)))
    return found


PPC = {"weights": (1,), "mean": (2, 2), "variance": (2,)}


FIELD, CHUNKLET = {"reading": "field"}, {"reading": "field", "weight_per": "chunklet"}
RELATION = {"reading": "relation", "flip_rate": "learned"}


@pytest.mark.parametrize(
    ("shapes", "options", "links"),
    [
        pytest.param(PPC, FIELD, None, id="field-free"),
        pytest.param(PPC, FIELD, LINKS, id="field-linked"),
        pytest.param(PPC, CHUNKLET, None, id="chunklet-free"),
        pytest.param(PPC, CHUNKLET, LINKS, id="chunklet-linked"),
        # without links there is no flip rate to learn
        pytest.param(PPC | {"flip_rate": ()}, RELATION, LINKS, id="relation-linked"),
    ],
)
@pytest.mark.parametrize("size", [12, 7], ids=["equal", "unequal"])
def test_terms_of_batches_add_up_to_the_log_density(shapes, options, links, size):
    problem = ppc_problem(X, links, num_clusters=2, covariance="spherical", **options)
    batches = deal_connected_sets(problem, size, seed=4)
    assert len(batches) == {12: 3 if links else 5, 7: 5 if links else 8}[size]
    whole, each = both_ways(problem, batches, free_values(shapes, 0))
    assert np.ptp(each) > 0.1
    np.testing.assert_allclose(each.mean(), whole, rtol=1e-12)


def test_a_scale_and_other_sites_are_kept():
    def scaled(x, links):
        with numpyro.handlers.scale(scale=0.5):
            own_clusters(x, links)
        numpyro.sample("more", dist.Normal(0.0, 1.0), obs=2.0)

    problem = Problem(scaled, (jnp.asarray(X), LabelGraph.build(None, len(X))))
    batches = deal_connected_sets(problem, 8, seed=0)
    whole, each = both_ways(problem, batches, free_values({"centre": (2,), "share": ()}, 0))
    np.testing.assert_allclose(each.mean(), whole, rtol=1e-12)


def families(
    x: Annotated[ArrayLike, "rows features"],
    subjects: Annotated[Groups, "rows"],
    known: Annotated[PartialLabels, "subjects"],
    links: Annotated[LabelGraph, "subjects"],
):
    """Rows of subjects whose labels are partly known."""
    centre = numpyro.sample("centre", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    labels = LinkedCategorical(jnp.log(jnp.array([0.3, 0.7])), links)
    parts = dist.Normal(jnp.stack([-centre, centre]), 1.0).to_event(1)
    log_side = jnp.where(known.admissible(2), 0.0, -jnp.inf)
    numpyro.sample("x", LinkedMixture(labels, parts, log_side, subjects), obs=x)


def test_curves_of_linked_subjects():
    """Rows of a batch have densities of their own, from features of their own."""
    rng = np.random.default_rng(3)
    inputs, subjects = rng.uniform(0, 9, 180), Groups(np.repeat(np.arange(60), 3))

    def model(y, inputs, subjects, links, anchors):
        trajectories(
            y,
            inputs,
            subjects,
            links,
            anchors,
            num_clusters=3,
            length_scale=2.0,
            amplitude=1.0,
            noise=0.3,
        )

    graph = LabelGraph.build(LINKS, 60, 3)
    args = jnp.asarray(rng.normal(size=180)), jnp.asarray(inputs), subjects, graph
    problem = Problem(model, (*args, jnp.linspace(0.0, 9.0, 6)))
    batches = deal_connected_sets(problem, 9, seed=0)
    whole, each = both_ways(problem, batches, free_values({"sticks": (2,), "curves": (3, 6)}, 0))
    assert np.ptp(each) > 1.0
    np.testing.assert_allclose(each.mean(), whole, rtol=1e-10)


def test_rows_of_groups_and_partial_labels_go_along():
    rng = np.random.default_rng(2)
    rows = np.concatenate([np.arange(60), rng.integers(60, size=90)])
    subjects = Groups(np.append(rows, -1))  # one row of nobody
    known = PartialLabels(np.where(rng.random(60) < 0.2, (X[:, 0] > 0).astype(int), -1))
    args = jnp.asarray(rng.normal(size=(151, 2))), subjects, known, LabelGraph.build(LINKS, 60, 2)
    problem = Problem(families, args)
    batches = deal_connected_sets(problem, 7, seed=0)
    assert len(batches) == 5
    whole, each = both_ways(problem, batches, free_values({"centre": (2,)}, 1))
    np.testing.assert_allclose(each.mean(), whole, rtol=1e-12)


def test_components_with_parameters_by_row():
    y, times, subjects, links = two_lines()
    args = jnp.asarray(y), jnp.asarray(times), Groups(subjects), LabelGraph.build(links, 14, 2)
    problem = Problem(lines, args, {"num_clusters": 2})
    shapes = {"weights": (1,), "intercept": (2,), "slope": (2,), "noise": (2,)}
    batches = deal_connected_sets(problem, 3, seed=0)
    whole, each = both_ways(problem, batches, free_values(shapes, 0))
    np.testing.assert_allclose(each.mean(), whole, rtol=1e-12)


def test_every_connected_set_is_dealt_once():
    graph = LabelGraph.build(LINKS, len(X), 2)
    batches = deal_batches(graph, 5, seed=0)
    points, links = [], []
    for number in range(len(batches)):
        one = batches.at(number)
        own = one.points[: one.graph.num_real]
        some = one.graph.links
        numbers = one.links[: len(some)]
        np.testing.assert_array_equal(own[some.pairs], graph.links.pairs[numbers])
        np.testing.assert_array_equal(some.weights, graph.links.weights[numbers])
        assert len(own) == 12
        assert abs(len(some) - len(LINKS) / 5) < 2
        points.append(own)
        links.append(numbers)
    np.testing.assert_array_equal(np.sort(np.concatenate(points)), np.arange(len(X)))
    np.testing.assert_array_equal(np.sort(np.concatenate(links)), np.arange(len(LINKS)))
    again, other = deal_batches(graph, 5, seed=0), deal_batches(graph, 5, seed=1)
    np.testing.assert_array_equal(batches.points, again.points)
    assert (batches.points != other.points).any()


def test_a_connected_set_larger_than_batches_makes_fewer_of_them():
    """Else padding to its size would take as many arrays of its length as there are batches."""
    chain = Links.must_link([(i, i + 1) for i in range(299)], 0.5)
    batches = deal_batches(LabelGraph.build(chain, 1000, 2), 100, seed=0)
    assert len(batches) == (1000 + 299) // (300 + 299)
    assert batches.points.size < 2 * 1000


def clique(points):
    return [(a, b) for n, a in enumerate(points) for b in points[n + 1 :]]


@pytest.mark.parametrize("size", [300, 20_000], ids=["few", "many"])
@pytest.mark.parametrize("inference", ["exact", MeanField(max_table=2**12)])
def test_batches_share_one_shape_whatever_their_loops_are(size, inference):
    """Trees, small loops in some batches, a large one in one of them; exact or too wide."""
    order = np.random.default_rng(0).permutation(size)
    pairs = clique(order[:9]) + clique(order[9:12]) + clique(order[12:15])
    pairs += [(order[i], order[i + 1]) for i in range(15, 60) if i % 3]
    weights = 0.1 * np.random.default_rng(1).normal(size=len(pairs))
    graph = LabelGraph.build(Links(pairs, weights, size), size, 3, inference)
    batches = deal_batches(graph, 4, seed=0)
    assert (batches.points.shape[1] > 4096) == (size > 4096)
    (_,) = shapes_of(batches)
    loops = [batches.at(n).graph.has_loops for n in range(4)]
    assert sorted(loops) == [False, True, True, True]
    unary = jnp.asarray(np.random.default_rng(2).normal(size=(size, 3)))
    weights = jnp.log(jnp.array([0.2, 0.3, 0.5]))

    @jax.jit
    def term(batch):
        labels = LinkedCategorical(weights, batch.graph, inference=inference)
        return labels.log_evidence(unary[batch.points])

    found = sum(term(batches.at(n)) for n in range(4))
    assert term._cache_size() == 1
    labels = LinkedCategorical(weights, graph, inference=inference)
    np.testing.assert_allclose(found, jax.jit(labels.log_evidence)(unary), rtol=1e-12)


def test_spare_points_say_nothing():
    """Neither the normaliser without links, nor terms by connected set, nor slopes see them."""
    rng = np.random.default_rng(3)
    weights, unary = jnp.log(jnp.array([0.2, 0.9])), jnp.asarray(rng.normal(size=(70, 2)))
    for links in (Links.empty(60), LINKS):
        for law in ({"reading": "field"}, {"reading": "relation"}):
            plain = LinkedCategorical(weights, LabelGraph.build(links, 60, 2), **law)
            room = Sizes(points=70, links=len(links) + 5)
            padded = LinkedCategorical(weights, LabelGraph.build(links, 60, 2, room=room), **law)
            value, slope = jax.value_and_grad(padded.log_evidence)(unary)
            np.testing.assert_allclose(value, plain.log_evidence(unary[:60]), rtol=1e-12)
            assert not slope[60:].any()
            terms = padded.log_evidence_by_connected_set(unary)
            np.testing.assert_allclose(terms.sum(), value, rtol=1e-12)
            assert padded.graph.num_connected_sets == plain.graph.num_connected_sets
            suited = padded.graph.suited("exact", 3)
            assert suited.num_real == 60
            assert suited.num_points == 70


def test_svi_compiles_one_program_for_all_batches(monkeypatch):
    monkeypatch.setattr(programs, "_programs", type(programs._programs)())
    linked = Problem(own_clusters, (jnp.asarray(X), LabelGraph.build(LINKS, len(X))))
    engine = SVI(num_restarts=1, num_steps=100, num_draws=100, batch_sets=9)
    with counted_compilations() as names:
        engine.run(linked, progress=False)
    assert names.count("svi") == 1


def test_batches_reach_the_posterior_of_all_data():
    linked = Problem(own_clusters, (jnp.asarray(X), LabelGraph.build(LINKS, len(X))))
    result = SVI(guide="mean_field", num_restarts=2, batch_sets=6).run(linked)
    # the weights see all data; were the batches not scaled up, q would be three times too wide
    assert result.sample_stats["log_weight"].std() < 0.3
    assert result.status.converged


def test_mode_is_searched_for_in_one_large_batch(monkeypatch):
    linked = Problem(own_clusters, (jnp.asarray(X), LabelGraph.build(LINKS, len(X))))
    assert dealing.large_batches(linked, 6, seed=0) is None  # fewer than 2000 connected sets
    monkeypatch.setattr(dealing, "_ENOUGH", 9)
    large = dealing.large_batches(linked, 6, seed=0)
    assert len(large) == 36 // 9
    given = {"title": "mode", "seed": 0, "init": None, "num_restarts": 1, "tol": 1e-5}
    mode = ascend(
        linked, **given, max_steps=40, jacobian=True, progress=False, clock=Clock(), batches=large
    )
    one, whole = (
        jax.jit(flat_density(linked, mode.free, linked.args, total))(mode.point)
        for total in (dealing.estimated_log_prob(large, 0), dealing.estimated_log_prob(None, 0))
    )
    np.testing.assert_allclose(mode.value[0], one, rtol=1e-9)
    assert abs(one - whole) > 1.0


def test_refusals():
    problem = Problem(own_clusters, (jnp.asarray(X), LabelGraph.build(LINKS, len(X))))
    with pytest.raises(ValueError, match=r"expected fewer than the 36 connected sets"):
        deal_connected_sets(problem, 36, seed=0)

    def plain(x):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(level, 1.0), obs=x)

    with pytest.raises(ValueError, match="the model has 0"):
        deal_connected_sets(Problem(plain, (jnp.asarray(X),)), 2, seed=0)
    wide = ppc_problem(
        X, LINKS, num_clusters=2, weights="uniform", inference=MeanField(max_table=1)
    )
    with pytest.raises(ValueError, match="summed out exactly"):
        deal_connected_sets(wide, 2, seed=0)
