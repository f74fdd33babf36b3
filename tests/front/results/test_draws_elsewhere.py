"""Draws made elsewhere: a row of a comparison without the model, a full fit with it."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Annotated

import arviz_base
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from jax import random
from jax.typing import ArrayLike
from numpyro.infer import MCMC, NUTS
from sidebayes.diagnostics.elsewhere import matched_by_name, read_draws
from sidebayes.guides.engines.base import Problem

import sidebayes
from sidebayes.runs.execution import _frozen
from tests.support.draws import Told

X = np.random.default_rng(0).normal([[0.0]] * 10 + [[6.0]] * 10, 1.0)


def normal(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    sd = numpyro.sample("sd", dist.HalfNormal(5.0))
    numpyro.deterministic("double", 2 * mean)
    with numpyro.plate("points", len(x)):
        numpyro.sample("x", dist.Normal(mean, sd).expand([1]).to_event(1), obs=x)


@pytest.fixture(scope="module")
def mcmc():
    run = MCMC(
        NUTS(normal), num_warmup=300, num_samples=300, num_chains=4, chain_method="sequential",
        progress_bar=False,
    )  # fmt: skip
    run.run(random.key(0), X)
    return run


@pytest.fixture(scope="module")
def fit():
    engine = sidebayes.NUTS(num_warmup=300, num_samples=500, num_chains=4)
    return sidebayes.fit(normal, X, engine=engine, progress=False)


def sites(mcmc):
    return {n: np.asarray(v) for n, v in mcmc.get_samples(group_by_chain=True).items()}


def own_draws(fit):
    """Arrays of the draws of a fit, as if they had been made elsewhere."""
    return {str(n): v.to_numpy() for n, v in fit.tree["posterior"].data_vars.items()}


class Older:
    """What is read of ArviZ's older class."""

    def __init__(self, mcmc):
        self.posterior = arviz_base.from_dict({"posterior": sites(mcmc)})["posterior"].to_dataset()


def test_draws_stand_beside_fits(fit, mcmc, tmp_path):
    tree = arviz_base.from_numpyro(mcmc, log_likelihood=True)
    tree.to_netcdf(tmp_path / "draws.nc", engine="h5netcdf")
    moved = arviz_base.from_dict({"posterior": {n: v + 1.0 for n, v in sites(mcmc).items()}})
    table = sidebayes.compare(
        {
            "ours": fit,
            "numpyro": tree,
            "mcmc": mcmc,
            "older": Older(mcmc),
            "file": tmp_path / "draws.nc",
            "moved": moved,
        }
    )
    frame = table.frame
    same = ["numpyro", "mcmc", "older", "file"]
    assert frame.loc["moved", "trust"] == "differs"
    assert set(frame.loc[["ours", *same], "trust"]) == {"reference", "agrees"}
    assert (frame.loc[same, "rhat"] < 1.05).all()
    assert frame.loc[same, "log_joint"].isna().all()
    assert frame.loc["numpyro", "engine"] == "numpyro"
    assert frame.loc["numpyro", "divergences"] == frame.loc["mcmc", "divergences"]
    # ArviZ has a log likelihood for each entry, which is here one for each row
    assert frame.loc["numpyro", "elpd_loo"] == pytest.approx(frame.loc["ours", "elpd_loo"], abs=0.5)
    assert "moved was drawn elsewhere: labels" in str(table)


def test_draws_alone_and_of_something_else(fit, mcmc):
    tree = arviz_base.from_numpyro(mcmc)
    assert sidebayes.compare({"a": tree}).frame.loc["a", "ess"] > 100
    other = arviz_base.from_dict({"posterior": {"slope": np.zeros((2, 10))}})
    with pytest.raises(ValueError, match="share no variable"):
        sidebayes.compare({"ours": fit, "other": other})
    with pytest.raises(ValueError, match="there is no file"):
        sidebayes.compare({"a": "nowhere.nc"})


def test_scores_of_draws_without_a_model_may_be_unusable():
    rng = np.random.default_rng(0)
    groups = {
        "posterior": {"m": rng.normal(size=(2, 200))},
        "log_likelihood": {"y": -1.5 * rng.normal(size=(2, 200, 5)) ** 2},
    }
    table = sidebayes.compare({"a": arviz_base.from_dict(groups)})
    assert "Do not use the LOO elpd of a" in str(table)
    assert ".kfold()" in str(table)
    groups = {group: {n: v[:1, :1] for n, v in one.items()} for group, one in groups.items()}
    assert sidebayes.compare({"a": arviz_base.from_dict(groups)}).headline.endswith("do not trust.")


def test_the_path_of_a_saved_fit_is_the_fit(fit, tmp_path):
    fit.save(tmp_path / "fit.nc")
    table = sidebayes.compare({"own": fit, "saved": tmp_path / "fit.nc"})
    assert table.frame.loc["own", "engine"] == table.frame.loc["saved", "engine"]
    assert "drawn elsewhere" not in str(table)
    with pytest.raises(ValueError, match="nuts gave draws, and BIC is of a mode"):
        _ = fit.bic
    assert fit.seconds["search"] > 1e-3


def test_a_full_fit_of_draws(fit, mcmc, tmp_path):
    found = sidebayes.Fit.from_draws(normal, X, mcmc)
    np.testing.assert_allclose(found.tree["posterior"]["mean"], sites(mcmc)["mean"])
    np.testing.assert_allclose(found.params["double"], 2 * found.params["mean"])
    assert found.loo().elpd == pytest.approx(fit.loo().elpd, abs=0.5)
    assert sidebayes.compare({"ours": fit, "theirs": found}).frame["trust"].tolist().count("agrees")
    lp = fit.tree["sample_stats"]["lp"]
    assert float(found.tree["sample_stats"]["lp"].mean()) == pytest.approx(
        float(lp.mean()), abs=0.3
    )
    found.save(tmp_path / "fit.nc")
    again = sidebayes.load(tmp_path / "fit.nc", normal)
    assert again.config == found.config
    for ask in (lambda: again.resume(10), lambda: again.kfold(2, progress=False)):
        with pytest.raises(ValueError, match="made elsewhere"):
            ask()


def test_labels_of_draws_made_elsewhere():
    rng = np.random.default_rng(1)
    draws = {
        "weights": rng.dirichlet([10.0, 10.0], (2, 20)),
        "mean": [[0.0], [6.0]] + 0.3 * rng.normal(size=(2, 20, 2, 1)),
        "covariance": rng.uniform(0.5, 2.0, (2, 20, 2, 1, 1)),
    }
    found = sidebayes.Fit.from_draws("gmm", {"x": X}, draws, num_clusters=2)
    assert len(set(found.labels()[:10])) == 1
    assert found.labels()[0] != found.labels()[-1]
    assert found.predict([[0.0], [6.0]]).tolist() == [found.labels()[0], found.labels()[-1]]


@pytest.mark.parametrize(
    ("draws", "said"),
    [
        ({"mean": np.zeros((2, 9))}, r"no \['sd'\]"),
        ({"mean": np.zeros((2, 9)), "sd": np.ones((2, 9, 3))}, "expected \\(chain, draw"),
        ({"mean": np.zeros((2, 9)), "sd": np.full((2, 9), np.nan)}, "not finite"),
        ({"mean": np.zeros((2, 9)), "sd": -np.ones((2, 9))}, "no density"),
        (3, "pass a DataTree"),
    ],
)
def test_what_are_no_draws(draws, said):
    with pytest.raises((TypeError, ValueError), match=said):
        sidebayes.Fit.from_draws(normal, X, draws)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.full((2, 50), "a"), r"draws\['mean'\]"),
        (np.zeros(50), r"draws\['mean'\] has shape \(50,\); expected \(chain, draw"),
        ([[1.0, 2.0], [3.0]], r"draws\['mean'\]"),
        (np.full((2, 50), 1j), r"draws\['mean'\]"),
        (np.zeros((2, 0)), r"has shape \(2, 0\); expected \(chain, draw, \.\.\.\), one of each"),
    ],
    ids=["text", "one axis", "ragged", "complex", "none"],
)
def test_what_are_no_draws_is_named(values, said):
    with pytest.raises((TypeError, ValueError), match=said):
        sidebayes.Fit.from_draws(normal, X, {"mean": values, "sd": values})


@pytest.mark.parametrize("padded", [False, True])
def test_other_numbers_of_draws_are_said(padded):
    rng = np.random.default_rng(0)
    draws = {"mean": rng.normal(size=(2, 30)), "sd": np.exp(rng.normal(size=(2, 90)))}
    said = r"mean at 120 of 180\), as where" if padded else "mean 2 x 30, sd 2 x 90"
    given = arviz_base.from_dict({"posterior": draws}) if padded else draws
    with pytest.raises(ValueError, match=rf"{said}.*; thin all sites alike"):
        sidebayes.Fit.from_draws(normal, X, given)


def drawn(mean, sd, x=X):
    return sidebayes.Fit.from_draws(normal, x, {"mean": mean, "sd": sd})


@pytest.mark.parametrize(
    "other",
    [X + 3.0, 10 * X, np.tile(X[:10], (2, 1))],
    ids=["moved", "in another unit", "a part, twice"],
)
def test_draws_of_other_data_are_bad(fit, other):
    own = own_draws(fit)
    found = drawn(own["mean"], own["sd"], other)
    level, why = found.verdict
    assert level == "bad"
    assert "no draws of this model at these data: steps that keep the posterior move" in why
    with pytest.raises(ValueError, match="not to be trusted"):
        found.with_evidence()


def test_draws_of_these_data_are_good_unless_they_are_narrow(fit):
    own = own_draws(fit)
    assert drawn(own["mean"], own["sd"]).verdict[0] == "good"
    narrow = drawn(own["mean"].mean() + 0.6 * (own["mean"] - own["mean"].mean()), own["sd"])
    table = sidebayes.compare({"narrow": narrow, "ours": fit})
    assert table.frame["trust"].to_dict() == {"narrow": "no", "ours": "reference"}
    assert np.isnan(table.frame.loc["narrow", "ess_per_s"])


def test_draws_that_cannot_be_tested_are_not_good():
    rng = np.random.default_rng(0)
    few = drawn(2 + rng.normal(size=(4, 20)), 2 + 0.1 * rng.normal(size=(4, 20)))
    assert few.verdict[0] != "good"
    assert "not tested against the density, as 4 x 20 draws are too few" in few.verdict[1]


def test_frozen_draws_are_bad(fit):
    rng = np.random.default_rng(0)
    moving, still = 2 + 0.2 * rng.normal(size=(4, 500)), np.full((4, 500), 2.0)
    for mean, named in ((moving, "sd"), (still, "mean and sd")):
        found = drawn(mean, still)
        assert found.verdict[0] == "bad"
        assert f"All draws of {named} are the same" in found.verdict[1]
        raw = arviz_base.from_dict({"posterior": {"mean": mean, "sd": still}})
        frame = sidebayes.compare({"fit": found, "raw": raw, "ours": fit}).frame
        assert frame["trust"].to_dict() == {"fit": "no", "raw": "no", "ours": "reference"}
        assert found.summary().loc["sd", "mean"] == 2.0
        assert np.isnan(found.summary().loc["sd", "sd"])
    assert sidebayes.compare({"raw": raw}).headline.endswith("do not trust.")


def one_weight(x):
    numpyro.sample("weights", dist.Dirichlet(np.ones(1)))
    numpyro.deterministic("constant", 3.0)
    normal(x)


def test_sites_without_room_to_move_are_not_frozen():
    run = SimpleNamespace(
        problem=Problem(one_weight, (X,)), engine=SimpleNamespace(length="num_samples")
    )
    moving, still = np.random.default_rng(0).uniform(1, 2, (2, 50)), np.ones((2, 50))
    for mean, found in ((moving, []), (still, ["mean"])):
        draws = {"weights": np.ones((2, 50, 1)), "mean": mean, "sd": moving}
        result = SimpleNamespace(draws=draws, sample_stats={"lp": moving}, points=())
        assert _frozen(run, result) == found


def test_a_support_of_one_point_is_not_frozen(fit):
    size = (4, 500)
    given = own_draws(fit) | {"weights": np.ones((*size, 1)), "constant": np.full(size, 3.0)}
    with pytest.warns(sidebayes.SideBayesWarning, match="no other site depends on 'weights'"):
        found = sidebayes.Fit.from_draws(one_weight, X, given)
    raw = arviz_base.from_dict({"posterior": given})
    frame = sidebayes.compare({"found": found, "raw": raw}).frame
    assert "no" not in frame["trust"].tolist()
    assert "are the same" not in found.verdict[1]
    assert "not tested" not in found.verdict[1]


def test_untested_draws_are_no_reference_beside_a_fit(fit):
    raw = arviz_base.from_dict({"posterior": own_draws(fit)})
    doubted = deepcopy(fit)
    doubted.__dict__.pop("verdict", None)  # of the fit as it was
    doubted.tree["sample_stats"]["diverging"][0, :3] = True
    assert doubted.verdict[0] == "caution"
    table = sidebayes.compare({"raw": raw, "ours": doubted})
    assert table.frame["trust"].to_dict() == {"raw": "agrees", "ours": "reference"}
    point = sidebayes.fit(normal, X, engine="map", progress=False)
    alone = sidebayes.compare({"raw": raw, "mode": point})
    assert alone.frame.loc["raw", "trust"] == "reference"
    assert "but raw was not tested against the model" in alone.headline


def test_variables_that_are_not_compared_are_named(fit):
    own = own_draws(fit)
    part = {"mean": own["mean"], "scale": own["sd"] + 100.0}
    table = sidebayes.compare({"ours": fit, "part": arviz_base.from_dict({"posterior": part})})
    assert (
        "part has no double, sd of the shape that ours has and scale beside what ours has: these "
        "variables were not compared." in table.notes
    )
    whole = sidebayes.compare({"ours": fit, "all": arviz_base.from_dict({"posterior": own})})
    assert not any("not compared" in note for note in whole.notes)


def regression(y: Annotated[ArrayLike, "rows"], z: Annotated[ArrayLike, "rows terms"]):
    prior = dist.Normal(0.0, 5.0).expand([z.shape[1]]).to_event(1)
    slope = numpyro.sample("slope", prior, infer={"event_dims": ["terms"]})
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(z @ slope, 1.0), obs=y)


def test_draws_along_an_axis_are_put_in_the_order_of_its_names():
    values = np.random.default_rng(0).normal(size=(2, 3, 2))

    def matched(*names):
        axes = ("chain", "draw", "term")
        drawn = xr.Dataset(
            {"slope": (axes, values), "twice": (axes, 2 * values)}, {"term": [*names]}
        )
        found = matched_by_name(
            drawn, {"slope": ["terms"], "twice": ["own"]}, {"terms": ["p", "q"]}
        )
        np.testing.assert_array_equal(found["twice"], 2 * found["slope"])  # along the same axis
        return found["slope"]

    np.testing.assert_array_equal(matched("q", "p"), values[..., ::-1])
    for names in (("p", "q"), (1, 2)):
        np.testing.assert_array_equal(matched(*names), values)
    with pytest.raises(ValueError, match=r"draws of 'slope' are of \['p', 'r'\] along 'term'"):
        matched("p", "r")


def test_names_along_axes_are_matched():
    rng = np.random.default_rng(0)
    z = pd.DataFrame(rng.normal(size=(30, 2)), columns=["p", "q"])
    y = 3 * z["p"] + rng.normal(size=30)
    drawn = [3.0, 0.0] + 0.2 * rng.normal(size=(4, 300, 2))
    ours = sidebayes.fit(regression, y, z, engine=Told({"slope": drawn}), progress=False)

    def named(values, *names):
        group = {"posterior": {"slope": values}}
        return arviz_base.from_dict(group, coords={"term": [*names]}, dims={"slope": ["term"]})

    few = drawn[:, :20]  # too few to be tested
    for order, names in ((slice(None, None, -1), "qp"), (slice(None), (1, 2)), (slice(None), "pq")):
        table = sidebayes.compare({"ours": ours, "theirs": named(drawn[..., order], *names)})
        assert table.frame.loc["theirs", "shift"] == 0.0
        found = sidebayes.Fit.from_draws(regression, (y, z), named(few[..., order], *names))
        np.testing.assert_array_equal(found.tree["posterior"]["slope"], few)
    other = named(drawn, "p", "r")
    for ask in (
        lambda: sidebayes.compare({"ours": ours, "theirs": other}),
        lambda: sidebayes.Fit.from_draws(regression, (y, z), other),
    ):
        with pytest.raises(ValueError, match=r"draws of 'slope' are of \['p', 'r'\] along 'term'"):
            ask()


def test_draws_alone_are_compared_by_name():
    rng = np.random.default_rng(0)

    def drawn(*names, said=None):
        mean = [{"a": 0.0, "b": 1.0, "c": 5.0}[name] for name in names]
        group = {"posterior": {"theta": mean + rng.normal(size=(4, 300, len(names)))}}
        coords = {"school": [*(said or names)]}
        return arviz_base.from_dict(group, coords=coords, dims={"theta": ["school"]})

    def shift(one, other):
        return sidebayes.compare({"one": one, "other": other}).frame["shift"].max()

    assert shift(drawn("a", "b", "c"), drawn("c", "a", "b")) < 0.2
    assert shift(drawn("a", "b", "c"), drawn("c", "b", "a", said="abc")) > 3
    fewer = sidebayes.compare({"one": drawn("a", "b", "c"), "other": drawn("a", "b")})
    assert any("other has no theta of the shape that one has" in note for note in fewer.notes)
    with pytest.raises(ValueError, match=r"of \['a', 'b', 'd'\].*of the first draws"):
        shift(drawn("a", "b", "c"), drawn("a", "b", "c", said="abd"))


def test_entries_without_names_are_said_to_be_taken_in_the_order_of_the_fit():
    rng = np.random.default_rng(0)
    z = pd.DataFrame(rng.normal(size=(30, 2)), columns=["p", "q"])
    drawn = rng.normal(size=(4, 300, 2))
    ours = sidebayes.fit(
        regression, rng.normal(size=30), z, engine=Told({"slope": drawn}), progress=False
    )
    theirs = arviz_base.from_dict({"posterior": {"slope": drawn}})
    table = sidebayes.compare({"ours": ours, "theirs": theirs})
    said = "Entries of theirs have no names, and were taken in the order of ours: slope (p, q)."
    assert said in table.notes


def test_rows_in_another_order_are_refused():
    rng = np.random.default_rng(0)
    z = pd.DataFrame(
        rng.normal(size=(30, 2)), columns=["p", "q"], index=[f"s{n}" for n in range(30)]
    )
    y = 3 * z["p"] + rng.normal(size=30)
    given = {"engine": "map", "progress": False}
    found = sidebayes.fit(regression, y, z, **given).params["slope"]
    with pytest.raises(ValueError, match=r"z has 's0' at place 0.*pass z.loc\[y.index\]"):
        sidebayes.fit(regression, y.sort_values(), z, **given)
    for other in (y.to_numpy(), y.reset_index(drop=True), pd.concat([y] * 2).iloc[:30]):
        np.testing.assert_allclose(
            sidebayes.fit(regression, other, z, **given).params["slope"], found
        )


def test_axes_that_may_be_swapped_are_warned_of():
    draws = np.random.default_rng(0).normal(size=(4, 100))
    swapped = xr.Dataset({"mean": (("chain", "draw"), draws.T)})
    with pytest.warns(
        sidebayes.SideBayesWarning, match=r"100 chains with 4 draws each.*values.swapaxes\(0, 1\)"
    ):
        read_draws(swapped)
    right = xr.Dataset({"mean": (("chain", "draw"), draws)})
    assert read_draws(right)["posterior"].sizes["chain"] == 4
