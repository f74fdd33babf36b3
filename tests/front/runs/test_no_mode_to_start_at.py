"""Chains do not start where a search for a mode ended at a density that grows without bound."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import sidebayes as sb
from sidebayes.runs.execution import starting_values

Y = np.random.default_rng(2).normal(size=12).cumsum()


def local_level(y):
    """The level goes through all observations where their standard deviation vanishes."""
    step = numpyro.sample("step", dist.HalfNormal(1.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("times", len(y)):
        change = numpyro.sample("change", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(jnp.cumsum(step * change), noise), obs=y)


def test_chains_start_elsewhere():
    found = sb.fit(local_level, Y, engine=sb.MAP(num_restarts=2), progress=False)
    assert "grows without bound towards noise = 0" in found.verdict[1]
    run = replace(found.run, engine=sb.NUTS())
    with run.precision:
        assert starting_values(run, None) is None
