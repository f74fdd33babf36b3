"""Functionals of a posterior that do not change when clusters are renumbered."""

from __future__ import annotations

import arviz as az
import numpy as np
import xarray as xr
from arviz_base import dict_to_dataset

__all__ = ["convergence", "invariants"]


def invariants(tree: xr.DataTree, num_pairs: int = 20) -> xr.Dataset:
    """Label-invariant functionals of each draw.

    Log density, sorted mixing weights, entropy of the assignments, and the probability that pairs
    of points share a cluster: the first linked ones and as many spread over the data.

    Parameters
    ----------
    tree : DataTree
        Of a fit.
    num_pairs : int
        Pairs of either kind.
    """
    prob = tree["responsibilities"]["prob"].to_numpy()
    keep = np.linspace(0, tree["sample_stats"]["lp"].sizes["draw"] - 1, prob.shape[1]).astype(int)
    linked = tree["constant_data"]["links"].to_numpy()[:num_pairs]
    num_points = prob.shape[2]
    spread = np.linspace(0, num_points - 1, 2 * num_pairs).astype(int).reshape(2, -1).T
    pairs = np.concatenate([linked, spread])
    together = np.einsum("cdpk,cdpk->cdp", prob[:, :, pairs[:, 0]], prob[:, :, pairs[:, 1]])
    safe = np.where(prob > 0, prob, 1.0)
    values = {
        "lp": tree["sample_stats"]["lp"].to_numpy()[:, keep],
        "entropy": -np.sum(prob * np.log(safe), axis=(2, 3)),
        "same_cluster": together,
    }
    dims = {"same_cluster": ("pair",)}
    if "weights" in tree["posterior"]:
        values["sorted_weights"] = np.sort(tree["posterior"]["weights"].to_numpy(), axis=-1)[
            :, keep
        ]
        dims["sorted_weights"] = ("rank",)
    if "flip_rate" in tree["posterior"]:
        values["flip_rate"] = tree["posterior"]["flip_rate"].to_numpy()[:, keep]
    return dict_to_dataset(values, dims=dims)


def convergence(tree: xr.DataTree) -> dict[str, float]:
    """Worst R-hat and least bulk ESS over the invariants that vary; NaN for one draw."""
    data = invariants(tree)
    if data.sizes["draw"] < 4:
        return {"rhat": np.nan, "ess": np.nan}
    columns = np.concatenate(
        [v.to_numpy().reshape(data.sizes["chain"], data.sizes["draw"], -1) for v in data.values()],
        axis=2,
    )
    columns = columns[:, :, columns.std(axis=(0, 1)) > 1e-10]
    sample = dict_to_dataset({"x": columns})
    rhat = np.asarray(az.rhat(sample)["x"]) if columns.shape[0] > 1 else np.array(np.nan)
    return {"rhat": float(np.max(rhat)), "ess": float(np.min(np.asarray(az.ess(sample)["x"])))}
