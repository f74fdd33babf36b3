"""Distinct modes at which climbs from several starts end, and those that draws did not reach."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MISSED_MODE",
    "PART_MISSING",
    "REMEMBERED",
    "WITHOUT_PRIOR",
    "Modes",
    "distinct_modes",
    "mode_stats",
    "modes_missed",
    "preferred_by_prior",
    "starts_that_reached",
]

MISSED_MODE = "No draw came near a mode that the search for a start found"
"""Beginning of a remark on draws that lack a part of the posterior."""

REMEMBERED = "Particles still remember where their last moves began"
"""Beginning of a remark on draws that may lack a part of the posterior."""

PART_MISSING = (MISSED_MODE, REMEMBERED)
"""Beginnings of remarks on draws whose own evidence is no more than a lower bound."""

WITHOUT_PRIOR = "lp_without_prior"
"""Statistic of a mode: its log joint density without the priors that were read off the data."""

_NEAR = 0.01
"""Largest difference in nats between ends at the same mode."""

_SAME_PLACE = 0.05
"""Largest difference of sites between ends at the same mode, in standard deviations of their entries."""

_ROUNDING = 1e-3
"""Minimum unit as a share of the spread of starts: ends at zero differ by rounding."""

_TINY = 1e-6
"""Unit of differences where all ends are at zero and starts are not known."""

_MATTERS = 4.0
"""Another mode that is lower than the highest by so many nats is taken to hold little mass."""

_MOST_ENTRIES = 1000
"""Maximum number of entries of a site for which draws are compared with modes."""


def starts_that_reached(objective: NDArray, height: float | None = None) -> int:
    """Number of starts that came within 0.01 nats of a height.

    Parameters
    ----------
    objective : ndarray, shape (num_restarts, num_steps)
        Not finite where a start had ended.
    height : float, optional
        By default the highest that any start reached.
    """
    if not objective.size:
        return 0
    best = np.where(np.isfinite(objective), objective, -np.inf).max(axis=1)
    return int(np.sum(np.abs(best - (best.max() if height is None else height)) < _NEAR))


class Modes(NamedTuple):
    """Distinct modes, the highest first.

    Attributes
    ----------
    height : ndarray, shape (num_modes,)
        Log density.
    sites : dict of ndarray, shape (num_modes, ...)
    num_starts : int
    """

    height: NDArray[np.float64]
    sites: dict[str, NDArray]
    num_starts: int

    def __str__(self) -> str:
        """Numbers of modes and starts: "4 distinct modes from 10 starts"."""
        number = len(self.height)
        modes = f"{number} distinct mode{'s' if number != 1 else ''}"
        return f"{modes} from {self.num_starts} start{'s' if self.num_starts != 1 else ''}"


def distinct_modes(
    value: NDArray,
    sound: NDArray[np.bool_],
    sites: Mapping[str, NDArray],
    starts: Mapping[str, NDArray] | None = None,
) -> Modes:
    """The different modes among the ends of climbs.

    Ends are the same mode if their heights are, and their sites however clusters are numbered: the
    entries of each, sorted.

    Parameters
    ----------
    value : ndarray, shape (num_starts,)
    sound : ndarray of bool, shape (num_starts,)
        Ends that count.
    sites : mapping of str to ndarray, shape (num_starts, ...)
    starts : mapping of str to ndarray, shape (num_starts, ...), optional
        Where the climbs began; their spread determines what is a small difference for a site.
    """
    scaled = [
        _sorted(site) / _unit(site[sound], (starts or {}).get(name))
        for name, site in sites.items()
        if site.size
    ]
    found: list[int] = []
    for row in [row for row in np.argsort(-value, kind="stable").tolist() if sound[row]]:
        if not any(
            abs(value[row] - value[other]) <= _NEAR
            and all(np.abs(place[row] - place[other]).max() <= _SAME_PLACE for place in scaled)
            for other in found
        ):
            found.append(row)
    return Modes(value[found], {n: site[found] for n, site in sites.items()}, len(value))


def _unit(ends: NDArray, starts: NDArray | None) -> float:
    """Return the unit in which differences between ends of a site are measured."""
    if not len(ends):
        return 1.0
    least = 0.0 if starts is None else _ROUNDING * float(np.std(starts))
    return float(ends.std() + 0.01 * np.abs(ends).mean()) + (least or _TINY)


def modes_missed(modes: Modes, draws: Mapping[str, NDArray]) -> float | None:
    """How far below the highest mode the best mode lies that no draw reached; None if there is none.

    Draws reached a mode if each entry of each site, sorted, lies within their range there. Modes that are
    lower than the highest by more than four nats are left out. The result is also None if the highest mode
    itself lies outside.

    Parameters
    ----------
    modes : Modes
    draws : mapping of str to ndarray, shape (chain, draw, ...)
    """
    reached = np.ones(len(modes.height), bool)
    for name, site in modes.sites.items():
        if 0 < site[0].size <= _MOST_ENTRIES:
            cloud = _sorted(draws[name].reshape(-1, *site.shape[1:]))
            place = _sorted(site)
            reached &= ((place >= cloud.min(axis=0)) & (place <= cloud.max(axis=0))).all(axis=1)
    below = modes.height[0] - modes.height
    missed = below[~reached & (below < _MATTERS)]
    return float(missed.min()) if reached[0] and missed.size else None


def preferred_by_prior(value: NDArray, prior: NDArray, best: int, rivals: Collection[int]) -> str:
    """Say where only a prior that was read off the data prefers one mode to another.

    Parameters
    ----------
    value, prior : ndarray, shape (num_starts,)
        Log joint densities where climbs ended, and the contribution of such priors to them.
    best : int
        The end that is kept.
    rivals : collection of int
        Ends of highest density with such priors and without.

    Returns
    -------
    str
        Continues a sentence; empty where one mode is the highest with and without these priors.
    """
    for rival in rivals:
        higher = value[rival] - value[best]
        likelier = higher - (prior[rival] - prior[best])
        if higher > _NEAR:
            return (
                "; the choice among modes leaves out the prior, which was read off the data: with it a mode "
                f"of log joint {value[rival]:.6g} is higher, and without it that mode is lower by "
                f"{-likelier:.3g}; engines that draw may end there, and rank='joint' chooses it"
            )
        if likelier > _NEAR:
            return (
                "; without the prior, which was read off the data, a mode of log joint "
                f"{value[rival]:.6g} is higher by {likelier:.3g}: only that prior prefers the one kept"
            )
    return ""


def mode_stats(value: NDArray, prior: NDArray) -> dict[str, NDArray]:
    """Log joint density of a mode and, where a prior was read off the data, the one without that prior."""
    stats = {"lp": value[None, None]}
    return stats | {WITHOUT_PRIOR: (value - prior)[None, None]} if prior else stats


def _sorted(site: NDArray) -> NDArray:
    """Return the entries of every member as a sorted row."""
    return np.sort(site.reshape(len(site), -1), axis=1)
