"""Tables, names of columns and classes, as users give them."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pyarrow
import pytest
from jax.typing import ArrayLike
from sidebayes.diagnostics.pictures.plots import plot_clusters, plot_parameters
from sidebayes.diagnostics.trust.scores import score_labels
from typer.testing import CliRunner

import sidebayes as sb
from sidebayes.cli import app
from sidebayes.common.arrays import real_array
from sidebayes.common.class_names import class_codes
from sidebayes.data.tables import check_data
from tests.support.draws import at_one

IRIS = sb.load_dataset("iris")
NAMES = ["a", "b", "c", "d"]
FRAME = pd.DataFrame(IRIS.x, columns=NAMES)
QUICK = sb.EM(num_restarts=1, max_steps=5)
KINDS = {
    "pandas": lambda frame: frame,
    "nullable": lambda frame: frame.convert_dtypes(),
    "objects": lambda frame: frame.astype(object),
    "arrow": pyarrow.Table.from_pandas,
}


def gmm(x, **given):
    return sb.fit("gmm", x, **{"num_clusters": 2, "engine": QUICK, "progress": False} | given)


@pytest.fixture(scope="module")
def named():
    return gmm(FRAME)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_of_every_kind_are_read_and_matched_by_name(kind, named):
    table = KINDS[kind](FRAME)
    np.testing.assert_array_equal(check_data(table), IRIS.x)
    turned = KINDS[kind](FRAME[NAMES[::-1]])
    np.testing.assert_array_equal(named.predict_proba(turned), named.predict_proba(IRIS.x))
    with pytest.raises(ValueError, match=r"x lacks \['b'\] and has \['e'\] among its columns"):
        named.predict(KINDS[kind](FRAME.rename(columns={"b": "e"})))
    missing = FRAME.copy()
    missing.loc[3, "a"] = None
    with pytest.raises(ValueError, match="x has missing or infinite values in 1 of 150 rows: 3"):
        check_data(KINDS[kind](missing))
    words = FRAME.assign(b="word", c="word")
    with pytest.raises(TypeError, match=r"x has columns \['b', 'c'\] that are not numbers"):
        check_data(KINDS[kind](words))


def test_names_survive_a_file_and_surplus_columns_are_refused(named, tmp_path):
    named.save(tmp_path / "fit.nc")
    again = sb.load(tmp_path / "fit.nc")
    turned = FRAME[NAMES[::-1]]
    np.testing.assert_array_equal(again.predict(turned), named.predict(IRIS.x))
    with pytest.raises(ValueError, match=r"x has \['e'\]"):
        again.predict(FRAME.assign(e=1.0))
    array = gmm(IRIS.x, feature_names=NAMES)
    np.testing.assert_array_equal(array.predict(turned), array.predict(IRIS.x))
    with pytest.warns(sb.SideBayesWarning, match=r"median of the new rows .* in columns 0, 3 of x"):
        assert len(gmm(IRIS.x).predict(turned)) == 150  # the fit has no names; position decides


def test_masked_entries_are_missing():
    masked = np.ma.masked_array(IRIS.x, mask=IRIS.x > 7.5)
    with pytest.raises(ValueError, match="x has missing or infinite values in 6 of 150 rows"):
        gmm(masked)
    np.testing.assert_array_equal(check_data(np.ma.masked_array(IRIS.x)), IRIS.x)


def regression(
    y: Annotated[ArrayLike, "rows"],
    x: Annotated[ArrayLike, "rows features"],
    labels: Annotated[sb.PartialLabels | None, "rows"] = None,
):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ beta, 1.0), obs=y)


@pytest.mark.parametrize("of", [iter, lambda x: map(list, x), lambda x: (row for row in x)])
def test_what_yields_rows_is_no_table(of):
    rows = of(np.eye(3))
    kind = type(rows).__name__
    with pytest.raises(TypeError, match=rf"y is a {kind}, which is no array; pass list\(y\)"):
        check_data(rows, "y")


def test_labels_are_no_table_and_no_groups():
    labels = sb.PartialLabels(np.array([0, 1, -1]))
    with pytest.raises(TypeError, match="assigned is a PartialLabels, which is no array; pass an"):
        check_data(labels, "assigned")
    with pytest.raises(TypeError, match="groups is a PartialLabels, which is no array; pass an"):
        sb.Groups(labels)


def test_names_are_of_the_first_table_that_has_columns():
    engine = sb.MAP(num_restarts=1)
    fit = sb.fit(regression, FRAME["a"], FRAME[["b", "c"]], engine=engine, progress=False)
    assert fit.run.feature_names == ("b", "c")
    turned = fit.log_prob(FRAME["a"], FRAME[["c", "b"]])
    np.testing.assert_array_equal(turned, fit.log_prob(FRAME["a"], FRAME[["b", "c"]]))
    masked = np.ma.masked_array(np.zeros(150, int), mask=np.arange(150) == 7)
    with pytest.raises(ValueError, match=r"labels is masked at 1 entries, the first \(7,\)"):
        sb.fit(regression, FRAME["a"], FRAME[["b", "c"]], labels=masked, engine=engine)


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["a", "a", "b", "c"], ValueError, r"feature_names repeat \['a'\]"),
        ("abcd", TypeError, "a list with one name per feature"),
        (5, TypeError, "a list with one name per feature"),
        (["a", "b", "c\0", "d"], ValueError, "cannot be shown"),
        (["a"], ValueError, "1 name for 4 features"),
    ],
)
def test_names_that_are_refused(names, error, message):
    with pytest.raises(error, match=message):
        gmm(IRIS.x, feature_names=names)


def test_columns_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"columns of x repeat \['a'\]"):
        gmm(pd.DataFrame(IRIS.x, columns=["a", "a", "b", "c"]))


def test_names_that_look_like_mathematics_are_drawn(tmp_path):
    params = {
        "weights": [0.5, 0.5],
        "mean": [[5.0, 3.4], [6.3, 2.9]],
        "covariance": [0.2 * np.eye(2)] * 2,
    }
    fit = gmm(IRIS.x[:, :2], feature_names=["$\\frac$", "$\\no$"], engine=at_one(params))
    for draw in (plot_clusters, plot_parameters):
        draw(fit).savefig(tmp_path / "a.png")


UNKNOWN = {
    "NaN": np.array([0.0, 1, np.nan, 1]),
    "None": np.array(["u", "v", None, "v"], object),
    "blank": ["u", "v", "  ", "v"],
    "-1": [0, 1, -1, 1],
    "masked": np.ma.masked_array([0, 1, 5, 1], mask=[0, 0, 1, 0]),
    "NA": pd.array([0, 1, None, 1], dtype="Int64"),
    "category": pd.Categorical(["u", "v", None, "v"]),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_classes_that_are_not_known(kind):
    assert class_codes(UNKNOWN[kind]).tolist() == [0, 1, -1, 1]
    links = sb.simulate_links(UNKNOWN[kind], 3)
    assert sorted(map(tuple, links.pairs.tolist())) == [(0, 1), (0, 3), (1, 3)]
    assert score_labels(UNKNOWN[kind], [1, 0, 0, 0])["ari"] == 1.0


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([0.5, 1.0], ValueError, r"labels\[0\] = 0.5 is no class"),
        ([0.0, np.inf], ValueError, r"labels\[1\] = inf is no class"),
        ([-1, 1, 1], ValueError, "number the classes from 0"),
        ([None, np.nan], ValueError, "names no class of any point"),
        (["a", 1], TypeError, "mixes names with other things, 'a' in row 0 and 1 in row 1"),
        ([[1], [2, 3]], TypeError, "mixes names with other things"),
        ([[0, 1]], ValueError, "one class per point"),
    ],
)
def test_classes_that_are_refused(values, error, message):
    with pytest.raises(error, match=message):
        class_codes(np.array(values, object) if error is TypeError else values)


def test_points_of_unknown_class_do_not_enter_the_scores():
    truth = IRIS.labels.astype(float)
    fit = gmm(IRIS.x, truth=np.where(np.arange(150) % 2, truth, np.nan))
    row = sb.compare({"a": fit}).frame.iloc[0]
    assert row["ari"] == score_labels(truth[1::2], fit.labels()[1::2])["ari"]
    fit.plot()
    with pytest.raises(ValueError, match="150 points of known class have at most|names no class"):
        sb.simulate_links(np.full(4, np.nan), 1)


@pytest.fixture
def folder(tmp_path):
    table = FRAME.assign(kind=np.array(["u", "v", ""])[IRIS.labels], note="word").head(120)
    table.to_csv(tmp_path / "plain.csv", index=False)
    table.drop(columns=["kind", "note"]).to_csv(tmp_path / "indexed.csv")
    table.drop(columns=["kind", "note"]).to_csv(
        tmp_path / "headless.csv", index=False, header=False
    )
    pd.DataFrame(IRIS.x).to_csv(tmp_path / "counted.csv", index=False)
    FRAME.to_csv(tmp_path / "strange.csv", index_label="", header=NAMES)
    strange = pd.read_csv(tmp_path / "strange.csv")
    strange.iloc[::-1].to_csv(tmp_path / "strange.csv", index=False)
    table.head(0).to_csv(tmp_path / "none.csv", index=False)
    return tmp_path


def test_tables_of_classes_and_words(folder):
    data = sb.load_dataset(str(folder / "plain.csv"), label="kind", drop=["note"])
    assert data.feature_names == NAMES
    assert data.num_classes == 2
    assert np.bincount(data.labels + 1).tolist() == [20, 50, 50]
    with pytest.warns(sb.SideBayesWarning, match="counts the rows; it is left out"):
        assert sb.load_dataset(str(folder / "indexed.csv")).feature_names == NAMES
    assert sb.load_dataset(str(folder / "counted.csv")).x.shape == (150, 4)


def test_a_table_of_classes_and_words_is_fitted_on_the_command_line(folder, monkeypatch):
    x = FRAME[["a", "b", "c"]].to_numpy()
    params = {"weights": [0.5, 0.5], "mean": x[[0, -1]], "covariance": [np.eye(3)] * 2}
    monkeypatch.setattr("sidebayes.commands.fitting.make_engine", lambda *_: at_one(params))
    chosen = ["--label", "kind", "--drop", "note", "--drop", "d"]
    command = ["fit", "gmm", str(folder / "plain.csv"), *chosen]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "2 clusters" in result.stdout


@pytest.mark.parametrize("name", ["id", "rownames", "Row.names", "visit"])
def test_columns_that_look_like_row_numbers_are_pointed_out(folder, name):
    rng = np.random.default_rng(0)
    index = np.arange(1, 21) if name == "visit" else rng.permutation(20)
    pd.DataFrame({"a": rng.normal(size=20), name: index}).to_csv(folder / "id.csv", index=False)
    with pytest.warns(sb.SideBayesWarning, match=f"column '{name}' .* row number.*--drop {name}"):
        assert sb.load_dataset(str(folder / "id.csv")).feature_names == ["a", name]
    assert sb.load_dataset(str(folder / "id.csv"), drop=[name]).feature_names == ["a"]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("plain", {}, r"columns \['kind', 'note'\] are not numbers.*--label.*--drop"),
        ("plain", {"label": "no"}, "has no column 'no'"),
        ("plain", {"drop": ["no"]}, "has no column 'no'"),
        ("plain", {"drop": "kind", "label": "kind"}, "both label and dropped"),
        ("headless", {}, "the first line, 5.1, 3.5, .* put a line of names before it"),
        ("strange", {}, r"columns \['Unnamed: 0'\] have no name"),
        ("none", {"label": "kind", "drop": "note"}, "none.csv has 0 rows and 4 features"),
        ("missing", {}, "there is no file"),
    ],
)
def test_tables_that_are_refused(folder, name, given, message):
    with pytest.raises(ValueError, match=message):
        sb.load_dataset(str(folder / f"{name}.csv"), **given)


MISREAD = {
    "semicolons": ("u;v\n0,126;-0,132\n0,5;1,5\n", "semicolons between its columns.*sep=';'"),
    "tabs": ("u\tv\n0.1\t0.2\n", "tabs between its columns"),
    "a name too few": (
        "u,v\n1.5,2.5,3.5\n2.0,1.0,0.5\n",
        "names 2 columns, u, v, and others hold more",
    ),
}


@pytest.mark.parametrize("kind", MISREAD)
def test_lines_that_would_be_read_as_other_numbers_are_refused(kind, tmp_path):
    path, (text, message) = tmp_path / "table.csv", MISREAD[kind]
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        sb.load_dataset(str(path))


def test_a_comma_at_the_end_of_lines_is_no_column(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("u,v\n1.5,2.5,\n2.0,1.0,\n")
    np.testing.assert_array_equal(sb.load_dataset(str(path)).x, [[1.5, 2.5], [2.0, 1.0]])


def test_links_whose_header_lacks_a_name_are_refused(tmp_path):
    path = tmp_path / "links.csv"
    path.write_text("i,j,weight\n0,1,2.0,7\n2,30,3.0,8\n")
    with pytest.raises(ValueError, match="names 3 columns, i, j, weight"):
        sb.Links.read(path)


def test_files_of_other_kinds_are_no_data_sets(tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text("u\tv\n1\t2\n")
    with pytest.raises(ValueError, match="is there, but no table that is read"):
        sb.load_dataset(str(path))
    with pytest.raises(ValueError, match="there is no file"):
        sb.load_dataset(str(tmp_path / "missing.tsv"))


def test_label_and_drop_are_of_tables():
    with pytest.raises(ValueError, match="label and drop are for tables, and 'iris' is none"):
        sb.load_dataset("iris", drop="a")
    for seed in (-1, 1.5, "a", True):
        with pytest.raises(ValueError, match="expected an integer >= 0"):
            sb.load_dataset("art1", seed=seed)
        with pytest.raises(ValueError, match="expected an integer >= 0"):
            sb.simulate_links(IRIS.labels, 3, seed=seed)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--links", "a.csv", "--weight", "2"], "--weight 2.0 is of simulated links"),
        (["--links", "a.csv", "--flip-rate", "0.1"], "--flip-rate 0.1 is of simulated links"),
        (["--flip-rate", "0.0"], "--flip-rate 0.0 is of simulated links"),
        (["--learn-reliability"], "--learn-reliability needs links"),
        (["--label", "kind"], "iris has no column 'kind'"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(flags, message):
    result = CliRunner().invoke(app, ["fit", "ppc", "iris", *flags])
    assert result.exit_code == 2
    assert message in result.stderr


def test_advice_on_missing_outcomes_suits_their_shape():
    with pytest.raises(ValueError, match=r"rows = np.isfinite\(y\), with y\[rows\], or impute$"):
        check_data([1.0, np.nan], "y", ("rows",))


@pytest.mark.parametrize(
    ("lacking", "kept"),
    [
        (
            "y",
            r"with y\[rows\], inputs\[rows\] and subjects\[rows\], or pass observed = "
            r"np.isfinite\(y\) and y = np.where\(observed, y, 0\)$",
        ),
        ("inputs", r"with inputs\[rows\], y\[rows\] and subjects\[rows\], or impute$"),
    ],
)
def test_advice_on_missing_values_cuts_all_that_runs_over_their_rows(lacking, kept):
    """Links join subjects, and stay as they are; they are cut where they join rows."""
    given = {"y": [1.0, 2.0, 3.0], "inputs": [0.0, 1.0, 2.0], "subjects": ["a", "a", "b"]}
    given[lacking] = [1.0, np.nan, 3.0]
    links = sb.Links.from_pairs([(0, 1)], True)
    with pytest.raises(ValueError, match=kept):
        sb.fit("trajectories", **given, links=links)
    with pytest.raises(ValueError, match=r"with x\[rows\] and links.subset\(rows\), or impute$"):
        sb.fit("ppc", [[1.0], [np.nan]], links, num_clusters=2)


DAYS = np.array(["2020-01-01", "2020-01-03"], "datetime64[s]")


@pytest.mark.parametrize(
    ("days", "what"),
    [
        (DAYS, "x"),
        (DAYS - DAYS[0], "x"),
        (pd.Series(DAYS), "x"),
        (pd.DataFrame({"a": [1.0, 2.0], "day": DAYS}), "column 'day' of x"),
    ],
)
def test_dates_become_numbers(days, what):
    message = (
        rf"{what} holds dates or durations \(.*64\[\w*\]\); turn them into numbers, such as days"
    )
    with pytest.raises(TypeError, match=message):
        check_data(days, dims=("rows", "..."))
    with pytest.raises(TypeError, match="x holds dates or durations"):
        real_array("x", DAYS)
