"""Models of one's own: arguments without axes, data that the model transforms, and categories of new rows."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike

import sidebayes as sb

QUICK = {"engine": sb.Laplace(num_restarts=1), "progress": False}


def test_data_that_the_model_transforms_lie_along_the_plate():
    def logarithms(y: Annotated[ArrayLike, "rows"]):
        loc = numpyro.sample("loc", dist.Normal(0.0, 2.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("log_y", dist.Normal(loc, 1.0), obs=jnp.log(y))

    fit = sb.fit(logarithms, np.exp(np.arange(5) / 5), **QUICK)
    found = fit.predictive()
    assert found["posterior_predictive"]["log_y"].dims == ("chain", "draw", "rows")
    assert found["observed_data"]["log_y"].dims == ("rows",)


def test_categories_of_new_rows_are_integers():
    def categories(c: Annotated[ArrayLike, "rows"]):
        probs = numpyro.sample("probs", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("rows", len(c)):
            numpyro.sample("c", dist.Categorical(probs), obs=c)

    fit = sb.fit(categories, np.array([0, 1, 2, 1, 0]), **QUICK)
    with pytest.raises(TypeError, match=r"needs integers where it is given floats"):
        fit.log_prob(np.array([0.5, 0.0]))


def test_data_without_axes_are_an_option():
    def scaled(y: Annotated[ArrayLike, "rows"], scale: Annotated[ArrayLike, ""]):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(loc, scale), obs=y)

    with pytest.raises(TypeError, match=r"declare a number as an option, scale: float"):
        sb.fit(scaled, np.arange(4.0), np.array(2.0), **QUICK)
