"""Standard errors of scores are those of ArviZ, and units are counted that something is observed of."""

from typing import Annotated

import arviz_stats
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from numpyro import handlers
from scipy.stats import multivariate_normal
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.problem.units import observed_units
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.pairwise_gp import pairwise_gp

import sidebayes
from sidebayes import Links
from sidebayes.results.scores.validation import error_of_sum
from sidebayes.runs import execution
from tests.support.draws import Told

Y = np.random.default_rng(1).normal(size=9)
SEEN = np.arange(9) % 3 > 0
MEAN = np.random.default_rng(2).normal(0.0, 0.4, (4, 100))


@pytest.fixture(autouse=True)
def only_what_is_scored(monkeypatch):
    """Draws are told, and no climb looks for what they miss."""
    monkeypatch.setattr(execution, "mass_elsewhere", lambda *given: None)


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


def with_gaps(y: Annotated[ArrayLike, "rows"], seen: Annotated[ArrayLike, "rows"]):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("rows", len(y)), handlers.mask(mask=jnp.asarray(seen) > 0.5):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def entries_with_gaps(
    y: Annotated[ArrayLike, "rows columns"], seen: Annotated[ArrayLike, "rows columns"]
):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    entries = dist.Normal(mean, 1.0).expand(jnp.shape(y)).mask(jnp.asarray(seen) > 0.5)
    numpyro.sample("y", entries.to_event(1), obs=y)


def certain(y: Annotated[ArrayLike, "rows"]):
    logit = numpyro.sample("logit", dist.Normal(0.0, 100.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=logit), obs=y)


def two_tables(y: Annotated[ArrayLike, "rows"], z: Annotated[ArrayLike, "others"]):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("of_y", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
    with numpyro.plate("of_z", len(z)):
        numpyro.sample("z", dist.Normal(-mean, 1.0), obs=z)


def of_draws(model, *data, draws=MEAN):
    return sidebayes.fit(model, *data, engine=Told({"mean": draws}), progress=False)


def test_masked_rows_have_no_score():
    masked, alone = of_draws(with_gaps, Y, SEEN), of_draws(normal, Y[SEEN])
    found, expected = masked.loo(), alone.loo()
    assert found.n_data_points == expected.n_data_points == 6
    assert found.se == pytest.approx(expected.se)
    np.testing.assert_allclose(found.elpd_i, expected.elpd_i)
    assert found.elpd_i["unit"].to_numpy().tolist() == [str(row) for row in np.flatnonzero(SEEN)]
    folds = masked.kfold(3, progress=False)
    np.testing.assert_array_equal(folds.elpd_i["unit"], found.elpd_i["unit"])
    assert folds.se == pytest.approx(error_of_sum(folds.elpd_i.to_numpy()))


def test_refits_leave_out_the_units_that_they_score():
    """Draws of which one is far from all others: every row of it has weights that are not believed."""
    draws = np.where(np.arange(400).reshape(4, 100) == 7, 4.0, MEAN)
    masked, alone = (
        of_draws(with_gaps, Y, SEEN, draws=draws),
        of_draws(normal, Y[SEEN], draws=draws),
    )
    found, expected = (fit.loo(refit=True, progress=False, n_jobs=1) for fit in (masked, alone))
    assert (found.pareto_k == 0).any()
    np.testing.assert_allclose(found.elpd_i, expected.elpd_i)


def test_a_mask_that_hides_every_row_is_refused():
    fit = of_draws(with_gaps, Y, 0.0 * SEEN)
    for score in (fit.loo, lambda: fit.kfold(3, progress=False)):
        with pytest.raises(ValueError, match="observes nothing, since its mask hides every row"):
            score()


def test_rows_of_which_entries_are_masked_are_observed():
    seen = np.ones((3, 2))
    seen[0, 1] = seen[2, 0] = seen[2, 1] = 0
    problem = Problem(entries_with_gaps, (jnp.ones((3, 2)), jnp.asarray(seen)), {})
    np.testing.assert_array_equal(observed_units(problem)["y"], [True, True, False])


def test_statements_are_of_the_rows_that_they_name():
    links = Links.must_link([(0, 3), (3, 4)], 2.0)
    problem = Problem(
        pairwise_gp, (jnp.ones((6, 2)), as_label_graph(links, 6, 2)), {"num_clusters": 2}
    )
    np.testing.assert_array_equal(
        observed_units(problem)["statements"], [True, False, False, False]
    )


def test_bic_charges_for_rows_that_are_predicted_with_certainty():
    sure = {"logit": np.full((1, 1), 60.0)}
    fit = sidebayes.fit(certain, np.ones(30), engine=Told(sure), progress=False)
    assert fit.bic == pytest.approx(np.log(30))


def series(y: Annotated[ArrayLike, "rows"]):
    """Dependent on one another, so that the data are one unit."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    covariance = scale**2 * (jnp.eye(len(y)) + 0.5)
    numpyro.sample("y", dist.MultivariateNormal(jnp.full(len(y), mean), covariance), obs=y)


def test_bic_of_a_series_counts_its_entries():
    y = np.linspace(-1.0, 2.0, 12)
    known = {"mean": np.zeros((1, 1)), "scale": np.ones((1, 1))}
    fit = sidebayes.fit(series, y, engine=Told(known), progress=False)
    likelihood = multivariate_normal(np.zeros(12), np.eye(12) + 0.5).logpdf(y)
    assert fit.bic == pytest.approx(2 * np.log(12) - 2 * likelihood)


def test_the_only_unit_cannot_be_left_out():
    draws = {"mean": MEAN, "scale": np.ones_like(MEAN)}
    fit = sidebayes.fit(series, Y, engine=Told(draws), progress=False)
    with pytest.raises(ValueError, match="series observes all data as one unit"):
        fit.loo()


def test_folds_hold_rows_of_every_table():
    fit = of_draws(two_tables, Y, np.arange(3.0))
    found = fit.kfold(4, progress=False, n_jobs=1)
    assert found.n_data_points == 12
    assert np.isfinite(found.elpd_i).all()
    single = of_draws(two_tables, Y, np.arange(1.0))
    with pytest.raises(ValueError, match="'others' has one unit"):
        single.kfold(4)
