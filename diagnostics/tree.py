"""Converts the result of an engine to a DataTree."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr
from arviz_base import dict_to_dataset
from numpy.typing import ArrayLike, NDArray
from sidebayes.guides.engines.base import EngineResult, Evidence
from sidebayes.guides.engines.problem.posterior import thin

from .sites import name_axes

__all__ = ["evidence_attributes", "pooled_draws", "to_datatree"]


def to_datatree(
    result: EngineResult,
    *,
    observed: Mapping[str, Any],
    constant: Mapping[str, Any],
    responsibilities: ArrayLike | None,
    log_likelihood: Mapping[str, ArrayLike],
    unit_dims: Mapping[str, str],
    dims: Mapping[str, tuple[str, ...]],
    attrs: Mapping[str, Any],
    names: Mapping[str, ArrayLike] | None = None,
    latents: Mapping[str, tuple[tuple[str, ...], ArrayLike]] | None = None,
    log_prior: Mapping[str, ArrayLike] | None = None,
    roles: Mapping[str, str] | None = None,
    symmetries: Mapping[str, str] | None = None,
    circular: Collection[str] = (),
    unit_rows: Collection[str] = (),
    computed: Collection[str] = (),
    numbered: Collection[str] = (),
    ordered: bool = False,
    remarks: Sequence[str] = (),
) -> xr.DataTree:
    """Collect a fit in ArviZ's schema, draws always of shape (chain, draw, ...).

    Parameters
    ----------
    result : EngineResult
    observed, constant : mapping of str to (dims, array)
        Data, and information on them: ``links`` (link, end), ``link_weights`` (link), where there are
        groups of links ``link_group`` (link) and ``link_group_names``, and other columns.
    responsibilities : array_like, shape (chain, stored, num_points, num_clusters), or None
        At draws spread evenly over each chain, which the coordinate ``draw`` names. None without labels.
    log_likelihood : mapping of str to array_like, shape (chain, stored, unit)
        For each observed site, one term per exchangeable unit.
    unit_dims : mapping of str to str
        Name of the axis of units of each of these sites.
    dims : mapping of str to tuple of str
        Names of each site's axes.
    attrs : mapping
        Written to the root.
    names : mapping of str to array_like, optional
        Names of the entries of axes, which become their coordinates in all groups.
    latents : mapping of str to (dims, array), optional
        Summaries of other latent variables that are integrated out, shape (chain, stored, ...), and
        names of their axes after these two.
    log_prior : mapping of str to array_like, shape (chain, stored), optional
        For each latent site.
    roles : mapping of str to str, optional
        Roles of sites, such as "mixing_weights" or "location": the attribute ``role`` of each.
    symmetries : mapping of str to str, optional
        An axis of a site that is identified up to an orthogonal transform: its attribute ``orthogonal``.
    circular : collection of str, optional
        Sites whose values are angles: their attribute ``circular``.
    unit_rows : collection of str, optional
        Sites whose rows, along the last axis, have length 1: their attribute ``unit_rows``.
    computed : collection of str, optional
        Deterministic sites: their attribute ``computed``.
    numbered : collection of str, optional
        Those of them that change when clusters are renumbered, along no axis: their attribute ``numbered``.
    ordered : bool
        Whether clusters have an order, so that none may be renumbered: the attribute
        ``ordered_clusters`` of the posterior.
    remarks : sequence of str
        Sentences about the draws, for the verdict.

    Returns
    -------
    xarray.DataTree
        Groups ``posterior``, ``sample_stats``, ``log_likelihood``, ``log_prior``,
        ``observed_data``, ``constant_data``, ``fit_info``; ``responsibilities`` and ``latents`` where
        they exist; and ``conditional_posterior``, draws of sites given the point estimate of all
        others, where the engine makes them.

    Raises
    ------
    ValueError
        If the shapes of draws, responsibilities and log-likelihood do not fit together.
    """
    chains, draws = result.sample_stats["lp"].shape
    derived: list[tuple[str, str, Any, tuple[str, ...]]] = [
        ("log_likelihood", name, values, (unit_dims[name],))
        for name, values in log_likelihood.items()
    ]
    derived += [("log_prior", name, values, ()) for name, values in (log_prior or {}).items()]
    if responsibilities is not None:
        derived.append(("responsibilities", "prob", responsibilities, ("points", "clusters")))
    derived += [("latents", name, v, axes) for name, (axes, v) in (latents or {}).items()]
    stored = min((np.shape(values)[1] for _, _, values, _ in derived), default=draws)
    for group, name, values, axes in derived:
        shape = np.shape(values)
        rank = 2 + len(axes)
        if len(shape) != rank or shape[:2] != (chains, stored) or stored > draws:
            raise ValueError(
                f"{group} {name!r} has shape {shape}; expected {rank} axes that start with "
                f"({chains}, {stored}), at most the {draws} draws of the engine"
            )
    draw = np.linspace(0, draws - 1, stored).astype(int)

    tree = xr.DataTree()
    tree.attrs.update(attrs)
    named: dict[Hashable, Sequence[Hashable]] = dict(dims.items())
    posterior = dict_to_dataset(dict(result.draws), dims=named)
    posterior.attrs["point_estimate"] = int(chains * draws == 1)
    posterior.attrs["ordered_clusters"] = int(ordered)
    for name, role in (roles or {}).items():
        if name in posterior:  # engines may leave out values that are derived from other sites
            posterior[name].attrs["role"] = role
    for name, axis in (symmetries or {}).items():
        posterior[name].attrs["orthogonal"] = axis
    marked = {"circular": circular, "unit_rows": unit_rows}
    marked |= {"computed": computed, "numbered": numbered}
    for mark, sites in marked.items():
        for name in filter(posterior.__contains__, sites):
            posterior[name].attrs[mark] = 1
    tree["posterior"] = xr.DataTree(posterior)
    tree["sample_stats"] = xr.DataTree(dict_to_dataset(dict(result.sample_stats)))
    if result.conditional_draws:
        given = dict_to_dataset(dict(result.conditional_draws), dims=named)
        tree["conditional_posterior"] = xr.DataTree(given)
    for group in dict.fromkeys(group for group, *_ in derived):
        own = [(name, np.asarray(values), axes) for g, name, values, axes in derived if g == group]
        data = dict_to_dataset(
            {name: values for name, values, _ in own},
            dims={name: axes for name, _, axes in own},
            coords={"draw": draw},
        )
        tree[group] = xr.DataTree(data)
    for group, columns in (("observed_data", observed), ("constant_data", constant)):
        tree[group] = xr.DataTree(xr.Dataset(dict(columns)))
    info = xr.Dataset({"objective": (("restart", "step"), result.objective)})
    packages = ("jax", "numpyro", "arviz", "numpy")
    info.attrs.update(
        engine=result.engine,
        status=result.status.message,
        converged=int(result.status.converged),
        seconds=json.dumps(result.seconds),
        versions=json.dumps({name: version(name) for name in packages}),
        approximate=result.approximate or "",
        density_space=result.density_space,
        points=json.dumps(result.points),
        remarks=json.dumps(list(remarks)),
    )
    if result.best_start is not None:
        info.attrs["best_start"] = result.best_start
    if result.effective_draws is not None:
        info.attrs["effective_draws"] = result.effective_draws
    if result.log_evidence is not None:
        info.attrs.update(evidence_attributes(result.log_evidence))
    for name, errors in (result.standard_errors or {}).items():
        info[f"monte_carlo_error_{name}"] = named.get(name, ()), errors
    for name, mean in result.factor_means.items():
        info[f"factor_mean_{name}"] = named.get(name, ()), mean
    tree["fit_info"] = xr.DataTree(info)
    for group in list(tree.children):
        tree[group] = xr.DataTree(name_axes(tree[group].to_dataset(), names or {}))
    return tree


def evidence_attributes(evidence: Evidence) -> dict[str, Any]:
    """Return attributes of ``fit_info`` that hold the log evidence."""
    error = evidence.standard_error
    return {
        "log_evidence": evidence.value,
        "log_evidence_kind": evidence.kind,
        "log_evidence_error": np.nan if error is None else error,
    }


def pooled_draws(tree: xr.DataTree, *, of_each_chain: bool = False) -> dict[str, NDArray]:
    """Return draws of all chains in succession: at most `MOST_DRAWS` in all, or of each chain."""
    group = tree["posterior"]
    values = {str(name): site.to_numpy() for name, site in group.data_vars.items()}
    if of_each_chain:
        keep = thin(group.sizes["draw"])
        return {n: v[:, keep].reshape(-1, *v.shape[2:]) for n, v in values.items()}
    keep = thin(group.sizes["chain"] * group.sizes["draw"])
    return {n: v.reshape(-1, *v.shape[2:])[keep] for n, v in values.items()}
