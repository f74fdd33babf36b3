"""Labels known for some points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from sidebayes.common.arrays import chosen_rows, name_array
from sidebayes.common.class_names import check_class_names, class_indices
from sidebayes.common.fields import rebuilt

__all__ = [
    "PartialLabels",
    "TooFewClustersError",
    "as_partial_labels",
    "check_known_classes",
    "frozen",
    "log_admissible",
    "names_of_classes",
]


class TooFewClustersError(ValueError):
    """Side information needs more clusters, or classes, than a model has."""


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class PartialLabels:
    """Classes known for some of the points; a pytree, whose values may be traced.

    Parameters
    ----------
    values : array_like or data frame
        Class indices of shape (num_points,), -1 or a missing value where unknown; or names of classes,
        as `class_codes` takes them, with a warning of those like "?" and "unknown"; or a boolean mask of
        shape (num_points, num_classes) of the classes that each point may have, as a data frame with the
        names of the classes.
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
        most = _number_of(values)
        if names is not None and (len(names) < most or (values.ndim == 2 and len(names) > most)):
            raise ValueError(
                f"labels have {len(names)} names of classes, and {most} classes; give one name for each"
            )
        object.__setattr__(self, "values", frozen(values))
        object.__setattr__(self, "names", names)

    @property
    def states_any(self) -> bool:
        """Whether anything is known about the class of any row."""
        values = np.asarray(self.values)  # of known numbers, also while a model is traced
        return bool((~values if values.ndim == 2 else values >= 0).any())

    def subset(self, rows: ArrayLike) -> Self:
        """Return the labels of some of the rows, with the same classes.

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
            Name of the argument, and the owner of the names, for messages.

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
    def num_classes(self) -> int:
        """Number of classes that the values can refer to."""
        return _number_of(self.values)

    @property
    def classes(self) -> NDArray[np.int64]:
        """Class of each point where only one is possible, else -1; shape (num_points,)."""
        if self.values.ndim == 1:
            return self.values
        return np.where(self.values.sum(axis=1) == 1, self.values.argmax(axis=1), -1)

    def check_number(
        self, num_classes: int, size: str = "num_classes", name: str = "labels"
    ) -> None:
        """Refuse classes beyond `num_classes`, and masks with another number of classes.

        Parameters
        ----------
        num_classes : int
        size, name : str
            Names of the number and of the labels, for messages.

        Raises
        ------
        ValueError
            If there are such classes; the message names one.
        """
        if self.values.ndim == 2:
            if (own := self.values.shape[1]) != num_classes:
                raise ValueError(
                    f"{name} allow {own} classes, and {size} = {num_classes}; pass {size}={own}, or a mask "
                    f"with {num_classes} columns"
                )
            return
        most = int(np.asarray(self.values).max(initial=-1))
        if most >= num_classes:
            last = f"{most} (numbered from 0)" if self.names is None else repr(self.names[most])
            raise TooFewClustersError(
                f"{name} name class {last}, too many for {size} = {num_classes}; pass {size}={most + 1} at "
                "least, or correct the labels"
            )

    def admissible(self, num_classes: int, size: str = "num_classes") -> NDArray[np.bool_]:
        """Mask of possible classes, shape (num_points, num_classes); see `check_number`."""
        traced = isinstance(self.values, jax.core.Tracer)  # checked at the door
        values = self.values if traced else np.asarray(self.values)
        if not traced:
            self.check_number(num_classes, size)
        if values.ndim == 2:
            return values
        return (values[:, None] < 0) | (values[:, None] == np.arange(num_classes))

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        """The values alone."""
        return (self.values,), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple[Any]) -> Self:
        """Rebuild without names and without any check."""
        return rebuilt(cls, (*children, None))


def as_partial_labels(labels: ArrayLike | PartialLabels) -> PartialLabels:
    """Return labels unchanged, or make them from values as `PartialLabels` takes them."""
    return labels if isinstance(labels, PartialLabels) else PartialLabels(labels)  # type: ignore[arg-type]


def check_known_classes(data: Mapping[str, Any], size: str = "num_classes") -> None:
    """Refuse classes in ``data["known"]`` beyond their number ``data[size]``, if that is a number.

    Raises
    ------
    ValueError
        If there are such classes; the message names the class and the number.
    """
    number = data.get(size)
    if isinstance(number, int | np.integer) and number > 0:
        data["known"].check_number(int(number), size, "known: labels")


def log_admissible(known: ArrayLike | PartialLabels | None, num_clusters: int) -> Array | None:
    """Log-factors of the clusters of partly labelled units; None if no unit is labelled.

    Returns
    -------
    Array, shape (num_points, num_clusters), or None
        Zero for the labels that a point may have, minus infinity for others.
    """
    if known is None:
        return None
    return jnp.log(1.0 * as_partial_labels(known).admissible(num_clusters, "num_clusters"))


def names_of_classes(values: Iterable[Any]) -> tuple[str, ...]:
    """Names of classes, from the first value that has them; empty if classes have numbers only."""
    for value in values:
        of_labels = isinstance(value, PartialLabels)
        if names := value.names if of_labels else getattr(value, "class_names", None):
            return tuple(names)
    return ()


def _number_of(values: NDArray) -> int:
    """Number of classes that indices or a mask can refer to."""
    return values.shape[1] if values.ndim == 2 else int(values.max(initial=-1)) + 1


def _whole_numbers(values: NDArray) -> NDArray:
    """Floats as integers, with -1 for NaN; unchanged if one of them is not whole."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):  # infinite ones are not whole
        whole = (values[known] % 1 == 0).all()
    return np.where(known, values, -1).astype(np.int64) if whole else values


def frozen(array: NDArray) -> NDArray:
    """Read-only copy of an array."""
    array = np.array(array)
    array.flags.writeable = False
    return array
