"""Scores of fits are compared where their likelihoods are of the same data, known classes included."""

import json
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.typing import ArrayLike
from sidebayes.diagnostics.comparison.compare import compare_fits
from sidebayes.diagnostics.comparison.scored import Scored
from sidebayes.guides.engines.problem.declared import values_beside
from sidebayes.guides.engines.problem.density import abstract_trace

import sidebayes as sb
from sidebayes.runs.arguments import read_run
from tests.diagnostics.comparison.test_reference import sampled
from tests.support.draws import at_one
from tests.support.effects import simulate_joint

RNG = np.random.default_rng(0)
X = np.concatenate([RNG.normal(-4, 1, (20, 2)), RNG.normal(4, 1, (20, 2))])
CLASSES = np.repeat([0, 1], 20)
SOME = np.where(np.arange(40) % 4 == 0, CLASSES, -1)
OTHERS = np.where(np.arange(40) % 4 == 1, CLASSES, -1)
DIRECTIONS = X / np.linalg.norm(X, axis=1, keepdims=True)
LINKS = sb.simulate_links(CLASSES, 10, seed=0)
MASK = sb.PartialLabels(np.where(SOME[:, None] >= 0, np.eye(2)[SOME], 1).astype(bool))


def beside(method, *data, **options):
    """What a likelihood is of beside its data, by kind, without a fit."""
    run = read_run(method, data, {"num_clusters": 2} | options, None)
    with run.precision:
        trace = abstract_trace(run.problem)
        sites = [n for n, s in trace.items() if s["type"] == "sample" and s["is_observed"]]
        found = values_beside(run.problem, sites)
    return {kind: value.tolist() for kind, value in found.items()}


KNOWN = {"known classes": (np.eye(2, dtype=bool)[SOME] & (SOME >= 0)[:, None]).tolist()}


@pytest.mark.parametrize(
    ("method", "x", "options"),
    [
        ("moe", X, {"num_classes": 2}),
        ("moe", X, {"num_classes": 3, "label_noise": 0.1, "num_clusters": 4}),
        ("moe", X, {"num_classes": 2, "known": MASK}),
        ("pfgl", X, {"num_classes": 2, "prototypes": [(0, 0), (1, 1)]}),
        ("sphere_mixture", DIRECTIONS, {"num_clusters": 3}),
        ("feature_saliency", X, {}),
    ],
)
def test_known_classes_are_the_same_statement_in_every_method(method, x, options):
    assert beside(method, x, **({"known": SOME} | options)) == KNOWN
    assert beside(method, x, **(options | {"known": np.full(40, -1)})) == {}


@pytest.mark.parametrize("posterior", ["exact", "partition"])
def test_a_target_with_known_classes(posterior):
    own = {"source": sb.fit_source(X, CLASSES, num_components=2), "posterior": posterior}
    run = read_run("domain_adaptation", (X, SOME), own, None)
    with run.precision:
        found = values_beside(run.problem, ["x"])
    assert {kind: value.tolist() for kind, value in found.items()} == KNOWN
    ignored = read_run("domain_adaptation", (X, SOME), own | {"strength": 0.0}, None)
    with ignored.precision:
        assert values_beside(ignored.problem, ["x"]) == {}


def test_subjects_of_known_class():
    subjects, time = np.repeat(np.arange(10), 4), np.tile(np.arange(4.0), 10)
    columns = np.column_stack([np.ones(40), time])
    given = X[:, 0], columns, columns[:, :1], subjects
    found = beside("mixed_effects_mixture", *given, known=[0, 1, *[-1] * 8])
    assert found == {"known classes": [[True, False], [False, True], *[[False, False]] * 8]}


def test_what_was_measured_of_trajectories():
    given = X[:, 0], np.tile(np.arange(4.0), 10), np.repeat(np.arange(10), 4)
    assert beside("trajectories", *given) == {}
    assert beside("trajectories", *given, observed=np.ones(40)) == {}
    found = beside("trajectories", *given, observed=(np.arange(40) != 1).astype(float))
    assert found == {"what was measured": [False, True]}


def test_links_as_statements_are_more_than_links_as_a_field():
    assert beside("ppc", X, LINKS) == {}
    assert beside("ppc", X, LINKS, reading="relation") == {"links": [True]}
    assert beside("pairwise_gp", X, LINKS) == {"links alone": [True]}


def test_censored_times():
    table, persons = simulate_joint(10)
    data = sb.design("y ~ year + (1 | who)", table).survival("Surv(years, died) ~ 1", persons)
    run = read_run("joint_survival", (), data, None)
    with run.precision:
        found = values_beside(run.problem, ["y", "time"])
    censored = np.asarray(data["event"]) == 0
    assert found["events"].tolist() == censored[: 1 + np.flatnonzero(censored)[-1]].tolist()


Rows = Annotated[ArrayLike, "rows"]


def own(x: Rows, hidden: Rows, censored: Rows):
    rate = numpyro.sample("rate", dist.HalfNormal(1.0))
    law = dist.Exponential(rate).expand([len(x)])
    with numpyro.handlers.mask(mask=jnp.asarray(hidden) == 0):
        numpyro.sample("x", dist.RightCensoredDistribution(law, jnp.asarray(censored) > 0), obs=x)


@pytest.mark.parametrize(("hidden", "censored"), [(0, 0), (1, 0), (0, 2), (1, 2)])
def test_masks_and_censored_values_of_own_models(hidden, censored):
    rows = np.arange(5)
    run = read_run(own, (np.ones(5), 1.0 * (rows < hidden), 1.0 * (rows < censored)), {}, "map")
    with run.precision:
        found = values_beside(run.problem, ["x"])
    numbers = {kind: len(value) for kind, value in found.items()}
    assert numbers == {k: n for k, n in {"masks": hidden, "events": censored}.items() if n}


def told(known, num_clusters=2):
    return sb.fit("moe", X, known, num_clusters=num_clusters, num_classes=2, progress=False)


@pytest.fixture(scope="module")
def some():
    return told(SOME)


def test_bic_is_not_compared_over_other_known_classes(some):
    none = sb.fit("gmm", X, num_clusters=2, progress=False)
    table = compare_fits({"none": none, "some": some, "others": told(OTHERS)})
    assert "BIC prefers" not in table.headline
    assert (
        "BIC cannot be compared between none and some and others: they are of other known classes; give all "
        "fits the same known classes, or compare .log_prob(x) of rows that none of them has seen, which is "
        "the density of the rows alone." in table.notes
    )
    assert table.frame["bic"].notna().all()


def test_bic_is_compared_over_the_same_known_classes(some):
    table = compare_fits({"some": some, "again": told(SOME, 3)})
    assert table.headline.startswith("BIC prefers some, by ")
    assert not any("cannot be compared" in note for note in table.notes)


@pytest.fixture(scope="module")
def known():
    """Fit that knows its parameters."""
    at = {"weights": [0.5, 0.5], "mean": [[-4.0, -4.0], [4.0, 4.0]], "covariance": [np.eye(2)] * 2}
    engine = at_one(at | {"class_table": [[0.9, 0.1], [0.1, 0.9]]})
    sizes = {"num_clusters": 2, "num_classes": 2}
    return sb.fit("moe", X, SOME, engine=engine, progress=False, **sizes)


def test_log_density_of_new_rows_is_of_the_rows_alone(known):
    """As the note says."""
    alone = known.log_prob(X)
    joint = np.asarray(known.unit_terms)[0, 0]
    np.testing.assert_allclose(alone[SOME < 0], joint[SOME < 0], rtol=1e-9)
    assert (alone[SOME >= 0] > joint[SOME >= 0]).all()


def test_files_keep_what_is_scored(known, tmp_path):
    known.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc", engine=known.run.engine)
    assert Scored.of(again) == Scored.of(known)


def stated(number, **kinds):
    """Draws of one data set whose density is of more than that."""
    fit = sampled(number)
    fit.tree["log_likelihood"].attrs["beside"] = json.dumps(kinds)
    fit.tree["fit_info"].attrs.update(log_evidence=-50.0 - number, log_evidence_kind="estimate")
    return fit


def test_leaving_out_and_evidence_are_not_compared_over_other_statements():
    fits = {"a": stated(1), "b": stated(2, events="3f")}
    table = compare_fits(fits)
    assert (
        "LOO elpd cannot be compared between a (36 units) and b (36 units): they score other events; give "
        "all fits the same events." in table.notes
    )
    assert (
        "Log evidence cannot be compared between a and b: they are of other events; give all fits the same "
        "events." in table.notes
    )
    assert not any(
        "cannot be compared" in note
        for note in compare_fits({"a": stated(1, events="3f"), "b": stated(2, events="3f")}).notes
    )


def test_other_readings_of_the_same_links():
    said = str(compare_fits({"field": stated(1), "statements": stated(2, links="3f")}))
    assert "they score other readings of links; .loo(unit='row') scores rows" in said


def test_other_links_of_the_same_data():
    said = str(compare_fits({"a": stated(1, links="1a"), "b": stated(2, links="3f")}))
    assert "they score other links; .loo(unit='row') scores rows" in said
    assert "Log evidence cannot be compared between a and b: they are of other links;" in said


def test_evidence_of_other_data_is_not_compared():
    other = stated(2)
    other.tree["observed_data"]["x"] = other.tree["observed_data"]["x"] + 1
    said = str(compare_fits({"a": stated(1), "b": other}))
    assert "Log evidence cannot be compared between a and b: they are of other data." in said
