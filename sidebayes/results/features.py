"""Which features matter to the clusters of a fit, and values of features that are missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import minimize

from sidebayes.diagnostics.features import SalientFeatures, salient_features
from sidebayes.diagnostics.sites import labelled_table, site_of
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem.declared import collapsed_sites, declared_blocks
from sidebayes.guides.engines.problem.density import abstract_trace, trace_model
from sidebayes.guides.feature_saliency_rerun import em_at_held_saliencies
from sidebayes.models.blocks.mixtures.row_densities import row_log_densities
from sidebayes.models.blocks.saliency.feature_block import SalientFeatures as SalientBlock
from sidebayes.models.blocks.saliency.mixed_block import MixedFeatures

from .base.fit_base import FitBase

__all__ = ["Contrast", "contrast", "contrast_saliencies", "features", "imputed"]

_INSIDE = 1e-6
"""Distance that contrasted saliencies keep from zero and one."""


@dataclass(frozen=True)
class Contrast:
    """A mixture whose saliencies separate its clusters best.

    Attributes
    ----------
    saliency : Series
        Saliencies of `contrast_saliencies`, by feature.
    params : dict of ndarray
        All parameters, the others estimated again at these saliencies.
    responsibilities : ndarray, shape (num_points, num_clusters)
        Probabilities of the clusters of the rows under them.
    """

    saliency: pd.Series
    params: dict[str, NDArray]
    responsibilities: NDArray

    @property
    def labels(self) -> NDArray[np.int64]:
        """Most probable cluster of each row."""
        return self.responsibilities.argmax(axis=1)


def features(fit: FitBase) -> SalientFeatures:
    """Saliencies of the features, and the number of clusters, with their uncertainty.

    Returns
    -------
    SalientFeatures
        ``frame`` is a table with a row for each feature, and ``num_clusters`` holds probabilities.
        Draws under a proper prior give intervals; a mode has none.

    Raises
    ------
    ValueError
        If the model has no saliencies.
    """
    return salient_features(fit.tree)


def imputed(fit: FitBase) -> pd.DataFrame:
    r"""Imputed values for those missing from the data, with their uncertainty.

    The posterior of a missing value is a mixture of the clusters, weighted by the responsibilities
    of its row. Within a cluster it is a mixture of the relevant and the common density, weighted by
    the saliency of the feature. Its moments are exact given the parameters, and are combined over
    the stored draws by the law of total variance.

    Returns
    -------
    DataFrame
        One row per missing value: its ``row``, ``feature``, posterior ``mean`` and standard
        deviation ``sd``. For a category the last two are NaN; ``level`` is then the most probable
        level, in the coding of the data, and ``probability`` its probability.

    Raises
    ------
    ValueError
        If the model has no saliencies.
    """
    block, sites = _block(fit)
    x = labelled_table(fit.tree)
    row, column = np.nonzero(np.isnan(x))
    prob = fit.tree["responsibilities"]["prob"]
    draws = fit.tree["posterior"].to_dataset().sel(draw=prob["draw"])
    values = {role: draws[name].to_numpy() for role, name in sites.items()}
    share = prob.to_numpy()[:, :, row]  # (chain, draw, missing, cluster)
    relevant = values["saliency"][:, :, column]

    def mixed(within: NDArray, common: NDArray, where: Any, cells: Any) -> NDArray:
        """Average over clusters, relevance and draws of what a value has in each case."""
        own = relevant[..., where, *(None,) * (within.ndim - 4)]
        inside = np.einsum("cdmk,cdkm...->cdm...", share[:, :, where], within[:, :, :, cells])
        found: NDArray = (own * inside + (1 - own) * common[:, :, cells]).mean(axis=(0, 1))
        return found

    with fit.run.precision:
        within, others = (
            tuple(map(np.asarray, block.value_moments(values, common)))
            for common in ("", "common_")
        )
    centre = others[0].mean(axis=(0, 1))  # squares about zero would cancel far from it
    middle, square = (
        mixed(own, other, slice(None), column)
        for own, other in zip(_about(centre, *within), _about(centre, *others), strict=True)
    )
    names = (
        fit.tree["features"]["features"].to_numpy() if len(fit.tree["features"].coords) else None
    )
    frame = pd.DataFrame(
        {
            "row": row,
            "feature": column if names is None or names.shape != x.shape[1:] else names[column],
            "mean": centre[column] + middle,
            "sd": np.sqrt(np.maximum(square - middle**2, 0.0)),
        }
    )
    kinds = block.columns.kinds if isinstance(block, MixedFeatures) else ()
    for kind in (one for one in kinds if one.name == "category"):
        where = np.isin(column, kind.columns)
        cells = np.searchsorted(kind.columns, column[where])
        levels = mixed(values[kind.site], values[f"common_{kind.site}"], where, cells)
        likeliest = levels.argmax(axis=1)
        frame.loc[where, "level"] = (
            np.array(kind.values)[cells, likeliest] if kind.values else likeliest
        )
        frame.loc[where, "probability"] = levels.max(axis=1)
    return frame


def _about(centre: NDArray, mean: NDArray, variance: NDArray) -> tuple[NDArray, NDArray]:
    """First and second moments about a centre."""
    away = mean - centre
    return away, variance + away**2


def _block(fit: FitBase) -> tuple[SalientBlock | MixedFeatures, dict[str, str]]:
    """The block that has the saliencies, and its sites by role.

    Raises
    ------
    ValueError
        If the model has none.
    """
    salient_features(fit.tree)  # refuses models without
    with fit.run.precision:
        found = declared_blocks(abstract_trace(fit.run.problem))
    return next((b, s) for b, s in found if isinstance(b, SalientBlock | MixedFeatures))


def contrast_saliencies(fit: FitBase) -> pd.Series:
    r"""Saliencies that separate the fitted clusters best, with all other parameters held fixed.

    .. math:: \max_\rho \sum_i \log P(z_i = t_i \mid x_i, \rho), \qquad t_i = \arg\max_j P(z_i = j \mid x_i)

    The maximum is over saliencies between 1e-6 and 1 - 1e-6 (Law 2006, eq. 4.31). It is the better
    of two local maxima, found from the estimate and from the estimate clipped to [0.05, 0.95].
    Saliencies of zero stay zero, since such features have no densities in the clusters. The
    contrast between features grows. The criterion is not a likelihood: these saliencies describe
    which features separate the clusters, and not the data. Do not predict with them.

    Returns
    -------
    Series
        By feature.

    Raises
    ------
    ValueError
        If the model has no saliencies.
    """
    index = salient_features(fit.tree).frame.index
    site = _block(fit)[1]["saliency"]
    saliency = np.array(fit.params[site])
    if (saliency > 0).any():
        with fit.run.precision:
            saliency[saliency > 0] = _most_contrast(fit, site)
    return pd.Series(saliency, index=index, name="saliency")


def _most_contrast(fit: FitBase, site: str) -> NDArray[np.float64]:
    """Saliencies above zero that maximise the contrast."""
    saliency = np.asarray(fit.params[site])
    weights = np.asarray(fit.params[str(site_of(fit.tree, "mixing_weights"))])
    used, free = weights > 0, np.flatnonzero(saliency)
    problem, points = fit.run.problem, fit.tree["responsibilities"].sizes["points"]
    given = dict(fit.params), np.log(weights[used]), problem.args
    key = site, tuple(free.tolist()), tuple(used.tolist())
    build = partial(_contrast_at, site, free, used)
    start = saliency[free], jnp.zeros(points, int)
    program, _ = compiled("contrast", problem, key, build, *start, *given)
    _, _, labels = program(*start, *given)

    def at(rho: NDArray) -> tuple[float, NDArray]:
        value, slope, _ = program(rho, labels, *given)
        return float(value), np.asarray(slope, float)

    def from_within(edge: float) -> Any:
        start, bounds = (
            np.clip(saliency[free], edge, 1 - edge),
            [(_INSIDE, 1 - _INSIDE)] * len(free),
        )
        return minimize(at, start, jac=True, method="L-BFGS-B", bounds=bounds)

    found: NDArray[np.float64] = min(map(from_within, (_INSIDE, 0.05)), key=lambda one: one.fun).x
    return found


def _contrast_at(site: str, free: NDArray, used: NDArray, problem: Problem) -> Callable:
    """Program of the cost of labels at saliencies above zero, its slopes, and the best labels there."""

    def go(
        rho: jax.Array,
        labels: jax.Array,
        params: dict[str, jax.Array],
        log_weights: jax.Array,
        args: tuple,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        def log_share(rho: jax.Array) -> jax.Array:
            saliency = jnp.zeros(jnp.shape(params[site])).at[free].set(rho)
            trace = trace_model(problem, params | {site: saliency}, args)
            ((fn, value),) = collapsed_sites(trace).values()
            joint = row_log_densities(fn.components, value)[:, used] + log_weights
            return jax.nn.log_softmax(joint, axis=1)

        def cost(rho: jax.Array) -> jax.Array:
            return -jnp.take_along_axis(log_share(rho), labels[:, None], axis=1).sum()

        return *jax.value_and_grad(cost)(rho), log_share(rho).argmax(axis=1)

    return go


def contrast(fit: FitBase) -> Contrast:
    """Saliencies that separate the fitted clusters best, with all else estimated again at them.

    The saliencies are those of `contrast_saliencies`; EM is then run again for weights and
    densities (Law 2006, section 4.3.4). The clusters stay, and their members change little.

    Raises
    ------
    ValueError
        If the model has no saliencies, or was fitted with a proper prior of the structure.
    """
    saliency = contrast_saliencies(fit)
    with fit.run.precision:
        params, share = em_at_held_saliencies(fit.run.problem, fit.params, saliency.to_numpy())
    return Contrast(saliency, params, share)
