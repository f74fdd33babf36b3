"""Variables of draws made elsewhere that the model lacks, or computes otherwise."""

import warnings

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sidebayes
from sidebayes import SideBayesWarning

Y = np.random.default_rng(0).normal(1.0, 1.0, 50)
PRECISION = 1 / 25 + len(Y)
MEAN = Y.sum() / PRECISION + np.random.default_rng(1).normal(size=(4, 300)) / np.sqrt(PRECISION)


def doubled(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    numpyro.deterministic("double", 2 * mean)
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def described(**others):
    return sidebayes.Fit.from_draws(doubled, Y, {"mean": MEAN, **others})


def test_variables_that_the_model_lacks_are_named():
    with pytest.warns(SideBayesWarning, match="hold mistyped, no latent or deterministic site"):
        fit = described(mistyped=MEAN)
    assert "mistyped" not in fit.tree["posterior"]


@pytest.mark.parametrize("other", [0 * MEAN - 99, MEAN, MEAN[..., None]])
def test_sites_that_the_model_computes_otherwise_are_named(other):
    with pytest.warns(SideBayesWarning, match="values of double that the model computes otherwise"):
        fit = described(double=other)
    np.testing.assert_allclose(fit.tree["posterior"]["double"], 2 * MEAN)


@pytest.mark.parametrize("others", [{}, {"double": (2 * MEAN).astype(np.float32)}])
def test_nothing_is_said_where_both_agree(others):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        described(**others)
