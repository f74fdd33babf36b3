"""Effects of covariates of individuals on the coordinates of their shapes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from sidebayes.common.warnings import SideBayesWarning

from ..mixtures.data_units import data_units, fitted_statistic

__all__ = ["check_covariates", "covariate_effects"]

_WIDTH = 2.5
"""Prior standard deviation of what a covariate's standard deviation changes, in those of a coordinate."""

_SAME = 1e-9
"""Deviation from the mean of a group, in standard deviations of a column, below which it is constant."""


def covariate_effects(covariates: ArrayLike | None, coordinates: Array | None) -> Array | float:
    r"""Sample slopes; return what the covariates add to the coordinates of each individual.

    The site ``standard_slopes`` is the change per standard deviation of a covariate, normal about zero with
    2.5 standard deviations of the coordinate; ``slopes``, shape (num_terms, num_coordinates), is noted
    per unit. Covariates are centred at their means in the data that are fitted.

    Parameters
    ----------
    covariates : array_like, shape (num_subjects, num_terms), or None
    coordinates : Array, shape (num_subjects, num_coordinates), or None
        Of which the prior takes the units; it needs them where there are covariates.

    Returns
    -------
    Array, shape (num_subjects, num_coordinates), or 0.0 without covariates

    Raises
    ------
    ValueError
        If there are covariates and no coordinates, or a term is constant or a linear function of others.
    """
    if covariates is None:
        return 0.0
    if coordinates is None:
        raise ValueError(
            "covariates need x, whose spread is the unit of their effects; leave them out"
        )
    _refuse_collinear(covariates)
    table = jnp.asarray(covariates)
    mean, unit = data_units(table, table.shape[1])
    mean = fitted_statistic("covariate_mean", mean)
    unit = fitted_statistic("covariate_sd", unit)
    spread = fitted_statistic("coordinate_sd", data_units(coordinates, coordinates.shape[1])[1])
    prior = dist.Normal(0.0, _WIDTH * jnp.broadcast_to(spread, (table.shape[1], len(spread))))
    infer = {"event_dims": ["terms", "features"]}
    standard = numpyro.sample("standard_slopes", prior.to_event(2), infer=infer)
    slopes = numpyro.deterministic("slopes", standard / unit[:, None])
    return (table - mean) @ slopes


def _refuse_collinear(covariates: ArrayLike) -> None:
    """Refuse terms whose slopes the data do not tell."""
    if isinstance(covariates, Tracer):
        return
    table = np.asarray(covariates, float)
    centred = table - table.mean(axis=0)
    constant = np.flatnonzero(np.abs(centred).max(axis=0) <= 1e-9 * np.abs(table).max(axis=0))
    if len(constant):
        raise ValueError(
            f"covariates are constant in column {constant[0]}; leave it out: group means are the intercept"
        )
    rank = np.linalg.matrix_rank(centred / centred.std(axis=0), rtol=1e-9)
    if rank < table.shape[1]:
        raise ValueError(
            f"covariates have {table.shape[1]} columns, centred of rank {rank}: some are linear functions of "
            "others, and have no slopes of their own; leave them out (of all indicators of a factor, one)"
        )


def check_covariates(data: Mapping[str, Any]) -> None:
    """Warn of covariates whose effects cannot be told from differences between groups.

    These are columns that do not vary, alone or together, within the groups of the individuals whose group
    is known. Of as few individuals as there are columns nothing is said.

    Parameters
    ----------
    data : mapping
        Data of `hierarchical_shape` by name; looks at ``covariates`` and ``known``.

    Warns
    -----
    SideBayesWarning
        Naming the columns that are constant in each group.
    """
    if data.get("known") is None or data.get("covariates") is None:
        return
    table, values = np.asarray(data["covariates"], float), np.asarray(data["known"].values)
    if values.ndim == 2:
        values = np.where(values.sum(axis=1) == 1, values.argmax(axis=1), -1)
    members = values[values >= 0] == np.unique(values[values >= 0])[:, None]
    if len(members) < 2 or members.shape[1] - len(members) <= table.shape[1]:
        return
    table = table[values >= 0]
    spread = table.std(axis=0)
    table = table[:, spread > 0] / spread[spread > 0]
    within = table - members.T @ (members @ table / members.sum(axis=1, keepdims=True))
    if np.linalg.matrix_rank(within, tol=_SAME * np.sqrt(len(table))) == table.shape[1]:
        return
    still = np.flatnonzero(spread > 0)[np.abs(within).max(axis=0) < _SAME].tolist()
    which = (
        f"columns {still} are constant" if still else "some of their columns together do not vary"
    )
    warnings.warn(
        f"covariates repeat the known groups: {which} within each, so that their slopes and the differences "
        "between groups cannot be told apart, and the prior alone divides them; leave the columns out, or "
        "known",
        SideBayesWarning,
        stacklevel=5,
    )
