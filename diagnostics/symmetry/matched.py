"""Draws with label switching and rotations undone, and the estimates that this allows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sidebayes.guides.engines.problem.posterior import thin

from sidebayes.common.warnings import warn_user

from ..sites import (
    TRUSTED_MATCH,
    circular_of,
    has_labels,
    is_ordered,
    numbered_sites,
    unit_rows_of,
    unwrapped,
    wrapped,
)
from ..tree import pooled_draws
from .orthogonal import align
from .relabelling import relabel

__all__ = ["MatchedDraws", "matched_draws", "mean_responsibilities"]


class MatchedDraws:
    """Draws of a fit whose clusters and rotations agree; each part is computed when first used.

    Attributes
    ----------
    tree : DataTree
        Of the fit; it is not changed.
    compute : callable
        ``compute(names, draws)`` gives deterministic sites at draws of the latent ones, shape (num_draws,
        ...); None where the model is not known.
    """

    def __init__(
        self,
        tree: xr.DataTree,
        compute: Callable[[Collection[str], Mapping[str, NDArray]], dict[str, NDArray] | None],
    ) -> None:
        self.tree, self.compute = tree, compute

    @cached_property
    def relabelled(self) -> tuple[xr.DataTree, float]:
        """The tree with label switching undone, and the quality score of the matching.

        Clusters that have an order, or are told apart by the model, need no match: averages are of them.
        """
        if not has_labels(self.tree):
            return self.tree, 1.0
        tree, score = relabel(self.tree)
        if is_ordered(self.tree):
            return tree, 1.0
        tree = self._computed_anew(tree)
        if score < TRUSTED_MATCH:
            warn_user(
                f"clusters cannot be matched across draws (score {score:.2f}); estimates by cluster "
                "are taken from the draw of highest density, and only label-invariant results, such "
                "as same_cluster, describe the whole posterior"
            )
        return tree, score

    def _computed_anew(self, tree: xr.DataTree) -> xr.DataTree:
        """A relabelled tree with the sites that depend on the numbers of clusters, by the new numbers."""
        order, names = tree["relabelling"]["permutation"].to_numpy(), numbered_sites(tree)
        if not names or (order == np.arange(order.shape[-1])).all():
            return tree
        posterior = tree["posterior"].to_dataset()
        size = order.shape[0] * order.shape[1]
        draws = {str(n): v.to_numpy().reshape(size, *v.shape[2:]) for n, v in posterior.items()}
        found = self.compute(names, draws)
        if found is None:
            warn_user(
                f"sites {', '.join(names)} depend on the numbers of the clusters, which were matched, and "
                "are NaN: the file does not hold the model that computes them; load the fit with its model"
            )
            found = {name: np.full(draws[name].shape, np.nan) for name in names}
        anew = {n: posterior[n].copy(data=v.reshape(posterior[n].shape)) for n, v in found.items()}
        out = tree.copy()
        out["posterior"] = xr.DataTree(posterior.assign(anew))
        return out

    @cached_property
    def aligned(self) -> tuple[xr.DataTree, float]:
        """The relabelled tree with rotations undone as well, and the lower of both quality scores."""
        tree, score = self.relabelled
        tree, turned = align(tree)
        if turned < TRUSTED_MATCH:
            warn_user(
                f"draws cannot be turned to agree (score {turned:.2f}); estimates of sites that are known "
                "up to an orthogonal transform are taken from the draw of highest density, and only "
                "what no transform changes, such as their inner products, describes the whole posterior"
            )
        return tree, min(score, turned)

    @cached_property
    def params(self) -> dict[str, NDArray[np.float64]]:
        """Point estimate: the mode found, or the mean over relabelled and aligned draws.

        Of angles, and of rows of length 1, it is the mean direction, which their sites can have.
        """
        tree, score = self.aligned
        if score >= TRUSTED_MATCH:
            means = {str(n): v.to_numpy().mean(axis=(0, 1)) for n, v in unwrapped(tree).items()}
            for name in unit_rows_of(tree):
                means[name] /= np.linalg.norm(means[name], axis=-1, keepdims=True)
            return means | {name: wrapped(means[name]) for name in circular_of(tree)}
        best = _best_draw(tree)
        return {str(n): v.to_numpy()[best] for n, v in tree["posterior"].data_vars.items()}


def matched_draws(tree: xr.DataTree, score: float) -> dict[str, NDArray]:
    """Up to 200 draws of a relabelled tree, or the one of highest density where clusters do not match."""
    if score >= TRUSTED_MATCH:
        return pooled_draws(tree)
    sites = tree["posterior"].data_vars.items()
    return {str(n): v.to_numpy()[_best_draw(tree)][None] for n, v in sites}


def mean_responsibilities(tree: xr.DataTree, score: float) -> NDArray[np.float64]:
    """Label probabilities, shape (num_points, num_clusters), averaged over draws of a relabelled tree.

    Those of the draw of highest density where clusters do not match.
    """
    prob = tree["responsibilities"]["prob"].to_numpy()
    if score >= TRUSTED_MATCH:
        return prob.mean(axis=(0, 1))
    chain, draw = _best_draw(tree)
    kept = thin(tree["posterior"].sizes["draw"], prob.shape[1])
    return prob[chain, int(np.abs(kept - draw).argmin())]


def _best_draw(tree: xr.DataTree) -> tuple[int, int]:
    """Chain and draw of highest density."""
    density = tree["sample_stats"]["lp"].to_numpy()
    chain, draw = np.unravel_index(np.argmax(density), density.shape)
    return int(chain), int(draw)
