"""Integers that a model needs as such stay integers, and truth values such; all others are floats."""

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


def survival(t: Annotated[ArrayLike, "rows"], event: Annotated[ArrayLike, "rows"]):
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", len(t)):
        numpyro.factor("log_density", jnp.where(~event, -rate * t, jnp.log(rate) - rate * t))


def masked(y: Annotated[ArrayLike, "rows"], known: Annotated[ArrayLike, "rows"]):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)), numpyro.handlers.mask(mask=known):
        numpyro.sample("y", dist.Bernoulli(logits=mean), obs=y)


def opposed(y: Annotated[ArrayLike, "rows"], on: Annotated[ArrayLike, "rows"]):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(slope * -on, 1.0), obs=y)


def picked(y: Annotated[ArrayLike, "rows"], on: Annotated[ArrayLike, "rows"]):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.factor("log_density", dist.Normal(mean, 1.0).log_prob(y[on]).sum())


def trials(hits: Annotated[ArrayLike, "rows"], of: Annotated[ArrayLike, "rows"]):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", len(of)):
        numpyro.sample("hits", dist.Binomial(of, p), obs=hits)


def counts(c: Annotated[ArrayLike, "rows cats"], of: Annotated[ArrayLike, "rows"]):
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("rows", len(c)):
        numpyro.sample("c", dist.Multinomial(total_count=of, probs=p), obs=c)


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


TRUTHS = np.array([True, False, True])
AS_TRUTHS = {
    "array": TRUTHS,
    "list": TRUTHS.tolist(),
    "series": pd.Series(TRUTHS),
    "nullable": pd.Series(TRUTHS, dtype="boolean"),
    "objects": pd.Series(TRUTHS, dtype=object),
    "masked": np.ma.masked_array(TRUTHS),
    "column": pd.DataFrame({"event": TRUTHS, "t": 1.0})["event"],
}


@pytest.mark.parametrize("event", AS_TRUTHS.values(), ids=AS_TRUTHS)
def test_truth_values_stay_such_in_a_model_of_ones_own(event):
    read = read_arguments(survival, "survival", (np.ones(3), event), {})
    assert read.data["event"].dtype == bool
    assert sb.debug(survival, np.ones(3), event).ok
    of_zoo = read_arguments(gmm, "gmm", (np.tile(TRUTHS, (2, 2)).T,), {"num_clusters": 2})
    assert of_zoo.data["x"].dtype == float


def test_not_of_truth_values_is_their_opposite():
    """The mode is that of Gamma(1 + events, 1 + times); of integers, all rows would be censored."""
    times = np.array([0.3, 1.0, 0.5, 1.0])
    found = sb.fit(survival, times, times < 1, engine=ONE_START, progress=False)
    np.testing.assert_allclose(found.params["rate"], 2 / 3.8, rtol=1e-5)
    with pytest.raises(TypeError, match=r"~event.*pass truth values there, values.astype\(bool\)"):
        sb.fit(survival, times, (times < 1).astype(int), engine=ONE_START, progress=False)


def test_masks_and_outcomes_that_are_truth_values(tmp_path):
    """Also from a file, and for new rows, which may be written as numbers."""
    engine = at_one({"mean": 0.5})
    found = sb.fit(masked, TRUTHS, TRUTHS, engine=engine, progress=False)
    expected = np.where(TRUTHS, -np.log1p(np.exp(-0.5)), 0.0)
    np.testing.assert_allclose(found.unit_terms[0, 0], expected)
    assert set(np.unique(found.predictive()["posterior_predictive"]["y"])) <= {0, 1}
    found.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", model=masked, engine=engine)
    assert again.run.data["known"].dtype == bool
    for known in (TRUTHS, TRUTHS * 1, TRUTHS * 1.0):
        np.testing.assert_allclose(again.log_prob(TRUTHS, known), expected)
    with pytest.raises(TypeError, match="known holds 2, and holds truth values in the fit"):
        again.log_prob(TRUTHS, TRUTHS * 2)


def test_truth_values_are_floats_where_a_model_takes_numbers_alone():
    read = read_arguments(opposed, "opposed", (np.ones(3), TRUTHS), {})
    assert read.data["on"].dtype == float
    assert sb.debug(opposed, np.ones(3), TRUTHS).ok


@pytest.mark.parametrize("model", [picked, levels])
def test_truth_values_as_indices_are_explained(model):
    given = (np.ones(3), TRUTHS) if model is picked else (np.tile(TRUTHS, 2), np.ones(6))
    with pytest.raises(TypeError, match="choose by jnp.where, or look up by integers"):
        sb.fit(model, *given, engine=ONE_START, progress=False)
    assert not sb.debug(model, *given).ok


def test_numbers_of_trials_are_integers():
    of, hits = np.array([1, 50, 3]), np.array([1, 20, 0])
    found = sb.fit(trials, hits, of, engine=at_one({"p": 0.4}), progress=False)
    assert found.run.data["of"].dtype.kind == "i"
    assert found.run.data["hits"].dtype.kind == "f"
    drawn = found.predictive()["posterior_predictive"]["hits"].to_numpy()
    assert (drawn <= of).all()
    assert abs(drawn[..., 1].mean() - 20) < 3
    prior = sb.prior_predictive(trials, None, of, num_draws=5)["prior_predictive"]
    assert (prior["hits"].to_numpy() <= of).all()
    as_floats = sb.fit(trials, hits, of * 1.0, engine=at_one({"p": 0.4}), progress=False)
    with pytest.raises(TypeError, match="numbers of trials as integers"):
        as_floats.predictive()


def test_a_multinomial_names_what_its_draws_need():
    c = np.array([[3, 5, 2], [4, 4, 1]])
    found = sb.fit(counts, c, c.sum(axis=1), engine=at_one({"p": np.ones(3) / 3}), progress=False)
    with pytest.raises(ValueError, match="site 'c' cannot be drawn.*give it total_count_max="):
        found.predictive()
