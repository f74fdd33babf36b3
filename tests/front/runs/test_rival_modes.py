"""Samplers whose chains all start at one of two modes say so."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike

import sidebayes as sb

SHORT = {"num_warmup": 200, "num_samples": 200, "num_chains": 2}


def sign(y: Annotated[ArrayLike, "rows"], *, shift: float = 0.05):
    """A coordinate that is known up to its sign, but for a prior that prefers one side."""
    theta = numpyro.sample("theta", dist.Normal(shift, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(jnp.abs(theta), 0.2), obs=y)


Y = np.random.default_rng(0).normal(2.0, 0.2, 10)


@pytest.mark.parametrize("engine", [sb.NUTS(**SHORT), sb.HMC(**SHORT)])
def test_chains_at_one_of_two_modes_are_not_good(engine):
    """A ratio of the masses of exp(4 * 0.2) = 2.2 for one, which no chain sees."""
    fit = sb.fit(sign, Y, engine=engine, shift=0.2, progress=False)
    assert (fit.tree["posterior"]["theta"] > 0).all()
    grade, why = fit.verdict
    assert grade == "caution"
    assert "another mode, 0.8 below the highest" in why


def test_modes_that_hardly_matter_are_not_named():
    fit = sb.fit(sign, Y, engine=sb.NUTS(**SHORT), shift=2.0, progress=False)
    assert "another mode" not in fit.verdict[1]
