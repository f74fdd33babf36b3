"""Feature saliency: densities by enumeration, updates, pruning, the number of clusters, what is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sidebayes.models.blocks.saliency.passes as passes
from scipy.stats import norm
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.clock import Clock
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.feature_saliency_starts import some_rows, with_all_features
from sidebayes.guides.feature_saliency_steps import Sites
from sidebayes.guides.feature_saliency_updates import saliency_updated, weight_updated
from sidebayes.models.blocks.saliency.layout import Used
from sidebayes.models.blocks.saliency.message_length import structure_length
from sidebayes.models.blocks.saliency.passes import (
    Salient,
    SalientMoments,
    salient_densities,
    salient_moments,
)
from sidebayes.models.blocks.saliency.repeated import repeated_columns
from sidebayes.models.blocks.saliency.salient_normal import SalientNormal
from sidebayes.models.feature_saliency import feature_saliency

import sidebayes as sb


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def random_features(num_clusters, num_features, seed=0, saliency=None):
    rng = np.random.default_rng(seed)
    shape = (num_clusters, num_features)
    return Salient(
        jnp.asarray(rng.normal(size=shape)),
        jnp.asarray(rng.uniform(0.3, 2.0, shape)),
        jnp.asarray(rng.normal(size=num_features)),
        jnp.asarray(rng.uniform(0.5, 2.0, num_features)),
        jnp.asarray(rng.uniform(size=num_features) if saliency is None else saliency),
    )


def four_gaussians(seed, num_points=800):
    """The thesis' example: two features with four clusters, and eight of noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=num_points)
    means = np.array([(0.0, 3.0), (1.0, 9.0), (6.0, 4.0), (7.0, 10.0)])
    x = np.concatenate([means[labels], np.zeros((num_points, 8))], axis=1)
    return x + rng.normal(size=x.shape), labels


def test_density_sums_over_which_features_are_relevant():
    own = random_features(2, 3)
    x = np.random.default_rng(1).normal(size=(5, 3))
    x[2, 1] = np.nan
    within = norm(np.asarray(own.mean), np.sqrt(own.variance)).pdf(x[:, None])
    common = norm(np.asarray(own.common_mean), np.sqrt(own.common_variance)).pdf(x)
    within[2, :, 1] = common[2, 1] = 1.0  # a missing value is integrated out
    expected = np.zeros((5, 2))
    for relevant in product((0, 1), repeat=3):
        chance = np.prod(np.where(relevant, own.saliency, 1 - own.saliency))
        expected += chance * np.where(relevant, within, common[:, None]).prod(axis=2)
    found = SalientNormal(own).log_prob(jnp.asarray(x)[:, None])
    np.testing.assert_allclose(found, np.log(expected), atol=1e-12)


@pytest.mark.parametrize("chunk", [4, 16, 4096])
def test_passes_over_chunks_are_the_sums(monkeypatch, chunk):
    monkeypatch.setattr(passes, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    saliency = rng.uniform(size=11)
    saliency[[1, 3]], saliency[7] = 0.0, 1.0
    own = random_features(4, 11, saliency=saliency)
    x = rng.normal(size=(37, 11))
    x[3, 2], x[5] = np.nan, np.nan
    x, density = jnp.asarray(x), SalientNormal(own)
    found = salient_densities(x, own)
    np.testing.assert_allclose(found, density.log_prob(x[:, None]).T, atol=1e-12)

    share = jax.nn.softmax(found, axis=0)
    moments = salient_moments(x, share, own, jnp.ones(11))
    chance = jnp.stack([density.relevance(x, jnp.full(37, k)) for k in range(4)])
    known = ~jnp.isnan(x)
    deviation = jnp.where(known, x - 1.0, 0.0)
    relevant = share[:, :, None] * chance * known
    others = (share[:, :, None] * (1 - chance) * known).sum(axis=0)
    for power, part in zip(
        (jnp.ones_like(deviation), deviation, deviation**2), moments, strict=False
    ):
        np.testing.assert_allclose(part[:-1], (relevant * power).sum(axis=1), atol=1e-11)
        np.testing.assert_allclose(part[-1], (others * power).sum(axis=0), atol=1e-11)
    total = (share[:, :, None] * chance**2 * known).sum(axis=(0, 1))
    np.testing.assert_allclose(moments.certainty, total, atol=1e-11)


def test_clusters_that_are_not_used_are_skipped():
    own = random_features(4, 5)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(9, 5)))
    used = Used(jnp.array([2, 0, 1, 3]), 2)
    whole, part = salient_densities(x, own), salient_densities(x, own, used)
    np.testing.assert_array_equal(part[jnp.array([0, 2])], whole[jnp.array([0, 2])])
    np.testing.assert_array_equal(part[jnp.array([1, 3])], 0.0)


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


def test_message_length_of_parameters_on_bounds():
    saliency = np.array([0.0, 0.3, 1.0])
    weights = np.array([0.25, 0.0, 0.75])
    n = 50
    expected = 0.5 * (2 + 1) * np.log(n)  # two clusters, one saliency between its bounds
    for rho in (0.3, 1.0):
        expected += np.log(n * rho * np.array([0.25, 0.75])).sum()
    expected += np.log(n * np.array([1.0, 0.7])).sum()
    assert float(structure_length(weights, saliency, n)) == pytest.approx(expected)


def test_support_below_the_price_takes_out():
    weights = jnp.array([0.5, 0.3, 0.2])
    counts = jnp.array([12.0, 6.0, 2.0])
    new = weight_updated(weights, jnp.asarray(2), counts, 3.0, jnp.asarray(False), 1)
    assert new[2] == 0.0
    np.testing.assert_allclose(new, [0.625, 0.375, 0.0])
    kept = weight_updated(weights, jnp.asarray(2), counts, 3.0, jnp.asarray(False), 3)
    assert kept[2] > 0
    held = weight_updated(weights, jnp.asarray(2), counts, 3.0, jnp.asarray(True), 1)
    assert held[2] > 0

    on = jnp.array([[1.0, 12.0, 13.6], [0.5, 5.0, 6.0]])
    off = jnp.array([18.5, 3.0, 0.4])
    zero = jnp.zeros((3, 3))
    moments = SalientMoments(jnp.concatenate([on, off[None]]), zero, zero, on.sum(axis=0) ** 2 / 20)
    found = saliency_updated(
        jnp.array([0.1, 0.8, 0.95]), moments, jnp.asarray(2), jnp.asarray(True)
    )
    np.testing.assert_allclose(found, [0.0, 15.0 / 17.0, 1.0])


def test_exact_weights_maximise_the_penalised_objective():
    counts, price = jnp.array([12.0, 9.0, 9.0]), 2.0
    weights = jnp.array([0.2, 0.5, 0.3])

    def objective(w):
        return (counts - price) @ jnp.log(w)

    new = weight_updated(weights, jnp.asarray(0), counts, price, jnp.asarray(False), 1)
    for other in np.linspace(0.01, 0.99, 99):
        tried = weights.at[0].set(other).at[1:].multiply((1 - other) / 0.8)
        assert objective(new) >= objective(tried) - 1e-12


def test_longer_steps_of_saliencies_have_a_bound():
    """The log likelihood given labels is above the bound wherever a saliency is not more than halved."""
    rng = np.random.default_rng(0)
    p, q, w = rng.exponential(size=(3, 200))
    for rho in (0.02, 0.4, 0.9):
        r = rho * p / (rho * p + (1 - rho) * q)
        slope = (w * (r - rho)).sum() / (rho * (1 - rho))
        bend = (w * (r - rho) ** 2).sum() / (rho * (1 - rho)) ** 2
        for tried in np.linspace(rho / 2, (1 + rho) / 2, 21):
            gain = (w * np.log((tried * p + (1 - tried) * q) / (rho * p + (1 - rho) * q))).sum()
            assert gain >= (tried - rho) * slope - (tried - rho) ** 2 * bend - 1e-9


@pytest.fixture(scope="module")
def found():
    x, labels = four_gaussians(0)
    return sb.fit("feature_saliency", x, num_clusters=30, truth=labels, seed=0)


def test_four_gaussians_and_eight_noise_features(found):
    assert found.status.converged
    assert (found.params["weights"] > 0).sum() == 4
    saliency = found.params["saliency"]
    assert saliency[:2].min() > 0.95
    assert saliency[2:].max() < 0.1
    assert float(sb.compare({"found": found}).frame["accuracy"].item()) > 0.95


def test_a_structure_that_shrinks_is_one_program():
    x, _ = four_gaussians(1, 300)
    engine = sb.ComponentwiseEM(num_restarts=1)
    sb.fit("feature_saliency", x, num_clusters=10, engine=engine)
    with counted_compilations() as compilations:
        again = sb.fit(
            "feature_saliency", four_gaussians(2, 300)[0], num_clusters=10, engine=engine
        )
    assert compilations == []
    assert (again.params["weights"] == 0).any()


def test_the_structure_does_not_depend_on_units():
    x, _ = four_gaussians(3, 200)
    x = x[:, :5]
    unit = np.array([10.0, 0.01, 1.0, 100.0, 3.0])
    engine = sb.ComponentwiseEM(num_restarts=1)
    one = sb.fit("feature_saliency", x, num_clusters=8, engine=engine)
    two = sb.fit("feature_saliency", x * unit + 5.0, num_clusters=8, engine=engine)
    # the tolerance is relative to a length, which depends on units
    np.testing.assert_allclose(two.params["saliency"], one.params["saliency"], atol=1e-4)
    np.testing.assert_allclose(two.params["weights"], one.params["weights"], atol=1e-4)
    lengths = [float(fit.tree["sample_stats"]["lp"].item()) for fit in (one, two)]
    assert lengths[0] - lengths[1] == pytest.approx(200 * np.log(unit).sum(), rel=1e-6)


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
    labels = rng.integers(3, size=90)
    x = 4.0 * labels[:, None] * np.array([1.0, -1.0, 0.5]) + rng.normal(size=(90, 3))
    engine = sb.ComponentwiseEM(num_restarts=1)
    fit = sb.fit("feature_saliency", x, num_clusters=6, engine=engine)
    known = fit.params | {"saliency": np.ones(3)}
    plain = sb.fit("feature_saliency", x, num_clusters=6, init=known)
    lengths = [-float(one.tree["sample_stats"]["lp"].item()) for one in (fit, plain)]
    assert lengths[0] <= lengths[1] + 1e-6


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
    engine = sb.ComponentwiseEM(num_restarts=1)
    fit = sb.fit("feature_saliency", x[:, 2:5], links, num_clusters=4, engine=engine)
    assert fit.status.converged
    assert len(set(fit.labels()[:3])) == 3


def test_a_search_that_is_cut_says_so():
    x, _ = four_gaussians(6, 60)
    engine = sb.ComponentwiseEM(num_restarts=1, max_steps=2)
    fit = sb.fit("feature_saliency", x, num_clusters=4, engine=engine)
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
    x, _ = four_gaussians(5, 40)
    x[3, 2], x[:, 4] = np.nan, -2.0 * x[:, 1] + 3.0
    assert repeated_columns(x[:, :4]) == []
    assert repeated_columns(x) == [(1, 4)]
    gaps = np.where(np.arange(40)[:, None] == 7, np.nan, x[:, 1:2])
    assert repeated_columns(np.column_stack([x, gaps])) == [(1, 4)]
    engine = sb.ComponentwiseEM(num_restarts=1, max_steps=3)
    with pytest.warns(sb.SideBayesWarning, match="up to place and scale: 1 and 4. All") as told:
        sb.fit("feature_saliency", x, num_clusters=3, engine=engine)
    assert told[0].filename == __file__


def test_levels_are_told():
    x, labels = four_gaussians(5, 60)
    x = np.column_stack([x[:, :2], np.where(labels == 1, 0.3, 0.7)])
    engine = sb.ComponentwiseEM(num_restarts=1, max_steps=3)
    with pytest.warns(
        sb.SideBayesWarning, match="few different values: 2. On those a normal"
    ) as told:
        fit = sb.fit("feature_saliency", x, num_clusters=3, engine=engine, kinds="normal")
    assert told[0].filename == __file__
    assert fit.params["common_mean"].shape == (3,)
    assert "taken for" not in str(fit.status)
    coded, kinds = x.copy(), ["normal", "normal", "category:2"]
    coded[:, 2] = labels == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", sb.SideBayesWarning)
        sb.fit("feature_saliency", coded, num_clusters=3, engine=engine, kinds=kinds)


def test_fewer_rows_than_features_are_told():
    x, _ = four_gaussians(5, 9)
    engine = sb.ComponentwiseEM(num_restarts=1)
    with pytest.warns(sb.SideBayesWarning, match="x has 9 rows, and a cluster needs more than 10"):
        fit = sb.fit("feature_saliency", x, num_clusters=3, engine=engine)
    assert np.isfinite(fit.params["saliency"]).all()


def test_one_cluster_has_no_features_that_matter():
    x = np.random.default_rng(0).normal(size=(100, 4))
    fit = sb.fit("feature_saliency", x, num_clusters=5, progress=False)
    assert (fit.params["weights"] > 0).sum() == 1
    assert "has 1 cluster and " in str(fit.status)
    assert "nothing that features could tell apart" in str(fit.status)
    assert "nothing that features could tell apart" in fit.features().sentence


def test_a_start_without_any_saliency_ends_with_one_cluster():
    x, _ = four_gaussians(0, 120)
    other = sb.fit("feature_saliency", x, num_clusters=3, engine=sb.ComponentwiseEM(num_restarts=1))
    init = other.params | {"saliency": np.zeros(10), "weights": np.full(3, 1 / 3)}
    fit = sb.fit("feature_saliency", x, num_clusters=3, init=init)
    assert (fit.params["weights"] > 0).sum() == 1
    assert not fit.params["saliency"].any()
    assert "with one cluster" in str(fit.status)


def test_features_of_a_mode(found, tmp_path):
    table = found.features()
    np.testing.assert_array_equal(table.frame["saliency"], found.params["saliency"])
    assert table.frame[["lower", "upper", "error"]].isna().all(axis=None)
    assert table.likeliest == 4
    assert table.sentence == "2 of 10 features have a saliency above 0.5; 4 clusters"
    found.save(tmp_path / "fit.nc")
    assert str(sb.load(tmp_path / "fit.nc").features()) == str(table)
    assert found.picture == "features"
    bars = found.plot().axes[0].patches
    np.testing.assert_allclose([bar.get_width() for bar in bars], table.frame["saliency"])


def test_features_of_draws():
    x, _ = four_gaussians(0, 60)
    engine = sb.BlockedGibbs(num_warmup=20, num_samples=40, num_chains=2)
    fit = sb.fit("feature_saliency", x[:, :4], num_clusters=4, selection="sparse", engine=engine)
    table, axes = fit.features(), fit.plot().axes
    draws = fit.tree["posterior"]["saliency"].to_numpy().reshape(-1, 4)
    np.testing.assert_allclose(table.frame["upper"], np.quantile(draws, 0.975, axis=0))
    np.testing.assert_allclose(table.frame["probability"], (draws > 0.5).mean(axis=0))
    assert table.num_clusters.sum() == pytest.approx(1.0)
    assert len(axes) == 1 + (len(table.num_clusters) > 1)


def test_other_models_have_no_saliencies():
    fit = sb.fit("gmm", four_gaussians(0, 30)[0][:, :2], num_clusters=2)
    with pytest.raises(ValueError, match="no saliencies of features; fit 'feature_saliency'"):
        fit.features()


def test_missing_values_are_integrated_out_and_imputed(tmp_path):
    x, _ = four_gaussians(2, 250)
    x = x[:, :4]
    gaps = np.random.default_rng(0).uniform(size=x.shape) < 0.15
    table = np.where(gaps, np.nan, x)
    engine = sb.ComponentwiseEM(num_restarts=2)
    fit = sb.fit(
        "feature_saliency", table, num_clusters=8, engine=engine, feature_names=["a", "b", "c", "d"]
    )
    assert fit.features().frame["saliency"]["a":"b"].min() > 0.9
    found = fit.imputed()
    assert len(found) == gaps.sum()
    row, column = np.nonzero(gaps)
    np.testing.assert_array_equal(found["row"], row)
    assert list(found["feature"][:3]) == [["a", "b", "c", "d"][k] for k in column[:3]]

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
    np.testing.assert_array_equal(sb.load(tmp_path / "fit.nc").predict(table), fit.predict(table))
    for one in (fit.predict_proba(table), fit.log_prob(table)):
        assert np.isfinite(one).all()
    with pytest.raises(ValueError, match="x has missing or infinite values in 1 of 250 rows"):
        sb.fit(
            "feature_saliency", np.where(np.arange(250)[:, None] == 3, np.inf, x), num_clusters=2
        )
    with pytest.raises(ValueError, match="constant features, in columns 2"):
        sb.fit("feature_saliency", np.where(np.arange(4) == 2, np.nan, x), num_clusters=2)


def test_contrast_tells_clusters_apart_better():
    x = four_gaussians(0, 200)[0][:, :5]
    prior = {"selection": "sparse", "concentration": 1.0, "saliency_prior": (2.0, 2.0)}
    engine = sb.EM(num_restarts=2, max_steps=200)
    fit = sb.fit("feature_saliency", x, num_clusters=4, engine=engine, **prior)
    contrast = fit.contrast_saliencies().to_numpy()
    p = {name: jnp.asarray(value) for name, value in fit.params.items()}

    def cost(rho):
        own = Salient(p["mean"], p["variance"], p["common_mean"], p["common_variance"], rho)
        joint = salient_densities(jnp.asarray(x), own) + jnp.log(p["weights"])[:, None]
        share = jax.nn.log_softmax(joint, axis=0)
        return -share[fit.responsibilities().argmax(axis=1), jnp.arange(200)].sum()

    assert cost(jnp.asarray(contrast)) < cost(p["saliency"]) - 1.0
    for feature in range(5):  # no coordinate can be moved to a lower cost
        for moved in (0.01, -0.01):
            tried = np.clip(contrast[feature] + moved, 1e-6, 1 - 1e-6)
            other = jnp.asarray(contrast).at[feature].set(tried)
            assert cost(other) >= cost(jnp.asarray(contrast)) - 1e-2
