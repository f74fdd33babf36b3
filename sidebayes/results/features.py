"""Which features matter to the clusters of a fit, and values of features that are missing."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sidebayes.diagnostics.features import SalientFeatures, salient_features
from sidebayes.diagnostics.sites import labelled_table, site_of

from .base.fit_base import FitBase

__all__ = ["features", "imputed"]

_ROLES = ("saliency", "location", "spread", "common_location", "common_spread")


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


def imputed(fit: FitBase) -> pd.DataFrame:
    r"""Values that are missing from the data, with their uncertainty.

    A missing value has a mixture for its posterior: of the clusters by the responsibilities of its row,
    and in each of the relevant and the common density by the saliency of the feature. Its moments are
    exact given parameters, and averaged over the stored draws by the law of total variance.

    Returns
    -------
    DataFrame
        A row for each missing value: its ``row``, ``feature``, posterior ``mean`` and standard deviation
        ``sd``.

    Raises
    ------
    ValueError
        If the model has no saliencies.
    """
    salient_features(fit.tree)  # refuses models without
    x = labelled_table(fit.tree)
    row, column = np.nonzero(np.isnan(x))
    prob = fit.tree["responsibilities"]["prob"]
    draws = fit.tree["posterior"].to_dataset().sel(draw=prob["draw"])
    saliency, mean, variance, common_mean, common_variance = (
        draws[site_of(fit.tree, role)].to_numpy() for role in _ROLES
    )
    share = prob.to_numpy()[:, :, row]  # (chain, draw, missing, cluster)
    relevant = saliency[:, :, column]

    def moment(within: NDArray, common: NDArray) -> NDArray:
        inside: NDArray = np.einsum("cdmk,cdkm->cdm", share, within[..., column])
        mixed: NDArray = relevant * inside + (1 - relevant) * common[..., column]
        return mixed

    first = moment(mean, common_mean)
    second = moment(variance + mean**2, common_variance + common_mean**2)
    middle = first.mean(axis=(0, 1))
    spread = second.mean(axis=(0, 1)) - middle**2
    names = (
        fit.tree["features"]["features"].to_numpy() if len(fit.tree["features"].coords) else None
    )
    return pd.DataFrame(
        {
            "row": row,
            "feature": column if names is None or names.shape != x.shape[1:] else names[column],
            "mean": middle,
            "sd": np.sqrt(np.maximum(spread, 0.0)),
        }
    )
