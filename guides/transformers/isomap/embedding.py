"""Coordinates of the rows of a manifold, updated with its geodesic distances."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .graphs.geodesics import Geodesics
from .scaling import Scaling, between_all, from_landmarks, placed, ritz_step, spectrum_shift

__all__ = ["Embedding"]

_MANY = 0.1
"""Share of rows without coordinates above which all coordinates are computed anew."""
_STALE = 1.25
"""Growth of the number of rows after which the smallest eigenvalue is computed again."""


@dataclass
class Embedding:
    """Coordinates of the largest connected set of a graph.

    Attributes
    ----------
    number : int
        Number of dimensions.
    converge : bool
        Whether every update continues to convergence, rather than for one step.
    coordinates : ndarray, shape (num_rows, number)
        NaN for rows of other connected sets.
    sources : ndarray, shape (num_sources, number)
        Coordinates of the sources within the set; see `Scaling`.
    parts : ndarray of int, shape (num_rows,)
        Connected set of every row, numbered from the largest down.
    eigenvalues : ndarray, shape (number,)
    residual : float
        See `Scaling`.
    shift, shift_size : float, int
        Shift that Ritz steps add to inner products, and the number of rows for which it was computed.
    """

    number: int
    converge: bool
    coordinates: NDArray[np.float64] = field(init=False)
    sources: NDArray[np.float64] = field(init=False)
    parts: NDArray[np.int64] = field(init=False)
    eigenvalues: NDArray[np.float64] = field(init=False)
    residual: float = field(init=False)
    shift: float = 0.0
    shift_size: int = 0

    def update(
        self, geodesics: Geodesics, before: NDArray[np.float64] | None = None, num_gone: int = 0
    ) -> None:
        """Update coordinates from the previous ones, NaN where there were none, or start anew.

        It starts anew where many rows are new, or many are gone.
        """
        self.parts = geodesics.parts()
        inside = self.parts == 0
        known = (
            before[inside] if before is not None else np.full((inside.sum(), self.number), np.nan)
        )
        is_known = np.isfinite(known[:, 0])
        is_anew = bool(np.mean(~is_known) > _MANY) or num_gone > _MANY * (num_gone + len(inside))
        if geodesics.is_complete:
            rows = geodesics.rows if inside.all() else geodesics.rows[np.ix_(inside, inside)]
            found = self._between_all(rows, known, is_known, is_anew)
        else:
            found = self._from_landmarks(geodesics, inside, None if is_anew else known)
        found = found.padded(self.number)
        signs = known if is_known.any() else None
        found = found.flipped(None if signs is None else np.nan_to_num(signs))
        self.coordinates = np.full((len(inside), self.number), np.nan)
        self.coordinates[inside] = found.points
        self.sources, self.eigenvalues = found.sources, found.eigenvalues
        self.residual = found.residual

    def place(self, geodesics: Geodesics, reached: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return coordinates of other rows.

        Parameters
        ----------
        geodesics : Geodesics
        reached : ndarray, shape (num_new, num_sources)
            Distances from all sources. Rows that no source inside the set reaches get NaN.
        """
        inside = self.parts == 0
        sources = inside[geodesics.sources]
        rows, squares = geodesics.rows[sources], np.square(reached[:, sources])
        rows = rows if inside.all() else rows[:, inside]
        is_reached = np.isfinite(squares).all(axis=1)
        found = np.full((len(reached), self.number), np.nan)
        found[is_reached] = placed(squares[is_reached], _mean_squares(rows), self.sources)
        return found

    def _between_all(
        self, rows: NDArray, known: NDArray, is_known: NDArray[np.bool_], is_anew: bool
    ) -> Scaling:
        if is_anew:
            self.shift_size = 0
            return between_all(rows, self.number)
        if not is_known.all():
            squares = np.square(rows[:, ~is_known][is_known])
            sums = len(rows) * _mean_squares(rows)[is_known] - squares.sum(axis=1)
            centred = known[is_known] - known[is_known].mean(axis=0)
            known = known.copy()
            known[is_known] = centred
            known[~is_known] = placed(squares.T, sums / is_known.sum(), centred)
        if self.converge:
            return between_all(rows, self.number, known)
        change = abs(math.log(len(rows) / self.shift_size)) if self.shift_size else math.inf
        if change > math.log(_STALE):
            self.shift = spectrum_shift(rows, np.square(known).sum(axis=0))
            self.shift_size = len(rows)
        return ritz_step(rows, known, self.shift)

    def _from_landmarks(
        self, geodesics: Geodesics, inside: NDArray[np.bool_], known: NDArray | None
    ) -> Scaling:
        chosen = inside[geodesics.sources]
        possible, present = min(geodesics.num_wanted, int(inside.sum())), int(chosen.sum())
        if present < possible and present <= max(self.number, possible // 2):
            geodesics.choose_landmarks()
            chosen, known = inside[geodesics.sources], None
        rows = geodesics.rows[chosen]
        rows = rows if inside.all() else rows[:, inside]
        landmarks = np.searchsorted(np.flatnonzero(inside), geodesics.sources[chosen])
        start = None if known is None or self.converge else np.nan_to_num(known)
        return from_landmarks(rows, landmarks, self.number, start)


def _mean_squares(rows: NDArray) -> NDArray[np.float64]:
    return np.einsum("ij,ij->i", rows, rows) / rows.shape[1]
