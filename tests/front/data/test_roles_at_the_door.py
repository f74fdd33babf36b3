"""Data by role: what `fit` asks of them, and that they reach the model, the file and predictions."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.typing import ArrayLike
from sidebayes.models.ppc import ppc

import sidebayes
from sidebayes import (
    EM,
    MAP,
    Groups,
    LabelGraph,
    LinkedCategorical,
    LinkedMixture,
    Links,
    PartialLabels,
    fit,
)
from sidebayes.runs.arguments import read_run
from tests.probes.models import counts, growth, joint_survival, labelled, lines, shifted
from tests.support.draws import at_one, told

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 2))
EVENTS = RNG.poisson(3.0, 12)
KNOWN = np.array([0, 1, 2] + [-1] * 9)
SUBJECTS = np.repeat(list("abcdef"), 4)
TIMES = np.tile(np.arange(4.0), 6)
Y = TIMES + RNG.normal(size=24)
QUICK = EM(num_restarts=1, max_steps=3)
CLIMB = MAP(num_restarts=1, max_steps=20)
GAUSSIANS = {
    "weights": [0.4, 0.6],
    "mean": [[-1.0, 0.0], [1.0, 0.5]],
    "covariance": [[[1.0, 0.2], [0.2, 0.5]], [[2.0, 0.0], [0.0, 1.0]]],
}


def homeless(
    x: Annotated[ArrayLike, "points features"],
    links: Annotated[Links | LabelGraph | None, "patients"] = None,
):
    """Links between patients, of whom no data say how many there are."""
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("x", dist.Normal(mean, 1).expand(x.shape).to_event(2), obs=x)


def trends(
    y: Annotated[ArrayLike, "rows"],
    *,
    times: Annotated[ArrayLike, "rows"],
    num_clusters: int = 2,
):
    """Mixture of straight lines; the times are data by name only."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(num_clusters)))
    with numpyro.plate("clusters", num_clusters):
        slope = numpyro.sample("slope", dist.Normal(0.0, 3.0))
    labels = LinkedCategorical(jnp.log(weights), LabelGraph.build(None, len(y)))
    numpyro.sample("y", LinkedMixture(labels, dist.Normal(slope * times[:, None], 1.0)), obs=y)


def plain(x, known, *, num_clusters=2):
    """Nothing says that the classes are data."""


def private(x: Annotated[ArrayLike, "points features"], *, num_clusters: int):
    """Mixture of points that each have an offset of their own."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(num_clusters)))
    with numpyro.plate("clusters", num_clusters):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    with numpyro.plate("points", len(x)):
        offset = numpyro.sample("offset", dist.Normal(0.0, 0.1))
    density = dist.Normal(mean + offset[:, None], 1.0)
    labels = LinkedCategorical(jnp.log(weights), LabelGraph.build(None, len(x)))
    numpyro.sample("x", LinkedMixture(labels, density), obs=x[:, 0])


def without(values, *rows):
    lacking = values.astype(object)
    lacking[list(rows)] = None
    return lacking


CASES = {
    "too many data": (
        lambda: fit(counts, EVENTS, X, X),
        TypeError,
        r"counts takes 2 data by position, \['events', 'design'\]; got 3",
    ),
    "data without annotation": (
        lambda: fit(plain, X, PartialLabels(np.zeros(len(X), int))),
        TypeError,
        r"plain takes 1 data by position, \['x'\]; got 2.*annotate what else is data: known: Annotated",
    ),
    "a dict by position": (
        lambda: fit(plain, X, {"a": X}),
        TypeError,
        "got 2. Pass options by name, known=... for the dict, or its arrays as arguments of their own$",
    ),
    "too few data": (
        lambda: fit(growth, Y, TIMES),
        TypeError,
        "growth lacks data: subjects is missing or None, pass the group that each of the rows",
    ),
    "data by name missing": (
        lambda: fit(trends, Y),
        TypeError,
        r"times is missing or None, pass an array of shape \(rows,\)",
    ),
    "labels missing": (
        lambda: fit(labelled, X, num_clusters=2, num_classes=2),
        TypeError,
        "known is missing or None, pass the class of each of the points, -1 where",
    ),
    "all data missing": (
        lambda: fit(shifted, num_clusters=2),
        TypeError,
        "source is missing .*target is missing",
    ),
    "data given twice": (
        lambda: fit(counts, EVENTS, X, events=EVENTS),
        TypeError,
        r"\['events'\] by position and by name; pass each once",
    ),
    "tables of other lengths": (
        lambda: fit(growth, Y, TIMES[:-1], SUBJECTS),
        ValueError,
        "times has 23 rows and y has 24",
    ),
    "tables of other widths": (
        lambda: fit(shifted, X, X[:5, :1], num_clusters=2),
        ValueError,
        "target has 1 features and source has 2",
    ),
    "groups of other lengths": (
        lambda: fit(growth, Y, TIMES, SUBJECTS[:-1]),
        ValueError,
        "subjects has 23 rows and y has 24",
    ),
    "a table that has a row for each group": (
        lambda: survival(until=np.ones(5)),
        ValueError,
        "until has 5 subjects and subjects has 6",
    ),
    "a missing group": (
        lambda: fit(growth, Y, TIMES, without(SUBJECTS, 5)),
        ValueError,
        "subjects says no group for row 5; drop",
    ),
    "missing groups": (
        lambda: fit(growth, Y, TIMES, Groups(without(SUBJECTS, 7, 9, 11))),
        ValueError,
        "no group for row 7 and 2 others",
    ),
    "groups in a table": (
        lambda: fit(growth, Y, TIMES, SUBJECTS[:, None]),
        ValueError,
        r"subjects: .* shape \(24, 1\).*; pass the group of each",
    ),
    "labels of other lengths": (
        lambda: fit(labelled, X, KNOWN[:-1], num_clusters=2, num_classes=3),
        ValueError,
        "known has 11 points and x has 12",
    ),
    "labels that are no classes": (
        lambda: fit(labelled, X, KNOWN / 2, num_clusters=2, num_classes=3),
        TypeError,
        "known: labels must be integers",
    ),
    "a class too many": (
        lambda: fit(labelled, X, KNOWN, num_clusters=2, num_classes=2),
        ValueError,
        r"class 2 \(numbered from 0\), too many for num_classes = 2; pass num_classes=3 at least",
    ),
    "links of a dimension that nobody knows": (
        lambda: fit(homeless, X, Links.must_link([(0, 1)])),
        ValueError,
        "links joins patients, and no other data say how many",
    ),
    "links beyond the groups": (
        lambda: fit(lines, Y, TIMES, SUBJECTS, Links.must_link([(0, 6)]), num_clusters=2),
        ValueError,
        r"\(0, 6\) is out of range for 6",
    ),
    "more clusters than groups": (
        lambda: fit(lines, Y, TIMES, SUBJECTS, num_clusters=7),
        ValueError,
        "num_clusters = 7 for 6 points",
    ),
    "an option that is not there": (
        lambda: fit(growth, Y, TIMES, SUBJECTS, slope=True),
        TypeError,
        r"no option 'slope' \(did you mean 'slopes'\?\)",
    ),
    "a table for a list of numbers": (
        lambda: fit(counts, EVENTS[:, None], X),
        ValueError,
        r"events has shape \(12, 1\), expected \(rows,\); of one column pass events\[:, 0\]",
    ),
    "sets that are none": (
        lambda: fit("constraint_fit", X, num_clusters=2, must_groups=3),
        TypeError,
        "must_groups = 3; pass sets of points",
    ),
}


def survival(**data):
    data = {"until": np.linspace(0.2, 2.0, 6), "died": np.array([1.0, 0, 1, 1, 0, 1])} | data
    params = {"level": 0.0, "spread": 1.0, "noise": 1.0, "hazard": 0.0, "pull": 0.5}
    engine = at_one(params | {"effect": np.zeros(6)})
    return fit(joint_survival, Y, TIMES, SUBJECTS, **data, engine=engine), data


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said(case):
    call, error, message = CASES[case]
    with pytest.raises(error, match=message):
        call()


def test_no_links_are_none_for_any_model():
    assert fit(homeless, X, engine=CLIMB).links.num_links == 0
    for given in ((X, None), (X,)):
        assert fit("gmm", *given, links=None, num_clusters=2, engine=QUICK).method == "gmm"


def test_links_that_a_model_asks_for_may_be_left_out():
    def asking(x, links, *, num_clusters):
        ppc(x, links, num_clusters=num_clusters)

    found, plain = (told(model, (X,), GAUSSIANS, num_clusters=2) for model in (asking, "gmm"))
    assert found.unit_terms.shape[-1] == 12
    np.testing.assert_allclose(found.unit_terms, plain.unit_terms)
    np.testing.assert_allclose(found.predict_proba(X), plain.predict_proba(X))


def test_data_behind_an_option_are_passed_by_name():
    def between(x, num_clusters, links=None):
        ppc(x, links, num_clusters=num_clusters)

    links = Links.must_link([(0, 1)])
    found = told(between, (X, links), GAUSSIANS, num_clusters=2)
    expected = told("ppc", (X, links), GAUSSIANS, num_clusters=2)
    assert found.unit_terms.shape[-1] == 11  # two points are one unit
    np.testing.assert_allclose(found.unit_terms, expected.unit_terms)


def test_tables_are_frames_series_and_whole_numbers():
    design = pd.DataFrame((3 * X).astype(int), columns=["a", "b"])
    found = fit(counts, pd.Series(EVENTS), design, engine=CLIMB)
    again = fit(counts, EVENTS.astype(float), design.to_numpy(float), engine=CLIMB)
    np.testing.assert_array_equal(found.params["beta"], again.params["beta"])
    assert found.tree["observed_data"]["design"].dtype == float
    run = read_run("gmm", (design,), {"num_clusters": 2}, None)
    assert run.feature_names == ("a", "b")


def test_groups_are_names_or_numbers_and_come_back_from_a_file(tmp_path):
    params = {"beta": [0.5, 1.0], "spread": [0.8, 0.4], "noise": 0.5}
    found, numbered = (
        told(growth, (Y, TIMES, subjects), params)
        for subjects in (SUBJECTS, np.repeat(np.arange(6), 4))
    )
    assert found.unit_terms.shape[-1] == 6
    np.testing.assert_array_equal(found.unit_terms, numbered.unit_terms)
    found.save(tmp_path / "fit.nc")
    again = sidebayes.load(tmp_path / "fit.nc", model=growth, engine=found.config)
    np.testing.assert_array_equal(again.run.data["subjects"].codes, np.repeat(np.arange(6), 4))
    assert list(again.run.data["subjects"].names) == list("abcdef")
    new = TIMES[:8] + 1.0, TIMES[:8], ["z"] * 4 + ["y"] * 4
    np.testing.assert_array_equal(again.log_prob(*new), found.log_prob(*new))
    assert found.log_prob(*new).shape == (2,)


def test_data_by_name_only_work_everywhere(tmp_path):
    found = fit(trends, Y, times=TIMES, engine=EM(num_restarts=1))
    assert found.options["num_clusters"] == 2  # the model's own
    found.save(tmp_path / "fit.nc")
    again = sidebayes.load(tmp_path / "fit.nc", model=trends)
    p = found.params
    joint = np.log(p["weights"]) - 0.5 * (Y[:, None] - p["slope"] * TIMES[:, None]) ** 2
    expected = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    for one in (found, again):
        np.testing.assert_allclose(one.predict_proba(Y, times=TIMES), expected, rtol=1e-8)
        assert np.isfinite(one.kfold(3, progress=False).elpd)
        with pytest.raises(TypeError, match="takes 1 data by position"):
            one.predict(Y, TIMES)
        with pytest.raises(TypeError, match="times is missing"):
            one.predict(Y)
    later = found.log_prob(Y, times=TIMES[::-1])
    assert (
        np.abs(later - found.log_prob(Y, times=TIMES)).max() > 1.0
    )  # new times are those that count


def test_new_data_are_checked_by_role():
    params = {"weights": [0.5, 0.5], "intercept": [0, 1], "slope": [1, 0], "noise": [1, 1]}
    found = fit(lines, Y, TIMES, SUBJECTS, num_clusters=2, engine=at_one(params))
    with pytest.raises(ValueError, match="subjects has 7 rows and y has 8"):
        found.predict(Y[:8], TIMES[:8], SUBJECTS[:7])
    with pytest.raises(ValueError, match="no group for row 2"):
        found.predict(Y[:8], TIMES[:8], without(SUBJECTS[:8], 2))
    with pytest.raises(TypeError, match=r"\['num_clusters'\] are options; new data"):
        found.predict(Y[:8], TIMES[:8], SUBJECTS[:8], num_clusters=2)
    assert found.predict(Y[:8], TIMES[:8], SUBJECTS[:8]).shape == (2,)


def test_sites_of_single_units_have_no_other_data():
    found, data = survival()
    told = r"sites \['effect'\]"
    for size in (6, 5):  # as many subjects as in the fit are others all the same
        rows, per_subject = slice(4 * size), {n: v[:size] for n, v in data.items()}
        with pytest.raises(ValueError, match=f"{told} belong to single units"):
            found.log_prob(Y[rows], TIMES[rows], SUBJECTS[rows], **per_subject)
    with pytest.raises(ValueError, match=f"{told} change shape with the data"):
        found.kfold(2, progress=False)


def test_points_with_sites_of_their_own_are_not_predicted():
    params = {"weights": [0.5, 0.5], "mean": [-1.0, 1.0], "offset": np.zeros(12)}
    found = fit(private, X, num_clusters=2, engine=at_one(params))
    assert found.labels().shape == (12,)
    for asked in (found.predict, found.predict_proba, found.log_prob):
        for new in (X, X[:3]):
            with pytest.raises(ValueError, match=r"sites \['offset'\] belong to single units"):
                asked(new)


def test_data_observed_as_a_whole_are_not_held_out():
    """One joint density of all rows has no terms by row."""

    def joint(y: Annotated[ArrayLike, "rows"]):
        mean = numpyro.sample("level", dist.Normal(0.0, 10.0))
        every = dist.MultivariateNormal(jnp.full(len(y), mean), jnp.eye(len(y)))
        numpyro.sample("y", every, obs=y)

    found = fit(joint, EVENTS, engine=at_one({"level": 3.0}), progress=False)
    assert found.unit_terms.shape == (1, 1, 1)
    with pytest.raises(ValueError, match=r"\['y'\] as a whole.*by fit.log_evidence"):
        found.kfold(2, progress=False)
