"""Arrays that grow and shrink along some of their axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Growing"]

_SPARE = 1.25
"""Factor by which the room of an array grows, so that copies are few."""
_BLOCK = 256
"""Number of rows that are moved at once."""


class Growing:
    """An array with room to spare along some axes.

    Parameters
    ----------
    values : ndarray
        Not copied.
    axes : tuple of int
        Axes along which it grows and shrinks, all by the same numbers.
    """

    def __init__(self, values: NDArray, axes: tuple[int, ...] = (0,)) -> None:
        self._room = values
        self._shape = values.shape
        self.axes = axes

    @property
    def values(self) -> Any:
        """The array, a view that is valid until it grows or shrinks."""
        return self._room[tuple(slice(size) for size in self._shape)]

    def extend(self, number: int, fill: float) -> None:
        """Append entries along all its axes."""
        old = self.values
        shape = tuple(
            size + number if axis in self.axes else size for axis, size in enumerate(self._shape)
        )
        if any(size > room for size, room in zip(shape, self._room.shape, strict=True)):
            room = tuple(
                max(size, int(_SPARE * size)) if axis in self.axes else size
                for axis, size in enumerate(shape)
            )
            self._room = np.empty(room, old.dtype)
            self._room[tuple(slice(size) for size in self._shape)] = old
        before, self._shape = self._shape, shape
        for axis in self.axes:
            place: list[slice] = [slice(None)] * len(shape)
            place[axis] = slice(before[axis], None)
            self.values[tuple(place)] = fill

    def keep(self, kept: NDArray[np.int64]) -> None:
        """Keep some entries along all its axes, in their order, without a copy of the whole."""
        old = self.values
        shape = tuple(
            len(kept) if axis in self.axes else size for axis, size in enumerate(self._shape)
        )
        rows = kept if 0 in self.axes else np.arange(len(old))
        for low in range(0, len(rows), _BLOCK):  # entries only move forwards
            block = old[rows[low : low + _BLOCK]]
            if 1 in self.axes:
                block = block[:, kept]
            old[low : low + len(block)][tuple(slice(size) for size in block.shape)] = block
        self._shape = shape
