"""Sites that the gradient of the density does not see, though the density changes with them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.jumps import instead_of_slopes, jumping_sites

import sidebayes as sb

Y = np.array([3, 2, 4, 7, 6])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def change_point(y):
    change = numpyro.sample("change", dist.Uniform(0.0, 1.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5).expand([2]).to_event(1))
    time = jnp.linspace(0.0, 1.0, len(y))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(jnp.where(time < change, rate[0], rate[1])), obs=y)


def rounded(y):
    """A prior has a gradient where the likelihood has none; a parent is smooth though it only has a prior."""
    centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
    count = numpyro.sample("count", dist.Normal(centre, 5.0))
    numpyro.sample("unused", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(jnp.floor(count), scale), obs=1.0 * y)


def hinge(y):
    """The density bends, and does not jump."""
    change = numpyro.sample("change", dist.Uniform(0.0, 1.0))
    time = jnp.linspace(0.0, 1.0, len(y))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(jnp.maximum(time - change, 0.0), 1.0), obs=1.0 * y)


@pytest.mark.parametrize(
    ("model", "sites"), [(change_point, ("change",)), (rounded, ("count",)), (hinge, ())]
)
def test_jumps_are_found(model, sites):
    problem = Problem(model, (jnp.asarray(Y),))
    assert jumping_sites(problem) == sites
    said = instead_of_slopes(problem, "try NUTS")
    assert ("use SMC" in said) == bool(sites)
    assert ("NUTS" in said) != bool(sites)


def test_debug_tells_jumps_from_sites_without_use():
    found = sb.debug(change_point, Y)["gradient"]
    assert found.finding.startswith("the density jumps with 'change'")
    assert "SMC" in found.remedy
