"""How far the posteriors of two fits lie apart, whatever the numbering of their clusters."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from .orthogonal import gram
from .sites import is_label_dim, role_of, symmetries_of

__all__ = ["comparable", "farthest", "wasserstein"]

_PROBABILITIES = (np.arange(200) + 0.5) / 200
"""Where quantile functions are compared; the outermost quarter per cent count as the next."""

_MOST_ENTRIES = 64
"""Largest size of a parameter that is compared entry by entry."""


def comparable(tree: xr.DataTree) -> dict[str, NDArray[np.float64]]:
    """Label-invariant functionals of the parameters, the same for every engine.

    Mixing weights in order of size; parameters without a cluster axis as they are; others by
    their average over the clusters, and their standard deviation over them. Of what is known up to
    an orthogonal transform the inner products.

    Parameters
    ----------
    tree : DataTree

    Returns
    -------
    dict of ndarray, shape (num_draws,)
        Entries of an array are named like ``theta[0]``.
    """
    sites = {str(name): site for name, site in tree["posterior"].data_vars.items()}
    symmetries = symmetries_of(tree)
    turning = {name: sites[name].to_numpy() for name in symmetries}
    parts = gram(turning, {name: sites[name].dims for name in symmetries}, symmetries)
    for name, site in sites.items():
        values = site.to_numpy()
        axes = tuple(i for i, dim in enumerate(map(str, site.dims)) if _permutes(dim))
        if name in symmetries:
            continue
        if role_of(site) == "mixing_weights":
            parts["sorted weights"] = -np.sort(-values, axis=-1)
        elif axes:
            parts[f"average {name}"] = values.mean(axis=axes)
            parts[f"spread of {name}"] = values.std(axis=axes)
        else:
            parts[name] = values
    found = {}
    for key, part in parts.items():
        if part[0, 0].size <= _MOST_ENTRIES:
            for index in np.ndindex(part.shape[2:]):
                label = f"{key}[{', '.join(map(str, index))}]" if index else key
                found[label] = part[(..., *index)].reshape(-1)
    return found


def _permutes(dim: str) -> bool:
    """Whether an axis runs over clusters, or over the components within them."""
    return is_label_dim(dim) or dim == "components"


def wasserstein(draws: NDArray, reference: NDArray) -> float:
    """1-Wasserstein distance of two samples in standard deviations of the reference.

    The mean distance of their quantiles, on a fixed grid of probabilities, so that extreme draws
    count as little in the distance as in the standard deviation. Shifting the reference by one
    of its standard deviations gives 1; a point mass at the mean of a normal one gives 0.8.

    Parameters
    ----------
    draws, reference : ndarray, shape (num_draws,)
        Their numbers may differ.

    Returns
    -------
    float
        Infinite where the reference does not vary and the draws are elsewhere.
    """
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
    ours, theirs = comparable(tree), comparable(reference)
    found = [(wasserstein(ours[key], theirs[key]), key) for key in theirs if key in ours]
    return max(found, default=(np.nan, ""))
