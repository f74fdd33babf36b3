"""Arguments of a call: the method, its data by role, and its options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sidebayes.guides.engines.base import Engine
from sidebayes.guides.engines.expectation_maximisation.streamed_data import StreamedTable
from sidebayes.guides.engines.problem.values import floats_where_borne
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.roles import Signature, function_of, signature_of
from sidebayes.models.blocks.side_information.groups import Groups, refuse_mixed_orders
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import names_of_classes

from ..common.columns import by_name, column_names
from ..common.fields import check_seed
from ..common.magnitudes import check_precision, listed, warn_of_far_rows
from ..data.shapes.landmark_checks import covariate_column
from ..data.shapes.landmarks import Landmarks
from ..data.shapes.registered import RegisteredPoints
from ..data.tables import check_names, check_truth, in_order_of
from . import checks
from .run import Run
from .zoo import CARDS, Card, find_card, make_engine

__all__ = [
    "Arguments",
    "check_dtype",
    "clusters_asked",
    "find_method",
    "read_arguments",
    "read_run",
    "rows_given",
    "sort_arguments",
]


class Arguments(NamedTuple):
    """Arguments of a model, checked.

    Attributes
    ----------
    given : dict of str to object
        Data as they were passed.
    data : dict of str to object
        Data by name of the argument.
    sizes : dict of str to int
        Of the named dimensions.
    options : dict of str to object
    columns : dict of str to tuple of str
        Names of the columns of tables that were given with names.
    """

    given: dict[str, Any]
    data: dict[str, Any]
    sizes: dict[str, int]
    options: dict[str, Any]
    columns: dict[str, tuple[str, ...]]


def find_method(method: str | Callable[..., None]) -> tuple[Card | None, Callable[..., None], str]:
    """Card, if there is one, model and name of what was asked for."""
    if isinstance(method, str):
        card = find_card(method)
        return card, card.model, card.name
    if not callable(method):
        raise TypeError(
            f"method is a {type(method).__name__}; pass a name, one of {sorted(CARDS)}, or a NumPyro "
            "model function"
        )
    own = next((c for c in CARDS.values() if c.is_of(method)), None)
    return own, method, own.name if own else getattr(function_of(method), "__name__", "model")


def sort_arguments(
    signature: Signature,
    data: tuple,
    arguments: Mapping[str, Any],
    method: str,
    optional: Collection[str] = ("links",),
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell data from options among the arguments of a model; `optional` kinds may be missing.

    Raises
    ------
    TypeError, ValueError
        If there are too many data, some are given twice, or some are missing.
    """
    data, arguments = _by_role(signature, data, arguments, method)
    _refuse_undeclared(signature, data, arguments, method)
    positional = [role.name for role in signature.data[: signature.positional]]
    while len(data) > len(positional) and data[-1] is None:
        data = data[:-1]
    if len(data) > len(positional):
        surplus = data[len(positional) :]
        if all(isinstance(one, Links | LabelGraph) for one in surplus):
            raise checks.takes_no_links(method, signature)
        raise TypeError(
            f"{method} takes {len(positional)} data by position, {positional}; got {len(data)}. Pass "
            f"options by name{_undeclared(signature, arguments, method, surplus)}"
        )
    given = dict(zip(positional, data, strict=False))
    twice = sorted(given.keys() & arguments.keys())
    if twice:
        raise TypeError(f"{method} got {twice} by position and by name; pass each once")
    given |= {name: value for name, value in arguments.items() if name in signature}
    given = {name: value for name, value in given.items() if value is not None}
    for role in signature.of_kind("table"):
        if isinstance(given.get(role.name), Links | LabelGraph):
            raise checks.takes_no_links(method, signature)
    rest = {n: v for n, v in arguments.items() if n not in signature}
    missing = [
        role
        for role in signature.data
        if role.required and role.kind not in optional and role.name not in given
    ]
    if missing:
        lacking = "; ".join(
            f"{role.name} is missing or None, pass {checks.wanted(role)}" for role in missing
        )
        unknown = [name for name in rest if not signature.open and name not in signature.options]
        also = f". It has no argument {listed([*map(repr, unknown)])}" * bool(unknown)
        raise TypeError(f"{method} lacks data: {lacking}{_made_by(signature)}{also}")
    if rest.get("links", False) is None:
        del rest["links"]  # no links are none for any method
    return given, rest


def _by_role(
    signature: Signature, data: tuple, arguments: Mapping[str, Any], method: str
) -> tuple[tuple, Mapping[str, Any]]:
    """Data by name in place of landmarks or registered points, which hold several.

    Covariates of landmarks may be named by text.
    """
    if data and isinstance(data[0], Mapping) and data[0].keys() & {r.name for r in signature.data}:
        raise TypeError(
            f"{method} is given a {type(data[0]).__name__} by position; pass the data that it holds by "
            "name, by two stars: **design"
        )
    if not data or not isinstance(data[0], Landmarks | RegisteredPoints):
        return data, arguments
    marks = data[0]
    held = marks.by_role()
    what = "landmarks" if isinstance(marks, Landmarks) else "registered points"
    surplus = sorted(held.keys() - {role.name for role in signature.data})
    if surplus:
        raise TypeError(
            f"{method} takes no {surplus}, which {what} have; pass an array, or use a model of shapes"
        )
    if data[1:]:
        left = ", ".join(role.name for role in signature.data if role.name not in held)
        raise TypeError(
            f"{method} is given data by position beside {what}; pass these by name ({left})"
        )
    twice = sorted(held.keys() & arguments.keys())
    if twice:
        raise TypeError(f"{method} got {twice} by name and in the {what}; pass each once")
    named = dict(arguments)
    for role in signature.of_kind("labels"):
        if isinstance(marks, Landmarks) and isinstance(named.get(role.name), str):
            named[role.name] = covariate_column(role.name, named[role.name], marks.covariates)
    return (), held | named


def _refuse_undeclared(
    signature: Signature, data: tuple, arguments: Mapping[str, Any], method: str
) -> None:
    """Refuse further tables of a model without annotations, which would be options: constants of it."""
    if any(role.declared for role in signature.data) or not signature.data:
        return
    first = signature.data[0].name
    names = [name for name in signature.options if name not in arguments]
    given = {**dict(zip(names, data[signature.positional :], strict=False)), **arguments}
    size = rows_given(data[0] if data else arguments.get(first))
    tables = [name for name in signature.options if size and rows_given(given.get(name)) == size]
    if tables:
        raise TypeError(
            f"{method} is given {' and '.join(tables)} with one entry per row of {first}, but in a model "
            f"without annotations only {first} is data and the rest are options; annotate the data: "
            f"{checks.as_annotated((first, *tables))}"
        )


def _undeclared(
    signature: Signature, arguments: Mapping[str, Any], method: str, surplus: tuple
) -> str:
    """How surplus data, the first options of a user's own model, would be passed or declared instead."""
    if method in CARDS:
        return ""
    names = [name for name in signature.options if name not in arguments]
    given = dict(zip(names, surplus, strict=False))
    several = [name for name, value in given.items() if isinstance(value, Mapping)]
    others = [name for name in given if name not in several]
    said = f", and annotate what else is data: {checks.as_annotated(others)}" if others else ""
    if several:
        kind = type(given[several[0]]).__name__
        said = f", {several[0]}=... for the {kind}, or its arrays as arguments of their own{said}"
    return said


def _made_by(signature: Signature) -> str:
    """What makes the data of a linear mixed model or of shapes, to follow a message."""
    names = {role.name: role for role in signature.data}
    if names.keys() >= {"fixed", "random", "subjects"}:
        survival = ".survival(...)" if "time" in names else ""
        return f'; **sidebayes.design("y ~ time + (time | subject)", table){survival} gives them'
    if names.keys() >= {"subjects", "landmarks"}:
        if names["landmarks"].required:
            return "; sidebayes.Landmarks holds them, and Landmarks.from_array takes whole shapes"
        return "; sidebayes.register_points returns them, and is given whole"
    return ""


def rows_given(value: Any) -> int:
    """Number of rows of an array, list, series or frame; 0 for other things."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return int(shape[0]) if shape else 0
    return len(value) if isinstance(value, list) else 0


def read_arguments(
    model: Callable[..., None],
    name: str,
    data: tuple,
    arguments: Mapping[str, Any],
    optional: Collection[str] = ("links",),
    engine: Engine | None = None,
) -> Arguments:
    """Tell data from options and check both; `optional` kinds of data may be missing.

    Options that are settings of the `engine` are refused as such.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it was and what to do.
    """
    signature = signature_of(model)
    given, options = sort_arguments(signature, data, arguments, name, optional)
    learned = _learned_columns(signature, given, options)
    given |= {n: in_order_of(given[n], n, own, option) for n, (option, own) in learned.items()}
    checked = checks.check_given(signature, given, name)
    sizes = checks.check_dims(signature, checked)
    checks.check_options(signature, options, name, engine)
    if "num_clusters" in signature.options:
        first = next((checked[r.name] for r in signature.of_kind("table") if r.name in checked), ())
        points = (
            sizes.get(signature.unit_of(checked) or "", len(first)) or sys.maxsize
        )  # if data may be missing
        options = {**options, "num_clusters": clusters_asked(model, options, points)}
    checks.require_options(signature, model, options, name)
    checked |= checks.classes_as_learned(signature, checked, options)
    columns = {
        role.name: names
        for role in signature.of_kind("table")
        if (names := column_names(given.get(role.name), role.name)) is not None
    }
    columns |= {
        one: own for one, (_, own) in learned.items() if checked[one].shape[1:] == (len(own),)
    }
    stated = dict(checked)
    for role in signature.data:
        role.check({**options, **checked}, columns)
        if role.chosen is None or role.name in checked:
            continue
        if (found := role.chosen.choose(checked, options)) is not None:
            checked[role.name] = found
    for option, note in signature.chosen:
        if options.get(option) is None and (own := note.choose(stated, options)) is not None:
            options = {**options, option: own}
    checked = _as_model_takes(model, name, checked, options)
    return Arguments(given, checked, checks.check_dims(signature, checked), options, columns)


def _as_model_takes(
    model: Callable[..., None], name: str, data: dict[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Data as `floats_where_borne`; unchanged where outcomes are left out, without which nothing runs."""
    if any(
        role.required and role.name not in data for role in signature_of(model).of_kind("table")
    ):
        return data

    tables = {n: v for n, v in data.items() if isinstance(v, np.ndarray)}
    run = Run(method=name, model=model, data=data, options=options, engine=Engine())
    with run.precision:
        return data | floats_where_borne(tables, lambda own: replace(run, data=data | own).problem)


def _learned_columns(
    signature: Signature, given: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Names of columns that an option was learned from, by the table that it describes; and the option."""
    found = {}
    for role in signature.of_kind("table"):
        own = getattr(options.get(role.like), "feature_names", None)
        if own is not None and role.name in given:
            found[role.name] = (role.like, own)
    return found


def clusters_asked(model: Callable[..., None], options: Mapping[str, Any], num_points: int) -> int:
    """Number of clusters that options, or else the model itself, ask for; checked."""
    default = inspect.signature(model).parameters["num_clusters"].default
    default = None if default is inspect.Parameter.empty else default
    number, truncates = options.get("num_clusters", default), signature_of(model).truncates
    return checks.check_num_clusters(number, num_points, truncates=truncates)


def read_run(
    method: str | Callable[..., None],
    data: tuple,
    arguments: Mapping[str, Any],
    engine: str | Engine | None,
    *,
    seed: int = 0,
    dtype: str = "float64",
    truth: Any = None,
    feature_names: Any = None,
    checkpoint: str | None = None,
    checkpoint_every: float = 60.0,
    stream: StreamedTable | None = None,
) -> Run:
    """Check what was given for a fit, and make its run; see `sidebayes.fit`.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, what it was and what to do.
    """
    card, model, name = find_method(method)
    runner = make_engine(engine, card)
    signature = signature_of(model)
    read = read_arguments(model, name, data, arguments, engine=runner)
    columns = dict(read.columns)
    tables = {r.name: read.data[r.name] for r in signature.of_kind("table") if r.name in read.data}
    # names of features are of the first table with columns
    wide = next((one for one, values in tables.items() if values.ndim == 2), "")
    given_names = columns.get(wide) if feature_names is None else feature_names
    features = check_names(given_names, tables[wide].shape[1] if wide else 1)
    if given_names is not None and wide:
        columns[wide] = features
    check_seed(seed)
    check_dtype(dtype)
    for role in signature.of_kind("table"):
        if (values := tables.get(one := role.name)) is None:
            continue
        own, numbers, ends = columns.get(one), None, values
        if stream is not None and values.shape == stream.sample.shape:
            numbers, ends = stream.extreme_rows, stream.extremes
        with by_name(columns, one):
            check_precision(one, ends, dtype, numbers)
        if numbers is not None:
            warn_of_far_rows(one, ends, values, numbers, names=own)
        else:
            frames = getattr(read.data.get(role.own_frame), "codes", None)
            warn_of_far_rows(one, values, frames=frames, by_length=role.of_kernel, names=own)
    unit = signature.unit_of(read.data) or ""
    checks.check_order("truth", truth, unit, read.data)
    rows = {
        r.name: read.given.get(r.name) for r in signature.data if r.runs_over(read.data) == unit
    }
    refuse_mixed_orders(**rows, truth=truth)
    owner = read.data.get(unit)
    groups = (unit, len(owner.codes)) if isinstance(owner, Groups) else None
    return Run(
        method=name,
        model=model,
        data=read.data,
        options=read.options,
        engine=runner,
        seed=seed,
        dtype=dtype,
        truth=check_truth(truth, read.sizes.get(unit, 0), _classes_by_name(read), groups),
        feature_names=features,
        columns=columns,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
    )


def _classes_by_name(read: Arguments) -> tuple[str, ...]:
    """Names of the classes that data or options show, numbers where they have none."""
    every = (*read.data.values(), *read.options.values())
    number = max((getattr(value, "num_classes", 0) for value in every), default=0)
    return names_of_classes(every) or tuple(map(str, range(number)))


def check_dtype(dtype: str) -> None:
    """Refuse what is no precision."""
    if not isinstance(dtype, str) or dtype not in ("float32", "float64"):
        raise ValueError(f"dtype = {dtype!r}; expected 'float64' or 'float32'")
