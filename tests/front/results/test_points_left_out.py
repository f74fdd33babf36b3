"""Units are not left out of points that coordinate ascent fitted to all of them."""

import json
import warnings
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from jax.typing import ArrayLike
from sidebayes.diagnostics.comparison.compare import compare_fits
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.mixtures.weights import mixing_weights

import sidebayes
from sidebayes import CoordinateAscent, LinkedCategorical, LinkedMixture, SideBayesWarning
from tests.diagnostics.comparison.test_reference import sampled

RNG = np.random.default_rng(0)
Y = RNG.normal(np.where(RNG.integers(0, 2, 40), 3.0, -3.0), 1.0)
Z = RNG.normal(size=(40, 12))
ENGINE = CoordinateAscent(num_restarts=2, num_draws=200)


def shifted(
    y: Annotated[ArrayLike, "rows"],
    z: Annotated[ArrayLike, "rows features"],
    *,
    num_clusters: int = 2,
):
    weights = mixing_weights(num_clusters)
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.0).expand([z.shape[1]]).to_event(1))
    means = jnp.array([-3.0, 3.0]) + (jnp.asarray(z) @ slopes)[:, None]
    labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, len(y), num_clusters))
    numpyro.sample("y", LinkedMixture(labels, dist.Normal(means, 1.0)), obs=y)


def fitted(size):
    return sidebayes.fit(shifted, Y, Z[:, :size], engine=ENGINE, progress=False)


def held(size):
    """Draws beside a site of so many numbers that is held at a point."""
    fit = sampled(size, engine="cavi")
    fit.tree.attrs["sidebayes_options"] = json.dumps({"size": size})
    fit.tree["fit_info"].attrs["points"] = json.dumps(["slopes"])
    slopes = ("chain", "draw", "terms"), np.ones((4, 400, size))
    fit.tree["posterior"] = xr.DataTree(fit.tree["posterior"].to_dataset().assign(slopes=slopes))
    return fit


def test_draws_beside_points_are_refused_or_scored_with_a_warning():
    few, many = held(2), held(12)
    for refit in (False, True):
        with pytest.raises(ValueError, match=r"cavi holds slopes at points .* 12 numbers.*kfold"):
            many.loo(refit=refit)
    with pytest.warns(SideBayesWarning, match="slopes at points .* too high by about 2 nats"):
        assert np.isfinite(few.loo().elpd)
    sampled(1, engine="cavi").loo()  # without points and without a warning
    table = compare_fits({"few": few, "many": many})
    assert np.isnan(table.frame.loc["many", "elpd_loo"])
    assert np.isfinite(table.frame.loc["few", "elpd_loo"])
    assert "LOO elpd of few (by about 2, for slopes) is too high" in str(table)
    assert "LOO prefers" not in str(table)


@pytest.fixture(scope="module")
def of_few():
    return fitted(2)


@pytest.fixture(scope="module")
def of_many():
    return fitted(12)


def test_units_are_not_left_out_of_many_points(of_many):
    with pytest.raises(ValueError, match=r"cavi holds slopes at points .* 12 numbers.*fit\.kfold"):
        of_many.loo()
    with pytest.raises(ValueError, match="cavi holds slopes at points"):
        of_many.loo(refit=True)


def test_how_much_few_points_raise_the_score_is_said(of_few):
    with pytest.warns(SideBayesWarning, match="slopes at points .* too high by about 2 nats"):
        assert np.isfinite(of_few.loo().elpd)


def test_fits_without_points_are_scored_as_they_are():
    fit = sidebayes.fit("gmm", Y[:, None], num_clusters=2, engine=ENGINE, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit.loo()


def test_comparisons_name_fits_with_points(of_few, of_many):
    table = sidebayes.compare({"few": of_few, "many": of_many})
    assert np.isnan(table.frame.loc["many", "elpd_loo"])
    assert np.isfinite(table.frame.loc["few", "elpd_loo"])
    assert "LOO elpd of few (by about 2, for slopes) is too high" in str(table)
    assert "LOO prefers" not in str(table)
