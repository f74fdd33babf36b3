"""A number that was chosen among several, with the table behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from sidebayes.diagnostics.comparison.ties import (
    not_told_by_bic,
    tied_in_bic,
    tied_in_evidence,
)
from sidebayes.diagnostics.names import in_a_row
from sidebayes.guides.engines.base import Evidence

from ..common.fields import Range, check_integer, check_number
from ..common.magnitudes import counted, shown
from ..common.warnings import warn_user
from ..results.fit import Fit

__all__ = ["NumberChoice", "evidence_columns", "read_numbers", "read_strengths"]


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
        Why another of these numbers may be the right one; empty if there is no reason.
    lost : dict of int to str
        Numbers without a fit, and why they have none.
    """

    fit: Fit
    path: pd.DataFrame
    edge: str = field(default="")
    doubts: str = field(default="")
    lost: Mapping[int, str] = field(default_factory=dict)

    what: ClassVar[str] = "components"
    """What was counted."""

    @property
    def number(self) -> int:
        """The number chosen."""
        return int(self.path.index[self.path["chosen"]][0])

    @classmethod
    def of(
        cls,
        fit: Fit,
        path: pd.DataFrame,
        *,
        argument: str | None,
        reached: int | None = None,
        lost: Mapping[int, str] | None = None,
        is_least: bool = False,
    ) -> Self:
        """A choice; warnings say where it is the greatest or the least number tried, or not sure.

        Parameters
        ----------
        fit : Fit
        path : DataFrame
            Rows of numbers without a fit hold NaN.
        argument : str or None
            Argument that gave the numbers; None where a rule ended them, and said which one is chosen.
        reached : int, optional
            Number up to which growth from the least one was worth it, where that is not the chosen one;
            the least number is then no edge.
        lost : mapping of int to str, optional
            Why numbers have no fit.
        is_least : bool
            Whether the data allow no number below the least with a fit.
        """
        choice = cls(fit, path)
        edge = "" if argument is None else choice._edge(argument, reached, is_least=is_least)
        doubts = choice._doubts(by_bic=argument is not None and reached is None)
        for said in filter(None, (edge, doubts)):
            warn_user(said)
        return cls(fit, path, edge, doubts, dict(lost or {}))

    def _doubts(self, *, by_bic: bool) -> str:
        """What speaks against a choice by BIC or evidence, and against the fit chosen."""
        said: list[str] = []
        if by_bic and "bic" in self.path:
            said += self._tied_in_bic()
        if "log_evidence" in self.path and self._has_greatest_evidence():
            said += [*self._without_evidence(), *self._tied_in_evidence()]
        if self.fit is not None and self.fit.verdict[0] == "bad":
            said.append(
                f"the fit of {self._counted(self.number)} is not to be trusted: {self.fit.verdict[1]}"
            )
        return "; ".join(said)

    def _has_greatest_evidence(self) -> bool:
        known = self.path["log_evidence"].dropna()
        return len(known) > 0 and known.idxmax() == self.number

    def _tied_in_bic(self) -> Iterator[str]:
        """Numbers whose BIC is as good as that of the one chosen."""
        bic = self.path["bic"]
        gaps = {one: bic[one] - bic[self.number] for one in bic.index.drop([self.number])}
        tied = tied_in_bic(gaps)
        if tied:
            yield not_told_by_bic(str(self.number), [str(one) for one in tied])

    def _without_evidence(self) -> Iterator[str]:
        """Numbers of which there is no evidence, or a bound alone."""
        for those, what in (
            (self.path["log_evidence"].isna(), "is no evidence, and they may be better"),
            (
                self.path["evidence"] == "bound",
                "is only a lower bound of the log evidence, which may be far above it",
            ),
        ):
            if those.any():
                numbers = ", ".join(map(str, self.path.index[those]))
                yield f"of {numbers} {self.what} there {what}"

    def _tied_in_evidence(self) -> Iterator[str]:
        """Numbers whose log evidence is as good as that of the one chosen; bounds are none of them."""
        estimated = self.path["evidence"] == "estimate"
        others = self.path.index[estimated & (self.path.index != self.number)]
        value = self.path["log_evidence"]
        error = self.path.get("standard_error", value * np.nan).astype(float)
        gaps = {one: value[self.number] - value[one] for one in others}
        errors = {one: float(np.hypot(error[self.number], error[one])) for one in others}
        tied = tied_in_evidence(gaps, errors)
        if tied:
            above = in_a_row(
                [f"{gaps[one]:.2g}{_spread(errors[one])} above that of {one}" for one in tied]
            )
            yield f"the log evidence of {self.number} is {above}, which does not tell them apart"

    def _edge(self, argument: str, reached: int | None, *, is_least: bool) -> str:
        tried = self.path.index[self.path.drop(columns="chosen").notna().any(axis=1)]
        best = self.number if reached is None else reached
        if len(self.path) < 2:
            return (
                f"{best} is the only number of {self.what} that was tried: try others ({argument})"
            )
        if best == tried.max():
            most = self.path.index.max()
            if most > best:
                are = "is" if best == 1 else "are"
                return (
                    f"{self._counted(best)} {are} the most that could be fitted, of up to {most} tried; the "
                    "criterion may favour more"
                )
            return (
                f"{best} {self.what} are the most that were tried, and the criterion may favour more: try "
                f"greater numbers ({argument}). Where the greatest is favoured again and again, they "
                "describe what the model cannot, such as rounding or heavy tails"
            )
        if reached is None and best == tried.min() > 1 and not is_least:
            if self.path.index.min() < best:
                return (
                    f"{best} {self.what} are the fewest that could be fitted, of {self.path.index.min()} or "
                    "more tried; the criterion may favour fewer"
                )
            return (
                f"{best} {self.what} are the fewest that were tried, and the criterion may favour "
                f"fewer: try smaller numbers ({argument})"
            )
        return ""

    def _counted(self, number: int) -> str:
        return counted(number, self.what.removesuffix("s"))

    def __repr__(self) -> str:
        """The table, and what is to be said of the choice."""
        head = f"{self._counted(self.number)} chosen of {counted(len(self.path), 'number')} tried"
        lost = (f"num_clusters = {number} has no fit: {why}" for number, why in self.lost.items())
        said = (head, self.edge, self.doubts, *lost, self.path.to_string())
        return "\n".join(filter(None, said))


def evidence_columns(evidence: Evidence | None) -> dict[str, Any]:
    """Columns of a row of `NumberChoice.path` that say what the evidence is.

    Parameters
    ----------
    evidence : Evidence or None
    """
    if evidence is None:
        return {"log_evidence": np.nan, "standard_error": np.nan, "evidence": None}
    error = np.nan if evidence.standard_error is None else evidence.standard_error
    return {"log_evidence": evidence.value, "standard_error": error, "evidence": evidence.kind}


def _spread(error: float) -> str:
    """An error after its value."""
    return " (of unknown error)" if np.isnan(error) else f" ± {error:.2g}"


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
        raise TypeError(f"{argument} = {shown(given)}; pass several numbers, such as {example}")
    tried = sorted({check_integer(argument, one) for one in given})
    if not tried:
        raise ValueError(f"{argument} is empty; give one at least, such as {example}")
    return tried


def read_strengths(given: Any) -> list[float]:
    """Strengths to try.

    Parameters
    ----------
    given : sequence of float

    Raises
    ------
    TypeError, ValueError
        If these are no positive numbers, or none are given.
    """
    if isinstance(given, str) or not (isinstance(given, Sequence) or np.ndim(given) == 1):
        raise TypeError(f"strengths = {shown(given)}; pass several numbers, such as (1.0, 10.0)")
    tried = [check_number("strengths", one, Range(above=0)) for one in given]
    if not tried:
        raise ValueError("strengths is empty; give one at least, such as strengths=(10.0,)")
    return tried
