"""The card `trajectories`: length-scales that runs start at, and options and data that are refused."""

from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from sidebayes.guides.engines.plumbing.programs import counted_compilations
from sidebayes.models.blocks.kernels.curve_setting import curve_mean
from sidebayes.models.blocks.kernels.curve_starts import Setting

import sidebayes as sb
from tests.support.draws import at_one
from tests.support.trajectories import SCALES, SUBJECT, TIGHT, T, Y, fit

TWO = np.column_stack([Y, 3 * Y])
FAR = np.array([500.0, -80.0])
LOOSE = replace(TIGHT, tol=1e-8, num_restarts=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "periodic"}, "kernel = 'periodic'; expected one of"),
        ({"noise": -1.0}, "noise = -1.0; expected a positive number"),
        ({"mean": np.inf}, "mean = inf; expected a finite number"),
        ({"mean": [0.0, 1.0]}, r"mean = \[0.0, 1.0\]; expected a finite number"),
        ({"truncation": "half"}, "expected 'closed' or 'open'"),
        ({"truncation": "open", "reading": "field"}, "truncation='open' leaves mass out"),
        ({"own": "noise"}, "own = 'noise'; expected some of"),
        ({"own": ["noise"]}, "own names 'noise', which is given"),
        ({"inducing": 0}, "inducing = 0; expected a number"),
        ({"reading": "loud"}, "reading = 'loud'"),
        ({"noise": [0.1, 0.2]}, "noise has 2 values for 1 outputs of y"),
        ({"observed": np.ones((len(Y), 2))}, "observed has shape"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fit(Y, T, **options)


def test_curves_that_need_too_many_anchors_are_refused():
    times = np.linspace(0, 1e6, 1200)
    with pytest.raises(ValueError, match="pass inducing=200"):
        fit(np.sin(times), times)


def test_observed_is_one_or_zero():
    y, inputs = np.zeros((4, 2)), np.arange(4.0)
    for wrong in (0.5, -1.0, 2.0):
        with pytest.raises(ValueError, match=f"observed holds {wrong:g}; expected one"):
            sb.fit("trajectories", y, inputs, observed=np.full((4, 2), wrong), length_scale=1.0)


@pytest.mark.parametrize(
    ("y", "inputs", "options", "message"),
    [
        (np.ones(4), np.arange(4.0), {}, "y has the same value in all rows"),
        (np.ones((4, 2)) * [1, 2], np.arange(4.0), {}, "y has the same value in all rows"),
        ([1.0, 1.0, 1.0, 7.0], np.arange(4.0), {"observed": [1, 1, 1, 0]}, "y has the same value"),
        (np.arange(4.0), np.ones(4), {}, "inputs have the same value in all rows"),
    ],
)
def test_curves_of_equal_rows_are_refused(y, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        sb.fit("trajectories", y, inputs, num_clusters=2, progress=False, **options)


@pytest.mark.slow
def test_a_season_is_found_from_other_length_scales():
    """Ten seasons: to the typical length-scale, which spans two of them, they are noise."""
    t = np.linspace(0, 10, 40)
    y = np.sin(2 * np.pi * t) + 0.2 * np.random.default_rng(0).normal(size=40)
    engine = sb.CoordinateAscent(num_restarts=2, tol=1e-6, num_draws=20)
    found = sb.fit("trajectories", y, t, num_clusters=1, engine=engine, progress=False)
    reached = np.nanmax(found.objective, axis=1)
    assert reached[1] > reached[0] + 5
    assert 0.15 < found.params["length_scale"] < 0.35
    one = sb.CoordinateAscent(num_restarts=3, num_draws=20, max_steps=1)
    given = sb.fit("trajectories", y, t, num_clusters=1, engine=one, progress=False, **SCALES)
    assert len(given.objective) == 1  # a length-scale that is given is the only start


def test_runs_start_at_several_length_scales():
    inputs = np.stack([np.linspace(0, 20, 41), np.repeat(3.0, 41)], axis=1)
    y = np.sin(2 * np.pi * inputs[:, 0] / 4)
    setting = Setting(
        "rbf", inputs, inputs, None, np.array([4.0, 0.2]), 0.7, 0.14, 0.0, prior="default"
    )
    found = setting.length_scales(y, 0, 10)
    np.testing.assert_allclose(found[0], [4.0, 0.2])
    np.testing.assert_allclose(found[1:, 1] / found[1:, 0], 0.05)
    np.testing.assert_allclose(np.sort(found[1:, 0]), 0.5 * 40 ** (np.arange(9) / 9))
    np.testing.assert_array_equal(setting.length_scales(y, 0, 4), found[:4])
    assert 0.5 < found[1, 0] < 2.0  # a quarter of a period, about
    prior = dist.Uniform(1.0, 2.0)
    drawn = setting._replace(length_scale=prior.mean, prior=prior).length_scales(y, 0, 10)
    assert drawn[0] == 1.5
    assert ((drawn > 1.0) & (drawn < 2.0)).all()
    assert len(np.unique(drawn)) == 10
    given = setting._replace(length_scale=3.0, prior=None)
    np.testing.assert_array_equal(given.length_scales(y, 0, 4), 3.0)
    same = setting._replace(inputs=np.zeros(41), length_scale=0.2)
    np.testing.assert_array_equal(same.length_scales(y, 0, 4), 0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"length_scale": [1.0, 2.0, 3.0]},
            r"length_scale has shape \(3,\) for 1 columns of inputs",
        ),
        (
            {"length_scale": dist.LogNormal(0.0, 1.0).expand([3]).to_event(1)},
            r"length_scale has shape \(3,\) for 1 columns",
        ),
        (
            {"length_scale": [1.0, 2.0, 3.0], "inputs": np.ones((40, 2))},
            r"length_scale has shape \(3,\) for 2 columns",
        ),
        (
            {"amplitude": dist.LogNormal(0.0, 1.0).expand([3]).to_event(1)},
            r"amplitude has shape \(3,\); pass one number",
        ),
        ({"anchors": np.ones((4, 2))}, r"anchors have shape \(4, 2\) for 1 columns of inputs"),
        ({"anchors": np.ones((4, 1, 1))}, r"anchors have shape \(4, 1, 1\) for 1 columns"),
    ],
)
def test_scales_and_anchors_of_other_sizes_are_refused(options, message):
    given = {"inputs": T, "num_clusters": 2, "progress": False} | SCALES | options
    with pytest.raises(ValueError, match=message):
        sb.fit("trajectories", Y, **given)


@pytest.fixture(scope="module", params=["known", pytest.param("climbed", marks=pytest.mark.slow)])
def moved(request):
    """Fits of outcomes and of others far away, and what the second one compiled."""
    at = {"sticks": [1 / 3, 1 / 2], "weights": np.full(3, 1 / 3), **SCALES}
    at["curves"] = np.random.default_rng(0).normal(size=(3, 2, 40))
    engine = at_one(at) if request.param == "known" else LOOSE
    given = {"subjects": SUBJECT, "engine": engine, **dict.fromkeys(SCALES)}
    near = fit(TWO, T, **given)
    with counted_compilations() as names:
        far = fit(TWO + FAR, T, **given)
    return near, far, names


def test_curves_return_to_the_mean_of_outcomes_where_scales_are_learned(moved):
    assert curve_mean({"y": TWO}, SCALES) is None  # where scales are given
    near, far, _ = moved
    np.testing.assert_allclose(near.run.options["mean"], TWO.mean(axis=0))
    for of_near, of_far in zip(near.objective, far.objective, strict=True):
        np.testing.assert_allclose(of_far[-1], of_near[-1], rtol=1e-4)
    np.testing.assert_allclose(far.unit_terms, near.unit_terms, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(near.labels(), far.labels())
    later = {"inputs": [60.0], "subjects": [SUBJECT[0]]}
    shift = far.forecast(**later)["mean"].to_numpy() - near.forecast(**later)["mean"].to_numpy()
    np.testing.assert_allclose(shift.ravel(), FAR, rtol=1e-2)


def test_other_outcomes_share_the_programs(moved):
    assert moved[2] == []
