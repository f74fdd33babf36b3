"""Columns that formulas cannot read are named, and names in backticks are read."""

import decimal

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb

pytest.importorskip("formulae")

DAYS = pd.date_range("2020-01-01", periods=24)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    columns = {
        "y": rng.normal(size=24),
        "t": rng.normal(size=24),
        "who": np.repeat(list("abcdef"), 4),
    }
    return pd.DataFrame(columns, index=range(100, 124))


@pytest.mark.parametrize(
    "formula",
    ["y ~ c + (1 | who)", "y ~ t + (c | who)", "c ~ t + (1 | who)", "y ~ I(c) + (1 | who)"],
)
@pytest.mark.parametrize(
    "values",
    [
        DAYS,
        DAYS.tz_localize("UTC"),
        DAYS - DAYS[0],
        DAYS.to_period("D"),
        [day.date() for day in DAYS],
    ],
)
def test_dates_and_durations_are_named(table, formula, values):
    with pytest.raises(
        ValueError, match=r"column 'c' holds dates or durations .*days since the first$"
    ):
        sb.design(formula, table.assign(c=values))


def test_dates_that_a_term_turns_into_numbers(table):
    def days(when):
        return (when - when.min()).dt.days

    when = table.assign(when=DAYS)
    found = sb.design("y ~ days(when) + (1 | who)", when)
    assert found["fixed"]["days(when)"].tolist() == list(range(24))
    with pytest.raises(ValueError, match="on a table with columns .*'tt'; check the names"):
        sb.design("y ~ days(when) + tt + (1 | who)", when)
    with pytest.raises(ValueError, match="column 't' holds dates"):
        sb.design("y ~ t + (1 | who)", table).at(table.assign(t=DAYS))


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ([1, "x"] * 12, "int and str"),
        ([decimal.Decimal(1)] * 24, "Decimal"),
        ([[1.0]] * 24, "list"),
        (pd.Series(range(24), range(100, 124), dtype=object), "int"),
    ],
    ids=["mixed", "decimal", "list", "object"],
)
def test_other_objects_are_named(table, values, kinds):
    with pytest.raises(
        ValueError, match=rf"column 'c' holds values of type {kinds} \(object\); .*to_numeric"
    ):
        sb.design("y ~ c + (1 | who)", table.assign(c=values))


def test_columns_that_lack_values_are_named_with_their_rows(table):
    gaps = table.assign(z=np.nan)  # which no term has
    gaps.loc[[103, 107], "t"] = np.nan
    gaps.loc[103, "y"] = np.nan
    wanted = (
        r"columns \['y', 't'\] are incomplete in 2 rows, the first \[103, 107\]; "
        r"drop these rows, table.dropna\(subset=\['y', 't'\]\)$"
    )
    with pytest.raises(ValueError, match=wanted):
        sb.design("y ~ t + (1 | who)", gaps)
    found = sb.design("y ~ C(kind) + (1 | who)", table.assign(kind=["a", "b"] * 12))
    with pytest.raises(ValueError, match=r"columns \['kind'\] are incomplete in 24 rows"):
        found.at(table.assign(kind=None))
    with pytest.raises(ValueError, match="t is inf in row 3; drop rows where it is not finite"):
        sb.design("y ~ t + (1 | who)", table.assign(t=np.where(table.index == 103, np.inf, 1.0)))


def test_names_in_backticks(table):
    plain = sb.design("y ~ t*t2 + (t | who)", table.assign(t2=table["t"] ** 2))
    names = {"y": "the score", "t": "t (years) - 1", "who": "my person", "t2": "a^b"}
    other = table.assign(t2=table["t"] ** 2).rename(columns=names)
    text = "`the score` ~ `t (years) - 1`*`a^b` + (`t (years) - 1` | `my person`)"
    found = sb.design(text, other)
    assert found.names == ("the score",)
    assert found["random"].columns.tolist() == ["Intercept", "t (years) - 1"]
    for name in ("y", "fixed", "random", "subjects"):
        np.testing.assert_array_equal(found[name], plain[name])
    again = found.at(other.head(2))
    np.testing.assert_array_equal(again["fixed"], plain["fixed"].head(2))
    assert again["subjects"].tolist() == ["a", "a"]
    with pytest.raises(ValueError, match="column 'my person' is missing in 24 rows"):
        sb.design(text, other.assign(**{"my person": None}))
    with pytest.raises(ValueError, match="in backticks if its name has spaces"):
        sb.design("y ~ t + (1 | my person)", table)


def test_outputs_and_times_in_backticks(table):
    other = table.rename(columns={"y": "the score", "who": "my person"})
    other["second one"] = np.where(other.index == 101, np.nan, 1.0 + other["t"])
    both = [f"`{name}` ~ t + (t | `my person`)" for name in ("the score", "second one")]
    found = sb.design(both, other)
    assert len(found["y"]) == 47  # the row without a second outcome counts for the first
    assert found["outputs"].columns.tolist() == ["the score", "second one"]
    assert found.at(other.head(3), output="second one")["outputs"].iloc[:, 1].tolist() == [1.0] * 3
    subjects = pd.DataFrame(
        {
            "my person": list("abcdef"),
            "the end": np.arange(6) + 50.0,
            "was dead": [0, 1] * 3,
            "day": DAYS[:6],
        }
    )
    single = sb.design(both[0], other)
    data = single.survival("Surv(`the end`, `was dead`) ~ 1", subjects)
    assert data["time"].tolist() == [50.0, 51.0, 52.0, 53.0, 54.0, 55.0]
    assert data["event"].tolist() == [0.0, 1.0] * 3
    nobody = subjects.assign(**{"was dead": 0})
    with pytest.raises(ValueError, match=r"event is 0 for all subjects.*pass hazard=HazardPrior"):
        single.survival("Surv(`the end`, `was dead`) ~ 1", nobody)
    known = sb.HazardPrior([2.0], level=-3.0)
    given = single.survival("Surv(`the end`, `was dead`) ~ 1", nobody, hazard=known)
    assert given["hazard"] is known
    with pytest.raises(ValueError, match="leave num_intervals out"):
        single.survival("Surv(`the end`, `was dead`) ~ 1", nobody, hazard=known, num_intervals=3)
    with pytest.raises(TypeError, match=r"hazard = -3\.0; expected a HazardPrior"):
        single.survival("Surv(`the end`, `was dead`) ~ 1", nobody, hazard=-3.0)
    for formula in ("Surv(day, `was dead`) ~ 1", "Surv(`the end`, `was dead`) ~ day"):
        with pytest.raises(ValueError, match="column 'day' holds dates or durations"):
            single.survival(formula, subjects)


def test_complex_columns_and_open_names_are_refused():
    table = pd.DataFrame({"y": np.arange(6.0), "z": np.arange(6) + 1j, "who": [0, 0, 1, 1, 2, 2]})
    with pytest.raises(ValueError, match="column 'z' holds complex128, expected real numbers"):
        sb.design("y ~ z + (1 | who)", table)
    with pytest.raises(ValueError, match="has a backtick without its second"):
        sb.design("y ~ `z + (1 | who)", table)
