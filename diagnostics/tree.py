"""From an engine's result to a DataTree."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr
from arviz_base import dict_to_dataset
from numpy.typing import ArrayLike
from sidebayes.guides.engines.base import EngineResult

__all__ = ["to_datatree"]


def to_datatree(
    result: EngineResult,
    *,
    observed: Mapping[str, Any],
    constant: Mapping[str, Any],
    responsibilities: ArrayLike,
    log_likelihood: ArrayLike,
    dims: Mapping[str, tuple[str, ...]],
    attrs: Mapping[str, Any],
) -> xr.DataTree:
    """Collect a fit in ArviZ's schema, draws always of shape (chain, draw, ...).

    Parameters
    ----------
    result : EngineResult
    observed, constant : mapping of str to (dims, array)
        Data, and what is known about them: ``links`` (link, end), ``link_weights`` (link).
    responsibilities : array_like, shape (chain, stored, num_points, num_clusters)
        At draws spread evenly over each chain; coordinate ``draw`` says which.
    log_likelihood : array_like, shape (chain, stored, unit)
        One term a connected component of the links, the exchangeable unit.
    dims : mapping of str to tuple of str
        Names of each site's axes.
    attrs : mapping
        Written to the root.

    Returns
    -------
    xarray.DataTree
        Groups ``posterior``, ``sample_stats``, ``log_likelihood``, ``responsibilities``,
        ``observed_data``, ``constant_data``, ``fit_info``.

    Raises
    ------
    ValueError
        If the shapes of draws, responsibilities and log-likelihood do not fit together.
    """
    responsibilities, log_likelihood = np.asarray(responsibilities), np.asarray(log_likelihood)
    chains, draws = result.sample_stats["lp"].shape
    stored = responsibilities.shape[1]
    for name, values, rank in (
        ("responsibilities", responsibilities, 4),
        ("log_likelihood", log_likelihood, 3),
    ):
        if values.ndim != rank or values.shape[:2] != (chains, stored) or stored > draws:
            raise ValueError(
                f"{name} has shape {values.shape}; expected {rank} axes that start with "
                f"({chains}, {stored}), at most the {draws} draws of the engine"
            )
    draw = np.linspace(0, draws - 1, stored).astype(int)

    tree = xr.DataTree()
    tree.attrs.update(attrs)
    named: dict[Hashable, Sequence[Hashable]] = dict(dims.items())
    posterior = dict_to_dataset(dict(result.draws), dims=named)
    posterior.attrs["point_estimate"] = int(chains * draws == 1)
    tree["posterior"] = xr.DataTree(posterior)
    tree["sample_stats"] = xr.DataTree(dict_to_dataset(dict(result.sample_stats)))
    for group, name, values, axes in (
        ("log_likelihood", "x", log_likelihood, ("unit",)),
        ("responsibilities", "prob", responsibilities, ("points", "clusters")),
    ):
        data = dict_to_dataset({name: values}, dims={name: axes}, coords={"draw": draw})
        tree[group] = xr.DataTree(data)
    for group, given in (("observed_data", observed), ("constant_data", constant)):
        tree[group] = xr.DataTree(xr.Dataset(dict(given)))
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
    )
    if result.log_evidence is not None:
        value, error, kind = result.log_evidence
        info.attrs.update(log_evidence=value, log_evidence_error=error, log_evidence_kind=kind)
    tree["fit_info"] = xr.DataTree(info)
    return tree
