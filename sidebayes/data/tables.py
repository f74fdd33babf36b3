"""Tables, names of columns and classes, as users give them: arrays, masked arrays, data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..common.arrays import no_array
from ..common.class_names import named_classes, warn_of_marks
from ..common.columns import column_names, column_order, of_times, refuse_odd_names
from ..common.magnitudes import counted, listed, refuse_huge, shown

__all__ = [
    "as_plain",
    "check_data",
    "check_names",
    "check_truth",
    "in_order_of",
    "shape_of",
]


def shape_of(dims: Sequence[str]) -> str:
    """Axes as the shape of an array is written."""
    return f"({', '.join(dims)}{',' if len(dims) == 1 else ''})"


def as_plain(values: Any, name: str) -> Any:
    """An array without a mask; refuses masked entries.

    Raises
    ------
    ValueError
        Naming the first masked entry.
    """
    mask = np.ma.getmask(values) if isinstance(values, np.ma.MaskedArray) else np.ma.nomask
    if mask is not np.ma.nomask and np.any(mask):
        where = tuple(map(int, np.argwhere(mask)[0]))
        raise ValueError(
            f"{name} is masked at {int(np.sum(mask))} entries, the first {where}; drop what is masked, "
            "or fill it"
        )
    return np.ma.getdata(values) if isinstance(values, np.ma.MaskedArray) else values


def check_data(
    x: Any,
    name: str = "x",
    dims: Sequence[str] = ("points", "features"),
    *,
    missing: bool = False,
    whole: bool = False,
    beside: Sequence[str] = (),
    otherwise: str = "impute",
) -> NDArray:
    """Check a table of numbers.

    Parameters
    ----------
    x : array_like or data frame
        Frames of pandas, polars and Arrow are taken by column.
    name : str
        Of the argument, for messages.
    dims : sequence of str
        Its axes; "..." stands for any further ones.
    missing : bool
        Whether values may be missing, NaN.
    whole : bool
        Whether truth values stay such, and integers stay integers, as categories and indices must; else
        they become floats.
    beside : sequence of str
        How the other arguments are cut that run over the same rows, such as "links.subset(rows)", for
        messages.
    otherwise : str
        What else to do about missing values, for messages.

    Raises
    ------
    TypeError
        If it does not hold numbers, or is declared without axes.
    ValueError
        On a wrong shape, or missing, masked, infinite or huge entries (rows are named).
    """
    if not dims:
        raise TypeError(
            f"{name} is declared as data without axes; declare a number as an option, {name}: float"
        )
    if x is None or isinstance(x, str | Mapping | set):
        example = "sidebayes.load_dataset('iris').x"
        if isinstance(x, dict):
            example = (
                f"pandas.DataFrame({name}); a model of your own may have an argument for each of its arrays, "
                f"which are then passed by name, **{name}"
            )
        if hasattr(x, "to_dataframe"):  # of xarray
            raise TypeError(
                f"{name} is a {type(x).__name__} of several variables; pass {name}.to_dataframe(), with "
                "a column for each"
            )
        raise TypeError(
            f"{name} = {shown(x)} is not a data matrix; pass an array of shape {shape_of(dims)}, e.g. "
            f"{example}"
        )
    if hasattr(x, "toarray"):
        raise TypeError(
            f"{name} is a sparse matrix; pass {name}.toarray() if it fits, or reduce it first"
        )
    values = _numbers(x, name)
    fixed = [dim for dim in dims if dim != "..."]
    if values.ndim != len(fixed) and not ("..." in dims and values.ndim > len(fixed)):
        advice = f"one entry for each of the {fixed[0]}"
        if values.ndim == 1 and len(fixed) == 2:
            advice = f"for one column pass {name}[:, None]"
        elif values.ndim == 2 and values.shape[1] == 1 and len(fixed) == 1:
            advice = f"of one column pass {name}[:, 0]"
        elif values.ndim == 3 and fixed[-1] in ("axes", "coordinates"):
            advice = f"if these are whole shapes, pass sidebayes.Landmarks.from_array({name})"
        given = name if values.ndim else f"{name} = {values}"
        raise ValueError(f"{given} has shape {values.shape}, expected {shape_of(dims)}; {advice}")
    kept = "fb" if whole else "f"
    if not isinstance(values, np.memmap) and values.dtype.kind not in kept:
        values = values.astype(int if whole and _are_integers(values) else float)
    if 0 in values.shape:
        raise ValueError(
            f"{name} has shape {values.shape}: it holds no value; check how it was filtered"
        )
    flat = values.reshape(len(values), -1)
    finite = np.isfinite(flat) | (np.isnan(flat) & missing)
    bad = np.flatnonzero(~finite.all(axis=1))
    if len(bad):
        where = f"values in {len(bad)} of {len(values)} rows: {listed(bad)}"
        if missing:
            raise ValueError(
                f"{name} has infinite {where}; pass NaN, which is a missing value, "
                f"np.where(np.isinf({name}), np.nan, {name}), or drop these rows"
            )
        complete = f"np.isfinite({name})" + ".all(axis=1)" * (values.ndim > 1)
        *others, last = f"{name}[rows]", *beside
        kept = f"{', '.join(others)} and {last}" if others else last
        raise ValueError(
            f"{name} has missing or infinite {where}; keep the complete ones, rows = {complete}, with "
            f"{kept}, or {otherwise}"
        )
    refuse_huge(name, values)
    return values


def _are_integers(values: NDArray) -> bool:
    """Whether values are integers, and 32 bits can hold them."""
    most = np.iinfo(np.int32).max
    return values.dtype.kind in "iu" and bool((abs(values.astype(float)) <= most).all())


def _numbers(x: Any, name: str) -> NDArray:
    """Array of real numbers, NaN where something is missing or masked."""
    names = column_names(x, name)
    if names is not None:
        columns = [
            x.iloc[:, n] if isinstance(x, pd.DataFrame) else x[c] for n, c in enumerate(names)
        ]
        arrays = list(map(_column, columns))
        text = [n for n, array in zip(names, arrays, strict=True) if array is None]
        if text:
            if said := of_times(columns[names.index(text[0])], f"column {text[0]!r} of {name}"):
                raise TypeError(said)
            raise TypeError(
                f"{name} has columns {text} that are not numbers; encode them as numbers or drop them"
            )
        rows = len(x)
        return np.stack(arrays, axis=1) if arrays else np.zeros((rows, 0))  # type: ignore[arg-type]
    try:
        values: Any = _column(x) if isinstance(x, pd.Series) else np.asanyarray(x)
    except (TypeError, ValueError) as error:  # rows of different lengths, say
        raise TypeError(
            f"{name} is no array of numbers ({error}); give all rows the same length"
        ) from None
    if np.ma.is_masked(values) and values.dtype.kind in "fiub":
        values = np.ma.filled(values.astype(float), np.nan)
    if values is not None and values.dtype.kind == "O":
        values = _column(values)
    if values is None or values.dtype.kind not in "fiub":
        if said := of_times(x, name):
            raise TypeError(said)
        given = np.asanyarray(x)
        if given.shape == () and given.dtype == object:
            raise no_array(name, x)
        kind = given.dtype
        raise TypeError(
            f"{name} holds {kind}, expected real numbers; encode or drop the columns that are not "
            "numeric"
        )
    return values if isinstance(values, np.memmap) else np.asarray(values)


def _column(column: Any) -> NDArray | None:
    """Numbers or truth values of a column, NaN where they are missing; None if it holds something else."""
    if pd.api.types.infer_dtype(column, skipna=False) == "boolean" and not np.any(pd.isna(column)):
        return np.asarray(column, bool)
    if isinstance(column, pd.Series):
        numeric = pd.api.types.is_numeric_dtype(column) or column.dtype == object
        if not numeric or pd.api.types.is_complex_dtype(column):
            return None
        if pd.api.types.is_integer_dtype(column) and not column.hasnans:
            return column.to_numpy(int)
        try:
            return column.to_numpy(float, na_value=np.nan)
        except (TypeError, ValueError):
            return None
    array = np.asarray(column)
    if array.dtype.kind == "O":
        try:
            return np.where(pd.isna(array), np.nan, array).astype(float)
        except (TypeError, ValueError):
            return None
    return array if array.dtype.kind in "fiub" else None


def in_order_of(
    table: Any, name: str, columns: Sequence[str] | None, owner: str = "the fit"
) -> Any:
    """A table with its columns in the order of given ones, where both have names; see `column_order`."""
    order = column_order(table, name, columns, owner)
    if order is None or order == list(range(len(order))):
        return table
    return _numbers(table, name)[:, order]


def check_names(names: Any, num_features: int) -> tuple[str, ...]:
    """Check names of features; numbers stand in where there are none.

    Raises
    ------
    TypeError, ValueError
        If there is not one for each, one occurs twice, or no file could hold one.
    """
    if names is None:
        return tuple(f"x{number}" for number in range(num_features))
    if isinstance(names, str | Mapping) or not np.iterable(names):
        raise TypeError(f"feature_names = {shown(names)}; give a list with one name per feature")
    found = tuple(map(str, names))
    if len(found) != num_features:
        raise ValueError(
            f"feature_names has {counted(len(found), 'name')} for {counted(num_features, 'feature')}; give "
            "one each"
        )
    refuse_odd_names(found, "feature_names")
    return found


def check_truth(
    truth: Any,
    num_points: int,
    class_names: Sequence[str] = (),
    groups: tuple[str, int] | None = None,
) -> NDArray[np.int64] | None:
    """Check known classes, used only to score a fit; returns them numbered from 0, -1 if unknown.

    They are numbered as the classes that the model learns, `class_names`, and others after these, in sorted
    order. Where groups of rows have classes, `groups` is their argument and the number of rows.
    """
    if truth is None:
        return None
    codes, found = named_classes(truth, "truth")
    column = getattr(truth, "name", None)
    warn_of_marks("truth" if column is None else f"truth, column {column!r},", codes, found)
    if codes.shape != (num_points,):
        unit, rows = groups or ("points", None)
        remedy = ""
        if codes.shape == (rows,):
            remedy = f"; these are by row, take pandas.Series(truth).groupby({unit}).first()"
        raise ValueError(
            f"truth has shape {codes.shape}, expected ({num_points},), one class for each of the {unit}"
            f"{remedy}"
        )
    names = list(map(str, found.astype(np.int64) if found.dtype.kind in "iuf" else found))
    order = [*class_names, *(name for name in names if name not in class_names)]
    place = np.array([order.index(name) for name in names])
    return np.where(codes < 0, -1, place[codes])
