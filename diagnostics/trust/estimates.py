"""Tables of estimates: coefficients, variances of random effects and noise, other parameters."""

from __future__ import annotations

import warnings
from contextlib import suppress

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from sidebayes.common.warnings import SideBayesWarning

from ..fitted import AskedFit, Fitted
from ..sites import TRUSTED_MATCH, entry_names, is_label_dim, role_of

__all__ = ["estimate_tables", "interval", "number"]

_MOST_ENTRIES = 12
"""Maximum size of a site whose numbers a table shows."""

_DOUBLE = 15
"""Digits that a number of 64 bits has."""

_SHOWN_ELSEWHERE = ("coefficients", "factor", "deviation", "mixing_weights", "location", "spread")
"""Roles of sites that other tables or pictures show, or that only parametrise these."""
_COMMON = "common_"
"""Beginning of the roles of densities common to all clusters, of which pictures show what data tell."""


def estimate_tables(fit: AskedFit) -> dict[str, pd.DataFrame]:
    """Return tables of a fit by heading; none for a plain mixture, whose parameters are shown as a picture.

    Parameters
    ----------
    fit : Fit

    Returns
    -------
    dict of str to DataFrame
        Columns are ``estimate``, and where they are known ``standard_error``, ``lower`` and ``upper``, the
        ends of 95 % intervals; each number has a row with its name.
    """
    tables: dict[str, pd.DataFrame] = {}
    with suppress(ValueError), warnings.catch_warnings():  # of a model without fixed effects
        warnings.simplefilter("ignore", SideBayesWarning)  # of standard errors that are not known
        tables["Coefficients"] = _flat(fit.coefficients().dropna(axis=1, how="all"))
    sites = _sites(fit)
    spread = {name: site for name, site in sites.items() if _is_covariance(site)}
    if spread:
        noise = {name: site for name, site in sites.items() if role_of(site) == "noise"}
        rows = [_deviations(site) for site in spread.values()]
        rows += [_entries(name, site) for name, site in noise.items()]
        tables["Standard deviations and correlations"] = pd.concat(rows)
        sites = {name: site for name, site in sites.items() if name not in spread | noise}
    rest = [_entries(n, site) for n, site in sites.items() if site[0, 0].size <= _MOST_ENTRIES]
    if rest:
        tables["Other parameters" if tables else "Parameters"] = pd.concat(rest)
    return tables


def number(value: float, error: float = np.nan) -> str:
    """Format a number with a proper minus; empty where the value is not known.

    It has four digits, or more if its standard error is known and two digits of that need them.
    """
    if np.isnan(value):
        return ""
    digits = 4
    if error > 0 and np.isfinite(error) and np.isfinite(value) and value != 0:
        ahead = np.floor(np.log10(np.abs(value))) - np.floor(np.log10(error))
        digits = int(np.clip(ahead + 2, digits, _DOUBLE))
    return f"{value:.{digits}g}".replace("-", "−")


def interval(row: pd.Series) -> str:
    """Format the interval in a row of a table; empty where it is not known."""
    ends = [row.get(column, np.nan) for column in ("lower", "upper")]
    error = row.get("standard_error", np.nan)
    return "" if np.isnan(ends).any() else " to ".join(number(end, error) for end in ends)


def _sites(fit: Fitted) -> dict[str, xr.DataArray]:
    """Sites for tables, without latents of single units, and without sites whose draws cannot be averaged."""
    tree, score = fit.relabelled
    by_unit: tuple[str, ...] = ()
    with suppress(ValueError):  # a model that was not saved
        by_unit = fit.run.sized_by_units
    return {
        str(name): site
        for name, site in tree["posterior"].data_vars.items()
        if role_of(site) not in _SHOWN_ELSEWHERE
        and not role_of(site).startswith(_COMMON)
        and not role_of(site).startswith("correlation")  # the covariance of all effects has them
        and str(name) not in by_unit
        and (score >= TRUSTED_MATCH or not any(is_label_dim(str(dim)) for dim in site.dims))
    }


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    """Give coefficients of clusters a single name: ``years of cluster 0``."""
    if isinstance(table.index, pd.MultiIndex):
        return table.set_axis([f"{term} of cluster {k}" for k, term in table.index])
    return table


def _is_covariance(site: xr.DataArray) -> bool:
    return site.dims[-2:] == ("effects", "effects_1")


def _deviations(site: xr.DataArray) -> pd.DataFrame:
    """Return standard deviations, and then correlations, of every draw of a covariance matrix."""
    effects = [str(name) for name in site["effects"].to_numpy()]
    sd = np.sqrt(np.diagonal(site.to_numpy(), axis1=-2, axis2=-1))
    scale = np.where(sd > 0, sd, np.inf)
    correlation = site.to_numpy() / scale[..., :, None] / scale[..., None, :]
    one, other = np.tril_indices(len(effects), -1)
    pairs = [
        f"correlation of {effects[j]} and {effects[i]}" for i, j in zip(one, other, strict=True)
    ]
    own = [*(f"sd of {name}" for name in effects), *pairs]
    if site.ndim > 4:  # a matrix for each cluster
        own = [f"{name}, cluster {k}" for k in site[site.dims[2]].to_numpy() for name in own]
    return _summary(np.concatenate([sd, correlation[..., one, other]], axis=-1), own)


def _entries(name: str, site: xr.DataArray) -> pd.DataFrame:
    return _summary(site.to_numpy(), entry_names(name, site, site.dims[2:]))


def _summary(draws: NDArray, names: list[str]) -> pd.DataFrame:
    flat = draws.reshape(draws.shape[0] * draws.shape[1], -1).astype(float)
    table = pd.DataFrame({"estimate": flat.mean(axis=0)}, index=names)
    if len(flat) > 1:
        table["standard_error"] = flat.std(axis=0, ddof=1)
        table["lower"], table["upper"] = np.quantile(flat, [0.025, 0.975], axis=0)
    return table
