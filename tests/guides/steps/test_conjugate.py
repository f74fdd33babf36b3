"""Conjugate blocks against the model's own density: conditionals, draws, expectations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import invwishart
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.declared import collapsed_sites
from sidebayes.guides.engines.problem.density import trace_model
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.steps.surrogate import linearised
from sidebayes.guides.engines.steps.updates import (
    block_of,
    drawable,
    observations,
    plan_updates,
    pooled,
)
from sidebayes.models.blocks.block import Observation
from sidebayes.models.blocks.components.gaussian_block import COVARIANCES
from sidebayes.models.blocks.components.gaussian_prior import GaussianPrior
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.reliability import FLIP_RATE_PRIOR
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.constrained_em import constrained_em
from sidebayes.models.ppc import ppc

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2)) * [1.0, 3.0] + RNG.integers(0, 2, (12, 1)) * 4.0
LINKS = (
    Links.must_link([(0, 1), (2, 3)], weight=1.5)
    + Links.cannot_link([(0, 4), (5, 6)], weight=0.7)
    + Links.must_link([(7, 8)])
)
PRIOR = GaussianPrior(np.array([0.5, -1.0]), 0.3, 4.5, np.array([[2.0, 0.4], [0.4, 3.0]]))
LABELS = RNG.integers(0, 3, 12)
LABELS[8] = LABELS[7]


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


ROLES = [{"spread", "location"}, {"mixing_weights"}, {"reliability"}]


def build(covariance, **options):
    """The model, its Gaussians, mixing weights and flip rate in this order, and a place to start."""
    options = {"num_clusters": 3, "covariance": covariance, "prior": PRIOR, **options}
    options = {"concentration": 1.7, "reading": "relation", "flip_rate": "learned", **options}
    problem = Problem(ppc, (jnp.asarray(X), LabelGraph.build(LINKS, len(X))), options)
    parts = {frozenset(part.sites): part for part in plan_updates(problem).parts}
    assert len(parts) == 3
    start = {name: jnp.asarray(value[0]) for name, value in initial_values(problem, 0, 1).items()}
    return problem, [parts[frozenset(roles)] for roles in ROLES], start


def blocks_at(problem, parts, params):
    trace = trace_model(problem, params)
    return trace, [block_of(trace, part) for part in parts]


def slopes(labels):
    """Sufficient statistics of one labeling, written out."""
    member = np.eye(3)[labels]
    agree = labels[LINKS.pairs[:, 0]] == labels[LINKS.pairs[:, 1]]
    pair = np.where(np.isinf(LINKS.weights), 0.0, agree)
    slope = {"unary": member, "log_weights": member.sum(axis=0), "pair_weights": pair}
    return {"x": jax.tree.map(jnp.asarray, slope)}


def log_density(covariance, found, params):
    """Log density of a point under what the blocks found, from NumPyro's distributions."""
    gaussian, weights, flips = found
    mean, shrinkage = gaussian.mean, gaussian.shrinkage
    if covariance in ("full", "tied"):
        sigma = params["covariance"]
        total = dist.InverseWishart(gaussian.df, scale_matrix=gaussian.scale).log_prob(sigma).sum()
        spread = sigma / shrinkage[:, None, None]
    else:
        variance = params["variance"]
        variance = variance if covariance == "diagonal" else variance[:, None]
        total = dist.InverseGamma(gaussian.shape, gaussian.rate).log_prob(variance).sum()
        spread = (variance / shrinkage[:, None])[:, :, None] * jnp.eye(2)
    total += dist.MultivariateNormal(mean, spread).log_prob(params["mean"]).sum()
    total += dist.Dirichlet(weights.concentration).log_prob(params["weights"])
    return total + dist.Beta(*flips).log_prob(params["flip_rate"])


def host_draws(covariance, found, number=3000):
    """Independent draws by NumPy and SciPy from what the blocks found."""
    gaussian, weights, flips = (jax.tree.map(np.asarray, part) for part in found)
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(number, 3, 2)) / np.sqrt(gaussian.shrinkage)[:, None]
    if covariance in ("full", "tied"):
        tied = covariance == "tied"
        each = (
            [(gaussian.df, gaussian.scale)]
            if tied
            else zip(gaussian.df, gaussian.scale, strict=True)
        )
        sigma = [invwishart.rvs(float(df), scale, number, random_state=rng) for df, scale in each]
        spread = sigma[0] if tied else np.stack(sigma, axis=1)
        tril = np.linalg.cholesky(spread)
        move = (tril[:, None] if tied else tril) @ noise[..., None]
        values = {"covariance": spread, "mean": gaussian.mean + move[..., 0]}
    else:
        variance = gaussian.rate / rng.gamma(gaussian.shape, size=(number, *gaussian.shape.shape))
        mean = gaussian.mean + noise * np.sqrt(variance)
        values = {
            "variance": variance if covariance == "diagonal" else variance[..., 0],
            "mean": mean,
        }
    values["weights"] = rng.dirichlet(weights.concentration, number)
    return values | {"flip_rate": rng.beta(*flips, number)}


def updates(problem, parts, start, posterior):
    """What the blocks find given statistics of the labels."""

    @jax.jit
    def found(params, posterior):
        trace, blocks = blocks_at(problem, parts, params)
        out = []
        for part, block in zip(parts, blocks, strict=True):
            given = observations(trace, part, posterior)
            statistics = pooled([block.statistics(one) for one in given])
            out.append(block.update(statistics, [one.fn for one in given]))
        return out

    return found(start, posterior)


def assert_mean(samples, expected):
    """Within five standard errors of independent draws."""
    samples = np.asarray(samples).reshape(len(samples), -1)
    error = samples.std(axis=0) / np.sqrt(len(samples))
    gap = np.abs(samples.mean(axis=0) - np.ravel(expected))
    np.testing.assert_array_less(gap, 5 * error + 1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_conditionals_expectations_and_divergence(covariance):
    problem, parts, start = build(covariance)
    posterior = slopes(LABELS)
    found = updates(problem, parts, start, posterior)
    before = updates(problem, parts, start, jax.tree.map(jnp.zeros_like, posterior))
    # statements are never without a verdict
    before[2] = type(before[2])(*map(jnp.asarray, FLIP_RATE_PRIOR))

    @jax.jit
    def evaluate(draws):
        def one(params):
            trace, own = blocks_at(problem, parts, params)
            mixture = trace["x"]["fn"]
            factors = mixture.log_factors(X) | {"log_normalizer": mixture.log_normalizer()}
            densities = [log_density(covariance, part, params) for part in (found, before)]
            claimed = [
                block.log_density(of, part.values(params))
                for block, of, part in zip(own, found, parts, strict=True)
            ]
            return factors, linearised(trace, posterior), sum(claimed), *densities

        trace, blocks = blocks_at(problem, parts, start)
        given, expected = Observation(*collapsed_sites(trace)["x"], {}), {}
        for block, part in zip(blocks, found, strict=True):
            expected |= block.expected_factors(part, given)
        apart = [
            sum(block.divergence(part) for block, part in zip(blocks, parts, strict=True))
            for parts in (found, before)
        ]
        return jax.vmap(one)(draws), expected, apart

    draws = host_draws(covariance, found)
    (factors, complete, claimed, after, prior), expected, apart = evaluate(draws)
    # the conditional is the complete density up to a constant
    np.testing.assert_allclose(complete - after, (complete - after)[0], atol=1e-8)
    np.testing.assert_allclose(claimed, after, atol=1e-8)
    soft = np.isfinite(LINKS.weights)
    for values in (factors, expected):
        values["pair_weights"] = values["pair_weights"][..., soft]
    assert expected.keys() == factors.keys()
    for name, value in expected.items():
        assert_mean(factors[name], value)
    assert_mean(after - prior, apart[0])
    assert abs(float(apart[1])) < 1e-10  # the prior is no distance from itself


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_where_moments_are_about_makes_no_difference(covariance):
    """Updates are posteriors of the data alone; the current means only keep the sums accurate."""
    problem, parts, start = build(covariance)
    other = start | {"mean": start["mean"] + jnp.array([[3.0, -2.0], [0.5, 1.0], [-4.0, 6.0]])}
    one, two = (updates(problem, parts, at, slopes(LABELS)) for at in (start, other))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_draws_have_the_moments_of_independent_ones(covariance):
    problem, parts, start = build(covariance)
    found = updates(problem, parts, start, slopes(LABELS))

    @jax.jit
    @jax.vmap
    def sample(key):
        _, blocks = blocks_at(problem, parts, start)
        chosen = list(zip(parts, blocks, found, jax.random.split(key, 3), strict=True))
        # mixing weights and flip rates are drawn alike whatever the covariances are
        chosen = chosen if covariance == "full" else chosen[:1]
        drawn = {}
        for part, block, of, own in chosen:
            drawn |= part.named(block.draw(own, of))
        return drawn

    def moments(draws):
        """First moments, and how the means scatter in units of their covariance."""
        mean = draws["mean"] - np.asarray(found[0].mean)
        if covariance in ("full", "tied"):
            precision = np.linalg.inv(draws["covariance"])
            shared = precision if covariance == "full" else precision[:, None]
            whitened = np.einsum("s...ij,s...j->s...i", shared, mean)
            scatter = np.einsum("ski,skj->skij", whitened, mean)
            first = {"precision": precision}
        else:
            precision = 1 / draws["variance"]
            scatter = mean**2 * (precision if covariance == "diagonal" else precision[:, :, None])
            first = {"precision": precision}
        rest = {n: v for n, v in draws.items() if n in ("weights", "flip_rate")}
        squares = {f"{n} squared": v**2 for n, v in (first | rest).items()}
        return {"mean": draws["mean"], "scatter": scatter} | first | rest | squares

    drawn = moments(jax.tree.map(np.asarray, sample(jax.random.split(jax.random.key(2), 3000))))
    reference = moments(host_draws(covariance, found))
    for name, values in drawn.items():
        other = reference[name]
        error = np.sqrt((values.var(axis=0) + other.var(axis=0)) / len(values))
        gap = np.abs(values.mean(axis=0) - other.mean(axis=0))
        np.testing.assert_array_less(gap, 5 * error, err_msg=name)


def drawn_from(model, links, **options):
    """Sites of the conjugate blocks, and why others have none."""
    args = jnp.asarray(X), LabelGraph.build(links, len(X))
    problem = Problem(model, args, {"num_clusters": 3} | options)
    plan = drawable(plan_updates(problem), problem)
    return {name for part in plan.parts for name in part.sites.values()}, "; ".join(plan.lacking)


def lone():
    level = numpyro.sample("level", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    return dist.Normal(level, 1.0).to_event(1)


def test_what_is_not_conjugate_says_why():
    gaussians = {"covariance", "mean"}
    statements = {"reading": "relation", "flip_rate": "learned"}
    assert drawn_from(ppc, LINKS, **statements) == (gaussians | {"weights", "flip_rate"}, "")
    must = Links.must_link([(0, 1), (1, 2)])
    for links in (LINKS, must):
        sites, lacking = drawn_from(ppc, links)
        assert sites == gaussians
        assert "partition function" in lacking
    assert drawn_from(ppc, None) == (gaussians | {"weights"}, "")
    assert drawn_from(ppc, LINKS, weights="uniform") == (gaussians, "")
    # chunklets drawn as wholes: conjugate unless soft links or cannot-links join them
    assert drawn_from(constrained_em, must) == (gaussians | {"weights"}, "")
    assert "partition function" in drawn_from(constrained_em, LINKS)[1]
    own = drawn_from(ppc, LINKS, reading="relation", component=lone)
    assert own == ({"weights"}, "level belongs to no block")
    flips = {"reading": "relation", "flip_rate": dist.Uniform(0.0, 0.5)}
    assert drawn_from(ppc, LINKS, **flips) == (
        gaussians | {"weights"},
        "flip_rate has no update in closed form under the prior",
    )
    with pytest.raises(ValueError, match="prior='flat' leaves no posterior"):
        drawn_from(ppc, LINKS, prior="flat")
