"""Which features matter to the clusters of a fit."""

from __future__ import annotations

from sidebayes.diagnostics.features import SalientFeatures, salient_features

from .base.fit_base import FitBase

__all__ = ["features"]


def features(fit: FitBase) -> SalientFeatures:
    """Saliencies of the features with their uncertainty, and of the number of clusters.

    Returns
    -------
    SalientFeatures
        A table in ``frame``, a row for each feature, and probabilities in ``num_clusters``. Draws of a
        proper prior give intervals, a mode has none.

    Raises
    ------
    ValueError
        If the model has no saliencies.
    """
    return salient_features(fit.tree)
