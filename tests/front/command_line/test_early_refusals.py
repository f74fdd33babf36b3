"""What the command line refuses before it takes time."""

import pandas as pd
from typer.testing import CliRunner

import sidebayes
from sidebayes.cli import app


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
