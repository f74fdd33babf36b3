"""The exchangeable units of a model's data, and how its densities fall apart by unit."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpy.typing import NDArray
from sidebayes.models.blocks.collapsed import Collapsed, NamedArray
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.roles import Signature, signature_of
from sidebayes.models.blocks.side_information.groups import Groups
from sidebayes.models.blocks.side_information.hard_links import connected_sets

from ..base import Problem
from .declared import collapsed_of, collapsed_sites
from .density import abstract_trace, is_individual, is_latent
from .explained import explaining_integers
from .honoured import is_factor, is_outcome
from .values import evaluated, trace_anywhere

__all__ = [
    "Layout",
    "Named",
    "dependent_sites",
    "dimensions",
    "given_data",
    "join_units",
    "lay_out_units",
    "log_joint_by_unit",
    "log_terms",
    "model_of",
    "observed_units",
    "refuse_dependent_units",
    "refuse_powers",
    "unread_parameters",
]


@dataclass(frozen=True)
class Named:
    """A model whose data are passed by position, in the order of `names`."""

    model: Any
    names: tuple[str, ...]

    def __call__(self, *data: Any, **options: Any) -> None:
        """Run the model."""
        self.model(**dict(zip(self.names, data, strict=True)), **options)


def model_of(problem: Problem) -> Any:
    """The model as it was written, whose signature and name tell what it takes."""
    return problem.model.model if isinstance(problem.model, Named) else problem.model


def given_data(problem: Problem) -> tuple[Signature, dict[str, Any]]:
    """Signature of the model, and its data by name."""
    if isinstance(problem.model, Named):
        return signature_of(problem.model.model), dict(
            zip(problem.model.names, problem.args, strict=True)
        )
    signature = signature_of(problem.model)
    names = [role.name for role in signature.data]
    return signature, dict(zip(names, problem.args, strict=False))


def unread_parameters(model: Callable) -> list[str]:
    """Return the parameters that the body of a plain function never mentions."""
    code = getattr(inspect.unwrap(model), "__code__", None)
    if code is None:
        return []
    loads = (i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD"))
    read = {name for value in loads for name in (value if isinstance(value, tuple) else (value,))}
    return [name for name in inspect.signature(model).parameters if name not in read]


def dimensions(signature: Signature, data: Mapping[str, Any]) -> dict[str, int]:
    """Size of each named dimension of the data."""
    sizes: dict[str, int] = {}
    for role in signature.data:
        value = data.get(role.name)
        if value is None:
            continue
        if isinstance(value, LabelGraph):
            sizes.setdefault(role.runs_over(data), value.num_points)
        elif isinstance(value, Groups):
            sizes.setdefault(role.dims[0], len(value.codes))
            sizes[role.name] = value.num_groups
        elif role.kind in ("table", "labels"):
            table = value.values if role.kind == "labels" else value
            for dim, size in zip(role.dims, jnp.shape(table), strict=False):
                if dim == "...":
                    break
                sizes.setdefault(dim, size)
    return sizes


@dataclass(frozen=True)
class Layout:
    """Units of the observed sites.

    Attributes
    ----------
    site_dims : dict of str to str or None
        Dimension of the units of each observed site; None where the site is one unit.
    unit : dict of str to ndarray of int
        For each of these dimensions the unit of every element: connected elements share one.
    owners : dict of str to ndarray of int or None
        Unit of each term that a site's density gives; None where terms are units as they come.
    points : dict of str to str or None
        Dimension of the labels or effects of each site that integrates some out.
    """

    site_dims: dict[str, str | None]
    unit: dict[str, NDArray[np.int64]]
    owners: dict[str, NDArray[np.int64] | None]
    points: dict[str, str | None]

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions of units, in the order of the observed sites."""
        return tuple(dict.fromkeys(dim for dim in self.site_dims.values() if dim is not None))

    def num_units(self, site: str) -> int:
        """Number of units of an observed site."""
        dim = self.site_dims[site]
        return 1 if dim is None else int(self.unit[dim].max(initial=-1)) + 1


def lay_out_units(problem: Problem) -> Layout:
    """Find the units of a model's observed sites.

    A connected set is one unit, and so are the rows of a group. Rows are recognised by the plates that
    a site is in, by the data argument that it observes, or by their number.
    """
    if "layout" not in problem.notes:
        problem.notes["layout"] = _lay_out(problem)
    return problem.notes["layout"]


def _lay_out(problem: Problem) -> Layout:
    signature, data = given_data(problem)
    sizes = dimensions(signature, data)
    groups = {
        role.dims[0]: (role.name, np.asarray(data[role.name].codes))
        for role in signature.of_kind("groups")
        if data.get(role.name) is not None
    }
    site_dims: dict[str, str | None] = {}
    owners: dict[str, NDArray | None] = {}
    points: dict[str, str | None] = {}
    unit: dict[str, NDArray] = {}
    observed = _described(abstract_trace(problem))
    units = {name: fn.units() for name, (_, fn) in observed.items() if fn is not None}
    tied = {name: own.owner for name, own in units.items() if own.owner is not None}
    for name, (site, fn) in observed.items():
        extent = _extent(name, site) if fn is None else units[name].num_points
        dim = None if extent is None else _dimension(site, fn, extent, sizes, signature, data)
        owner = None
        if dim in groups and name in tied:
            dim_of_units: str | None = dim  # links join rows; groups do not cut through them
        elif dim in groups:
            dim_of_units, owner = groups[dim]
        else:
            dim_of_units = dim
        points[name] = dim
        site_dims[name], owners[name] = dim_of_units, owner
        if dim is None and extent is not None:
            site_dims[name] = points[name] = f"{name}_unit"
            unit[f"{name}_unit"] = np.arange(extent)
        elif dim_of_units is not None:
            unit.setdefault(dim_of_units, np.arange(sizes[dim_of_units]))
    for name, own in tied.items():
        dim, first = str(site_dims[name]), np.unique(own, return_index=True)[1]
        ends = np.stack([np.arange(len(own)), first[own]], axis=1)
        unit[dim] = join_units(unit[dim], ends)
    for name, own in tied.items():
        joined = unit[str(site_dims[name])]
        if not np.array_equal(own, joined):
            first = np.unique(own, return_index=True)[1]
            # terms beyond the units are padding, and zero
            owners[name] = np.pad(joined[first], (0, units[name].num_terms - len(first)))
    for name in observed:
        dim = site_dims[name]
        if dim is None or name in tied:
            continue
        joined = unit[dim]
        if not np.array_equal(joined, np.arange(len(joined))):
            owner = owners[name]
            owners[name] = joined if owner is None else joined[owner]
    return Layout(site_dims, unit, owners, points)


def observed_units(problem: Problem) -> dict[str, NDArray[np.bool_]]:
    """Which units of each observed site it observes anything of.

    A site observes nothing of rows that a mask hides, nor of points that no statement is about where it
    observes statements.
    """
    layout, found = lay_out_units(problem), {}

    def seen() -> dict[str, Array]:
        return {name: _seen(*own) for name, own in _observed(trace_anywhere(problem)).items()}

    for name, terms in evaluated(seen).items():
        owner = layout.owners[name]
        counts = np.bincount(np.arange(len(terms)) if owner is None else owner, np.asarray(terms))
        found[name] = counts[: layout.num_units(name)] > 0
    return found


def _seen(site: dict, fn: Collapsed | None) -> Array:
    """Which terms of the density of a site are of data."""
    if fn is not None:
        return fn.observed()
    value = site["value"]
    batch = jnp.shape(value)[: jnp.ndim(value) - site["fn"].event_dim]
    rows = jnp.broadcast_to(_unmasked(site["fn"]), batch)
    return rows.reshape(batch[0] if batch else 1, -1).any(axis=1)


def _unmasked(fn: Any) -> Array:
    """Which events of the batch of a distribution no mask hides altogether."""
    if isinstance(fn, dist.Independent):
        inside = tuple(range(-fn.reinterpreted_batch_ndims, 0))
        return jnp.broadcast_to(_unmasked(fn.base_dist), fn.base_dist.batch_shape).any(axis=inside)
    if isinstance(fn, dist.MaskedDistribution):
        return _unmasked(fn.base_dist) & jnp.asarray(fn._mask, bool)
    if isinstance(fn, dist.ExpandedDistribution):
        return _unmasked(fn.base_dist)
    return jnp.ones((), bool)


def join_units(unit: NDArray, pairs: NDArray) -> NDArray[np.int64]:
    """Units of elements of which some pairs are joined as well.

    Parameters
    ----------
    unit : ndarray of int, shape (num_elements,)
        Numbered from 0 in the order of their first elements, as the result is.
    pairs : ndarray of int, shape (num_pairs, 2)
        Numbers of elements.
    """
    _, connected_set = connected_sets(unit[pairs], int(unit.max(initial=-1)) + 1)
    return connected_set[unit]


def _observed(trace: Mapping[str, dict]) -> dict[str, tuple[dict, Collapsed | None]]:
    """Observed data of a trace."""
    return {name: found for name, found in _described(trace).items() if is_outcome(found[0])}


def _described(trace: Mapping[str, dict]) -> dict[str, tuple[dict, Collapsed | None]]:
    """Observed data of a trace, and latent sites of individuals or such that integrate others out."""
    sources = {name: (site, collapsed_of(site)) for name, site in trace.items()}
    return {
        name: (site, fn)
        for name, (site, fn) in sources.items()
        if is_outcome(site) or (is_latent(site) and (fn is not None or is_individual(site)))
    }


def _extent(name: str, site: dict) -> int | None:
    """Number of elements that the density of a site falls apart into, None if it does not.

    Raises
    ------
    ValueError
        If it does not, and the distribution says that it does.
    """
    fn, shape = site["fn"], jnp.shape(site["value"])
    batch = shape[: len(shape) - fn.event_dim]
    with explaining_integers():
        apart = jax.eval_shape(fn.log_prob, site["value"]).shape if batch else ()
    if batch and not apart:
        raise ValueError(
            f"the distribution of site {name!r} has one log density for data of shape {shape}, and "
            f"event_shape {fn.event_shape}; give it the event_shape {shape}, since that many numbers are one "
            "event"
        )
    return batch[0] if batch else None


def _dimension(
    site: dict,
    fn: Collapsed | None,
    extent: int,
    sizes: Mapping[str, int],
    signature: Signature,
    data: Mapping[str, Any],
) -> str | None:
    for role in signature.of_kind("groups"):
        own = data.get(role.name)
        if fn is not None and own is not None and fn.groups is own and sizes[role.name] == extent:
            return role.name
    frames = sorted(site.get("cond_indep_stack", ()), key=lambda frame: frame.dim)
    for frame in frames:
        if sizes.get(frame.name) == extent:
            return frame.name
    for role in signature.data:
        if data.get(role.name) is site["value"] and role.dims and sizes[role.dims[0]] == extent:
            return role.dims[0]
    order = [role.runs_over(data) for role in signature.of_kind("links") if role.dims]
    order += [role.name for role in signature.of_kind("groups")]
    order += [role.dims[0] for role in signature.of_kind("table") if role.dims]
    return next((dim for dim in order if sizes.get(dim) == extent), None)


def refuse_dependent_units(problem: Problem, asked: str) -> None:
    """Refuse densities of new units where they depend on those that were fitted, or are none.

    Raises
    ------
    ValueError
        Naming the sites.
    """
    refuse_powers(problem, asked)
    if tied := dependent_sites(problem):
        raise ValueError(
            f"{asked} is a density of new units given parameters, and those of {tied} share effects that "
            "were integrated out; fit with form='marginal', or use loo() of a fit by an engine that draws"
        )


def dependent_sites(problem: Problem) -> list[str]:
    """Observed sites whose units share effects that were integrated out."""
    sources = collapsed_sites(abstract_trace(problem)).items()
    return [name for name, (fn, _) in sources if not fn.has_independent_units]


def refuse_powers(problem: Problem, asked: str) -> None:
    """Refuse to take for densities of units what `handlers.scale` has raised to a power, or factors.

    Raises
    ------
    ValueError
        Naming the sites.
    """
    trace = abstract_trace(problem)
    observed = _observed(trace)
    if not observed:
        raise ValueError(
            f"{asked} is about densities of data, and the model has only factors "
            f"({', '.join(n for n, site in trace.items() if is_factor(site))}); write "
            "numpyro.sample(name, distribution, obs=data) for them"
        )
    powers = [name for name, (site, _) in observed.items() if site.get("scale") is not None]
    if powers:
        raise ValueError(
            f"{asked} is about densities of data, and handlers.scale raises those of {powers} to a power; "
            "fit without it"
        )


def log_terms(
    trace: Mapping[str, dict], layout: Layout, owners: Mapping[str, Array | None]
) -> tuple[dict[str, Array], dict[str, dict[str, NamedArray]]]:
    """Terms of the log likelihood by unit, and what is known of latent variables, by observed site."""
    terms, summaries = {}, {}
    for name, (site, fn) in _described(trace).items():
        summary, found = _terms_of(site, fn, name, layout, owners, layout.num_units(name))
        if fn is not None:
            summaries[name] = summary
        if site["is_observed"]:
            terms[name] = found
    return terms, summaries


def log_joint_by_unit(
    trace: Mapping[str, dict], layout: Layout, owners: Mapping[str, Array | None], site: str
) -> Array:
    """Terms of the log joint density by unit of a latent site, one for each of its rows.

    They are those of data, and of latent sites of individuals or such that integrate others out. There may
    be fewer units than rows: terms beyond are zero.
    """
    number = jnp.shape(trace[site]["value"])[0]
    dim = layout.site_dims[site]
    total = jnp.zeros(number)
    for name, (one, fn) in _described(trace).items():
        if layout.site_dims[name] == dim:
            terms = _terms_of(one, fn, name, layout, owners, number)[1][:number]
            total = total.at[: len(terms)].add(terms)
    return total


def _terms_of(
    site: dict,
    fn: Collapsed | None,
    name: str,
    layout: Layout,
    owners: Mapping[str, Array | None],
    number: int,
) -> tuple[dict[str, NamedArray], Array]:
    """What is known of the latent variables of a site, and its terms by unit."""
    summary: dict[str, NamedArray] = {}
    if fn is not None:
        summary, found = fn.summaries(site["value"])
        found = found if site.get("scale") is None else site["scale"] * found
    else:
        density = site["fn"].log_prob(site["value"])
        if site.get("scale") is not None:
            density = site["scale"] * density
        found = density.reshape(1, -1) if layout.site_dims[name] is None else density
        found = found.reshape(found.shape[0], -1).sum(axis=1)
    owner = owners[name]
    if owner is not None:
        found = jax.ops.segment_sum(found, owner, number)
    return summary, found
