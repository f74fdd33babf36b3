"""Codes in CSV, whole numbers with zeros before them, are text in whatever column they stand."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

import sidebayes
from sidebayes.commands.columns import NamedTable
from sidebayes.common.files import read_table


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (["007", "7", "012"], ["007", "7", "012"]),  # a column of both is text
        (["007", "", " 7"], ["007", None, "7"]),
        (["00", "NA", "1"], ["00", None, "1"]),
        (["7", "12", ""], [7.0, 12.0, None]),
        (["0", "-1", "10"], [0, -1, 10]),
        (["08.5", "09", "10"], [8.5, 9.0, 10.0]),  # measurements of one width
        (["007", "-7", "8"], [7, -7, 8]),
    ],
)
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_a_column_with_codes_is_text(written, wanted, ending, tmp_path):
    path = tmp_path / f"table{ending}"
    lines = [f'{cell},x,"{place}.5"' for place, cell in enumerate(written)]
    opened = gzip.open if ending.endswith("gz") else open
    with opened(path, "wt", newline="") as file:
        file.write("\r\n".join(["code,name,y", *lines, ""]))
    found = read_table(path)
    assert [None if pd.isna(one) else one for one in found["code"].tolist()] == wanted
    assert found["y"].tolist() == [0.5, 1.5, 2.5]


def test_codes_at_the_end_of_a_line_and_in_quotes(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text('x,code\n1,"01"\n2,1\n')
    assert read_table(path)["code"].tolist() == ["01", "1"]


def test_who_states_links_is_named_as_written(tmp_path):
    path = tmp_path / "links.csv"
    path.write_text("i,j,same,group,seen_by\n0,3,yes,01,007\n01,4,no,1,\n")
    links = sidebayes.Links.read(path)
    assert links.pairs.tolist() == [[0, 3], [1, 4]]
    assert links.group.names.tolist() == ["01", "1"]
    assert links.columns["seen_by"].tolist() == ["007", ""]


def test_covariates_of_the_command_line_are_categories(tmp_path):
    pytest.importorskip("formulae")
    path = tmp_path / "table.csv"
    table = pd.DataFrame({"who": np.repeat(["01", "02", "3"], 2), "y": np.arange(6.0)})
    table.assign(ward=["007", "007", "7", "7", "012", "012"]).to_csv(path, index=False)
    frame = NamedTable.read(str(path), None, (), ["who"]).frame
    data = sidebayes.design("y ~ ward + (1 | who)", frame)
    assert data["fixed"].columns.tolist() == ["Intercept", "ward[012]", "ward[7]"]
    assert sidebayes.Groups(data["subjects"]).names.tolist() == ["01", "02", "3"]


def test_codes_are_no_features(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("x,ward\n1,012\n2,7\n")
    said = r"columns \['ward'\] are not numbers \('ward' holds codes such as '012'; write numbers without"
    with pytest.raises(ValueError, match=said):
        sidebayes.load_dataset(str(path))
    table = NamedTable.read(str(path), None, ())
    with pytest.raises(ValueError, match=said):
        table.numbers(table.frame)


def test_covariates_of_landmarks_keep_codes_beside_blanks(tmp_path):
    rows = [
        f"{who},{mark},{x},{mark},{ward}"
        for who, ward in (("a", "007"), ("b", ""), ("c", "7"))
        for mark, x in enumerate("123")
    ]
    path = tmp_path / "shapes.csv"
    path.write_text("\n".join(["individual,landmark,x,y,ward", *rows, ""]))
    covariates = sidebayes.read_landmarks(path).covariates
    assert covariates["ward"].fillna("").tolist() == ["007", "", "7"]
