"""Data frames of numbers, counts, categories and ordered levels, as arrays with a kind for each column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..common.columns import column_names, of_complex, of_text, of_times
from ..common.magnitudes import shown
from ..common.warnings import warn_user

__all__ = ["MixedTable", "mixed_table"]

_KINDS = ("normal", "count", "category", "ordered")

_MANY = 20
"""Rows from which on a level of its own in each of them is pointed out."""


@dataclass(frozen=True)
class MixedTable:
    """A data frame as an array of numbers, with the kinds of its columns.

    Attributes
    ----------
    x : ndarray, shape (num_rows, num_columns)
        Categories and levels are coded 0, 1, ..., and NaN is a missing value.
    kinds : tuple of str
        For each column "normal", "count", "category:C" or "ordered:C", with C levels.
    names : tuple of str
        Names of the columns.
    levels : tuple
        What the codes of each column stand for; empty for numbers.
    """

    x: NDArray[np.float64]
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    levels: tuple[tuple, ...]

    def at(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Other rows with the same columns, coded in the same way.

        Parameters
        ----------
        frame : DataFrame

        Raises
        ------
        TypeError, ValueError
            If a column is missing or not numeric, or has a level that the table did not have.
        """
        given = column_names(_checked(frame))
        lacking = sorted(set(self.names) - set(given or ()))
        if lacking:
            raise ValueError(f"frame has no columns {lacking}; pass those of the first table")
        by_name = {str(name): frame[name] for name in frame.columns}
        return np.stack(
            [_coded(by_name[n], own) for n, own in zip(self.names, self.levels, strict=True)],
            axis=1,
        )


def mixed_table(frame: pd.DataFrame, kinds: Mapping[str, str] | None = None) -> MixedTable:
    """Infer the kinds of features from the columns of a data frame, for `feature_saliency`.

    Columns of floats are "normal", non-negative integers are "count", ordered categoricals are
    "ordered", and other categoricals, text and booleans are "category". Dates, durations, and text
    that consists of dates or of numbers with decimal commas throughout need a kind by name.

    Parameters
    ----------
    frame : DataFrame
    kinds : mapping of str to str, optional
        Kinds of some columns by name, in place of those by type. The levels of a column that is not
        a categorical are its values in sorted order.

    Raises
    ------
    TypeError, ValueError
        If `frame` is not a data frame, a kind or its column does not exist, or a column cannot have
        its kind.

    Warns
    -----
    SideBayesWarning
        If a category has a different level in each row.

    Examples
    --------
    >>> import pandas as pd
    >>> table = mixed_table(pd.DataFrame({"visits": [0, 3, 1], "group": ["a", "b", "a"]}))
    >>> table.kinds
    ('count', 'category:2')
    """
    names = column_names(_checked(frame), "frame") or ()
    given = dict(kinds or {}) if isinstance(kinds, Mapping | None) else None
    if given is None:
        raise TypeError(f"kinds = {shown(kinds)}; pass a mapping from column to kind")
    strangers = sorted(set(map(str, given)) - set(names))
    if strangers:
        raise ValueError(f"kinds names {strangers}, which are no columns of the frame")
    wrong = [one for one in given.values() if one not in _KINDS]
    if wrong:
        raise ValueError(f"kinds has {shown(wrong[0])}; expected one of {', '.join(_KINDS)}")
    read, levels = [], []
    for position, name in enumerate(names):
        column = frame.iloc[:, position]
        kind = given.get(name) or _by_type(column)
        own = _levels(column) if kind in ("category", "ordered") else ()
        if kind == "category" and _MANY <= len(own) == len(column):
            warn_user(
                f"column {name!r} has another level in each row, as an identifier has: it can tell no "
                "clusters apart, and hides those of other columns; drop it"
            )
        if len(own) == 1:
            raise ValueError(
                f"column {name!r} has one level, {shown(pd.Index(own).tolist()[0])}; drop it"
            )
        read.append(f"{kind}:{len(own)}" if own else kind)
        levels.append(own)
    columns = [frame.iloc[:, position] for position in range(len(names))]
    coded = [_coded(column, own) for column, own in zip(columns, levels, strict=True)]
    return MixedTable(np.stack(coded, axis=1), tuple(read), names, tuple(levels))


def _checked(frame: Any) -> pd.DataFrame:
    """A data frame with rows and columns."""
    if not isinstance(frame, pd.DataFrame):
        kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
        wanted = "frame.to_pandas()" if hasattr(frame, "to_pandas") else "a pandas DataFrame"
        raise TypeError(f"frame is a {kind}; pass {wanted}")
    if not frame.size:
        raise ValueError(f"frame has shape {frame.shape}: there is nothing to read")
    for position in range(frame.shape[1]):
        if said := of_complex(frame.iloc[:, position]):
            raise TypeError(said)
    return frame


def _by_type(column: pd.Series) -> str:
    """Kind by the type of a column.

    Raises
    ------
    TypeError
        For dates and durations, as text too, which are neither numbers nor categories; and for numbers
        as text with decimal commas.
    """
    if said := of_times(column, f"column {column.name!r}") or of_text(column):
        raise TypeError(f"{said}, or name its kind, 'category' or 'ordered'")
    if isinstance(column.dtype, pd.CategoricalDtype):
        return "ordered" if column.dtype.ordered else "category"
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return "category"
    integers = pd.api.types.is_integer_dtype(column)
    return "count" if integers and not (column.dropna() < 0).any() else "normal"


def _levels(column: pd.Series) -> tuple:
    """Levels of a column, in their order."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return tuple(column.cat.categories)
    try:
        found = tuple(sorted(pd.unique(column.dropna())))
    except TypeError as error:
        raise TypeError(
            f"column {column.name!r} has levels that have no order ({error}); make it a categorical"
        ) from None
    if not found:
        raise ValueError(f"column {column.name!r} has no value; drop it")
    return found


def _coded(column: pd.Series, levels: tuple) -> NDArray[np.float64]:
    """Numbers of a column, or codes of its levels; NaN where it has no value."""
    if not levels:
        try:
            return column.to_numpy(float, na_value=np.nan)
        except (TypeError, ValueError):
            raise TypeError(
                f"column {column.name!r} holds {column.dtype}, expected numbers; name its kind, "
                "'category' or 'ordered'"
            ) from None
    missing = column.isna().to_numpy()
    try:
        codes = pd.Index(levels).get_indexer(pd.Index(column.astype(object)))
    except TypeError:  # lists and the like, which are no level of any column
        codes = np.full(len(column), -1)
    unknown = (codes < 0) & ~missing
    if unknown.any():
        raise ValueError(
            f"column {column.name!r} has the level {shown(column[unknown].tolist()[0])}, which is none of "
            f"{pd.Index(levels).tolist()[:10]}"
        )
    return np.where(missing, np.nan, codes)
