"""Deterministic sites: truth values, what is not finite, and what depends on the numbers of clusters."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from arviz_base import from_dict

import sidebayes as sb
from sidebayes.runs import execution
from tests.support.draws import Told

RNG = np.random.default_rng(0)
Y = RNG.normal(0.5, 1.0, size=(8, 1))
X = np.concatenate([RNG.normal(-2.0, 0.5, 12), RNG.normal(2.0, 0.5, 8)])


def signed(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.deterministic("positive", mean > 0)
    numpyro.deterministic("root", jnp.sqrt(mean))
    with numpyro.plate("points", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0).expand([1]).to_event(1), obs=y)


def turning(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.deterministic("turn", jnp.exp(1j * mean))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def mixture(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("clusters", 2):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    numpyro.deterministic("first", mean[0])
    numpyro.deterministic("gap", jnp.abs(mean[1] - mean[0]))
    fn = dist.MixtureSameFamily(dist.Categorical(probs=weights), dist.Normal(mean, 0.5))
    with numpyro.plate("points", len(x)):
        numpyro.sample("x", fn, obs=x)


@pytest.fixture(autouse=True)
def no_search(monkeypatch):
    """Draws that are told need not be of the posterior."""
    monkeypatch.setattr(execution, "mass_elsewhere", lambda *given: None)


def of_signed(seed=0):
    mean = np.random.default_rng(seed).normal(0.5, 0.3, size=(4, 500))
    with np.errstate(invalid="ignore"):
        draws = {"mean": mean, "positive": mean > 0, "root": np.sqrt(mean)}
    return sb.fit(signed, Y, engine=Told(draws), progress=False), draws


def of_mixture():
    """Draws whose clusters have other numbers in two of four chains."""
    rng = np.random.default_rng(1)
    weights = np.full((4, 150, 2), [0.6, 0.4]) + rng.normal(0.0, 0.01, (4, 150, 1)) * [1, -1]
    mean = np.array([-2.0, 2.0]) + rng.normal(0.0, 0.1, (4, 150, 2))
    draws = {"weights": weights, "mean": mean}
    for values in draws.values():
        values[2:] = values[2:, :, ::-1]
    draws |= {"first": mean[..., 0], "gap": np.abs(mean[..., 1] - mean[..., 0])}
    return sb.fit(mixture, X, engine=Told(draws), progress=False), draws


def test_truth_values_count_as_zero_and_one():
    fit, draws = of_signed()
    assert fit.tree["posterior"]["positive"].dtype == bool
    mean = draws["positive"].mean()
    assert fit.summary().loc["positive", "mean"] == pytest.approx(mean, abs=0.006)
    assert fit.params["positive"] == pytest.approx(mean)
    other, _ = of_signed(1)
    frame = sb.compare({"one": fit, "other": other, "bare": from_dict({"posterior": draws})}).frame
    assert (frame["shift"].dropna() < 0.2).all()


def test_what_is_not_finite_is_named_and_left_out(tmp_path):
    fit, draws = of_signed()
    bad = int(np.isnan(draws["root"]).sum())
    level, said = fit.verdict
    assert level == "caution"
    assert f"root is NaN or infinite in {bad} of 2000 draws, and is left out" in said
    assert np.isfinite(list(fit.convergence.values())).all()
    other, _ = of_signed(1)
    frame = sb.compare({"one": fit, "other": other}).frame
    assert "root" not in set(frame["shift_of"])
    assert set(frame["trust"]) == {"reference", "agrees"}
    fit.save(tmp_path / "fit.nc")
    loaded = sb.load(tmp_path / "fit.nc", engine=fit.config)
    assert loaded.verdict == fit.verdict


def test_draws_from_elsewhere_may_hold_what_is_not_finite():
    draws = of_signed()[1]
    given = sb.Fit.from_draws(signed, Y, draws)
    np.testing.assert_array_equal(given.tree["posterior"]["root"], draws["root"])
    wrong = {**draws, "mean": np.where(draws["mean"] < 0, np.nan, draws["mean"])}
    with pytest.raises(ValueError, match=r"not finite at the sites \['mean'\]"):
        sb.Fit.from_draws(signed, Y, wrong)


def test_complex_numbers_are_refused_before_the_fit():
    with pytest.raises(ValueError, match=r"sites \['turn'\] are complex.*the imaginary part"):
        sb.fit(turning, Y[:, 0], engine="nuts", progress=False)


def test_sites_that_depend_on_the_numbers_of_clusters_follow_them(tmp_path):
    fit, draws = of_mixture()
    assert draws["first"].std() > 1.9
    assert fit.convergence["rhat"] < 1.05
    first = fit.relabelled[0]["posterior"]["mean"][..., 0]
    np.testing.assert_allclose(fit.relabelled[0]["posterior"]["first"], first, rtol=1e-6)
    assert fit.summary().loc["first", "sd"] < 0.2
    both = sb.compare({"one": fit, "other": of_mixture()[0]})
    assert set(both.frame["shift_of"]) <= {"", "gap", "average mean", "spread of mean"}
    assert "differ from fit to fit: first." in str(both)
    fit.save(tmp_path / "fit.nc")
    loaded = sb.load(tmp_path / "fit.nc", engine=fit.config)
    with pytest.warns(
        sb.SideBayesWarning, match="sites first depend on the numbers of the clusters"
    ):
        assert np.isnan(loaded.params["first"])
    again = sb.load(tmp_path / "fit.nc", mixture, engine=fit.config)
    np.testing.assert_allclose(again.params["first"], fit.params["first"])
