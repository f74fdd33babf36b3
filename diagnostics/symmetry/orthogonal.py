"""Draws that are determined up to an orthogonal transform: what it leaves alone, and alignment."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from ..sites import is_label_dim, symmetries_of

__all__ = ["align", "gram"]

_MOST_VECTORS = 10
"""Vectors whose inner products are functionals."""
_MOST_ROWS = 1000
"""Vectors used in alignment."""
_CLEAR_ODDS = 20.0
"""Odds of the best transform to the best of the other orientation above which it is clear."""
_MOST_ROUNDS = 50


def gram(
    draws: Mapping[str, NDArray],
    dims: Mapping[str, Sequence[Hashable]],
    symmetries: Mapping[str, str],
) -> dict[str, NDArray]:
    """Inner products of vectors along the axes that are known up to an orthogonal transform.

    Parameters
    ----------
    draws : mapping of str to ndarray, shape (chain, draw, ...)
    dims : mapping of str to sequence of str
        Names of the axes of each site.
    symmetries : mapping of str to str
        Such an axis, by site.

    Returns
    -------
    dict of ndarray, shape (chain, draw, product)
        Of up to ten vectors spread over the sites that share an axis, as ``gram_dimensions``.
    """
    found = {}
    for axis in dict.fromkeys(symmetries.values()):
        names = _steady(symmetries, dims, axis)
        if not names:
            continue
        most = max(_MOST_VECTORS // len(names), 1)
        some = [_spread(_vectors(draws[name], dims[name], axis), most) for name in names]
        vectors = np.concatenate(some, axis=2)
        products = np.einsum("cdmk,cdnk->cdmn", vectors, vectors)
        first, second = np.tril_indices(vectors.shape[2])
        found[f"gram_{axis}"] = products[:, :, first, second]
    return found


def align(tree: xr.DataTree) -> tuple[xr.DataTree, float]:
    r"""Turn the draws of sites that are known up to an orthogonal transform, so that they agree.

    All sites that share an axis are turned together. Each draw takes the orthogonal matrix Q that
    brings its vectors A nearest to those M of a consensus (Schönemann 1966),

    .. math:: \min_Q \|A Q - M\|_F: \qquad A^\top M = U S V^\top, \quad Q = U V^\top,

    and the consensus is the mean of the draws so turned (Gower 1975), starting from the draw of highest
    density, which stays as it is. Sites count in units of their size.

    Parameters
    ----------
    tree : DataTree
        Of a fit, its clusters renumbered where it has some; it is not changed.

    Returns
    -------
    tree : DataTree
        A copy; the tree itself where no axis is declared, or there is one draw. Its group ``alignment``
        holds, for an axis such as ``dimensions``, the matrices Q, ``turn_dimensions``, and
        ``log_odds_dimensions`` of the best against the best of the other orientation:
        :math:`2 s_{\min} / v` with the least singular value and the residual variance, residuals taken
        as normal. Its attribute is the ``score``.
    score : float
        Share of draws whose transform is clear (odds of 20 or more), in [0, 1], of the worst axis: low
        where a dimension holds nothing but noise. Below about 0.8 trust only functionals that no
        transform changes. Draws that differ by more than a transform show in the R-hat of these.

    References
    ----------
    Schönemann (1966), Psychometrika 31, 1-10, doi:10.1007/BF02289451. Gower (1975), Psychometrika 40,
    33-51, doi:10.1007/BF02291478.
    """
    posterior = tree["posterior"].to_dataset()
    symmetries = symmetries_of(tree)
    shape = posterior.sizes["chain"], posterior.sizes["draw"]
    if not symmetries or np.prod(shape) == 1:
        return tree, 1.0
    best = int(tree["sample_stats"]["lp"].to_numpy().argmax())
    dims = {name: posterior[name].dims for name in symmetries}
    moved: dict[str, xr.DataArray] = {}
    stored: dict[str, Any] = {}
    scores = []
    for axis in dict.fromkeys(symmetries.values()):
        every = [name for name, own in symmetries.items() if own == axis]
        guides = _steady(symmetries, dims, axis) or every
        vectors = [_vectors(posterior[name].to_numpy(), dims[name], axis) for name in guides]
        parts = [_spread(one, _MOST_ROWS) for one in vectors]
        rows = np.concatenate([part / np.sqrt((part**2).mean() + 1e-300) for part in parts], axis=2)
        turn, odds = _match(rows.reshape(-1, *rows.shape[2:]), best)
        turn = turn.reshape(*shape, *turn.shape[1:])
        for name in every:
            moved[name] = _turned(posterior[name], axis, turn)
        scores.append(float((odds >= np.log(_CLEAR_ODDS)).mean()))
        stored[f"turn_{axis}"] = (("chain", "draw", axis, f"{axis}_turned"), turn)
        stored[f"log_odds_{axis}"] = (("chain", "draw"), odds.reshape(shape))
    out = tree.copy()
    out["posterior"] = xr.DataTree(posterior.assign(moved))
    out["alignment"] = xr.DataTree(xr.Dataset(stored, attrs={"score": min(scores)}))
    return out, min(scores)


def _steady(
    symmetries: Mapping[str, str], dims: Mapping[str, Sequence[Hashable]], axis: str
) -> list[str]:
    """Sites that share an axis, without those of clusters, which permute as well."""
    return [
        name
        for name, own in symmetries.items()
        if own == axis and not any(is_label_dim(str(dim)) for dim in dims[name])
    ]


def _vectors(values: NDArray, dims: Sequence[Hashable], axis: str) -> NDArray:
    """Vectors along an axis, shape (chain, draw, vector, entry)."""
    last = np.moveaxis(values, list(dims).index(axis) - len(dims), -1)
    return last.reshape(*last.shape[:2], -1, last.shape[-1])


def _spread(vectors: NDArray, most: int) -> NDArray:
    """At most some vectors, evenly spread."""
    number = vectors.shape[2]
    return vectors[:, :, np.linspace(0, number - 1, min(number, most)).astype(int)]


def _match(rows: NDArray, best: int) -> tuple[NDArray, NDArray]:
    """Orthogonal matrices and log odds of all draws; rows are (draw, vector, entry)."""
    target = rows[best]
    for _ in range(_MOST_ROUNDS):
        turn, _ = _procrustes(rows, target)
        mean = np.einsum("smk,skl->ml", rows, turn) / len(rows)
        still = np.abs(mean - target).max() <= 1e-6 * np.abs(mean).max()
        target = mean
        if still:
            break
    turn, values = _procrustes(rows, target)
    turn, target = turn @ turn[best].T, target @ turn[best].T
    variance = ((rows @ turn - target) ** 2).mean()
    return turn, 2 * values[:, -1] / max(variance, np.finfo(float).tiny)


def _procrustes(rows: NDArray, target: NDArray) -> tuple[NDArray, NDArray]:
    """Best orthogonal matrices, and the singular values of the products."""
    left, values, right = np.linalg.svd(np.einsum("smk,ml->skl", rows, target))
    return left @ right, values


def _turned(values: xr.DataArray, axis: str, turn: NDArray) -> xr.DataArray:
    place = values.dims.index(axis)
    last: Any = np.moveaxis(values.to_numpy(), place, -1)
    flat = last.reshape(*last.shape[:2], -1, last.shape[-1]) @ turn
    return values.copy(data=np.moveaxis(flat.reshape(last.shape), -1, place))
