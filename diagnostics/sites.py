"""Sites of a tree by what they are, whatever they are called."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

__all__ = [
    "has_labels",
    "is_label_dim",
    "is_ordered",
    "labelled_table",
    "role_of",
    "site_of",
    "symmetries_of",
]


def is_label_dim(name: str) -> bool:
    """Whether an axis of this name runs over clusters."""
    return name == "clusters" or name.startswith("clusters_")


def role_of(site: xr.DataArray) -> str:
    """What a site of the posterior is: "mixing_weights", "location", ...; empty if nobody says."""
    return str(site.attrs.get("role", ""))


def site_of(tree: xr.DataTree, role: str) -> str | None:
    """Name of the first site of a role, None if there is none."""
    sites = tree["posterior"].data_vars.items()
    return next((str(name) for name, site in sites if role_of(site) == role), None)


def symmetries_of(tree: xr.DataTree) -> dict[str, str]:
    """Sites that are known up to an orthogonal transform of one axis, and that axis."""
    sites = tree["posterior"].data_vars.items()
    return {str(n): str(s.attrs["orthogonal"]) for n, s in sites if "orthogonal" in s.attrs}


def is_ordered(tree: xr.DataTree) -> bool:
    """Whether clusters have an order, so that none may be renumbered."""
    return bool(tree["posterior"].attrs.get("ordered_clusters", 0))


def has_labels(tree: xr.DataTree) -> bool:
    """Whether the model has labels."""
    return "responsibilities" in tree


def labelled_table(tree: xr.DataTree) -> NDArray[np.float64]:
    """The first table of numbers with a row for every point that has a label.

    Raises
    ------
    ValueError
        If there is none.
    """
    points = tree["responsibilities"].sizes["points"] if has_labels(tree) else None
    for name, values in tree["observed_data"].data_vars.items():
        if name != "truth" and values.ndim == 2 and points in (None, len(values)):
            return values.to_numpy()
    raise ValueError("the fit has no table with a row for every point; draw its sites with ArviZ")
