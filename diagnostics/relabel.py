"""Undo label switching: match the clusters of every draw to a pivot."""

from __future__ import annotations

import numpy as np
import xarray as xr
from scipy.optimize import linear_sum_assignment

__all__ = ["relabel"]


def relabel(tree: xr.DataTree) -> tuple[xr.DataTree, float]:
    """Renumber the clusters of each draw to agree with the draw of highest density.

    Each draw's clusters are assigned one to one to the pivot's so that responsibilities overlap
    most (Stephens 2000; Papastamoulis 2016), and every site with a ``clusters`` axis is permuted
    together. Draws without stored responsibilities follow the nearest stored draw of their chain
    by cluster means.

    Returns
    -------
    tree : DataTree
        A copy; ``sample_stats["permutation"]`` says what was done to each kept draw.
    score : float
        Mean responsibility that the matched clusters share, in [0, 1]; near one the labels are
        well identified, below about 0.8 trust only label-invariant functionals.
    """
    prob = tree["responsibilities"]["prob"].to_numpy()
    num_chains, num_draws, num_points, num_clusters = prob.shape
    density = tree["sample_stats"]["lp"].to_numpy()
    keep = np.linspace(0, density.shape[1] - 1, num_draws).astype(int)
    pivot = prob[np.unravel_index(np.argmax(density[:, keep]), (num_chains, num_draws))]
    overlap = np.einsum("cdpk,pl->cdkl", prob, pivot) / num_points
    order = np.empty((num_chains, num_draws, num_clusters), int)
    score = np.empty((num_chains, num_draws))
    for chain, draw in np.ndindex(num_chains, num_draws):
        rows, columns = linear_sum_assignment(-overlap[chain, draw])
        order[chain, draw, columns] = rows
        score[chain, draw] = overlap[chain, draw][rows, columns].sum()
    ceiling = np.sum(pivot**2) / num_points
    nearest = np.abs(np.arange(density.shape[1])[:, None] - keep).argmin(axis=1)

    out = tree.copy()
    permuted = xr.DataArray(order, dims=("chain", "draw", "clusters"))
    out["responsibilities"] = xr.DataTree(
        tree["responsibilities"]
        .to_dataset()
        .assign(prob=_take(tree["responsibilities"]["prob"], order))
    )
    posterior = tree["posterior"].to_dataset()
    full = order[:, nearest]
    out["posterior"] = xr.DataTree(
        posterior.assign(
            {name: _take(v, full) for name, v in posterior.items() if "clusters" in v.dims}
        )
    )
    out["relabelling"] = xr.DataTree(xr.Dataset({"permutation": permuted}))
    return out, float(min(score.mean() / ceiling, 1.0))


def _take(values: xr.DataArray, order: np.ndarray) -> xr.DataArray:
    axis = values.dims.index("clusters")
    index = order.reshape(
        order.shape[:2] + (1,) * (axis - 2) + (-1,) + (1,) * (values.ndim - axis - 1)
    )
    return values.copy(data=np.take_along_axis(values.to_numpy(), index, axis=axis))
