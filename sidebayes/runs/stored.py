"""Stored runs: the attributes of a DataTree beside its draws, and the run read back from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from sidebayes.guides.engines.base import Engine
from sidebayes.guides.engines.plumbing.identity import NamelessError, digest, freeze, written
from sidebayes.guides.engines.problem.units import Layout
from sidebayes.models.blocks.roles import Role, signature_of
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import Groups, PartialLabels

from . import record
from .run import Run

__all__ = [
    "attributes",
    "axes_of",
    "constant_data",
    "coordinates",
    "names_of_columns",
    "observed_data",
    "stored_run",
]


def axes_of(role: Role, rank: int) -> tuple[str, ...]:
    """Names of the axes of a table."""
    named = [dim for dim in role.dims if dim != "..."][:rank]
    return (*named, *(f"{role.name}_dim_{axis}" for axis in range(len(named), rank)))


def observed_data(run: Run) -> dict[str, Any]:
    """Tables of a run, and the known classes, with the names of their axes."""
    observed: dict[str, Any] = {}
    for role in run.signature.of_kind("table"):
        value = run.data.get(role.name)
        if value is not None:
            observed[role.name] = axes_of(role, value.ndim), value
    if run.truth is not None:
        observed["truth"] = "points", run.truth
    return observed


def constant_data(run: Run, layout: Layout) -> dict[str, Any]:
    """Links, groups, classes and units of a run, with the names of their axes."""
    constant: dict[str, Any] = {
        "feature_names": ("features", np.asarray(run.feature_names, dtype=object)),
    }
    named = dict(run.links) or {"links": Links.empty()}
    for (name, dim), links in zip(_link_names(named).values(), named.values(), strict=True):
        size = {} if links.num_points is None else {"num_points": links.num_points}
        constant[name] = (dim, "end"), links.pairs.astype(np.int32), size
        constant[f"{dim}_weights"] = dim, links.weights
        if links.group is not None:
            constant[f"{dim}_group"] = dim, links.group.codes
            constant[f"{dim}_group_names"] = f"{dim}_groups", _plain(links.group.names)
        for column, values in links.columns.items():
            constant[f"{dim}_column_{column}"] = dim, _plain(values)
    for dim, unit in layout.unit.items():
        name = "unit" if len(layout.dims) < 2 else f"unit_{dim}"
        constant[name] = "points" if len(layout.dims) < 2 else dim, unit
    for role in run.signature.data:
        value = run.data.get(role.name)
        if isinstance(value, Groups):
            constant[role.name] = role.dims[0], np.asarray(value.codes)
            constant[f"{role.name}_names"] = role.name, _plain(np.asarray(value.names))
        elif isinstance(value, PartialLabels):
            constant[role.name] = axes_of(role, value.values.ndim), value.values
            if value.names is not None:
                constant[f"{role.name}_names"] = f"{role.name}_classes", _plain(value.names)
    return constant


def coordinates(run: Run) -> dict[str, NDArray]:
    """Names along axes: of columns of tables, of groups, of classes, and of groups of links."""
    found: dict[str, Any] = {}
    for role in run.signature.data:
        value = run.data.get(role.name)
        names: Any = None
        if role.kind == "table":
            names = names_of_columns(run, role.name)
        elif isinstance(value, PartialLabels):
            names = value.names
        elif isinstance(value, Groups):
            found[role.name] = value.names
        if names is not None:
            found.setdefault(axes_of(role, 2)[1], names)
    unit = run.signature.unit_of(run.data)
    if unit in found:  # labels are of groups
        found.setdefault("points", found[unit])
    if "effects" in found:  # a variable of that name cannot have an axis of that name
        found.setdefault("effect", found["effects"])
    group = next(iter(run.links.values()), Links.empty()).group
    if group is not None:
        found["link_groups"] = group.names
    return {dim: _plain(names) for dim, names in found.items()}


def names_of_columns(run: Run, table: str) -> tuple[str, ...] | None:
    """Names of the columns of a table, None where these are their numbers, or there are none."""
    names = run.columns.get(table, ())
    return names if names != tuple(map(str, range(len(names)))) else None


def attributes(run: Run) -> dict[str, Any]:
    """What else a run can be repeated from, as attributes of a tree."""
    sets = {r.name: run.data[r.name] for r in run.signature.of_kind("sets") if r.name in run.data}
    return {
        "sidebayes_method": run.method,
        "sidebayes_own_model": int(run.card is None),
        "sidebayes_options": record.dump(run.options),
        "sidebayes_identity": _identity(run),
        "sidebayes_sets": record.dump(sets),
        "sidebayes_links": json.dumps(_link_names(run.links)),
        "sidebayes_engine": record.dump({"engine": run.engine}),
        "sidebayes_columns": json.dumps(run.columns),
        "sidebayes_seed": run.seed,
        "sidebayes_dtype": run.dtype,
        "sidebayes_sample_of": run.sample_of,
        "sidebayes_version": version("sidebayes"),
        "jax_version": jax.__version__,
    }


def _identity(run: Run) -> str:
    """Digest of the model with its options, the code of the user included; empty where it has no name.

    Two models that go by one name differ here, and one model that is defined again does not.
    """
    options = sorted(run.options.items())
    try:
        return digest(written(freeze((run.model, options)), own_code=True))
    except NamelessError:
        return ""


def stored_run(
    tree: xr.DataTree,
    model: Callable[..., None] | None,
    options: Mapping[str, Any],
    engine: Engine,
) -> dict[str, Any]:
    """Fields of the run that a saved tree came from.

    Parameters
    ----------
    tree : DataTree
    model : callable or None
        None if it is not known; the data are then told by the names in the tree.
    options : mapping
    engine : Engine
    """
    observed, constant = (tree[name].to_dataset() for name in ("observed_data", "constant_data"))
    data: dict[str, Any] = {
        str(name): values.to_numpy()
        for name, values in observed.data_vars.items()
        if name != "truth"
    }
    for role, (name, dim) in json.loads(tree.attrs["sidebayes_links"]).items():
        data[role] = _links(constant, name, dim)
    if model is not None:
        sets, _ = record.parse(tree.attrs["sidebayes_sets"])
        for role in signature_of(model).data:
            if role.kind == "groups" and role.name in constant:
                names = constant[f"{role.name}_names"].to_numpy()
                data[role.name] = Groups(names[constant[role.name].to_numpy()])
            elif role.kind == "labels" and role.name in constant:
                named = constant.get(f"{role.name}_names")
                classes = None if named is None else named.to_numpy().tolist()
                data[role.name] = PartialLabels(constant[role.name].to_numpy(), classes)
            elif role.kind == "sets" and role.name in sets:
                data[role.name] = tuple(sets[role.name])
    return {
        "method": tree.attrs["sidebayes_method"],
        "model": model,
        "data": data,
        "options": options,
        "engine": engine,
        "seed": int(tree.attrs["sidebayes_seed"]),
        "dtype": tree.attrs["sidebayes_dtype"],
        "sample_of": int(tree.attrs.get("sidebayes_sample_of", 0)),
        "truth": observed["truth"].to_numpy() if "truth" in observed else None,
        "feature_names": tuple(map(str, constant["feature_names"].to_numpy())),
        "columns": {
            name: tuple(columns)
            for name, columns in json.loads(tree.attrs.get("sidebayes_columns", "{}")).items()
        },
        "lost": record.parse(tree.attrs["sidebayes_options"])[1],
        "is_own": bool(tree.attrs["sidebayes_own_model"]),
    }


def _link_names(arguments: Collection[str]) -> dict[str, tuple[str, str]]:
    """Variable that holds the pairs of each argument, and its axis; the first is ``links``, ``link``."""
    return {
        name: (f"{name}_pairs", f"{name}_link") if number else ("links", "link")
        for number, name in enumerate(arguments)
    }


def _links(constant: xr.Dataset, name: str, dim: str) -> Links:
    group = None
    if f"{dim}_group" in constant:
        names = constant[f"{dim}_group_names"].to_numpy()
        group = Groups(names).take(constant[f"{dim}_group"].to_numpy())
    own = f"{dim}_column_"
    return Links(
        constant[name].to_numpy().astype(int),
        constant[f"{dim}_weights"].to_numpy(),
        constant[name].attrs.get("num_points"),
        group=group,
        columns={
            str(column)[len(own) :]: values.to_numpy()
            for column, values in constant.data_vars.items()
            if str(column).startswith(own)
        },
    )


def _plain(values: ArrayLike) -> NDArray:
    """Numbers and times as they are, all else as objects, which a file holds as text."""
    array = np.asarray(values)
    return array if array.dtype.kind in "biufM" else array.astype(object)
