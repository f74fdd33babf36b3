"""What a fit says of effects: random ones that were integrated out, and fixed ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from .fit_base import FitBase
from .intervals import check_probability, normal_interval, total_moments

__all__ = ["coefficients", "effects"]


def effects(fit: FitBase, probability: float = 0.95) -> xr.Dataset:
    """Random effects that were integrated out: posterior means, deviations and intervals.

    Over draws of the parameters, the law of total variance puts both kinds of uncertainty
    together.

    Parameters
    ----------
    probability : float
        Of the normal intervals.

    Returns
    -------
    Dataset
        ``mean``, ``sd``, ``lower`` and ``upper``, by group and effect; coordinates name both
        where the data have names.

    Raises
    ------
    ValueError
        If the model has no random effects, or the probability is not between 0 and 1.
    """
    if "effects" not in fit.tree:
        raise ValueError(
            f"{fit.method} integrates no random effects out; it observes no RandomEffects"
        )
    check_probability(probability)
    group = fit.tree["effects"].to_dataset()
    mean, spread = total_moments(group, "effects")
    lower, upper = normal_interval(mean, spread, probability)
    found = {"mean": mean, "sd": spread, "lower": lower, "upper": upper}
    stored = group["effects"]
    axes = zip(("group", "effect"), stored.dims[2:], strict=True)
    coords = {axis: stored[dim].to_numpy() for axis, dim in axes}
    return xr.Dataset({n: (("group", "effect"), v) for n, v in found.items()}, coords)


def coefficients(fit: FitBase, probability: float = 0.95) -> pd.DataFrame:
    """Fixed effects: estimates, standard errors and intervals.

    Where they were integrated out, their posterior means and deviations: of REML, the
    generalised least-squares estimates. Over draws of the parameters, the law of total variance puts
    both kinds of uncertainty together.

    Parameters
    ----------
    probability : float
        Of the normal intervals.

    Returns
    -------
    DataFrame
        Columns ``estimate``, ``standard_error``, ``lower`` and ``upper``, a row for each term, and
        for each cluster and term of a mixture.

    Raises
    ------
    ValueError
        If the model has no fixed effects, or the probability is not between 0 and 1.
    """
    check_probability(probability)
    group = fit.tree["effects"].to_dataset() if "effects" in fit.tree else xr.Dataset()
    sites = fit.tree["posterior"].data_vars
    name = next((str(n) for n, v in sites.items() if v.dims[-1] == "terms"), None)
    if "coefficients" in group:
        site = group["coefficients"]
        estimate, error = total_moments(group, "coefficients")
    elif name is not None:
        site, estimate = sites[name], fit.params[name]
        keys = [label for label in fit.covariance.index if label.startswith(f"{name}[")]
        error = np.sqrt(np.diag(fit.covariance.loc[keys, keys]))
    else:
        raise ValueError(f"{fit.method} has no fixed effects; 'mixed_effects' has")
    terms = site[site.dims[-1]].to_numpy().tolist()
    index = pd.Index(terms)
    if estimate.ndim == 2:
        index = pd.MultiIndex.from_product([range(len(estimate)), terms], names=["cluster", "term"])
    estimate = estimate.ravel()
    lower, upper = normal_interval(estimate, error, probability)
    columns = {"estimate": estimate, "standard_error": error, "lower": lower, "upper": upper}
    return pd.DataFrame(columns, index=index)
