"""Data of a model by role, read from the table that the command line names."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args, get_type_hints

import numpy as np
import pandas as pd

import sidebayes
from sidebayes.data.formula_parts import parse
from sidebayes.data.shapes.landmark_checks import landmark_codes
from sidebayes.models.blocks.classes.source_mixture import SourceMixture
from sidebayes.models.blocks.effects.priors import EffectsPrior
from sidebayes.models.blocks.event_times import HazardPrior
from sidebayes.models.blocks.roles import Role, Signature
from sidebayes.runs.cards import CARDS, Card

from .columns import NamedTable, by_group, group_names
from .words import spoken

__all__ = ["Arguments", "Given", "from_columns", "from_formula"]

_OF_DESIGN = {"y", "fixed", "random", "subjects"}
"""Data that `sidebayes.design` makes of a formula."""

_LANDMARKS = "landmarks"
"""Data of models of shapes: the landmark of each row, by number from 0 on."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of what fits a card.

    Attributes
    ----------
    card : Card
    """

    card: Card

    @cached_property
    def signature(self) -> Signature:
        """Data and options apart."""
        return self.card.signature

    @cached_property
    def required(self) -> list[str]:
        """Options without a default."""
        known = inspect.signature(self.card.fitted_by).parameters
        return [n for n in self.signature.options if known[n].default is inspect.Parameter.empty]

    @property
    def has_labels(self) -> bool:
        """Whether the method puts points into clusters or classes, which are named or found."""
        return "num_clusters" in self.signature.options or bool(self.option_of(SourceMixture))

    def option_of(self, kind: type) -> str | None:
        """Name of the option whose values are of some type."""
        hints = get_type_hints(self.card.fitted_by)
        options = ((n, hints.get(n)) for n in self.signature.options)
        return next((n for n, hint in options if kind in (hint, *get_args(hint))), None)

    def role(self, kind: str, flag: str) -> Role:
        """The data of some kind, which a flag gives; refuses a card without such."""
        found = self.signature.of_kind(kind)
        if not found:
            others = [name for name, card in CARDS.items() if card.signature.of_kind(kind)]
            raise ValueError(
                f"{self.card.name} has no use for {flag}; leave it out, or use one of {others}"
            )
        return found[0]

    def refuse_missing(self, options: Collection[str | None]) -> None:
        """Refuse options that are needed and were not given, with the flag that gives them."""
        for name in self.required:
            if name in options:
                continue
            remedy = f"--option {name}=VALUE"
            if name == "num_clusters":
                remedy = "--num-clusters, such as --num-clusters 3"
            elif name == self.option_of(SourceMixture):
                remedy = "--source, a data set whose classes are known"
            elif name in (self.option_of(EffectsPrior), self.option_of(HazardPrior)):
                remedy = "--survival, such as 'Surv(time, event) ~ age', beside --formula"
            raise ValueError(f"{self.card.name} needs {remedy}")


@dataclass(frozen=True)
class Given:
    """Data by name of the argument, options that come with them, and the group of each row.

    Attributes
    ----------
    data, options : dict
    groups : Series or None
        Column of the table that groups its rows.
    rest : str
        Argument that took the columns left over; empty for none.
    """

    data: dict[str, Any]
    options: dict[str, Any]
    groups: pd.Series | None
    rest: str = ""

    def by_unit(self, column: pd.Series, dim: str | None, signature: Signature) -> pd.Series:
        """A column by row of the table, or by group where the dimension runs over groups."""
        over_groups = any(role.name == dim for role in signature.of_kind("groups"))
        if not over_groups or self.groups is None:
            return column.reset_index(drop=True)
        return by_group(column, self.groups, group_names(self.groups))


def from_formula(
    to: Arguments,
    table: NamedTable,
    formulas: Sequence[str],
    survival: str | None,
    subjects: pd.DataFrame | None,
) -> Given:
    """Data of a mixed model by its formulas; see `sidebayes.design`."""
    if not {role.name for role in to.signature.data} >= _OF_DESIGN:
        others = [n for n, c in CARDS.items() if {r.name for r in c.signature.data} >= _OF_DESIGN]
        raise ValueError(
            f"{to.card.name} has no use for --formula; leave it out, or use one of {others}"
        )
    frame = table.frame.drop(columns=list(table.dropped))
    found: Mapping[str, Any] = sidebayes.design(list(formulas), frame)
    group = parse(formulas[0]).bars[0].group
    if survival is not None:
        if to.option_of(HazardPrior) is None:
            raise ValueError(f"{to.card.name} has no use for --survival; leave it out")
        once = frame.drop_duplicates(group) if subjects is None else subjects
        with spoken({"formula": "--survival"}):
            found = found.survival(survival, once)  # type: ignore[attr-defined]
    data = {name: found[name] for name in found if name in to.signature}
    return Given(data, {n: v for n, v in found.items() if n not in data}, frame[group])


def from_columns(
    to: Arguments,
    table: NamedTable,
    columns: Mapping[str, Sequence[str]],
    group: str | None,
    used: Sequence[str],
) -> Given:
    """Data by the columns that flags name; the first table that has none takes what is left.

    Parameters
    ----------
    to : Arguments
    table : NamedTable
    columns : mapping
        Columns by argument.
    group : str or None
        Column that groups the rows.
    used : sequence of str
        Columns that are none of these data.
    """
    kinds = ("groups", "sets", "table")
    roles = {role.name: role for kind in kinds for role in to.signature.of_kind(kind)}
    strange = [name for name in columns if name not in roles]
    if strange:
        raise ValueError(
            f"--columns {strange[0]}=...: {to.card.name} has no such data; it has {list(roles)}"
        )
    columns = dict(columns)
    if group is not None:
        columns[to.role("groups", "--group").name] = [group]
    picked = {
        name: [table.pick(f"--columns {name}={one}", one) for one in own]
        for name, own in columns.items()
    }
    owner = next((n for n in picked if roles[n].kind == "groups"), None)
    groups = None if owner is None else picked[owner][0]
    given = Given({}, {}, groups)
    for name, own in picked.items():
        role = roles[name]
        if role.kind != "table":
            one = _alone(role, own)
            given.data[name] = _sets(one) if role.kind == "sets" else one.to_numpy()
            continue
        own = [_numbered(one, groups, table.name) if name == _LANDMARKS else one for one in own]
        by_unit = [given.by_unit(one, role.dims[0], to.signature) for one in own]
        own_columns = table.numbers(pd.concat(by_unit, axis=1), missing=role.missing)
        given.data[name] = _shaped(role, own_columns)
    lacking = [role for role in to.signature.data if role.required and role.name not in given.data]
    tables = list(to.signature.of_kind("table"))
    if not lacking and not any(role.name in given.data for role in tables):
        lacking = tables[:1]  # one of several that may be left out, but not all
    rest = next((role for role in lacking if role.kind == "table"), None)
    if rest is not None and all(role.kind != "table" or role is rest for role in lacking):
        taken = [str(one.name) for own in picked.values() for one in own]
        left = table.features([*used, *taken], missing=rest.missing)
        given.data[rest.name] = _shaped(rest, left)
        given = replace(given, rest=rest.name)
        lacking.remove(rest)
    if any(role.kind in kinds for role in lacking):
        raise ValueError(_lacks(to, [role for role in lacking if role.kind in kinds]))
    return given


def _lacks(to: Arguments, roles: Sequence[Role]) -> str:
    """What is missing, and the flags that give it."""
    flags = [
        "--group COLUMN" if role.kind == "groups" else f"--columns {role.name}=COLUMN"
        for role in roles
    ]
    text = f"{to.card.name} needs to know which columns are what; give {' '.join(flags)}"
    if {role.name for role in to.signature.data} >= _OF_DESIGN:
        text += ", or a formula, such as --formula 'y ~ time + (time | subject)'"
    return text + " (several columns are separated by commas)"


def _alone(role: Role, columns: Sequence[pd.Series]) -> pd.Series:
    if len(columns) > 1:
        raise ValueError(
            f"--columns {role.name}=...: expected one column, got {len(columns)}: "
            f"{[str(one.name) for one in columns]}"
        )
    return columns[0]


def _shaped(role: Role, columns: pd.DataFrame) -> Any:
    """Columns with the axes that a table has."""
    fixed = [dim for dim in role.dims if dim != "..."]
    if len(fixed) == 1 and ("..." not in role.dims or columns.shape[1] == 1):
        return _alone(role, [columns[name] for name in columns]).to_numpy()
    return columns


def _numbered(column: pd.Series, groups: pd.Series | None, file: str) -> pd.Series:
    """Landmarks by number from 0 on, as `sidebayes.read_landmarks` numbers them.

    Raises
    ------
    ValueError
        If a name occurs twice in an individual.
    """
    if groups is not None and not pd.api.types.is_numeric_dtype(column):
        twice = pd.DataFrame({"of": groups, "name": column}).duplicated() & column.notna()
        if twice.any():
            row = int(np.argmax(twice))
            raise ValueError(
                f"{file}: columns [{column.name!r}] are not numbers, and no names of landmarks, of which "
                f"{groups.name} {groups.tolist()[row]!r} has {column.tolist()[row]!r} twice, again in "
                f"row {row} (from 0 on); name the column of landmarks, or delete such rows"
            )
    codes, _ = landmark_codes(column)
    return pd.Series(codes, column.index, name=column.name).where(column.notna())


def _sets(column: pd.Series) -> list[np.ndarray]:
    """Rows of each value of a column; rows without a value are in no set."""
    rows = pd.Series(np.arange(len(column)))
    return [one.to_numpy() for _, one in rows.groupby(column.reset_index(drop=True))]
