"""Tables of files, and the columns of them that are features."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd

from ..common.columns import first_odd, of_codes, refuse_odd_names

__all__ = ["need_columns", "no_numbers", "place_of", "read_features", "read_frame", "with_names"]

_CSV = (".csv", ".csv.gz")

_OF_ROWS = ("id", "index", "row", "row.names", "row_names", "rowname", "rownames")
"""Names that columns of row numbers have in files of R, pandas and others."""

_WHOLE = r"-?(0|[1-9][0-9]{0,14})([.]0+)?"
"""A whole number that floats hold exactly, written without zeros before it."""

PLAIN = "; write plain numbers, such as 1234.5, and leave an entry blank where its value is missing"
"""How columns are written that should be numbers."""

_TOLD = 3
"""Columns of which a message says what they hold."""

_MANY = 5
"""Rows from which on a measurement does not count them by chance."""


def read_frame(path: Path) -> pd.DataFrame:
    """Read a table whose first line names its columns.

    Raises
    ------
    ValueError
        If the first line is a row of numbers, or names repeat.
    """
    from ..common.files import read_table  # with JAX; names need not wait for it

    table = read_table(path)
    table.columns = [str(column).strip() for column in table.columns]
    names = list(table.columns)
    if _without_header(names):
        raise ValueError(
            f"{path.name}: the first line, {', '.join(names[:5])}, ..., is taken for the names of columns, "
            "and these are numbers; put a line of names before it"
        )
    refuse_odd_names(names, f"the columns of {path.name}")
    return table


def with_names(
    table: pd.DataFrame, path: Path, units: Sequence[str] = (), classes: Sequence[str] = ()
) -> pd.DataFrame:
    """A table whose names of units and classes are as the file has them.

    Read as numbers, the subjects 1.1 and 1.10 would be one, and so would 7 and 007. Whole numbers without
    zeros before them stay numbers, and so do classes with decimals, which are refused as classes later.
    Words that stand for missing values, such as NA, are missing, with a warning.

    Parameters
    ----------
    table : DataFrame
        What `read_frame` read.
    path : path
    units, classes : sequence of str
        Columns; those that the table lacks are left to other checks.
    """
    wanted = [name for name in dict.fromkeys([*units, *classes]) if name in table]
    if not wanted or not path.name.endswith(_CSV):
        return table
    places = sorted(map(list(table).index, wanted))
    text = pd.read_csv(path, index_col=False, usecols=places, dtype=str, keep_default_na=False)
    text.columns = table.columns[places]
    own = {name: _as_written(text[name], table[name], path.name) for name in wanted}
    for name in classes:
        if name in own and _has_decimals(own[name], table[name]):
            own[name] = table[name]
    return table.assign(**own)


def _as_written(text: pd.Series, read: pd.Series, file: str) -> pd.Series:
    """One column of names, given its text, and what was read of it."""
    is_blank = text.str.strip() == ""
    is_word = read.isna() & ~is_blank
    if is_word.any():
        _warn(
            f"{file}: column {text.name!r} holds {sorted(text[is_word].unique())} in {int(is_word.sum())} "
            "rows, which is read as missing; where it is a name, write another one, and leave cells blank "
            "where nothing is known"
        )
    names = text.where(~is_blank & ~is_word).str.strip()
    if not names.dropna().str.fullmatch(_WHOLE).all():
        return names
    numbers = pd.to_numeric(names)
    return numbers if numbers.nunique() == names.nunique() else names  # 1 and 1.0 are two names


def _has_decimals(names: pd.Series, read: pd.Series) -> bool:
    """Whether a column is of numbers that are not whole."""
    return pd.api.types.is_float_dtype(read) and bool(
        names.astype(str).str.contains(".", regex=False).any()
    )


def need_columns(table: pd.DataFrame, names: Sequence[str], file: str) -> None:
    """Refuse names that are no columns of the table."""
    for name in names:
        if name not in table:
            raise ValueError(f"{file} has no column {name!r}; it has {list(table.columns)}")


def place_of(row: int, path: Path | None) -> str:
    """A row of a table for messages: the line of its file where that is CSV."""
    if path is None or not path.name.endswith(_CSV):
        return f"row {row} (from 0 on)"
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        lines = (reader.line_num for cells in reader if len(cells) > 1 or "".join(cells).strip())
        return f"line {next(islice(lines, row + 1, None))}"


def no_numbers(columns: pd.DataFrame, path: Path | None) -> str:
    """Where some columns hold something else than numbers, in brackets; empty where this cannot be said."""
    if codes := of_codes(columns):
        return codes
    rows = {name: row for name in columns if (row := first_odd(columns[name])) is not None}
    told = [
        f"{name!r} holds {columns[name].iloc[row]!r} in {place_of(row, path)}"
        for name, row in list(rows.items())[:_TOLD]
    ]
    return f" ({', '.join(told)})" if told else ""


def read_features(
    table: pd.DataFrame, file: str, used: Sequence[str] = (), path: Path | None = None
) -> pd.DataFrame:
    """Columns that are features: all but those that are used otherwise or left out.

    A column that looks like a number of the row is pointed out by a warning, and left out where it is
    the first and has no name. `path` is that of the table, if it has one, for messages.

    Raises
    ------
    ValueError
        If nothing is left, or columns have no name or hold something else than numbers.
    """
    features = table.drop(columns=list(used))
    first = next(iter(table.columns), None)
    if first in features and _is_unnamed(first) and _counts(features[first]):
        features = features.drop(columns=first)
        _warn(f"{file}: the first column has no name and counts the rows; it is left out")
    if 0 in features.shape:
        rows, columns = features.shape
        raise ValueError(f"{file} has {rows} rows and {columns} features; give some of both")
    text = [c for c in features if not pd.api.types.is_numeric_dtype(features[c])]
    wrong = [*text, *(c for c in features if _is_unnamed(c) and c not in text)]
    if wrong:
        why = "are not numbers" if text else "have no name"
        raise ValueError(
            f"{file}: columns {wrong} {why}{no_numbers(features[text], path)}. If one holds the classes, "
            f"name it by label= (--label on the command line){PLAIN * bool(text)}; or leave columns out by "
            "drop= (--drop on the command line)"
        )
    for column in map(str, features):
        is_called = column.lower() in _OF_ROWS
        if is_called or (len(features) >= _MANY and _counts(features[column])):
            why = "is called like" if is_called else "counts the rows like"
            remedy = f"drop=[{column!r}] (--drop {quote(column)} on the command line)"
            _warn(
                f"{file}: column {column!r} {why} a row number and is used as a feature; unless it is a "
                f"measurement, leave it out by {remedy}"
            )
    return features


def _warn(message: str) -> None:
    from ..common.warnings import warn_user

    warn_user(message)


def _without_header(names: list[str]) -> bool:
    """Whether names of columns are numbers, other than those that count the columns."""
    numbers = (
        pd.to_numeric(pd.Series(names, dtype=object), errors="coerce").dropna().to_numpy(float)
    )
    counted = len(numbers) == len(names) and bool((np.diff(numbers) == 1).all())
    return len(numbers) > 0 and not counted


def _is_unnamed(column: Any) -> bool:
    return not column or column.startswith("Unnamed: ")


def _counts(column: pd.Series) -> bool:
    """Whether a column counts the rows, from 0 or 1 on."""
    start = column.iloc[0] if len(column) else 0
    return start in (0, 1) and column.tolist() == [start + row for row in range(len(column))]
