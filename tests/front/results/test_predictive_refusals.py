"""What cannot be drawn is refused, and the message says what to do."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from sidebayes.models.blocks.effects.densities.random_effects import RandomEffects
from sidebayes.models.blocks.side_information.groups import Groups

import sidebayes as sb
from tests.probes import data, models
from tests.support.draws import CHAINS, DRAWS, told


@pytest.fixture(scope="module")
def growth():
    y, times, subjects = data.long_table(num_subjects=4)
    names = np.array(["dora", "abel", "carl", "bert"])[subjects]
    params = {"beta": [1.0, 0.5], "spread": [0.8, 0.4], "noise": 0.5}
    return told(models.growth, (y, times, names), params)


def test_other_units_are_refused_by_name():
    y, times, subjects = np.zeros(4), np.arange(4.0), np.array(["c", "a", "b", "a"])
    params = {"level": 1.0, "spread": 2.0, "noise": 0.3, "hazard": 0.2, "pull": -0.5}
    given = y, times, subjects, np.ones(3), np.ones(3)
    survival = told(models.joint_survival, given, params | {"effect": np.zeros(3)})
    with pytest.raises(ValueError, match="site 'effect' .* group of 'subjects', and none for zoe"):
        survival.predictive(times=np.zeros(2), subjects=["a", "zoe"])
    with pytest.raises(ValueError, match="effect"):
        survival.log_prob(*data.survival())


def autoregression(y: Annotated[ArrayLike, "rows"]):
    slope = numpyro.sample("slope", dist.Normal())
    before = jnp.concatenate([jnp.zeros(1), y[:-1]])
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(slope * before, 1.0), obs=y)


def tilted(y: Annotated[ArrayLike, "rows"]):
    mean = numpyro.sample("mean", dist.Normal())
    numpyro.factor("tilt", -(mean**2))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def test_models_that_draw_no_data_say_so():
    x = np.random.default_rng(0).normal(size=(6, 2))
    links = sb.Links([(0, 1), (2, 3)], [1.0, -1.0], 6)
    alone = told(autoregression, (np.zeros(3),), {"slope": 0.5})
    with pytest.raises(ValueError, match=r"\['y'\] depends on the data that would be drawn"):
        alone.predictive()
    params = {"weights": [0.5, 0.5], "mean": [[-1.0, 0.0], [1.0, 0.0]], "covariance": np.eye(2)}
    priced = told("constraint_fit", (x, links), params, num_clusters=2)
    with pytest.raises(ValueError, match="must.*penalised objective"):
        priced.predictive()
    classes = told(
        "pairwise_gp", (x, links), {"coefficients": [[-1.0, 0.0], [1.0, 0.0]]}, num_clusters=2
    )
    with pytest.raises(ValueError, match="'statements' cannot be drawn: LatentClassifier"):
        classes.predictive()
    told(
        tilted, (np.zeros(3),), {"mean": 0.0}
    ).predictive()  # of parameters alone: the draws have it
    with pytest.raises(ValueError, match=r"factors \['tilt'\]"):
        sb.prior_predictive(tilted, np.zeros(3))


TIMES = {"times": np.zeros(2), "subjects": ["a", "b"]}


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (
            {"times": np.zeros(2)},
            TypeError,
            "subjects is missing or None, pass the group that each",
        ),
        ({"subjects": ["a", "b"]}, TypeError, r"\['y'\] depends on: pass times, an array of shape"),
        (
            TIMES | {"times": [0.0, np.nan]},
            ValueError,
            "times has missing or infinite values in 1 of 2",
        ),
        (TIMES | {"times": np.zeros((2, 2))}, ValueError, r"times has shape \(2, 2\), expected"),
        (TIMES | {"times": np.zeros(3)}, ValueError, "subjects has 2 rows and times has 3"),
        (
            TIMES | {"subjects": [1, 2]},
            TypeError,
            "named by int, such as 1, .*by str, such as 'abel'",
        ),
        (TIMES | {"y": np.zeros(2)}, TypeError, r"\['y'\] are what growth observes"),
        (TIMES | {"slopes": False}, TypeError, "options; new data are all"),
        (TIMES | {"seed": -1}, ValueError, "seed = -1"),
    ],
)
def test_bad_input_is_refused(growth, arguments, error, said):
    with pytest.raises(error, match=said):
        growth.predictive(**arguments)


def test_bad_input_to_other_models_is_refused():
    counts = told(models.counts, (np.zeros(3), np.zeros((3, 2))), {"beta": [0.0, 0.0]})
    with pytest.raises(ValueError, match="design_new has 3 features, the fit has 2"):
        counts.predictive(design=np.zeros((3, 3)))
    params = {"weights": [0.2, 0.8], "mean": [[-50.0], [50.0]], "covariance": np.ones((2, 1, 1))}
    mixture = told("ppc", (np.arange(3.0)[:, None],), params, num_clusters=2)
    with pytest.raises(TypeError, match="x was left out, and no other data say how many points"):
        mixture.predictive(links=sb.Links([(0, 1)], [1.0], 3))
    y, times, subjects, links = data.two_lines()
    params = {"weights": [0.3, 0.7], "intercept": [1.0, 2.0], "slope": [1.0, -1.0], "noise": [1, 1]}
    lines = told(models.lines, (y, times, subjects, links), params, num_clusters=2)
    with pytest.raises(ValueError, match="links join 3, of the subjects that were fitted"):
        lines.predictive(times=np.zeros(2), subjects=[3, 99], links=sb.Links([(0, 1)], [1.0], 2))
    lines.predictive(times=np.zeros(2), subjects=[98, 99], links=sb.Links([(0, 1)], [1.0], 2))


def test_groups_must_be_arguments_to_be_known():
    def inner(y: Annotated[ArrayLike, "rows"], subjects: Annotated[Groups, "rows"]):
        scale = numpyro.sample("scale", dist.HalfNormal())
        own = Groups.tree_unflatten((subjects.num_groups,), (subjects.codes,))
        fn = RandomEffects(
            jnp.zeros(len(y)), jnp.ones((len(y), 1)), own, scale_tril=scale * jnp.eye(1), noise=1.0
        )
        numpyro.sample("y", fn, obs=y)

    fit = told(inner, (np.zeros(3), ["a", "a", "b"]), {"scale": 1.0})
    assert fit.predictive()["posterior_predictive"]["y"].shape == (CHAINS, DRAWS, 3)
    with pytest.raises(ValueError, match="groups that are no argument of the model"):
        fit.predictive(subjects=["a"])
