"""Formulas taken apart, and columns that their parts make of a table."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..common.columns import of_complex, of_text, of_unreadable
from ..common.magnitudes import counted

__all__ = [
    "EXAMPLE",
    "NAME",
    "OF_SHAPES",
    "OF_SURVIVAL",
    "Bar",
    "Columns",
    "Parts",
    "bare",
    "naming",
    "parse",
    "refuse_words",
    "term_of",
]

EXAMPLE = "'y ~ time + (time | subject)'"

NAME = r"(?:[\w.]+|`[^`]+`)"
"""Pattern of the name of a column; one with other characters than these stands in backticks."""

_OF_DESIGN, OF_SHAPES, OF_SURVIVAL = 4, 3, 2
"""Frames between formulae and whoever calls `design` or its method, whose functions a formula may use."""


class Bar(NamedTuple):
    """Random effects of a formula: columns, the grouping column, and whether they are correlated."""

    columns: str
    group: str
    correlated: bool


class Parts(NamedTuple):
    """One formula taken apart: response, fixed effects, random effects."""

    response: str
    fixed: str
    bars: tuple[Bar, ...]

    @property
    def output(self) -> str:
        """Name of the response, without backticks."""
        return bare(self.response)


class _ColumnError(ValueError):
    """What is wrong with a column, and what to do."""


class Columns:
    """Columns of one part of a formula, which can be made of other rows as well.

    Messages name rows by `owners`, what each row is of, beside the index of the table.
    """

    def __init__(
        self,
        formula: str,
        table: pd.DataFrame,
        frames: int = _OF_DESIGN,
        owners: Sequence[str] | None = None,
    ) -> None:
        formulae = _formulae()
        from formulae.environment import Environment

        described = formulae.model_description(formula)
        names = described.var_names
        _refuse_text(table, described)
        around = Environment.capture(frames).namespace
        called = Environment([_called(formula, around, table)])
        with _naming_column(table, names, owners):
            matrices = formulae.design_matrices(formula, table, na_action="error", env=called)
        self.common, self.response = matrices.common, matrices.response
        if self.common is None:
            raise ValueError(f"{formula!r} has no columns; give it an intercept, 1, or a term")
        rows = owners and [f"{n} of {who}" for n, who in zip(table.index, owners, strict=True)]
        self.frame = self._framed(self.common.design_matrix, rows)
        types = {name: table[name].dtype for name in names if name in table}
        self.numeric = [name for name, kind in types.items() if pd.api.types.is_numeric_dtype(kind)]

    def _framed(self, matrix: Any, rows: Sequence[str] | None = None) -> pd.DataFrame:
        values, names = np.asarray(matrix, float), list(self.common.as_dataframe().columns)
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            place = rows[row] if rows else row
            raise _ColumnError(
                f"{names[column]} is {values[row, column]} in row {place}; drop rows where it is not finite"
            )
        return pd.DataFrame(values, columns=names)

    def _with(self, frame: pd.DataFrame) -> Columns:
        other = object.__new__(Columns)
        other.common, other.response, other.frame = self.common, None, frame
        other.numeric = self.numeric
        return other

    def empty(self) -> Columns:
        """The columns without rows."""
        return self._with(self.frame.iloc[:0])

    def at(self, table: pd.DataFrame) -> Columns:
        """The columns at other rows, with bases and categories as they were."""
        names = set().union(*(term.var_names for term in self.common.terms.values()))
        with self._naming_other_kind(table), _naming_column(table, names):
            return self._with(self._framed(self.common.evaluate_new_data(table).design_matrix))

    @contextmanager
    def _naming_other_kind(self, table: pd.DataFrame) -> Iterator[None]:
        """Name, if evaluation fails, a column that held numbers, or levels that were not there."""
        try:
            yield
        except _ColumnError:  # said already
            raise
        except ValueError as error:
            for name in self.numeric:
                if name in table and pd.api.types.is_string_dtype(table[name]):
                    raise _ColumnError(
                        f"column {name!r} holds text, such as {table[name].iloc[0]!r}, and held numbers in "
                        "the table of the design; give numbers"
                    ) from error
            if "are not present in the original data set" in str(error):
                raise _ColumnError(
                    f"{str(error).replace('original data set', 'table of the design').rstrip('.')}, so that "
                    "nothing is known of them; leave these rows out"
                ) from error
            raise


class _Called(dict):
    """What a formula calls, by name; a copy or a pickle has modules by their names."""

    def __reduce__(self) -> Any:
        modules = {n: one.__name__ for n, one in self.items() if isinstance(one, ModuleType)}
        return _restored, ({n: one for n, one in self.items() if n not in modules}, modules)


def _restored(values: dict[str, Any], modules: dict[str, str]) -> _Called:
    return _Called(values | {name: import_module(one) for name, one in modules.items()})


def _called(formula: str, around: Any, table: pd.DataFrame) -> _Called:
    """Functions, modules and values of a formula, found by name in what is around its user."""
    words = re.findall(r"([A-Za-z_]\w*)(\s*\()?", re.sub("`[^`]*`", "", formula))
    names = {word for word, call in words if call or word not in table}
    return _Called({name: around[name] for name in names if name in around})


def _refuse_text(table: pd.DataFrame, described: Any) -> None:
    """Refuse columns that are dates or numbers in text; within a function they are what it makes of them."""
    response = [described.response.term] if described.response else []
    for term in (*response, *described.common_terms):
        parts = getattr(term, "components", ())  # an intercept has none
        for name in (part.name for part in parts):
            if name in table and (said := of_text(table[name])):
                quoted = name if re.fullmatch(r"[\w.]+", name) else f"`{name}`"
                levels = "" if term in response else f"; C({quoted}) takes them as categories"
                raise _ColumnError(said + levels)


@contextmanager
def _naming_column(
    table: pd.DataFrame, names: Collection[str], owners: Sequence[str] | None = None
) -> Iterator[None]:
    """Name the columns, among some, that are complex or, if evaluation fails, lack values or are not read."""
    own = table[[name for name in table if name in names]]
    if said := next(filter(None, (of_complex(own[name]) for name in own)), None):
        raise _ColumnError(said)  # NumPy would leave out a part
    try:
        yield
    except (KeyError, NameError, _ColumnError):  # of a name, or said already
        raise
    except Exception as error:  # of many kinds
        missing = own.isna()
        rows, lacking = missing.any(axis=1), own.columns[missing.any()].tolist()
        if lacking:
            of = f" of {owners[int(np.argmax(rows))]}" if owners else ""
            raise _ColumnError(
                f"columns {lacking} are incomplete in {counted(int(rows.sum()), 'row')}, the first "
                f"{own.index[rows].tolist()[:5]}{of}; drop these rows, table.dropna(subset={lacking})"
            ) from error
        causes = (of_unreadable(own[name]) or of_text(own[name]) for name in own)
        if cause := next(filter(None, causes), None):
            raise _ColumnError(cause) from error
        text = [name for name in own if pd.api.types.is_string_dtype(own[name])]
        if text and isinstance(error, TypeError):
            raise _ColumnError(
                f"{str(error).rstrip('.')}; columns {text} hold text, such as {own[text[0]].iloc[0]!r}, "
                "and a function that computes needs numbers"
            ) from error
        raise


def parse(formula: str) -> Parts:
    """Take a formula apart; its terms are left to formulae.

    Raises
    ------
    ValueError
        If it has no response, no random effects, an open name, or words of R's that mean something else here.
    """
    response, tilde, right = formula.partition("~")
    if not tilde or not response.strip():
        raise ValueError(f"formula = {formula!r} has no response; write one such as {EXAMPLE}")
    if formula.count("`") % 2:
        raise ValueError(
            f"formula = {formula!r} has a backtick without its second; close the name, `a b`"
        )
    refuse_words(formula)
    kept, bars = [], []
    for sign, term in _signed_terms(right):
        inside = term[1:-1] if term.startswith("(") and term.endswith(")") else ""
        columns, bar, group = inside.partition("||" if "||" in inside else "|")
        if not bar:
            kept.append(f"{sign} {term}")
            continue
        if sign == "-" or not columns.strip() or not re.fullmatch(NAME, group.strip()):
            raise ValueError(
                f"formula = {formula!r}: cannot read {sign}{term}; write random effects as (terms | column), "
                f"such as {EXAMPLE}, with one column that groups rows, in backticks if its name has spaces"
            )
        bars.append(Bar(columns.strip(), bare(group), bar == "|"))
    fixed = " ".join(kept).removeprefix("+").strip() or "1"
    return Parts(response.strip(), fixed, tuple(bars))


def bare(text: str) -> str:
    """Name of a column without the backticks that it may stand in; other text as it is."""
    text = text.strip()
    return text[1:-1] if re.fullmatch("`[^`]+`", text) else text


def term_of(column: str) -> str:
    """Term of a formula that a column is of, without the categories and numbers in brackets."""
    return re.sub(r"\[[^][]*\](?=:|$)", "", column)


def refuse_words(formula: str) -> None:
    """Refuse words of R's formulas that mean something else to formulae.

    Raises
    ------
    ValueError
        Naming the word, and what to write.
    """
    terms = re.sub("`[^`]*`", "column", formula)
    for pattern, word, remedy in _MISREAD:
        if re.search(pattern, terms):
            raise ValueError(f"formula = {formula!r}: {word} is not available here; {remedy}")


_MISREAD = (
    (r"\boffset\s*\(", "offset()", "subtract that column from the response in the table"),
    (r"(?<![\w.)\]])\.(?!\w)", "a dot for all other columns", "name the columns"),
    (r"\^", "^", "write I(column**2) for a power, (a + b)**2 for interactions"),
)
"""Pattern, word and remedy."""

_LACKING = (
    (r"\b(?:weights|subset)\s*\(", "choose rows of the table before, weights are not available"),
    (r"\b(?:ns|s|te|lo)\s*\(", "write bs(column, df=4) for a spline"),
    (r"\bstrata\s*\(", "write the column as a term, text is taken as categories"),
    (r"\b(?:cluster|frailty|Error)\s*\(", "write random effects as (1 | column)"),
    (r"\b(?:cbind|mvbind)\s*\(", "give one formula per response, in a list"),
    (r"\bfactor\s*\(", "write C(column)"),
    (
        r"(?<![\w.])(?:log\w*|exp|sqrt|abs)\s*\(",
        "write np.log(column) and the like, with numpy as np",
    ),
)
"""Words of R's formulas that formulae does not have, and what to write."""


def _signed_terms(right: str) -> list[tuple[str, str]]:
    """Terms of the right-hand side of a formula, with their signs."""
    found, depth, sign, text = [], 0, "+", ""
    for one in re.findall("`[^`]*`|.", right, re.DOTALL):  # names in backticks are whole
        depth += (one in "([{") - (one in ")]}")
        if depth == 0 and one in "+-":
            found.append((sign, text.strip()))
            sign, text = one, ""
        else:
            text += one
    found.append((sign, text.strip()))
    if depth:
        raise ValueError(f"formula: parentheses of {right.strip()!r} are not balanced")
    return [(sign, term) for sign, term in found if term]


@contextmanager
def naming(formula: str, table: pd.DataFrame) -> Iterator[None]:
    """Name the formula and the columns in errors of evaluating it."""
    try:
        yield
    except ImportError:  # what is not installed is no fault of the formula
        raise
    except _ColumnError as error:
        raise ValueError(f"formula = {formula!r} cannot be evaluated: {error}") from error.__cause__
    except Exception as error:  # of the parser, the table, or functions that the formula calls
        known = (remedy for pattern, remedy in _LACKING if re.search(pattern, formula))
        remedy = "check the names, and drop rows with missing values, table.dropna(subset=[...])"
        said = str(error).rstrip(".")
        if isinstance(error, KeyError):
            said, remedy = f"there is no column {said}", "check the names"
        raise ValueError(
            f"formula = {formula!r} cannot be evaluated on a table with columns {list(table)}: "
            f"{said}; {next(known, remedy)}"
        ) from error


def _formulae() -> Any:
    try:
        import formulae
    except ImportError as error:
        raise ImportError(
            "sidebayes.design reads formulas with the library formulae; install it, "
            "pip install 'sidebayes[formulas]'"
        ) from error
    return formulae
