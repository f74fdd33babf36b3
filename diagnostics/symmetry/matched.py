"""Draws with label switching and rotations undone, and the estimates that this allows."""

from __future__ import annotations

import warnings
from functools import cached_property

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sidebayes.guides.engines.problem.posterior import thin

from sidebayes.common.warnings import SideBayesWarning

from ..sites import TRUSTED_MATCH, has_labels
from ..tree import pooled_draws
from .orthogonal import align
from .relabelling import relabel

__all__ = ["MatchedDraws"]


class MatchedDraws:
    """Draws of a fit whose clusters and rotations agree; each part is computed when first used.

    Attributes
    ----------
    tree : DataTree
        Of the fit; it is not changed.
    """

    def __init__(self, tree: xr.DataTree) -> None:
        self.tree = tree

    @cached_property
    def relabelled(self) -> tuple[xr.DataTree, float]:
        """The tree with label switching undone, and the quality score of the matching."""
        if not has_labels(self.tree):
            return self.tree, 1.0
        tree, score = relabel(self.tree)
        if score < TRUSTED_MATCH:
            warnings.warn(
                f"clusters cannot be matched across draws (score {score:.2f}); estimates by cluster "
                "are taken from the draw of highest density, and only label-invariant results, such "
                "as same_cluster, describe the whole posterior",
                SideBayesWarning,
                stacklevel=2,
            )
        return tree, score

    @cached_property
    def aligned(self) -> tuple[xr.DataTree, float]:
        """The relabelled tree with rotations undone as well, and the lower of both quality scores."""
        tree, score = self.relabelled
        tree, turned = align(tree)
        if turned < TRUSTED_MATCH:
            warnings.warn(
                f"draws cannot be turned to agree (score {turned:.2f}); estimates of sites that are known "
                "up to an orthogonal transform are taken from the draw of highest density, and only "
                "what no transform changes, such as their inner products, describes the whole posterior",
                SideBayesWarning,
                stacklevel=2,
            )
        return tree, min(score, turned)

    @cached_property
    def params(self) -> dict[str, NDArray[np.float64]]:
        """Point estimate: the mode found, or the mean over relabelled and aligned draws."""
        tree, score = self.aligned
        values = {str(n): v.to_numpy() for n, v in tree["posterior"].data_vars.items()}
        if score >= TRUSTED_MATCH:
            return {name: value.mean(axis=(0, 1)) for name, value in values.items()}
        best = self._best_draw
        return {name: value[best] for name, value in values.items()}

    @property
    def pooled(self) -> dict[str, NDArray]:
        """Up to 200 relabelled draws, or the one of highest density where clusters do not match."""
        tree, score = self.relabelled
        if score >= TRUSTED_MATCH:
            return pooled_draws(tree)
        sites = tree["posterior"].data_vars.items()
        return {str(n): v.to_numpy()[self._best_draw][None] for n, v in sites}

    @property
    def responsibilities(self) -> NDArray[np.float64]:
        """Posterior probabilities of labels, shape (num_points, num_clusters), averaged over draws."""
        tree, score = self.relabelled
        prob = tree["responsibilities"]["prob"].to_numpy()
        if score >= TRUSTED_MATCH:
            return prob.mean(axis=(0, 1))
        chain, draw = self._best_draw
        kept = thin(self.tree["posterior"].sizes["draw"], prob.shape[1])
        return prob[chain, int(np.abs(kept - draw).argmin())]

    @property
    def _best_draw(self) -> tuple[int, int]:
        density = self.tree["sample_stats"]["lp"].to_numpy()
        chain, draw = np.unravel_index(np.argmax(density), density.shape)
        return int(chain), int(draw)
