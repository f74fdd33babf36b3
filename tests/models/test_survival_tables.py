"""Errors in a table of survival name its row, subject and column; measures after the event are told."""

import warnings

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb
from sidebayes.runs.arguments import read_run
from tests.support.effects import simulate_joint

pytest.importorskip("formulae")
TABLE, PERSONS = simulate_joint(12)
MIXED = PERSONS.sample(frac=1, random_state=1).set_axis(range(100, 112), axis=0)
WHO = int(MIXED.who[105])


def survival(persons, table=TABLE, formula="y ~ year + (1 | who)"):
    design = sb.design(formula, table)
    return design.survival("Surv(years, died) ~ drug", persons)


def read(data):
    """The data as a fit checks them."""
    return read_run("joint_survival", (), data, None)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("years", np.nan, r"time of who {who}, column 'years', is nan in row 105; expected"),
        ("years", -1.0, r"time of who {who}, column 'years', is -1.0 in row 105; expected"),
        ("died", 2.0, r"event of who {who}, column 'died', is 2.0 in row 105; expected 1"),
        ("died", np.nan, r"event of who {who}, column 'died', is missing in row 105; drop"),
        (
            "drug",
            np.nan,
            r"columns \['drug'\] are incomplete in 1 row, the first \[105\] of who {who};",
        ),
        ("drug", np.inf, r"drug is inf in row 105 of who {who}; drop"),
    ],
)
def test_rows_are_those_of_the_table(column, value, message):
    wrong = MIXED.astype({column: float})
    wrong.loc[105, column] = value
    with pytest.raises(ValueError, match=message.format(who=WHO)):
        survival(wrong)


def test_the_order_of_the_table_does_not_matter():
    wanted, found = survival(PERSONS), survival(MIXED)
    for name in ("time", "event"):
        pd.testing.assert_series_equal(found[name], wanted[name])
    pd.testing.assert_frame_equal(found["covariates"], wanted["covariates"])
    assert found["time"].index.tolist() == sorted(PERSONS.who)


@pytest.mark.parametrize("formula", ["y ~ year + (1 | who)", "y ~ year + (year | who)"])
def test_measures_after_the_event(formula):
    last = TABLE.groupby("who")["year"].max().reindex(PERSONS.who).to_numpy()
    after = PERSONS.assign(years=last + 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(survival(after, formula=formula))
    early = after.assign(years=np.where(after.who < 2, last / 2, after.years))
    late = [
        name for name in sorted(after.who) if name < 2 and (TABLE.year[TABLE.who == name] > 0).any()
    ]
    said = rf"{len(late)} of 12 subjects, the first \[{late[0]}.*, have measures with year after"
    with pytest.warns(sb.SideBayesWarning, match=said) as found:
        read(survival(early, formula=formula))
    assert len(found) == 1


def test_covariates_that_vary_are_no_clock():
    rng = np.random.default_rng(0)
    table = TABLE.assign(dose=rng.uniform(0, 2 * PERSONS.years.max(), len(TABLE)), year=-TABLE.year)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(survival(PERSONS, table, "y ~ year + dose + (1 | who)"))


@pytest.mark.parametrize("form", ["y ~ year + (1 | who)", "y ~ 1 + (year | who)"])
def test_arrays_without_names_are_looked_at_as_tables_are(form):
    early = PERSONS.assign(years=np.where(PERSONS.who < 2, 1e-3, 1 + TABLE.year.max()))
    data = survival(early, formula=form)
    data["subjects"] = np.char.add("s", np.char.zfill(data["subjects"].astype(str), 2))
    bare = {n: v.to_numpy() if hasattr(v, "to_numpy") else v for n, v in data.items()}
    column = r"fixed\[:, 1\]" if "(1" in form else r"random\[:, 1\]"
    said = (
        rf"2 of 12 subjects, the first \['s00', 's01'\], have measures with {column} after the time"
    )
    with pytest.warns(sb.SideBayesWarning, match=said) as found:
        read(bare)
    assert len(found) == 1
