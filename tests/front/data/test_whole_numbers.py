"""Integers that a model uses as categories or indices stay integers; all others are floats."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.typing import ArrayLike
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.gmm import gmm

import sidebayes as sb
from sidebayes.runs.arguments import read_arguments
from tests.support.draws import at_one

Y = np.array([0, 2, 1, 1, 0])
ONE_START = sb.MAP(num_restarts=1)


def species(y):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Categorical(p), obs=y)


def ordered(y):
    latent = dist.Normal(0, 1).expand([2]).to_event(1)
    to_order = dist.transforms.OrderedTransform()
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(latent, to_order))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.OrderedLogistic(0.0, cuts), obs=y)


def levels(g: Annotated[ArrayLike, "rows"], y: Annotated[ArrayLike, "rows"]):
    with numpyro.plate("levels", 3):
        a = numpyro.sample("a", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def classes(x, links=None, *, num_clusters=2):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(num_clusters, 3.0)))
    with numpyro.plate("clusters", num_clusters):
        table = dist.Dirichlet(jnp.full((x.shape[1], 3), 2.0)).to_event(1)
        p = numpyro.sample("p", table)
    parts = dist.Categorical(p).to_event(1)
    numpyro.sample("x", LinkedMixture(LinkedCategorical(jnp.log(weights), links), parts), obs=x)


def normal(y):
    m = numpyro.sample("m", dist.Normal(0, 5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_categories(dtype):
    for y in (Y.astype(np.int32), pd.Series(Y)):
        found = sb.fit(species, y, engine=ONE_START, dtype=dtype, progress=False)
        np.testing.assert_allclose(found.params["p"], [0.4, 0.4, 0.2], atol=1e-4)
    # the numbers of new rows may be written as floats
    np.testing.assert_allclose(found.log_prob(Y[:1] * 1.0), np.log([0.4]), atol=1e-4)


def test_ordered_categories():
    found = sb.fit(ordered, Y, engine=ONE_START, progress=False)
    assert np.diff(found.params["cuts"]) > 0


def test_indices(tmp_path):
    engine = at_one({"a": [0.5, 1.5, 2.5]})
    found = sb.fit(levels, Y, Y + 0.5, engine=engine, progress=False)
    assert found.run.data["g"].dtype.kind == "i"
    assert found.run.data["y"].dtype.kind == "f"
    found.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", model=levels, engine=engine)
    np.testing.assert_allclose(again.log_prob(Y, Y), found.log_prob(Y, Y))


def test_latent_classes():
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], 20)
    x = np.where(rng.uniform(size=(40, 4)) < 0.85, 2 * truth[:, None], 1)
    found = sb.fit(classes, x, engine=sb.EM(num_restarts=1), progress=False)
    assert abs(np.mean(found.labels() == truth) - 0.5) > 0.4


def test_integers_that_are_measured_are_floats():
    for model, name in ((normal, "y"), ("gmm", "x")):
        chosen = gmm if model == "gmm" else model
        given = (np.arange(20).reshape(10, 2) if model == "gmm" else np.arange(10),)
        options = {"num_clusters": 2} if model == "gmm" else {}
        read = read_arguments(chosen, str(model), given, options)
        assert read.data[name].dtype.kind == "f"


def test_floats_in_place_of_categories_are_explained():
    with pytest.raises(TypeError, match="needs integers where it is given floats"):
        sb.fit(species, Y * 1.0, engine=ONE_START, progress=False)
    with pytest.raises(TypeError, match="needs integers where it is given floats"):
        sb.fit(levels, Y * 1.0, Y, engine=ONE_START, progress=False)
    assert "needs integers" in sb.debug(species, Y * 1.0)["density"].finding
    assert sb.debug(species, Y).ok


def test_a_value_outside_its_support_is_shown_with_its_bounds():
    def rows(y):
        p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
        numpyro.sample("y", dist.Categorical(p).expand([len(y)]).to_event(1), obs=y)

    y = np.tile(Y, 2)
    y[3] = 7
    found = sb.debug(rows, y)["support"].finding
    assert "integerinterval from 0 to 2" in found
    assert "the first at (3,): 7" in found
