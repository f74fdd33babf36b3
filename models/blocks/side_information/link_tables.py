"""Readers of statements about pairs (same or not, in words or numbers) and of tables of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sidebayes.common.arrays import plain_array
from sidebayes.common.files import read_table

__all__ = ["ACCEPTED", "RESERVED", "Table", "as_same", "read_links_table"]

ACCEPTED = "true/false, yes/no, must/cannot, 1/0 or 1/-1"
"""Accepted spellings of a must-link and of a cannot-link."""

RESERVED = frozenset({"i", "j", "weight", "same", "confidence", "group"})
"""Columns of a table of links that have a meaning."""

_MEANING: dict[object, bool] = {
    **dict.fromkeys((1, "1", "true", "yes", "must"), True),
    **dict.fromkeys((0, "0", -1, "-1", "false", "no", "cannot"), False),
}


def as_same(same: ArrayLike, num_links: int, name: str = "same") -> NDArray[np.bool_]:
    """Read statements that two labels agree; shape (num_links,).

    Parameters
    ----------
    same : array_like, shape (num_links,) or ()
        True/False, or as text or numbers true/false, yes/no, must/cannot, 1/0 or 1/-1. Case and
        surrounding blanks of text do not matter.
    num_links : int
    name : str
        Name of the argument, for messages.

    Raises
    ------
    ValueError
        For another shape, and for any other value: the row and the value are named.
    """
    given = plain_array(name, same)
    if given.shape not in ((), (num_links,)):
        raise ValueError(f"{name} has shape {given.shape}; expected () or ({num_links},)")
    if given.dtype != bool:
        read = [_meaning(value) for value in given.ravel().tolist()]
        for row, (value, meaning) in enumerate(zip(given.ravel().tolist(), read, strict=True)):
            if meaning is None:
                place = f"{name}[{row}]" if given.ndim else name
                what = "is blank" if _blank(value) else f"= {value!r}"
                raise ValueError(f"{place} {what}; expected {ACCEPTED}, or drop the link")
        _refuse_two_scales(given.ravel().tolist(), name)
        given = np.array(read, bool).reshape(given.shape)
    return np.broadcast_to(given, (num_links,))


def _refuse_two_scales(given: list[Any], name: str) -> None:
    """Refuse statements that contain both 0 and -1, because only one of them means a cannot-link."""
    numbers = [value.strip() if isinstance(value, str) else value for value in given]
    zero, below = ([value in both for value in numbers] for both in ((0, "0"), (-1, "-1")))
    if any(zero) and any(below):
        raise ValueError(
            f"{name}[{zero.index(True)}] = {given[zero.index(True)]!r} beside {name}[{below.index(True)}] = "
            f"{given[below.index(True)]!r}: a cannot-link is 0 beside 1, or -1 beside 1. Drop the links with "
            "0 if it means that nothing is known, or write all cannot-links in one way"
        )


def _meaning(value: object) -> bool | None:
    try:
        return _MEANING.get(value.strip().lower() if isinstance(value, str) else value)
    except TypeError:  # a list, say
        return None


def _blank(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return bool(np.ndim(value) == 0 and pd.isna(value))


class Table(NamedTuple):
    """Columns of a table of links; `same` and `confidence` are None where `weights` are given.

    `columns` holds all columns without a predefined meaning, such as identifiers.
    """

    pairs: NDArray[np.int64]
    weights: NDArray[np.float64] | None
    same: NDArray[np.bool_] | None
    confidence: NDArray[np.float64] | None
    group: NDArray | None
    columns: dict[str, NDArray]


def read_links_table(path: Path) -> Table:
    """Read a CSV or Parquet table of links; see `Links.read`."""
    table = read_table(path)
    columns = set(table.columns)
    if not {"i", "j"} <= columns or not columns & {"weight", "same"}:
        raise ValueError(
            f"{path.name} has columns {sorted(columns)}; links need 'i', 'j' and either 'weight' "
            "or 'same' (with an optional 'confidence')"
        )
    if {"weight", "confidence"} <= columns:
        raise ValueError(
            f"{path.name} has a column 'weight' and a column 'confidence', and both say how strong a "
            "link is; drop one"
        )
    pairs = np.stack([_whole(table["i"], path), _whole(table["j"], path)], axis=1)
    same, weights, confidence = None, None, None
    if "same" in columns:
        same = as_same(table["same"].to_numpy(object), len(table), f"{path.name}: same")
    if "weight" in columns:
        weights = _numbers(table["weight"], path)
    if "confidence" in columns:
        confidence = _numbers(table["confidence"], path)
    if same is not None and weights is not None:
        against = np.where(same, weights < 0, weights > 0)
        if against.any():
            row = int(np.argmax(against))
            raise ValueError(
                f"{path.name}: weight[{row}] = {weights[row]} and same[{row}] = "
                f"{table['same'].tolist()[row]!r} disagree; a must-link has a positive weight, a "
                "cannot-link a negative one"
            )
    group = None if "group" not in columns else table["group"].to_numpy()
    # a table written with its index has a column without a name
    others = [c for c in table.columns if c not in RESERVED and not str(c).startswith("Unnamed:")]
    rest = {str(name): _as_given(table[name]) for name in others}
    return Table(pairs, weights, None if weights is not None else same, confidence, group, rest)


def _as_given(column: pd.Series) -> NDArray:
    """Numbers, or text with blanks for missing values."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return column.to_numpy()
    return column.fillna("").astype(str).to_numpy(object)


def _numbers(column: pd.Series, path: Path) -> NDArray[np.float64]:
    values = pd.to_numeric(column, errors="coerce").to_numpy(float)
    _refuse(np.isnan(values), column, path, "a number")
    return values


def _whole(column: pd.Series, path: Path) -> NDArray[np.int64]:
    values = pd.to_numeric(column, errors="coerce").to_numpy(float)
    with np.errstate(invalid="ignore"):  # infinite ones are not whole
        _refuse(values % 1 != 0, column, path, "the number of a row, from 0 on")
    return values.astype(np.int64)


def _refuse(bad: NDArray[np.bool_], column: pd.Series, path: Path, wanted: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        value = column.tolist()[row]
        what = "is blank" if _blank(value) else f"= {value!r}"
        raise ValueError(f"{path.name}: {column.name}[{row}] {what}; expected {wanted}")
