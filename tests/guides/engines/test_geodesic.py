"""Geodesic HMC: laws of spheres in closed form, other sites beside points, lengths, refusals."""

from __future__ import annotations

import arviz_stats as azs
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy.special import ive
from scipy.stats import chi2, kstest
from sidebayes.guides.engines.base import FitError, Problem
from sidebayes.guides.engines.problem.density import log_joint
from sidebayes.guides.engines.samplers.geodesic import GeodesicHMC
from sidebayes.guides.engines.samplers.mcmc import NUTS
from sidebayes.models.blocks.manifolds.directions import Direction

import sidebayes as sb
from sidebayes import sample_direction, sample_preshape

FEW = {"num_warmup": 300, "num_samples": 500}
MEANS = np.array([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def mean_and_error(draws):
    """Mean with its Monte Carlo error, by the effective sample size, which is not tiny."""
    ess = float(azs.ess(draws, method="mean"))
    assert ess > 50
    return draws.mean(), draws.std() / np.sqrt(ess)


def assert_agree(one, other):
    """Means and squares of two sets of draws, within five standard errors of their difference."""
    for power in (1, 2):
        (first, error), (second, beside) = (mean_and_error(d**power) for d in (one, other))
        assert abs(first - second) < 5 * np.hypot(error, beside)


def von_mises_fisher(target):
    """The law of check 15: preshapes of norm 1.5 near a target of norm 6."""
    shape = sample_preshape("shape", *target.shape)
    numpyro.factor("near", 1.5 * (shape * target).sum())


def test_cosine_under_a_von_mises_fisher_law():
    target = np.random.default_rng(0).normal(size=(5, 2))
    target -= target.mean(axis=0)
    target *= 6 / np.linalg.norm(target)
    result = GeodesicHMC().run(Problem(von_mises_fisher, (jnp.asarray(target),)), seed=1)
    shape = result.draws["shape"]
    np.testing.assert_allclose(shape.sum(axis=-2), 0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(shape, axis=(-2, -1)), 1, rtol=1e-12)
    mean, error = mean_and_error((shape * target).sum(axis=(-2, -1)) / 6)
    exact = ive(4, 9) / ive(3, 9)  # of dimension 8 and concentration 9
    np.testing.assert_allclose(exact, 0.6701, atol=1e-4)
    assert error < 0.004
    assert abs(mean - exact) < 5 * error
    assert result.status.converged
    assert result.sample_stats["acceptance_rate"].mean() > 0.7


def bare(rows):
    sample_direction("point", rows.shape[1])


def test_without_data_points_are_uniform():
    result = GeodesicHMC(**FEW).run(Problem(bare, (jnp.zeros((1, 3)),)), seed=2)
    point = result.draws["point"]
    for axis in range(3):
        for power, expected in ((1, 0.0), (2, 1 / 3), (4, 1 / 5)):
            mean, error = mean_and_error(point[..., axis] ** power)
            assert abs(mean - expected) < 5 * error
    # geodesics are exact: no energy is lost, and only the length of a trajectory counts
    np.testing.assert_allclose(result.sample_stats["acceptance_rate"], 1, atol=1e-9)


def clustered(x):
    """Points about two means on a sphere of radius 2, labels summed out."""
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("clusters", 2):
        mean = sample_direction("mean", 3)
    parts = dist.Normal(2 * mean, scale).to_event(1)
    mixture = dist.MixtureSameFamily(dist.Categorical(jnp.array([0.65, 0.35])), parts)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("x", mixture, obs=x)


@pytest.fixture(scope="module")
def both():
    """Draws of the same posterior by this engine and by NUTS."""
    rng = np.random.default_rng(3)
    x = 2 * MEANS[rng.choice(2, 20, p=[0.65, 0.35])] + 0.7 * rng.normal(size=(20, 3))
    with jax.enable_x64(True):
        problem = Problem(clustered, (jnp.asarray(x),))
        init = {"scale": 0.7, "mean_vector": MEANS}
        engines = GeodesicHMC(**FEW), NUTS(**FEW)
        return problem, *(engine.run(problem, seed=4, init=init) for engine in engines)


def test_other_sites_beside_points_agree_with_nuts(both):
    _, ours, theirs = both
    assert_agree(ours.draws["scale"], theirs.draws["scale"])
    for cluster in range(2):
        for axis in range(3):
            one, other = (r.draws["mean"][..., cluster, axis] for r in (ours, theirs))
            assert_agree(one, other)
    assert ours.sample_stats.keys() <= theirs.sample_stats.keys()
    assert np.unique(ours.sample_stats["n_steps"]).size > 1  # lengths of trajectories are random
    for result in (ours, theirs):  # adaptation ends with the warm-up
        assert np.ptp(result.sample_stats["step_size"], axis=1).max() == 0.0


def test_draws_are_of_the_model_as_it_is_written(both):
    """Vectors have the points' directions and lengths by their law; the density is that of the model."""
    problem, ours, _ = both
    vector = ours.draws["mean_vector"]
    length = np.linalg.norm(vector, axis=-1)
    np.testing.assert_allclose(vector / length[..., None], ours.draws["mean"], atol=1e-12)
    assert kstest(10 * length.ravel() ** 2, chi2(13).cdf).pvalue > 1e-4
    at = {name: ours.draws[name][0, 7] for name in ("mean_vector", "scale")}
    expected = jax.jit(lambda at: log_joint(problem, at))(at) + np.log(at["scale"])
    np.testing.assert_allclose(ours.sample_stats["lp"][0, 7], expected, rtol=1e-12)


def raw(x):
    """Uses the vector where its direction was meant."""
    sample_direction("good", 2)
    point = numpyro.sample("bad_vector", Direction(2), infer={"manifold": "sphere"})
    numpyro.sample("x", dist.Normal(point[0], 1.0), obs=x)


def other_prior(x):
    declared = {"manifold": "sphere"}
    numpyro.sample("point", dist.Normal(jnp.zeros(2), 1.0).to_event(1), infer=declared)


def scaled(x):
    handlers.scale(sample_direction, 2.0)("point", 2)


def on_a_torus(x):
    numpyro.sample("point", Direction(2), infer={"manifold": "torus"})


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (raw, "depends on the length of 'bad_vector'"),
        (other_prior, "'point' declares the manifold 'sphere' with prior Independent"),
        (scaled, r"'point_vector' .* outside of handlers\.scale"),
        (on_a_torus, "'point' declares the manifold 'torus'"),
        (lambda x: numpyro.sample("a", dist.Normal(x[0], 1.0)), "the model declares none"),
    ],
)
def test_models_that_are_refused(model, words):
    with pytest.raises(ValueError, match=words):
        GeodesicHMC(**FEW).run(Problem(model, (jnp.zeros(2),)), progress=False)


def broken(x):
    point = sample_direction("point", 3)
    numpyro.sample("x", dist.Normal(jnp.sqrt(point[0] - 2), 1.0), obs=x)


def test_a_start_without_density_is_blamed_on_its_site():
    with pytest.raises(FitError, match="chain 0 .* site 'x' has log density nan"):
        GeodesicHMC(**FEW).run(Problem(broken, (jnp.zeros(2),)), progress=False)


def test_a_fit_from_the_front_door():
    """Ranks of chains, summaries and predictions are those of every sampler."""
    rng = np.random.default_rng(0)
    x = 2 * MEANS[0] + 0.5 * rng.normal(size=(12, 3))
    fit = sb.fit(facing, x, engine=GeodesicHMC(num_warmup=100, num_samples=100), progress=False)
    assert fit.tree["posterior"]["point"].shape == (4, 100, 3)
    assert float(fit.summary().loc["point[0]", "r_hat"]) < 1.05


def facing(x):
    point = sample_direction("point", 3)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("x", dist.Normal(2 * point, 0.5).to_event(1), obs=x)
