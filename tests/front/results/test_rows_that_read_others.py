"""Models whose rows read other rows, and sites with a value for each element of another dimension."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from scipy.stats import norm
from sidebayes.models.blocks.side_information.groups import Groups

import sidebayes as sb
from sidebayes.results.base.other_rows import compare_halves
from sidebayes.runs import execution
from tests.support.draws import told, values

Rows = Annotated[ArrayLike, "rows"]
RNG = np.random.default_rng(0)
Y, T, ORDER = RNG.normal(size=12), RNG.normal(5.0, 3.0, size=12), RNG.permutation(12)


@pytest.fixture(autouse=True)
def _no_search(monkeypatch):
    """Draws are given, also to the refits of folds, and miss the posterior."""
    monkeypatch.setattr(execution, "mass_elsewhere", lambda *given: None)


def observe(y, mean):
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def standardised(y: Rows, t: Rows):
    observe(y, numpyro.sample("b", dist.Normal()) * (t - t.mean()) / t.std())


def lagged(y: Rows, t: Rows):
    observe(y, numpyro.sample("b", dist.Normal()) * jnp.concatenate([jnp.zeros(1), t[:-1]]))


def autoregression(y: Rows):
    observe(y, numpyro.sample("b", dist.Normal()) * jnp.concatenate([jnp.zeros(1), y[:-1]]))


def neighbours(y: Rows, t: Rows, other: Rows):
    observe(y, numpyro.sample("b", dist.Normal()) * jnp.asarray(t)[other])


def gaps(y: Rows, t: Rows, where: Annotated[ArrayLike, "gaps"]):
    b = numpyro.sample("b", dist.Normal())
    with numpyro.plate("gaps", len(where)):
        filled = numpyro.sample("filled", dist.Normal())
    observe(y, b * jnp.asarray(t).at[where].set(filled))


def imputed(y: Rows, t: Rows):
    filled = numpyro.sample("filled", dist.Normal())
    with numpyro.plate("rows", len(y)):
        t = numpyro.sample("t", dist.Normal(), obs=jnp.asarray(t).at[0].set(filled))
        numpyro.sample("y", dist.Normal(t, 1.0), obs=y)


def test_imputed_values_are_not_scored():
    with pytest.raises(ValueError, match="site 't' observes values that depend on filled"):
        told(imputed, (Y, T), {"filled": 0.5}).loo()


def weighed(y: Rows, t: Rows, noisy: Rows):
    """Rows are told apart by a scale and a mask, and each reads its own values only."""
    mean = numpyro.sample("b", dist.Normal(t.mean(), 1.0)) * t
    with numpyro.plate("rows", len(y)):
        fn = dist.Normal(mean, 1.0 + noisy).mask(noisy < 2)
        numpyro.sample("y", fn, obs=y)


READING = {
    "t": (standardised, (Y, T), {}),
    "lag of t": (lagged, (Y, T), {}),
    "y": (autoregression, (Y,), {}),
    "index of t": (neighbours, (Y, T, ORDER), {}),
}


@pytest.mark.parametrize("name", READING)
def test_refits_without_rows_that_others_read_are_refused(name):
    model, given, more = READING[name]
    fit = told(model, given, {"b": 0.7, **more})
    table = name.rpartition(" ")[2]
    with pytest.raises(ValueError, match=rf"\['y'\] depends on which other rows.*\['{table}'\]"):
        fit.kfold(4, progress=False)
    assert np.isfinite(fit.loo().elpd)
    fit.log_prob(*given)  # the rows that were fitted
    part = [column[:5] for column in given]
    part[2:] = [column % 5 for column in part[2:]]
    with pytest.warns(sb.SideBayesWarning, match=rf"\['{table}'\] of other rows.*before the fit"):
        fit.log_prob(*part)
    fit.log_prob(*part)  # it is said once


def test_values_put_at_places_of_rows_are_refused_by_kfold():
    fit = told(gaps, (Y, T, np.array([2, 5, 9])), {"b": 0.7, "filled": [0.1, -0.2, 0.3]})
    with pytest.raises(ValueError, match=r"\['y'\] depends on which .* places of rows"):
        fit.kfold(4, progress=False)


def test_draws_for_new_rows_say_that_they_depend_on_one_another():
    fit = told(standardised, (Y, T), {"b": 0.7})
    fit.predictive(t=T)
    with pytest.warns(sb.SideBayesWarning, match=r"\['t'\] of other rows"):
        fit.predictive(t=T[:4])


def test_a_single_row_without_a_deviation_is_named_as_nan():
    fit = told(standardised, (Y, T), {"b": 0.7})
    with (
        pytest.warns(sb.SideBayesWarning),
        pytest.raises(ValueError, match=r"distribution of \['y'\] is NaN at these data"),
    ):
        fit.predictive(t=T[:1])


def test_rows_that_read_their_own_values_are_scored():
    noisy = RNG.integers(0, 3, 12).astype(float)
    z = (T - 5) / 3
    fit = told(weighed, (Y, z, noisy), {"b": 0.1})
    found = fit.kfold(2, progress=False).elpd_i.to_numpy()
    seen = noisy < 2  # rows that the mask hides have no score
    np.testing.assert_allclose(found, norm.logpdf(Y, 0.1 * z, 1 + noisy)[seen])
    fit.log_prob(Y[:3], z[:3], noisy[:3])


def schools(y: Rows, number: Rows, size: Annotated[ArrayLike, "schools"]):
    with numpyro.plate("schools", len(size)):
        level = numpyro.sample("level", dist.Normal(size, 1.0))
    observe(y, level[number])


def test_sites_of_other_schools_are_refused_by_name():
    number, size, level = np.arange(12) % 3, np.array([1.0, 2.0, -4.0]), np.array([3.0, 5.0, 8.0])
    fit = told(schools, (Y, number, size), {"level": level})
    scores = fit.kfold(2, progress=False).elpd_i.to_numpy()
    np.testing.assert_allclose(scores, norm.logpdf(Y, level[number]))
    for other in (-size, size[:2]):
        with pytest.raises(ValueError, match=r"\['level'\] .* each of the schools .*size"):
            fit.predictive(number=[0, 1], size=other)
        with pytest.raises(ValueError, match=r"\['level'\] .* each of the schools .*size"):
            fit.log_prob(np.zeros(2), np.arange(2), other)
    found = fit.log_prob(np.zeros(2), np.array([2, 0]), size)
    np.testing.assert_allclose(found, norm.logpdf(0.0, level[[2, 0]]))
    drawn = values(fit.predictive(number=[2, 0], size=size), "predictions", "y")
    assert abs(drawn.mean(axis=0) - level[[2, 0]]).max() < 0.1


def crossed(y: Rows, pupil: Annotated[Groups, "rows"], item: Annotated[Groups, "rows"]):
    with numpyro.plate("pupil", pupil.num_groups):
        skill = numpyro.sample("skill", dist.Normal())
    observe(y, skill[pupil.codes] + 0.0 * item.codes)


def test_groups_beside_the_units_keep_their_values():
    pupil = np.array(list("abcdabcdaabb"))
    item = np.array(["u", "u", "v", "v", "w", "w", "x", "x", "y", "z", "y", "z"])
    skill = np.array([-4.0, 0.0, 3.0, 9.0])
    fit = told(crossed, (Y, pupil, item), {"skill": skill})
    own = norm.logpdf(Y, skill[np.searchsorted(list("abcd"), pupil)])
    total = [own[item == one].sum() for one in "uvwxyz"]
    np.testing.assert_allclose(fit.kfold(3, progress=False).elpd_i.to_numpy(), total)
    drawn = values(fit.predictive(pupil=["d", "c"], item=["u", "new"]), "predictions", "y")
    assert abs(drawn.mean(axis=0) - [9.0, 3.0]).max() < 0.1
    with pytest.raises(ValueError, match=r"'skill' has a value for each of the pupil .* 1 of"):
        fit.predictive(pupil=["d", "new"], item=["u", "v"])
    with pytest.raises(ValueError, match=r"\['skill'\] have a value for each of the pupil"):
        fit.log_prob(np.zeros(2), ["d", "c"], ["u", "v"])


def test_rows_of_the_library_s_methods_do_not_read_others():
    x, subjects = RNG.normal(size=(24, 2)), np.repeat(np.arange(8), 3)
    quick = sb.EM(num_restarts=1, max_steps=2)
    links = sb.Links([(0, 1), (1, 2), (6, 20)], [1.0, 2.0, -1.0], 24)
    fits = [
        sb.fit("ppc", x, links, num_clusters=2, engine=quick, progress=False),
        sb.fit("gmm", x, num_clusters=2, engine=quick, progress=False),
        sb.fit(
            "trajectories", x[:, 0], x[:, 1], subjects, num_clusters=2, engine=quick, progress=False
        ),
    ]
    for fit in fits:
        with fit.run.precision:
            assert compare_halves(fit) is None
