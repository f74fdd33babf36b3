"""Saliencies of counts, categories and ordered levels beside normal features."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sidebayes.guides.engines.base import Problem
from sidebayes.models.blocks.saliency import salient_mixed
from sidebayes.models.blocks.saliency.kinds import Columns, Kind
from sidebayes.models.blocks.saliency.passes import Salient
from sidebayes.models.blocks.saliency.salient_mixed import SalientMixed
from sidebayes.models.feature_saliency import feature_saliency

import sidebayes as sb

KINDS = ("category:3", "normal", "count", "ordered:5")


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def random_density(num_clusters=2, seed=0):
    rng = np.random.default_rng(seed)
    normal = [rng.normal(size=(num_clusters, 1)), rng.uniform(0.5, 2, (num_clusters, 1))]
    common = [rng.normal(size=1), rng.uniform(0.5, 2, 1), rng.uniform(0.2, 0.8, 4)]
    parts = [
        (rng.dirichlet(np.ones(3), (num_clusters, 1)), rng.dirichlet(np.ones(3), 1)),
        (rng.uniform(1, 5, (num_clusters, 1)), rng.uniform(1, 5, 1)),
        (rng.uniform(0.1, 0.9, (num_clusters, 1)), rng.uniform(0.1, 0.9, 1)),
    ]
    parts = tuple(tuple(map(jnp.asarray, pair)) for pair in parts)
    return SalientMixed(Salient(*map(jnp.asarray, normal + common)), parts, Columns.of(KINDS, 4))


def random_rows(size=6, seed=1):
    rng = np.random.default_rng(seed)
    x = np.column_stack(
        [
            rng.integers(3, size=size),
            rng.normal(size=size),
            rng.poisson(3, size=size),
            rng.integers(5, size=size),
        ]
    ).astype(float)
    x[0, 0] = x[1, 2] = x[2, 3] = x[3, 1] = np.nan
    return x


def tables(density, x):
    """Densities of values by scipy, (rows, clusters or one, features), and one where they are missing."""
    own, params = density.features, [list(map(np.asarray, pair)) for pair in density.params]
    known, filled = ~np.isnan(x), np.nan_to_num(x)
    found = []
    for common in (0, 1):
        category, rate, chance = (pair[1][None] if common else pair[0] for pair in params)
        mean = np.asarray(own.common_mean[None] if common else own.mean)
        variance = np.asarray(own.common_variance[None] if common else own.variance)
        columns = [
            category[:, 0, filled[:, 0].astype(int)].T,
            stats.norm(mean[:, 0], np.sqrt(variance[:, 0])).pdf(filled[:, 1:2]),
            stats.poisson(rate[:, 0]).pmf(filled[:, 2:3]),
            stats.binom(4, chance[:, 0]).pmf(filled[:, 3:4]),
        ]
        found.append(np.where(known[:, None], np.stack(columns, axis=-1), 1.0))
    return found


@pytest.mark.parametrize("chunk", [4, 4096])
def test_density_sums_over_which_features_are_relevant(monkeypatch, chunk):
    monkeypatch.setattr(salient_mixed, "CHUNK", chunk)  # six rows in two pieces, or in one
    density, x = random_density(), random_rows()
    within, common = tables(density, x)
    rho = np.asarray(density.features.saliency)
    expected = np.zeros((6, 2))
    for relevant in product((0, 1), repeat=4):
        chance = np.prod(np.where(relevant, rho, 1 - rho))
        expected += chance * np.where(relevant, within, common).prod(axis=2)
    by_row, by_cluster = jax.jit(lambda d, x: (d.log_prob(x[:, None]), d.by_cluster(x)))(density, x)
    np.testing.assert_allclose(by_row, np.log(expected))
    np.testing.assert_allclose(by_cluster, np.log(expected).T)


@pytest.mark.parametrize("chunk", [4, 4096])
def test_moments_are_the_sums(monkeypatch, chunk):
    monkeypatch.setattr(salient_mixed, "CHUNK", chunk)  # six rows in two pieces, or in one
    density, x = random_density(), random_rows()
    within, common = tables(density, x)
    rho = np.asarray(density.features.saliency)
    share = np.random.default_rng(2).dirichlet(np.ones(2), 6)
    chance = rho * within / (rho * within + (1 - rho) * common)
    relevant = chance * share[:, :, None] * ~np.isnan(x)[:, None]
    others = ~np.isnan(x) - relevant.sum(axis=1)
    visit = jax.jit(lambda *given: SalientMixed.moments(*given))  # traced anew for each chunk
    found = jax.tree.map(np.asarray, visit(density, x, share.T, np.zeros(1)))
    np.testing.assert_allclose(found.on, relevant.sum(axis=(0, 1)))
    np.testing.assert_allclose(found.off, others.sum(axis=0))
    np.testing.assert_allclose(found.certainty, (relevant * chance).sum(axis=(0, 1)))
    filled = np.nan_to_num(x)
    for column, own in ((2, found.kinds[1]), (3, found.kinds[2])):
        expected = [
            *(relevant[:, :, column].T @ filled[:, column]),
            others[:, column] @ filled[:, column],
        ]
        np.testing.assert_allclose(own[:, 0, 0], expected)
    for level in range(3):
        at = filled[:, 0] == level
        expected = [*relevant[at, :, 0].sum(axis=0), others[at, 0].sum()]
        np.testing.assert_allclose(found.kinds[0][:, 0, level], expected)

    labels = np.array([0, 1, 1, 0, 1, 0])
    told = jax.jit(SalientMixed.relevance)(density, x, labels)
    np.testing.assert_allclose(told, chance[np.arange(6), labels])


def test_draws_have_the_moments_of_the_density():
    density = random_density()
    draw = jax.jit(SalientMixed.sample, static_argnums=2)
    draws = np.asarray(draw(density, jax.random.key(0), (20_000,)))
    rho = np.asarray(density.features.saliency)
    features = jax.tree.map(np.asarray, density.features)
    (category, common), (rate, common_rate), (chance, common_chance) = jax.tree.map(
        np.asarray, density.params
    )
    for column, own, other in (
        (1, features.mean, features.common_mean),
        (2, rate, common_rate),
        (3, 4 * chance, 4 * common_chance),
        (0, category @ np.arange(3), common @ np.arange(3)),
    ):
        expected = rho[column] * own[:, 0] + (1 - rho[column]) * other[0]
        error = draws[..., column].std(axis=0) / np.sqrt(len(draws))
        assert (abs(draws[..., column].mean(axis=0) - expected) < 5 * error).all()


@pytest.mark.parametrize(
    ("kind", "params", "log_prior", "information"),
    [
        (Kind("count", 0, (0,)), [2.5], stats.expon(scale=3.0).logpdf(2.5), 1 / 2.5),
        (Kind("ordered", 5, (0,)), [0.3], 0.0, 4 / (0.3 * 0.7)),
        (Kind("category", 3, (0,)), [[0.2, 0.3, 0.5]], np.log(2.0), 1 / (0.2 * 0.3 * 0.5)),
    ],
    ids=["count", "ordered", "category"],
)
def test_message_length_of_a_density(kind, params, log_prior, information):
    number = kind.num_parameters
    expected = -log_prior + 0.5 * np.log(information) + number / 2 * (1 + np.log(1 / 12))
    length = jax.jit(lambda at: kind.length(at, jnp.array([3.0]))[0])
    assert float(length(jnp.array(params))) == pytest.approx(expected)

    # and the step of a message goes to where data and length have their least sum
    data = np.array([[1.0, 0.0, 2.0]]).T

    @jax.jit
    def mode():
        found = kind.posterior(kind.statistics(data, jnp.ones_like(data)), jnp.array([3.0]))
        return kind.mode(found, 0.5)

    best = np.asarray(mode())

    @jax.jit
    def cost(at):
        return kind.length(at, jnp.array([3.0]))[0] - kind.log_prob(data, at).sum()

    for move in (0.02, -0.02):
        near = best + (move if number == 1 else move * np.array([[1.0, -1.0, 0.0]]))
        assert cost(near) > cost(best)


def simulated(size=300, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.integers(3, size=size)
    levels = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]])
    x = np.column_stack(
        [
            np.array([0, 4, 8])[z] + rng.normal(size=size),
            rng.normal(size=size),
            rng.poisson(np.array([1, 5, 12])[z]),
            rng.poisson(3, size=size),
            [rng.choice(3, p=levels[k]) for k in z],
            rng.integers(3, size=size),
            rng.binomial(4, np.array([0.1, 0.5, 0.9])[z]),
            rng.binomial(4, 0.4, size=size),
        ]
    ).astype(float)
    kinds = [kind for kind in ("normal", "count", "category:3", "ordered:5") for _ in range(2)]
    return x, z, tuple(kinds)


def test_relevant_features_of_every_kind_are_found(tmp_path):
    x, z, kinds = simulated()
    gaps = np.random.default_rng(1).uniform(size=x.shape) < 0.05
    table = np.where(gaps, np.nan, x)
    engine = sb.ComponentwiseEM(num_restarts=1)
    options = {"num_clusters": 6, "kinds": kinds, "truth": z, "progress": False}
    fit = sb.fit("feature_saliency", table, engine=engine, **options)
    assert fit.status.converged
    assert (fit.params["weights"] > 0).sum() == 3
    np.testing.assert_array_equal(fit.features().frame["saliency"].to_numpy() > 0.5, [1, 0] * 4)
    assert float(sb.compare({"fit": fit}).frame["accuracy"].item()) > 0.95

    found = fit.imputed()
    assert len(found) == gaps.sum()
    category = np.isin(found["feature"], (4, 5))
    assert found.loc[category, "mean"].isna().all()
    assert found.loc[~category, "level"].isna().all()
    far = ((x[gaps] - found["mean"]) / found["sd"])[~category]
    assert abs(np.mean(far**2) - 1) < 5 * np.sqrt(3 / len(far))
    told = found[found["feature"] == 4]
    agree = (told["level"] == x[told["row"], 4]).mean()
    error = np.sqrt(0.25 / len(told))
    assert abs(agree - told["probability"].mean()) < 4 * error
    fit.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    np.testing.assert_array_equal(again.predict(table), fit.labels())


@pytest.mark.parametrize("columns", [slice(None), slice(4, 8)], ids=["all", "without normal"])
def test_partial_labels_keep_their_clusters(columns):
    x, z, kinds = simulated()
    known = np.where(np.arange(300) < 60, z, -1)
    engine = sb.ComponentwiseEM(num_restarts=1)
    fit = sb.fit(
        "feature_saliency",
        x[:, columns],
        known=known,
        num_clusters=5,
        kinds=kinds[columns],
        engine=engine,
        progress=False,
    )
    assert (fit.params["weights"][:3] > 0).all()
    np.testing.assert_array_equal(fit.labels()[:60], z[:60])
    assert np.mean(fit.labels()[60:] == z[60:]) > 0.8


def latent_classes(x, prob, weights, steps=3000, tol=1e-13):
    """EM of latent class analysis, by itself: prob (classes, items, levels)."""
    hot = np.eye(prob.shape[2])[x.astype(int)]
    before = -np.inf
    for _ in range(steps):
        joint = np.log(weights) + np.einsum("nil,kil->nk", hot, np.log(np.maximum(prob, 1e-12)))
        top = joint.max(axis=1, keepdims=True)
        total = top[:, 0] + np.log(np.exp(joint - top).sum(axis=1))
        if total.sum() - before < tol * abs(before):
            break
        before = total.sum()
        share = np.exp(joint - total[:, None])
        weights = share.mean(axis=0)
        prob = np.einsum("nk,nil->kil", share, hot) / share.sum(axis=0)[:, None, None]
    return total.sum(), prob, weights


def test_categories_whose_saliencies_are_one_are_latent_class_analysis():
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.ones(3) / 2, (2, 5))
    z = rng.integers(2, size=400)
    x = np.array([[rng.choice(3, p=truth[k, item]) for item in range(5)] for k in z], float)
    fit = sb.fit(
        "feature_saliency",
        x,
        num_clusters=2,
        kinds=("category:3",) * 5,
        selection="sparse",
        concentration=1.0,
        saliency_prior=(1e12, 1.0),
        engine=sb.EM(num_restarts=4, tol=1e-12, max_steps=5000),
        progress=False,
    )
    best = max(
        (latent_classes(x, rng.dirichlet(np.ones(3), (2, 5)), np.full(2, 0.5)) for _ in range(4)),
        key=lambda one: one[0],
    )
    order = np.argsort(fit.params["weights"]), np.argsort(best[2])
    np.testing.assert_allclose(fit.params["weights"][order[0]], best[2][order[1]], atol=1e-4)
    np.testing.assert_allclose(fit.params["category_3"][order[0]], best[1][order[1]], atol=1e-3)
    assert float(fit.log_prob(x).sum()) == pytest.approx(best[0], abs=1e-4)


def mine(x, *, num_clusters):
    """Not the library's own, so that engines compare its updates with its density."""
    feature_saliency(
        x,
        num_clusters=num_clusters,
        selection="sparse",
        concentration=2.0,
        saliency_prior=(2.0, 3.0),
        kinds=KINDS,
    )


@pytest.mark.parametrize(
    "engine", [sb.EM(num_restarts=2, max_steps=40), sb.BlockedGibbs(3, 3, 1)], ids=["em", "gibbs"]
)
def test_updates_agree_with_the_density(engine):
    x = random_rows(60)
    found = engine.run(
        Problem(mine, (jnp.asarray(x),), {"num_clusters": 3}), seed=0, progress=False
    )
    assert np.isfinite(found.sample_stats["lp"]).all()
    if engine.name == "em":
        climb = found.objective[0]
        gains = np.diff(climb[np.isfinite(climb)])
        assert (gains > -1e-9 * abs(climb[0])).all()


def test_what_is_no_kind_is_said():
    x = random_rows(20)

    def fit(kinds, table=x, **options):
        return sb.fit("feature_saliency", table, num_clusters=2, kinds=kinds, **options)

    with pytest.raises(ValueError, match=r"kinds\[1\] = 'gamma'; expected 'normal', 'count', 'cat"):
        fit(("normal", "gamma", "count", "count"))
    with pytest.raises(ValueError, match="kinds has 2 entries, and x has 4 columns"):
        fit(("normal", "count"))
    with pytest.raises(TypeError, match="pass 'normal', or a sequence of text, one for"):
        fit("gamma")
    with pytest.raises(TypeError, match="kinds = 3; pass 'normal', or a sequence of text"):
        fit(3)
    with pytest.raises(ValueError, match="kinds has 1 entries"):
        fit(np.array(["normal"]))
    with pytest.raises(
        ValueError, match="value -?[0-9.]+ in column 1, whose kind is 'count'; its val"
    ):
        fit(("normal", "count", "count", "count"))
    with pytest.raises(
        ValueError, match="column 3, whose kind is 'category:2'; its values must be c"
    ):
        fit(("normal", "normal", "count", "category:2"))
    with pytest.raises(ValueError, match="kinds need x and a proper prior of means and variances"):
        fit(KINDS, prior="flat")


def frame():
    grade = pd.CategoricalDtype(["low", "mid", "high"], ordered=True)
    return pd.DataFrame(
        {
            "weight": [1.5, np.nan, 2.0, 0.1],
            "visits": pd.array([3, None, 0, 7], dtype="Int64"),
            "town": ["b", "a", None, "c"],
            "grade": pd.Categorical(["mid", None, "low", "high"], dtype=grade),
            "smokes": [True, False, True, True],
            "change": [-1, 2, 0, 3],
        }
    )


def test_kinds_are_those_of_the_columns():
    table = sb.mixed_table(frame())
    kinds = ("normal", "count", "category:3", "ordered:3", "category:2", "normal")
    assert table.kinds == kinds
    expected = [
        [1.5, 3, 1, 1, 1, -1],
        [np.nan, np.nan, 0, np.nan, 0, 2],
        [2.0, 0, np.nan, 0, 1, 0],
        [0.1, 7, 2, 2, 1, 3],
    ]
    np.testing.assert_array_equal(table.x, expected)
    assert table.levels[2:4] == (("a", "b", "c"), ("low", "mid", "high"))
    np.testing.assert_array_equal(table.at(frame().iloc[[3], ::-1]), table.x[3:])

    other = sb.mixed_table(frame(), {"visits": "ordered", "change": "category"})
    assert other.kinds[1] == "ordered:3"
    np.testing.assert_array_equal(other.x[:, 1], [1, np.nan, 0, 2])
    assert other.levels[5] == (-1, 0, 2, 3)
    with pytest.raises(ValueError, match="column 'town' has the level 'd', which is none of"):
        table.at(frame().assign(town="d"))
    with pytest.raises(ValueError, match=r"has the level \['a'\], which is none of"):
        table.at(frame().assign(town=[["a"]] * 4))
    with pytest.raises(
        ValueError, match=r"frame has no columns \['town'\]; pass those of the first"
    ):
        table.at(frame().drop(columns="town"))
    with pytest.raises(ValueError, match="kinds has 'gamma'; expected one of normal, count, categ"):
        sb.mixed_table(frame(), {"town": "gamma"})
    with pytest.raises(TypeError, match="column 'town' holds .* expected numbers; name its kind"):
        sb.mixed_table(frame(), {"town": "count"})
    with pytest.raises(ValueError, match="column 'one' has one level, 'a'; drop it"):
        sb.mixed_table(pd.DataFrame({"one": ["a", "a"]}))
    with pytest.raises(ValueError, match="column 'one' has one level, 3; drop it"):
        sb.mixed_table(pd.DataFrame({"one": [3, 3]}), {"one": "category"})
    polars = type("DataFrame", (), {"__module__": "polars.frame", "to_pandas": frame})()
    with pytest.raises(TypeError, match=r"frame is a polars.DataFrame; pass frame.to_pandas\(\)"):
        sb.mixed_table(polars)
    when = pd.date_range("2020", periods=20)
    with pytest.raises(
        TypeError, match="column 'when' holds dates or durations .* or name its kind"
    ):
        sb.mixed_table(pd.DataFrame({"when": when}))
    for other in (when.tz_localize("UTC"), when.to_period("D"), when.date, when - when[0]):
        with pytest.raises(TypeError, match="column 'when' holds dates or durations"):
            sb.mixed_table(pd.DataFrame({"when": other}))
    assert sb.mixed_table(pd.DataFrame({"when": when}), {"when": "ordered"}).kinds == (
        "ordered:20",
    )
    with pytest.warns(sb.SideBayesWarning, match="column 'id' has another level in each row"):
        sb.mixed_table(pd.DataFrame({"id": [f"no. {k}" for k in range(20)]}))
