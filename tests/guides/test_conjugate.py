"""Conjugate blocks against the model's own density: conditionals, draws, expectations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import invwishart
from sidebayes.guides.conjugate import constrained_em_conjugacy, ppc_conjugacy
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.density import trace_model
from sidebayes.guides.engines.surrogate import linearised
from sidebayes.guides.ppc import ppc_m_step
from sidebayes.models.blocks.components import COVARIANCES, GaussianPrior
from sidebayes.models.blocks.label_graph import LabelGraph
from sidebayes.models.blocks.links import Links
from sidebayes.models.ppc import FLIP_RATE_PRIOR, ppc

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


def build(covariance, **options):
    options = {"num_clusters": 3, "covariance": covariance, "prior": PRIOR, **options}
    options = {"concentration": 1.7, "reading": "relation", "flip_rate": "learned", **options}
    args = jnp.asarray(X), LabelGraph.build(LINKS, len(X))
    problem = Problem(ppc, args, options, conjugacy=ppc_conjugacy(**options))
    return problem, problem.conjugacy(args).blocks


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
    total += dist.Dirichlet(weights).log_prob(params["weights"])
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
    values["weights"] = rng.dirichlet(weights, number)
    return values | {"flip_rate": rng.beta(*flips, number)}


def updates(problem, blocks, posterior):
    return jax.jit(lambda p: [block.update(p, problem.args) for block in blocks])(posterior)


def assert_mean(samples, expected):
    """Within five standard errors of independent draws."""
    samples = np.asarray(samples).reshape(len(samples), -1)
    error = samples.std(axis=0) / np.sqrt(len(samples))
    gap = np.abs(samples.mean(axis=0) - np.ravel(expected))
    np.testing.assert_array_less(gap, 5 * error + 1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_conditionals_expectations_and_divergence(covariance):
    problem, blocks = build(covariance)
    posterior = slopes(LABELS)
    found = updates(problem, blocks, posterior)
    before = updates(problem, blocks, jax.tree.map(jnp.zeros_like, posterior))
    before[2] = tuple(map(jnp.asarray, FLIP_RATE_PRIOR))  # statements are never without a verdict

    @jax.jit
    def evaluate(draws):
        def one(params):
            trace = trace_model(problem, params)
            mixture = trace["x"]["fn"]
            factors = mixture.log_factors(X) | {"log_normalizer": mixture.log_normalizer()}
            densities = [log_density(covariance, part, params) for part in (found, before)]
            return factors, linearised(trace, posterior), *densities

        expected = {}
        for block, part in zip(blocks, found, strict=True):
            expected |= block.expected_factors(part, problem.args)
        apart = [
            sum(block.divergence(part) for block, part in zip(blocks, parts, strict=True))
            for parts in (found, before)
        ]
        return jax.vmap(one)(draws), expected, apart

    draws = host_draws(covariance, found)
    (factors, complete, after, prior), expected, apart = evaluate(draws)
    # the conditional is the complete density up to a constant
    np.testing.assert_allclose(complete - after, (complete - after)[0], atol=1e-8)
    soft = np.isfinite(LINKS.weights)
    for values in (factors, expected):
        values["pair_weights"] = values["pair_weights"][..., soft]
    assert expected.keys() == factors.keys()
    for name, value in expected.items():
        assert_mean(factors[name], value)
    assert_mean(after - prior, apart[0])
    assert abs(float(apart[1])) < 1e-10  # the prior is no distance from itself


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_draws_have_the_moments_of_independent_ones(covariance):
    problem, blocks = build(covariance)
    found = updates(problem, blocks, slopes(LABELS))

    @jax.jit
    @jax.vmap
    def sample(key):
        keys = jax.random.split(key, 3)
        parts = list(zip(blocks, found, keys, strict=True))
        # mixing weights and flip rates are drawn alike whatever the covariances are
        parts = parts if covariance == "full" else parts[:1]
        return {n: v for block, part, k in parts for n, v in block.sample(k, part).items()}

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


def test_what_is_not_conjugate_says_why():
    _, blocks = build("full")
    sites = [b.sites for b in blocks]
    assert sites == [("covariance", "mean"), ("weights",), ("flip_rate",)]
    args = jnp.asarray(X), LabelGraph.build(LINKS, len(X))
    must = jnp.asarray(X), LabelGraph.build(Links.must_link([(0, 1), (1, 2)]), len(X))
    field = ppc_conjugacy(num_clusters=3)
    assert [b.sites for b in field(args).blocks] == [("covariance", "mean")]
    assert "partition function" in field(args).lacking[0]
    assert "partition function" in field(must).lacking[0]
    assert not field(args[:1]).lacking
    assert not ppc_conjugacy(num_clusters=3, weights="uniform")(args).lacking
    # chunklets drawn as wholes: conjugate unless soft links or cannot-links join them
    assert not constrained_em_conjugacy(num_clusters=3)(must).lacking
    assert constrained_em_conjugacy(num_clusters=3)(args).lacking
    assert "component=" in ppc_conjugacy(num_clusters=3, component=lambda: None)(must).lacking[0]
    logit = ppc_conjugacy(num_clusters=3, reading="relation", flip_rate=dist.Uniform(0.0, 0.5))
    assert "no Beta" in logit(args).lacking[0]
    with pytest.raises(ValueError, match="prior='flat' leaves no posterior"):
        ppc_conjugacy(num_clusters=3, prior="flat")(args)


def test_options_have_the_defaults_of_the_m_step():
    assert ppc_conjugacy.__kwdefaults__ == ppc_m_step.__kwdefaults__
    assert constrained_em_conjugacy.__kwdefaults__ == {"sampling": "chunklets"}
