"""Data of linear mixed models, made of a table with names by a formula."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sidebayes.models.blocks.effects.densities.structure import Structure
from sidebayes.models.blocks.effects.priors import EffectsPrior
from sidebayes.models.blocks.event_times import HazardPrior, read_times
from sidebayes.models.blocks.side_information.groups import Groups

from ..common.columns import column_names, first_odd, of_times
from ..common.magnitudes import counted, shown
from ..common.warnings import warn_user
from .formula_parts import (
    EXAMPLE,
    NAME,
    OF_SURVIVAL,
    Columns,
    Parts,
    bare,
    naming,
    parse,
    refuse_words,
)

__all__ = ["Design", "design"]


class Design(Mapping[str, Any]):
    """Data by role for ``sidebayes.fit("mixed_effects", **design)``.

    A mapping with the entries ``y``, ``fixed``, ``random``, ``subjects``, ``covariance`` and, where there
    are several formulas, ``outputs``. `at` makes the same columns for other rows.

    Attributes
    ----------
    formulas : tuple of str
    names : tuple of str
        Names of the outputs.
    """

    def __init__(self, formulas: Sequence[str], table: Any) -> None:
        self.formulas = _as_formulas(formulas)
        self._parts = [parse(formula) for formula in self.formulas]
        self.names = tuple(parts.output for parts in self._parts)
        if len(set(self.names)) < len(self.names):
            raise ValueError(
                f"the formulas have the responses {list(self.names)}; write one formula for each, since "
                "columns of an output go by its name"
            )
        groups = {bar.group for parts in self._parts for bar in parts.bars}
        if len(groups) != 1:
            raise ValueError(
                f"the formulas group rows by {sorted(groups) or 'nothing'}; give random effects of one "
                f"column of the table, such as {EXAMPLE}"
            )
        self._group = groups.pop()
        frame = _as_frame(table)
        self._matrices = []
        rows = []
        for formula, parts in zip(self.formulas, self._parts, strict=True):
            own = frame
            if len(self.formulas) > 1 and parts.output in frame:
                own = frame[frame[parts.output].notna()]  # outputs may be measured at other times
            rows.append(own)
            self._matrices.append(_evaluate(formula, parts, self._group, own))
        y = np.concatenate(
            [_outcome(*each) for each in zip(self._matrices, self._parts, rows, strict=True)]
        )
        self._data = {"y": y} | self._stacked([m[1:] for m in self._matrices], rows)
        self._data["covariance"] = self._structure()

    def at(self, table: Any, output: str | None = None) -> dict[str, Any]:
        """Data of other rows for ``fit.predictive(**design.at(table))``, outcomes left out.

        Parameters
        ----------
        table : data frame
            A table with the columns that the formula names, except for the response.
        output : str, optional
            Which response to predict, where there are several formulas. By default all of them, one
            after another.

        Returns
        -------
        dict
            ``fixed``, ``random``, ``subjects`` and, where there are several formulas, ``outputs``.

        Raises
        ------
        ValueError
            If a column is missing or incomplete, or there is no such output.
        """
        if output is not None and not (isinstance(output, str) and output in self.names):
            raise ValueError(f"output = {shown(output)}; expected one of {list(self.names)}")
        frame = _as_frame(table)
        _check_group(self._group, frame)
        matrices, rows = [], []
        for formula, parts, (_, fixed, random) in zip(
            self.formulas, self._parts, self._matrices, strict=True
        ):
            own = frame if output in (None, parts.output) else frame.iloc[:0]
            if not len(own):
                matrices.append((fixed.empty(), [one.empty() for one in random]))
            else:
                with naming(formula, own):
                    matrices.append((fixed.at(own), [one.at(own) for one in random]))
            rows.append(own)
        return self._stacked(matrices, rows)

    def survival(
        self,
        formula: str,
        table: Any,
        *,
        num_intervals: int | None = None,
        hazard: HazardPrior | None = None,
    ) -> dict[str, Any]:
        """Data and weak priors for ``sidebayes.fit("joint_survival", **design.survival(...))``.

        Parameters
        ----------
        formula : str
            As R's survival writes it, ``"Surv(time, event) ~ age + drug"``. The time to the event or to
            the end of observation is positive; the event is 1 or true where it was seen. ``~ 1`` has no
            covariates. The baseline hazard is the intercept.
        table : data frame
            One row per subject, with the columns that the formula names and the one that groups
            rows. Subjects without measurements are left out, with a warning.
        num_intervals : int, optional
            Number of intervals of the piecewise-constant baseline hazard, by default 6; each has equally
            many events.
        hazard : HazardPrior, optional
            Intervals and prior of the hazard, in place of a weak prior computed from the events.

        Returns
        -------
        dict
            The data of this design, ``time``, ``event``, ``covariates``, and the priors ``prior``
            and ``hazard``, which can be replaced. The prior standard deviation of a log hazard
            ratio is 2.5 per standard deviation of a covariate. For random effects it is 2.5 for an
            effect that shifts the measurements of its rows by as much as the spread of their
            residuals from the fixed effects.

        Raises
        ------
        ValueError
            If the formula cannot be read, or a subject has no row in the table, or several. If no event
            was seen, and `hazard` is not given; or if both `hazard` and `num_intervals` are.
        TypeError
            If `hazard` is no `HazardPrior`.
        """
        if hazard is not None and not isinstance(hazard, HazardPrior):
            raise TypeError(f"hazard = {shown(hazard)}; expected a HazardPrior")
        if hazard is not None and num_intervals is not None:
            raise ValueError("hazard has intervals of its own; leave num_intervals out")
        text = formula if isinstance(formula, str) else ""
        found = re.fullmatch(rf"\s*Surv\(\s*({NAME})\s*,\s*({NAME})\s*\)\s*~(.+)", text)
        if not found:
            raise ValueError(
                f"formula = {shown(formula)}; expected such as 'Surv(time, event) ~ age'"
            )
        subjects = Groups(self["subjects"]).names
        frame = _one_row_each(_as_frame(table), self._group, subjects)
        names = pd.Index(np.asarray(subjects))
        who = [f"{self._group} {name!r}" for name in names.tolist()]
        clock, seen = map(bare, found.group(1, 2))
        for name in (clock, seen):
            if name not in frame:
                raise ValueError(f"the table has no column {name!r}, only {list(frame)}")
            if said := of_times(frame[name], f"column {name!r}"):
                raise ValueError(said)
        time, event = read_times(frame[clock], frame[seen], who)
        refuse_words(formula)
        with naming(formula, frame):
            columns = Columns(found.group(3), frame, OF_SURVIVAL, who).frame
        columns = columns.drop(columns="Intercept", errors="ignore").set_axis(names, axis=0)
        own: dict[str, Any] = {
            name: self._data.get(name) for name in ("y", "fixed", "random", "outputs")
        }
        prior = EffectsPrior.weak(**own)
        random = self["random"].to_numpy(float)
        structure = Structure.read(self["covariance"], random.shape[1])
        random = random @ np.linalg.inv(prior.map_of(structure))
        if hazard is None:
            scales = _ratio_scales(self["y"], self["fixed"], random, columns)
            number = 6 if num_intervals is None else num_intervals
            hazard = HazardPrior.weak(time, event, num_intervals=number, **scales)
        return self._data | {
            "time": pd.Series(time, names),
            "event": pd.Series(event.astype(float), names),
            "covariates": columns if columns.shape[1] else None,
            "prior": prior,
            "hazard": hazard,
        }

    def _stacked(self, matrices: Sequence[tuple], rows: Sequence[pd.DataFrame]) -> dict[str, Any]:
        """Rows of all outputs one after another, each with columns of its own."""
        several = len(self.formulas) > 1
        prefix = [f"{name}: " if several else "" for name in self.names]
        fixed = [m[0].frame.add_prefix(p) for m, p in zip(matrices, prefix, strict=True)]
        random = [
            pd.concat([one.frame for one in m[1]], axis=1).add_prefix(p)
            for m, p in zip(matrices, prefix, strict=True)
        ]
        found = {
            "fixed": _block_diagonal(fixed),
            "random": _block_diagonal(random),
            "subjects": np.concatenate([own[self._group].to_numpy() for own in rows]),
        }
        if several:
            code = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
            found["outputs"] = pd.DataFrame(np.eye(len(rows))[code], columns=list(self.names))
        return found

    def _structure(self) -> str | tuple[int, ...]:
        """Sizes of the blocks of correlated random effects."""
        sizes: list[int] = []
        for parts, (_, _, random) in zip(self._parts, self._matrices, strict=True):
            for bar, columns in zip(parts.bars, random, strict=True):
                count = columns.frame.shape[1]
                sizes += [count] if bar.correlated else [1] * count
        joint = all(len(parts.bars) == 1 and parts.bars[0].correlated for parts in self._parts)
        return "full" if joint else tuple(sizes)

    def __getitem__(self, name: str) -> Any:
        """One of the data."""
        return self._data[name]

    def __iter__(self) -> Iterator[str]:
        """Names of the data."""
        return iter(self._data)

    def __len__(self) -> int:
        """Number of data."""
        return len(self._data)

    def __repr__(self) -> str:
        """Formulas and sizes."""
        rows, terms = self["fixed"].shape
        effects = self["random"].shape[1]
        return f"Design({'; '.join(self.formulas)}: {rows} rows, {terms} fixed and {effects} random effects)"


def design(formula: str | Sequence[str], table: Any) -> Design:
    """Data by role of a linear mixed model, from a formula and a table with names.

    Parameters
    ----------
    formula : str or sequence of str
        Response, fixed effects, and random effects in parentheses with the column that groups rows,
        ``"y ~ time + (time | subject)"``, as R's lme4 writes them. Random effects within one pair of
        parentheses are correlated; those of different pairs, or of ``||``, are not. Terms are those of
        the library formulae: ``bs(time, df=4)`` and ``poly(time, 2)`` are bases, columns of text are
        categories (dates, and numbers with commas, only as ``C(column)``), ``a*b`` interacts, and names
        with spaces stand in backticks. Several formulas are several outputs, whose random effects are
        correlated if each has one pair of parentheses.
    table : data frame
        A table of pandas, polars or Arrow. With several formulas, rows where a response is missing are
        left out of that output.

    Returns
    -------
    Design
        ``sidebayes.fit("mixed_effects", **design)``.

    Raises
    ------
    ImportError
        If the library formulae is not installed.
    ValueError
        If the formula cannot be read, or a column is missing, incomplete, or dates as text.

    Examples
    --------
    >>> import numpy as np, pandas as pd, sidebayes
    >>> table = pd.DataFrame({"y": np.arange(6.0), "t": [0, 1, 2] * 2, "who": list("aaabbb")})
    >>> sidebayes.design("y ~ t + (1 | who)", table)["fixed"].columns.tolist()
    ['Intercept', 't']
    """
    return Design((formula,) if isinstance(formula, str) else formula, table)


def _evaluate(
    formula: str, parts: Parts, group: str, table: pd.DataFrame
) -> tuple[Any, Columns, list[Columns]]:
    """Response, columns of fixed and of random effects."""
    _check_group(group, table)
    with naming(formula, table):
        fixed = Columns(f"{parts.response} ~ {parts.fixed}", table)
        random = [Columns(bar.columns, table) for bar in parts.bars]
    return fixed.response, fixed, random


def _check_group(group: str, table: pd.DataFrame) -> None:
    """Refuse a table that does not say the group of every row."""
    if group not in table:
        raise ValueError(
            f"the formula groups rows by {group!r}, and the table has only the columns {list(table)}"
        )
    without = table[group].isna()
    if without.any():
        raise ValueError(
            f"column {group!r} is missing in {counted(int(without.sum()), 'row')}, the first "
            f"{table.index[without][0]}; drop them, or name their group"
        )


def _one_row_each(table: pd.DataFrame, group: str, names: NDArray) -> pd.DataFrame:
    """Rows of the subjects of these names, in this order, with the index that they have in the table."""
    if group not in table:
        raise ValueError(f"the table has no column {group!r}, only {list(table)}")
    measured = table[group].isin(names)
    if not measured.all():
        gone = table[group][~measured].tolist()
        named = ", ".join(map(repr, gone[:5])) + ", ..." * (len(gone) > 5)
        warn_user(
            f"{len(gone)} of {len(table)} subjects have no measures and are left out, their times too: "
            f"{group} {named}"
        )
    table = table[measured]
    repeated = table[group][table[group].duplicated()]
    if len(repeated):
        raise ValueError(
            f"{group} {repeated.tolist()[0]!r} has several rows; give one per subject, such as "
            f"table.drop_duplicates({group!r})"
        )
    rows = pd.Index(table[group]).get_indexer(pd.Index(np.asarray(names)))
    if (rows < 0).any():
        name = np.asarray(names).tolist()[int(np.argmax(rows < 0))]
        raise ValueError(
            f"{group} {name!r} has measures, but no row here; add it, or leave its measures out"
        )
    found: pd.DataFrame = table.iloc[rows]
    return found


def _ratio_scales(
    y: np.ndarray, fixed: pd.DataFrame, z: np.ndarray, covariates: pd.DataFrame
) -> dict[str, np.ndarray | float]:
    """Prior deviations of log hazard ratios of effects of columns z and of covariates, and their origin."""
    x = fixed.to_numpy(float)
    residual = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    inside = z != 0  # rows of other outputs have other units
    square = np.where(inside, residual[:, None] ** 2, 0.0).sum(axis=0)
    unit = np.sqrt(square / np.maximum((z**2).sum(axis=0), np.finfo(float).tiny))
    w = covariates.to_numpy(float)
    spread = w.std(axis=0)
    return {
        "association": _WIDTH / np.where(unit > 0, unit, 1.0),
        "covariates": _WIDTH / np.where(spread > 0, spread, 1.0) if spread.size else _WIDTH,
        "origin": w.mean(axis=0) if spread.size else 0.0,
    }


_WIDTH = 2.5
"""Prior deviation of log hazard ratios of columns and effects of unit width."""


def _outcome(matrices: tuple[Any, ...], parts: Parts, table: pd.DataFrame) -> np.ndarray:
    response = matrices[0]
    values = np.asarray(response.design_matrix)
    if response.kind != "numeric" or values.size != len(values):
        odd = first_odd(table[parts.output]) if parts.output in table else None
        where = (
            ""
            if odd is None
            else (f": row {table.index[odd]} holds {table[parts.output].iloc[odd]!r}")
        )
        raise ValueError(
            f"the response {parts.output!r} is no column of numbers{where}; write a number in every row, or "
            "drop rows without one"
        )
    return values.astype(float).reshape(-1)


def _block_diagonal(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Frames one after another, zero where columns are of another frame."""
    return pd.concat(frames, ignore_index=True).fillna(0.0)


def _as_formulas(given: Any) -> tuple[str, ...]:
    """Formulas as text, one at least."""
    if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
        raise ValueError(
            f"formula = {shown(given)}; expected text, or several in a list, such as {EXAMPLE}"
        )
    if not given:
        raise ValueError(f"formula is empty; write one, such as {EXAMPLE}")
    return tuple(given)


def _as_frame(table: Any) -> pd.DataFrame:
    """Take the frame of another library as one of pandas, whose columns differ in name."""
    if not (isinstance(table, pd.DataFrame | Mapping) or hasattr(table, "to_pandas")):
        raise TypeError(
            f"table is a {type(table).__name__}; pass a data frame, whose columns the formula names"
        )
    if isinstance(table, Mapping):
        try:
            table = pd.DataFrame(dict(table))
        except ValueError as error:
            raise ValueError(f"table has columns that are no table together: {error}") from None
    frame = table if isinstance(table, pd.DataFrame) else table.to_pandas()
    column_names(frame, "table")
    return frame
