"""Which files and columns `scan` takes as one table, and what fits of tables refuse before they read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sidebayes.guides.engines.expectation_maximisation.streamed_data import look_over

import sidebayes
from sidebayes.runs.cards import resolve
from sidebayes.runs.zoo import ENGINES
from sidebayes.streams import _READING, _counted_from

pytest.importorskip("pyarrow")

FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), columns=["a", "b"])
BOTH = np.concatenate([FRAME, FRAME])


@pytest.fixture(params=["parquet", "feather"])
def written(request, tmp_path):
    """Paths of tables, by name."""

    def save(**frames):
        paths = []
        for name, frame in frames.items():
            paths.append(tmp_path / f"{name}.{request.param}")
            getattr(frame, f"to_{request.param}")(paths[-1])
        return paths

    return save


def test_folders_and_patterns_are_refused_with_the_list_of_their_files(tmp_path):
    folder = tmp_path / "all.parquet"  # as Spark and Dask write one
    folder.mkdir()
    with pytest.raises(ValueError, match=r"is a folder without files of \.parquet, .*give a file"):
        sidebayes.scan(folder)
    for number in range(2):
        FRAME.to_parquet(folder / f"part.{number}.parquet")
    patterns = folder / "*.parquet", folder / "part.?.parquet", tmp_path / "*" / "part.*.parquet"
    for given in (folder, *patterns):
        with pytest.raises(ValueError, match=r"give the list of its files, sorted\(") as caught:
            sidebayes.scan(given)
        paths = eval(str(caught.value).split("files, ")[1], {"Path": Path})
        np.testing.assert_array_equal(sidebayes.scan(paths).to_numpy(), BOTH)


def test_a_row_of_several_files_is_named_by_its_file_and_column(written, monkeypatch):
    monkeypatch.setattr("sidebayes.data.scan._FEW", 10)  # blocks of five rows
    bad, huge = FRAME.copy(), FRAME.copy()
    bad.loc[7, "b"], huge.loc[7, "b"] = np.nan, 1e200
    first, last, large = written(first=FRAME, last=bad, large=huge)
    with pytest.raises(ValueError, match=rf"in row 47 \(row 7 of {last}\), column 'b'; drop"):
        look_over(sidebayes.scan([first, last]), 10, 0, progress=False)
    with pytest.raises(ValueError, match=rf"1e\+200 in row 47 \(row 7 of {large}\), one of the"):
        look_over(sidebayes.scan([first, large]), 10, 0, progress=False)
    with pytest.raises(ValueError, match=r"in row 7, column 'b'; drop"):
        look_over(sidebayes.scan(last), 10, 0, progress=False)
    with (
        pytest.raises(ValueError, match=rf"^with row 45 \(row 5 of {last}\) of the table as row 0"),
        _counted_from(45, sidebayes.scan([first, last])),
    ):
        raise ValueError("x has missing values in row 2")


OTHERS = {
    "order": FRAME[["b", "a"]],
    "text": FRAME.assign(note="x"),
    "more": FRAME.assign(extra=1.0),
}


@pytest.mark.parametrize("other", OTHERS)
def test_chosen_columns_are_read_by_name_from_every_file(written, other):
    paths = written(plain=FRAME, other=OTHERS[other])
    for some in (paths, paths[::-1]):
        table = sidebayes.scan(some, columns=["b", "a"])
        np.testing.assert_array_equal(table.to_numpy(), BOTH[:, ::-1])


def test_another_order_of_columns_is_read_by_name(written):
    table = sidebayes.scan(written(plain=FRAME, other=OTHERS["order"]))
    assert table.names == ("a", "b")
    np.testing.assert_array_equal(table.to_numpy(), BOTH)


@pytest.mark.parametrize("other", ["text", "more"])
def test_columns_of_some_files_alone_are_refused_wherever_they_are(written, other):
    paths = written(plain=FRAME, other=OTHERS[other])
    for some in (paths, paths[::-1]):
        with pytest.raises(
            ValueError, match=r"give files with the same columns, or choose .*columns="
        ):
            sidebayes.scan(some)


def test_a_column_that_is_text_in_a_later_file_is_refused(written):
    paths = written(plain=FRAME, other=FRAME.assign(b="x"))
    with pytest.raises(TypeError, match=r"other\.\w+ has columns \['b'\] that are not numbers"):
        sidebayes.scan(paths)
    with pytest.raises(ValueError, match=r"other\.\w+ has no columns \['c'\]"):
        sidebayes.scan(written(plain=FRAME.assign(c=1.0), other=FRAME), columns=["c"])


def test_what_has_no_order_or_counts_twice_is_refused(written):
    (path,) = written(plain=FRAME)
    with pytest.raises(TypeError, match="columns is a set, which has no order"):
        sidebayes.scan(path, columns={"a", "b"})
    with pytest.raises(ValueError, match="is given twice"):
        sidebayes.scan([path, path.parent / "." / path.name])


@pytest.mark.parametrize(
    ("values", "error", "said"),
    [
        (np.zeros(30), ValueError, r"shape \(30,\), .*write x\[:, None\]"),
        (np.zeros((3, 4, 2)), ValueError, r"write x.reshape\(len\(x\), -1\)"),
        (
            np.zeros((3, 2), complex),
            TypeError,
            "array of complex128, .*imaginary part into .*write it as float64",
        ),
        (np.array([[1, None]], object), TypeError, "array of object, .*write it as float64"),
        (np.array([["a", "b"]]), TypeError, "array of <U1, .*write it as float64"),
    ],
)
def test_an_array_that_is_no_table_has_its_own_remedy(tmp_path, values, error, said):
    np.save(tmp_path / "one.npy", values)
    with pytest.raises(error, match=said) as caught:
        sidebayes.scan(tmp_path / "one.npy")
    assert "whole file" not in str(caught.value)


def test_data_beside_a_table_are_refused_before_their_number(tmp_path, monkeypatch):
    """Known classes have a row each in the table, and not in the sample that stands for it."""
    monkeypatch.setattr("sidebayes.streams._SAMPLE", 20)
    np.save(tmp_path / "points.npy", FRAME)
    table = sidebayes.scan(tmp_path / "points.npy")
    known = np.where(np.arange(40) % 4, -1, 0)
    for data, named in (((known,), {}), ((), {"known": known})):
        with pytest.raises(ValueError, match="neither links nor other data beside it"):
            sidebayes.fit("moe", table, *data, num_clusters=2, num_classes=2, **named)


@pytest.mark.parametrize(
    ("method", "engine", "said"),
    [
        (
            "feature_saliency",
            None,
            "feature_saliency needs all rows in memory, .*engine='svi' reads",
        ),
        (
            "feature_saliency",
            "em",
            "feature_saliency needs all rows in memory, .*engine='svi' reads",
        ),
        ("mcp", None, "mcp needs all rows in memory, .*none of its engines"),
        ("gmm", "em", "engine='stochastic_em' or 'cavi' or 'svi'; gmm by another"),
    ],
)
def test_a_method_that_reads_no_tables_says_so(tmp_path, method, engine, said):
    np.save(tmp_path / "points.npy", FRAME)
    table = sidebayes.scan(tmp_path / "points.npy")
    with pytest.raises(ValueError, match=said) as caught:
        sidebayes.fit(method, table, num_clusters=2, engine=engine)
    assert "does not suit" not in str(caught.value)


def test_engines_that_read_tables_are_those_that_say_so():
    assert {name for name, path in ENGINES.items() if resolve(path).streams} == set(_READING)


def test_columns_that_are_no_list_and_files_of_text_are_refused(written, tmp_path):
    (path,) = written(plain=FRAME)
    with pytest.raises(TypeError, match=r"columns = 5; give a list of names"):
        sidebayes.scan(path, columns=5)
    (tmp_path / "text.npy").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"does not begin as those of numpy.save\); give a whole"):
        sidebayes.scan(tmp_path / "text.npy")


def test_a_table_without_numbers_is_refused_without_advice_to_choose(written):
    (path,) = written(words=pd.DataFrame({"a": ["x"], "b": ["y"]}))
    with pytest.raises(TypeError, match=r"\['a', 'b'\] that are not numbers; it has no others"):
        sidebayes.scan(path)


@pytest.mark.parametrize("columns", [None, ["a"]])
def test_columns_of_the_same_name_are_refused(columns, tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = arrow.Table.from_arrays([arrow.array([1.0])] * 2, names=["a", "a"])
    parquet.write_table(table, tmp_path / "double.parquet")
    with pytest.raises(
        ValueError, match=r"double.parquet has several columns of the names \['a'\]"
    ):
        sidebayes.scan(tmp_path / "double.parquet", columns=columns)
