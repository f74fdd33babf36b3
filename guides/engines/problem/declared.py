"""Declarations at the sites of a model: axes, roles, blocks, collapsed latents and the observed table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from numpy.typing import NDArray
from numpyro.distributions import constraints
from sidebayes.models.blocks.block import Block, Tightening
from sidebayes.models.blocks.block_facts import Regularised
from sidebayes.models.blocks.collapsed import Collapsed, ScoresMore, unexpanded
from sidebayes.models.blocks.independent_mixture import as_collapsed
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture

from ..base import Problem
from ..plumbing.indicators import plain_support
from .density import (
    abstract_trace,
    free_shapes,
    is_individual,
    is_latent,
    latent_sites,
    latent_supports,
    place,
    site_log_prob,
)
from .honoured import is_outcome, live_inputs_of
from .values import evaluated, trace_anywhere

__all__ = [
    "approximation",
    "collapsed_of",
    "collapsed_sites",
    "declared_blocks",
    "finite_mixtures",
    "imputed_sites",
    "individual_sites",
    "observed_table",
    "observed_values",
    "prior_off_data",
    "restricted_sites",
    "schedule_of",
    "site_axes",
    "site_dims",
    "site_roles",
    "unit_row_sites",
    "values_beside",
]


def site_dims(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Name the axes of every latent and deterministic site: plates first, then its own.

    A site names its own last axes by ``infer={"event_dims": [...]}``. Those of weights on a simplex,
    one per cluster, are ``clusters``.
    """
    trace, dims = abstract_trace(problem), {}
    for name, site in trace.items():
        if site["type"] != "deterministic" and not is_latent(site):
            continue
        named, tail = site_axes(name, site)
        given = (site.get("infer") or {}).get("event_dims")
        if given is not None:
            if len(given) != len(tail):
                raise ValueError(
                    f"site {name!r}: event_dims={list(given)!r} names {len(given)} axes; "
                    f"the site has {len(tail)} event axes"
                )
            tail = tuple(given)
        elif name in _weights_of_clusters(trace):
            tail = ("clusters",)
        dims[name] = (*named, *tail)
    return dims


def imputed_sites(problem: Problem) -> dict[str, list[str]]:
    """Return observed sites whose values depend on latent ones, as imputed values do, and on which."""
    free = {n: jnp.zeros(one.shape, one.dtype) for n, one in free_shapes(problem).items()}

    def observed(free: dict[str, Array]) -> dict[str, Array]:
        trace, _ = place(problem, free)
        return {name: site["value"] for name, site in trace.items() if is_outcome(site)}

    found = live_inputs_of(observed, free)
    return {name: [n for n, is_live in live.items() if is_live] for name, live in found.items()}


def site_axes(name: str, site: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the axes of a site: plates name their axes, and the site's own axes are numbered."""
    plates = {frame.dim: frame.name for frame in site.get("cond_indep_stack", ())}
    rank = len(jnp.shape(site["value"]))
    event = site["fn"].event_dim if site["type"] == "sample" else rank - len(plates)
    numbered = tuple(f"{name}_dim_{axis}" for axis in range(rank))
    batch = rank - event
    named = tuple(plates.get(axis - batch, numbered[axis]) for axis in range(batch))
    return named, numbered[batch:]


def site_roles(problem: Problem) -> dict[str, str]:
    """Roles of latent sites, as far as blocks declare them: "mixing_weights", "location", ..."""
    trace = abstract_trace(problem)
    roles = dict.fromkeys(_weights_of_clusters(trace), "mixing_weights")
    for name, site in latent_sites(trace).items():
        infer = site.get("infer") or {}
        derived = getattr(infer.get("block"), "derived", {})
        own = {name: infer.get("role"), **derived}.items()
        roles |= {n: role for n, role in own if role and n in trace}
    return roles


def _weights_of_clusters(trace: Mapping[str, dict]) -> list[str]:
    """Sites that are single points of a simplex with one entry per cluster, including deterministic ones."""
    sizes = {fn.num_clusters for fn, _ in finite_mixtures(trace).values()}
    return [
        name
        for name, site in trace.items()
        if is_latent(site)
        and site["fn"].support is constraints.simplex
        and len(jnp.shape(site["value"])) == 1
        and jnp.shape(site["value"])[0] in sizes
    ]


def declared_blocks(
    trace: Mapping[str, dict], *, partly_known: bool = False
) -> list[tuple[Block, dict[str, str]]]:
    """Blocks that sample latent sites of a trace, each with the names of these by role.

    A block counts only if none of its sites is known. Where some are known, by ``handlers.condition``, its
    latent ones are treated as sites without a block; `partly_known` selects such blocks, and no others.
    """
    found: dict[int, tuple[Block, dict[str, str]]] = {}
    known = set()
    for name, site in trace.items():
        infer = (site.get("infer") or {}) if site["type"] == "sample" else {}
        block = infer.get("block")
        if block is not None and is_latent(site):
            found.setdefault(id(block), (block, {}))[1][infer["role"]] = name
        elif block is not None:
            known.add(id(block))
    return [one for key, one in found.items() if (key in known) == partly_known]


def restricted_sites(problem: Problem) -> tuple[str, ...]:
    """Sites that describe a restricted posterior and nothing else."""
    blocks = declared_blocks(abstract_trace(problem))
    return tuple(
        n for block, sites in blocks if isinstance(block, Tightening) for n in sites.values()
    )


def prior_off_data(trace: Mapping[str, dict]) -> Array:
    """Log density of the priors that were read off the data, at the values of a trace; 0 without any."""
    sites = {
        name
        for block, roles in declared_blocks(trace)
        if isinstance(block, Regularised) and block.from_data
        for name in roles.values()
    }
    return sum((site_log_prob(trace[name]) for name in sorted(sites)), jnp.zeros(()))


def observed_table(problem: Problem, name: str) -> NDArray | None:
    """Return the data of an observed site, one row per unit, where they are a table.

    Where the model computes them from its arguments, such as coordinates of shapes, they are computed here
    with any parameters that they depend on at zero in unconstrained space.
    """
    value = abstract_trace(problem)[name]["value"]
    if jnp.ndim(value) not in (1, 2) or not len(value):
        return None
    if isinstance(value, Tracer):
        if name not in problem.notes.setdefault("tables", {}):
            value = evaluated(lambda: trace_anywhere(problem)[name]["value"])
            problem.notes["tables"][name] = np.asarray(value, float)
        return problem.notes["tables"][name]
    return np.asarray(value, float)


def observed_values(problem: Problem, names: Collection[str]) -> list[NDArray]:
    """Return the data of observed sites, as the model observes them.

    Parameters that they depend on are at zero in unconstrained space.
    """
    found = [abstract_trace(problem)[name]["value"] for name in names]
    if any(isinstance(value, Tracer) for value in found):
        found = evaluated(lambda: [trace_anywhere(problem)[name]["value"] for name in names])
    return [np.asarray(value) for value in found]


def values_beside(problem: Problem, names: Collection[str]) -> dict[str, NDArray[np.bool_]]:
    """What the densities of observed sites depend on beside values (`ScoresMore`), without empty statements.

    The number of classes beyond the last one that is stated does not count.
    """

    def asked(trace: dict) -> dict[str, Callable[[], Array] | None]:
        return {n: v for name in names for n, v in _beside_value(trace[name]["fn"]).items()}

    def found() -> dict[str, Array]:
        return {n: value() for n, value in asked(trace_anywhere(problem)).items() if value}

    kinds = asked(abstract_trace(problem))
    told = {kind: np.ones(1, bool) for kind, value in kinds.items() if value is None}
    if len(told) < len(kinds):
        told |= {kind: np.asarray(value, bool) for kind, value in evaluated(found).items()}
    used = {kind: np.flatnonzero(v.any(axis=tuple(range(v.ndim - 1)))) for kind, v in told.items()}
    return {kind: v[..., : used[kind][-1] + 1] for kind, v in told.items() if used[kind].size}


def _beside_value(fn: Any) -> dict[str, Callable[[], Array] | None]:
    """What a distribution scores beside its value, including NumPyro's masks and censoring."""
    found: dict[str, Callable[[], Array] | None] = {}
    while hasattr(fn, "base_dist"):
        mask = getattr(fn, "_mask", None)
        if mask is not None and not isinstance(mask, bool):
            found["masks"] = partial(_where, mask, False)
        if hasattr(fn, "censored"):
            found["events"] = partial(_where, fn.censored, True)
        fn = fn.base_dist
    return found | dict(fn.beside_value()) if isinstance(fn, ScoresMore) else found


def _where(flags: Array, value: bool) -> Array:
    return jnp.atleast_1d(jnp.asarray(flags, bool) == value)


def unit_row_sites(problem: Problem) -> list[str]:
    """Latent sites whose rows have length 1: Cholesky factors of correlations."""
    supports = latent_supports(problem).items()
    return [n for n, support in supports if plain_support(support) is constraints.corr_cholesky]


def individual_sites(problem: Problem) -> tuple[str, ...]:
    """Names of latent sites with a row for each individual; see `Individual`."""
    return tuple(
        name for name, site in latent_sites(abstract_trace(problem)).items() if is_individual(site)
    )


def schedule_of(problem: Problem, sites: tuple[str, ...]) -> tuple[str, tuple[float, ...]] | None:
    """Return the option of the model that changes in the first steps of a climb, and its values there.

    Blocks of latent individuals declare such options; the result is None if none does.
    """

    def schedules() -> dict[str, Any]:
        trace = trace_anywhere(problem)
        blocks = [trace[name]["infer"]["block"] for name in sites if is_individual(trace[name])]
        found = [block.schedule() for block in blocks]
        return dict(filter(None, found))

    for name, values in evaluated(schedules).items():
        return name, tuple(np.asarray(values).tolist())
    return None


def collapsed_of(site: Mapping[str, Any]) -> Collapsed | None:
    """Return the distribution of a site that integrates latent variables out; None if it does not.

    The site may be latent itself, such as coordinates whose prior is a linked mixture. NumPyro's mixtures
    count only where they are observed.
    """
    if site["type"] != "sample":
        return None
    if site["is_observed"]:
        return as_collapsed(site["fn"], site["value"])
    fn = unexpanded(site["fn"])
    return fn if isinstance(fn, Collapsed) else None


def collapsed_sites(trace: Mapping[str, dict]) -> dict[str, tuple[Collapsed, Any]]:
    """Sites that integrate latent variables out, with their values."""
    sources = ((name, collapsed_of(site), site) for name, site in trace.items())
    return {name: (fn, site["value"]) for name, fn, site in sources if fn is not None}


def finite_mixtures(trace: Mapping[str, dict]) -> dict[str, tuple[FiniteMixture, Any]]:
    """Sites whose labels are summed out, with their values."""
    return {
        name: (fn, value)
        for name, (fn, value) in collapsed_sites(trace).items()
        if isinstance(fn, FiniteMixture)
    }


def approximation(problem: Problem) -> str | None:
    """Name the approximations made in integrating out; None where all is exact.

    Raises
    ------
    ValueError
        If a connected set is too wide and the model names no approximation.
    """
    sources = (fn for fn, _ in collapsed_sites(abstract_trace(problem)).values())
    named = filter(None, (fn.approximation() for fn in sources))
    return ", ".join(dict.fromkeys(named)) or None
