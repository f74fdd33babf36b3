"""Multi-path Pathfinder against exact posteriors and evidences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.problem.importance import effective_size
from sidebayes.guides.engines.variational.pathfinder import Pathfinder

import sidebayes as sb
from tests.reference import gaussians
from tests.reference.posteriors import EXACT

pytest.importorskip("blackjax")


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def test_conjugate_normal():
    """Normals are exact there, whose means blackjax has wrong."""
    problem = Problem(gaussians.correlated, (jnp.asarray(gaussians.Y),), {"correlation": 0.8})
    result = Pathfinder(num_paths=3).run(problem, seed=1)
    mean, precision = gaussians.posterior(0.8)
    found = result.log_evidence
    assert found.kind == "estimate"
    assert abs(found.value - gaussians.log_evidence(0.8)) < 4 * found.standard_error + 1e-6
    assert found.standard_error < 0.05
    moved = result.draws["mu"][0] - mean
    squares = np.einsum("si,ij,sj->s", moved, precision, moved)
    assert stats.kstest(squares, stats.chi2(2).cdf).pvalue > 1e-3
    assert result.draws["mu"].shape == (1, 1000, 2)
    assert result.status.converged
    assert result.density_space == "unconstrained"


PEAKS, SHARES = np.array([-4.0, 4.0]), np.array([0.25, 0.75])


def two_peaks(y):
    theta = numpyro.sample("theta", dist.Normal(0.0, 5.0))
    parts = jnp.log(SHARES) + dist.Normal(theta, 0.3).log_prob(jnp.asarray(PEAKS))
    numpyro.factor("peaks", jax.nn.logsumexp(parts))


def test_modes_have_their_masses():
    """By the density of the mixture; own normals would give each path the same mass, of one mode."""
    result = Pathfinder(num_paths=12).run(Problem(two_peaks, (jnp.zeros(1),)), seed=0)
    above = (result.draws["theta"] > 0).mean()
    exact = np.log(SHARES @ stats.norm(0, np.hypot(5, 0.3)).pdf(PEAKS))
    assert abs(above - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 1000)
    assert abs(result.log_evidence.value - exact) < 4 * result.log_evidence.standard_error + 1e-3
    assert f"from {result.effective_draws:.0f} effective" in result.status.message
    assert result.effective_draws < len(np.unique(result.draws["theta"]))


def test_effective_size_is_that_of_the_noisiest_coordinate():
    """By the spread of weighted means over repetitions; the sum of squared weights sees no coordinate."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(400, 1000, 2))
    log_weights = stats.norm(0, 1.15).logpdf(draws[..., 0]) - stats.norm.logpdf(draws[..., 0])
    weights = np.exp(log_weights)
    weights /= weights.sum(axis=1, keepdims=True)
    means = np.einsum("rs,rsj->rj", weights, draws)
    found = np.mean([effective_size(w, x) for w, x in zip(weights, draws, strict=True)])
    kish = np.mean(1 / np.square(weights).sum(axis=1))
    assert found == pytest.approx(1.15**2 / means[:, 0].var(), rel=0.25)
    assert kish == pytest.approx(1 / means[:, 1].var(), rel=0.25)
    assert found < 0.8 * kish


def test_seed_decides():
    problem = Problem(two_peaks, (jnp.zeros(1),))
    first, same, other = (Pathfinder(num_paths=4).run(problem, seed=s) for s in (3, 3, 4))
    np.testing.assert_array_equal(first.draws["theta"], same.draws["theta"])
    assert not np.array_equal(first.draws["theta"], other.draws["theta"])


def test_one_start_that_was_given_is_the_only_one():
    result = Pathfinder().run(Problem(two_peaks, (jnp.zeros(1),)), init={"theta": np.array(-3.0)})
    assert "1 of 1 paths" in result.status.message
    assert (result.draws["theta"] < 0).all()


def test_impossible_densities_are_said():
    def never(y):
        numpyro.factor("never", -jnp.inf * jnp.exp(numpyro.sample("mu", dist.Normal())))

    with pytest.raises(FitError, match="Pathfinder: no path"):
        Pathfinder(num_paths=2).run(Problem(never, (jnp.zeros(1),)))


def test_draws_need_no_second_chain():
    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("x", dist.Normal(mean, 1.0), obs=x[:, 0])

    x = np.random.default_rng(0).normal(size=(20, 1))
    fit = sb.fit(model, x, engine="pathfinder", progress=False)
    assert fit.verdict[0] == "good", fit.verdict
    nuts = sb.fit(model, x, engine="nuts", init=fit, progress=False)
    assert nuts.verdict[0] == "good"


@pytest.mark.parametrize("bad", [{"num_draws": 10}, {"num_paths": 0}, {"memory": 0}])
def test_bad_settings(bad):
    name = next(iter(bad))
    with pytest.raises(ValueError, match=rf"Pathfinder\({name}="):
        Pathfinder(**bad)


def steep(y):
    """Coefficients of a predictor far from zero, whose correlation is .999, in a large density."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    height = jnp.asarray(HEIGHT)
    level = numpyro.sample("level", dist.Normal(0.0, 100.0))
    noise = numpyro.sample("noise", dist.HalfNormal(5.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(level + slope * height, noise), obs=y)


HEIGHT = np.random.default_rng(0).normal(66.0, 4.0, 1000)
EARNINGS = 5 + 0.06 * HEIGHT + np.random.default_rng(1).normal(0.0, 0.9, 1000)


def steep_fit(**options):
    result = Pathfinder(**options).run(Problem(steep, (jnp.asarray(EARNINGS),)), seed=0)
    rows = np.stack([np.ones(1000), HEIGHT], axis=1)
    (_, slope), (left,), *_ = np.linalg.lstsq(rows, EARNINGS)
    sd = np.sqrt(left / 998 * np.linalg.inv(rows.T @ rows)[1, 1])
    return result, abs(result.draws["slope"].mean() - slope) / sd


def test_paths_go_on_along_a_narrow_ridge():
    """A small gain relative to the density ended them far from the mode."""
    result, error = steep_fit()
    assert error < 0.15
    assert result.status.converged
    assert not result.remarks


def test_paths_that_stop_short_are_said():
    result, error = steep_fit(max_steps=8)
    assert error > 1
    assert "did not reach their mode" in result.remarks[-1]


@pytest.mark.parametrize(("name", "seed"), [("three_components", 0), ("boundary", 7)])
def test_stated_errors_of_the_evidence_cover_the_truth(name, seed):
    """Of a density with copies, not all of which a path ends in; of one on a bound."""
    known = EXACT[name]()
    fit = sb.fit(
        known.model, *known.data, engine="pathfinder", seed=seed, progress=False, **known.options
    )
    found = fit.log_evidence
    assert found.kind == "estimate"
    assert abs(found.value - known.log_evidence) < 3 * found.standard_error
    assert found.standard_error < 0.1


def test_a_heavy_tail_leaves_a_bound_on_the_evidence():
    """Its k-hat is .8, so that errors of the mean weight are not to be trusted."""
    known = EXACT["no_events"]()
    found = Pathfinder().run(Problem(known.model, known.data, known.options), seed=7)
    assert "do not trust evidence by importance" in found.status.message
    assert found.log_evidence.kind == "bound"
    assert found.log_evidence.value < known.log_evidence


def test_draws_are_of_all_numberings_of_the_clusters():
    """And the evidence is of all of them, within its stated error."""
    known = EXACT["three_components"]()
    result = Pathfinder().run(Problem(known.model, known.data, known.options))
    site = next(draws for draws in result.draws.values() if draws.shape[2:] == (3,))
    low = np.bincount(site[0].argmin(axis=1), minlength=3)
    assert stats.chisquare(low).pvalue > 1e-3
    found = result.log_evidence
    assert found.kind == "estimate"
    assert abs(found.value - known.log_evidence) < 3 * found.standard_error
    assert found.standard_error < 0.1
