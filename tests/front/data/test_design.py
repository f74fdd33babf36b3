"""Formulas and tables with names become data by role."""

import numpy as np
import pandas as pd
import pytest

import sidebayes as sb

pytest.importorskip("formulae")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    person = np.repeat(["b", "a", "c", "d", "e"], [4, 3, 2, 5, 3])
    size = len(person)
    return pd.DataFrame(
        {
            "who": person,
            "t": rng.uniform(0, 3, size),
            "arm": np.where(np.isin(person, ["a", "c"]), "drug", "none"),
            "y": rng.normal(size=size),
            "z": np.where(np.arange(size) % 3, rng.normal(size=size), np.nan),
        },
        index=np.arange(100, 100 + size),
    )


def test_columns_and_their_names(table):
    found = sb.design("y ~ t * arm + (t | who)", table)
    assert list(found) == ["y", "fixed", "random", "subjects", "covariance"]
    assert found["fixed"].columns.tolist() == ["Intercept", "t", "arm[none]", "t:arm[none]"]
    t, none = table["t"].to_numpy(), (table["arm"] == "none").to_numpy(float)
    np.testing.assert_allclose(found["fixed"], np.column_stack([np.ones(17), t, none, t * none]))
    np.testing.assert_allclose(found["random"], np.column_stack([np.ones(17), t]))
    assert found["random"].columns.tolist() == ["Intercept", "t"]
    np.testing.assert_array_equal(found["subjects"], table["who"])
    np.testing.assert_allclose(found["y"], table["y"])
    assert found["covariance"] == "full"
    assert "17 rows, 4 fixed and 2 random effects" in repr(found)


@pytest.mark.parametrize(
    ("bars", "columns", "covariance"),
    [
        ("(1 | who)", ["Intercept"], "full"),
        ("(0 + t | who)", ["t"], "full"),
        ("(t || who)", ["Intercept", "t"], (1, 1)),
        ("(1 | who) + (0 + t | who)", ["Intercept", "t"], (1, 1)),
        ("(t | who) + (0 + arm | who)", ["Intercept", "t", "arm[drug]", "arm[none]"], (2, 2)),
    ],
)
def test_which_random_effects_are_correlated(table, bars, columns, covariance):
    found = sb.design(f"y ~ {bars} + t", table)
    assert found["random"].columns.tolist() == columns
    assert found["covariance"] == covariance
    assert found["fixed"].columns.tolist() == ["Intercept", "t"]


def test_bases_keep_their_knots_and_categories_at_new_rows(table):
    def halved(values):
        return values / 2

    found = sb.design("y ~ bs(t, df=4) + halved(t):arm - 1 + (1 | who)", table)
    rows = table.iloc[[3, 8]].drop(columns="y")
    again = found.at(rows)
    np.testing.assert_allclose(again["fixed"], found["fixed"].iloc[[3, 8]])
    assert "Intercept" not in found["fixed"]
    assert list(again) == ["fixed", "random", "subjects"]
    with pytest.raises(ValueError, match="t is nan in row 1"):
        sb.design("y ~ t + (1 | who)", table).at(rows.assign(t=[1.0, np.nan]))


def test_a_fit_knows_the_names(table):
    found = sb.design("y ~ t + (1 | who)", table)
    fit = sb.fit("mixed_effects", **found, progress=False)
    assert fit.coefficients().index.tolist() == ["Intercept", "t"]
    with pytest.warns(sb.SideBayesWarning, match="intervals of 5 groups .* are too narrow"):
        effects = fit.effects()
    assert effects["group"].to_numpy().tolist() == ["a", "b", "c", "d", "e"]
    assert effects["effect"].to_numpy().tolist() == ["Intercept"]
    drawn = fit.predictive(**found.at(table.iloc[:2]))
    assert drawn["predictions"]["y"].sizes["rows"] == 2


def test_several_outputs_at_times_of_their_own(table):
    found = sb.design(["y ~ t + (t | who)", "z ~ arm + (1 | who)"], table)
    number = int(table["z"].notna().sum())
    assert len(found["y"]) == 17 + number
    np.testing.assert_array_equal(found["outputs"].sum(), [17, number])
    names = ["y: Intercept", "y: t", "z: Intercept", "z: arm[none]"]
    assert found["fixed"].columns.tolist() == names
    assert (found["fixed"].iloc[:17, 2:] == 0).all(axis=None)
    assert (found["fixed"].iloc[17:, :2] == 0).all(axis=None)
    assert found["covariance"] == "full"
    assert found["random"].shape == (17 + number, 3)
    one = found.at(table.iloc[:2], output="z")
    assert one["fixed"].columns.tolist() == names
    np.testing.assert_array_equal(one["outputs"], [[0, 1], [0, 1]])
    with pytest.raises(ValueError, match=r"expected one of \['y', 'z'\]"):
        found.at(table, output="x")


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("t + (1 | who)", "has no response"),
        ("y ~ t", "group rows by nothing"),
        ("y ~ t + (1 | who) + (1 | arm)", r"group rows by \['arm', 'who'\]"),
        ("y ~ t + (1 | who:arm)", "one column that groups rows"),
        ("y ~ t - (1 | who)", "cannot read -"),
        ("y ~ t + (1 | who", "not balanced"),
        ("y ~ t + (1 | nobody)", "groups rows by 'nobody', and the table"),
        ("y ~ u + (1 | who)", "cannot be evaluated"),
        ("z ~ t + (1 | who)", "cannot be evaluated.*incomplete"),
        ("arm ~ t + (1 | who)", "no column of numbers"),
        ((), "formula is empty"),
        (["y ~ t + (1 | who)", "y ~ arm + (1 | who)"], r"the responses \['y', 'y'\]"),
        (5, "formula = 5; expected text"),
        (None, "formula = None; expected text"),
        (["y ~ t + (1 | who)", 5], "expected text, or several in a list"),
    ],
)
def test_what_cannot_be_read_is_refused(table, formula, message):
    with pytest.raises(ValueError, match=message):
        sb.design(formula, table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": ["t"]}, "cannot be evaluated on a table with columns .*'t'"),
        ({"columns": ["who"]}, "groups rows by 'who', and the table has only"),
        ({"t": "a"}, "cannot be evaluated"),
        ({"who": None}, "column 'who' is missing in 17 rows"),
    ],
    ids=str,
)
def test_new_rows_that_lack_something(table, change, message):
    found = sb.design("y ~ t + arm + (1 | who)", table)
    rows = table.drop(**change) if "columns" in change else table.assign(**change)
    with pytest.raises(ValueError, match=message):
        found.at(rows)


def test_tables_with_columns_that_clash(table):
    twice = pd.concat([table, table[["y"]]], axis=1)
    for read in (
        lambda t: sb.design("y ~ t + (1 | who)", t),
        sb.design("y ~ 1 + (1 | who)", table).at,
    ):
        with pytest.raises(ValueError, match=r"the columns of table repeat \['y'\]"):
            read(twice)
        with pytest.raises(ValueError, match="table has columns that are no table together"):
            read({"y": [1.0], "t": [1.0, 2.0], "who": ["a"]})


def test_one_row(table):
    found = sb.design("y ~ t + (1 | who)", table.iloc[[3]])
    assert found["y"].tolist() == [table["y"].iloc[3]]


def test_other_tables(table):
    columns = {name: table[name].to_numpy() for name in table}
    for other in (columns, pytest.importorskip("pyarrow").table(columns)):
        found = sb.design("y ~ t + (1 | who)", other)
        np.testing.assert_allclose(found["fixed"], sb.design("y ~ t + (1 | who)", table)["fixed"])
    with pytest.raises(TypeError, match="pass a data frame"):
        sb.design("y ~ t + (1 | who)", table.to_numpy())
    with pytest.raises(ValueError, match="is missing in 1 row, the first 104"):
        sb.design("y ~ t + (1 | who)", table.assign(who=table["who"].where(table.index != 104)))


def test_rows_with_missing_values_are_counted_in_one_sentence(table):
    gaps = table.assign(y=table["y"].where(table.index != table.index[0]))
    with pytest.raises(
        ValueError, match=r"columns \['y'\] are incomplete in 1 row, .*subset=\['y'\]\)$"
    ):
        sb.design("y ~ 1 + (1 | who)", gaps)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"t": ["late", "early"]}, "column 't' holds text, such as 'late', and held numbers"),
        (
            {"arm": ["new", "new"]},
            r"levels \(new\) in 'arm' are not present in the table of the design",
        ),
        ({"t": None}, "there is no column 't'; check the names$"),
    ],
)
def test_columns_of_other_rows_are_named_where_they_differ(table, changed, said):
    rows = table.iloc[[3, 8]].assign(**changed).dropna(axis=1)
    with pytest.raises(ValueError, match=said):
        sb.design("y ~ t + arm + (1 | who)", table).at(rows)
