"""Distance of the posteriors of two fits, invariant to the numbering of their clusters."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..sites import entry_names, is_label_dim, judged_sites, role_of, symmetries_of
from .orthogonal import gram

__all__ = ["comparable", "farthest", "wasserstein"]

_PROBABILITIES = (np.arange(200) + 0.5) / 200
"""Where quantile functions are compared; the outermost quarter per cent count as the next."""

_MOST_ENTRIES = 64
"""Largest size of a parameter that is compared entry by entry."""


def comparable(tree: xr.DataTree) -> dict[str, NDArray[np.float64]]:
    """Label-invariant functionals of the parameters, the same for every engine.

    Mixing weights in order of size; parameters without a cluster axis as they are; others by
    their average over the clusters, and their standard deviation over them. Of what is known up to
    an orthogonal transform the inner products. Sites that are not judged are left out, see `judged_sites`.

    Parameters
    ----------
    tree : DataTree

    Returns
    -------
    dict of ndarray, shape (num_draws,)
        Entries of an array are named like ``theta[0]``, or by the names of the data.
    """
    found: dict[str, NDArray[np.float64]] = {}
    for key, part in _parts(tree).items():
        names = entry_names(key, part, part.dims[2:])
        found |= zip(names, part.to_numpy().reshape(-1, len(names)).T, strict=True)
    return found


def _parts(tree: xr.DataTree) -> dict[str, xr.DataArray]:
    """The functionals of `comparable` by chain and draw, those of an array together."""
    sites = judged_sites(tree)
    symmetries = symmetries_of(tree)
    turning = {name: sites[name].to_numpy() for name in symmetries}
    products = gram(turning, {name: sites[name].dims for name in symmetries}, symmetries)
    parts = {name: xr.DataArray(values) for name, values in products.items()}
    for name, site in sites.items():
        axes = [dim for dim in site.dims if _permutes(str(dim))]
        if name in symmetries:
            continue
        if role_of(site) == "mixing_weights":
            parts["sorted weights"] = xr.DataArray(-np.sort(-site.to_numpy(), axis=-1))
        elif axes:
            parts[f"average {name}"] = site.mean(axes)
            parts[f"spread of {name}"] = site.std(axes)
        else:
            parts[name] = site
    return {key: part for key, part in parts.items() if part[0, 0].size <= _MOST_ENTRIES}


def _permutes(dim: str) -> bool:
    """Whether an axis runs over clusters, or over the components within them."""
    return is_label_dim(dim) or dim == "components"


def wasserstein(draws: NDArray, reference: NDArray) -> float:
    """1-Wasserstein distance of two samples in standard deviations of the reference.

    The mean distance of their quantiles, on a fixed grid of probabilities, so that extreme draws
    count as little in the distance as in the standard deviation. Shifting the reference by one
    of its standard deviations gives 1; a point mass at the mean of a normal one gives 0.8. Of samples of
    zeros and ones it is the difference of their means, in standard deviations of both together, since one
    of them may be all ones.

    Parameters
    ----------
    draws, reference : ndarray, shape (num_draws,)
        Their numbers may differ.

    Returns
    -------
    float
        Infinite where the reference does not vary and the draws are elsewhere.
    """
    if all(np.isin(values, (0, 1)).all() for values in (draws, reference)):
        ours, theirs = np.mean(draws), np.mean(reference)
        middle = (ours + theirs) / 2
        if {ours, theirs} != {0.0, 1.0} and 0 < middle < 1:
            return float(abs(ours - theirs) / np.sqrt(middle * (1 - middle)))
    ours, theirs = np.quantile(draws, _PROBABILITIES), np.quantile(reference, _PROBABILITIES)
    gap, spread = float(np.abs(ours - theirs).mean()), float(theirs.std())
    if gap <= 1e-10 * (1.0 + np.abs(theirs).max()):
        return 0.0
    return gap / spread if spread > 0 else np.inf


def farthest(tree: xr.DataTree, reference: xr.DataTree) -> tuple[float, str]:
    """Largest of these distances over the functionals of `comparable`, and which one it is.

    Parameters
    ----------
    tree, reference : DataTree
        Of fits of one model to the same data.

    Returns
    -------
    (float, str)
        NaN and "" where all parameters are too large to be compared.
    """
    ours, found = _parts(tree), []
    for key, part in _parts(reference).items():
        if key in ours and ours[key].shape[2:] == part.shape[2:]:
            names = entry_names(key, part, part.dims[2:])
            # by place, since the same data may have names in one fit only
            pairs = (one.to_numpy().reshape(-1, len(names)).T for one in (ours[key], part))
            found += [(wasserstein(*pair), n) for n, *pair in zip(names, *pairs, strict=True)]
    return max(found, default=(np.nan, ""))
