"""Long tables for scikit-learn, whose samples are subjects."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from sidebayes.models.blocks.side_information.groups import (
    Groups,
    refuse_mixed_orders,
    refuse_other_order,
)

from sidebayes.common.arrays import plain_array, real_array, refuse_gaps
from sidebayes.common.columns import column_names
from sidebayes.common.fields import Range, check_integer, check_number
from sidebayes.common.magnitudes import shown

__all__ = ["LongTable", "SubjectSums", "by_output", "check_columns", "check_groups", "check_labels"]


class SubjectSums(NamedTuple):
    """Sums of products of columns over the rows of each subject and output.

    Residuals r are those of a least-squares fit of all rows, so that no large numbers cancel.

    Attributes
    ----------
    start : ndarray, shape (num_terms,)
        Coefficients of that fit.
    num_rows, squares : ndarray, shape (num_subjects, num_outputs)
        Numbers of rows, and sums of :math:`r^2`.
    fixed : ndarray, shape (num_subjects, num_outputs, num_terms, num_terms)
    slope : ndarray, shape (num_subjects, num_outputs, num_terms)
        Products of the fixed columns with r.
    random : ndarray, shape (num_subjects, num_outputs, num_effects, num_effects)
    cross : ndarray, shape (num_subjects, num_outputs, num_effects, num_terms)
    shift : ndarray, shape (num_subjects, num_outputs, num_effects)
        Products of the random columns with r.
    """

    start: NDArray
    num_rows: NDArray
    squares: NDArray
    fixed: NDArray
    slope: NDArray
    random: NDArray
    cross: NDArray
    shift: NDArray


class LongTable:
    """Measurements of subjects, one per row; the samples for scikit-learn are the subjects.

    Subjects may have any number of rows, at times of their own. ``len(table)`` is the number of subjects,
    `take` makes the table of some of them, and scikit-learn's cross-validation cuts between them.

    Parameters
    ----------
    y : array_like, shape (num_rows,)
        Measurements.
    fixed : array_like, shape (num_rows, num_terms)
        Columns of the fixed effects.
    random : array_like, shape (num_rows, num_effects)
        Columns of the random effects.
    subjects : Groups or array_like, shape (num_rows,)
        Subject of each row, by name or number.
    outputs : array_like, shape (num_rows, num_outputs), optional
        Indicators of the output that each row measures; see `mixed_effects`.
    times : array_like, shape (num_rows,), optional
        Time of each row, needed by `SeriesKernel` only.

    Attributes
    ----------
    names : ndarray, shape (num_subjects,)
        Subjects in the order of the samples.
    codes : ndarray of int, shape (num_rows,)
        Number of the subject of each row.
    columns : dict of str to tuple of str
        Names of the columns of ``fixed``, ``random`` and ``outputs``, where these were data frames;
        for `from_times`, what the columns are a ``polynomial`` in.

    Raises
    ------
    TypeError, ValueError
        If shapes disagree, numbers are missing or infinite, a row has no subject, or the indices of
        pandas series and frames have the same rows in different orders.

    Examples
    --------
    >>> table = LongTable.from_times([3.0, 2.5, 4.0], [70, 72, 71], ["ann", "ann", "bob"])
    >>> len(table), table.take([1]).names.tolist()
    (2, ['bob'])
    """

    def __init__(
        self,
        y: ArrayLike,
        fixed: ArrayLike,
        random: ArrayLike,
        subjects: Groups | ArrayLike,
        outputs: ArrayLike | None = None,
        times: ArrayLike | None = None,
    ) -> None:
        refuse_mixed_orders(
            y=y, fixed=fixed, random=random, subjects=subjects, outputs=outputs, times=times
        )
        self._index = y.index if isinstance(y, pd.Series | pd.DataFrame) else None
        groups = check_groups(subjects)
        size = len(groups)
        self.names, self.codes = groups.names, groups.codes
        self.columns = named_columns(fixed=fixed, random=random, outputs=outputs)
        self.y = check_columns("y", y, (size,))
        self.fixed = check_columns("fixed", fixed, (size, None))
        self.random = check_columns("random", random, (size, None))
        self.outputs = None if outputs is None else check_columns("outputs", outputs, (size, None))
        self.times = None if times is None else check_columns("times", times, (size,))
        self.output_codes = by_output(self.outputs, size)

    @classmethod
    def from_times(
        cls,
        y: ArrayLike,
        times: ArrayLike,
        subjects: Groups | ArrayLike,
        *,
        degree: int = 1,
        center: float = 0.0,
        unit: float = 1.0,
    ) -> Self:
        """Table of polynomials in time, the same columns for fixed and random effects.

        Parameters
        ----------
        y, times : array_like, shape (num_rows,)
        subjects : Groups or array_like, shape (num_rows,)
        degree : int
            Degree of the polynomials, 1 for straight lines.
        center, unit : float
            Columns are powers of ``(times - center) / unit``. Ages of 80 years are best centred.
        """
        when = real_array("times", times)
        if when.ndim != 1:
            raise ValueError(f"times has shape {when.shape}; expected (rows,)")
        center = check_number("center", center, Range())
        unit = check_number("unit", unit, Range(above=0))
        powers = np.arange(check_integer("degree", degree, 0) + 1)
        columns = ((when[:, None] - center) / unit) ** powers
        found = cls(y, columns, columns, subjects, times=times)
        found.columns = {"polynomial": (f"(times - {center:.12g}) / {unit:.12g}",)}
        return found

    def __len__(self) -> int:
        """Number of subjects."""
        return len(self.names)

    def take(self, subjects: ArrayLike, axis: int = 0) -> Self:
        """Table of some subjects, in their order here.

        Parameters
        ----------
        subjects : array_like of int
            Numbers of the subjects, each at most once, in any order; the samples come in that order.
        axis : int
            0, for scikit-learn.
        """
        asked = plain_array("subjects", subjects)
        if asked.ndim != 1 or asked.dtype.kind not in "iu":
            raise TypeError(f"subjects = {shown(subjects)}; expected whole numbers of samples")
        if not asked.size or asked.min() < 0 or asked.max() >= len(self):
            raise ValueError(
                f"subjects = {shown(subjects)}; expected some of 0 to {len(self) - 1}, the {len(self)} "
                "samples"
            )
        if len(np.unique(asked)) < len(asked):
            raise ValueError("subjects names one twice; give copies names of their own")
        position = np.full(len(self), -1)
        position[asked] = np.arange(len(asked))
        rows = np.flatnonzero(position[self.codes] >= 0)
        out = object.__new__(type(self))
        out.columns = self.columns
        out._index = None if self._index is None else self._index[rows]
        out.codes, out.names = position[self.codes[rows]], self.names[asked]
        out.y, out.fixed, out.random = self.y[rows], self.fixed[rows], self.random[rows]
        out.outputs = None if self.outputs is None else self.outputs[rows]
        out.times = None if self.times is None else self.times[rows]
        out.output_codes = self.output_codes[rows]
        return out

    @property
    def iloc(self) -> Self:
        """The table itself, which tells scikit-learn to select samples by `take`."""
        return self

    def by_subject(self, values: ArrayLike) -> NDArray:
        """The value that all rows of a subject share, by subject, shape (num_subjects,).

        Parameters
        ----------
        values : array_like, shape (num_rows,)
            Such as a diagnosis, repeated in all rows of a subject.

        Raises
        ------
        ValueError
            If rows of one subject differ, or the index of `values` has the rows of `y` in another order.
        """
        refuse_other_order("values", values, self._index, "y.index")
        found = plain_array("values", values)
        if found.shape != self.y.shape:
            raise ValueError(
                f"values has shape {found.shape}; expected {self.y.shape}, one per row"
            )
        _, first = np.unique(self.codes, return_index=True)
        differ = found != found[first][self.codes]
        if differ.any():
            row = int(np.argmax(differ))
            name = self.names.tolist()[self.codes[row]]
            raise ValueError(
                f"values differ within subject {name!r}, at row {row}; give one value per subject"
            )
        return found[first]

    @property
    def num_outputs(self) -> int:
        """Number of outputs that rows measure."""
        return 1 if self.outputs is None else self.outputs.shape[1]

    @cached_property
    def sums(self) -> SubjectSums:
        """Return sums over rows, by subject and output."""
        x, z = self.fixed, self.random
        start = np.linalg.lstsq(x, self.y, rcond=None)[0]
        residual = self.y - x @ start
        rows, shape = len(residual), (len(self), self.num_outputs)
        terms, effects = x.shape[1], z.shape[1]
        cell = self.codes * shape[1] + self.output_codes
        add = csr_array((np.ones(rows), (cell, np.arange(rows))), shape=(shape[0] * shape[1], rows))

        def total(columns: NDArray, *tail: int) -> NDArray:
            return (add @ columns.reshape(rows, -1)).reshape(*shape, *tail)

        return SubjectSums(
            start=start,
            num_rows=total(np.ones(rows)),
            squares=total(residual**2),
            fixed=total(x[:, :, None] * x[:, None, :], terms, terms),
            slope=total(x * residual[:, None], terms),
            random=total(z[:, :, None] * z[:, None, :], effects, effects),
            cross=total(z[:, :, None] * x[:, None, :], effects, terms),
            shift=total(z * residual[:, None], effects),
        )

    def __repr__(self) -> str:
        """Format the sizes of the table."""
        return f"LongTable({len(self.y)} rows of {len(self)} subjects)"


def named_columns(**tables: Any) -> dict[str, tuple[str, ...]]:
    """Return the names of columns of those tables that have names."""
    found = {name: column_names(table, name) for name, table in tables.items()}
    return {name: names for name, names in found.items() if names is not None}


def check_groups(subjects: Any) -> Groups:
    """Return the subjects of rows, and refuse missing ones."""
    groups = subjects if isinstance(subjects, Groups) else Groups(subjects)
    if not len(groups):
        raise ValueError("subjects is empty; give the subject of each row")
    if groups.names is None:
        raise ValueError("subjects passed through compiled code, which keeps no names")
    missing = groups.codes < 0
    if missing.any():
        raise ValueError(f"row {int(np.argmax(missing))} has no subject; name one, or drop the row")
    if len(np.unique(groups.codes)) < groups.num_groups:
        raise ValueError("some subjects have no rows; use subjects.subset(rows)")
    return groups


def check_columns(
    name: str, values: Any, shape: tuple[int | None, ...], *, missing: bool = False
) -> NDArray[np.float64]:
    """Return real numbers of a given shape, where None stands for any size from 1 on.

    `missing` admits NaN.
    """
    found = real_array(name, values)
    fits = found.ndim == len(shape) and all(
        size > 0 if want is None else size == want
        for size, want in zip(found.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("columns" if one is None else str(one) for one in shape)
        raise ValueError(
            f"{name} has shape {found.shape}; expected ({wanted}{',' * (len(shape) == 1)}), one row each "
            "for the rows of subjects"
        )
    refuse_gaps(name, np.where(np.isnan(found), 0.0, found) if missing else found)
    return found


def by_output(outputs: NDArray | None, size: int) -> NDArray[np.int64]:
    """Return the number of the output that each row measures, from indicators."""
    if outputs is None:
        return np.zeros(size, np.int64)
    if not np.isin(outputs, (0.0, 1.0)).all() or (outputs.sum(axis=1) != 1).any():
        raise ValueError(
            "outputs must hold a single 1 per row, in the column of its output, and else 0"
        )
    return outputs.argmax(axis=1)


def check_labels(table: Any, labels: Any) -> tuple[NDArray, NDArray[np.int64]]:
    """Return two classes and the class of each subject, 0 or 1.

    Raises
    ------
    TypeError, ValueError
    """
    if not isinstance(table, LongTable):
        raise TypeError(
            f"X is a {type(table).__name__}; pass a LongTable, whose samples are subjects"
        )
    found = plain_array("labels", labels)
    if found.shape != (len(table),):
        raise ValueError(
            f"labels has shape {found.shape}; expected ({len(table)},), one per subject: use "
            "table.by_subject(values) where each row has one"
        )
    refuse_other_order("labels", labels, table.names)
    return two_classes(found)


def two_classes(labels: Any) -> tuple[NDArray, NDArray[np.int64]]:
    """Return two classes in sorted order, and the class of each subject, 0 or 1.

    Raises
    ------
    TypeError, ValueError
        If a label is missing, names have no order among them, or there are not two classes.
    """
    found = plain_array("labels", labels)
    if found.ndim != 1:
        raise ValueError(f"labels has shape {found.shape}; expected (subjects,)")
    missing = np.asarray(pd.isna(found))
    missing[~missing] = found[~missing] == ""
    if missing.any():
        row = int(np.argmax(missing))
        raise ValueError(f"labels[{row}] is missing; leave subjects of unknown class out")
    try:
        classes, codes = np.unique(found, return_inverse=True)
    except TypeError:
        raise TypeError("labels mixes names that have no order among them") from None
    if len(classes) != 2:
        unknown = "; -1 is a class here, so leave subjects of unknown class out"
        raise ValueError(
            f"labels has {len(classes)} classes; expected two" + unknown * (-1 in classes.tolist())
        )
    return classes, codes
