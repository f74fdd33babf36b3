"""Variational inference over tables on disk, against the same in memory and exact posteriors."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from scipy import stats
from sidebayes.guides.engines.optimisers import moments
from sidebayes.guides.engines.variational import guide_search, streamed_svi
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture

import sidebayes
from sidebayes import streams

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

CENTRES = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 5.0]])
FEW = {"num_clusters": 3, "covariance": "diagonal", "progress": False}
PRIOR = 0.1
ENGINE = sidebayes.SVI(num_restarts=2, num_draws=400)
QUICK = sidebayes.SVI(num_restarts=1)
DEFAULTS = {name: getattr(streamed_svi, name) for name in ("_ROWS", "_STEP_ROWS")}
SAMPLE = streams._SAMPLE


def observed(x, mean):
    labels = LinkedCategorical(jnp.zeros(1), LabelGraph.build(None, len(x)))
    components = dist.Normal(mean, 1.0).expand([1, x.shape[1]]).to_event(1)
    numpyro.sample("x", LinkedMixture(labels, components), obs=x)


def normal(x: Annotated[ArrayLike, "points features"]):
    """Normals of unknown means and variance one."""
    prior = dist.Normal(1.0, PRIOR).expand([x.shape[1]]).to_event(1)
    observed(x, numpyro.sample("mean", prior))


def centred_first(x: Annotated[ArrayLike, "points features"]):
    """Rows less the mean of those that are shown."""
    prior = dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
    observed(x - x.mean(axis=0), numpyro.sample("mean", prior))


def prior_from_rows(x: Annotated[ArrayLike, "points features"]):
    """A prior about the mean of the rows that are shown."""
    prior = dist.Normal(x.mean(axis=0), 1.0).to_event(1)
    observed(x, numpyro.sample("mean", prior))


def without_labels(x: Annotated[ArrayLike, "points features"]):
    """No mixture."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("points", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1.0).expand([x.shape[1]]).to_event(1), obs=x)


@pytest.fixture(scope="module", autouse=True)
def _small():
    """Blocks of 500 rows, passes by 300, steps by 100; 600 rows are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sidebayes.data.scan._FEW", 1000)
        patch.setattr(streams, "_SAMPLE", 600)
        patch.setattr(streamed_svi, "_ROWS", 300)
        patch.setattr(streamed_svi, "_STEP_ROWS", 100)
        yield


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return CENTRES[rng.integers(3, size=2470)] + rng.normal(size=(2470, 2))


def written(folder, rows):
    path = folder / "points.parquet"
    pq.write_table(pa.table({"a": rows[:, 0], "b": rows[:, 1]}), path, row_group_size=250)
    return sidebayes.scan(path, columns=["a", "b"])


@pytest.fixture(scope="module")
def table(rows, tmp_path_factory):
    """Rows in the order of their first feature, which batches of neighbours would not stand for."""
    return written(tmp_path_factory.mktemp("table"), rows[np.argsort(rows[:, 0])])


def counted(model, table, engine, **given):
    """A fit of all rows, and its number of passes."""
    passes, one_pass = [], streamed_svi.TableDensity.whole
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            streamed_svi.TableDensity,
            "whole",
            lambda self, *given: passes.append(given) or one_pass(self, *given),
        )
        return sidebayes.fit(model, table, engine=engine, **given), len(passes)


@pytest.fixture(scope="module")
def whole(table):
    return counted("gmm", table, ENGINE, **FEW)


@pytest.fixture(scope="module")
def simple(table):
    return counted(normal, table, QUICK, progress=False)


def means_and_deviations(fit):
    """Means and deviations of the draws of means and weights, clusters in one order."""
    posterior = fit.tree["posterior"]
    draws = {name: posterior[name].to_numpy()[0] for name in ("mean", "weights")}
    order = np.lexsort(np.round(draws["mean"].mean(axis=0)).T)
    both = np.concatenate([draws["mean"][:, order].reshape(-1, 6), draws["weights"][:, order]], 1)
    return both.mean(axis=0), both.std(axis=0)


def test_the_posterior_is_that_of_all_rows(rows, whole):
    found, expected = whole[0], sidebayes.fit("gmm", rows, engine=ENGINE, **FEW)
    assert "600 of 2470 points" in repr(found)
    assert found.verdict[0] == "good"
    (mean, deviation), (mean_of, deviation_of) = map(means_and_deviations, (found, expected))
    np.testing.assert_allclose((mean - mean_of) / deviation_of, 0.0, atol=0.3)
    np.testing.assert_allclose(deviation / deviation_of, 1.0, atol=0.2)
    ours, theirs = found.log_evidence, expected.log_evidence
    assert ours.kind == theirs.kind == "bound"
    assert abs(ours.value - theirs.value) < 4 * np.hypot(ours.standard_error, theirs.standard_error)
    # all rows were looked at, and windows of the search are bounds too
    assert "estimated" not in found.verdict[1]
    assert found.objective[0, -1] == pytest.approx(ours.value, abs=0.2)
    assert np.isfinite(found.tree["sample_stats"]["log_weight"]).all()


def exact_normal(x):
    """Mean and precision of the posterior of `normal`, and log evidence."""
    precision = len(x) + PRIOR**-2
    mean = (x.sum(axis=0) + PRIOR**-2) / precision
    at = stats.norm(mean, precision**-0.5).logpdf(mean).sum()
    prior = stats.norm(1.0, PRIOR).logpdf(mean).sum()
    return mean, precision, stats.norm(mean).logpdf(x).sum() + prior - at


def check_normal(found, x):
    mean, precision, evidence = exact_normal(x)
    draws = found.tree["posterior"]["mean"].to_numpy()[0]
    np.testing.assert_allclose((draws.mean(axis=0) - mean) * np.sqrt(precision), 0.0, atol=0.15)
    np.testing.assert_allclose(draws.std(axis=0) * np.sqrt(precision), 1.0, atol=0.1)
    assert found.log_evidence.value == pytest.approx(evidence, abs=1e-4)
    assert found.verdict[0] == "good"


def test_a_normal_mean_is_exact(tmp_path, monkeypatch):
    """Of 20,000 rows by default settings."""
    for name, value in DEFAULTS.items():
        monkeypatch.setattr(streamed_svi, name, value)
    monkeypatch.setattr(streams, "_SAMPLE", SAMPLE)
    x = np.random.default_rng(1).normal([0.3, -0.2], 1.0, size=(20_000, 2))
    engine = sidebayes.SVI(num_restarts=1)
    check_normal(sidebayes.fit(normal, written(tmp_path, x), engine=engine, progress=False), x)


def test_the_centre_need_not_be_the_mode(rows, table, monkeypatch):
    """Without Newton's steps it is the mode of the sample, some deviations away."""
    monkeypatch.setattr(streamed_svi, "_PASSES", 1)
    check_normal(sidebayes.fit(normal, table, engine=QUICK, progress=False), rows)


def test_that_some_of_the_rows_were_asked_is_said(table, monkeypatch):
    monkeypatch.setattr(streamed_svi, "_LOOKED", 1)
    monkeypatch.setattr(streamed_svi, "_LOOK_ROWS", 60)
    part = sidebayes.fit(normal, table, engine=QUICK, progress=False)
    assert "estimated from 960 of 2470 rows, each to within " in part.verdict[1]
    assert part.verdict[0] == "good"
    monkeypatch.setattr(streamed_svi, "_ROUGH", -1.0)
    rough = sidebayes.fit(normal, table, engine=QUICK, progress=False)
    assert rough.verdict[0] == "bad"
    assert "too rough to judge them: fewer num_draws" in rough.verdict[1]


def test_some_of_the_rows_tell_nearly_as_much(table, whole, monkeypatch):
    whole, _ = whole
    monkeypatch.setattr(moments, "visit", None)  # of the sample alone
    monkeypatch.setattr(streamed_svi, "_LOOKED", 1)
    monkeypatch.setattr(streamed_svi, "_LOOK_ROWS", 60)
    part = sidebayes.fit("gmm", table, engine=ENGINE, **FEW)
    assert "estimated from 960 of 2470 rows, each to within 0." in part.verdict[1]
    first, second = (fit.tree["sample_stats"]["log_weight"].to_numpy()[0] for fit in (whole, part))
    apart = second - first
    said = float(part.verdict[1].split("each to within ")[1].split(";")[0])
    assert apart.std() == pytest.approx(said, rel=0.4)
    errors = part.log_evidence.standard_error, whole.log_evidence.standard_error
    assert errors[0] > 3 * errors[1] > 0
    assert abs(apart.mean()) < 4 * errors[0]
    monkeypatch.setattr(streamed_svi, "_ROUGH", 1e-3)
    rough = sidebayes.fit("gmm", table, engine=ENGINE, **FEW)
    assert rough.verdict[0] == "bad"
    assert "too rough to judge them: fewer num_draws" in rough.verdict[1]


def test_a_seed_decides_the_run(table):
    engine = sidebayes.SVI(num_restarts=1, num_steps=200, batch_sets=50, num_draws=100)
    given = FEW | {"engine": engine, "dtype": "float32"}
    first, again, other = (sidebayes.fit("gmm", table, seed=seed, **given) for seed in (1, 1, 2))
    for name in ("mean", "variance"):
        np.testing.assert_array_equal(first.tree["posterior"][name], again.tree["posterior"][name])
    assert np.abs(first.params["mean"] - other.params["mean"]).max() > 1e-3
    assert "num_steps=200; raise it" in first.verdict[1]
    assert first.log_evidence.value == pytest.approx(other.log_evidence.value, abs=1.0)


@pytest.mark.parametrize("part", ["passes", "steps"])
def test_a_run_goes_on_where_it_was_interrupted(table, request, tmp_path, monkeypatch, part):
    one_pass, draw, passes = streamed_svi.TableDensity.whole, guide_search.GuideSearch.draw, []
    # three passes and more need a density that is less simple
    model, engine = ("gmm", ENGINE) if part == "passes" else (normal, QUICK)
    given = FEW if part == "passes" else {"progress": False}
    expected, number = request.getfixturevalue("whole" if part == "passes" else "simple")
    assert number > (3 if part == "passes" else 0)

    def counted(self, *given):
        passes.append(given)
        if breaks == "passes" and len(passes) == 3:
            raise KeyboardInterrupt
        return one_pass(self, *given)

    def drawn(self, *given):
        if breaks == "steps":
            raise KeyboardInterrupt
        return draw(self, *given)

    monkeypatch.setattr(streamed_svi.TableDensity, "whole", counted)
    monkeypatch.setattr(guide_search.GuideSearch, "draw", drawn)
    breaks = part
    kept = given | {"checkpoint": tmp_path / "state", "checkpoint_every": 0}
    with pytest.raises(KeyboardInterrupt):
        sidebayes.fit(model, table, engine=engine, **kept)
    breaks = None
    found = sidebayes.fit(model, table, engine=engine, **kept)
    # none is done again but the one that was interrupted
    assert len(passes) == number + (part == "passes")
    for site in expected.params:
        np.testing.assert_array_equal(
            found.tree["posterior"][site], expected.tree["posterior"][site]
        )
    np.testing.assert_array_equal(found.objective, expected.objective)
    assert found.log_evidence == expected.log_evidence


def test_a_table_that_is_kept_whole_is_like_an_array(rows, table, monkeypatch):
    monkeypatch.setattr(streams, "_SAMPLE", 2470)
    ordered = rows[np.argsort(rows[:, 0])]
    found, expected = (sidebayes.fit("gmm", x, engine=ENGINE, **FEW) for x in (table, ordered))
    assert not found.run.sample_of
    np.testing.assert_array_equal(found.params["mean"], expected.params["mean"])
    assert found.log_evidence == expected.log_evidence


@pytest.mark.parametrize("given", ["far off", "another fit"])
def test_values_given_replace_the_search_for_a_mode(table, request, monkeypatch, given):
    model, engine, options = "gmm", ENGINE, FEW
    if given == "far off":
        model, engine, options = normal, QUICK, {"progress": False}
    start = expected = request.getfixturevalue("simple" if given == "far off" else "whole")[0]
    if given == "far off":
        start = {"mean": expected.params["mean"] + 0.3}
    monkeypatch.setattr(streamed_svi, "ascend", None)
    fit = sidebayes.fit(model, table, engine=engine, init=start, **options)
    errors = [one.log_evidence.standard_error for one in (fit, expected)]
    gap = fit.log_evidence.value - expected.log_evidence.value
    assert abs(gap) < 4 * np.hypot(*errors) + 1e-4
    np.testing.assert_allclose(fit.params["mean"], expected.params["mean"], atol=0.01)


@pytest.mark.parametrize(
    ("model", "start", "said"),
    [
        (centred_first, np.zeros(2), "no sum over rows"),
        (prior_from_rows, np.zeros(2), "depends on the rows"),
        (without_labels, 0.0, "one LinkedMixture"),
    ],
)
def test_models_that_need_all_rows_are_refused(model, start, said, table):
    """Values are given, so that no mode is searched for."""
    with pytest.raises(ValueError, match=said):
        sidebayes.fit(model, table, engine="svi", init={"mean": start}, progress=False)


def test_links_are_refused(table):
    links = sidebayes.Links.from_pairs([(0, 1)], [True])
    with pytest.raises(ValueError, match="neither links"):
        sidebayes.fit("ppc", table, links, num_clusters=2, engine="svi", progress=False)


def test_what_cannot_be_computed_is_an_error(table, monkeypatch):
    whole = streamed_svi.TableDensity.whole

    def infinite(self, point, advance):
        return np.inf - np.inf, whole(self, point, advance)[1]

    monkeypatch.setattr(streamed_svi.TableDensity, "whole", infinite)
    with pytest.raises(sidebayes.FitError, match="not finite where the search begins"):
        sidebayes.fit(normal, table, engine=QUICK, progress=False)
