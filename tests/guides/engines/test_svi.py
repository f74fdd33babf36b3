"""Variational inference where the best member of each family is known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.optimisers.laplace import Laplace
from sidebayes.guides.engines.problem.importance import log_mean_weight, pareto_k
from sidebayes.guides.engines.variational.svi import SVI

from tests.reference import gaussians


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def problem(correlation):
    return Problem(gaussians.correlated, (jnp.asarray(gaussians.Y),), {"correlation": correlation})


@pytest.fixture(scope="module")
def full_rank():
    with jax.enable_x64(True):
        return SVI(num_restarts=2).run(problem(0.8), seed=1)


def test_full_rank_recovers_a_gaussian_posterior(full_rank):
    mean, precision = gaussians.posterior(0.8)
    log_q = full_rank.sample_stats["lp"] - full_rank.sample_stats["log_weight"]
    exact = stats.multivariate_normal(mean, np.linalg.inv(precision))
    np.testing.assert_allclose(log_q[0], exact.logpdf(full_rank.draws["mu"][0]), atol=1e-3)
    assert full_rank.log_evidence.kind == "bound"
    assert full_rank.log_evidence.value == pytest.approx(gaussians.log_evidence(0.8), abs=1e-5)
    assert pareto_k(full_rank.sample_stats["log_weight"][0]) < 0.5
    assert full_rank.status.converged
    assert full_rank.draws["gap"].shape == (1, 1000)
    assert full_rank.objective.shape[0] == 1


def test_mean_field_keeps_its_known_distance_and_is_flagged():
    result = SVI(guide="mean_field", num_restarts=2).run(problem(0.99))
    _, precision = gaussians.posterior(0.99)
    # the best independent normals have the conditional variances (Bishop 2006, section 10.1.2)
    variance = 1 / np.diag(precision)
    best = gaussians.log_evidence(0.99) + 0.5 * np.linalg.slogdet(precision * variance)[1]
    found = result.log_evidence
    assert abs(found.value - best) < 4 * found.standard_error
    assert found.value < gaussians.log_evidence(0.99) - 1
    draws = result.draws["mu"][0]
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=0.2)
    assert pareto_k(result.sample_stats["log_weight"][0]) > 0.7
    assert not result.status.converged
    assert "try NUTS" in result.status.message


@pytest.mark.parametrize("guide", ["low_rank", "flow"])
def test_richer_families_bound_the_evidence(guide):
    result = SVI(guide=guide, num_restarts=2).run(problem(0.8))
    gap = gaussians.log_evidence(0.8) - result.log_evidence.value
    assert -4 * result.log_evidence.standard_error < gap < 0.1


def test_seed_decides_the_run(full_rank):
    again, other = (SVI(num_restarts=2).run(problem(0.8), seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(full_rank.draws["mu"], again.draws["mu"])
    np.testing.assert_array_equal(full_rank.objective, again.objective)
    assert np.abs(full_rank.draws["mu"] - other.draws["mu"]).max() > 0.1


def test_too_few_steps_are_reported():
    result = SVI(num_restarts=2, num_steps=199).run(problem(0.8))
    assert not result.status.converged
    assert "num_steps=199; raise it" in result.status.message
    assert result.objective.shape == (1, 1)


def test_full_rank_in_many_coordinates():
    """Steps of the size that suits few coordinates are not too long for many."""
    size = 200
    apart = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    root = jnp.linalg.cholesky(jnp.asarray(np.exp(-apart / 10)))

    def one_class(root):
        coefficients = numpyro.sample("coefficients", dist.Normal().expand([size]).to_event(1))
        numpyro.factor("labels", jax.nn.log_sigmoid(3 * root @ coefficients).sum())

    given = Problem(one_class, (root,), {})
    found = SVI(num_restarts=1).run(given, progress=False)
    weighted = Laplace(num_restarts=1, importance=True).run(given, progress=False)
    by_importance, _ = log_mean_weight(weighted.sample_stats["log_weight"][0])
    assert abs(found.log_evidence.value - by_importance) < 0.5
    assert pareto_k(found.sample_stats["log_weight"][0]) < 0.7


def test_divergence_is_an_error():
    with pytest.raises(FitError, match="lower learning_rate"):
        SVI(num_restarts=2, learning_rate=1e300).run(problem(0.8))


@pytest.mark.parametrize(
    "bad",
    [
        {"guide": "round"},
        {"num_steps": 99},
        {"learning_rate": 0.0},
        {"num_particles": 0},
        {"num_draws": 20},
        {"batch_sets": 0},
    ],
)
def test_bad_settings(bad):
    name = next(iter(bad))
    with pytest.raises(ValueError, match=rf"SVI\({name}="):
        SVI(**bad)
