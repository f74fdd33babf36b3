"""Runs that nothing vouches for are not called good; seconds add up to what was waited."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from sidebayes.diagnostics.trust.verdict import verdict
from sidebayes.models.blocks.components.gaussian_block import GaussianComponents

import sidebayes
from sidebayes import EM, HMC, MAP
from tests.support.draws import at_one

X = sidebayes.load_dataset("iris").x[::5]
SADDLE = {
    "weights": np.full(3, 1 / 3),
    "mean": np.tile(X.mean(axis=0), (3, 1)),
    "variance": np.tile(X.var(axis=0), (3, 1)),
}
"""Three times the same cluster: no step of EM tells them apart, and the gradient is symmetric."""


def fit(engine, **options):
    sizes = {"num_clusters": 3, "covariance": "diagonal"}
    return sidebayes.fit("gmm", X, **sizes, engine=engine, progress=False, **options)


def normal(x):
    mean = numpyro.sample("mean", dist.Normal(5.0, 5.0))
    with numpyro.plate("points", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


def known(rows, number, **options):
    """A fit of full covariances, or of others as options say, whose parameters are given."""
    width = rows.shape[1]
    params = {"weights": np.full(number, 1 / number), "mean": rows[:number]}
    match options.get("covariance", "full"):
        case "diagonal":
            params["variance"] = np.ones((number, width))
        case "tied":
            params["covariance"] = np.eye(width)
        case _:
            params["covariance"] = np.stack([np.eye(width)] * number)
    given = {"num_clusters": number, "engine": at_one(params), "progress": False}
    return sidebayes.fit("gmm", rows, **given, **options)


class OnDemand(dict):
    """Values that are made when they are first asked for."""

    def __init__(self, make):
        self.make = make

    def __missing__(self, key):
        return self.setdefault(key, self.make(key))


@pytest.fixture(scope="module")
def fits():
    """Made when they are asked for, each once."""
    em, gradient = EM(num_restarts=1, max_steps=100), MAP(num_restarts=1)
    draw = HMC(num_warmup=1, num_samples=1, num_chains=1, trajectory_length=0.5)
    given = {
        "em": (em, None),
        "em, any end will do": (replace(em, tol=1e9), None),
        "map, any end will do": (replace(gradient, tol=1e9), None),
        "em from a saddle": (em, SADDLE),
        "map from a saddle": (gradient, SADDLE),
    }

    def make(name):
        if name == "one draw":
            return sidebayes.fit(normal, X[:, 0], engine=draw, progress=False)
        return fit(given[name][0], init=given[name][1])

    return OnDemand(make)


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("em, any end will do", "caution"),
        ("map, any end will do", "bad"),
        ("em from a saddle", "caution"),
        ("map from a saddle", "caution"),
        ("one draw", "bad"),
    ],
)
def test_not_good(fits, name, level):
    assert fits[name].verdict[0] == level
    assert fits[name].status.converged == (level != "bad")


def test_what_may_be_the_reason_comes_before_the_steps(fits):
    """What the model says of data may be why a run did not end."""
    tree = fits["em, any end will do"].tree.copy()
    told = {"remarks": json.dumps(["The data leave it undetermined"]), "status": "It stopped"}
    said = {}
    for ended in (0, 1):
        tree["fit_info"].attrs = {**tree["fit_info"].attrs, **told, "converged": ended}
        said[ended] = verdict(replace(fits["em, any end will do"], tree=tree))[1]
    assert said[0] == "The data leave it undetermined. It stopped."
    assert said[1].startswith("It stopped. The data leave it undetermined. ")


def test_a_saddle_is_named(fits):
    assert "are the same: it stayed at a saddle" in fits["em from a saddle"].verdict[1]


def test_going_on_does_not_make_it_good(fits):
    assert fits["em from a saddle"].resume(100).verdict[0] != "good"


def test_a_lower_mode_is_told_apart(fits):
    table = sidebayes.compare({name: fits[name] for name in ("em", "em from a saddle")})
    assert table.frame["trust"].to_dict() == {"em": "", "em from a saddle": "lower mode"}
    gap = table.frame.loc["em", "log_joint"] - table.frame.loc["em from a saddle", "log_joint"]
    assert f"{gap:.3g} below" in table.notes[0]


def test_a_cluster_of_a_single_point_is_said():
    """A point far from all others gets a cluster of its own, and the mode is sound."""
    x = np.random.default_rng(0).normal(size=(60, 2))
    x[17] = 40.0
    for outlier, said in ((x, True), (np.delete(x, 17, axis=0), False)):
        found = sidebayes.fit("gmm", outlier, num_clusters=2, progress=False)
        level, why = found.verdict
        assert ("holds a single point of 60, number 17" in why) == said
        if said:
            assert level == "caution"


@pytest.mark.parametrize("of_the_data", [True, False])
def test_few_points_are_said_where_no_prior_of_the_user_holds_covariances(of_the_data):
    x = np.random.default_rng(0).normal(size=(120, 6))
    prior = sidebayes.GaussianPrior.empirical(x, 3)
    block = GaussianComponents(3, 6, "full", prior, from_data=of_the_data, data=x)
    found = block.remark({"location": np.zeros((1, 1, 3, 6))}) or ""
    said = "120 points are few for 3 means and full covariances of 27 numbers" in found
    assert said == of_the_data


@pytest.mark.parametrize(
    ("number", "options", "said"),
    [
        (3, {}, True),
        (3, {"covariance": "diagonal"}, False),
        (2, {}, False),
        (3, {"prior": "by evidence"}, False),
    ],
    ids=["full", "diagonal", "two", "by evidence"],
)
def test_few_points_for_full_covariances_are_said(number, options, said):
    """Three Gaussians, 40 rows each for 27 numbers: a mode of high likelihood groups them worse."""
    x = np.random.default_rng(0).normal(size=(120, 6))
    if "prior" in options:
        options = {"prior": sidebayes.GaussianPrior.by_evidence(x, 3)}
    level, why = known(x, number, **options).verdict
    assert level != "good" or "are few" not in why
    assert ("120 points are few for 3 means and full covariances of 27 numbers" in why) == said


@pytest.mark.parametrize(
    ("noise", "options", "said"),
    [(0.0, {}, True), (0.0, {"covariance": "tied"}, False), (1e-3, {}, False)],
    ids=["full", "tied", "noisy"],
)
def test_columns_that_depend_on_others_are_said(noise, options, said):
    """Full covariances have no width of their own there, and favour clusters of unequal sizes."""
    copied = np.c_[X, 2 * X[:, 0]]
    copied[:, 4] += np.random.default_rng(0).normal(scale=noise, size=len(X))
    why = known(copied, 3, **options).verdict[1]
    assert ("Column 4 of x is a linear function of column 0" in why) == said


@pytest.mark.parametrize("name", ["em", "one draw"])
def test_seconds_add_up(fits, name):
    seconds = fits[name].seconds
    parts = {part: spent for part, spent in seconds.items() if part != "total"}
    assert set(parts) == {"compile", "run", "search", "other"}
    assert sum(parts.values()) == pytest.approx(seconds["total"])
    assert min(parts.values()) >= 0
    assert name == "em" or parts["search"] > fits["em"].seconds["search"]


def test_a_start_that_collapsed_is_not_the_one_that_is_judged():
    """Its objective rises without bound, and was the highest of all."""
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(size=(60, 2)), rng.normal(size=(60, 2)) + np.array([4, 0])])
    x, few = np.clip(x, -1.2, None), EM(num_restarts=5)  # a cluster on the bound has no spread
    found = sidebayes.fit("gmm", x, num_clusters=3, prior="flat", engine=few, progress=False)
    assert np.nanmax(found.objective) > found.tree["sample_stats"]["lp"].item() + 1
    assert "collapsed were set aside" in str(found.status)
    assert "still rose" not in str(found.status)
