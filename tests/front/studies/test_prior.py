"""Draws from the prior, and the prior's density beside the draws of a fit."""

from __future__ import annotations

from typing import Annotated

import arviz_stats
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from scipy.stats import dirichlet, invwishart, multivariate_normal, norm

import sidebayes as sb
from tests.probes import data, models
from tests.support.draws import Told, assert_moments, at_one, values

PRIOR = sb.GaussianPrior([1.0, -1.0], 2.0, 6.0, np.array([[3.0, 1.0], [1.0, 2.0]]))


def line(y: Annotated[ArrayLike, "rows"], times: Annotated[ArrayLike, "rows"]):
    slope = numpyro.sample("slope", dist.Normal(1.0, 2.0))
    with numpyro.plate("rows", len(times)):
        numpyro.sample("y", dist.Normal(slope * times, 0.5), obs=y)


def counted(y: Annotated[ArrayLike | None, "rows"] = None, *, num: int = 0):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", num if y is None else len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def test_prior_and_data_have_their_exact_moments():
    times = np.array([0.0, 1.0, -2.0])
    tree = sb.prior_predictive(line, times=times, num_draws=4000)
    assert list(tree) == ["prior", "prior_predictive", "constant_data"]
    assert_moments(values(tree, "prior", "slope")[:, None], [1.0], [[4.0]])
    drawn = values(tree, "prior_predictive", "y")
    assert_moments(drawn, times, 4 * np.outer(times, times) + 0.25 * np.eye(3))
    again = sb.prior_predictive(line, times=times, num_draws=4000)
    other = sb.prior_predictive(line, times=times, num_draws=4000, seed=1)
    np.testing.assert_array_equal(drawn, values(again, "prior_predictive", "y"))
    assert (drawn != values(other, "prior_predictive", "y")).all()


def test_prior_of_a_mixture():
    x = np.random.default_rng(0).normal(size=(4, 2))
    tree = sb.prior_predictive("gmm", x, num_clusters=3, prior=PRIOR, num_draws=4000)
    assert tree["prior"]["mean"].dims == ("chain", "draw", "clusters", "features")
    mean = values(tree, "prior", "mean")[:, 0]
    within = np.asarray(PRIOR.scale) / (PRIOR.df - 3)
    assert_moments(mean, PRIOR.mean, within / PRIOR.shrinkage)
    drawn = values(tree, "prior_predictive", "x")[:, 0]
    assert_moments(drawn, PRIOR.mean, within * (1 + 1 / PRIOR.shrinkage))
    np.testing.assert_array_equal(tree["observed_data"]["x"], x)


def test_priors_read_off_the_data_need_them():
    x = np.random.default_rng(0).normal(size=(30, 2))
    tree = sb.prior_predictive(models.labelled, x, np.full(30, -1), num_clusters=2, num_classes=2)
    assert np.isfinite(tree["prior_predictive"]["x"]).all()
    with pytest.raises(TypeError, match="x was left out, and no other data say how many features"):
        sb.prior_predictive(models.labelled, known=np.full(30, -1), num_clusters=2, num_classes=2)


@pytest.mark.parametrize(
    ("method", "given", "options", "error", "said"),
    [
        (
            models.robust,
            (np.arange(5.0),),
            {"num_clusters": 2},
            ValueError,
            "site 'centre' is improper",
        ),
        (
            "gmm",
            (np.eye(4),),
            {"num_clusters": 2, "prior": "flat"},
            ValueError,
            "site 'cov.* is improper",
        ),
        ("gmm", (), {"num_clusters": 2}, TypeError, "gmm: x was left out, .* how many points"),
        (line, (), {}, TypeError, "y was left out, and no other data say how many rows"),
        (line, (np.zeros(2),), {}, TypeError, r"\['y'\] depends on: pass times"),
        (line, (np.zeros(2), [0, np.inf]), {}, ValueError, "times has missing or infinite"),
        (counted, (), {"num": 3}, ValueError, "observes nothing without y; pass .* any numbers"),
        (line, (None, np.zeros(2)), {"num_draws": 0}, ValueError, "num_draws = 0; expected"),
        (line, (None, np.zeros(2)), {"steps": 3}, TypeError, "no option 'steps'"),
        (
            "constraint_fit",
            (np.eye(4),),
            {"num_clusters": 2},
            ValueError,
            r"factors \['must', 'cannot'\]",
        ),
    ],
)
def test_what_has_no_prior_is_refused(method, given, options, error, said):
    with pytest.raises(error, match=said):
        sb.prior_predictive(method, *given, **options)


def random_draws(chains, draws):
    """Draws of the parameters of a mixture of two clusters."""
    rng = np.random.default_rng(1)
    shape = chains, draws
    return {
        "weights": rng.dirichlet([60.0, 40.0], shape),
        "mean": rng.normal([[-3.0, 0.0], [3.0, 1.0]], 0.3, (*shape, 2, 2)),
        "covariance": np.array(
            [invwishart(40, 40 * np.eye(2)).rvs(2, random_state=rng) for _ in range(chains * draws)]
        ).reshape(*shape, 2, 2, 2),
    }


@pytest.fixture(scope="module")
def mixtures():
    """Fits by draws that are stored in full, and in part."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(20, 2)) + np.repeat([[-3.0, 0.0], [3.0, 1.0]], [12, 8], axis=0)
    draws = random_draws(2, 400)
    few = {name: value[:, :200] for name, value in draws.items()}
    fits = [
        sb.fit("gmm", x, num_clusters=2, prior=PRIOR, engine=Told(d), progress=False)
        for d in (few, draws)
    ]
    return x, draws, fits


def test_log_prior_is_that_of_scipy(mixtures):
    _, draws, (fit, _) = mixtures
    found = fit.tree["log_prior"]
    for number in (0, 7):
        at = {name: value[1, number] for name, value in draws.items()}
        own = invwishart(PRIOR.df, PRIOR.scale)
        expected = {
            "weights": dirichlet([1.0, 1.0]).logpdf(at["weights"]),
            "covariance": sum(own.logpdf(c) for c in at["covariance"]),
            "mean": sum(
                multivariate_normal(PRIOR.mean, c / PRIOR.shrinkage).logpdf(m)
                for m, c in zip(at["mean"], at["covariance"], strict=True)
            ),
        }
        for name, value in expected.items():
            assert found[name][1, number].item() == pytest.approx(value)


def test_flat_priors_have_no_slope():
    fit = sb.fit(
        models.robust,
        data.heavy_tails(),
        num_clusters=2,
        engine=Told(
            {
                "weights": np.full((1, 3, 2), 0.5),
                "centre": np.arange(6.0).reshape(1, 3, 2),
                "scale": np.ones((1, 3, 2)),
            }
        ),
    )
    np.testing.assert_array_equal(fit.tree["log_prior"]["centre"], 0.0)


def test_points_have_no_log_prior():
    engine = at_one({"weights": [1.0], "mean": [np.zeros(4)], "covariance": [np.eye(4)]})
    fit = sb.fit("gmm", np.eye(4), num_clusters=1, engine=engine, progress=False)
    assert "log_prior" not in fit.tree


def test_power_scaling_of_a_conjugate_mean():
    """Sensitivity of a normal mean: that of the same draws with densities written by hand."""
    rng = np.random.default_rng(3)
    y = rng.normal(2.0, 1.0, 8)

    def one_mean(y: Annotated[ArrayLike, "rows"]):
        mean = numpyro.sample("mean", dist.Normal(0.0, 0.7))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    precision = 0.7**-2 + len(y)
    draws = y.sum() / precision + rng.normal(size=(4, 600)) / np.sqrt(precision)
    fit = sb.fit(one_mean, y, engine=Told({"mean": draws}), progress=False)
    kept = fit.thinned
    assert kept["posterior"].sizes["draw"] == 200
    at = kept["posterior"]["mean"]
    by_hand = kept.copy()
    by_hand["log_prior"]["mean"] = at.copy(data=norm(0, 0.7).logpdf(at))
    terms = norm.logpdf(y, at.to_numpy()[..., None])
    by_hand["log_likelihood"]["y"] = kept["log_likelihood"]["y"].copy(data=terms)
    found, expected = (arviz_stats.psense_summary(tree) for tree in (kept, by_hand))
    assert found.equals(expected)
    assert found["prior"].item() > 0.05  # a narrow prior, away from the data
    assert found["likelihood"].item() > 0.05


def test_power_scaling_works_on_a_fit(mixtures):
    _, _, fits = mixtures
    for tree in (fits[0].tree, fits[1].thinned):
        found = arviz_stats.psense_summary(tree, round_to=6)
        assert np.isfinite(found[["prior", "likelihood"]].to_numpy(float)).all()
        assert len(found) == 2 + 4 + 8
