"""Groups that rows belong to, and the names that groups may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import jax
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sidebayes.common.arrays import chosen_rows, is_traced, name_array, refuse_unwritable
from sidebayes.common.fields import rebuilt
from sidebayes.common.warnings import warn_user

from .cells import cell
from .partial_labels import frozen

__all__ = [
    "Groups",
    "as_groups",
    "check_order_of_groups",
    "refuse_mixed_orders",
    "refuse_other_order",
]

_NUMBERS = ("integer", "floating", "mixed-integer-float")
"""Types that pandas infers for arrays of objects that are all numbers."""

_TEXT = ("string", "bytes", "boolean", "datetime", "datetime64", "empty")
"""Further types that arrays of objects may have and that files can hold."""


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class Groups:
    """Group (subject, domain, population, chunklet) that each row belongs to.

    The object is a pytree: compiled code takes the codes as data and the number of groups as a
    constant. If compiled code returns it, or it is rebuilt otherwise, its values and names are
    None.

    Parameters
    ----------
    values : array_like, shape (num_points,)
        Group names or numbers; -1 or a missing value belongs to no group. All 64-bit integers are
        distinguished; floats are distinguished below 2^53, where they hold every whole number.

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
        If the shape is wrong, or a number is so large that its type does not distinguish it from
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
        """Groups of some of the rows; groups that still occur are renumbered in the same order.

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
        """Return the codes, which may be traced, and the number of groups."""
        return (self.codes,), (self.num_groups,)

    @classmethod
    def tree_unflatten(cls, aux: tuple[int], children: tuple[Any]) -> Self:
        """Rebuild without names and without any check."""
        return rebuilt(cls, (None, children[0], None, aux[0]))


def as_groups(groups: ArrayLike | Groups) -> Groups:
    """Return groups unchanged, or make them from the name or number of each row's group.

    Raises
    ------
    TypeError
        If the values are traced, because the number of groups is then unknown.
    """
    if is_traced(groups):
        raise TypeError(
            "the groups of rows are an argument of compiled code, which must know their number; pass "
            "sidebayes.Groups(names) in their place"
        )
    return groups if isinstance(groups, Groups) else Groups(groups)  # type: ignore[arg-type]


def refuse_other_order(name: str, values: Any, names: Any, order: str = "names") -> None:
    """Refuse a series or frame of pandas whose index has all names, but in another order.

    Such data would be matched by position, although their index shows a different order.

    Parameters
    ----------
    name : str
        Name of the argument, for messages.
    values : object
        Objects other than series and frames pass, and so do those with another index.
    names : array or index, or None
        Names in the order that values should have.
    order : str
        What holds the names in that order, for messages.

    Raises
    ------
    ValueError
    """
    index = getattr(values, "index", None)
    if names is None or not isinstance(index, pd.Index) or len(index) != len(names):
        return
    wanted = pd.Index(names)
    told = index.is_unique and wanted.is_unique
    rows = wanted.get_indexer(index) if told else np.zeros(0, int)
    moved = np.flatnonzero(rows != np.arange(len(rows)))
    if len(moved) and (rows >= 0).all():
        first = int(moved[0])
        raise ValueError(
            f"{name} has {index[[first]].tolist()[0]!r} at place {first}, by its index, where "
            f"{wanted[[first]].tolist()[0]!r} is expected; pass {name}.loc[{order}], or "
            f"{name}.to_numpy() if its index means something else"
        )


def refuse_mixed_orders(**tables: Any) -> None:
    """Refuse series and frames about the same things whose indices differ in order from the first.

    Parameters
    ----------
    **tables
        Arguments by name; objects other than series and frames of pandas pass.

    Raises
    ------
    ValueError
        See `refuse_other_order`.
    """
    indexed = {
        name: index
        for name, table in tables.items()
        if isinstance(index := getattr(table, "index", None), pd.Index)
    }
    first = next(iter(indexed), "")
    for name in indexed:
        refuse_other_order(name, tables[name], indexed[first], f"{first}.index")


def check_order_of_groups(name: str, values: Any, groups: Groups) -> None:
    """Refuse values by group whose index is in another order, and warn if their order is doubtful.

    Values without names are taken in the sorted order of the groups' names, but tables of groups
    are often in the order in which the groups first occur in the rows.

    Raises
    ------
    ValueError
    """
    refuse_other_order(name, values, groups.names)
    if groups.names is None or np.shape(values)[:1] != (groups.num_groups,):
        return
    table = np.asarray(values)
    if (table == table[:1]).all():  # in any order
        return
    names, index = pd.Index(groups.names), getattr(values, "index", None)
    appear = names[pd.unique(groups.codes[groups.codes >= 0])]
    if appear.equals(names) or (isinstance(index, pd.Index) and index.equals(names)):
        return
    ordered, first = (", ".join(map(repr, some[:4].tolist())) for some in (names, appear))
    dots = ", ..." * (len(names) > 4)
    warn_user(
        f"{name} has no names, and is taken in the sorted order of the groups, {ordered}{dots}, while rows "
        f"name them in the order {first}{dots}. Pass pandas objects whose index are the names of the groups, "
        "as table.set_index(column).sort_index() has them"
    )


def _name_array(name: str, values: Any) -> NDArray:
    """Names of groups as an array of one axis; missing integers of pandas do not make the others floats.

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
    """Mask of the rows that name a group, and the names; distinct numbers remain distinct.

    Raises
    ------
    TypeError
        For complex numbers.
    ValueError
        For numbers that their type does not distinguish.
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
