"""Standard errors of scores are those of ArviZ."""

import arviz_stats
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import sidebayes
from sidebayes.results.scores.validation import error_of_sum


def normal(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def test_errors_are_those_of_arviz():
    engine = sidebayes.NUTS(num_warmup=200, num_samples=200)
    y = np.random.default_rng(0).normal(size=6)
    fit = sidebayes.fit(normal, y, engine=engine, progress=False)
    found = fit.loo()
    assert found.se == pytest.approx(arviz_stats.loo(fit.tree).se, rel=1e-3)
    folds = fit.kfold(6, progress=False)
    assert folds.se == pytest.approx(np.sqrt(6 * np.var(folds.elpd_i.to_numpy(), ddof=1)))


def test_one_term_has_no_error():
    assert np.isnan(error_of_sum(np.ones(1)))
    assert error_of_sum(np.array([1.0, 3.0])) == pytest.approx(2.0)
