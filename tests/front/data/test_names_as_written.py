"""Names of units and classes in CSV are those that are written, not the numbers they look like."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pandas as pd
import pytest

import sidebayes
from sidebayes.commands.columns import NamedTable
from sidebayes.commands.fitting import Asked, _units_named
from sidebayes.commands.given import Arguments
from sidebayes.data.frames import read_frame, with_names
from sidebayes.runs.zoo import find_card


def written(tmp_path, **columns):
    """A table of CSV, its columns given as text."""
    path = tmp_path / "table.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["1.1", "1.10", "1.2"], ["1.1", "1.10", "1.2"]),
        (["007", "7", "8"], ["007", "7", "8"]),
        (
            ["123456789012345678", "123456789012345679", ""],
            ["123456789012345678", "123456789012345679"],
        ),
        (["10", "9", "2"], [10, 9, 2]),
        (["1", "1.0", "2"], ["1", "1.0", "2"]),
        (["1.0", "2.0", ""], [1, 2]),
        (["a", " a", "b"], ["a", "a", "b"]),
    ],
)
def test_units_have_the_names_that_are_written(names, wanted, tmp_path):
    path = written(tmp_path, person=names, y=["1.10", "2", "3"])
    found = with_names(read_frame(path), path, units=["person", "not there"])
    assert found["person"].dropna().tolist() == wanted
    assert found["y"].tolist() == [1.1, 2, 3]


def test_classes_with_decimals_stay_numbers_and_are_refused(tmp_path):
    path = written(tmp_path, x=["1", "2", "3", "4"], site=["1.1", "1.10", "1.1", "1.10"])
    with pytest.raises(ValueError, match="1.1 is no class; give whole numbers or names"):
        sidebayes.load_dataset(str(path), label="site")
    path = written(tmp_path, x=["1", "2", "3", "4"], site=["01", "1", "01", "1"])
    assert sidebayes.load_dataset(str(path), label="site").labels.tolist() == [0, 1, 0, 1]


def test_words_that_are_read_as_missing_are_said(tmp_path):
    path = written(tmp_path, x=["1", "NA", "3", "4"], arm=["drug", "None", "", "None"])
    message = r"column 'arm' holds \['None'\] in 2 rows, which is read as missing"
    with pytest.warns(sidebayes.SideBayesWarning, match=message):
        assert sidebayes.load_dataset(str(path), label="arm").labels.tolist() == [0, -1, -1, -1]


def test_individuals_with_landmarks_have_their_names(tmp_path):
    names, marks = ["1.1", "1.10", "007", "7"], ["1", "2", "10"]
    places = np.random.default_rng(0).normal(size=(12, 2)).astype(str)
    columns = {"individual": np.repeat(names, 3), "landmark": np.tile(marks, 4)}
    arms = np.repeat(["drug", "None", "drug", "drug"], 3)
    path = written(tmp_path, **columns, x=places[:, 0], y=places[:, 1], arm=arms)
    with pytest.warns(sidebayes.SideBayesWarning, match=r"column 'arm' holds \['None'\] in 3 rows"):
        found = sidebayes.read_landmarks(path)
    assert sorted(found.names) == sorted(names)
    assert found.landmark_names == ("1", "2", "10")


def asked(**flags):
    """Flags of the command line, all others left out."""
    given = dict.fromkeys((one.name for one in fields(Asked)), None)
    return Asked(**{**given, "formula": (), "columns": (), **flags})


@pytest.mark.parametrize(
    ("flags", "columns", "wanted"),
    [
        ({"formula": ["y ~ t + (t | person)"]}, {}, ["person"]),
        ({"formula": ["y ~ t + (t | `my person`)", "z ~ t"]}, {}, ["my person"]),
        ({"group": "person"}, {}, ["person"]),
        ({}, {"subjects": "person", "y": "y"}, ["person"]),
    ],
)
def test_flags_say_which_columns_name_units(flags, columns, wanted):
    to = Arguments(find_card("mixed_effects"))
    assert _units_named(asked(**flags), to, columns) == wanted


def test_a_table_for_the_command_line_has_names_of_groups_and_classes(tmp_path):
    path = written(tmp_path, person=["1.1", "1.10"], known=["01", "1"], label=["a", "b"])
    table = NamedTable.read(str(path), None, (), ["person"], "known")
    assert table.frame["person"].tolist() == ["1.1", "1.10"]
    assert table.frame["known"].tolist() == ["01", "1"]
    assert table.classes.tolist() == ["a", "b"]


def test_columns_that_differ_by_spaces_alone_are_refused(tmp_path):
    path = written(tmp_path, **{"x": ["1", "2"], "label": ["a", "b"], " label": ["b", "a"]})
    with pytest.raises(
        ValueError, match=r"columns of table.csv repeat \['label'\]; give every one"
    ):
        sidebayes.load_dataset(str(path))
