"""What the command line refuses before it takes time."""

import pandas as pd
import pytest
from typer.testing import CliRunner

import sidebayes
from sidebayes.cli import app
from sidebayes.runs.zoo import CARDS

WITHOUT_LABELS = {"mixed_effects", "joint_survival", "geodesic_embedding"}


def fit_first(*_, **__):
    raise AssertionError("the source was fitted first")


def test_the_number_of_known_classes_is_checked_before_the_source_is_fitted(monkeypatch):
    monkeypatch.setattr(sidebayes, "fit_source", fit_first)
    call = ["fit", "domain_adaptation", "iris", "--source", "iris", "--num-known", "0"]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 2
    assert "--num-known 0: 150 classes are known; give 1 to 150" in result.stderr


def test_classes_of_the_source_are_in_the_column_of_known_where_no_label_is_named(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame({"a": [0.1, 1.2, 0.2, 1.1], "kind": ["no", "yes", "no", "yes"]})
    table.to_csv("source.csv", index=False)
    table.assign(kind=["no", "", "yes", ""]).to_csv("target.csv", index=False)
    seen = []
    monkeypatch.setattr(
        sidebayes, "fit_source", lambda x, labels, **_: seen.append(labels) or fit_first()
    )
    call = ["fit", "domain_adaptation", "target.csv", "--known", "kind", "--source"]
    CliRunner().invoke(app, [*call, "source.csv"])
    assert seen[0].names == ("no", "yes")
    assert seen[0].values.tolist() == [0, 1, 0, 1]
    table.rename(columns={"kind": "sort"}).to_csv("other.csv", index=False)
    refused = CliRunner().invoke(app, [*call, "other.csv"])
    assert refused.exit_code == 2
    assert (
        "other.csv has no column 'label' or 'kind'; name the one with its classes by"
        in refused.stderr
    )


def test_the_column_of_label_may_be_in_the_source_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame({"a": [0.1, 1.2, 0.2, 1.1], "kind": ["no", "yes", "no", "yes"]})
    table.to_csv("source.csv", index=False)
    told = table.rename(columns={"kind": "told"}).assign(told=["no", "", "yes", ""])
    told.to_csv("target.csv", index=False)
    seen = []
    monkeypatch.setattr(
        sidebayes, "fit_source", lambda x, labels, **_: seen.append((x, labels)) or fit_first()
    )
    call = ["fit", "domain_adaptation", "target.csv", "--known", "told", "--source", "source.csv"]
    CliRunner().invoke(app, [*call, "--label", "kind"])
    assert list(seen[0][0]) == ["a"]
    assert seen[0][1].values.tolist() == [0, 1, 0, 1]
    refused = CliRunner().invoke(app, [*call, "--label", "kin"])
    assert "target.csv has no column 'kin'" in refused.stderr


def test_classes_that_are_named_otherwise_are_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame({"a": [0.1, 1.2, 0.2, 1.1], "kind": ["no", "yes", "no", "yes"]})
    table.to_csv("source.csv", index=False)
    table.assign(kind=[1, 2, 1, 2], told=["1", "?", "2", "?"]).to_csv("target.csv", index=False)
    call = ["fit", "moe", "target.csv", "--label", "kind", "--known", "told"]
    message = (
        "columns 'told' and 'kind' name classes differently, such as '?' and 1; write the same"
    )
    assert message in CliRunner().invoke(app, call).stderr
    call = ["fit", "domain_adaptation", "target.csv", "--drop", "told", "--num-known", "2"]
    refused = CliRunner().invoke(app, [*call, "--label", "kind", "--source", "source.csv"])
    assert "columns 'kind of source.csv' and 'kind' name classes differently" in refused.stderr


@pytest.mark.filterwarnings("always::sidebayes.SideBayesWarning")
def test_marks_of_missing_classes_are_pointed_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame({"a": [0.1, 1.2, 0.2, 1.1], "told": ["no", "?", "yes", "?"]})
    table.to_csv("table.csv", index=False)
    call = ["fit", "moe", "table.csv", "--known", "told", "--option", "covariance=odd"]
    said = CliRunner().invoke(app, call).stderr
    assert said.count("'?'") == 1
    assert "column 'told' holds '?' in 2 of 4 rows, which is read as the name of a class" in said


@pytest.mark.parametrize("name", CARDS)
def test_labels_that_there_are_none_of_are_refused_before_a_fit(name, monkeypatch):
    monkeypatch.setattr("sidebayes.commands.fitting.fit_asked", fit_first)
    result = CliRunner().invoke(app, ["fit", name, "iris", "--labels", "labels.csv"])
    refused = f"--labels labels.csv: {name} puts nothing into clusters or classes" in result.stderr
    assert refused == (name in WITHOUT_LABELS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "fit gmm table.csv --label kind --num-clusters 2",
            "x has constant features, in columns 'c d'; they say nothing about clusters: leave them out by "
            "--drop 'c d'",
        ),
        (
            "fit mixed_effects table.csv --formula y~a+(1|kind)",
            "columns ['y'] are incomplete in 1 row, the first [1]; delete them in the file",
        ),
        (
            "fit mixed_effects table.csv --formula z~a+(1|kind)",
            "the response 'z' is no column of numbers: row 2 holds '.'",
        ),
        ("fit gmm semicolons.csv --num-clusters 2", "with points in numbers\n"),
    ],
)
def test_remedies_are_those_of_the_command_line(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = ["no", "yes", "no", "yes"]
    table = pd.DataFrame({"a": [0.1, 1.2, 0.2, 1.1], "c d": 1.0, "kind": kind})
    if "gmm" not in call:
        pytest.importorskip("formulae")
        table = table.assign(y=[1, None, 2, 3], z=["1", "2", ".", "3"])
    table.to_csv("table.csv", index=False)
    table.to_csv("semicolons.csv", index=False, sep=";")
    said = CliRunner().invoke(app, call.split(" ")).stderr
    assert message in said
    assert "table." not in said.replace("table.csv", "")


@pytest.mark.filterwarnings("always::sidebayes.SideBayesWarning")
def test_a_file_without_links_is_pointed_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(columns=["i", "j", "weight"]).to_csv("links.csv", index=False)
    call = ["fit", "ppc", "iris", "--links", "links.csv", "--option", "covariance=odd"]
    assert "--links links.csv holds no links" in CliRunner().invoke(app, call).stderr
