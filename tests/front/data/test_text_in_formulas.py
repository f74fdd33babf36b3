"""Dates and numbers that a file leaves as text are no categories, unless the user says so."""

import re

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb
from sidebayes.common.columns import of_text
from sidebayes.data.mixed_tables import mixed_table

DAYS = ["2020-01-01", "2020-12-31"] * 6
TABLE = pd.DataFrame(
    {
        "y": np.arange(12.0),
        "who": np.repeat(list("abcd"), 3),
        "day": DAYS,
        "dose (mg)": ["0,0", "1,5", "2"] * 4,
        "site": ["007", "1", "12"] * 4,
    }
)


@pytest.mark.parametrize(
    "values",
    [
        DAYS,
        ["31.12.2020", "1.1.2021", None],
        ["12/31/2020", "1/1/21"],
        ["2020-01-01 10:30", "2020-01-02T10:30:05.5Z", "2020-01-02 1:30 PM"],
    ],
)
def test_text_that_is_dates_throughout(values):
    said = of_text(pd.Series(values, name="day"))
    assert said is not None
    assert f"column 'day' holds dates as text, such as {values[0]!r}; turn them into" in said


@pytest.mark.parametrize("values", [["0,5", "1"], ["1.234,5", "-0,1", None], ["1,000", "2,500"]])
def test_text_that_is_numbers_with_commas_throughout(values):
    said = of_text(pd.Series(values, name="dose"))
    assert said is not None
    assert f"column 'dose' holds numbers with a comma as text, such as {values[0]!r}" in said


@pytest.mark.parametrize(
    "values",
    [
        ["007", "1", "12"],
        ["1.1", "1.10"],
        ["2020-01-01", "unknown"],
        ["2020-Q1", "2020-Q2"],
        ["1.2.10", "1.2.11"],
        ["a,b", "1,2"],
        [None, None],
        [1.5, 2.0],
        pd.Categorical(DAYS),
    ],
)
def test_codes_and_categories_are_what_they_were(values):
    assert of_text(pd.Series(values, name="site")) is None


@pytest.mark.parametrize(
    ("term", "said"),
    [
        ("scale(day)", "column 'day' holds dates as text, such as '2020-01-01'"),
        ("poly(`dose (mg)`, 2)", "column 'dose (mg)' holds numbers with a comma as text"),
        ("scale(site)", "columns ['site'] hold text, such as '007', and a function that computes"),
    ],
)
def test_functions_cannot_compute_with_text(term, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        sb.design(f"y ~ {term} + (1 | who)", TABLE)


def test_formulas_refuse_them_unless_they_are_named_categories():
    with pytest.raises(ValueError, match=r"dates as text.*C\(day\) takes them as categories"):
        sb.design("y ~ site * day + (1 | who)", TABLE)
    with pytest.raises(ValueError, match=r"'0,0'.*C\(`dose \(mg\)`\) takes them"):
        sb.design("y ~ 1 + (`dose (mg)` | who)", TABLE)
    with pytest.raises(ValueError, match=r"column 'y' holds numbers with a comma.*decimal=','\)$"):
        sb.design("y ~ 1 + (1 | who)", TABLE.assign(y=TABLE["dose (mg)"]))
    columns = sb.design("y ~ C(day) + site + (1 | who)", TABLE)["fixed"].columns.tolist()
    assert columns == ["Intercept", "C(day)[2020-12-31]", "site[1]", "site[12]"]

    def year(day):
        return pd.to_datetime(day).dt.day_of_year.to_numpy(float)

    assert year(TABLE["day"]).max() == 366
    columns = sb.design("y ~ year(day) + (1 | day)", TABLE)["fixed"].columns.tolist()
    assert columns == ["Intercept", "year(day)"]


def test_covariates_of_survival_and_tables_of_features_refuse_them_too():
    once = pd.DataFrame({"who": list("abcd"), "t": [1.0, 2, 3, 4], "died": [1, 0, 1, 1]})
    made = sb.design("y ~ 1 + (1 | who)", TABLE)
    with pytest.raises(ValueError, match="column 'born' holds dates as text"):
        made.survival("Surv(t, died) ~ born", once.assign(born=DAYS[:4]))
    with pytest.raises(TypeError, match="dates as text.*or name its kind, 'category' or 'ordered'"):
        mixed_table(TABLE[["y", "day"]])
    assert mixed_table(TABLE[["y", "day"]], {"day": "category"}).kinds[1] == "category:2"
