"""The ladder names the fault of a sick model, and finds none in a sound one."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from numpyro.distributions import constraints
from sidebayes.models.ppc import ppc

from sidebayes import Links, debug, fit

X = np.random.default_rng(0).normal(size=(8, 2))
MEAN = X.mean(axis=0)


def verdicts(report):
    return {rung.name: rung.verdict for rung in report.rungs}


def test_sound_model():
    links = Links.must_link([(0, 1), (1, 2)], 1.0)
    report = debug(ppc, X, links, num_clusters=2, covariance="spherical")
    assert report.ok
    assert set(verdicts(report).values()) == {"ok"}
    assert "2 links over 8 points" in report["links"].finding
    assert len(str(report).splitlines()) == len(report.rungs) == 9


def test_model_that_does_not_run():
    def model(x):
        numpyro.sample("x", dist.Normal(0, 1).to_event(1), obs=x @ jnp.ones(3))

    report = debug(model, X)
    assert verdicts(report) == {"trace": "fail"}
    assert "obs=x @ jnp.ones(3)" in report["trace"].remedy
    assert "check the arguments against model" in debug(model)["trace"].remedy


def test_model_that_runs_but_does_not_compile():
    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        side = 1.0 if mean > 0 else -1.0
        numpyro.sample("x", dist.Normal(side * mean, 1.0), obs=x)

    report = debug(model, X)
    assert report["trace"].verdict == "ok"
    assert report["density"].finding.startswith("TracerBoolConversionError")
    assert "if mean > 0" in report["density"].remedy


def test_index_out_of_range():
    def model(y, group):
        mean = numpyro.sample("mean", dist.Normal().expand([4]).to_event(1))
        numpyro.sample("y", dist.Normal(mean[group], 1.0), obs=y)

    group = np.arange(8) % 4
    report = debug(model, X[:, 0], group + 1)
    assert report["indices"].verdict == "fail"
    assert "group has the value 4, which the model uses as an index" in report["indices"].finding
    assert report["gradient"].verdict == "ok"
    assert debug(model, X[:, 0], group)["indices"].verdict == "ok"


def test_nothing_observed():
    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.factor("fit", -((x - mean) ** 2).sum())

    report = debug(model, X)
    assert report["observed"].verdict == "note"
    assert "only factors" in report["observed"].finding
    assert report.ok  # as `fit` takes it

    def without(x):
        numpyro.sample("mean", dist.Normal(0, 1))

    assert debug(without, X)["observed"].verdict == "fail"


def test_discrete_latent():
    def model(x):
        with numpyro.plate("points", len(x)):
            label = numpyro.sample("label", dist.Categorical(jnp.ones(2) / 2))
            numpyro.sample("x", dist.Normal(label, 1.0), obs=x)

    report = debug(model, X[:, 0])
    assert report["discrete"].finding == "'label' is discrete and latent"
    assert "Labels of a mixture: LinkedMixture" in report["discrete"].remedy
    assert verdicts(report)["gradient"] == "skipped"
    assert report["observed"].verdict == "note"


@pytest.mark.parametrize("bad", [-2.0, np.nan])
def test_data_outside_the_support(bad):
    def model(x):
        numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        numpyro.sample("x", dist.Exponential(1.0), obs=x)

    report = debug(model, np.array([0.5, bad, 1.0]))
    assert "1 of 3 values of 'x'" in report["support"].finding
    assert "(1,)" in report["support"].finding


def test_density_that_is_not_finite():
    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.factor("penalty", jnp.log(0.0 * mean**2))
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)

    assert "site 'penalty' has log density -inf" in debug(model, X)["density"].finding


def test_gradient_that_is_not_finite_where_the_density_is():
    def model(x):
        a = numpyro.sample("a", dist.Normal(0, 1))
        b = numpyro.sample("b", dist.Normal(0, 1))
        # the slope of the branch that is not taken, infinity times zero, is not a number
        shift = jnp.where(a > -10, 0.0, jnp.sqrt(a - a))
        numpyro.sample("x", dist.Normal(b + shift, 1.0), obs=x)

    report = debug(model, X)
    assert report["density"].verdict == "ok"
    assert report["gradient"].finding == "not finite in 'a'"


def test_sites_and_arguments_without_effect():
    def model(x, y, *, extra=1.0):
        numpyro.sample("idle", dist.ImproperUniform(constraints.real, (), ()))
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)

    report = debug(model, X, MEAN)
    assert report.ok
    assert "'idle'" in report["gradient"].finding
    assert report["arguments"].finding == "'y', 'extra' do not enter the density"


def test_contradicting_links():
    links = Links.must_link([(0, 1), (1, 2)]) + Links.cannot_link([(0, 2)])
    report = debug(ppc, X, links, num_clusters=2)
    assert verdicts(report) == {"links": "fail"}
    assert "contradicts" in report["links"].finding
    assert not report.ok


def test_bad_input():
    with pytest.raises(TypeError, match="model is a str"):
        debug("ppc", X)


def test_arguments_are_shown_where_they_do_not_fit():
    def model(x: Annotated[ArrayLike, "rows cols"], *, scale=2.0):
        mean = numpyro.param("mean", 0.0)
        numpyro.sample("y", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(mean, scale), obs=x)

    assert (
        debug(model, X, 2.0)["trace"].remedy == "check the arguments against model(x, *, scale=2.0)"
    )
    param = debug(model, X)["gradient"]
    assert "'mean' is a numpyro.param" in param.finding
    assert "check the arguments" not in param.remedy


def base(x: Annotated[ArrayLike, "rows cols"], width: float = 1.0):
    mean = numpyro.sample("mean", dist.Normal(0.0, width))
    numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


def star(*args):
    base(*args)


@pytest.mark.parametrize(
    ("model", "said"),
    [(star, r"star takes data as \*args"), (jax.jit(base), "base is compiled by jax.jit")],
)
def test_models_without_named_arguments_or_sites_are_refused(model, said):
    assert re.search(said, debug(model, X)["trace"].finding)
    with pytest.raises(TypeError, match=said):
        fit(model, X, engine="map")


def test_part_of_a_function_goes_by_its_name():
    with pytest.raises(TypeError, match="^base lacks data"):
        fit(partial(base, width=2.0), engine="map")
    assert debug(partial(base, width=2.0), X).ok


def test_integers_are_floats_as_in_a_fit():
    def model(time: Annotated[ArrayLike, "rows"], event: Annotated[ArrayLike, "rows"]):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        numpyro.factor("log_density", jnp.where(~event, 0.0, jnp.log(rate)) - rate * time)

    time, event = np.array([0.5, 2.0, 1.0]), np.array([True, False, True])
    assert debug(model, time, event).ok
    assert "values.astype(bool)" in debug(model, time, event.astype(int))["trace"].finding
