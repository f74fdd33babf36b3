"""Functionals of a posterior that do not change when clusters are renumbered or dimensions turned."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np
import xarray as xr
from arviz_base import dict_to_dataset
from numpy.typing import NDArray
from scipy.special import entr
from scipy.stats import chi2

from ..sites import circular_of, has_labels, is_label_dim, judged_sites, role_of, symmetries_of
from .orthogonal import gram

__all__ = [
    "chains_stay_apart",
    "convergence",
    "effective_draws",
    "frozen_sites",
    "invariants",
    "is_still",
    "of_labels",
    "of_parameters",
    "same_cluster",
    "stored_draws",
]

_MOST_ENTRIES = 64
"""Largest size of a label-free parameter that counts as a functional."""

_AGREES = 1.05
"""R-hat of the halves of a chain below which the chain agrees with itself."""

_ENOUGH_TO_SPLIT = 100
"""Draws from which on the halves of a chain can be compared."""

_ENOUGH_TO_TELL = 25
"""Effective draws per chain from which on disagreement is distinguishable from chance."""


def stored_draws(tree: xr.DataTree) -> NDArray[np.int64]:
    """Positions, within a chain, of the draws whose responsibilities are stored."""
    stored = tree[_stored_group(tree)]["draw"].to_numpy()
    return np.searchsorted(tree["posterior"]["draw"].to_numpy(), stored)


def _stored_group(tree: xr.DataTree) -> str:
    return "responsibilities" if has_labels(tree) else "posterior"


def same_cluster(tree: xr.DataTree, pairs: NDArray) -> NDArray[np.float64]:
    """Probability, draw by draw, that pairs of points share a cluster.

    The labels of a pair are taken as independent given the parameters, which is exact for pairs in
    different connected sets.

    Parameters
    ----------
    tree : DataTree
    pairs : ndarray of int, shape (num_pairs, 2)

    Returns
    -------
    ndarray, shape (chain, stored, num_pairs)
    """
    return _same(tree["responsibilities"]["prob"].to_numpy(), pairs)


def invariants(tree: xr.DataTree, num_pairs: int = 20) -> xr.Dataset:
    """Label-invariant functionals at the draws whose responsibilities are stored.

    Parameters
    ----------
    tree : DataTree
        Of a fit.
    num_pairs : int
        Linked pairs, and as many fixed pairs spread over the data.

    Returns
    -------
    xarray.Dataset
        ``lp`` log joint density; ``sorted_weights`` (rank), largest first; small parameters
        without a cluster axis, such as ``flip_rate``; inner products of vectors that are known up to
        an orthogonal transform, such as ``gram_dimensions``; ``occupied``, the clusters expected to hold a
        point or more; ``entropy`` of the labels; ``same_linked`` and ``same_sampled`` (pair),
        probabilities that a pair shares a cluster.
    """
    keep = stored_draws(tree)
    by_draw = {name: values[:, keep] for name, values in _of_parameters(tree).items()}
    dims: dict[Hashable, Sequence[Hashable]] = {
        "sorted_weights": ("rank",),
        "same_linked": ("link",),
        "same_sampled": ("pair",),
    }
    return dict_to_dataset(
        by_draw | _of_labels(tree, num_pairs),
        dims=dims,
        coords={"draw": tree[_stored_group(tree)]["draw"].to_numpy()},
    )


def convergence(tree: xr.DataTree) -> dict[str, float]:
    """Worst R-hat and least bulk ESS over the label-invariant functionals that vary.

    Functionals of the parameters are judged on all draws. Those of the labels are known at the
    stored draws only. Where these are fewer they count in the ESS only if thinning does not limit it
    (less than a quarter of the stored draws), and in R-hat only where it is larger than chains that
    agree give by chance with so few draws, once in a thousand times. Draws that were resampled by weights
    are copies in random order, which no autocorrelation shows: the ESS is at most their effective size.

    Returns
    -------
    dict
        ``rhat`` (NaN with a single chain, inf where chains are stuck apart or a site never moved) and
        ``ess``; both NaN with fewer than four draws.
    """
    chains = tree["posterior"].sizes["chain"]
    if tree["posterior"].sizes["draw"] < 4 or tree[_stored_group(tree)].sizes["draw"] < 4:
        return {"rhat": np.nan, "ess": np.nan}
    if frozen_sites(tree):
        return {"rhat": np.inf if chains > 1 else np.nan, "ess": float(chains)}
    full = _columns(_of_parameters(tree))
    labels = _of_labels(tree, 20)
    stored = _columns(labels) if labels else full[..., :0]
    rhat, ess = _rhat(full), _ess(full)
    of_labels, thinned = _rhat(stored), _ess(stored)
    if tree[_stored_group(tree)].sizes["draw"] < tree["posterior"].sizes["draw"]:
        if len(of_labels):
            of_labels = of_labels[of_labels > _rhat_by_chance(thinned, full.shape[0])]
        thinned = thinned[thinned < np.prod(stored.shape[:2]) / 4]
    rhat, ess = np.concatenate([rhat, of_labels]), np.concatenate([ess, thinned])
    return {
        "rhat": float(rhat.max(initial=1.0)) if chains > 1 else np.nan,
        "ess": float(ess.min(initial=min(np.prod(full.shape[:2]), effective_draws(tree)))),
    }


def effective_draws(tree: xr.DataTree) -> float:
    """Effective size of the weights by which draws were resampled; infinite where they were not."""
    stated = tree["fit_info"].attrs if "fit_info" in tree else {}
    return float(stated.get("effective_draws", np.inf))


def chains_stay_apart(tree: xr.DataTree) -> bool:
    """Whether each chain agrees with itself, on the functional on which all chains disagree most.

    Longer chains do not help then: each is in a mode of its own.
    """
    columns = _columns(_of_parameters(tree))
    if columns.shape[0] < 2 or columns.shape[1] < _ENOUGH_TO_SPLIT or columns.shape[2] == 0:
        return False
    worst = columns[:, : columns.shape[1] // 2 * 2, int(np.argmax(_rhat(columns)))]
    halves = worst.reshape(len(worst), 2, -1, 1)
    return all(float(_rhat(pair).max()) < _AGREES for pair in halves)


def is_still(draws: NDArray) -> bool:
    """Whether no entry of a site varies at all, shape (chain, draw, ...)."""
    return bool((draws == draws[:1, :1]).all())


def frozen_sites(tree: xr.DataTree) -> list[str]:
    """Sites that were to be sampled, could vary, and are the same in all draws, as noted in the tree."""
    return json.loads(tree["fit_info"].attrs.get("frozen", "[]")) if "fit_info" in tree else []


def of_parameters(
    draws: Mapping[str, NDArray],
    dims: Mapping[str, Sequence[Hashable]],
    roles: Mapping[str, str],
    symmetries: Mapping[str, str],
    circular: Collection[str] = (),
) -> dict[str, NDArray]:
    """Functionals of the parameters: sorted weights, small sites without a cluster axis, `gram`.

    Parameters
    ----------
    draws : mapping of str to ndarray, shape (chain, draw, ...)
    dims : mapping of str to sequence of str
        Names of the axes of each site.
    roles : mapping of str to str
        What sites are; weights of the clusters are "mixing_weights".
    symmetries : mapping of str to str
        Axes that are known up to an orthogonal transform, by site.
    circular : collection of str
        Sites whose values are angles, of which cosine and sine count.

    Returns
    -------
    dict of ndarray, shape (chain, draw, ...)
    """
    values = {}
    for name, site in draws.items():
        if name in symmetries:
            continue
        if roles.get(name) == "mixing_weights":
            values["sorted_weights"] = -np.sort(-site, axis=-1)
        elif not any(is_label_dim(str(d)) for d in dims[name]) and site[0, 0].size <= _MOST_ENTRIES:
            if name in circular:
                values |= {f"cos {name}": np.cos(site), f"sin {name}": np.sin(site)}
            else:
                values[name] = site
    return values | gram(draws, dims, symmetries)


def of_labels(prob: NDArray, links: NDArray, num_pairs: int) -> dict[str, NDArray]:
    """Functionals of the labels: occupied clusters, entropy, agreement of pairs.

    Parameters
    ----------
    prob : ndarray, shape (chain, draw, num_points, num_clusters)
    links : ndarray of int, shape (num_links, 2)
    num_pairs : int
        See `invariants`.

    Returns
    -------
    dict of ndarray, shape (chain, draw, ...)
    """
    num_points = prob.shape[2]
    order = np.random.default_rng(0).permutation(num_points)
    values = {
        "occupied": (prob.sum(axis=2) >= 1.0).sum(axis=-1).astype(float),
        "entropy": entr(prob).sum(axis=(2, 3)),
    }
    if len(links):
        values["same_linked"] = _same(prob, links[:num_pairs])
    half = min(num_pairs, num_points // 2)
    if half:
        values["same_sampled"] = _same(prob, order[: 2 * half].reshape(-1, 2))
    return values


def _same(prob: NDArray, pairs: NDArray) -> NDArray[np.float64]:
    return np.einsum("cdpk,cdpk->cdp", prob[:, :, pairs[:, 0]], prob[:, :, pairs[:, 1]])


def _of_parameters(tree: xr.DataTree) -> dict[str, NDArray]:
    sites = judged_sites(tree)
    draws = {name: site.to_numpy() for name, site in sites.items()}
    dims = {name: site.dims for name, site in sites.items()}
    roles = {name: role_of(site) for name, site in sites.items()}
    found = of_parameters(draws, dims, roles, symmetries_of(tree), circular_of(tree))
    density = tree["sample_stats"]["lp"].to_numpy()
    known = {} if np.isnan(density).all() else {"lp": density}  # draws may come without a density
    return known | found


def _of_labels(tree: xr.DataTree, num_pairs: int) -> dict[str, NDArray]:
    if not has_labels(tree):
        return {}
    prob = tree["responsibilities"]["prob"].to_numpy()
    return of_labels(prob, tree["constant_data"]["links"].to_numpy(), num_pairs)


def _columns(values: dict[str, NDArray]) -> NDArray:
    """All functionals that vary, shape (chain, draw, functional)."""
    flat = [v.reshape(*v.shape[:2], -1) for v in values.values()]
    columns = np.concatenate(flat, axis=2)
    spread = columns.std(axis=(0, 1))
    return columns[..., spread > 1e-10 * (1.0 + np.abs(columns).max(axis=(0, 1)))]


def _stuck(columns: NDArray) -> NDArray[np.bool_]:
    """Functionals that vary between chains only."""
    return (columns.std(axis=1) <= 1e-12 * (1.0 + np.abs(columns).max(axis=1))).all(axis=0)


def _rhat(columns: NDArray) -> NDArray:
    from arviz_stats.base import array_stats

    if columns.shape[0] < 2 or columns.shape[2] == 0:
        return np.empty(0)
    stuck = _stuck(columns)
    worst = np.full(columns.shape[2], np.inf)
    if not stuck.all():
        with np.errstate(invalid="ignore"):  # of two values, equally often, distances do not vary
            worst[~stuck] = array_stats.rhat(columns[..., ~stuck], chain_axis=0, draw_axis=1)
    return np.where(np.isnan(worst), np.inf, worst)


def _rhat_by_chance(ess: NDArray, num_chains: int) -> NDArray:
    """R-hat that chains which agree exceed once in a thousand times; 1 with few effective draws.

    The means of the 2m half chains that R-hat compares scatter by the Monte Carlo error, so that their
    variance over that expected is chi-squared over its 2m - 1 degrees of freedom.
    """
    halves = 2 * num_chains
    scatter = chi2.ppf(0.999, halves - 1) / (halves - 1) * halves / ess
    # chains that are stuck apart have next to no effective draws, whatever each made
    return np.where(ess < _ENOUGH_TO_TELL * num_chains, 1.0, np.sqrt(1 + scatter))


def _ess(columns: NDArray) -> NDArray:
    from arviz_stats.base import array_stats

    if columns.shape[2] == 0:
        return np.empty(0)
    stuck = _stuck(columns)
    size = np.full(columns.shape[2], float(columns.shape[0]))
    if not stuck.all():
        size[~stuck] = array_stats.ess(columns[..., ~stuck], chain_axis=0, draw_axis=1)
    return size
