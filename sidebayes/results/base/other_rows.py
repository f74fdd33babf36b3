"""Whether the density of a unit depends on which other units are given, found by leaving half of them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sidebayes.diagnostics.tree import pooled_draws
from sidebayes.guides.engines.problem.declared import collapsed_sites, site_dims
from sidebayes.guides.engines.problem.density import abstract_trace
from sidebayes.guides.engines.problem.posterior import derive
from sidebayes.guides.engines.problem.units import Layout, join_units, lay_out_units

from ...common.warnings import warn_user
from ...runs.run import Run, same
from .fit_base import FitBase
from .new_data import check_new

__all__ = [
    "Reading",
    "compare_halves",
    "joined_units",
    "new_run",
    "refuse_reading_others",
    "sum_by_unit",
    "warn_of_reading_others",
]

_CLOSE = 100.0
"""Densities are equal up to this many roots of the rounding error."""


class Reading(NamedTuple):
    """Observed sites whose densities of units depend on other units, and the tables that they read there."""

    sites: list[str]
    tables: list[str]

    def __str__(self) -> str:
        through = (
            f"{self.tables} of other rows" if self.tables else "numbers that say places of rows"
        )
        return (
            f"the density of a row of {self.sites} depends on which other rows are given: {through} "
            "enter it, as in a mean over rows, a lag, or an index of rows"
        )


_REMEDY = "compute what joins rows before the fit, and pass it as data by row or as an option"


def joined_units(run: Run, layout: Layout) -> dict[str, NDArray[np.int64]]:
    """Unit of every element by dimension; elements that links join share one, tied labels or not.

    Raises
    ------
    ValueError
        If the data do not tell the units apart, so that none can be left out.
    """
    signature = run.signature
    named = {dim for role in signature.data for dim in (*role.dims, role.name)}
    whole = [s for s, dim in layout.site_dims.items() if dim is not None and dim not in named]
    if not layout.dims:
        raise ValueError(
            f"{run.method} observes {list(layout.site_dims)} as a whole, in one density of all rows, which "
            "does not fall apart into units to leave out; compare such fits by fit.log_evidence"
        )
    if whole:
        raise ValueError(
            f"{run.method} observes {whole} as a whole, which does not fall apart into units to leave "
            "out; name their rows by annotations, or by a plate of the same name"
        )
    joined = {dim: layout.unit[dim] for dim in layout.dims}
    for role in signature.data:
        value = run.data.get(role.name)
        dim = role.runs_over(run.data)
        if value is None or dim not in joined or role.kind not in ("links", "sets"):
            continue
        if role.kind == "links":
            pairs = value.pairs
        else:
            chains = [np.stack([np.full(len(one), one[0]), one], axis=1) for one in value]
            pairs = np.concatenate([np.zeros((0, 2), int), *chains])
        joined[dim] = join_units(joined[dim], pairs)
    return joined


def sum_by_unit(
    terms: Mapping[str, NDArray], layout: Layout, unit: Mapping[str, NDArray]
) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Add up terms of the log likelihood by unit.

    Parameters
    ----------
    terms : mapping of str to ndarray, shape (num_draws, num_units)
        By observed site.
    layout : Layout
        Of the data that they are of.
    unit : mapping of str to ndarray of int
        Unit of every element of these, by dimension, which may join some of the layout.

    Returns
    -------
    dict of (ndarray, ndarray)
        By dimension: numbers of its units, and their terms, shape (num_draws, num_units).
    """
    found = {}
    for dim, joined in unit.items():
        numbers, place = np.unique(joined, return_inverse=True)
        total = np.zeros((len(next(iter(terms.values()))), len(numbers)))
        for name, values in terms.items():
            if layout.site_dims[name] == dim:
                owner = np.zeros(values.shape[1], np.int64)
                owner[layout.unit[dim]] = place
                np.add.at(total.T, owner, values.T)
        if len(numbers):
            found[dim] = numbers, total
    return found


def new_run(fit: FitBase, data: tuple, named: Mapping[str, Any]) -> Run:
    """The run of a fit at new data, which are checked.

    Warns
    -----
    SideBayesWarning
        See `warn_of_reading_others`.
    """
    given = check_new(fit.run, data, named)
    run = fit.run.with_data(given)
    warn_of_reading_others(fit, given)
    return run


def warn_of_reading_others(fit: FitBase, given: Mapping[str, Any]) -> None:
    """Say once if densities of rows depend on which other rows are given, and these are other ones."""
    found, notes = _reading(fit), fit.run.problem.notes
    if found is None or "said of rows" in notes:
        return
    if not all(same(value, fit.run.data.get(name)) for name, value in given.items()):
        notes["said of rows"] = True
        warn_user(f"{fit.method}: {found}. It is taken from the new rows alone; {_REMEDY}")


def refuse_reading_others(fit: FitBase, asked: str) -> None:
    """Refuse fits to a part of the rows, where that would change the density of the others.

    Raises
    ------
    ValueError
        Naming the sites, and the data that they read.
    """
    found = _reading(fit)
    if found is not None:
        raise ValueError(
            f"{fit.method}: {found}, so that {asked} would score another model; {_REMEDY}, or use "
            "fit.loo(), which keeps all rows"
        )


def _reading(fit: FitBase) -> Reading | None:
    """See `compare_halves`; it is asked once for a fit, and not for the library's own methods."""
    if fit.run.card is not None:
        return None
    notes = fit.run.problem.notes
    if "reading" not in notes:
        with fit.run.precision:
            notes["reading"] = compare_halves(fit)
    found: Reading | None = notes["reading"]
    return found


def compare_halves(fit: FitBase) -> Reading | None:
    """Compare densities of half of the units with and without the others, at the first draw.

    Call it under `precision`. Units whose effects the distribution itself integrates out together are not
    compared.

    Returns
    -------
    Reading or None
        None if they are equal, or nothing can be left out.
    """
    run = fit.run.settled()
    layout, dims = lay_out_units(run.problem), site_dims(run.problem)
    sources = collapsed_sites(abstract_trace(run.problem)).values()
    try:
        unit = joined_units(run, layout)
    except ValueError:  # without units none can be left out
        return None
    masks = {dim: _half(own) for dim, own in unit.items()}
    alone = all(fn.has_independent_units for fn, _ in sources)
    if "log_likelihood" not in fit.tree or not alone or all(m.all() for m in masks.values()):
        return None
    stored = fit.tree["log_likelihood"].data_vars.items()
    whole = {str(name): terms.to_numpy()[0, :1] for name, terms in stored}
    lost = set(run.sized_by_units) - set(run.unit_sites)
    draw = {n: v[:1] for n, v in pooled_draws(fit.tree).items() if n not in lost}
    keep = run.masks(masks)
    cut = {name: _along(value, ("draw", *dims[name]), keep) for name, value in draw.items()}
    rest = replace(run.subset(masks), unseen=True)

    def moved(other: Run, at: Mapping[str, NDArray], own: Mapping[str, NDArray]) -> list[str]:
        """Observed sites whose densities of the kept units are others in another run."""
        try:
            terms = derive(other.problem, at).log_likelihood
        except Exception:  # a user's model raises whatever it raises on other rows
            return []
        now = lay_out_units(other.problem)
        found = []
        for name, dim in layout.site_dims.items():
            if dim in unit and name in terms:
                before = sum_by_unit({name: whole[name]}, layout, {dim: unit[dim]})[dim]
                numbers, after = sum_by_unit({name: terms[name]}, now, {dim: own[dim]})[dim]
                kept = np.isin(numbers, unit[dim][masks[dim]])
                if not _alike(before[1][:, numbers[kept]], after[:, kept], run.dtype):
                    found.append(name)
        return found

    sites = moved(rest, cut, {dim: own[masks[dim]] for dim, own in unit.items()})
    if not sites:
        return None
    tables = []
    for role in run.signature.of_kind("table"):
        value = run.data.get(role.name)
        if value is not None and keep.keys() & set(role.dims):
            other = _overwritten(value, role.dims, keep)
            if moved(replace(run, data={**run.data, role.name: other}), draw, unit):
                tables.append(role.name)
    return Reading(sites, tables)


def _half(unit: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mask of the elements of half of the units, at random; all where there is a single one."""
    number = int(unit.max(initial=-1)) + 1
    kept = np.random.default_rng(0).permutation(number) < (number + 1) // 2
    return kept[unit]


def _along(value: NDArray, dims: Sequence[str], keep: Mapping[str, NDArray]) -> NDArray:
    """Part of an array along the axes whose dimensions have masks."""
    for axis, dim in enumerate(dims):
        if dim in keep:
            value = value.compress(keep[dim], axis=axis)
    return value


def _overwritten(value: NDArray, dims: Sequence[str], keep: Mapping[str, NDArray]) -> NDArray:
    """A table in which the first kept row stands for those that are left out."""
    for axis, dim in enumerate(dims[: value.ndim]):
        if dim in keep:
            own = np.arange(len(keep[dim]))
            value = value.take(np.where(keep[dim], own, keep[dim].argmax()), axis=axis)
    return value


def _alike(one: NDArray, other: NDArray, dtype: str) -> bool:
    """Whether densities are equal up to rounding; those that were not finite may be anything."""
    close = _CLOSE * np.sqrt(np.finfo(dtype).eps)
    finite = np.isfinite(one)
    return np.allclose(one[finite], other[finite], rtol=close, atol=close)
