"""What may be written for a must-link and a cannot-link, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from sidebayes.models.blocks.side_information.link_weights import certainty_weight
from sidebayes.models.blocks.side_information.links import Links
from typer.testing import CliRunner

import sidebayes
from sidebayes.cli import app

PAIRS = [(0, 1), (1, 2), (2, 3), (4, 5)]
SPELLINGS = [
    [True, False, False, True],
    ["true", "false", "FALSE", " True"],
    ["yes", "no", "No", "yes "],
    ["must", "cannot", "cannot", "must"],
    [1, 0, 0, 1],
    [1, -1, -1, 1],
    [1.0, 0.0, 0.0, 1.0],
    ["1", "-1", "-1", "1"],
    np.array([True, "no", 0, 1], object),
]
STRANGE = ["maybe", "", None, np.nan, 2, -2, 0.5, "y", "cannot link", "nan"]


def written(path, columns):
    pd.DataFrame({"i": [0, 1, 2, 4], "j": [1, 2, 3, 5]} | columns).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("same", SPELLINGS, ids=str)
def test_one_meaning_wherever_it_is_written(tmp_path, same):
    expected = [True, False, False, True]
    np.testing.assert_array_equal(Links.from_pairs(PAIRS, same).same, expected)
    np.testing.assert_array_equal(Links.from_confidence(PAIRS, same, 0.9).same, expected)
    np.testing.assert_array_equal(certainty_weight(0.9, same, [0.5, 0.5]) > 0, expected)
    read = Links.read(written(tmp_path / "links.csv", {"same": same}))
    np.testing.assert_array_equal(read.same, expected)
    assert read.hard.all()
    sure = Links.read(written(tmp_path / "links.csv", {"same": same, "confidence": 0.8}))
    np.testing.assert_allclose(sure.weights, np.log(4) * np.array([1, -1, -1, 1]))


@pytest.mark.parametrize("value", STRANGE, ids=repr)
def test_anything_else_is_refused_with_its_row(tmp_path, value):
    same = np.array([True, False, value, True], object)
    path = written(tmp_path / "links.csv", {"same": same})
    makers = {
        "pairs": lambda: Links.from_pairs(PAIRS, same),
        "confidence": lambda: Links.from_confidence(PAIRS, same, 0.9),
        "file": lambda: Links.read(path),
    }
    for maker in makers.values():
        with pytest.raises(
            ValueError, match=r"same\[2\].*expected true/false, yes/no, must/cannot"
        ):
            maker()


@pytest.mark.parametrize("same", [[1, 0, -1], ["yes", " 0", "-1"], [1.0, 0.0, -1.0]], ids=str)
def test_a_zero_beside_minus_one_may_be_no_statement(tmp_path, same):
    with pytest.raises(
        ValueError, match=r"same\[1\] = .* beside same\[2\] = .*Drop the links with 0"
    ):
        sidebayes.Links.from_pairs(PAIRS[:3], same)
    table = pd.DataFrame({"i": [0, 1, 2], "j": [1, 2, 3], "same": same})
    table.to_csv(tmp_path / "links.csv", index=False)
    with pytest.raises(ValueError, match=r"links.csv: same\[1\]"):
        sidebayes.Links.read(tmp_path / "links.csv")


def test_nullable_columns_are_read_like_others():
    """Integers, floats and truth values of pandas that may be missing; a missing class is not known."""
    pairs = pd.DataFrame(PAIRS, columns=["i", "j"], dtype="Int64")
    weights = pd.Series([1, 2, 3, 4], dtype="Float64")
    links = sidebayes.Links(pairs, weights)
    np.testing.assert_array_equal(links.pairs, PAIRS)
    np.testing.assert_array_equal(links.weights, [1, 2, 3, 4])
    pairs.loc[2, "j"] = pd.NA
    with pytest.raises(ValueError, match=r"links\[2\] has a missing row number; drop it"):
        sidebayes.Links(pairs, weights)
    unknown = [
        [0, 1, 1, None],
        [0.0, 1.0, 1.0, np.nan],
        pd.Series([0, 1, 1, pd.NA], dtype="Int64"),
        pd.Series([0, 1, 1, pd.NA], dtype="Float64"),
    ]
    named = [["a", "b", "b", None], pd.Series([False, True, True, pd.NA], dtype="boolean")]
    for labels in (*unknown, *named):
        np.testing.assert_array_equal(sidebayes.PartialLabels(labels).classes, [0, 1, 1, -1])
        np.testing.assert_array_equal(sidebayes.Links.from_labels(labels).pairs, [[1, 2], [0, 1]])
    for labels in ([1, -1, 1, -1], np.array([1.0, -1.0, np.nan])):
        with pytest.raises(ValueError, match="labels holds -1 and 1 only"):
            sidebayes.Links.from_labels(labels)
    for labels in ([1, None, 1], sidebayes.PartialLabels([1, -1, 1])):
        assert sidebayes.Links.from_labels(labels).num_links == 1
    truth = sidebayes.PartialLabels(np.array([True, False]))
    assert (truth.names, truth.classes.tolist()) == (("False", "True"), [1, 0])
    with pytest.raises(TypeError, match="labels must be integers"):
        sidebayes.PartialLabels([0.5, np.nan])


def test_the_command_line_reads_the_same_words(tmp_path):
    data = "four_gaussians"
    path = written(tmp_path / "links.csv", {"same": ["yes", "no", "maybe", "yes"]})
    result = CliRunner().invoke(app, ["fit", "ppc", data, "--links", str(path)])
    assert result.exit_code == 2
    assert "links.csv: same[2] = 'maybe'; expected true/false" in result.stderr


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"weight": [1.0, -2.0, 3.0, 0.5], "same": ["must", "cannot", "no", "yes"]},
            r"weight\[2\] = 3.0 and same\[2\] = 'no' disagree",
        ),
        ({"weight": [1.0, -2.0, np.nan, 0.5]}, r"weight\[2\] is blank; expected a number"),
        ({"weight": [1.0, "much", 2, 0.5]}, r"weight\[1\] = 'much'; expected a number"),
        ({"same": 1, "confidence": [0.5, 0.9, "?", 1]}, r"confidence\[2\] = '\?'"),
        ({"same": 1, "confidence": 1.2}, r"confidence\[0\] = 1.2 is not a probability"),
        ({"weight": 1.0, "confidence": 0.9}, "both say how strong"),
        ({"same": 1, "i": [0, 1, None, 3]}, r"i\[2\] is blank; expected the number of a row"),
        ({"same": 1, "j": [1, 2.5, 3, 5]}, r"j\[1\] = 2.5; expected the number of a row"),
        ({}, "either 'weight' or 'same'"),
    ],
    ids=str,
)
def test_a_table_that_cannot_be_read(tmp_path, columns, message):
    with pytest.raises(ValueError, match=message):
        Links.read(written(tmp_path / "links.csv", columns))


def test_weights_and_statements_that_agree(tmp_path):
    columns = {"weight": [1.0, -2.0, -np.inf, 0.5], "same": ["yes", "no", "no", "yes"]}
    links = Links.read(written(tmp_path / "links.csv", columns), 6)
    np.testing.assert_array_equal(links.weights, columns["weight"])


def test_written_links_are_read_back(tmp_path):
    links = sidebayes.simulate_links(np.arange(9) % 3, 7, weight=1.5, seed=1)
    links.write(tmp_path / "links.csv")
    again = Links.read(tmp_path / "links.csv", 9)
    np.testing.assert_array_equal(again.pairs, links.pairs)
    np.testing.assert_array_equal(again.weights, links.weights)


@pytest.mark.parametrize("name", ["links.parquet", "links.feather", "links.csv.gz"])
def test_links_in_other_formats(name, tmp_path):
    links = Links([(0, 1), (2, 5)], [np.inf, -1.5], num_points=8)
    links.write(tmp_path / name)
    found = Links.read(tmp_path / name, num_points=8)
    np.testing.assert_array_equal(found.pairs, links.pairs)
    np.testing.assert_array_equal(found.weights, links.weights)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"PAR1junk", bytes(range(256))])
@pytest.mark.parametrize("name", ["links.csv", "links.parquet"])
def test_files_that_hold_no_links(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} (could not be read as a table|has columns)"):
        Links.read(tmp_path / name)


def test_strengths_are_not_negative():
    with pytest.raises(
        ValueError, match=r"weight\[0\] = -3.0 is negative.*are links of Links.cannot_link"
    ):
        sidebayes.Links.from_groups([0, 0, 1], -3)
