"""Undo label switching: match the clusters of every draw to a consensus."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import rel_entr

from ..sites import is_label_dim, is_ordered
from .invariants import stored_draws

__all__ = ["relabel"]

_FLOOR = 1e-6
"""Least consensus probability, so that one confident draw cannot outweigh all others."""
_CLEAR_ODDS = 20.0
"""Odds of the best assignment to the second best above which it is clear."""
_LEAST_AGREEMENT = 0.85
"""Share of label probability that a well matched draw has in common with the consensus."""
_MOST_POINTS = 5000
"""Points used in matching."""
_MOST_ROUNDS = 20


def relabel(
    tree: xr.DataTree, label_sites: Mapping[str, int] | None = None
) -> tuple[xr.DataTree, float]:
    """Renumber the clusters of each draw so that all draws agree.

    Each draw's clusters are assigned one to one to those of a consensus at least Kullback-Leibler
    cost, and the consensus is the mean of the draws so renumbered (Stephens 2000, algorithm 2),
    starting from the draw of highest density. Every site with a cluster axis is permuted together.
    Draws without stored responsibilities are matched by all their label sites jointly, in units of
    their spread, to the nearest stored draw of their chain. Where clusters have an order, as sticks give
    them, none is renumbered: the score says whether draws agree as they are.

    Parameters
    ----------
    tree : DataTree
        Of a fit; it is not changed.
    label_sites : mapping of str to int, optional
        Sites that permute with the labels, and their axis not counting chain and draw. By default
        those with an axis named ``clusters``.

    Returns
    -------
    tree : DataTree
        A copy. Its group ``relabelling`` holds ``permutation`` (chain, draw, clusters): cluster
        ``k`` was ``permutation[k]`` before; ``log_odds`` of the best against the second best
        assignment and ``agreement`` with the consensus of each stored draw; and the attributes
        ``score``, ``clear`` (share of draws with a clear best) and ``residual_kl`` (nats per point).
    score : float
        Share of draws with a clear best assignment (odds of 20 or more) that leaves them in
        agreement with the consensus, in [0, 1]; one for a point estimate. Below about 0.8 trust
        only label-invariant functionals.

    References
    ----------
    Stephens (2000), JRSS B 62, 795-809, doi:10.1111/1467-9868.00265.
    """
    posterior = tree["posterior"].to_dataset()
    prob = tree["responsibilities"].to_dataset()["prob"]
    chains, stored, num_points, num_clusters = prob.shape
    axes = {} if is_ordered(tree) else _label_axes(posterior, label_sites)
    keep = stored_draws(tree)
    rows = np.linspace(0, num_points - 1, min(num_points, _MOST_POINTS)).astype(int)
    flat = prob.to_numpy()[:, :, rows].reshape(chains * stored, len(rows), num_clusters)
    density = tree["sample_stats"]["lp"].to_numpy()[:, keep]

    fixed = is_ordered(tree)
    order, consensus = _match(flat, int(density.argmax()), 0 if fixed else _MOST_ROUNDS)
    cost = _cost(flat, consensus)
    matched = np.take_along_axis(flat, order[:, None, :], axis=2)
    told = fixed or chains * stored == 1
    odds = np.full(len(flat), np.inf) if told else _log_odds(cost)
    agreement = np.minimum(matched, consensus).sum(axis=(1, 2)) / len(rows)
    residual = rel_entr(matched, np.maximum(consensus, _FLOOR))
    clear = odds >= np.log(_CLEAR_ODDS)
    score = float(np.mean(clear & (agreement >= _LEAST_AGREEMENT)))

    order = order.reshape(chains, stored, num_clusters)
    full = _extend(posterior, axes, order, keep)
    out = tree.copy()
    out["responsibilities"] = xr.DataTree(
        tree["responsibilities"].to_dataset().assign(prob=_take(prob, (3,), order))
    )
    permuted = {name: _take(posterior[name], axis, full) for name, axis in axes.items()}
    out["posterior"] = xr.DataTree(posterior.assign(permuted))
    shape = (chains, stored)
    out["relabelling"] = xr.DataTree(
        xr.Dataset(
            {
                "permutation": (("chain", "draw", "clusters"), full),
                "log_odds": (("chain", "stored"), odds.reshape(shape)),
                "agreement": (("chain", "stored"), agreement.reshape(shape)),
            },
            coords={"stored": prob["draw"].to_numpy()},
            attrs={
                "score": score,
                "clear": float(clear.mean()),
                "residual_kl": float(residual.sum(axis=(1, 2)).mean() / len(rows)),
            },
        )
    )
    return out, score


def _label_axes(
    posterior: xr.Dataset, label_sites: Mapping[str, int] | None
) -> dict[str, tuple[int, ...]]:
    """Cluster axes of every label site, chain and draw counted."""
    if label_sites is not None:
        unknown = [name for name in label_sites if name not in posterior]
        if unknown:
            raise ValueError(
                f"label_sites names {unknown}; the posterior has {sorted(map(str, posterior))}"
            )
        return {name: (axis + 2,) for name, axis in label_sites.items()}
    axes = {
        str(name): tuple(i for i, d in enumerate(site.dims) if is_label_dim(str(d)))
        for name, site in posterior.data_vars.items()
    }
    return {name: found for name, found in axes.items() if found}


def _match(prob: NDArray, pivot: int, max_rounds: int) -> tuple[NDArray, NDArray]:
    """Assign the clusters of all draws; alternate with the consensus until nothing changes.

    Returns the order (draw, cluster) and the consensus (point, cluster). Without rounds clusters stay as
    they are.
    """
    found = order = np.tile(np.arange(prob.shape[2]), (len(prob), 1))
    consensus = prob[pivot] if max_rounds else prob.mean(axis=0)
    for _ in range(max_rounds):
        found = _assign(_cost(prob, consensus))
        consensus = np.take_along_axis(prob, found[:, None, :], axis=2).mean(axis=0)
        if np.array_equal(found, order):
            break
        order = found
    return found, consensus


def _cost(prob: NDArray, consensus: NDArray) -> NDArray:
    """Cross-entropy of own cluster k under consensus cluster l, shape (draw, k, l)."""
    return -np.einsum("spk,pl->skl", prob, np.log(np.maximum(consensus, _FLOOR)), optimize=True)


def _assign(cost: NDArray) -> NDArray:
    """Best own cluster for every consensus cluster, shape (draw, cluster)."""
    from scipy.optimize import linear_sum_assignment

    order = np.empty(cost.shape[:2], int)
    for draw, table in enumerate(cost):
        own, target = linear_sum_assignment(table)
        order[draw, target] = own
    return order


def _log_odds(cost: NDArray) -> NDArray:
    """Gap between the best assignment and the best that differs from it, shape (draw,)."""
    from scipy.optimize import linear_sum_assignment

    gaps = np.full(len(cost), np.inf)
    if cost.shape[1] == 1:
        return gaps
    for draw, table in enumerate(cost):
        own, target = linear_sum_assignment(table)
        best = table[own, target].sum()
        for edge in zip(own, target, strict=True):
            other = table.copy()
            other[edge] += 1e12
            gaps[draw] = min(gaps[draw], other[linear_sum_assignment(other)].sum() - best)
    return gaps


def _extend(
    posterior: xr.Dataset, axes: dict[str, tuple[int, ...]], order: NDArray, keep: NDArray
) -> NDArray:
    """Order of every draw from the order of the stored ones, shape (chain, draw, cluster)."""
    num_draws = posterior.sizes["draw"]
    nearest = np.abs(np.arange(num_draws)[:, None] - keep).argmin(axis=1)
    full = order[:, nearest]
    rest = np.setdiff1d(np.arange(num_draws), keep)
    if not axes or not len(rest):
        return full
    parts = []
    for name, axis in axes.items():
        values = np.moveaxis(posterior[name].to_numpy(), axis[0], 2)
        parts.append(values.reshape(*values.shape[:3], -1))
    features = np.concatenate(parts, axis=3)
    known = np.take_along_axis(features[:, keep], order[..., None], axis=2)
    spread = known.std(axis=(0, 1)).mean(axis=0) + 1e-3 * features.std(axis=(0, 1, 2)) + 1e-12
    own = features[:, rest, :, None] / spread
    target = known[:, nearest[rest], None] / spread
    cost = ((own - target) ** 2).sum(axis=-1).reshape(-1, *order.shape[2:], order.shape[2])
    full[:, rest] = _assign(cost).reshape(len(full), len(rest), -1)
    return full


def _take(values: xr.DataArray, axes: tuple[int, ...], order: NDArray) -> xr.DataArray:
    if (order == np.arange(order.shape[-1])).all():
        return values  # without a copy, which may be large
    data = values.to_numpy()
    for axis in axes:
        shape = [1] * data.ndim
        shape[0], shape[1], shape[axis] = order.shape
        data = np.take_along_axis(data, order.reshape(shape), axis=axis)
    return values.copy(data=data)
