"""Reads draws that were made elsewhere, from any object or file that holds them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from arviz_base import from_dict
from numpy.typing import ArrayLike, NDArray

from sidebayes.common.arrays import real_array
from sidebayes.common.warnings import warn_user

__all__ = ["in_order_of", "is_draws", "made_by", "matched_by_name", "read_draws", "unnamed"]

_READ = ("posterior", "sample_stats", "log_likelihood", "observed_data")
"""Groups that are read."""

_CHAINS_PER_DRAW = 10
"""Number of chains per draw of a chain above which the two axes may have been swapped."""

_ALIKE = "thin all sites alike, so that each draw has a value of every site"
"""Remedy where numbers of draws differ."""


def is_draws(given: Any) -> bool:
    """Whether an object may hold draws: a tree, data set, path, ArviZ's older class, or NumPyro's MCMC."""
    kinds = xr.DataTree | xr.Dataset | str | os.PathLike
    return isinstance(given, kinds) or any(hasattr(given, n) for n in ("posterior", "get_samples"))


def made_by(tree: xr.DataTree) -> str:
    """Return what made the draws of a tree, according to its attributes."""
    attrs = {**tree["posterior"].attrs, **tree.attrs}
    return str(attrs.get("inference_library") or "elsewhere")


def read_draws(given: Any, name: str = "draws", computed: Collection[str] = ()) -> xr.DataTree:
    """Return draws as a tree in ArviZ's schema, with at least the group ``posterior``.

    Parameters
    ----------
    given : DataTree, Dataset, InferenceData, MCMC, mapping or path
        A data set or a mapping holds the draws by site, shape (chain, draw, ...). NumPyro's `MCMC` provides
        the draws of each chain. A path is that of a NetCDF file of ArviZ.
    name : str
        Name of the argument, for messages.
    computed : collection of str
        Deterministic sites, whose draws need not be finite.

    Raises
    ------
    TypeError, ValueError
        If it holds no draws, or a draw of another site is not finite.
    """
    if isinstance(given, str | os.PathLike):
        if not Path(given).is_file():
            raise ValueError(
                f"{name}: there is no file {os.fspath(given)}; give one that ArviZ wrote"
            )
        try:
            with xr.open_datatree(given, engine="h5netcdf") as opened:
                given = opened.load()
        except Exception as error:  # HDF5 and xarray have errors of many kinds
            raise ValueError(f"{name}: {os.fspath(given)} is no NetCDF file of ArviZ") from error
    if hasattr(given, "get_samples"):
        stats = given.get_extra_fields(group_by_chain=True)
        tree = from_dict({"posterior": _arrays(name, given.get_samples(group_by_chain=True))})
        if "diverging" in stats:
            found = xr.Dataset({"diverging": (("chain", "draw"), np.asarray(stats["diverging"]))})
            tree["sample_stats"] = xr.DataTree(found)
    elif isinstance(given, Mapping) and not isinstance(given, xr.Dataset | xr.DataTree):
        tree = from_dict({"posterior": _arrays(name, given)})
    elif isinstance(given, xr.Dataset):
        tree = xr.DataTree.from_dict({"posterior": given})
    elif hasattr(given, "posterior"):
        groups = {group: getattr(given, group) for group in _READ if hasattr(given, group)}
        tree = xr.DataTree.from_dict({n: _dataset(one) for n, one in groups.items()})
    else:
        raise TypeError(
            f"{name} is a {type(given).__name__}; pass a DataTree or Dataset of ArviZ, NumPyro's MCMC, a "
            "path, or a mapping of sites to arrays of shape (chain, draw, ...)"
        )
    posterior = tree["posterior"]
    if {"chain", "draw"} - set(posterior.dims) or not posterior.data_vars:
        raise ValueError(
            f"{name} has the axes {list(posterior.dims)}; expected draws by chain and draw"
        )
    if not posterior.sizes["chain"] * posterior.sizes["draw"]:
        raise ValueError(f"{name} holds no draws: its sizes are {dict(posterior.sizes)}")
    chains, number = posterior.sizes["chain"], posterior.sizes["draw"]
    if chains >= _CHAINS_PER_DRAW * number:
        warn_user(
            f"{name} holds {chains} chains with {number} draws each, since arrays are read as (chain, draw, "
            f"...); if these are {number} chains with {chains} draws each, swap the first two axes of "
            "every site, values.swapaxes(0, 1)"
        )
    tree["posterior"] = xr.DataTree(posterior.to_dataset().transpose("chain", "draw", ...))
    values = {str(n): real_array(_of(name, n), v) for n, v in posterior.data_vars.items()}
    bad = [n for n, v in values.items() if n not in computed and not np.isfinite(v).all()]
    if bad:
        cells = {n: values[n].reshape(*values[n].shape[:2], -1) for n in bad}
        none = {n: int(np.isnan(cell).all(axis=2).sum()) for n, cell in cells.items()}
        padded = all(none[n] == (~np.isfinite(cell)).any(axis=2).sum() for n, cell in cells.items())
        missing = ", ".join(f"{n} at {number}" for n, number in none.items())
        raise ValueError(
            f"{name} holds numbers that are not finite at the sites {bad}"
            + (
                f": they have no value at some draws ({missing} of {cells[bad[0]][..., 0].size}), as where "
                f"numbers of draws differ between sites; {_ALIKE}"
                if padded
                else ""
            )
        )
    return tree


def matched_by_name(
    draws: xr.Dataset,
    dims: Mapping[str, Sequence[str]],
    names: Mapping[str, ArrayLike],
) -> dict[str, NDArray]:
    """Return draws in the order that a fit has along each axis.

    Names of both are matched. Sites without names in the fit follow the sites with which they share an
    axis of the draws. Where either has no names, or numbers from 0 or 1, the order is assumed to be the same.

    Parameters
    ----------
    draws : Dataset of arrays of shape (chain, draw, ...)
    dims : mapping of str to sequence of str
        Axes of each site of the fit, without these two.
    names : mapping of str to array_like
        Names for each axis of the fit; axes that are missing are numbered from 0.

    Returns
    -------
    dict of ndarray
        Draws of all sites; those that the fit lacks are left as they are.

    Raises
    ------
    ValueError
        If the names along an axis are not those of the fit.
    """
    orders, by_axis = _orders(draws, dims, names, "of the fit")
    for site, axis, own, dim in _axes(draws, dims):
        if own in by_axis and _numbered(_texts(names.get(dim, ()))):
            orders.setdefault((site, axis), by_axis[own])
    found = {str(site): values.to_numpy() for site, values in draws.data_vars.items()}
    for (site, axis), order in orders.items():
        found[site] = found[site].take(order, axis=axis)
    return found


def in_order_of(
    draws: xr.Dataset, dims: Mapping[str, Sequence[str]], names: Mapping[str, ArrayLike]
) -> xr.Dataset:
    """Return draws in the order of other draws along axes of which both have names; see `matched_by_name`."""
    _, by_axis = _orders(draws, dims, names, "of the first draws")
    return draws.isel(by_axis)


def unnamed(
    draws: xr.Dataset, dims: Mapping[str, Sequence[str]], names: Mapping[str, ArrayLike]
) -> dict[str, list[str]]:
    """Return sites whose entries have names in the fit alone, and these names; see `matched_by_name`."""
    found = {}
    for site, _, own, dim in _axes(draws, dims):
        wanted = _texts(names.get(dim, ()))
        if len(wanted) < 2 or _numbered(wanted) or len(wanted) != draws.sizes[own]:
            continue
        if own not in draws.coords or _numbered(_texts(draws.coords[own])):
            found[site] = wanted.tolist()
    return found


def _axes(
    draws: xr.Dataset, dims: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, int, str, str]]:
    """Site, number of the axis, and its names in the draws and in the fit."""
    for site, values in draws.data_vars.items():
        pairs = zip(values.dims[2:], dims.get(str(site), ()), strict=False)
        for axis, (own, dim) in enumerate(pairs, 2):
            yield str(site), axis, str(own), str(dim)


def _orders(
    draws: xr.Dataset,
    dims: Mapping[str, Sequence[str]],
    names: Mapping[str, ArrayLike],
    whose: str,
) -> tuple[dict[tuple[str, int], NDArray[np.int64]], dict[str, NDArray[np.int64]]]:
    """Orders that match names, by site and number of the axis, and by name of the axis of the draws."""
    by_site, by_axis = {}, {}
    for site, axis, own, dim in _axes(draws, dims):
        order = _order(draws[site], own, dim, names, whose)
        if order is not None:
            by_site[site, axis] = by_axis[own] = order
    return by_site, by_axis


def _order(
    values: xr.DataArray, own: str, dim: str, names: Mapping[str, ArrayLike], whose: str
) -> NDArray[np.int64] | None:
    """Return places of the wanted names along an axis; None where the order is taken to be the same."""
    if own not in values.coords or values.coords[own].ndim != 1:
        return None
    size = values.sizes[own]
    given, numbers = _texts(values.coords[own]), np.arange(size).astype(str)
    wanted = _texts(names.get(dim, numbers))
    if len(wanted) != size or (given == wanted).all():
        return None
    if sorted(given) == sorted(wanted) and len(set(given)) == size:
        place = {name: number for number, name in enumerate(given)}
        return np.array([place[name] for name in wanted])
    if dim in names and sorted(wanted) != sorted(numbers) and not _numbered(given):
        raise ValueError(
            f"draws of {str(values.name)!r} are of {given[:5].tolist()} along {own!r}, those {whose} "
            f"of {wanted[:5].tolist()} along {dim!r}; give them the same names (assign_coords), or none "
            f"(drop_vars({own!r})) if their order is the same"
        )
    return None


def _texts(names: ArrayLike) -> NDArray[np.str_]:
    """Return names as text, of which each may be a tuple."""
    return np.array([str(name) for name in np.asarray(names)], str)


def _numbered(names: NDArray) -> bool:
    """Return whether names are numbers from 0 or from 1; also true of none."""
    return any(
        (names == np.arange(first, first + len(names)).astype(str)).all() for first in (0, 1)
    )


def _dataset(group: Any) -> xr.Dataset:
    return group.to_dataset() if hasattr(group, "to_dataset") else group


def _arrays(name: str, draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return arrays of the sites, whose first axes are chains and draws."""
    found = {str(n): real_array(_of(name, n), v) for n, v in draws.items()}
    for n, value in found.items():
        if value.ndim < 2 or 0 in value.shape[:2]:
            raise ValueError(
                f"{_of(name, n)} has shape {value.shape}; expected (chain, draw, ...), one of each at least; "
                "of NumPyro pass the MCMC itself, or get_samples(group_by_chain=True)"
            )
    sizes = {n: value.shape[:2] for n, value in found.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"{name} has other numbers of chains and draws at one site than at another: "
            f"{', '.join(f'{n} {chains} x {draws}' for n, (chains, draws) in sizes.items())}; {_ALIKE}"
        )
    return found


def _of(name: str, site: Any) -> str:
    return f"{name}[{str(site)!r}]"
