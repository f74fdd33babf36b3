"""From an engine's result to a DataTree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from arviz_base import dict_to_dataset
from sidebayes.guides.engines.base import EngineResult

__all__ = ["to_datatree"]


def to_datatree(
    result: EngineResult,
    *,
    observed: Mapping[str, Any],
    constant: Mapping[str, Any],
    responsibilities: np.ndarray,
    log_likelihood: np.ndarray,
    dims: Mapping[str, tuple[str, ...]],
    attrs: Mapping[str, Any],
) -> xr.DataTree:
    """Collect a fit in ArviZ's schema.

    Parameters
    ----------
    result : EngineResult
    observed, constant : mapping of str to (dims, array)
    responsibilities : ndarray, shape (chain, draw, num_points, num_clusters)
    log_likelihood : ndarray, shape (chain, draw, unit)
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
    """
    tree = xr.DataTree()
    tree.attrs.update(attrs)
    tree["posterior"] = xr.DataTree(dict_to_dataset(dict(result.draws), dims=dict(dims)))
    tree["sample_stats"] = xr.DataTree(dict_to_dataset(dict(result.sample_stats)))
    tree["log_likelihood"] = xr.DataTree(
        dict_to_dataset({"x": log_likelihood}, dims={"x": ("unit",)})
    )
    tree["responsibilities"] = xr.DataTree(
        dict_to_dataset({"prob": responsibilities}, dims={"prob": ("points", "clusters")})
    )
    for group, values in (("observed_data", observed), ("constant_data", constant)):
        tree[group] = xr.DataTree(xr.Dataset(dict(values)))
    info = xr.Dataset({"objective": (("restart", "step"), result.objective)})
    info.attrs.update(
        engine=result.engine,
        status=result.status.message,
        converged=int(result.status.converged),
        seconds=json.dumps(result.seconds),
        approximate=result.approximate or "",
        density_space=result.density_space,
    )
    tree["fit_info"] = xr.DataTree(info)
    return tree
