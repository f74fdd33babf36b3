"""Side information as data: labels known for some points, and groups of points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import jax
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..fields import plain_array

__all__ = ["Groups", "PartialLabels", "class_codes", "frozen"]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class PartialLabels:
    """Classes known for some of the points; a pytree, whose values may be traced.

    Parameters
    ----------
    values : array_like
        Either class indices of shape (num_points,), -1 where unknown, or a boolean mask of shape
        (num_points, num_classes) of the classes that each point may have.
    """

    values: NDArray

    def __post_init__(self) -> None:
        values = plain_array("labels", self.values)
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
        object.__setattr__(self, "values", frozen(values))

    @property
    def classes(self) -> NDArray[np.int64]:
        """Class of each point where only one is possible, else -1; shape (num_points,)."""
        if self.values.ndim == 1:
            return self.values
        return np.where(self.values.sum(axis=1) == 1, self.values.argmax(axis=1), -1)

    def admissible(self, num_classes: int) -> NDArray[np.bool_]:
        """Mask of possible classes, shape (num_points, num_classes)."""
        if self.values.ndim == 2:
            if self.values.shape[1] != num_classes:
                raise ValueError(
                    f"labels allow {self.values.shape[1]} classes, the model has {num_classes}"
                )
            return self.values
        traced = isinstance(self.values, jax.core.Tracer)  # checked at the door
        most = -1 if traced else int(np.asarray(self.values).max(initial=-1))
        if most >= num_classes:
            raise ValueError(f"labels name class {most}, but there are only {num_classes} classes")
        return (self.values[:, None] < 0) | (self.values[:, None] == np.arange(num_classes))

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        """The values alone."""
        return (self.values,), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any]) -> Self:
        """Rebuild without any check, as JAX also passes placeholders."""
        labels = object.__new__(cls)
        object.__setattr__(labels, "values", children[0])
        return labels


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Groups:
    """Group (subject, domain, population, chunklet) that each row belongs to.

    A pytree: compiled code is given the codes as data and the number of groups as a constant. What
    it returns, and every other rebuilt pytree, has None for values and names.

    Parameters
    ----------
    values : array_like, shape (num_points,)
        Group names or numbers; -1 or a missing value belongs to no group.

    Attributes
    ----------
    codes : ndarray of int, shape (num_points,)
        Number of the group of each row, from 0 on in sorted order of the names; -1 for no group.
    names : ndarray, shape (num_groups,)
    num_groups : int
        Number of distinct groups.
    """

    values: NDArray
    codes: NDArray[np.int64] = field(init=False)
    names: NDArray = field(init=False)
    num_groups: int = field(init=False)

    def __post_init__(self) -> None:
        values = plain_array("groups", self.values)
        if values.ndim != 1:
            raise ValueError(f"groups must have shape (points,), got {values.shape}")
        if values.dtype.kind == "c":
            raise TypeError("groups holds complex numbers; give names or whole numbers")
        if np.issubdtype(values.dtype, np.number):
            values = np.where(values == -1, np.nan, values.astype(float))
        try:
            codes, names = pd.factorize(values, sort=True)
        except TypeError:
            raise TypeError(
                "groups mixes names that have no order among them, such as text and numbers; give all as "
                "text, or all as numbers"
            ) from None
        object.__setattr__(self, "codes", frozen(codes.astype(np.int64)))
        object.__setattr__(self, "names", np.asarray(names))
        object.__setattr__(self, "num_groups", len(names))

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.codes)

    def subset(self, rows: ArrayLike | slice) -> Self:
        """Groups of some of the rows; those that still occur, renumbered in the same order.

        Parameters
        ----------
        rows : array_like of int or bool, or slice
            Rows to keep, as NumPy indexes an array.
        """
        source = self.codes if self.values is None else self.values
        kept = rows if isinstance(rows, slice) else plain_array("rows", rows)
        if isinstance(kept, np.ndarray) and not kept.size:
            kept = kept.astype(int)
        try:
            return type(self)(np.asarray(source)[kept])
        except IndexError as error:
            raise ValueError(
                f"rows = {rows!r:.60} does not name some of the {len(source)} rows ({error})"
            ) from None

    def take(self, rows: ArrayLike) -> Self:
        """Groups of some of the rows, numbered as before, though some may occur no longer.

        Parameters
        ----------
        rows : array_like of int or bool
        """
        groups = self.tree_unflatten(
            (self.num_groups,), (np.asarray(self.codes)[np.asarray(rows)],)
        )
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
        asked = plain_array("values", values)
        if asked.ndim != 1:
            raise ValueError(f"values has shape {asked.shape}; expected (num_rows,), a group each")
        return pd.Index(self.names).get_indexer(pd.Index(asked)).astype(np.int64)

    def tree_flatten(self) -> tuple[tuple[Any], tuple[int]]:
        """Split into the codes, which may be traced, and the number of groups."""
        return (self.codes,), (self.num_groups,)

    @classmethod
    def tree_unflatten(cls, aux: tuple[int], children: tuple[Any]) -> Self:
        """Rebuild without names and without any check, as JAX also passes placeholders."""
        groups = object.__new__(cls)
        known = {"codes": children[0], "num_groups": aux[0], "values": None, "names": None}
        for name, value in known.items():
            object.__setattr__(groups, name, value)
        return groups


def class_codes(values: Any, name: str = "labels") -> NDArray[np.int64]:
    """Classes numbered from 0 in sorted order; -1 where a class is not known.

    Parameters
    ----------
    values : array_like, shape (num_points,)
        Names or whole numbers. Not known are -1, NaN, None, what is masked, and text that is blank.
    name : str
        Of the argument, for messages.

    Returns
    -------
    ndarray of int, shape (num_points,)

    Raises
    ------
    TypeError
        If names are mixed with something else, or there are neither names nor numbers.
    ValueError
        On another shape, numbers that are not whole, if no class is known, or if -1 and 1 are the
        only values: then nobody can tell whether -1 is a class.
    """
    known = ~np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else True
    array = plain_array(name, np.ma.getdata(values) if isinstance(known, np.ndarray) else values)
    if array.ndim != 1:
        raise ValueError(
            f"{name} has shape {array.shape}, expected one class a point, (num_points,)"
        )
    if array.dtype.kind == "c":
        raise TypeError(f"{name} holds complex numbers; give whole numbers or names")
    known = known & ~pd.isna(array)
    if array.dtype.kind in "OUST":
        known &= np.array([not (isinstance(v, str) and not v.strip()) for v in array], bool)
    found = pd.Series(array[known]).infer_objects()
    if pd.api.types.is_numeric_dtype(found) and found.dtype != bool:
        numbers = found.to_numpy(float)
        broken = ~np.isfinite(numbers) | (numbers != np.round(numbers))
        if broken.any():
            row = int(np.flatnonzero(known)[np.argmax(broken)])
            raise ValueError(
                f"{name}[{row}] = {array[row]} is no class; give whole numbers or names"
            )
        if set(numbers) == {-1.0, 1.0}:
            raise ValueError(
                f"{name} holds -1 and 1 only, and -1 stands for a class that is not known; number the "
                "classes from 0, with NaN where they are not known"
            )
        known[known] = numbers != -1
        found = found[numbers != -1]
    if not len(found):
        raise ValueError(f"{name} names no class of any point; leave it out")
    text = np.array([isinstance(value, str) for value in found], bool)
    if found.dtype == object and (text.any() != text.all() or not all(map(np.isscalar, found))):
        raise TypeError(f"{name} mixes names with other things; give names or whole numbers")
    out = np.full(len(array), -1, np.int64)
    out[known] = pd.factorize(found, sort=True)[0]
    return out


def frozen(array: NDArray) -> NDArray:
    """Copy of an array that nobody can write to."""
    array = np.array(array)
    array.flags.writeable = False
    return array
