"""The table that the command line names, its columns by use, and classes numbered alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sidebayes.data.datasets import file_of, load_frame
from sidebayes.data.frames import PLAIN, need_columns, no_numbers, read_features
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from ..common.class_names import named_classes
from ..common.magnitudes import counted

__all__ = ["NamedTable", "by_group", "group_names", "named_labels", "number_classes"]


@dataclass(frozen=True)
class NamedTable:
    """A data set with all its columns.

    Attributes
    ----------
    name : str
        Of the data set or file.
    frame : DataFrame
    label : str or None
        Column of the classes that fits are scored by.
    dropped : tuple of str
    """

    name: str
    frame: pd.DataFrame
    label: str | None
    dropped: tuple[str, ...]

    @classmethod
    def read(
        cls,
        name: str,
        label: str | None,
        drop: Sequence[str],
        units: Sequence[str] = (),
        known: str | None = None,
        *,
        needs_label: bool = True,
    ) -> NamedTable:
        """Read a data set; its classes are in the column ``label`` unless another is named.

        `units` are columns with names of groups, and `known` is that of the classes that are known. Where
        no label is needed, that which is named may be of another table.
        """
        frame = load_frame(name, label, units, () if known is None else (known,))
        if label is not None and label not in frame and not needs_label:
            label = None
        need_columns(frame, [*drop, *([label] if label is not None else ())], name)
        if label in drop:
            raise ValueError(f"column {label!r} is given to --label and --drop; choose one")
        if label is None and "label" in frame and "label" not in drop:
            label = "label"
        return cls(name, frame, label, tuple(drop))

    @property
    def classes(self) -> pd.Series | None:
        """Column of the classes."""
        return None if self.label is None else self.frame[self.label]

    def pick(self, flag: str, column: str) -> pd.Series:
        """One column, which a flag names."""
        if column not in self.frame:
            raise ValueError(
                f"{flag} {column}: {self.name} has no such column; it has {list(self.frame)}"
            )
        if column in self.dropped:
            raise ValueError(f"column {column!r} is given to {flag} and --drop; choose one")
        return self.frame[column]

    def features(self, used: Sequence[str], *, missing: bool = False) -> pd.DataFrame:
        """Columns that are left: all but the classes, those dropped, and those used otherwise."""
        own = () if self.label is None else (self.label,)
        left = list({*own, *self.dropped, *used})
        found = read_features(self.frame, self.name, left, file_of(self.name))
        return self.numbers(found, missing=missing)

    def numbers(self, columns: pd.DataFrame, *, missing: bool = False) -> pd.DataFrame:
        """Columns as numbers; refuses text, infinite values, and those missing where none may be."""
        text = [name for name in columns if not pd.api.types.is_numeric_dtype(columns[name])]
        if text:
            # columns of groups have other rows than the file
            place = file_of(self.name) if len(columns) == len(self.frame) else None
            raise ValueError(
                f"{self.name}: columns {text} are not numbers{no_numbers(columns[text], place)}"
                f"{PLAIN}; or leave columns out by --drop"
            )
        numbers = pd.DataFrame(
            {name: columns[name].to_numpy(float, na_value=np.nan) for name in columns},
            columns.index,
        )
        values = numbers.to_numpy()
        bad = np.isinf(values) if missing else ~np.isfinite(values)
        if bad.any():
            rows, where = bad.any(axis=1), bad.any(axis=0)
            kind = "infinite" if missing else "missing or infinite"
            raise ValueError(
                f"{self.name}: columns {list(numbers.columns[where])} have {kind} values in "
                f"{counted(int(rows.sum()), 'row')}, the first is row {int(np.argmax(rows))} (from 0 on); "
                "fill or delete them in the file, or leave columns out by --drop"
            )
        return numbers


def by_group(column: pd.Series, groups: pd.Series, names: Any) -> pd.Series:
    """Value of each group of rows, in the order of their names, which are the index.

    Raises
    ------
    ValueError
        If it differs within a group.
    """
    known = column.notna() & groups.notna()
    pairs = pd.DataFrame({"group": groups[known], "value": column[known]}).drop_duplicates()
    twice = pairs["group"].duplicated()
    if twice.any():
        raise ValueError(
            f"column {column.name!r} has several values within {groups.name} "
            f"{pairs['group'][twice].tolist()[0]!r}, and is needed once for each; name another column, or "
            f"leave it out by --drop {column.name}"
        )
    found = pairs.set_index("group")["value"].reindex(list(names))
    return found.rename(str(column.name))


def group_names(groups: pd.Series) -> Any:
    """Names of groups in the order in which fits number them."""
    return Groups(groups.to_numpy()).names


def number_classes(*columns: pd.Series | None) -> tuple[list[NDArray[np.int64] | None], list[str]]:
    """Codes of classes, numbered alike in all columns, and their names.

    Classes of the first column come first, each column's own in sorted order.

    Parameters
    ----------
    *columns : Series or None
        Classes, missing or -1 where one is not known.

    Returns
    -------
    codes : list of ndarray, or None where there was no column
    names : list of str
    """
    given = [column for column in columns if column is not None]
    if not given:
        return [None for _ in columns], []
    found = [named_classes(column, f"column {column.name!r}") for column in given]
    _refuse_mixed(given, [own for _, own in found])
    every = pd.concat(given, ignore_index=True)
    codes = named_classes(every, "the columns of classes")[0]
    parts = np.split(codes, np.cumsum([len(column) for column in given])[:-1])
    order = list(dict.fromkeys(code for part in parts for code in np.unique(part[part >= 0])))
    rank = np.full(len(order) + 1, -1)  # the last entry is that of -1, not known
    rank[order] = np.arange(len(order))
    numbered = iter(rank[part] for part in parts)
    alike = [None if column is None else next(numbered) for column in columns]
    return alike, [_plain(every[int(np.argmax(codes == code))]) for code in order]


def _refuse_mixed(columns: Sequence[pd.Series], names: Sequence[NDArray]) -> None:
    """Refuse columns of which one names classes by text, and another by numbers."""
    shown = [(column.name, _telling(own)) for column, own in zip(columns, names, strict=True)]
    first, value = shown[0]
    for name, other in shown[1:]:
        if isinstance(other, str) != isinstance(value, str):
            raise ValueError(
                f"columns {first!r} and {name!r} name classes differently, such as {value!r} and {other!r}; "
                "write the same names in both, all text or all whole numbers"
            )


def _telling(names: NDArray) -> Any:
    """A name that shows whether names are text, rather than digits in a column of text."""
    given = names.tolist()
    text = (one for one in given if isinstance(one, str) and not one.isdecimal())
    return next(text, given[0] if isinstance(given[0], str) else int(given[0]))


def named_labels(
    codes: NDArray[np.int64], names: Sequence[str], number: int | None = None
) -> PartialLabels:
    """Classes by number, with the first so many of the names, unless names are these numbers."""
    numbers = list(map(str, range(len(names))))
    return PartialLabels(codes, None if list(names) == numbers else tuple(names[:number]))


def _plain(value: Any) -> str:
    """A class as text; whole numbers that were stored as floats have no point."""
    return str(int(value)) if isinstance(value, float) else str(value)
