"""Which features matter to the clusters of a fit, and values of features that are missing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit

from sidebayes.diagnostics.features import SalientFeatures, salient_features
from sidebayes.diagnostics.sites import labelled_table, site_of
from sidebayes.models.blocks.mixtures.row_densities import row_log_densities
from sidebayes.models.blocks.saliency.passes import Salient
from sidebayes.models.blocks.saliency.salient_normal import SalientNormal

from .base.fit_base import FitBase

__all__ = ["contrast_saliencies", "features", "imputed"]

_INSIDE = 1e-6
"""Distance that contrasted saliencies keep from zero and one."""

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
        found: NDArray = relevant * inside + (1 - relevant) * common[..., column]
        return found

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


def contrast_saliencies(fit: FitBase) -> pd.Series:
    r"""Saliencies that tell the fitted clusters apart best, all other parameters held.

    .. math:: \max_\rho \sum_i \log P(z_i = t_i \mid x_i, \rho), \qquad t_i = \arg\max_j P(z_i = j \mid x_i)

    over saliencies between 1e-6 and 1 - 1e-6 (Law 2006, eq. 4.31), from those of the estimate. The
    contrast between features grows. There is no likelihood in it, so that these saliencies describe
    what the clusters are told apart by, not the data: do not predict with them.

    Returns
    -------
    Series
        By feature.

    Raises
    ------
    ValueError
        If the model has no saliencies.
    """
    table = salient_features(fit.tree).frame
    sites = [site_of(fit.tree, role) for role in (*_ROLES, "mixing_weights")]
    saliency, *rest, weights = (np.asarray(fit.params[str(name)]) for name in sites)
    used = weights > 0
    with jax.enable_x64(True):
        x = jnp.asarray(labelled_table(fit.tree))
        mean, variance, common_mean, common_variance = map(jnp.asarray, rest)

        def log_share(rho: jax.Array) -> jax.Array:
            own = Salient(mean[used], variance[used], common_mean, common_variance, rho)
            joint = row_log_densities(SalientNormal(own), x) + jnp.log(weights[used])
            return jax.nn.log_softmax(joint, axis=1)

        start = logit(np.clip(saliency, _INSIDE, 1 - _INSIDE))  # slopes are steep near zero and one
        labels = log_share(jax.nn.sigmoid(start)).argmax(axis=1)

        @jax.jit
        @jax.value_and_grad
        def cost(eta: jax.Array) -> jax.Array:
            share = log_share(jax.nn.sigmoid(eta))
            return -jnp.take_along_axis(share, labels[:, None], axis=1).sum()

        def at(eta: NDArray) -> tuple[float, NDArray]:
            value, slope = cost(jnp.asarray(eta))
            return float(value), np.asarray(slope, float)

        bounds = [(logit(_INSIDE), -logit(_INSIDE))] * len(start)
        found = minimize(at, start, jac=True, method="L-BFGS-B", bounds=bounds)
    return pd.Series(expit(found.x), index=table.index, name="saliency")
