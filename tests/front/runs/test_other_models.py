"""Another model than the one that was fitted, whose sites are the same, is refused where a fit is loaded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sidebayes as sb

Y = np.random.default_rng(5).normal(2, 1, 12)


def one(y):
    m = numpyro.sample("m", dist.Normal(0, 5.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def one_again(y):
    prior = dist.Normal(0, 5.0)
    m = numpyro.sample("m", prior)
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def other_data(y):
    m = numpyro.sample("m", dist.Normal(0, 5.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.StudentT(2.0, m, 7.0), obs=y)


def other_prior(y):
    m = numpyro.sample("m", dist.Normal(0, 6.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def other_factor(y):
    one(y)
    numpyro.factor("more", -1.0)


@dataclass(frozen=True)
class Saved:
    path: str
    fit: sb.Fit


@pytest.fixture(
    scope="module", params=["map", "laplace", pytest.param("smc", marks=pytest.mark.slow)]
)
def saved(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("fits") / "one.nc"
    fit = sb.fit(one, Y, engine=request.param, progress=False)
    fit.save(path)
    return Saved(path, fit)


def test_the_same_model_is_taken_however_it_is_written(saved):
    for model in (one, one_again):
        again = sb.load(saved.path, model=model)
        np.testing.assert_allclose(again.log_prob(Y), saved.fit.log_prob(Y))


@pytest.mark.parametrize("model", [other_data, other_prior, other_factor])
def test_another_density_is_refused(saved, model):
    with pytest.raises(ValueError, match="another log density than the file holds"):
        sb.load(saved.path, model=model)
