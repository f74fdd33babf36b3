"""A number that was chosen among several, with the table behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from ..common.fields import check_integer
from ..common.warnings import warn_user
from ..results.fit import Fit

__all__ = ["NumberChoice", "read_numbers"]

_SURE = 2.0
"""Standard errors of a difference beyond which it is told from zero."""


@dataclass(frozen=True, repr=False)
class NumberChoice:
    """The fit with a chosen number, and the table of all that were tried.

    Attributes
    ----------
    fit : Fit
    path : DataFrame
        A row for every number tried, which the index has, and the column ``chosen``.
    edge : str
        Why the choice may lie outside the numbers that were tried; empty where it lies between others.
    doubts : str
        Why the choice may be another among these numbers; empty without reason.
    """

    fit: Fit
    path: pd.DataFrame
    edge: str = field(default="")
    doubts: str = field(default="")

    what: ClassVar[str] = "components"
    """What was counted."""

    @property
    def number(self) -> int:
        """The number chosen."""
        return int(self.path.index[self.path["chosen"]][0])

    @classmethod
    def of(cls, fit: Fit, path: pd.DataFrame, *, argument: str, reached: int | None = None) -> Self:
        """A choice; warnings say where it is the greatest or the least number tried, or not sure.

        Parameters
        ----------
        fit : Fit
        path : DataFrame
            Rows of numbers without a fit hold NaN.
        argument : str
            Argument that gave the numbers.
        reached : int, optional
            Number up to which growth from the least one was worth it, where that is not the chosen one;
            the least number is then no edge.
        """
        choice = cls(fit, path)
        edge, doubts = choice._edge(argument, reached), choice._doubts()
        for said in filter(None, (edge, doubts)):
            warn_user(said)
        return cls(fit, path, edge, doubts)

    def _doubts(self) -> str:
        """What speaks against a choice by evidence, and against the fit chosen."""
        said = []
        if "standard_error" in self.path and self.path["log_evidence"].isna().any():
            numbers = ", ".join(map(str, self.path.index[self.path["log_evidence"].isna()]))
            said.append(f"of {numbers} {self.what} there is no evidence, and they may be better")
        if "log_evidence" in self.path and self.path["log_evidence"].notna().sum() > 1:
            value = self.path["log_evidence"].dropna()
            best, *others = value.sort_values(ascending=False).index
            bounds = self.path["evidence"] == "bound"
            if bounds.any():
                numbers = ", ".join(map(str, self.path.index[bounds]))
                said.append(
                    f"of {numbers} {self.what} there is only a lower bound of the log evidence, which may be "
                    "far above it"
                )
            error = self.path.get("standard_error", value * np.nan)
            gap, of_gap = value[best] - value[others[0]], np.hypot(error[best], error[others[0]])
            if gap < _SURE * of_gap:
                said.append(
                    f"the log evidence of {best} is {gap:.2g} ± {of_gap:.2g} above that of {others[0]}, "
                    "which does not tell them apart"
                )
        if self.fit is not None and self.fit.verdict[0] == "bad":
            said.append(
                f"the fit of {self.number} {self.what} is not to be trusted: {self.fit.verdict[1]}"
            )
        return "; ".join(said)

    def _edge(self, argument: str, reached: int | None) -> str:
        tried = self.path.index[self.path.drop(columns="chosen").notna().any(axis=1)]
        best = self.number if reached is None else reached
        if len(self.path) < 2:
            return ""
        if best == tried.max():
            most = self.path.index.max()
            if most > best:
                return (
                    f"{best} {self.what} are the most that could be fitted, of up to {most} tried; the "
                    "criterion may favour more"
                )
            return (
                f"{best} {self.what} are the most that were tried, and the criterion may favour more: try "
                f"greater numbers ({argument}). Where the greatest is favoured again and again, they "
                "describe what the model cannot, such as rounding or heavy tails"
            )
        if reached is None and best == tried.min() > 1:
            return (
                f"{best} {self.what} are the fewest that were tried, and the criterion may favour "
                f"fewer: try smaller numbers ({argument})"
            )
        return ""

    def __repr__(self) -> str:
        """The table, and what is to be said of the choice."""
        head = f"{self.number} {self.what} chosen of {len(self.path)} numbers tried"
        return "\n".join(filter(None, (head, self.edge, self.doubts, self.path.to_string())))


def read_numbers(argument: str, given: Any, example: str) -> list[int]:
    """Numbers to try in rising order.

    Parameters
    ----------
    argument : str
    given : sequence of int
    example : str
        What could be given, for messages.

    Raises
    ------
    TypeError, ValueError
        If these are no positive whole numbers, or none are given.
    """
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise TypeError(f"{argument} = {given!r:.60}; pass several numbers, such as {example}")
    tried = sorted({check_integer(argument, one) for one in given})
    if not tried:
        raise ValueError(f"{argument} is empty; give one at least, such as {example}")
    return tried
