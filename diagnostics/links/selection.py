"""Selection of pairs of points to query next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import entr

from sidebayes.common.magnitudes import counted
from sidebayes.common.warnings import warn_user

from ..sites import tables_of

__all__ = ["information", "select_pairs"]

_CERTAIN = 1e-9
"""Information, in nats, that counts as none."""

_BLOCK = 2**22
"""Maximum size, in numbers, of arrays that are held while pairs are scored."""


def information(same: NDArray) -> NDArray[np.float64]:
    r"""Expected information, in nats, of learning whether pairs share a cluster.

    The answer is a function of the labels, so what it tells of labels and parameters together is its
    entropy under the posterior (Shewry and Wynn 1987, for any noiseless experiment),

    .. math:: H\Big[\tfrac1S \sum_s p_s\Big], \qquad H[p] = -p \log p - (1 - p) \log (1 - p).

    Parameters
    ----------
    same : ndarray, shape (num_draws, num_pairs)
        Probability of agreement at each draw.

    Returns
    -------
    ndarray, shape (num_pairs,)
    """
    prob = np.clip(same.mean(axis=0), 0.0, 1.0)
    return entr(prob) + entr(1 - prob)


def select_pairs(
    trees: Sequence[xr.DataTree],
    num_pairs: int,
    *,
    num_candidates: int = 20_000,
    seed: int = 0,
) -> pd.DataFrame:
    r"""Pairs whose answers are expected to be most informative, each once and none linked already.

    Candidates are all pairs if there are few; else half are drawn evenly, and half have an end drawn in
    proportion to the entropy of its label. From these a batch is taken greedily: every pick shrinks the
    information of the others by the share of their variance that it explains through the draws (a
    Gaussian view of the batch's joint entropy, by pivoted Cholesky steps), and a pair counts
    the less, the more often its points are in the batch already.

    Parameters
    ----------
    trees : sequence of DataTree
        Of fits to the same rows; their draws are pooled, each fit with the same weight.
    num_pairs : int
    num_candidates : int
    seed : int
        Of the candidates.

    Returns
    -------
    DataFrame
        Columns ``i``, ``j``, ``same`` (probability that they share a cluster) and ``information``
        (nats), in the order of choice.

    Raises
    ------
    ValueError
        If too few pairs are left to choose from, or the fits are of different rows, or of the same rows
        in another order.

    References
    ----------
    Shewry and Wynn (1987), J. Appl. Stat. 14, 165-170. Kirsch, van Amersfoort and Gal (2019),
    NeurIPS 32, for redundancy within a batch.
    """
    prob = _pooled(trees)
    num_points = prob.shape[1]
    linked = np.concatenate([tree["constant_data"]["links"].to_numpy() for tree in trees])
    pairs = _candidates(prob, num_candidates, np.random.default_rng(seed))
    pairs = pairs[~_answered(pairs, trees, linked.astype(int), num_points)]
    if len(pairs) < num_pairs:
        every = num_points * (num_points - 1) // 2
        more = ", or raise num_candidates" if num_candidates < every else ""
        verb = "is" if len(pairs) == 1 else "are"
        raise ValueError(
            f"num_pairs = {num_pairs}, but only {counted(len(pairs), 'candidate')} {verb} not linked yet; "
            f"ask for fewer{more}"
        )
    same = _same(prob, pairs)
    gain = information(same)
    if gain.max() <= _CERTAIN:
        warn_user(
            "every pair is certain to share a cluster, or not to, so that no answer is expected to tell "
            "anything; fit more clusters, or pass a fit with draws or several fits, which may disagree"
        )
    chosen = _greedy(same, gain, pairs, num_pairs, num_points)
    return pd.DataFrame(
        {
            "i": pairs[chosen, 0],
            "j": pairs[chosen, 1],
            "same": same[:, chosen].mean(axis=0),
            "information": gain[chosen],
        }
    )


def _pooled(trees: Sequence[xr.DataTree]) -> NDArray:
    """Label probabilities of draws, equally many from each fit, shape (num_draws, points, clusters)."""
    each = [t["responsibilities"]["prob"].to_numpy() for t in trees]
    each = [prob.reshape(-1, *prob.shape[2:]) for prob in each]
    if len({prob.shape[1] for prob in each}) > 1:
        raise ValueError(
            f"fits of {[prob.shape[1] for prob in each]} points cannot be pooled; fit the same rows"
        )
    for number, tree in enumerate(trees[1:], 1):
        _refuse_reordered(trees[0], tree, number, each[0].shape[1])
    size = max(len(prob) for prob in each)
    widest = max(prob.shape[2] for prob in each)
    spread = [prob[np.linspace(0, len(prob) - 1, size).round().astype(int)] for prob in each]
    return np.concatenate(
        [np.pad(prob, ((0, 0), (0, 0), (0, widest - prob.shape[2]))) for prob in spread]
    )


def _refuse_reordered(first: xr.DataTree, other: xr.DataTree, number: int, num_points: int) -> None:
    """Refuse rows in another order. Tables may differ otherwise, since fits may use other features."""
    tables = tables_of(other, "observed_data")
    for name, table in tables_of(first, "observed_data").items():
        one, two = (_row_bytes(t.to_numpy(), num_points) for t in (table, tables.get(name, table)))
        if np.array_equal(one, two):
            continue
        one, two = np.sort(one), np.sort(two)
        # two columns of few values may have the same ones by chance
        if np.array_equal(one, two) and len(np.unique(one)) > num_points / 2:
            raise ValueError(
                f"fit[{number}] has the rows of fit[0] in another order (of {name!r}), so that their pairs "
                "cannot be pooled; fit the same rows in the same order"
            )


def _row_bytes(table: NDArray, num_points: int) -> NDArray[np.bytes_]:
    """Each row as one value that can be sorted; nothing where rows are no points."""
    if not table.size or len(table) != num_points or table.dtype == object:
        return np.empty(0, "S1")
    rows = np.ascontiguousarray(table.reshape(num_points, -1))
    return rows.view(f"S{rows.shape[1] * rows.itemsize}").ravel()


def _candidates(prob: NDArray, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    num_points = prob.shape[1]
    if num_points * (num_points - 1) // 2 <= size:
        return np.stack(np.triu_indices(num_points, 1), axis=1)
    doubt = entr(prob.mean(axis=0)).sum(axis=1) + 1e-6
    pairs = rng.integers(num_points, size=(size, 2))
    pairs[: size // 2, 0] = rng.choice(num_points, size // 2, p=doubt / doubt.sum())
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    return np.unique(np.sort(pairs, axis=1), axis=0)


def _answered(
    pairs: NDArray, trees: Sequence[xr.DataTree], linked: NDArray, num_points: int
) -> NDArray[np.bool_]:
    """Return which pairs are linked, or within one chunklet of hard must-links."""
    weights = np.concatenate([tree["constant_data"]["link_weights"].to_numpy() for tree in trees])
    must = linked[np.isposinf(weights)]
    graph = coo_array((np.ones(len(must)), (must[:, 0], must[:, 1])), (num_points, num_points))
    chunklet = connected_components(graph, directed=False)[1]
    named = np.isin(pairs @ [num_points, 1], np.sort(linked, axis=1) @ [num_points, 1])
    return named | (chunklet[pairs[:, 0]] == chunklet[pairs[:, 1]])


def _same(prob: NDArray, pairs: NDArray) -> NDArray[np.float64]:
    """Probability that pairs share a cluster, shape (num_draws, num_pairs), in blocks of pairs."""
    step = max(1, _BLOCK // (prob.shape[0] * prob.shape[2]))
    parts = np.split(pairs, range(step, len(pairs), step))
    return np.concatenate(
        [np.einsum("dpk,dpk->dp", prob[:, p[:, 0]], prob[:, p[:, 1]]) for p in parts], axis=1
    )


def _greedy(
    same: NDArray, gain: NDArray, pairs: NDArray, num_pairs: int, num_points: int
) -> list[int]:
    """Repeatedly take the best pair, and condition the others on its noisy answer."""
    mean = same.mean(axis=0)
    left = same - mean
    noise = (same * (1 - same)).mean(axis=0)
    whole = np.maximum(mean * (1 - mean), np.finfo(float).tiny)
    used = np.zeros(num_points, int)
    free = np.ones(len(pairs), bool)
    chosen: list[int] = []
    for _ in range(num_pairs):
        share = ((left**2).mean(axis=0) + noise) / whole
        score = gain * share / (1 + used[pairs].sum(axis=1))
        best = int(np.where(free, score, -1.0).argmax())
        chosen.append(best)
        free[best] = False
        used[pairs[best]] += 1
        pick = left[:, best]
        variance = (pick**2).mean()
        if variance > 0:
            # with this factor, the covariance becomes C - c c' / (variance + noise)
            factor = (1 - np.sqrt(noise[best] / (variance + noise[best]))) / variance
            left = left - np.outer(pick, factor * (pick @ left) / len(pick))
    return chosen
