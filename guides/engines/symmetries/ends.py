"""Ends of climbs that a symmetry of the model makes of one another are one mode."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from ..base import Problem
from ..modes import Modes, distinct_modes
from ..problem.declared import restricted_sites, site_dims
from .declared import site_symmetries
from .signs import one_sign

__all__ = ["distinct_ends"]


def distinct_ends(
    problem: Problem,
    value: NDArray,
    sound: NDArray[np.bool_],
    sites: Mapping[str, NDArray],
    starts: Mapping[str, NDArray] | None = None,
    names: Collection[str] | None = None,
) -> Modes:
    """The different modes among the ends of climbs, up to the symmetries that sites declare.

    Ends are brought to the signs and turned to the axes of the highest of them; see `distinct_modes` for
    the rest. Sites that describe a restricted posterior are not compared: they are no parameters, and
    discriminants are known only up to a common one, and hardly where clusters are far apart.

    Parameters
    ----------
    problem : Problem
    value : ndarray, shape (num_starts,)
    sound : ndarray of bool, shape (num_starts,)
        Ends that count.
    sites : mapping of str to ndarray, shape (num_starts, ...)
    starts : mapping of str to ndarray, shape (num_starts, ...), optional
        Where the climbs began.
    names : collection of str, optional
        Sites that are compared, by default all.
    """
    best = int(np.argmax(np.where(sound, value, -np.inf)))
    chains = {name: np.asarray(site)[None] for name, site in sites.items()}
    one = {name: site[0] for name, site in one_sign(problem, chains, (0, best))[0].items()}
    turned = _turned(problem, one, best)
    compared = set(turned if names is None else names) - set(restricted_sites(problem))
    kept = {name: site for name, site in turned.items() if name in compared}
    return distinct_modes(value, sound, kept, starts)


def _turned(problem: Problem, sites: Mapping[str, NDArray], best: int) -> dict[str, NDArray]:
    """Sites known up to an orthogonal transform, turned to those of one end (Schönemann 1966)."""
    dims, turned = site_dims(problem), dict(sites)
    found = {name: axis for name, axis in site_symmetries(problem).items() if name in sites}
    for axis in dict.fromkeys(found.values()):
        place = {n: dims[n].index(axis) - len(dims[n]) for n, own in found.items() if own == axis}
        last = {name: np.moveaxis(sites[name], at, -1) for name, at in place.items()}
        # clusters may have other numbers there
        steady = [name for name in last if "clusters" not in dims[name]] or list(last)
        cross = sum(
            np.einsum("nmq,ml->nql", rows, rows[best])
            for rows in (last[n].reshape(len(last[n]), -1, last[n].shape[-1]) for n in steady)
        )
        left, _, right = np.linalg.svd(np.nan_to_num(cross))
        for name, site in last.items():
            turn = (left @ right).reshape(len(site), *[1] * (site.ndim - 2), *cross.shape[1:])
            moved = (site[..., None, :] @ turn)[..., 0, :]
            turned[name] = np.moveaxis(moved, -1, place[name])
    return turned
