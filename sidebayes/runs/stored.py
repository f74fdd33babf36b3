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

from sidebayes.diagnostics.sites import tables_of
from sidebayes.guides.engines.base import Engine, Problem
from sidebayes.guides.engines.plumbing.identity import NamelessError, digest, freeze, written
from sidebayes.guides.engines.problem import posterior
from sidebayes.guides.engines.problem.density import sum_log_prob
from sidebayes.guides.engines.problem.importance import run_at
from sidebayes.guides.engines.problem.units import Layout
from sidebayes.models.blocks.roles import Role, signature_of
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.links import Links
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels

from . import record
from .run import Run

__all__ = [
    "attributes",
    "axes_of",
    "constant_data",
    "coordinates",
    "identity_of",
    "names_of_columns",
    "observed_data",
    "other_densities",
    "stored_run",
]

_TOLERANCE = {"float64": 1e-5, "float32": 1e-2}
"""Difference of densities, relative to the largest, that other machines may make."""

_SLACK = 0.01
"""Nats by which the log joint density may differ besides, as where draws lie near a bound."""

_OF_JOINT = (
    *("em", "geodesic", "gibbs", "hmc", "laplace", "map", "mclmc"),
    *("nested", "newton", "nuts", "pathfinder", "smc", "svi"),
)
"""Engines whose ``lp`` is the log joint density, of parameters or of their unconstrained coordinates."""


def axes_of(role: Role, rank: int) -> tuple[str, ...]:
    """Names of the axes of a table; a vector that had its axis's name would be the names along it."""
    named = [dim for dim in role.dims if dim != "..."][:rank]
    if named == [role.name]:
        named = []
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
    """Names along axes: of columns, of groups, of classes, of groups of links, of rows of a sample."""
    found: dict[str, Any] = {}
    for role in run.signature.data:
        value = run.data.get(role.name)
        names: Any = None
        if role.kind == "table":
            names = names_of_columns(run, role.name)
            if value is not None and run.sample_rows is not None:  # the one table there is
                found |= dict.fromkeys(("points", "unit", axes_of(role, 1)[0]), run.sample_rows)
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
        "sidebayes_identity": _identity(run, run.stated),
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


def identity_of(tree: xr.DataTree, run: Run) -> str:
    """Identity of a stored run, as it is written today where its model is known.

    Earlier files tell options that were given at their defaults from those that were left out.
    """
    held = str(tree.attrs.get("sidebayes_identity", ""))
    if run.model is not None and held and held == _identity(run, run.options):
        return _identity(run, run.stated)
    return held


def _identity(run: Run, options: Mapping[str, Any]) -> str:
    """Digest of the model with options, the code of the user included; empty where it has no name.

    Two models that go by one name differ here, and one model that is defined again does not.
    """
    try:
        return digest(written(freeze((run.model, sorted(options.items()))), own_code=True))
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
        for name, values in tables_of(tree, "observed_data").items()
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
    sample_of = int(tree.attrs.get("sidebayes_sample_of", 0))
    return {
        "method": tree.attrs["sidebayes_method"],
        "model": model,
        "data": data,
        "options": options,
        "engine": engine,
        "seed": int(tree.attrs["sidebayes_seed"]),
        "dtype": tree.attrs["sidebayes_dtype"],
        "sample_of": sample_of,
        "sample_rows": tree["responsibilities"]["points"].to_numpy() if sample_of else None,
        "truth": observed["truth"].to_numpy() if "truth" in observed else None,
        "feature_names": tuple(map(str, constant["feature_names"].to_numpy())),
        "columns": {
            name: tuple(columns)
            for name, columns in json.loads(tree.attrs.get("sidebayes_columns", "{}")).items()
        },
        "lost": record.parse(tree.attrs["sidebayes_options"])[1],
        "is_own": bool(tree.attrs["sidebayes_own_model"]),
    }


def other_densities(tree: xr.DataTree, run: Run) -> str | None:
    """What of a stored fit has another log density by the model of a run; None where all is the same.

    Log likelihoods by unit, log priors and their sum are compared at the first draw. Where the code is the
    same by its stored identity, nothing is computed.

    Parameters
    ----------
    tree : DataTree
    run : Run
        Its model has the sites of the tree.
    """
    identity = _identity(run, run.stated)
    if identity and identity == tree.attrs.get("sidebayes_identity"):
        return None
    sites = {str(n): v.to_numpy()[0, :1] for n, v in tree["posterior"].data_vars.items()}
    stored = {
        f"{said} {name!r}": values.to_numpy()[0, 0]
        for group, said in (("log_likelihood", "the data of site"), ("log_prior", "site"))
        if group in tree
        for name, values in tree[group].data_vars.items()
    }
    with run.precision:
        if "log_prior" in tree:  # priors are derived of several draws only
            sites = {name: np.repeat(value, 2, axis=0) for name, value in sites.items()}
        derived = posterior.derive(run.problem, sites, hard=run.engine.hard_labels)
        found = {f"the data of site {n!r}": v[0] for n, v in derived.log_likelihood.items()}
        found |= {f"site {n!r}": v[0] for n, v in derived.log_prior.items()}
        tolerance = _TOLERANCE[run.dtype]
        for name, values in stored.items():
            if name not in found or _differ(values, found[name], tolerance):
                return name
        if run.engine.name in _OF_JOINT and not run.sample_of:
            lp = tree["sample_stats"]["lp"].to_numpy()[0, 0]
            is_free = tree["fit_info"].attrs["density_space"] == "unconstrained"
            params = {name: sites[name][0] for name in posterior.latent_shapes(run.problem)}
            joint = _log_joint(run.problem, params, is_free=is_free)
            if np.isfinite(joint) and _differ(lp, joint, tolerance, _SLACK):
                return "data and parameters together"
    return None


def _log_joint(problem: Problem, params: Mapping[str, NDArray], *, is_free: bool) -> NDArray:
    """Log density of data and parameters, or of the unconstrained coordinates of these."""

    @jax.jit
    def density(params: dict, args: tuple) -> jax.Array:
        trace, log_det = run_at(problem, params, args)
        return sum_log_prob(trace) + (log_det if is_free else 0.0)

    return np.asarray(density(dict(params), problem.args))


def _differ(one: NDArray, other: NDArray, tolerance: float, slack: float = 0.0) -> bool:
    if one.shape != other.shape:
        return True
    size = 1 + np.abs(one[np.isfinite(one)]).max(initial=0.0)
    return not np.allclose(one, other, rtol=0.0, atol=slack + tolerance * size, equal_nan=True)


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
