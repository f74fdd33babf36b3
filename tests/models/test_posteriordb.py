"""NUTS through the front door against a published posterior: posteriordb's low_dim_gauss_mix.

Two normal components in one dimension, means in order, 1,000 points. Moments are those of
posteriordb's 10,000 reference draws, made by Stan; provenance of both files is in the JSON.
"""

import json
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from arviz_stats.base import array_stats

import sidebayes

FOLDER = Path(__file__).parents[1] / "reference" / "posteriordb"
PUBLISHED = json.loads((FOLDER / "low_dim_gauss_mix.json").read_text())
Y = np.loadtxt(FOLDER / "low_dim_gauss_mix.txt").reshape(-1, 1)


def ordered_mixture(x):
    ordered = dist.ImproperUniform(dist.constraints.ordered_vector, (), (2,))
    mu = numpyro.sample("mu", ordered)
    numpyro.factor("prior_of_mu", dist.Normal(0.0, 2.0).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    share = dist.Categorical(probs=np.array([1.0, -1.0]) * theta + np.array([0.0, 1.0]))
    numpyro.sample("x", dist.MixtureSameFamily(share, dist.Normal(mu, sigma)), obs=x[:, 0])


@pytest.fixture(scope="module")
def draws():
    engine = sidebayes.NUTS(num_warmup=300, num_samples=500)
    fit = sidebayes.fit(ordered_mixture, Y, engine=engine, seed=1, progress=False)
    assert fit.status.converged, fit.status
    posterior = fit.tree["posterior"]
    columns = [posterior[name].to_numpy().reshape(4, 500, -1) for name in ("mu", "sigma", "theta")]
    return np.concatenate(columns, axis=2)


def test_moments_are_those_of_posteriordb(draws):
    assert array_stats.rhat(draws, chain_axis=0, draw_axis=1).max() < 1.01
    ess = array_stats.ess(draws, chain_axis=0, draw_axis=1)
    assert ess.min() > 800
    theirs, error = np.array(PUBLISHED["mean"]), np.array(PUBLISHED["mcse_mean"])
    spread = draws.std(axis=(0, 1))
    gap = draws.mean(axis=(0, 1)) - theirs
    assert (np.abs(gap) < 4 * np.hypot(error, spread / np.sqrt(ess))).all()
    # the published errors are spread / sqrt(ess); so they tell the spread too
    published = error * np.sqrt(PUBLISHED["ess_bulk"])
    np.testing.assert_allclose(spread, published, rtol=0.1)
