"""Laplace's approximation where it is exact, and against sums and integrals done by hand."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats
from scipy.optimize import minimize
from scipy.special import gammaln, ive
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.optimisers.laplace import Laplace
from sidebayes.guides.engines.problem.importance import log_mean_weight, pareto_k, quality
from sidebayes.models.blocks.label_inference.approximate import MeanField
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.manifolds.directions import sample_direction
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.side_information.links import Links

from tests.reference import gaussians

X = np.array([-1.9, 1.4, -0.7, 2.2, 0.3, -2.4, 1.1])
PAIRS, WEIGHTS = [(0, 2), (2, 4), (1, 4), (3, 4), (5, 6)], [1.5, 0.7, -2.0, 0.4, -0.8]
LINKS = Links(PAIRS, WEIGHTS)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def linked(x, links, *, inference="exact"):
    """Two clusters at -centre and centre, of one width; labels tied as a field."""
    centre = numpyro.sample("centre", dist.LogNormal(0.5, 0.5))
    width = numpyro.sample("width", dist.LogNormal(0.0, 0.5))
    labels = LinkedCategorical(jnp.log(jnp.array([0.4, 0.6])), links, inference=inference)
    parts = dist.Normal(jnp.stack([-centre, centre]), width)
    numpyro.sample("x", LinkedMixture(labels, parts), obs=x)


LABELINGS = np.array(list(product([0, 1], repeat=len(X))))


def log_joint_by_hand(log_centre, log_width):
    """Log density of data and unconstrained parameters, every labeling written out."""
    centre, width = np.exp([log_centre, log_width])
    agree = LABELINGS[:, [p[0] for p in PAIRS]] == LABELINGS[:, [p[1] for p in PAIRS]]
    prior = np.log([0.4, 0.6])[LABELINGS].sum(axis=1) + agree @ WEIGHTS
    each = stats.norm.logpdf(X[:, None], [-centre, centre], width)
    terms = prior + each[np.arange(len(X)), LABELINGS].sum(axis=1)
    likelihood = np.logaddexp.reduce(terms) - np.logaddexp.reduce(prior)
    return (
        likelihood + stats.norm.logpdf(log_centre, 0.5, 0.5) + stats.norm.logpdf(log_width, 0, 0.5)
    )


def linked_problem(**options):
    return Problem(linked, (jnp.asarray(X), LabelGraph.build(LINKS, len(X))), options)


def test_conjugate_normal_is_exact():
    problem = Problem(gaussians.correlated, (jnp.asarray(gaussians.Y),), {"correlation": 0.8})
    result = Laplace(num_restarts=2).run(problem, seed=3)
    mean, precision = gaussians.posterior(0.8)
    evidence = gaussians.log_evidence(0.8)
    assert result.log_evidence.kind == "estimate"
    assert result.log_evidence.value == pytest.approx(evidence, abs=1e-8)
    # the density of the approximation, at a thousand places, is that of the exact posterior
    log_q = result.sample_stats["lp"] - result.sample_stats["log_weight"]
    exact = stats.multivariate_normal(mean, np.linalg.inv(precision))
    np.testing.assert_allclose(log_q[0], exact.logpdf(result.draws["mu"][0]), atol=1e-8)
    np.testing.assert_allclose(result.sample_stats["log_weight"], evidence, atol=1e-8)
    # and the draws come from it: their standardised squares follow chi-square
    moved = result.draws["mu"][0] - mean
    squares = np.einsum("si,ij,sj->s", moved, precision, moved)
    assert stats.kstest(squares, stats.chi2(2).cdf).pvalue > 1e-3
    assert result.draws["gap"].shape == (1, 1000)
    assert result.status.converged
    assert result.density_space == "unconstrained"


def test_linked_labels_against_enumeration_and_integration():
    result = Laplace(num_restarts=3, num_draws=4000, importance=True).run(linked_problem())
    lp, weights = result.sample_stats["lp"][0], result.sample_stats["log_weight"][0]
    free = np.log([result.draws["centre"][0], result.draws["width"][0]]).T
    by_hand = [log_joint_by_hand(*at) for at in free[:20]]
    np.testing.assert_allclose(lp[:20], by_hand, rtol=1e-10)
    # its mode and curvature, by differences of the sum over labelings
    mode = minimize(lambda at: -log_joint_by_hand(*at), [0.5, 0.0], tol=1e-12).x
    bend = curvature(mode)
    log_q = stats.multivariate_normal(mode, np.linalg.inv(bend)).logpdf(free)
    np.testing.assert_allclose(lp - weights, log_q, atol=1e-3)
    # its evidence, by a grid
    grid = np.arange(-10, 10.1, 0.25)
    steps = np.sqrt(np.diag(np.linalg.inv(bend)))
    table = [
        [log_joint_by_hand(mode[0] + a * steps[0], mode[1] + b * steps[1]) for b in grid]
        for a in grid
    ]
    evidence = np.logaddexp.reduce(table, axis=None) + np.log(steps.prod() * 0.25**2)
    value, error = log_mean_weight(weights)
    assert 0 < error < 0.05
    assert abs(value - evidence) < 4 * error
    assert result.log_evidence.kind == "bound"  # as a normal is too narrow for the skewed width
    assert evidence - 4 < result.log_evidence.value < evidence
    plain = Laplace(num_restarts=3, num_draws=4000).run(linked_problem()).log_evidence
    at_mode = log_joint_by_hand(*mode) + np.log(2 * np.pi) - np.linalg.slogdet(bend)[1] / 2
    assert plain.standard_error is None
    assert plain.value == pytest.approx(at_mode, abs=1e-4)


def curvature(mode, width=1e-3):
    def at(*move):
        return -log_joint_by_hand(*(mode + width * np.array(move)))

    cross = (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / 4
    pure = [at(1, 0) - 2 * at(0, 0) + at(-1, 0), at(0, 1) - 2 * at(0, 0) + at(0, -1)]
    return np.array([[pure[0], cross], [cross, pure[1]]]) / width**2


def test_seed_decides_the_draws():
    first, again, other = (
        Laplace(num_restarts=3, num_draws=4000).run(linked_problem(), seed=seed).draws["centre"]
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


def unidentified(y):
    numpyro.sample("slope", dist.ImproperUniform(constraints.real, (), ()))
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def two_levels(y):
    level = numpyro.sample("level", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    even = dist.Categorical(jnp.array([0.5, 0.5]))
    numpyro.sample("y", dist.MixtureSameFamily(even, dist.Normal(level, 1.0)), obs=y)


def flat_mean(y):
    level = numpyro.sample("level", dist.ImproperUniform(constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def test_flat_and_saddle_points_are_refused_by_name():
    y = jnp.array([-4.0, -3.0, 3.0, 4.0])
    with pytest.raises(FitError, match="direction in slope, whose prior is flat") as caught:
        Laplace(num_restarts=1).run(Problem(unidentified, (y,)))
    assert set(caught.value.params) == {"slope", "level"}
    with pytest.raises(FitError, match=r"a saddle .* in site 'level'"):
        Laplace(num_restarts=1).run(Problem(two_levels, (y,)), init={"level": np.zeros(2)})


def test_improper_prior_has_no_evidence():
    result = Laplace(num_restarts=1).run(Problem(flat_mean, (jnp.array([1.0, 2.0]),)))
    assert result.log_evidence is None
    assert result.status.converged


def test_approximate_sums_are_refused():
    loop = Links.must_link([(0, 1), (1, 2), (0, 2)], weight=1.0)
    args = jnp.asarray(X), LabelGraph.build(loop, len(X))
    problem = Problem(linked, args, {"inference": MeanField(max_table=1)})
    with pytest.raises(ValueError, match="second derivatives, which mean_field"):
        Laplace().run(problem)


def test_pareto_k_tells_heavy_tails():
    # weights U^-k have a Pareto tail of shape k
    uniform = np.random.default_rng(0).uniform(size=4000)
    for shape in (0.2, 0.9):
        assert pareto_k(-shape * np.log(uniform)) == pytest.approx(shape, abs=0.15)
    assert pareto_k(np.full(1000, 3.0)) == 0.0
    bounded = np.minimum(np.linspace(-1, 1, 1000), 0.0)
    assert pareto_k(bounded) == 0.0  # where ArviZ refuses, or finds no number
    assert pareto_k(bounded + 1e-15 * np.random.default_rng(1).normal(size=1000)) == 0.0
    assert quality(0.69, 4000, 0.5)[0]
    assert not quality(0.71, 4000, 0.5)[0]
    assert not quality(0.69, 1000, 0.5)[0]  # 1 - 1 / log10(1000) = 0.67
    assert "do not trust its spread" in quality(0.9, 4000, 0.5)[1]
    assert quality(0.9, 4000, 0.95)[0]
    assert log_mean_weight(np.log([1.0, 3.0]))[0] == pytest.approx(np.log(2))
    assert log_mean_weight(np.log([1.0, 3.0]))[1] == pytest.approx(0.5)


@pytest.mark.parametrize("size", [3, 6])
def test_directions_are_apart_from_the_lengths_of_their_vectors(size):
    """Against the von Mises-Fisher law that the posterior is; lengths are chi, whatever the data."""
    strength = 800.0
    toward = np.linspace(1.0, 2.0, size) / np.linalg.norm(np.linspace(1.0, 2.0, size))

    def model():
        mean = sample_direction("mean", size)
        numpyro.factor("pull", strength * (mean @ toward))

    found = Laplace(num_draws=4000).run(Problem(model, (), {}))
    assert found.status.converged, found.status.message
    points = found.draws["mean"][0]
    across = points - (points @ toward)[:, None] * toward
    order = size / 2 - 1
    ratio = ive(order + 1, strength) / ive(order, strength)
    exact = ratio / strength  # variance of a coordinate across the mean
    assert (across**2).sum(axis=1).mean() / (size - 1) == pytest.approx(exact, rel=0.04)
    lengths = np.linalg.norm(found.draws["mean_vector"][0], axis=1)
    assert stats.kstest(10 * lengths**2, stats.chi2(10 + size).cdf).pvalue > 1e-3
    log_evidence = np.log(ive(order, strength)) + strength - order * np.log(strength / 2)
    log_evidence += gammaln(order + 1)
    assert found.log_evidence.value == pytest.approx(log_evidence, abs=0.02)
    assert log_mean_weight(found.sample_stats["log_weight"][0])[0] == pytest.approx(
        log_evidence, abs=0.01
    )


@pytest.mark.parametrize("bad", [{"num_draws": 10}, {"num_restarts": 0}, {"tol": -1.0}])
def test_bad_settings(bad):
    name = next(iter(bad))
    with pytest.raises(ValueError, match=rf"Laplace\({name}="):
        Laplace(**bad)
