"""Columns of tables: names, by which tables are matched, and types that no formula reads."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import pandas as pd

__all__ = [
    "ColumnsError",
    "by_name",
    "column_name",
    "column_names",
    "column_order",
    "did_you_mean",
    "first_odd",
    "of_codes",
    "of_complex",
    "of_text",
    "of_times",
    "of_unreadable",
    "refuse_odd_names",
    "refuse_unknown_options",
]

_TIMES = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period")
"""What pandas calls columns of dates, durations, times and periods."""

_DAY = r"(\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4}|\d\d?/\d\d?/\d\d)"
_DATE = rf"\s*{_DAY}([T ]+\d\d?:\d\d[\d:.,]*\s*(Z|[AaPp][Mm]|[-+]\d\d:?\d\d)?)?\s*"
_WITH_COMMA = r"\s*[-+]?\d+([.]\d{3})*(,\d+)?\s*"
"""What dates, and numbers with decimal commas, look like in text."""


_NAMES: ContextVar[Sequence[str] | None] = ContextVar("names of columns", default=None)
"""Names of the columns of the table that is looked at."""


class ColumnsError(ValueError):
    """Columns of a table that are refused, by number where only the array is at hand; see `by_name`.

    Parameters
    ----------
    say : callable
        Words the message, given the names of all columns, or None where they have none.
    table : str, optional
        Argument whose columns they are, by default the table that is looked at.
    """

    def __init__(
        self, say: Callable[[Sequence[str] | None], str], table: str | None = None
    ) -> None:
        super().__init__(say(None))
        self.say, self.table = say, table


@contextmanager
def by_name(columns: Mapping[str, Sequence[str]], name: str) -> Iterator[None]:
    """Make a `ColumnsError` a plain error, and `column_name` speak of columns by name if they have names.

    Parameters
    ----------
    columns : mapping of str to sequence of str
        Names of the columns of every table that has names.
    name : str
        The table that is looked at.
    """
    before = _NAMES.set(columns.get(name))
    try:
        yield
    except ColumnsError as error:  # processes pass on plain errors only
        raise ValueError(error.say(columns.get(error.table or name))) from None
    finally:
        _NAMES.reset(before)


def column_name(number: int) -> str:
    """A column in a message: its name in quotation marks within `by_name`, else its number."""
    names = _NAMES.get()
    return str(number) if names is None else repr(names[number])


def column_names(table: Any, name: str = "x") -> tuple[str, ...] | None:
    """Names of the columns of a data frame, None of an array.

    Raises
    ------
    ValueError
        If a name occurs more than once, also where a number and text look the same, or no file could
        hold one.
    """
    given = getattr(table, "column_names", getattr(table, "columns", None))  # Arrow's, others'
    if given is None or callable(given) or isinstance(table, np.ndarray):
        return None
    names = tuple(map(str, given))
    refuse_odd_names(names, f"the columns of {name}")
    return names


def column_order(
    table: Any, name: str, columns: Sequence[str] | None, owner: str = "the fit"
) -> list[int] | None:
    """Numbers of a table's columns in the order of given ones; None where one of both has no names.

    Parameters
    ----------
    table : array_like or data frame
    name : str
    columns : sequence of str or None
        Names in the order that is wanted, None without any.
    owner : str
        Whose columns these are, for messages.

    Raises
    ------
    ValueError
        If a column is missing, or one is a stranger.
    """
    given = column_names(table, name)
    if given is None or columns is None:
        return None
    missing = [column for column in columns if column not in given]
    strange = [column for column in given if column not in columns]
    if missing or strange:
        parts = [f"lacks {missing}"] * bool(missing) + [f"has {strange}"] * bool(strange)
        raise ValueError(
            f"{name} {' and '.join(parts)} among its columns, {owner} has {list(columns)}; give those, "
            "or an array with its columns in that order"
        )
    return [given.index(column) for column in columns]


def refuse_odd_names(names: Sequence[str], what: str) -> None:
    """Refuse names that repeat, and those that cannot be shown or stored.

    Parameters
    ----------
    names : sequence of str
    what : str
        That have the names, for messages.

    Raises
    ------
    ValueError
        Naming some of them.
    """
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{what} repeat {twice[:5]}; give every one a name of its own")
    odd = next((name for name in names if not name.isprintable()), None)
    if odd is not None:
        raise ValueError(f"{what} hold {odd!r}, with a character that cannot be shown; rename it")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest known name in brackets, for messages; nothing where none is near."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    close = difflib.get_close_matches(plain, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def refuse_unknown_options(
    owner: str, given: Iterable[str], known: Collection[str], data: Collection[str] = ()
) -> None:
    """Refuse options that a method or function does not have, naming the nearest, and its `data`.

    Raises
    ------
    TypeError
    """
    for name in given:
        if name not in known:
            raise TypeError(
                f"{owner} has no option {name!r}{did_you_mean(name, {*known, *data})}; its options: "
                f"{sorted(known)}{f', its data: {[*data]}' * bool(data)}"
            )


def of_codes(columns: pd.DataFrame) -> str:
    """The first column that holds codes such as 007, in brackets, and what to do if they are numbers."""
    for name in columns:
        text = columns[name].dropna().astype(str)
        codes = text[text.str.fullmatch("0[0-9]+")]
        if len(codes):
            code = repr(codes.iloc[0])
            return (
                f" ({name!r} holds codes such as {code}; write numbers without zeros before them)"
            )
    return ""


def first_odd(column: pd.Series) -> int | None:
    """Number of the first row with an entry that is no number; None where there is none."""
    odd = (column.notna() & pd.to_numeric(column, errors="coerce").isna()).to_numpy()
    return int(np.argmax(odd)) if odd.any() else None


def of_times(values: Any, what: str) -> str | None:
    """What to do with dates or durations, as one sentence; None for other values.

    `what` names them, such as "column 'day'".
    """
    given = values if isinstance(values, pd.Series) else pd.Series(np.asarray(values).ravel())
    if pd.api.types.infer_dtype(given, skipna=True) not in _TIMES:
        return None
    return (
        f"{what} holds dates or durations ({given.dtype}); turn them into numbers, such as days since the "
        "first"
    )


def of_text(column: pd.Series) -> str | None:
    """What to do with text that is dates, or numbers with decimal commas, throughout; None for other columns.

    Whole numbers as text, such as 1 or 007, are codes of categories.
    """
    if pd.api.types.infer_dtype(column, skipna=True) != "string":
        return None
    text, name = column.dropna().astype(str), column.name
    if text.str.fullmatch(_DATE).all():
        return (
            f"column {name!r} holds dates as text, such as {text.iloc[0]!r}; turn them into numbers, such as "
            f"days since the first, by pandas.to_datetime(table[{name!r}])"
        )
    if text.str.fullmatch(_WITH_COMMA).all() and (comma := text.str.contains(",")).any():
        return (
            f"column {name!r} holds numbers with a comma as text, such as {text[comma].iloc[0]!r}; turn them "
            "into numbers, such as by pandas.read_csv(..., decimal=',')"
        )
    return None


def of_complex(column: pd.Series) -> str | None:
    """What to do with a column of complex numbers, as one sentence; None for other columns."""
    if not pd.api.types.is_complex_dtype(column):
        return None
    return (
        f"column {column.name!r} holds {column.dtype}, expected real numbers; give its real and imaginary "
        "parts as two columns"
    )


def of_unreadable(column: pd.Series) -> str | None:
    """What to do with a column that holds neither numbers, text nor categories; None for one that does."""
    types = pd.api.types
    is_category = isinstance(column.dtype, pd.CategoricalDtype)
    if is_category or types.is_numeric_dtype(column) or types.is_string_dtype(column):
        return None
    kinds = " and ".join(sorted({type(value).__name__ for value in column.dropna()}))
    return of_times(column, f"column {column.name!r}") or (
        f"column {column.name!r} holds values of type {kinds} ({column.dtype}); turn them into numbers, "
        f"such as by pandas.to_numeric(table[{column.name!r}]), or into text, "
        f"table[{column.name!r}].astype(str)"
    )
