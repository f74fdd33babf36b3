"""Sites that bound one another: every engine takes supports as the model runs."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.bridge import bridge_evidence

import sidebayes as sb

Y = np.random.default_rng(0).uniform(0, 3.0, 12)
QUICK = {"num_chains": 2, "num_warmup": 300, "num_samples": 400}
ENGINES = {
    "map": sb.MAP(num_restarts=2),
    "laplace": sb.Laplace(),
    "svi": sb.SVI(num_restarts=1),
    "pathfinder": sb.Pathfinder(num_paths=2),
    "nuts": sb.NUTS(**QUICK),
    "hmc": sb.HMC(**QUICK),
    "mclmc": sb.MCLMC(**QUICK),
    "smc": sb.SMC(num_particles=200),
    "nested": sb.NestedSlice(num_live=200, num_delete=40),
}
NEEDS_BLACKJAX = {"pathfinder", "mclmc", "smc", "nested"}


def between(y):
    hi = numpyro.sample("hi", dist.LogNormal(0.0, 1.0))
    lo = numpyro.sample("lo", dist.Uniform(-hi, hi))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(lo, hi), obs=y)


def above(y):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.TruncatedNormal(0.0, 2.0, low=a))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(b, 1 + a**2), obs=y)


@pytest.fixture(scope="module")
def exact():
    """Log evidence and means by quadrature."""
    hi, share = np.meshgrid(np.linspace(0.4, 6.0, 1501), np.linspace(-1, 1, 1001), indexing="ij")
    density = stats.lognorm.pdf(hi, 1.0) / 2  # of lo / hi, which is uniform
    density *= np.exp(sum(stats.norm.logpdf(y, share * hi, hi) for y in Y))
    area = 5.6 / 1500 * 2 / 1000
    total = density.sum() * area
    means = {
        name: (v * density).sum() * area / total for name, v in (("hi", hi), ("lo", share * hi))
    }
    return np.log(total), means


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@cache
def fitted(name, model=between):
    if name in NEEDS_BLACKJAX:
        pytest.importorskip("blackjax")
    return ENGINES[name].run(Problem(model, (jnp.asarray(Y),)), progress=False)


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_runs(name):
    found = fitted(name)
    draws = found.draws or found.params
    assert (np.abs(draws["lo"]) <= draws["hi"]).all()


@pytest.mark.parametrize("name", ["nuts", "nested"])
def test_against_quadrature(name, exact):
    evidence, means = exact
    found = fitted(name)
    for site, mean in means.items():
        assert found.draws[site].mean() == pytest.approx(mean, abs=0.05)
    problem = Problem(between, (jnp.asarray(Y),))
    own = found.log_evidence or bridge_evidence(problem, found.draws)
    assert abs(own.value - evidence) < 3 * own.standard_error
    assert own.standard_error < 0.15


@pytest.mark.parametrize("name", ["laplace", "nuts"])
def test_a_bound_on_one_side(name):
    draws = fitted(name, above).draws
    assert (draws["b"] >= draws["a"]).all()
