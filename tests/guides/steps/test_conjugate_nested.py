"""Conjugate blocks of clusters that are mixtures themselves, against the model's own density."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.density import log_joint, trace_model
from sidebayes.guides.engines.samplers.gibbs import BlockedGibbs
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.steps.surrogate import drawn, linearised
from sidebayes.guides.engines.steps.updates import block_of
from sidebayes.guides.engines.variational.coordinate_ascent import CoordinateAscent
from sidebayes.guides.engines.variational.factors import FactoredModel, plan_factors
from sidebayes.models.blocks.block import Observation
from sidebayes.models.blocks.components.gaussian_block import COVARIANCES
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.pair_mixture import pair_mixture

from tests.guides.steps.test_conjugate import assert_mean

RNG = np.random.default_rng(1)
X = RNG.normal(size=(14, 2)) + RNG.integers(0, 2, (14, 1)) * 3.0
LINKS = Links.must_link([(0, 1), (1, 2)]) + Links.cannot_link([(3, 4)], weight=0.8)
PRIOR = GaussianPrior(np.array([0.5, -1.0]), 0.3, 4.5, np.array([[2.0, 0.4], [0.4, 3.0]]))


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def build(covariance="full"):
    options = {"num_clusters": 2, "num_components": 3, "covariance": covariance, "prior": PRIOR}
    options |= {"pair_law": "joint", "concentration": 1.7}
    problem = Problem(pair_mixture, (jnp.asarray(X), LabelGraph.build(LINKS, len(X))), options)
    start = {name: jnp.asarray(value[0]) for name, value in initial_values(problem, 0, 1).items()}
    return problem, plan_factors(problem), start


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_conditionals_expectations_and_divergence(covariance):
    problem, plan, start = build(covariance)
    assert sum(len(part.sites) for part in plan.parts) == 4

    @jax.jit
    def evaluate(keys):
        model = FactoredModel(problem, plan, start, problem.args)
        posterior = drawn(problem, start, problem.args, jax.random.key(5))
        found = model.update(posterior)
        before = model.update(jax.tree.map(jnp.zeros_like, posterior))

        def one(key):
            params, after = model.draw(key, found)
            trace = trace_model(problem, params)
            prior = [
                block_of(trace, part).log_density(of, part.values(params))
                for part, of in zip(plan.parts, before, strict=True)
            ]
            own = sum(trace[name]["fn"].log_prob(trace[name]["value"]).sum() for name in params)
            factors = trace["x"]["fn"].log_factors(X)
            return factors, linearised(trace, posterior), after, sum(prior), own

        trace = trace_model(problem, start)
        blocks = [block_of(trace, part) for part in plan.parts]
        given = Observation(trace["x"]["fn"], problem.args[0], {})
        expected = {}
        apart = []
        for block, of in zip(blocks, found, strict=True):
            expected |= block.expected_factors(of, given)
            apart.append(block.divergence(of))
        return jax.vmap(one)(keys), expected, sum(apart)

    (factors, complete, after, prior, own), expected, apart = evaluate(
        jax.random.split(jax.random.key(1), 3000)
    )
    np.testing.assert_allclose(complete - after, (complete - after)[0], atol=1e-8)
    np.testing.assert_allclose(prior, own, atol=1e-8)  # without data the prior is what is found
    assert set(expected) == {"unary", "log_weights", "log_within"}
    for name, value in expected.items():
        assert_mean(factors[name], value)
    assert_mean(after - prior, apart)


def test_statistics_of_drawn_components_are_those_of_e_steps():
    """Labels and components drawn often have the expected statistics for their mean."""
    problem, _, start = build()
    params = start | {"component_weights": jnp.array([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]])}

    @jax.jit
    def both(keys):
        site = trace_model(problem, params)["x"]
        expected = jax.grad(site["fn"].log_partition)(site["fn"].log_factors(site["value"]))
        many = jax.vmap(lambda key: drawn(problem, params, problem.args, key)["x"])(keys)
        return many, expected

    many, expected = both(jax.random.split(jax.random.key(2), 4000))
    assert many.keys() == expected.keys()
    for name in ("log_weights", "log_within"):
        assert_mean(many[name], expected[name])
    prob, number = np.asarray(expected["unary"]), len(many["unary"])
    gap = np.abs(many["unary"].mean(axis=0) - prob)
    assert np.all(gap < 5 * np.sqrt(prob * (1 - prob) / number) + 3 / number)
    np.testing.assert_allclose(many["unary"].sum(axis=(2, 3)), 1.0)


def test_the_bound_rises_and_bounds_what_the_sampler_sees():
    """Coordinate ascent rises; importance weights of its draws have a mean above its bound."""
    problem, _, _ = build()
    found = CoordinateAscent(num_restarts=2, num_draws=400, tol=1e-12).run(problem, progress=False)
    for row in found.objective:
        assert np.diff(row[~np.isnan(row)]).min() > -1e-10
    weights = found.sample_stats["log_weight"].ravel()
    error = weights.std() / np.sqrt(len(weights))
    assert found.log_evidence.value < weights.mean() + 4 * error
    drawn_by_gibbs = BlockedGibbs(num_warmup=50, num_samples=20, num_chains=2).run(
        problem, progress=False
    )
    params = {name: value[1, 3] for name, value in drawn_by_gibbs.draws.items()}
    assert np.isfinite(float(log_joint(problem, params)))
    assert drawn_by_gibbs.draws["component_weights"].shape == (2, 20, 2, 3)
