"""Finds sites of a tree by their roles, whatever their names."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "TRUSTED_MATCH",
    "circular_of",
    "clusters_of",
    "computed_of",
    "entry_names",
    "has_labelled_table",
    "has_labels",
    "is_label_dim",
    "is_ordered",
    "judged_sites",
    "labelled_table",
    "link_kind",
    "name_axes",
    "not_finite",
    "numbered_sites",
    "point_sites",
    "role_of",
    "site_of",
    "symmetries_of",
    "tables_of",
    "unit_rows_of",
    "unwrapped",
    "wrapped",
]

TRUSTED_MATCH = 0.8
"""Minimum score of relabelling for parameters by cluster to be shown over draws."""


def is_label_dim(name: str) -> bool:
    """Return whether an axis of this name runs over clusters."""
    return name == "clusters" or name.startswith("clusters_")


def role_of(site: xr.DataArray) -> str:
    """Return the role of a site of the posterior: "mixing_weights", "location", ...; empty if undeclared."""
    return str(site.attrs.get("role", ""))


def site_of(tree: xr.DataTree, role: str) -> str | None:
    """Return the name of the first site of a role; None if there is none."""
    sites = tree["posterior"].data_vars.items()
    return next((str(name) for name, site in sites if role_of(site) == role), None)


def clusters_of(tree: xr.DataTree) -> str:
    """Return the number of clusters, and how many have any weight where some were taken out: "3 of 8"."""
    number = tree["responsibilities"].sizes["clusters"]
    name = site_of(tree, "mixing_weights")
    weights = np.ones(number) if name is None else tree["posterior"][name].to_numpy()
    used = int((weights > 0).reshape(-1, weights.shape[-1]).any(axis=0).sum())
    is_all = weights.shape[-1] != number or used == number
    return str(number) if is_all else f"{used} of {number}"


def point_sites(tree: xr.DataTree) -> dict[str, int]:
    """Return sites with a single value in all draws, where others vary, and the size of each."""
    names = json.loads(tree["fit_info"].attrs.get("points", "[]"))
    sites = tree["posterior"].data_vars
    return {name: sites[name][0, 0].size for name in names}


def symmetries_of(tree: xr.DataTree) -> dict[str, str]:
    """Return sites that are identified up to an orthogonal transform of one axis, and that axis."""
    sites = tree["posterior"].data_vars.items()
    return {str(n): str(s.attrs["orthogonal"]) for n, s in sites if "orthogonal" in s.attrs}


def computed_of(tree: xr.DataTree) -> list[str]:
    """Deterministic sites, which a model computes from others."""
    return _marked(tree, "computed")


def not_finite(tree: xr.DataTree) -> dict[str, int]:
    """Deterministic sites that are not finite in some draws, and in how many of these."""
    found = {}
    for name in computed_of(tree):
        site = tree["posterior"][name]
        fine = np.isfinite(site.to_numpy()).all(axis=tuple(range(2, site.ndim)))
        found[name] = int((~fine).sum())
    return {name: number for name, number in found.items() if number}


def numbered_sites(tree: xr.DataTree) -> list[str]:
    """Deterministic sites that change when clusters are renumbered, and of which no axis follows."""
    return _marked(tree, "numbered")


def judged_sites(tree: xr.DataTree) -> dict[str, xr.DataArray]:
    """Sites by which draws are judged and compared, as numbers.

    Deterministic sites that cannot be compared are left out, since the sites that they are computed from are
    judged already: those of `not_finite`, and `numbered_sites`, whose chains may have other numberings.
    """
    left_out = {*not_finite(tree), *numbered_sites(tree)}
    sites = tree["posterior"].data_vars.items()
    return {str(name): _numbers(site) for name, site in sites if name not in left_out}


def _numbers(site: xr.DataArray) -> xr.DataArray:
    """A site with 0 and 1 in place of truth values."""
    return site.astype(float) if site.dtype == bool else site


def circular_of(tree: xr.DataTree) -> list[str]:
    """Return sites whose values are angles, in radians."""
    return _marked(tree, "circular")


def unit_rows_of(tree: xr.DataTree) -> list[str]:
    """Return sites whose rows, along the last axis, have length 1."""
    return _marked(tree, "unit_rows")


def _marked(tree: xr.DataTree, mark: str) -> list[str]:
    """Return sites that have an attribute."""
    return [str(n) for n, s in tree["posterior"].data_vars.items() if mark in s.attrs]


def unwrapped(tree: xr.DataTree) -> xr.Dataset:
    """Return draws of the sites as numbers, with angles within half a turn of their mean direction."""
    sites = tree["posterior"].to_dataset().map(_numbers, keep_attrs=True)
    for name in circular_of(tree):
        direction = xr.apply_ufunc(np.exp, 1j * sites[name]).mean(("chain", "draw"))
        centre = xr.apply_ufunc(np.angle, direction)
        sites[name] = wrapped(sites[name] - centre) + centre
    return sites


def wrapped(angles: Any) -> Any:
    """Map angles to within half a turn of zero."""
    return (angles + np.pi) % (2 * np.pi) - np.pi


def is_ordered(tree: xr.DataTree) -> bool:
    """Return whether clusters have an order, so that none may be renumbered."""
    return bool(tree["posterior"].attrs.get("ordered_clusters", 0))


def has_labels(tree: xr.DataTree) -> bool:
    """Return whether the model has labels."""
    return "responsibilities" in tree


def labelled_table(tree: xr.DataTree) -> NDArray[np.float64]:
    """Return the first table of numbers with a row, or one number, for every point that has a label.

    Raises
    ------
    ValueError
        If there is none; see `has_labelled_table`.
    """
    found = _labelled_table(tree)
    if found is None:
        model = tree.attrs.get("sidebayes_method", "the fit")
        raise ValueError(
            f"{model} has no table with a row for every point that has a label; draw its sites with ArviZ"
        )
    return found


def has_labelled_table(tree: xr.DataTree) -> bool:
    """Return whether there is a table of numbers with a row for every point that has a label."""
    return _labelled_table(tree) is not None


def _labelled_table(tree: xr.DataTree) -> NDArray[np.float64] | None:
    points = tree["responsibilities"].sizes["points"] if has_labels(tree) else None
    tables = [v for name, v in tables_of(tree, "observed_data").items() if name != "truth"]
    found = [v.to_numpy() for v in tables if v.ndim == 2 and points in (None, len(v))]
    if not found and len(tables) == 1 and tables[0].shape == (points,):  # one number by point
        found = [tables[0].to_numpy()[:, None]]
    return found[0] if found else None


def name_axes(data: xr.Dataset, names: Mapping[str, ArrayLike]) -> xr.Dataset:
    """Name the entries along the axes of a data set that have as many entries as there are names.

    Parameters
    ----------
    data : Dataset
    names : mapping of str to array_like
        Names for each axis; the axis ``features_1`` of a matrix has the names of ``features``.
    """
    found = {}
    for dim, size in data.sizes.items():
        own = names.get(str(dim), names.get(str(dim).removesuffix("_1")))
        taken = dim in data.variables and data.variables[dim].dims != (dim,)
        if own is not None and len(np.asarray(own)) == size and not taken:
            found[dim] = own
    return data.assign_coords(found)


def tables_of(tree: xr.DataTree, group: str) -> dict[str, xr.DataArray]:
    """Return the tables in a group of a tree, without the names along its axes.

    To xarray, a table with the name of one of the group's axes is a coordinate, and no data variable.

    Parameters
    ----------
    tree : DataTree
    group : str
    """
    data = tree[group].to_dataset()
    odd = [name for name, values in data.coords.items() if values.dims != (name,)]
    return {str(name): data[name] for name in (*data.data_vars, *odd)}


def entry_names(name: str, site: xr.DataArray, dims: Sequence[Hashable]) -> list[str]:
    """Return the names of all numbers of a site along some of its axes, as in ArviZ: ``mean[0, width]``.

    Parameters
    ----------
    name : str
    site : DataArray
    dims : sequence of str
        If empty, there is a single number with the name of the site.
    """
    axes = [site[dim].to_numpy() for dim in dims]
    return [f"{name}[{', '.join(map(str, at))}]" if at else name for at in product(*axes)]


def link_kind(tree: xr.DataTree) -> str:
    """Return the kind of links: "hard", "soft", "learned", "hard and soft", ...; empty without links.

    Links are "learned" if they have finite weight and their reliability was estimated with all else.
    """
    weights = tree["constant_data"]["link_weights"].to_numpy()
    hard = np.isinf(weights)
    doubted = "soft" if site_of(tree, "reliability") is None else "learned"
    kinds = {"hard": hard.any(), doubted: (~hard).any()}
    return " and ".join(name for name, present in kinds.items() if present)
