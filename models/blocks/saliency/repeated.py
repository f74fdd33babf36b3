"""Tables with less information than they seem to have: repeated columns, levels, few rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sidebayes.common.columns import column_name
from sidebayes.common.warnings import warn_user

from ..mixtures.data_units import refuse_constant
from .kinds import Columns

__all__ = [
    "check_levels",
    "kinds_of_columns",
    "levels_of",
    "look_at",
    "repeated_columns",
    "say_levels",
]

_ROUNDING = 1e-8
"""Difference of standardised values that is due to rounding."""

_FEW = 5
"""Maximum number of distinct values of levels, and minimum number of known values for each."""

_GLANCE = 1000
"""Number of rows that are examined first."""

_OFTEN, _TIMES = 0.1, 3
"""Share of rows with one value, and its frequency relative to any other, that are reported."""

_COPIES, _CHANCE = 0.25, 100
"""Share of rows that equal an earlier one, and its ratio to chance, that are reported."""


class _Salient(Protocol):
    """A block with saliencies."""

    saliency_prior: tuple[float, float] | None

    @property
    def is_flat(self) -> bool:
        """Whether means and variances have no prior."""
        ...

    @property
    def num_parameters(self) -> np.ndarray:
        """Free parameters of the density of each feature."""
        ...


def look_at(
    block: _Salient,
    name: str,
    table: np.ndarray,
    normal: Sequence[int] | None = None,
    categories: Sequence[int] = (),
) -> None:
    """Refuse constant columns; warn about repeated columns, levels, copies, and few rows if flat.

    Columns of `normal` densities, all by default, should not be levels. Those of `categories` may
    be constant, as happens in a subset of the rows of a table.

    Raises
    ------
    ValueError
        If there are constant columns, which the message names.
    """
    refuse_constant(name, table, categories)
    _warn_of_repeated(name, table)
    columns = range(table.shape[1]) if normal is None else normal
    _warn_of_levels(name, table, columns)
    _warn_of_one_value(name, table, columns)
    _warn_of_copies(name, table, columns)
    if block.saliency_prior is None and block.is_flat:
        _warn_of_few_rows(name, table, int(block.num_parameters.sum()))


def repeated_columns(table: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of columns that are equal up to location, scale and sign, with gaps in the same rows.

    Equal columns have equal projections on any vector. Therefore only columns that are adjacent in
    the order of a random projection are compared.

    Parameters
    ----------
    table : ndarray, shape (num_points, num_features)
        No column is constant. NaN where values are missing.
    """
    values = table - np.nanmean(table, axis=0)
    values = np.nan_to_num(values / np.sqrt(np.nanmean(values**2, axis=0)))
    first = np.argmax(abs(values) > _ROUNDING, axis=0)
    values *= np.sign(values[first, np.arange(values.shape[1])])
    order = np.argsort(np.random.default_rng(0).normal(size=len(values)) @ values)
    one, two = order[:-1], order[1:]
    gaps = np.isnan(table)
    same = (abs(values[:, one] - values[:, two]).max(axis=0) < _ROUNDING) & (
        gaps[:, one] == gaps[:, two]
    ).all(axis=0)
    return sorted(
        (int(min(pair)), int(max(pair))) for pair in zip(one[same], two[same], strict=True)
    )


def _warn_of_repeated(name: str, table: np.ndarray) -> None:
    """Warn about columns that repeat others: features are assumed independent given the cluster."""
    vary = np.flatnonzero(np.fmax.reduce(table, axis=0) > np.fmin.reduce(table, axis=0))
    pairs = [(vary[one], vary[two]) for one, two in repeated_columns(table[:, vary])]
    if pairs:
        named = (" and ".join(map(column_name, pair)) for pair in pairs[:5])
        shown = ", ".join(named) + ", ..." * (len(pairs) > 5)
        warn_user(
            f"{name} has columns that are the same up to place and scale: {shown}. All are kept, but "
            "features are taken for independent within clusters: a repeated one counts twice, and takes "
            "extra clusters to describe; drop one of each"
        )


def _warn_of_levels(name: str, table: np.ndarray, normal: Sequence[int]) -> None:
    """Warn about normal columns of few distinct values, on which a normal density can collapse."""
    found = [column_name(column) for column in normal if levels_of(table[:, column])]
    if found:
        shown = ", ".join(found[:5]) + ", ..." * (len(found) > 5)
        warn_user(
            f"{name} has columns of few different values: {shown}. On those a normal density is as "
            "narrow as it may be, for which every cluster pays, so that too few are found; leave kinds and "
            "prior out, which takes such columns for categories, or drop them"
        )


def _warn_of_one_value(name: str, table: np.ndarray, normal: Sequence[int]) -> None:
    """Warn about normal columns in which one value, such as zero, is far more frequent than others."""
    found = []
    for column in normal:
        known = table[:, column][~np.isnan(table[:, column])]
        values, count = np.unique(known, return_counts=True)
        if len(values) <= _FEW:
            continue  # already reported
        *_, second, most = np.sort(count)
        if most > max(_OFTEN * len(known), _TIMES * second):
            found.append(
                f"{values[count.argmax()]:g} in {most} rows of column {column_name(column)}"
            )
    if found:
        warn_user(
            f"{name} has the value {', '.join(found[:5])}, far more often than any other. A normal density "
            "can shrink on such a value, so that clusters and saliencies are of it alone; pass NaN where it "
            "stands for a missing value, name the column a count or levels in kinds=, or drop it"
        )


def _warn_of_copies(name: str, table: np.ndarray, normal: Sequence[int]) -> None:
    """Warn if many rows equal others, far more often than values of their normal columns do."""
    size = len(table)
    equal = 1.0  # share of pairs of rows that would be equal under independent columns
    for column in normal:
        count = np.unique(table[:, column], return_counts=True)[1]
        if len(count) > (1 - _COPIES) * size:
            return
        equal *= float(np.square(count / size).sum())
    known = np.nan_to_num(table, nan=np.inf)
    _, first, number, count = np.unique(
        known, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    often = float(np.square(count / size).sum()) - 1 / size
    if size - len(count) >= _COPIES * size and often > _CHANCE * equal and len(normal):
        row = int(np.flatnonzero(first[number] != np.arange(size))[0])
        warn_user(
            f"{name} has {size - len(count)} of {size} rows that equal an earlier one, the first is row "
            f"{row} (as row {first[number][row]}). Copies count as independent, so that more clusters and "
            f"features pay for themselves; keep one of each, {name}[np.sort(np.unique({name}, axis=0, "
            "return_index=True)[1])]"
        )


def _warn_of_few_rows(name: str, table: np.ndarray, num_parameters: int) -> None:
    """Warn if all rows together do not support one cluster in the steps under a flat prior."""
    if 2 * len(table) <= num_parameters:
        warn_user(
            f"{name} has {len(table)} rows, and a cluster needs more than {num_parameters // 2}, half the "
            "parameters of its relevant features, to stay with prior='flat'; clusters may all be taken out "
            "but one before features are. Leave prior out, pass fewer features, or selection='sparse'"
        )


def levels_of(column: NDArray) -> tuple[float, ...]:
    """Distinct values of a column if they are levels: two, or at most five with five rows each on average.

    Parameters
    ----------
    column : ndarray, shape (num_rows,)
        NaN where values are missing.

    Returns
    -------
    tuple of float
        Empty if it has more values, or only one.
    """
    if len(_apart(column[:_GLANCE])) > _FEW:
        return ()
    values, known = _apart(column), int((~np.isnan(column)).sum())
    two = len(values) == 2 < known
    several = 2 < len(values) <= _FEW and known >= _FEW * len(values)
    return tuple(map(float, values)) if two or several else ()


def _apart(column: NDArray) -> NDArray:
    """Distinct values of a column; of values that differ only by rounding, the first."""
    values = np.unique(column[~np.isnan(column)])
    if len(values) < 2:
        return values
    return values[np.insert(np.diff(values) > _ROUNDING * np.ptp(values), 0, True)]


def kinds_of_columns(data: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Kinds of the columns of x if none are given: levels are categories, all others are normal.

    On a column of two values, or of a few frequent ones, a normal density could shrink without
    bound. None if there is no such column, or if a prior of all columns as normal features is
    given.
    """
    x, prior = data.get("x"), options.get("prior", "empirical")
    if x is None or not isinstance(prior, str) or prior != "empirical":
        return None
    table = np.asarray(x, float)
    levels = [levels_of(column) for column in table.T]
    if not any(levels):
        return None
    return tuple(
        "category:" + ",".join(repr(v).removesuffix(".0") for v in own) if own else "normal"
        for own in levels
    )


def check_levels(kinds: Any, data: Mapping[str, Any]) -> None:
    """Refuse new values that are not counts or ordered levels; warn about unseen categories.

    Raises
    ------
    ValueError
        If there are such values; the message names the column.
    """
    x = data.get("x")
    if kinds is None or isinstance(kinds, str) or x is None:
        return
    table = np.asarray(x, float)
    for kind in Columns.of(kinds, table.shape[1]).kinds:
        if kind.name != "category":
            kind.check("x_new", table)
        elif (said := kind.unseen("x_new", table)) is not None:
            warn_user(said)


def say_levels(kinds: Any, names: Sequence[str]) -> str | None:
    """One sentence that says which columns are categories of their values; None if there are none."""
    if kinds is None or isinstance(kinds, str):
        return None
    own = [name for name, kind in zip(names, kinds, strict=True) if "," in kind]
    if not own:
        return None
    shown = ", ".join(own[:5]) + ", ..." * (len(own) > 5)
    if len(own) == 1:
        return (
            f"column {shown} has few different values, and is taken for a category, since a normal density "
            "would be as narrow as it may be there; kinds='normal' takes it for normal"
        )
    return (
        f"columns {shown} have few different values, and are taken for categories, since normal densities "
        "would be as narrow as they may be there; kinds='normal' takes them for normal"
    )
