"""Models of one's own: arguments without axes, data that the model transforms, and categories of new rows."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from sidebayes.diagnostics.sites import unwrapped
from sidebayes.diagnostics.symmetry.distance import farthest
from sidebayes.diagnostics.symmetry.invariants import invariants

import sidebayes as sb
from tests.probes.models import lines
from tests.support.draws import Asked, Asking, Told, at_one, told

QUICK = {"engine": sb.Laplace(num_restarts=1), "progress": False}


def test_data_that_the_model_transforms_lie_along_the_plate():
    def logarithms(y: Annotated[ArrayLike, "rows"]):
        loc = numpyro.sample("loc", dist.Normal(0.0, 2.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("log_y", dist.Normal(loc, 1.0), obs=jnp.log(y))

    fit = told(logarithms, (np.exp(np.arange(5) / 5),), {"loc": 0.4})
    found = fit.predictive()
    assert found["posterior_predictive"]["log_y"].dims == ("chain", "draw", "rows")
    assert found["observed_data"]["log_y"].dims == ("rows",)


def test_categories_of_new_rows_are_integers():
    def categories(c: Annotated[ArrayLike, "rows"]):
        probs = numpyro.sample("probs", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("rows", len(c)):
            numpyro.sample("c", dist.Categorical(probs), obs=c)

    fit = told(categories, (np.array([0, 1, 2, 1, 0]),), {"probs": [0.4, 0.4, 0.2]})
    with pytest.raises(TypeError, match=r"needs integers where it is given floats"):
        fit.log_prob(np.array([0.5, 0.0]))


def test_sizes_that_differ_are_named_with_their_line():
    def too_few(y: Annotated[ArrayLike, "rows"]):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 3):
            numpyro.sample("y", dist.Normal(loc, jnp.ones(4)), obs=y)

    with pytest.raises(ValueError, match=r"line \d+ of test_own_models.py, .*must agree there"):
        sb.fit(too_few, np.arange(4.0), **QUICK)


def test_data_without_axes_are_an_option():
    def scaled(y: Annotated[ArrayLike, "rows"], scale: Annotated[ArrayLike, ""]):
        loc = numpyro.sample("loc", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(loc, scale), obs=y)

    with pytest.raises(TypeError, match=r"declare a number as an option, scale: float"):
        sb.fit(scaled, np.arange(4.0), np.array(2.0), **QUICK)


def directions(y: Annotated[ArrayLike, "rows"]):
    mean = numpyro.sample("mean", dist.VonMises(0.0, 0.1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.VonMises(mean, 4.0), obs=y)


def test_angles_have_the_mean_of_their_directions():
    """A posterior on either side of half a turn, where plain means lie opposite."""
    y = np.random.default_rng(0).vonmises(np.pi, 4.0, 60)
    resultant = (4.0 * np.exp(1j * y)).sum() + 0.1
    angle, width = np.angle(resultant), np.abs(resultant) ** -0.5
    draws = np.random.default_rng(1).vonmises(angle, np.abs(resultant), (4, 500))
    assert np.ptp(draws) > 6
    fit = sb.fit(directions, y, engine=Told({"mean": draws}), progress=False)
    row = fit.summary().loc["mean"]
    apart = [row["mean"] - angle, float(fit.params["mean"]) - angle]
    np.testing.assert_allclose(np.exp(1j * np.array(apart)), 1.0, atol=0.01)
    assert row["sd"] == pytest.approx(width, rel=0.1)
    assert fit.covariance.to_numpy().item() == pytest.approx(width**2, rel=0.2)
    assert fit.convergence["rhat"] < 1.02
    axes = fit.tree.copy(deep=True)
    pair = axes["posterior"].to_dataset().expand_dims(which=2, axis=2).copy()
    pair["mean"].attrs["circular"] = 1
    axes["posterior"] = pair
    assert unwrapped(axes)["mean"].dims == ("chain", "draw", "which")
    turned = sb.fit(directions, y, engine=Told({"mean": -draws}), progress=False)
    assert invariants(fit.tree)["cos mean"].shape == draws.shape
    shift, _ = farthest(fit.tree, turned.tree)
    assert shift == pytest.approx(2 * np.abs(np.sin(angle)) / width, rel=0.5)


def correlated(y: Annotated[ArrayLike, "rows axes"]):
    root = numpyro.sample("root", dist.LKJCholesky(2, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.MultivariateNormal(scale_tril=root), obs=y)


def test_fits_go_on_from_rows_of_length_one(tmp_path):
    """The mean of Cholesky factors of correlations is none: its rows are shorter than 1."""
    angle = np.random.default_rng(0).uniform(0.2, 2.0, (2, 50))
    rows = [[1 + 0 * angle, 0 * angle], [np.cos(angle), np.sin(angle)]]
    draws = {"root": np.moveaxis(np.array(rows), (0, 1), (2, 3))}
    y = np.random.default_rng(1).normal(size=(5, 2))
    fit = sb.fit(correlated, y, engine=Told(draws), progress=False)
    mean = draws["root"].mean(axis=(0, 1))
    np.testing.assert_allclose(fit.summary()["mean"].to_numpy().reshape(2, 2), mean)
    mean[1] /= np.linalg.norm(mean[1])
    fit.save(tmp_path / "fit.nc")
    loaded = sb.load(tmp_path / "fit.nc", model=correlated, engine=Told(draws))
    np.testing.assert_allclose(loaded.params["root"], mean)
    for start in (fit, loaded):
        with pytest.raises(Asked) as asked:
            sb.fit(correlated, y, init=start, engine=Asking(), progress=False)
        np.testing.assert_allclose(asked.value.init["root"], mean)


def test_curves_of_a_model_whose_outcome_has_no_default():
    """The model is run to lay its graph of links out."""
    subjects, times = np.repeat(np.arange(4), 2), np.tile([0.0, 1.0], 4)
    params = {
        "weights": [0.5, 0.5],
        "intercept": [0.0, 2.0],
        "slope": [1.0, -1.0],
        "noise": [0.1] * 2,
    }
    fit = sb.fit(
        lines,
        np.where(subjects % 2, times, 2 - times),
        times,
        subjects,
        num_clusters=2,
        engine=at_one(params),
        progress=False,
    )
    assert fit.curves(times=[3.0])["mean"].tolist() == [3.0, -1.0]
