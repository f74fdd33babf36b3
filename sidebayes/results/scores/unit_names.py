"""Names of the units whose scores stand side by side, and whether these are many enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from numpyro.distributions import biject_to
from xarray import DataArray

from sidebayes.guides.engines.problem.density import abstract_trace, latent_sites
from sidebayes.guides.engines.problem.units import Layout, lay_out_units, observed_units
from sidebayes.models.blocks.side_information.links import Links

from ...common.magnitudes import counted
from ...common.warnings import warn_user
from ...runs.run import Run
from ...runs.stored import coordinates
from ..base.fit_base import FitBase

__all__ = [
    "by_unit",
    "num_observations",
    "observed_terms",
    "refuse_links_alone",
    "refuse_no_rows",
    "unit_names",
    "units_of_terms",
    "warn_of_few",
    "without_links",
]

_FEW = 5
"""Scores below which their sum and its standard error are chance."""


def units_of_terms(fit: FitBase) -> dict[str, NDArray[np.int64]]:
    """Unit of every element, by dimension, in the order of `unit_terms`; what is observed whole is a unit."""
    with fit.run.precision:
        layout = lay_out_units(fit.run.problem)
    found = {}
    for name in map(str, fit.tree["log_likelihood"].data_vars):
        dim = _dimension(layout, name)
        found[dim] = layout.unit.get(dim, np.zeros(1, np.int64))
    return found


def _dimension(layout: Layout, site: str) -> str:
    """Dimension of the units of an observed site; its name, or "whole", where it is observed as a whole."""
    return layout.site_dims[site] or (site if layout.dims else "whole")


def observed_terms(fit: FitBase) -> dict[str, NDArray[np.bool_]]:
    """Which units are of data, by dimension in the order of `unit_terms`; terms of others are zero."""
    with fit.run.precision:
        layout, observed = lay_out_units(fit.run.problem), observed_units(fit.run.problem)
    found: dict[str, NDArray] = {}
    for name in map(str, fit.tree["log_likelihood"].data_vars):
        dim = _dimension(layout, name)
        found[dim] = found.get(dim, False) | observed[name]
    if not any(own.any() for own in found.values()):
        raise ValueError(
            "the model observes nothing, since its mask hides every row; a mask is True where a row counts"
        )
    return found


def num_observations(fit: FitBase) -> int:
    """Number of units of data; of what is observed as a whole, such as a series, the number of entries."""
    told = observed_terms(fit)
    with fit.run.precision:
        layout, trace = lay_out_units(fit.run.problem), abstract_trace(fit.run.problem)
    entries: dict[str, int] = {}
    for name in map(str, fit.tree["log_likelihood"].data_vars):
        if layout.site_dims[name] is None:
            dim = _dimension(layout, name)
            entries[dim] = entries.get(dim, 0) + math.prod(np.shape(trace[name]["value"]))
    return sum(entries.get(dim, int(own.sum())) for dim, own in told.items())


def without_links(run: Run) -> Run:
    """The run on the same data, without any links."""
    bare = {n: v.take(np.zeros(0, int)) for n, v in run.data.items() if isinstance(v, Links)}
    return replace(run, data={**run.data, **bare}, unseen=True)


def refuse_no_rows(run: Run, layout: Layout) -> None:
    """Refuse scores of single rows where units are not rows, or sets of rows that links join."""
    groups = {role.name for role in run.signature.of_kind("groups")}
    in_groups = groups & set(layout.dims) or any(o is not None for o in layout.owners.values())
    if len(layout.dims) != 1 or in_groups:
        raise ValueError(
            f"{run.method} has units of {list(layout.dims)}, which are not rows that links join; use "
            "unit='set'"
        )


def refuse_links_alone(run: Run, terms: NDArray[np.float64]) -> None:
    """Refuse scores of rows where links are all that is observed; terms are those without any links."""
    if not terms.any():
        raise ValueError(
            f"{run.method} observes links alone, so that rows without their links have no score; use "
            "unit='set'"
        )


def unit_names(run: Run, unit: Mapping[str, NDArray[np.int64]]) -> NDArray[np.object_]:
    """Names of units: those of their elements, joined by "+", after the dimension where there are several.

    Elements are named as the data name them, such as subjects, else by their numbers, so that units of two
    fits have one name only if they are of the same elements.

    Parameters
    ----------
    run : Run
    unit : mapping of str to ndarray of int
        Unit of every element, by dimension, numbered from zero in each.
    """
    known, found = coordinates(run), []
    for dim, owner in unit.items():
        own = known.get(dim, ())
        elements = np.asarray(own if len(own) == len(owner) else np.arange(len(owner))).astype(str)
        ends = np.cumsum(np.bincount(owner))[:-1]
        members = np.split(elements[np.argsort(owner, kind="stable")], ends)
        before = f"{dim} " if len(unit) > 1 else ""
        found += [before + "+".join(one) for one in members]
    return np.array(found, dtype=object)


def by_unit(name: str, values: NDArray, names: NDArray[np.object_] | None) -> DataArray:
    """Values of units; without names where these are not known."""
    coords = None if names is None else {"unit": names}
    return DataArray(values, dims="unit", coords=coords, name=name)


def warn_of_few(fit: FitBase, num_units: int, num_rows: int, num_fitted: int) -> None:
    """Warn where scores are few, or where folds leave fewer rows than a point fit has free parameters.

    Parameters
    ----------
    fit : FitBase
        To all rows.
    num_units : int
        Number of scores.
    num_rows : int
    num_fitted : int
        Least number of rows that are fitted without a fold.
    """
    said = []
    if num_units < _FEW:
        said.append(
            f"the score and its standard error are of {counted(num_units, 'unit')}, too few to judge a model"
        )
    if fit.tree["posterior"].attrs["point_estimate"]:
        own = set(fit.run.sized_by_units)
        with fit.run.precision:
            sites = latent_sites(abstract_trace(fit.run.problem)).items()
            shapes = [
                biject_to(site["fn"].support).inverse_shape(site["value"].shape)
                for name, site in sites
                if name not in own
            ]
        number = sum(map(math.prod, shapes))
        if num_fitted < number and (said or num_rows >= number):
            said.append(
                f"fits without a fold have {counted(num_fitted, 'row')} for "
                f"{counted(number, 'free parameter')}, so that the score depends on the prior; take more "
                "folds (num_folds), or fewer parameters"
            )
    if said:
        warn_user("; ".join(said))
