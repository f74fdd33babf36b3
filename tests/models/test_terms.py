"""The terms of a density by unit add up to it, for every method of the zoo and its options."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.programs import unchecked
from sidebayes.guides.engines.problem.declared import collapsed_sites
from sidebayes.guides.engines.problem.density import (
    abstract_trace,
    filled,
    filling,
    latent_sites,
    trace_model,
    traced,
)
from sidebayes.guides.engines.problem.units import lay_out_units, log_terms
from sidebayes.models.blocks.label_inference.approximate import BeliefPropagation, MeanField
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links
from sklearn.datasets import load_iris

from sidebayes import CARDS
from tests.support.cards import CLUSTERING, rows_for

X = load_iris().data[::10]
NUM_POINTS = len(X)
SOFT = Links(
    [(0, 1), (1, 2), (0, 2), (2, 3), (5, 6), (8, 9)],  # a loop with a tail, pairs, lone points
    [1.2, -0.7, 0.4, 2.0, -1.5, 0.9],
    NUM_POINTS,
)
HARD = Links(
    [(0, 1), (1, 2), (2, 3), (5, 6), (8, 9), (9, 10)],
    [np.inf, np.inf, -np.inf, -np.inf, np.inf, -np.inf],
    NUM_POINTS,
)
MIXED = Links(SOFT.pairs, [np.inf, -np.inf, -0.4, 2.0, -1.5, np.inf], NUM_POINTS)
KINDS = {"none": None, "soft": SOFT, "hard": HARD, "mixed": MIXED}
SETS = {"must_groups": ((0, 6, 8),), "cannot_groups": ((1, 4, 11),)}

OPTIONS = {
    "gmm": [{}, {"covariance": "tied"}, {"covariance": "diagonal", "prior": "flat"}],
    "ppc": [
        {"reading": reading, "weight_per": weight_per}
        for reading in ("field", "relation")
        for weight_per in ("point", "chunklet")
    ]
    + [
        {"weights": "uniform"},
        {"reading": "relation", "flip_rate": "learned"},
        {"reading": "relation", "inference": BeliefPropagation(max_table=0)},
        {"reading": "relation", "inference": MeanField(max_table=0)},
    ],
    "feature_saliency": [{}, {"selection": "sparse"}, {"selection": "sparse", "reading": "field"}],
    "constrained_em": [{}, {"weight_per": "point"}],
    "pair_mixture": [
        {"num_components": components, "pair_law": law}
        for components in (1, 2)
        for law in ("shared", "conditional", "joint")
    ],
    "constrained_kmeans": [{"scale": 0.7}],
    "soft_kmeans": [{"scale": 0.7}],
    "constraint_fit": [{}, SETS],
    "mcp": [{}, {"posterior": "mean_field"}, {"covariance": "tied"}],
    "scp": [{"covariance": "diagonal"}],
    "constraint_projection": [{"num_extracted": 2}],
    "sphere_mixture": [
        {},
        {"covariance": "spherical"},
        {"covariance": "low_rank", "rank": 2},
        {"family": "von_mises_fisher"},
        {"reading": "relation", "flip_rate": "learned"},
    ],
    "pairwise_gp": [{"likelihood": likelihood} for likelihood in ("exact", "factorised", "jensen")]
    + [{"likelihood": "factorised", "flip_rate": "learned"}],
}


def kinds_of(name, options):
    """Kinds of links that a method takes under these options."""
    card = CARDS[name]
    if card.links == "none":
        return ["none"]
    if card.links == "hard":
        return ["none", "hard"]
    if options.get("likelihood") == "jensen":
        return ["none", "soft"]
    if options.get("flip_rate") == "learned":
        return ["soft", "mixed"]
    return ["none", "soft", "hard", "mixed"] if options == OPTIONS[name][0] else ["soft", "hard"]


CASES = [
    pytest.param(
        name,
        kind,
        options,
        id="-".join([name, kind, *(str(v).split("(")[0] for v in options.values() if v != ())]),
    )
    for name, several in OPTIONS.items()
    for options in several
    for kind in kinds_of(name, options)
]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def test_every_card_is_here():
    assert set(OPTIONS) == set(CLUSTERING)


def problem_of(name, links, options):
    args = (jnp.asarray(rows_for(name, X)),)
    if CARDS[name].links != "none":
        inference = options.get("inference", "exact")
        args = (*args, LabelGraph.build(links, NUM_POINTS, 3, inference))
    return Problem(CARDS[name].model, args, {"num_clusters": 3} | options)


def random_params(problem):
    """Values of all latent sites, drawn around zero in unconstrained space; for a program."""
    rng = np.random.default_rng(7)
    fill = filling(lambda shape: jnp.asarray(rng.uniform(-1.0, 1.0, shape)))
    with unchecked():
        trace = traced(filled(problem.model, fill), problem.args, problem.kwargs)
    return {name: site["value"] for name, site in latent_sites(trace).items()}


@pytest.mark.parametrize(("name", "kind", "options"), CASES)
def test_terms_add_up_to_the_density(name, kind, options):
    problem = problem_of(name, KINDS[kind], options)
    layout = lay_out_units(problem)
    ((source, (abstract, _)),) = collapsed_sites(abstract_trace(problem)).items()

    @jax.jit
    def everything(args):
        trace = trace_model(problem, random_params(problem), args)
        fn, value = collapsed_sites(trace)[source]
        terms, summaries = log_terms(trace, layout, layout.owners)
        return {
            "total": fn.log_prob(value),
            "by_unit": fn.by_unit(value),
            "posterior": fn.posterior(value),
            "terms": terms[source],
            "summaries": summaries[source],
        }

    found = everything(problem.args)
    total, size = float(found["total"]), abstract.num_units
    assert np.isfinite(total)
    assert total != 0 or kind == "none"
    tolerance = {"rtol": 1e-9, "atol": 1e-9}
    by_unit = np.asarray(found["by_unit"])
    np.testing.assert_allclose(by_unit[:size].sum(), total, **tolerance)
    np.testing.assert_array_equal(by_unit[size:], 0.0)
    assert layout.num_units(source) == size
    assert layout.owners[source] is None  # the terms are those of the summaries, as they are
    terms = np.asarray(found["terms"])
    np.testing.assert_allclose(terms[:size], by_unit[:size], **tolerance)
    np.testing.assert_allclose(terms[:size].sum(), total, **tolerance)
    prob = found["summaries"]["responsibilities"].values
    np.testing.assert_allclose(prob, found["posterior"]["responsibilities"].values, atol=1e-9)
    np.testing.assert_allclose(prob.sum(axis=1), 1.0, atol=1e-9)


def test_a_unit_is_what_links_connect():
    """Its term is the density of its own points, as if there were no others."""
    problem = problem_of("ppc", MIXED, {"weights": [0.5, 0.3, 0.2], "prior": "flat"})
    params = jax.jit(lambda: random_params(problem))()
    owner = problem.args[1].connected_set

    @jax.jit
    def terms(params, args):
        fn, value = collapsed_sites(trace_model(problem, params, args))["x"]
        return fn.by_unit(value)

    together = terms(params, problem.args)
    for unit in (owner[0], owner[5], owner[7], owner[9]):
        rows = np.flatnonzero(owner == unit)
        few = jnp.asarray(X[rows]), LabelGraph.build(MIXED.subset(rows), len(rows))
        alone = Problem(problem.model, few, problem.kwargs)
        fn, value = collapsed_sites(trace_model(alone, params))["x"]
        np.testing.assert_allclose(together[unit], fn.log_prob(value), rtol=1e-10)
