"""Feature saliency: updates, pruning, the number of clusters, missing values, what is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy.stats import invgamma
from sidebayes.diagnostics.features import salient_features, write_features
from sidebayes.diagnostics.pictures.plots import plot_features
from sidebayes.diagnostics.trust.estimates import estimate_tables
from sidebayes.diagnostics.trust.facts import facts_of
from sidebayes.diagnostics.trust.scores import accuracy
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.clock import Clock
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.feature_saliency_starts import next_best, some_rows, with_all_features
from sidebayes.guides.feature_saliency_steps import Sites
from sidebayes.models.blocks.components.normal_inverse_gamma import InverseGamma
from sidebayes.models.blocks.label_inference.label_graph import as_label_graph
from sidebayes.models.blocks.saliency.feature_block import SalientFeatures
from sidebayes.models.blocks.saliency.mixed_block import MixedFeatures
from sidebayes.models.blocks.saliency.passes import Salient, salient_densities
from sidebayes.models.blocks.saliency.repeated import look_at, repeated_columns
from sidebayes.models.feature_saliency import feature_saliency

import sidebayes as sb
from tests.support.draws import Pruned, at_one

ENGINE = sb.ComponentwiseEM(num_restarts=1, max_steps=1000)
LENGTHS = {"num_clusters": 6, "engine": ENGINE, "progress": False}
"""With tables of `SHAPE`, so that fits of several tests share their programs."""
SHAPE = 200, 10
CORNERS = np.array([(0.0, 3.0), (1.0, 9.0), (6.0, 4.0), (7.0, 10.0)])
SPARSE = {"selection": "sparse", "concentration": 1.0, "saliency_prior": (2.0, 2.0)}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def four_gaussians(seed, num_points=SHAPE[0]):
    """The thesis' example: two features with four clusters, and eight of noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=num_points)
    x = np.concatenate([CORNERS[labels], np.zeros((num_points, 8))], axis=1)
    return x + rng.normal(size=x.shape), labels


def mine(x, *, num_clusters):
    """Not the library's own, so that engines compare its updates with its density."""
    feature_saliency(
        x,
        num_clusters=num_clusters,
        selection="sparse",
        concentration=2.0,
        saliency_prior=(2.0, 3.0),
    )


@pytest.mark.parametrize(
    "engine", [sb.EM(num_restarts=2, max_steps=40), sb.BlockedGibbs(3, 3, 1)], ids=["em", "gibbs"]
)
def test_updates_agree_with_the_density(engine):
    x = four_gaussians(0, 60)[0][:, :4]
    x[::7, 1] = np.nan
    found = engine.run(
        Problem(mine, (jnp.asarray(x),), {"num_clusters": 3}), seed=0, progress=False
    )
    assert np.isfinite(found.sample_stats["lp"]).all()
    if engine.name == "em":
        climb = found.objective[0]
        gains = np.diff(climb[np.isfinite(climb)])
        assert (gains > -1e-9 * abs(climb[0])).all()
        assert found.status.converged or len(gains) >= 39


@pytest.fixture(scope="module")
def found():
    x, labels = four_gaussians(0)
    return sb.fit("feature_saliency", x, truth=labels, **LENGTHS)


@pytest.mark.slow
def test_the_example_of_the_thesis_at_its_size():
    x, labels = four_gaussians(0, 800)
    clusters_and_features_are_found(
        sb.fit("feature_saliency", x, num_clusters=30, truth=labels, seed=0)
    )


def test_four_gaussians_and_eight_noise_features(found):
    clusters_and_features_are_found(found)


def clusters_and_features_are_found(found):
    assert found.status.converged
    assert (found.params["weights"] > 0).sum() == 4
    saliency = found.params["saliency"]
    assert saliency[:2].min() > 0.95
    assert saliency[2:].max() < 0.1
    assert accuracy(found.run.truth, found.labels()) > 0.95


def test_clusters_that_were_taken_out_are_counted_apart(found):
    number = found.tree["responsibilities"].sizes["clusters"]
    used = int((found.params["weights"] > 0).sum())
    assert 1 < used < number
    assert f"points, {used} of {number} clusters, 0 links" in repr(found)
    assert facts_of(found)["clusters"] == f"{used} of {number}"
    shown = estimate_tables(found)["Parameters"].index
    assert len(shown) == 10
    assert all(name.startswith("saliency") for name in shown)


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_variances_of_any_unit_have_a_density(unit):
    density = InverseGamma(1.5, 2.0 * unit).log_prob(jnp.asarray(3.0 * unit))
    expected = invgamma(1.5, scale=2.0).logpdf(3.0) - np.log(unit)
    np.testing.assert_allclose(density, expected, rtol=1e-12)


@pytest.mark.usefixtures("found")
def test_a_structure_that_shrinks_is_one_program():
    with counted_compilations() as compilations:
        again = sb.fit("feature_saliency", four_gaussians(2)[0], **LENGTHS)
    assert compilations == []
    assert (again.params["weights"] == 0).any()


def test_the_structure_does_not_depend_on_units(found):
    (x, _), one = four_gaussians(0), found
    unit = np.array([10.0, 0.01, 1.0, 100.0, 3.0, 0.2, 1e4, 1e-4, 5.0, 1.0])
    two = sb.fit("feature_saliency", x * unit + 5.0, **LENGTHS)
    np.testing.assert_allclose(two.params["saliency"], one.params["saliency"], atol=1e-4)
    np.testing.assert_allclose(two.params["weights"], one.params["weights"], atol=1e-4)
    lengths = [float(fit.tree["sample_stats"]["lp"].item()) for fit in (one, two)]
    assert lengths[0] - lengths[1] == pytest.approx(200 * np.log(unit).sum(), rel=1e-6)
    # starts end where they do in other units: lengths depend on units, and the tolerance does not
    small, large = (sb.fit("feature_saliency", x * u, **LENGTHS) for u in (1e-12, 1e12))
    numbers = [np.isfinite(fit.objective).sum(axis=1) for fit in (one, small, large)]
    np.testing.assert_array_equal(numbers[0], numbers[1])
    np.testing.assert_array_equal(numbers[0], numbers[2])


def test_partial_labels_keep_their_clusters():
    x, labels = four_gaussians(4, 150)
    known = np.where(np.arange(150) < 40, labels, -1)
    engine = sb.ComponentwiseEM(num_restarts=2)
    fit = sb.fit(
        "feature_saliency", x, known=known, num_clusters=8, engine=engine, truth=labels, seed=1
    )
    assert (fit.params["weights"][:4] > 0).all()
    np.testing.assert_array_equal(fit.labels()[:40], labels[:40])
    assert fit.params["saliency"][:2].min() > 0.95


def test_one_start_is_the_mixture_with_all_features():
    """Where every feature tells clusters apart, the message is no longer than without saliencies."""
    rng = np.random.default_rng(7)
    labels = rng.integers(3, size=SHAPE[0])
    x = labels[:, None] * rng.choice([-4.0, 2.0, 4.0], 10) + rng.normal(size=SHAPE)
    fit = sb.fit("feature_saliency", x, **LENGTHS)
    known = fit.params | {"saliency": np.ones(10)}
    plain = sb.fit("feature_saliency", x, init=known, **LENGTHS)
    lengths = [-float(one.tree["sample_stats"]["lp"].item()) for one in (fit, plain)]
    assert lengths[0] <= lengths[1] + 1e-6


def test_normal_kinds_alone_are_the_plain_model():
    x = np.random.default_rng(0).normal(size=SHAPE)
    x += 4.0 * np.random.default_rng(1).integers(2, size=(SHAPE[0], 1)) * ([1, 0] * 5)
    one, two = (
        sb.fit("feature_saliency", x, kinds=kinds, **LENGTHS) for kinds in (None, ("normal",) * 10)
    )
    said = replace(one.run.problem, kwargs=one.run.problem.kwargs | {"kinds": "normal"})
    assert Sites.of(said) == Sites.of(one.run.problem)
    for name in one.params:
        np.testing.assert_allclose(two.params[name], one.params[name], atol=1e-9)
    lengths = [float(fit.tree["sample_stats"]["lp"].item()) for fit in (one, two)]
    assert lengths[0] == pytest.approx(lengths[1])


def test_a_search_in_many_rows_begins_with_some_of_them():
    rng = np.random.default_rng(8)
    labels = rng.integers(2, size=2400)
    x = np.column_stack([rng.normal(5.0 * labels), rng.normal(size=2400)])
    fit = sb.fit("feature_saliency", x, num_clusters=2, engine=sb.ComponentwiseEM(num_restarts=1))
    assert fit.status.converged
    assert (fit.params["saliency"] > 0).tolist() == [True, False]
    problem = fit.run.problem  # with a graph that has no links
    names = Sites.of(problem)
    starts = with_all_features(names, initial_values(problem, 0, 1))
    smaller = some_rows(problem, names, starts, 0)
    rows = np.asarray(smaller.args[0])
    assert rows.shape == (600, 2)
    assert set(rows[:, 0]) <= set(x[:, 0])
    # it is where the message for some of the rows is short, and nothing is taken out that pays there
    found = fit.run.engine._begun(
        smaller, names, fit.run.engine._begin(starts, np.array([False, True])), Clock()
    )
    assert (found["weights"][1] > 0.4).all()
    assert (found["saliency"] > 0).tolist() == [[True, False], [True, True]]
    few = Problem(feature_saliency, (jnp.asarray(x[:2399]), None, None), {"num_clusters": 2})
    assert some_rows(few, names, starts, 0) is None
    linked = replace(problem, args=(problem.args[0], sb.Links.must_link([(0, 1)])))
    assert some_rows(linked, names, starts, 0) is None


def test_hard_links_keep_enough_clusters():
    x, _ = four_gaussians(6, 60)
    links = sb.Links.cannot_link([(0, 1), (1, 2), (0, 2)])
    args = x[:, 2:5], as_label_graph(links, 60, 4, "exact"), None
    fit = ENGINE.run(Problem(feature_saliency, args, {"num_clusters": 4}), progress=False)
    assert fit.status.converged
    assert (fit.draws["weights"] > 0).sum() >= 3


def test_a_search_that_is_cut_says_so():
    x, _ = four_gaussians(6)
    fit = sb.fit("feature_saliency", x, **LENGTHS | {"engine": replace(ENGINE, max_steps=2)})
    assert not fit.status.converged
    assert "stopped at max_steps=2, raise it" in str(fit.status)


def test_what_cannot_be_done_is_said():
    x, _ = four_gaussians(5, 40)
    with pytest.raises(
        ValueError, match="engine 'nuts' cannot be used: selection='mml' is an improper"
    ):
        sb.fit("feature_saliency", x, num_clusters=3, engine="nuts")
    with pytest.raises(ValueError, match="the prior of this model is a proper one"):
        sb.fit("feature_saliency", x, num_clusters=3, selection="sparse")
    with pytest.raises(ValueError, match="selection = 'mdl'; expected 'mml' or 'sparse'"):
        sb.fit("feature_saliency", x, num_clusters=3, selection="mdl")
    links = sb.Links.must_link([(0, 1)], weight=1.0)
    with pytest.raises(ValueError, match="pass reading='relation'"):
        sb.fit("feature_saliency", x, links, num_clusters=3, reading="field")
    with pytest.raises(ValueError, match="does not learn"):
        sb.fit("feature_saliency", x, links, num_clusters=3, flip_rate="learned")
    with pytest.raises(ValueError, match="saliency_prior = 0.0; expected a finite number"):
        sb.fit(
            "feature_saliency",
            x,
            num_clusters=3,
            engine="em",
            selection="sparse",
            saliency_prior=(0.0, 1.0),
        )
    with pytest.raises(TypeError, match="saliency_prior = 0.5; pass the two positive numbers"):
        sb.fit(
            "feature_saliency",
            x,
            num_clusters=3,
            engine="em",
            selection="sparse",
            saliency_prior=0.5,
        )
    with pytest.raises(ValueError, match="constant features, in columns 1"):
        sb.fit("feature_saliency", np.where(np.arange(10) == 1, 2.0, x), num_clusters=3)


def test_repeated_features_are_told():
    x, _ = four_gaussians(5)
    x[3, 2], x[:, 4] = np.nan, -2.0 * x[:, 1] + 3.0
    assert repeated_columns(x[:, :4]) == []
    assert repeated_columns(x) == [(1, 4)]
    gaps = np.where(np.arange(len(x))[:, None] == 7, np.nan, x[:, 1:2])
    assert repeated_columns(np.column_stack([x, gaps])) == [(1, 4)]
    with pytest.warns(sb.SideBayesWarning, match="up to place and scale: 1 and 4. All") as told:
        sb.fit("feature_saliency", x, **LENGTHS | {"engine": replace(ENGINE, max_steps=3)})
    assert told[0].filename == __file__


def test_copies_of_rows_are_told_where_chance_makes_none():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4))
    x[5, 2] = np.nan
    for table in (np.repeat(x, 5, axis=0), np.round(np.tile(x, (5, 1)), 1)):
        with pytest.warns(sb.SideBayesWarning, match="x has 160 of 200 rows that equal an earlier"):
            look_at(SalientFeatures(table, 3, "empirical", None), "x", table)
    flags = rng.integers(0, 2, (600, 3))
    age = np.round(10 * rng.normal(size=600))
    rounded, mixed = np.round(5 * rng.normal(size=(600, 2))), np.column_stack([age, flags])
    for table, normal in ((np.repeat(x, 1, axis=0), None), (rounded, None), (mixed, [0])):
        look_at(SalientFeatures(table, 3, "empirical", None), "x", table, normal)
    mixed[:, 0] = np.repeat(rng.normal(size=200), 3)
    copied = np.column_stack([mixed[::3].repeat(3, axis=0), np.repeat(rng.normal(size=200), 3)])
    with pytest.warns(sb.SideBayesWarning, match="x has 400 of 600 rows that equal an earlier"):
        look_at(SalientFeatures(copied, 3, "empirical", None), "x", copied, [0, 4])


def test_levels_are_told():
    x, labels = four_gaussians(5)
    x[:, 2] = np.where(labels == 1, 0.3, 0.7)
    params = {"weights": np.full(6, 1 / 6), "saliency": np.ones(10), "mean": np.zeros((6, 10))}
    params |= {"variance": np.ones((6, 10)), "common_mean": np.zeros(10)}
    engine = at_one(params | {"common_variance": np.ones(10)})
    few = r"few different values: 2. On those a normal"
    given = {"kinds": ("normal",) * 10, "engine": engine, "selection": "sparse"}
    with pytest.warns(sb.SideBayesWarning, match=few) as told:
        fit = sb.fit("feature_saliency", x, **LENGTHS | given)
    assert told[0].filename == __file__
    assert fit.run.options["kinds"] == ("normal",) * 10
    assert "taken for" not in str(fit.status)
    coded, kinds = x.copy(), ["normal", "normal", "category:2"] + ["normal"] * 7
    coded[:, 2] = labels == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", sb.SideBayesWarning)
        with jax.enable_x64(True):
            MixedFeatures(coded, 3, "empirical", None, kinds).check("x", coded)


FEW_ROWS = "x has 9 rows, and a cluster needs more than 10"


def test_fewer_rows_than_features_are_told():
    x, _ = four_gaussians(5, 9)
    with pytest.warns(sb.SideBayesWarning, match=FEW_ROWS):
        SalientFeatures(x, 3, "flat", None).check("x", x)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sb.SideBayesWarning)
        SalientFeatures(x, 3, "empirical", None).check("x", x)


@pytest.mark.slow
def test_fewer_rows_than_features_are_fitted():
    x, _ = four_gaussians(5, 9)
    with pytest.warns(sb.SideBayesWarning, match=FEW_ROWS):
        fit = sb.fit("feature_saliency", x, num_clusters=3, engine=ENGINE, prior="flat")
    assert np.isfinite(fit.params["saliency"]).all()


def test_the_next_best_start_is_told(found):
    """By how much its message is longer, and how alike the labels are."""
    params = {str(n): v.to_numpy()[0, 0] for n, v in found.tree["posterior"].data_vars.items()}
    ends = {name: np.stack([value, value, value]) for name, value in params.items()}
    ends["weights"][2] = np.arange(len(ends["weights"][2])) == ends["weights"][2].argmax()
    problem = found.run.problem
    said = next_best(problem, np.array([-9.0, -11.5, -13.0]), 0, ends)
    assert said.startswith("The next of 3 starts has a message 2.5 nats longer, and its labels ")
    assert said.endswith("an adjusted Rand index of 1.00")
    said = next_best(problem, np.array([-9.0, -np.inf, -13.0]), 0, ends)
    assert said.endswith("an adjusted Rand index of 0.00")
    assert next_best(problem, np.array([-9.0, -9.001, -13.0]), 0, ends) is None
    assert next_best(problem, np.array([-9.0]), 0, ends) is None


def test_one_cluster_has_no_features_that_matter():
    x = np.random.default_rng(0).normal(size=SHAPE)
    fit = sb.fit("feature_saliency", x, **LENGTHS)
    assert (fit.params["weights"] > 0).sum() == 1
    assert "has 1 cluster; with one cluster no feature separates clusters" in str(fit.status)
    assert fit.features().sentence.startswith("with one cluster no feature separates clusters")
    assert "that ranks features" not in str(fit.status)
    assert "add starts" not in fit.verdict[1]  # one cluster is one density, whoever found it


@pytest.mark.slow
def test_a_search_from_one_cluster_says_so():
    x = np.random.default_rng(0).normal(size=SHAPE)
    alone = sb.fit("feature_saliency", x[:60, :3], num_clusters=1, engine=sb.ComponentwiseEM())
    assert "from 1 cluster;" in str(alone.status)
    assert "add starts" not in alone.verdict[1]


def test_a_start_without_any_saliency_ends_with_one_cluster(found):
    x, _ = four_gaussians(0)
    init = found.params | {"saliency": np.zeros(10), "weights": np.full(6, 1 / 6)}
    fit = sb.fit("feature_saliency", x, init=init, **LENGTHS)
    assert (fit.params["weights"] > 0).sum() == 1
    assert not fit.params["saliency"].any()
    assert "with one cluster" in str(fit.status)


def test_features_of_a_mode(found, tmp_path):
    table = found.features()
    np.testing.assert_array_equal(table.frame["saliency"], found.params["saliency"])
    assert table.frame[["lower", "upper", "probability", "error"]].isna().all(axis=None)
    assert table.likeliest == 4
    assert "has 4 clusters and 2 of 10 features with a saliency above 0.5" in str(found.status)
    assert table.sentence == "2 of 10 features have a saliency above 0.5; 4 clusters"
    found.save(tmp_path / "fit.nc")
    assert str(sb.load(tmp_path / "fit.nc").features()) == str(table)
    assert found.picture == "features"
    bars = found.plot().axes[0].patches
    np.testing.assert_allclose([bar.get_width() for bar in bars], table.frame["saliency"])


def test_features_of_many_draws(found):
    """Of the fit's tree, with other saliencies, and a cluster that is empty in a quarter of the draws."""
    draws = np.random.default_rng(0).uniform(size=(2, 40, 10))
    posterior, shares = (
        found.tree[name].to_dataset().isel(chain=[0, 0], draw=[0] * 40)
        for name in ("posterior", "responsibilities")
    )
    prob = shares["prob"].to_numpy().copy()
    one, other = np.flatnonzero(found.params["weights"])[:2]
    prob[0, :20, :, one] += prob[0, :20, :, other]
    prob[0, :20, :, other] = 0.0
    tree = found.tree.copy()
    tree["posterior"] = xr.DataTree(
        posterior.assign(saliency=posterior["saliency"].copy(data=draws))
    )
    tree["responsibilities"] = xr.DataTree(shares.assign(prob=shares["prob"].copy(data=prob)))
    write_features(tree)
    table, axes = salient_features(tree), plot_features(SimpleNamespace(tree=tree)).axes
    by_feature = draws.reshape(-1, 10)
    np.testing.assert_allclose(table.frame["upper"], np.quantile(by_feature, 0.975, axis=0))
    np.testing.assert_allclose(table.frame["probability"], (by_feature > 0.5).mean(axis=0))
    assert table.num_clusters.to_dict() == {3: 0.25, 4: 0.75}
    assert len(axes) == 2


def test_features_of_draws():
    x, _ = four_gaussians(0)
    engine = sb.BlockedGibbs(num_warmup=20, num_samples=40, num_chains=2)
    fit = sb.fit("feature_saliency", x, num_clusters=4, engine=engine, **SPARSE)
    table, axes = fit.features(), fit.plot().axes
    draws = fit.tree["posterior"]["saliency"].to_numpy().reshape(-1, 10)
    np.testing.assert_allclose(table.frame["upper"], np.quantile(draws, 0.975, axis=0))
    np.testing.assert_allclose(table.frame["probability"], (draws > 0.5).mean(axis=0))
    assert table.num_clusters.sum() == pytest.approx(1.0)
    assert len(axes) == 1 + (len(table.num_clusters) > 1)


def test_other_models_have_no_saliencies():
    params = {"weights": [0.5, 0.5], "mean": [[0, 3], [6, 9]], "covariance": [np.eye(2)] * 2}
    x, _ = four_gaussians(0, 30)
    fit = sb.fit("gmm", x[:, :2], num_clusters=2, engine=at_one(params))
    with pytest.raises(ValueError, match="no saliencies of features; fit 'feature_saliency'"):
        fit.features()


@pytest.fixture(scope="module")
def gappy():
    """Rows of four Gaussians, where they have gaps, and a table with these."""
    x, _ = four_gaussians(2)
    gaps = np.random.default_rng(0).uniform(size=x.shape) < 0.15
    return x, gaps, np.where(gaps, np.nan, x)


def test_features_are_found_where_values_are_missing(gappy):
    fit = sb.fit("feature_saliency", gappy[2], **LENGTHS)
    assert fit.params["saliency"][:2].min() > 0.9


def test_missing_values_are_integrated_out_and_imputed(gappy, tmp_path):
    x, gaps, table = gappy
    known = {"weights": np.full(4, 0.25), "variance": np.ones((4, 10))}
    known["saliency"] = np.repeat([0.95, 0.05], [2, 8])
    known["mean"] = np.concatenate([CORNERS, np.zeros((4, 8))], axis=1)
    known |= {"common_mean": x.mean(axis=0), "common_variance": x.var(axis=0)}
    engine = Pruned({name: value[None, None] for name, value in known.items()})
    given = {"num_clusters": 4, "engine": engine, "progress": False}
    fit = sb.fit("feature_saliency", table, feature_names=list("abcdefghij"), **given)
    found = fit.imputed()
    assert len(found) == gaps.sum()
    row, column = np.nonzero(gaps)
    np.testing.assert_array_equal(found["row"], row)
    assert list(found["feature"][:3]) == ["abcdefghij"[k] for k in column[:3]]

    p, share = fit.params, fit.responsibilities()
    within = share[row] * p["mean"][:, column].T
    expected = p["saliency"][column] * within.sum(axis=1)
    expected += (1 - p["saliency"][column]) * p["common_mean"][column]
    np.testing.assert_allclose(found["mean"], expected)
    far = (x[gaps] - found["mean"]) / found["sd"]
    assert abs(np.mean(far**2) - 1) < 5 * np.sqrt(
        2 / len(far)
    )  # of the size that they are said to have
    fit.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", engine=given["engine"])
    np.testing.assert_array_equal(again.predict(table), fit.predict(table))
    for one in (fit.predict_proba(table), fit.log_prob(table)):
        assert np.isfinite(one).all()
    with pytest.raises(ValueError, match="x has infinite values in 1 of 200 rows: 3; pass NaN"):
        sb.fit(
            "feature_saliency", np.where(np.arange(200)[:, None] == 3, np.inf, x), num_clusters=2
        )
    with pytest.raises(ValueError, match="x has features without any value, in columns 2; they"):
        sb.fit("feature_saliency", np.where(np.arange(10) == 2, np.nan, x), num_clusters=2)
    lone = x.copy()
    lone[1:, 2], lone[1:, 3] = np.nan, lone[0, 3]
    with pytest.raises(
        ValueError, match="columns 3; features of one known value, in columns 2"
    ) as told:
        sb.fit("feature_saliency", lone, num_clusters=2)
    lone[:5, 1], said = np.nan, str(told.value)
    kept = eval(said[said.index("x[:") :], {"np": np, "x": lone})  # columns with gaps stay
    np.testing.assert_array_equal(kept, np.delete(lone, [2, 3], axis=1))


def test_contrast_tells_clusters_apart_better():
    x, _ = four_gaussians(0)
    engine = sb.EM(num_restarts=2, max_steps=200)
    fit = sb.fit("feature_saliency", x, num_clusters=4, engine=engine, **SPARSE)
    contrast = fit.contrast_saliencies().to_numpy()
    p, labels = fit.params, fit.responsibilities().argmax(axis=1)

    @jax.jit
    def cost(rho):
        own = Salient(p["mean"], p["variance"], p["common_mean"], p["common_variance"], rho)
        joint = salient_densities(x, own) + np.log(p["weights"])[:, None]
        share = jax.nn.log_softmax(joint, axis=0)
        return -share[labels, np.arange(200)].sum()

    assert cost(contrast) < cost(p["saliency"]) - 1.0
    for feature in range(10):  # no coordinate can be moved to a lower cost
        for moved in (0.01, -0.01):
            other = contrast.copy()
            other[feature] = np.clip(contrast[feature] + moved, 1e-6, 1 - 1e-6)
            assert cost(other) >= cost(contrast) - 1e-2
