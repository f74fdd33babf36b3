"""Side information as data: labels known for some points, and groups of points."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["Groups", "PartialLabels", "frozen"]


@dataclass(frozen=True, eq=False)
class PartialLabels:
    """Classes known for some of the points.

    Parameters
    ----------
    values : array_like
        Either class indices of shape (num_points,), -1 where unknown, or a boolean mask of shape
        (num_points, num_classes) of the classes that each point may have.
    """

    values: NDArray

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
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
        if self.values.max(initial=-1) >= num_classes:
            raise ValueError(
                f"labels name class {self.values.max()}, but there are only {num_classes} clusters"
            )
        return (self.values[:, None] < 0) | (self.values[:, None] == np.arange(num_classes))


@dataclass(frozen=True, eq=False)
class Groups:
    """Group (subject, domain, population, chunklet) that each row belongs to.

    Parameters
    ----------
    values : array_like, shape (num_points,)
        Group names or numbers; -1 or a missing value belongs to no group.
    """

    values: NDArray
    codes: NDArray[np.int64] = field(init=False)
    names: NDArray = field(init=False)

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.ndim != 1:
            raise ValueError(f"groups must have shape (points,), got {values.shape}")
        if np.issubdtype(values.dtype, np.number):
            values = np.where(values == -1, np.nan, values.astype(float))
        codes, names = pd.factorize(values, sort=True)
        object.__setattr__(self, "codes", frozen(codes.astype(np.int64)))
        object.__setattr__(self, "names", np.asarray(names))

    @property
    def num_groups(self) -> int:
        """Number of distinct groups."""
        return len(self.names)


def frozen(array: NDArray) -> NDArray:
    """Copy of an array that nobody can write to."""
    array = np.array(array)
    array.flags.writeable = False
    return array
