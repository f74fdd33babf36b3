"""Batches of components: their estimate of the log density has the full one as its mean."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.density import place, sum_log_prob
from sidebayes.guides.engines.variational.minibatch import (
    batched_log_prob,
    split_components,
    split_graph,
)
from sidebayes.guides.engines.variational.svi import SVI
from sidebayes.models.blocks.label_inference.approximate import MeanField
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.side_information.links import Links

from tests.support import ppc_problem

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
        each = [batched_log_prob(trace, batches, b) for b in range(batches.num_batches)]
        return sum_log_prob(trace), jnp.stack(each)

    return jax.jit(go)(free, problem.args, batches)


def free_values(shapes, seed):
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}


PPC = {"weights": (1,), "mean": (2, 2), "variance": (2,)}


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (PPC, {"reading": "field", "weight_per": "chunklet"}),
        (PPC | {"flip_rate": ()}, {"reading": "relation", "flip_rate": "learned"}),
    ],
)
def test_mean_over_batches_is_the_log_density(shapes, options):
    problem = ppc_problem(X, LINKS, num_clusters=2, covariance="spherical", **options)
    batches = split_components(problem, 12, seed=4)
    assert batches.num_batches == 3
    for seed in range(2):
        whole, each = both_ways(problem, batches, free_values(shapes, seed))
        assert np.ptp(each) > 0.1
        np.testing.assert_allclose(each.mean(), whole, rtol=1e-12)


def test_a_scale_and_other_sites_are_kept():
    def scaled(x, links):
        with numpyro.handlers.scale(scale=0.5):
            own_clusters(x, links)
        numpyro.sample("more", dist.Normal(0.0, 1.0), obs=2.0)

    problem = Problem(scaled, (jnp.asarray(X), LabelGraph.build(LINKS, len(X))))
    batches = split_components(problem, 8, seed=0)
    whole, each = both_ways(problem, batches, free_values({"centre": (2,), "share": ()}, 0))
    np.testing.assert_allclose(each.mean(), whole, rtol=1e-12)


def test_batches_deal_every_component_once():
    graph = LabelGraph.build(LINKS, len(X))
    batches = split_graph(graph, 12, seed=0)
    rows = np.concatenate([batches.batch.rows.ravel(), batches.rest.rows])
    links = np.concatenate([batches.batch.links.ravel(), batches.rest.links])
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(X)))
    np.testing.assert_array_equal(np.sort(links), np.arange(len(LINKS)))
    # all batches have the structure of the compiled one
    for chosen, numbers in zip(batches.batch.rows, batches.batch.links, strict=True):
        own = LabelGraph.build(graph.links.subset(chosen), len(chosen))
        for one, other in zip(
            jax.tree.leaves(own), jax.tree.leaves(batches.batch.graph), strict=True
        ):
            if one is own.pair_weights:
                np.testing.assert_array_equal(one, np.asarray(graph.pair_weights)[numbers])
                np.testing.assert_array_equal(np.isinf(one), np.isinf(other))
            else:
                np.testing.assert_array_equal(one, other)
    again, other = split_graph(graph, 12, seed=0), split_graph(graph, 12, seed=1)
    np.testing.assert_array_equal(batches.batch.rows, again.batch.rows)
    assert (batches.batch.rows != other.batch.rows).any()


def test_without_a_rest():
    batches = split_graph(LabelGraph.build(None, 12), 3, seed=0)
    assert batches.rest is None
    assert batches.batch.rows.shape == (4, 3)


def test_batches_reach_the_posterior_of_all_data():
    linked = Problem(own_clusters, (jnp.asarray(X), LabelGraph.build(LINKS, len(X))))
    result = SVI(guide="mean_field", num_restarts=2, batch_components=6).run(linked)
    # the weights see all data; were the batches not scaled up, q would be three times too wide
    assert result.sample_stats["log_weight"].std() < 0.3
    assert result.status.converged


def test_refusals():
    problem = Problem(own_clusters, (jnp.asarray(X), LabelGraph.build(LINKS, len(X))))
    with pytest.raises(ValueError, match=r"expected fewer than the 36 components"):
        split_components(problem, 36, seed=0)
    unlike = Links.must_link([(0, 1), (2, 3), (3, 4), (5, 6), (6, 7), (7, 8)], weight=1.0)
    with pytest.raises(ValueError, match="too unlike to form 3 batches"):
        split_graph(LabelGraph.build(unlike, 9), 1, seed=0)

    def plain(x):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(level, 1.0), obs=x)

    with pytest.raises(ValueError, match="the model has 0"):
        split_components(Problem(plain, (jnp.asarray(X),)), 2, seed=0)
    wide = ppc_problem(
        X, LINKS, num_clusters=2, weights="uniform", inference=MeanField(max_table=1)
    )
    with pytest.raises(ValueError, match="summed out exactly"):
        split_components(wide, 2, seed=0)
