"""Survival curves begin at a time, and measures after it are pointed out."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sidebayes.diagnostics.pictures.subjects import _draw_survival

import sidebayes as sb
from sidebayes.common.clocks import clocks
from tests.support.draws import at_one
from tests.support.effects import simulate_joint

TABLE, PERSONS = simulate_joint(25)
LATER = "have measures after since"
SUBJECTS = np.repeat(np.arange(6), 3)
TIME = np.full(6, 5.0)


def fitted(formula, engine="map"):
    design = sb.design(formula, TABLE)
    data = design.survival("Surv(years, died) ~ 1", PERSONS, num_intervals=1)
    return sb.fit("joint_survival", **data, engine=engine, progress=False), design, data


@pytest.fixture(scope="module")
def found():
    """Fit of known parameters."""
    factor = np.array([[0.7, 0.0], [0.1, 0.3]])
    deviation = np.linalg.norm(factor, axis=1)
    at = {"coefficients": [1.0, 0.3], "deviation": deviation, "noise": 0.5}
    at |= {"correlation_cholesky": factor / deviation[:, None], "covariance": factor @ factor.T}
    at |= {"level": -2.0, "association": [0.5, 0.5], "log_hazards": [-2.0]}
    return fitted("y ~ year + (year | who)", at_one(at))


def visits(*years):
    return pd.DataFrame({"who": ["ann"] * len(years), "year": years, "y": 2.0})


def curves(found, table, since):
    fit, design, _ = found
    return fit.survival([2.0, 4.0], **design.at(table), y=table["y"], since=since)


def test_a_new_subject_seen_after_the_start_is_named(found):
    table = visits(0.0, 3.0, 6.0)
    said = (
        "1 of 1 subjects have measures after since, the first ann, whose last year is 6 where since is 1: "
        ".* pass only the rows up to since"
    )
    with pytest.warns(sb.SideBayesWarning, match=said):
        late = curves(found, table, 1.0)
    with pytest.warns(sb.SideBayesWarning, match=said):
        other = curves(found, table.assign(y=[2.0, 2.0, 4.0]), 1.0)
    assert abs(other["mean"] - late["mean"]).max() > 0.001  # they are used
    curves(found, table, 6.0)


def test_fitted_subjects_are_counted(found):
    fit, _, data = found
    last = TABLE.groupby("who")["year"].max()
    fit.survival([4.0], since=last)
    fit.survival([4.0], since=data["time"])
    early = last.copy()
    early.iloc[[3, 7]] = 0.0
    with pytest.warns(sb.SideBayesWarning, match=f"2 of 25 subjects {LATER}, the first 3, "):
        fit.survival([4.0], since=early)


def test_pictures_from_the_origin_say_so(found):
    fit, _, _ = found
    axis = Figure().add_subplot()
    _draw_survival(axis, fit, fit.event_times, np.arange(2))
    assert "all measurements, later ones too" in axis.get_title()
    assert len(axis.lines) == 2


@pytest.mark.slow
def test_visits_are_known_where_intercepts_alone_are_random():
    with pytest.warns(sb.SideBayesWarning, match=LATER):
        curves(fitted("y ~ year + (1 | who)"), visits(0.0, 3.0, 4.0), 1.0)


@pytest.mark.parametrize(
    ("column", "ordered", "is_clock"),
    [
        ([0.0, 1.0, 2.5], True, True),
        ([2.5, 1.0, 0.0], False, True),
        ([2.5, 1.0, 3.0], True, False),  # a covariate
        ([0.0, 1.0, 1.0], True, False),  # an indicator
        ([0.0, 0.0, 1.0], True, False),
        ([-1.0, 1.0, 2.0], False, False),
        ([90.0, 91.0, 92.0], False, False),
        ([1.0, 1.0, 1.0], False, False),
    ],
)
def test_columns_that_look_like_a_clock(column, ordered, is_clock):
    table = np.tile(column, 6)[:, None]
    assert clocks(table, SUBJECTS, TIME, ordered=ordered) == [0] * is_clock


@pytest.mark.parametrize("name", ["bs(year, df=4)[0]", "year:drug", "I(year / 12)"])
def test_terms_made_of_a_clock_are_none(name):
    table = np.tile([0.1, 1.0, 2.5], 6)[:, None]
    assert clocks(table, SUBJECTS, TIME, [name], ordered=False) == []
    assert clocks(table, SUBJECTS, TIME, ["score: year"], ordered=False) == [0]
