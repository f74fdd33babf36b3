"""A kind of latent that the library does not know is answered for everywhere by the protocol alone."""

from functools import cache
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from scipy.stats import multivariate_normal

import sidebayes as sb
from sidebayes import EM, MAP, BlockedGibbs
from tests.probes.gaussian_factors import GaussianFactors, factor_analysis
from tests.support.draws import at_one

LOADINGS = np.array([[2.0], [-1.0], [0.5], [1.5]])
RNG = np.random.default_rng(5)
X = RNG.normal(size=(150, 1)) @ LOADINGS.T + 0.4 * RNG.normal(size=(150, 4)) + [0.0, 1.0, 2.0, 3.0]
NEW = X[:7] + 0.1
ENGINES = {
    "em": EM(num_restarts=2, max_steps=1000),
    "map": MAP(num_restarts=2, max_steps=300),
    "gibbs": BlockedGibbs(num_warmup=40, num_samples=200, num_chains=2),
    "nuts": sb.NUTS(num_warmup=60, num_samples=40, num_chains=2),
}


@cache
def fitted(engine):
    """Fit by one of the engines: tests share it and leave it as it is."""
    return sb.fit(factor_analysis, X, num_factors=1, engine=ENGINES[engine], progress=False)


def moments(params, x):
    """Posterior means and covariance of the factors by conditioning the joint normal law."""
    loadings = params["loadings"]
    total = loadings @ loadings.T + np.diag(params["noise"] ** 2)
    gain = loadings.T @ np.linalg.inv(total)
    return (x - params["loc"]) @ gain.T, np.eye(loadings.shape[1]) - gain @ loadings


@pytest.mark.parametrize("engine", ENGINES)
def test_posterior_has_names_in_the_tree(engine):
    found = fitted(engine)
    group = found.tree["latents"]
    assert group["factors"].dims == ("chain", "draw", "rows", "factor")
    assert group["factors_covariance"].dims == ("chain", "draw", "rows", "factor", "factor_1")
    sites = found.tree["posterior"]
    at = {"chain": 0, "draw": int(group["draw"][-1])}
    params = {n: sites[n].sel(at).to_numpy() for n in ("loc", "loadings", "noise")}
    mean, covariance = moments(params, X)
    own = group.to_dataset().sel(at)
    np.testing.assert_allclose(own["factors"], mean, atol=1e-8)
    np.testing.assert_allclose(own["factors_covariance"][3], covariance, atol=1e-8)
    assert not found.has_labels
    with pytest.raises(ValueError, match="no random effects"):
        found.effects()


@pytest.mark.parametrize("engine", ["em", "gibbs"])
def test_summary_shows_latents(engine):
    found = fitted(engine)
    table, group = found.summary("latents"), found.tree["latents"]
    assert list(table.columns) == ["mean", "sd"]
    assert list(table.index[:2]) == ["factors[0, 0]", "factors[1, 0]"]
    assert len(table) == len(X)
    mean, own = group["factors"].to_numpy(), group["factors_covariance"].to_numpy()
    np.testing.assert_allclose(table["mean"], mean.mean(axis=(0, 1))[:, 0])
    spread = np.sqrt(own.mean(axis=(0, 1))[:, 0, 0] + mean.var(axis=(0, 1))[:, 0])
    np.testing.assert_allclose(table["sd"], spread)
    assert "factors[0, 0]" not in found.summary().index


def test_rows_are_units_of_loo():
    found = fitted("gibbs")
    assert found.tree["log_likelihood"]["x"].dims == ("chain", "draw", "unit")
    assert found.unit_terms.shape[-1] == len(X)
    assert found.loo().n_data_points == len(X)
    assert len(fitted("em").kfold(3, progress=False).elpd_i) == len(X)


def test_new_rows_are_predicted():
    found = fitted("em")
    params = found.params
    total = params["loadings"] @ params["loadings"].T + np.diag(params["noise"] ** 2)
    wanted = multivariate_normal(params["loc"], total).logpdf(NEW)
    np.testing.assert_allclose(found.log_prob(NEW), wanted)
    drawn = found.predictive(seed=1)["posterior_predictive"]["x"]
    assert drawn.dims[2:] == ("rows", "features")
    rows = drawn.to_numpy().reshape(-1, 4)
    np.testing.assert_allclose(np.cov(rows.T), total, atol=0.15 * np.diag(total).max())
    mean, covariance = moments(params, NEW)
    latents = found.latents(NEW)
    assert latents["factors"].dims == ("chain", "draw", "rows", "factor")
    np.testing.assert_allclose(latents["factors"][0, 0], mean, atol=1e-8)
    np.testing.assert_allclose(latents["factors_covariance"][0, 0, 2], covariance, atol=1e-8)


def test_files_hold_latents(tmp_path):
    found = fitted("em")
    found.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", model=factor_analysis)
    assert again.tree["latents"]["factors"].equals(found.tree["latents"]["factors"])


def test_engines_agree():
    """EM, by the slope of the log partition function, and MAP stand at one mode, but for signs."""
    em, by_map = fitted("em"), fitted("map")
    np.testing.assert_allclose(np.nanmax(em.objective), np.nanmax(by_map.objective), rtol=1e-3)
    outer = [np.outer(f.params["loadings"], f.params["loadings"]) for f in (em, by_map)]
    np.testing.assert_allclose(*outer, atol=0.05)


def test_sites_with_latents_keep_their_names_apart():
    def two(x: Annotated[ArrayLike, "rows features"], y: Annotated[ArrayLike, "people others"]):
        scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
        for name, table in (("x", x), ("y", y)):
            size = table.shape[1]
            given = jnp.ones((size, 1)), jnp.zeros(size), scale * jnp.ones(size)
            numpyro.sample(name, GaussianFactors(len(table), *given), obs=table)

    found = sb.fit(two, X, X[:9, :2], engine=at_one({"scale": 1.0}), progress=False)
    group = found.tree["latents"]
    assert group["x_factors"].dims == ("chain", "draw", "rows", "x_factor")
    assert group["y_factors"].dims == ("chain", "draw", "people", "y_factor")
    assert len(found.summary("latents")) == len(X) + 9
    with pytest.raises(ValueError, match="expected 'posterior' or 'latents'"):
        found.summary("effects")
