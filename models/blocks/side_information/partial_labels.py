"""Side information as data: labels known for some points, and groups of points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from numpy.typing import ArrayLike, NDArray

from sidebayes.common.class_names import check_class_names, class_indices
from sidebayes.common.fields import chosen_rows, is_traced, name_array, rebuilt, refuse_unwritable

from .cells import cell

__all__ = [
    "Groups",
    "PartialLabels",
    "as_groups",
    "as_partial_labels",
    "frozen",
    "log_admissible",
    "refuse_other_order",
]

_NUMBERS = ("integer", "floating", "mixed-integer-float")
"""What pandas finds in arrays of objects that are all numbers."""

_TEXT = ("string", "bytes", "boolean", "datetime", "datetime64", "empty")
"""What else may stand in arrays of objects, and files can hold."""


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class PartialLabels:
    """Classes known for some of the points; a pytree, whose values may be traced.

    Parameters
    ----------
    values : array_like or data frame
        Class indices of shape (num_points,), -1 or a missing value where unknown; or names of classes,
        as `class_codes` takes them; or a boolean mask of shape (num_points, num_classes) of the classes
        that each point may have, as a data frame with the names of the classes.
    names : sequence of str, optional
        Names of the classes, in order of their index. By default those in `values`, in sorted order.

    Attributes
    ----------
    values : ndarray
        Indices or mask.
    names : tuple of str, or None
        None where classes have numbers only, and in compiled code.

    Raises
    ------
    TypeError
        For values of another type.
    ValueError
        For values of another shape or below -1, a row that admits no class, names that repeat or do not
        match the classes in number, or a class that `names` lack.
    """

    values: NDArray
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        columns = getattr(self.values, "columns", None)
        values = name_array("labels", self.values)
        names = check_class_names(self.names if self.names is not None else columns)
        if values.ndim == 1 and values.dtype.kind == "f":
            values = _whole_numbers(values)
        if values.ndim == 1 and values.dtype.kind in "bOUST":
            values, names = class_indices(values, names)
        if values.ndim == 1 and np.issubdtype(values.dtype, np.integer):
            if (values < -1).any():
                row = int(np.argmax(values < -1))
                raise ValueError(f"labels[{row}] = {values[row]}; use -1 for an unknown class")
        elif values.ndim == 2 and values.dtype == bool:
            if not values.any(axis=1).all():
                row = int(np.argmin(values.any(axis=1)))
                raise ValueError(f"labels[{row}] admits no class; mark at least one as possible")
        else:
            raise TypeError(
                "labels must be integers of shape (points,) or booleans of shape (points, classes), "
                f"got dtype {values.dtype} and shape {values.shape}"
            )
        most = values.shape[1] if values.ndim == 2 else int(values.max(initial=-1)) + 1
        if names is not None and (len(names) < most or (values.ndim == 2 and len(names) > most)):
            raise ValueError(
                f"labels have {len(names)} names of classes, and {most} classes; give one name for each"
            )
        object.__setattr__(self, "values", frozen(values))
        object.__setattr__(self, "names", names)

    def subset(self, rows: ArrayLike) -> Self:
        """Labels of some of the rows, of the same classes.

        Parameters
        ----------
        rows : array_like of int or bool
        """
        values = np.asarray(self.values)
        return type(self)(values[chosen_rows("rows", rows, len(values))], self.names)

    def under(
        self, names: tuple[str, ...] | None, name: str = "labels", owner: str = "the fit"
    ) -> Self:
        """The same labels with the classes numbered in the order of other names.

        Parameters
        ----------
        names : tuple of str, or None
            None where classes have numbers only.
        name, owner : str
            Of the argument, and whose names these are, for messages.

        Raises
        ------
        ValueError
            If a class that a row may have is not among these names.
        """
        if self.names is None or self.names == names:
            return self
        wide = self.values.ndim == 2
        held = np.flatnonzero(self.values.any(axis=0)) if wide else np.unique(self.values)
        own = {c: self.names[c] for c in held.tolist() if c >= 0}
        strange = [one for one in own.values() if one not in (names or ())]
        if names is None or strange:
            raise ValueError(
                f"{name} name the classes {strange[:5]}, and {owner} has "
                f"{'numbers only' if names is None else list(names)}; name classes as in {owner}"
            )
        place = np.array([names.index(one) if one in names else -1 for one in self.names])
        if not wide:
            return type(self)(np.where(self.values < 0, -1, place[self.values]), names)
        mask = np.zeros((len(self.values), len(names)), bool)
        mask[:, place[held]] = self.values[:, held]
        return type(self)(mask, names)

    @property
    def classes(self) -> NDArray[np.int64]:
        """Class of each point where only one is possible, else -1; shape (num_points,)."""
        if self.values.ndim == 1:
            return self.values
        return np.where(self.values.sum(axis=1) == 1, self.values.argmax(axis=1), -1)

    def admissible(self, num_classes: int) -> NDArray[np.bool_]:
        """Mask of possible classes, shape (num_points, num_classes)."""
        traced = isinstance(self.values, jax.core.Tracer)  # checked at the door
        values = self.values if traced else np.asarray(self.values)
        if values.ndim == 2:
            if values.shape[1] != num_classes:
                raise ValueError(
                    f"labels allow {values.shape[1]} classes, the model has {num_classes}"
                )
            return values
        most = -1 if traced else int(values.max(initial=-1))
        if most >= num_classes:
            raise ValueError(
                f"labels name class {most}, but there are only {num_classes} classes; fit {most + 1} at "
                "least, or correct the labels"
            )
        return (values[:, None] < 0) | (values[:, None] == np.arange(num_classes))

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        """The values alone."""
        return (self.values,), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any]) -> Self:
        """Rebuild without names and without any check."""
        return rebuilt(cls, (*children, None))


def as_partial_labels(labels: ArrayLike | PartialLabels) -> PartialLabels:
    """Labels as they are, or made of their values; see `PartialLabels` for what these may be."""
    return labels if isinstance(labels, PartialLabels) else PartialLabels(labels)  # type: ignore[arg-type]


def log_admissible(known: ArrayLike | PartialLabels | None, num_classes: int) -> Array | None:
    """Log-factors of labels of which some are known, None where none is.

    Returns
    -------
    Array, shape (num_points, num_classes), or None
        Zero for the labels that a point may have, minus infinity for others.
    """
    if known is None:
        return None
    return jnp.log(1.0 * as_partial_labels(known).admissible(num_classes))


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Groups:
    """Group (subject, domain, population, chunklet) that each row belongs to.

    A pytree: compiled code takes the codes as data and the number of groups as a constant. A pytree
    that compiled code returns, or that is rebuilt otherwise, has None for values and names.

    Parameters
    ----------
    values : array_like, shape (num_points,)
        Group names or numbers; -1 or a missing value belongs to no group. All 64-bit integers are
        distinguished; floats are where they hold every whole number, below 2^53.

    Attributes
    ----------
    codes : ndarray of int, shape (num_points,)
        Number of the group of each row, from 0 on in sorted order of the names; -1 for no group.
    names : ndarray, shape (num_groups,)
        Integers, if the values are integers.
    num_groups : int
        Number of distinct groups.

    Raises
    ------
    TypeError
        If values are complex, or of kinds that have no order among them.
    ValueError
        If the shape is another one, or a number is so large that its type does not distinguish it from
        the next.
    """

    values: NDArray
    codes: NDArray[np.int64] = field(init=False)
    names: NDArray = field(init=False)
    num_groups: int = field(init=False)

    def __post_init__(self) -> None:
        values = _name_array("groups", self.values)
        known, found = _known_names("groups", values)
        codes = np.full(len(values), -1, np.int64)
        codes[known], names = pd.factorize(found, sort=True)
        refuse_unwritable("groups", (one for one in names if isinstance(one, str)))
        object.__setattr__(self, "codes", frozen(codes))
        object.__setattr__(self, "names", np.asarray(names))
        object.__setattr__(self, "num_groups", len(names))

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.codes)

    def __repr__(self) -> str:
        """Say how many rows and groups there are."""
        return f"Groups({len(self)} rows, {self.num_groups} groups)"

    def _repr_html_(self) -> str:
        names = np.arange(self.num_groups) if self.names is None else self.names
        rows = np.bincount(self.codes[self.codes >= 0], minlength=self.num_groups)
        return cell(repr(self), pd.DataFrame({"rows": rows}, pd.Index(names, name="group")))

    def subset(self, rows: ArrayLike | slice) -> Self:
        """Groups of some of the rows; those that still occur, renumbered in the same order.

        Parameters
        ----------
        rows : array_like of int or bool, or slice
            Rows to keep, as NumPy indexes an array.

        Raises
        ------
        ValueError
            If these do not name some of the rows.
        """
        source = self.codes if self.values is None else _name_array("groups", self.values)
        return type(self)(np.asarray(source)[chosen_rows("rows", rows, len(source))])

    def take(self, rows: ArrayLike) -> Self:
        """Groups of some of the rows, numbered as before, though some may occur no longer.

        Parameters
        ----------
        rows : array_like of int or bool

        Raises
        ------
        ValueError
            If these do not name some of the rows.
        """
        kept = chosen_rows("rows", rows, len(self))
        groups = self.tree_unflatten((self.num_groups,), (np.asarray(self.codes)[kept],))
        object.__setattr__(groups, "names", self.names)
        return groups

    def codes_of(self, values: ArrayLike) -> NDArray[np.int64]:
        """Codes of other rows under the names of these groups; -1 for groups not among them.

        Parameters
        ----------
        values : array_like, shape (num_rows,)
            Group names or numbers, of the type that these groups were built from.

        Raises
        ------
        ValueError
            If the names are gone because the pytree was rebuilt.
        """
        if self.names is None:
            raise ValueError("these groups passed through compiled code, which keeps no names")
        asked = _name_array("values", values)
        known, found = _known_names("values", asked)
        codes = np.full(len(asked), -1, np.int64)
        codes[known] = pd.Index(self.names).get_indexer(pd.Index(found))
        return codes

    def tree_flatten(self) -> tuple[tuple[Any], tuple[int]]:
        """Split into the codes, which may be traced, and the number of groups."""
        return (self.codes,), (self.num_groups,)

    @classmethod
    def tree_unflatten(cls, aux: tuple[int], children: tuple[Any]) -> Self:
        """Rebuild without names and without any check."""
        return rebuilt(cls, (None, children[0], None, aux[0]))


def as_groups(groups: ArrayLike | Groups) -> Groups:
    """Groups as they are, or made of the name or number of each row's group.

    Raises
    ------
    TypeError
        If these are values of compiled code, which does not say how many groups there are.
    """
    if is_traced(groups):
        raise TypeError(
            "the groups of rows are an argument of compiled code, which must know their number; pass "
            "sidebayes.Groups(names) in their place"
        )
    return groups if isinstance(groups, Groups) else Groups(groups)  # type: ignore[arg-type]


def refuse_other_order(name: str, values: Any, names: Any) -> None:
    """Refuse a series or frame of pandas whose index has all names, but in another order.

    Such data have been matched by position, and say themselves that they are not in that order.

    Parameters
    ----------
    name : str
        Of the argument, for messages.
    values : object
        Anything else than series and frames passes, and so do those with another index.
    names : array or index, or None
        In the order that values should have.

    Raises
    ------
    ValueError
    """
    index = getattr(values, "index", None)
    if names is None or not isinstance(index, pd.Index) or len(index) != len(names):
        return
    wanted = pd.Index(names)
    rows = wanted.get_indexer(index) if index.is_unique else np.zeros(0, int)
    moved = np.flatnonzero(rows != np.arange(len(rows)))
    if len(moved) and (rows >= 0).all():
        first = int(moved[0])
        raise ValueError(
            f"{name} has {index[[first]].tolist()[0]!r} at place {first}, by its index, where "
            f"{wanted[[first]].tolist()[0]!r} is expected; pass {name}.loc[names] with the names in order, "
            f"or {name}.to_numpy() if its index means something else"
        )


def _whole_numbers(values: NDArray) -> NDArray:
    """Floats as integers, -1 in place of NaN; as they are if one is not whole."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):  # infinite ones are not whole
        whole = (values[known] % 1 == 0).all()
    return np.where(known, values, -1).astype(np.int64) if whole else values


def _name_array(name: str, values: Any) -> NDArray:
    """Names of groups as an array of one axis; integers of pandas that are missing leave the others so.

    Raises
    ------
    TypeError, ValueError
        For rows of different lengths, masked entries and other shapes.
    """
    is_nullable = isinstance(getattr(values, "dtype", None), pd.api.extensions.ExtensionDtype)
    array = values.to_numpy(object) if is_nullable else name_array(name, values)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}; expected (points,), one group per point")
    return array


def _known_names(name: str, values: NDArray) -> tuple[NDArray[np.bool_], NDArray]:
    """Which rows name a group, and these names: numbers as numbers, which differ if they were given so.

    Raises
    ------
    TypeError
        For complex numbers.
    ValueError
        For numbers of which several are one in the type that they have.
    """
    known = ~pd.isna(values)
    found = values[known]
    kind = pd.api.types.infer_dtype(found) if found.dtype == object else found.dtype.name
    if kind.startswith("complex"):
        raise TypeError(f"{name} holds complex numbers; give names or whole numbers")
    if kind in ("mixed", "mixed-integer"):
        raise TypeError(
            f"{name} mixes names that have no order among them, such as text and numbers; give all as "
            "text, or all as numbers"
        )
    if found.dtype == object and kind not in (*_NUMBERS, *_TEXT):
        raise TypeError(
            f"{name} holds {kind} objects; give numbers or text, such as values.astype(str)"
        )
    if found.dtype == object and kind in _NUMBERS:
        found = pd.Series(found, dtype=object).infer_objects().to_numpy()
        if found.dtype == object:
            raise ValueError(f"{name} holds integers of more than 64 bits; give them as text")
    if found.dtype.kind in "if":
        known[known] = stated = found != -1
        found = found[stated]
    if found.dtype.kind == "f":
        merged = np.abs(found) >= 2.0 ** (np.finfo(found.dtype).nmant + 1)
        if merged.any():
            row = int(np.flatnonzero(known)[np.argmax(merged)])
            raise ValueError(
                f"{name}[{row}] = {values[row]}: as {found.dtype} it is not distinguishable from its "
                "neighbours, so that groups may become one; give integers, where some are missing those "
                "of pandas ('Int64'), or text"
            )
        found = found.astype(float)
    return known, found


def frozen(array: NDArray) -> NDArray:
    """Copy of an array that nobody can write to."""
    array = np.array(array)
    array.flags.writeable = False
    return array
