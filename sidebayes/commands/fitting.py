"""The command `sidebayes fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import sidebayes
from sidebayes.data.formula_parts import parse
from sidebayes.data.frames import need_columns, with_names
from sidebayes.models.blocks.classes.source_mixture import SourceMixture
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels
from sidebayes.runs.zoo import CARDS, find_card, make_engine

from ..common.class_names import warn_of_marks
from ..common.columns import did_you_mean
from ..common.files import read_table, write_table
from ..results.fit import Fit
from .asked import Asked, check_asked
from .columns import NamedTable, group_names, named_labels, number_classes
from .given import Arguments, Given, from_columns, from_formula
from .pairs import read_pairs
from .side import read_links, reveal
from .words import spoken

__all__ = [
    "Asked",
    "Outcome",
    "fit_asked",
    "need_labels",
    "refuse_overwriting",
    "write_labels",
]


@dataclass(frozen=True)
class Outcome:
    """A fit, with the names of its classes and of its units.

    Attributes
    ----------
    fit : Fit
    classes : list of str
        Names of the known classes.
    units : Series
        Names of what has labels, or numbers of rows.
    flags : mapping of str to str
        Flag by name of the argument, for what the fit says; no sites of the fit are among them.
    """

    fit: Fit
    classes: list[str]
    units: pd.Series
    flags: Mapping[str, str] = field(default_factory=dict)


def fit_asked(asked: Asked) -> Outcome:
    """Fit what the flags ask for.

    Raises
    ------
    ValueError
        In the words of the command line.
    """
    card = find_card(asked.method)
    to = Arguments(card)
    options = read_pairs("option", asked.option, card.fitted_by)
    runner = make_engine(asked.engine, card)
    settings = read_pairs("setting", asked.setting, type(runner))
    check_asked(asked, to, options, [field.name for field in fields(runner)])
    flags = _spelling(card, runner)
    with spoken(flags):
        runner = _configured(runner, settings)
        columns = _columns(asked)
        units = _units_named(asked, to, columns)
        table, domain = _tables(asked, units)
        given = _given(asked, to, table, columns, units)
        options = given.options | options
        by_use = _classes(asked, to, table, given, domain)
        codes: Any
        codes, names = number_classes(*by_use)
        _warn_of_marks(by_use[:2], codes[:2], names)
        source, known, truth = codes
        options |= _sizes(asked, to, len(names), options)
        if asked.learn_reliability:
            options |= _learned(to, options)
        moved = to.option_of(SourceMixture) if domain is not None else None
        to.refuse_missing({*options, moved})
        side = _side(asked, to, given, known, truth, names)  # refused before the source is fitted
        if domain is not None:
            own = named_labels(source, names, source.max() + 1)
            options[str(moved)] = _moved_from(asked, to, given, domain, own)
        elif asked.standardize:
            given.data[given.rest] = _standardized(given.data[given.rest])
        given.data.update(side)
        run: dict[str, Any] = {"engine": runner, "seed": asked.seed, "truth": None}
        if (column := by_use[-1]) is not None:
            by_name = [names[code] if code >= 0 else None for code in truth]
            run["truth"] = pd.Series(by_name, column.index, object, table.label)
        if asked.checkpoint is not None:
            run["checkpoint"] = asked.checkpoint
        fit = card.routine(**given.data, **options, **run)
    flags = {n: flag for n, flag in flags.items() if n not in fit.tree["posterior"]}
    return Outcome(fit, names, _units(given, to), flags)


def refuse_overwriting(
    read: Mapping[str, str | Path | None], written: Mapping[str, str | Path | None]
) -> None:
    """Refuse to write over a file that is read, or twice to one file; pipes and devices may repeat.

    Parameters
    ----------
    read, written : mapping
        Path by flag, None where the flag is not given.

    Raises
    ------
    ValueError
        Naming both flags.
    """
    taken = {Path(path).resolve(): flag for flag, path in read.items() if path is not None}
    for flag, path in written.items():
        if path is None or (Path(path).exists() and not Path(path).is_file()):
            continue
        other = taken.setdefault(Path(path).resolve(), flag)
        if other != flag:
            raise ValueError(f"{flag} {path} is the file of {other} as well; name another file")


def need_labels(path: Path, method: str) -> None:
    """Refuse to write labels of a method that has none."""
    if not Arguments(find_card(method)).has_labels:
        raise ValueError(
            f"--labels {path}: {method} puts nothing into clusters or classes, so there are no labels to "
            "write; leave --labels out"
        )


def write_labels(path: Path, outcome: Outcome) -> None:
    """Write the label of each unit, its probabilities, and those of classes where rows have some."""
    found = outcome.fit
    prob = found.responsibilities()
    columns: dict[str, Any] = {str(outcome.units.name): outcome.units, "cluster": found.labels()}
    columns |= {f"cluster_{k}": prob[:, k] for k in range(prob.shape[1])}
    codes, by_class = columns["cluster"], prob  # clusters that known classes name are these classes
    if found.has_classes:
        by_class = found.class_probabilities()
        codes = by_class.argmax(axis=1)
    if found.has_classes or found.class_names:
        names = [*outcome.classes, *map(str, range(len(outcome.classes), by_class.shape[1]))]
        columns["class"] = [names[code] for code in codes]
        columns |= {f"class_{names[c]}": by_class[:, c] for c in range(by_class.shape[1])}
    write_table(path, pd.DataFrame(columns))


def _configured(engine: Any, settings: dict[str, Any]) -> Any:
    known = [field.name for field in fields(engine)]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ValueError(
            f"--setting {unknown[0]}=...: engine {engine.name!r} has no such setting"
            f"{did_you_mean(unknown[0], known)}; it has {known}"
        )
    return replace(engine, **settings)


def _spelling(card: Any, engine: Any) -> dict[str, str]:
    """Flags by name of the argument, for messages."""
    settings = {one.name: f"--setting {one.name}=" for one in fields(engine)}
    options = {name: f"--option {name}=" for name in (*card.options, *card.signature.options)}
    own = {one.name: f"--{one.name.replace('_', '-')}" for one in fields(Asked)[2:]}
    return settings | options | own | {"num_pairs": "--num-links"}


def _columns(asked: Asked) -> dict[str, str]:
    """Columns by name of the data, as ``--columns`` writes them."""
    found: dict[str, str] = {}
    for text in asked.columns:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            raise ValueError(
                f"--columns {name}{equals}{value}; expected data=column, each data once"
            )
        found[name] = value
    return found


def _units_named(asked: Asked, to: Arguments, columns: Mapping[str, str]) -> list[str]:
    """Columns whose entries are names of groups or of sets of rows."""
    named = {role.name for kind in ("groups", "sets") for role in to.signature.of_kind(kind)}
    found = [column for name, column in columns.items() if name in named]
    found += [] if asked.group is None else [asked.group]
    return found + [bar.group for text in asked.formula[:1] for bar in parse(text).bars]


def _given(
    asked: Asked,
    to: Arguments,
    table: NamedTable,
    columns: Mapping[str, str],
    units: Sequence[str],
) -> Given:
    """Data by role; side information comes later."""
    if asked.formula:
        subjects = None
        if asked.subjects is not None:
            subjects = with_names(read_table(asked.subjects), asked.subjects, units)
        return from_formula(to, table, asked.formula, asked.survival, subjects)
    listed = {
        name: [value] if value in table.frame else [v.strip() for v in value.split(",")]
        for name, value in columns.items()
    }
    used = [] if asked.known is None else [str(table.pick("--known", asked.known).name)]
    given = from_columns(to, table, listed, asked.group, used)
    if asked.standardize and not given.rest:
        raise ValueError("--standardize is of columns that no flag names, and none is left")
    return given


def _tables(asked: Asked, units: Sequence[str]) -> tuple[NamedTable, NamedTable | None]:
    """The data, and those of the source domain; the column of --label may be in one of them alone."""
    domain = None
    if asked.source is not None:
        domain = NamedTable.read(
            asked.source, asked.label, (), known=asked.known, needs_label=False
        )
    elsewhere = domain is not None and domain.label == asked.label
    table = NamedTable.read(
        asked.data, asked.label, asked.drop, units, asked.known, needs_label=not elsewhere
    )
    return table, domain


def _classes(
    asked: Asked, to: Arguments, table: NamedTable, given: Given, domain: NamedTable | None
) -> tuple[pd.Series | None, pd.Series | None, pd.Series | None]:
    """Classes of the source, those that are known, and those to score by."""
    source = known = truth = None
    if domain is not None:
        source = domain.frame.get(asked.known) if domain.classes is None else domain.classes
        if source is None:
            tried = [asked.label or "label", asked.known]
            columns = " or ".join(map(repr, dict.fromkeys(filter(None, tried))))
            raise ValueError(
                f"--source {asked.source} has no column {columns}; name the one with its classes by --label"
            )
        source = source.rename(f"{source.name} of {domain.name}")
    if asked.known is not None:
        dim = to.signature.of_kind("labels")[0].dims[0]
        known = given.by_unit(table.pick("--known", asked.known), dim, to.signature)
    if table.classes is not None:
        truth = given.by_unit(table.classes, to.signature.unit_of(given.data), to.signature)
    return source, known, truth


def _warn_of_marks(
    columns: Sequence[pd.Series | None], codes: Sequence[Any], names: Sequence[str]
) -> None:
    """Warn of classes to learn from that look like missing values; of others the fit warns."""
    for column, own in zip(columns, codes, strict=True):
        if column is not None:
            warn_of_marks(f"column {column.name!r}", own, names)


def _moved_from(
    asked: Asked, to: Arguments, given: Given, domain: NamedTable, classes: PartialLabels
) -> Any:
    """Mixture of a source domain; standardises the features of both domains as those of the source."""
    name = next(role.name for role in to.signature.of_kind("table"))
    x = given.data[name]
    need_columns(domain.frame, list(x), domain.name)
    rows = domain.numbers(domain.frame[list(x)])
    if asked.standardize:
        given.data[name], rows = _standardized(x, rows), _standardized(rows, rows)
    known = classes.values >= 0
    return sidebayes.fit_source(rows[known], classes.subset(known), seed=asked.seed)


def _standardized(columns: Any, by: Any = None) -> Any:
    """Columns with the mean and deviation of `by`, their own by default, taken out."""
    by = columns if by is None else by
    spread = by.std(axis=0, ddof=0) if isinstance(by, pd.DataFrame) else by.std(axis=0)
    return (columns - by.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def _sizes(
    asked: Asked, to: Arguments, num_classes: int, options: Mapping[str, Any]
) -> dict[str, int]:
    """Numbers of clusters and classes: as asked for, else those of the known classes."""
    found = {}
    if asked.num_clusters is not None:
        found["num_clusters"] = asked.num_clusters
    if not num_classes:
        return found
    counted = {*to.required} if to.signature.truncates else {*to.required, "num_clusters"}
    counted &= {"num_clusters", "num_classes"} & {*to.signature.options}
    return found | dict.fromkeys(counted - found.keys() - options.keys(), num_classes)


def _learned(to: Arguments, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by which a model learns how often links are wrong."""
    found = {"reading": "relation", "flip_rate": "learned"}
    if "flip_rate" not in to.signature.options:
        others = [name for name, card in CARDS.items() if "flip_rate" in card.signature.options]
        raise ValueError(
            f"{to.card.name} has no use for --learn-reliability; leave it out, or use one of {others}"
        )
    found = {name: value for name, value in found.items() if name in to.signature.options}
    for name, value in found.items():
        if options.get(name, value) != value:
            raise ValueError(
                f"--learn-reliability means --option {name}={value}, and --option {name}={options[name]} is "
                "given; choose one"
            )
    return found


def _side(
    asked: Asked, to: Arguments, given: Given, known: Any, truth: Any, names: Sequence[str]
) -> dict[str, Any]:
    """Links and known classes by argument."""
    found: dict[str, Any] = {}
    if asked.num_known is not None:
        known = reveal(truth, asked.num_known, asked.seed)
    for role in to.signature.of_kind("labels"):
        if known is not None:
            found[role.name] = named_labels(known, names)
        elif role.required:
            raise ValueError(
                f"{to.card.name} learns from rows whose class is known; name their column by --known, or "
                "give --num-known to reveal so many of the classes in --label"
            )
    if asked.links is not None or asked.num_links is not None:
        role = to.signature.of_kind("links")[0]
        found[role.name] = read_links(
            asked.links,
            asked.num_links,
            asked.flip_rate,
            asked.weight,
            kind=to.card.links,
            classes=truth,
            num_units=len(_units(given, to)),
            seed=asked.seed,
        )
    return found


def _units(given: Given, to: Arguments) -> pd.Series:
    """Names of groups where these are the units, else numbers of rows."""
    unit = to.signature.unit_of(given.data)
    if given.groups is not None and any(r.name == unit for r in to.signature.of_kind("groups")):
        return pd.Series(group_names(given.groups), name=given.groups.name)
    first = next(given.data[r.name] for r in to.signature.of_kind("table") if r.name in given.data)
    return pd.Series(np.arange(len(first)), name="row")
