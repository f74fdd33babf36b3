"""Ends of climbs near the edge of a support, where the map from coordinates to parameters is flat.

A site in an interval is moved in logits, a positive one in logarithms. Far out these coordinates hardly move
the parameter, so that the gradient in them vanishes whatever the density does. What it does is shown by
the sign of the slope a unit further out and further in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray

from ..base import Problem
from ..coordinates import Coordinates, coordinates_of, named_edges
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..plumbing.side_by_side import one_member, run_each
from ..problem.density import abstract_trace
from ..ridges import (
    Short,
    at_corner,
    flat_sites,
    own_sites,
    short_of_mode,
    short_of_summit,
    without_peak,
)

__all__ = ["Ends", "Points", "climbed_inside", "judged"]

_ROUNDS = 8
"""How often a climb that was lost is sent in again."""

_DEEPEST = -700.0, 34.0
"""Where the logistic map is about to be cut off; slopes are zero beyond, whatever the density."""

_FEW = 50
"""Coordinates that are probed one at a time; more are probed together."""

_PROBES = (-1.0, 1.0, 2.0)
"""Where slopes are looked at: steps inwards."""

_GROWS = 1.3
"""Ratio of two slopes a unit apart below which the slope does not vanish towards the edge. Near the edge of
a support a slope falls by e with every unit where the density is smooth in the parameter."""

_VANISHES = 2.0
"""The same ratio above which it does vanish."""

_STEEP = 1e-6
"""Slope, relative to the log density, above which a density is said to grow."""

_OUT_OF_SIGHT = 20.0
"""Coordinates further out than this are parameters of less than 2e-9; ends there are compared."""

_APART, _RISE = 0.1, 0.5
"""Median difference of neighbouring densities of ends, in nats, and their growth with every unit outwards."""

_ALL = 20
"""Coordinates up to which all ends at edges go on by cutting planes, not the highest alone."""

_ALIKE = 0.01
"""Nats up to which ends are of one height."""

_SHARPLY = 1e-4
"""The same at a corner or an edge, where climbs stop early."""

INSIDE, LOST, ON_EDGE, RUNAWAY = range(4)
"""The density peaks inside; rises inwards; has its mode on the edge; grows without bound towards it."""


@dataclass(frozen=True)
class Ends:
    """What the density does towards the edges near which climbs ended.

    Attributes
    ----------
    problem : Problem
    where : Coordinates
    points : ndarray, shape (num_ends, num_coordinates)
    kinds : ndarray of int, shape (num_ends, num_coordinates)
        ``INSIDE``, ``LOST``, ``ON_EDGE`` or ``RUNAWAY``.
    values : ndarray, shape (num_ends,)
    slopes : callable
        See `judged`.
    short : dict of int to Short
        Ends from which Newton's step promises a higher density; see `looking_ahead`.
    corners : dict of int to str
        Ends that arrived at a corner or an edge of the density, and what it is.
    on_edges : set of int
        Ends at edges of the density; it may rise along those that did not arrive.
    """

    problem: Problem
    where: Coordinates
    points: NDArray
    kinds: NDArray[np.int8]
    values: NDArray
    slopes: Callable[[NDArray, NDArray], NDArray]
    short: dict[int, Short] = field(default_factory=dict)
    corners: dict[int, str] = field(default_factory=dict)
    on_edges: frozenset[int] = frozenset()

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Which climbs have to go on, shape (num_ends,)."""
        return ((self.kinds == LOST) | self._around | (self._ahead != 0)).any(axis=1)

    @property
    def sent_in(self) -> NDArray:
        """Points from which they go on: halfway in, on the other side of a circle, or a step ahead."""
        moved = np.where(self.kinds == LOST, self.points / 2, self.points)
        return np.where(self._around, -self.points / 2, moved) + self._ahead

    def looking_ahead(
        self,
        gentle: NDArray[np.bool_],
        cut: NDArray[np.bool_],
        density: Callable[[NDArray], tuple[NDArray, NDArray]],
    ) -> Ends:
        """Have climbs in sites outside blocks go on where Newton's step promises a higher density.

        Climbs with large slopes, and those that were cut short, are looked at where they ended at a corner
        of the density, in the other coordinates. At edges they go on by cutting planes. Ends as high as one
        that has arrived are not looked at.

        Parameters
        ----------
        gentle : ndarray of bool, shape (num_ends, num_coordinates)
            Coordinates in which the slope is small.
        cut : ndarray of bool, shape (num_ends,)
            Climbs that stopped at their largest number of steps.
        density : callable
            Log densities and their gradients at rows of coordinates.
        """
        at_rest = gentle.all(axis=1) & ~cut
        sites, short = own_sites(self.problem), {}
        arrived: dict[int, str] = {}
        on_edges: set[int] = set()
        ends = np.flatnonzero(np.isfinite(self.values) & ~self.lost)
        for end in ends[np.argsort(-self.values[ends], kind="stable")].tolist():
            below = self.values[list(arrived)] - self.values[end]
            alike = below <= np.where(list(arrived.values()), _SHARPLY, _ALIKE)
            if alike.any():
                arrived[end] = list(arrived.values())[alike.argmax()]
                continue
            near, here = self._near(end, sites), self.points[end]
            corners, aslant = np.zeros(near.shape, bool), False
            if not at_rest[end]:
                corners, aslant = at_corner(near, here, self._slopes_at(end))
                asked = corners.any() or (aslant and (not on_edges or (near != "").sum() <= _ALL))
                on_edges |= {end} if aslant else set()
                if not asked or not (gentle[end] | (near != "")).all():
                    continue
            if aslant:
                found = short_of_summit(near, here, density)
            else:
                found = short_of_mode(np.where(corners, "", near), here, self._slopes_at(end))
            if found is None:
                arrived[end] = _place(near, corners, aslant)
            else:
                short[end] = found
        places = {end: place for end, place in arrived.items() if place}
        return replace(self, short=short, corners=places, on_edges=frozenset(on_edges))

    def pick(self, fresh: Any, state: Any) -> Any:
        """The states of climbs, fresh ones for those that are lost; arrays have an axis of ends in front."""

        def one(new: ArrayLike, old: ArrayLike) -> NDArray:
            return np.where(self.lost.reshape(-1, *[1] * (np.ndim(old) - 1)), new, old)

        return jax.tree.map(one, fresh, state)

    @property
    def _ahead(self) -> NDArray:
        moves = np.zeros_like(self.points)
        for end, found in self.short.items():
            moves[end] = found.move
        return moves

    @property
    def _around(self) -> NDArray[np.bool_]:
        return (self.kinds == ON_EDGE) & self.where.circular

    def best(self, value: NDArray, sound: NDArray[np.bool_]) -> int:
        """The sound end of highest density, one where the density does not grow without bound if any."""
        proper = sound & ~(self.kinds == RUNAWAY).any(axis=1)
        return int(np.argmax(np.where(proper if proper.any() else sound, value, -np.inf)))

    def remark(self, end: int, values: Mapping[str, NDArray]) -> tuple[bool, str]:
        """Whether an end may be a mode, and what is to be said of edges near it, empty if nothing.

        Parameters
        ----------
        end : int
        values : mapping of str to ndarray
            Values of the sites at that end.
        """
        row = self.kinds[end]
        if (row == RUNAWAY).any():
            return False, (
                f"the density grows without bound towards {self._named(row == RUNAWAY, values)}, so "
                "that there is no mode; take a prior that vanishes there, or draws ('nuts')"
            )
        if (row == LOST).any():
            return False, (
                f"it ended close to {self._named(row == LOST, values)}, from where the density rises; "
                "pass init="
            )
        said = self.short[end].said if end in self.short else ""
        doubt = said or self._without_peak(end)
        if doubt:
            return False, doubt
        edge = (row == ON_EDGE) & ~self.where.circular
        return True, f"the mode lies on a bound: {self._named(edge, values)}" if edge.any() else ""

    def _without_peak(self, end: int) -> str:
        """Say in which direction of sites under flat priors the density has no peak; see `without_peak`."""
        return without_peak(
            self._near(end, flat_sites(self.problem)),
            ~self.where.bounded,
            self.points,
            self.values,
            end,
            self._slopes_at(end),
        )

    def _near(self, end: int, sites: tuple[str, ...]) -> NDArray:
        """Sites of the coordinates that are not near an edge at an end; empty for other sites."""
        known = np.isin(self.where.sites, sites) & ~self.where.far_out(self.points[end])
        return np.where(known, self.where.sites, "")

    def _slopes_at(self, end: int) -> Callable[[NDArray], NDArray]:
        return lambda rows: self.slopes(np.full(len(rows), end), rows)

    def _named(self, marked: NDArray[np.bool_], values: Mapping[str, NDArray]) -> str:
        return named_edges(self.problem, self.where, marked, values)


def judged(
    problem: Problem,
    where: Coordinates,
    points: NDArray,
    values: NDArray,
    slopes: Callable[[NDArray, NDArray], NDArray],
) -> Ends:
    """See what the density does at the edges near which climbs ended.

    Parameters
    ----------
    problem : Problem
    where : Coordinates
    points : ndarray, shape (num_ends, num_coordinates)
    values : ndarray, shape (num_ends,)
        Log densities there; ends whose value is not finite are passed over.
    slopes : callable
        ``slopes(ends, points) -> gradients``, of the log density at rows of coordinates; `ends` says
        from which end each row was moved.
    """
    far = where.far_out(points) & np.isfinite(values)[:, None]
    kinds = np.full(points.shape, INSIDE, np.int8)
    groups = [(end, group) for end, row in enumerate(far) for group in _groups(row)]
    if groups:
        ends, moved = np.array([end for end, _ in groups]), np.array([group for _, group in groups])
        inwards = -np.sign(points[ends]) * moved
        within = np.where(where.bounded, np.clip(points[ends], *_DEEPEST), points[ends])
        rows = within + np.asarray(_PROBES)[:, None, None] * inwards
        found = slopes(np.tile(ends, len(_PROBES)), rows.reshape(-1, rows.shape[-1]))
        # positive where the density rises outwards
        outside, near, deep = -np.nan_to_num(found.reshape(rows.shape)) * inwards
        size = _STEEP * (1 + np.abs(values[ends]))[:, None]
        kind = np.where((near > size) & (deep < _GROWS * near), RUNAWAY, ON_EDGE)
        # where other coordinates are not quite at the mode, the last slope may have the wrong sign
        vanishes = (outside > -size) & (deep > _VANISHES * near)
        kind = np.where(((outside < 0) & ~vanishes) | (near == 0), INSIDE, kind)
        kind = np.where(near < 0, LOST, kind)
        for end, group, one in zip(ends, moved, kind, strict=True):
            kinds[end, group] = one[group]
        for spot in np.flatnonzero(far.any(axis=0)):
            alike = far[:, spot] & np.isin(kinds[:, spot], (INSIDE, RUNAWAY))
            alike &= np.abs(points[:, spot]) > _OUT_OF_SIGHT
            if _grows(np.abs(points[alike, spot]), values[alike]):
                kinds[alike, spot] = RUNAWAY
    return Ends(problem, where, points, kinds, values, slopes)


def _place(near: NDArray, corners: NDArray[np.bool_], aslant: bool) -> str:
    """Where slopes do not vanish at a mode; empty if they do."""
    sites = ", ".join(dict.fromkeys(near[(near != "") if aslant else corners].tolist()))
    return f"{'an edge' if aslant else 'a corner'} of the density in {sites}" if sites else ""


def _grows(distance: NDArray, values: NDArray) -> bool:
    """Whether densities of ends far out differ, and are the higher the further out they are.

    Where a scale and what it scales vanish together, the slope in either of them alone does not tell.
    """
    if len(values) < 2 or np.median(np.diff(np.sort(values))) < _APART or np.ptp(distance) == 0:
        return False
    rise, _ = np.polyfit(distance, values, 1)
    return bool(rise > _RISE)


def climbed_inside(
    climb: Callable[[Any], tuple[Any, Any]],
    state: Any,
    judge: Callable[[Any, Any], Ends],
    send: Callable[[Any, Ends], Any],
) -> tuple[Any, Any, Ends]:
    """Climb from several starts; those that are lost near an edge are sent in and climb again.

    Parameters
    ----------
    climb : callable
        ``climb(state) -> state, found``, to the end.
    state : object
    judge : callable
        ``judge(state, found) -> ends``.
    send : callable
        ``send(state, ends) -> state``, in which those that are lost begin anew at ``ends.sent_in``.

    Returns
    -------
    state, found, ends
    """
    for remaining in reversed(range(_ROUNDS)):
        state, found = climb(state)
        ends = judge(state, found)
        if not ends.lost.any():
            break
        if remaining:
            state = ends.pick(send(state, ends), state)
    return state, found, ends


class Points:
    """Sites that an engine moves numerically, beside others.

    Parameters
    ----------
    problem : Problem
    name : str
        Of the program; see `compiled`.
    config : Hashable
    build : callable
        Takes the problem without its data, returns ``slopes((point, member), args)``: a gradient at a vector
        of coordinates, and the values of the sites there. A member is what it needs to know of a climb.
    clock : Clock
        Counts what compiling takes.
    """

    def __init__(
        self,
        problem: Problem,
        name: str,
        config: Hashable,
        build: Callable,
        clock: Clock,
    ) -> None:
        self._problem, self._asked, self._clock = problem, (config, build), clock
        self._name = name

    def at(self, points: NDArray, members: Any) -> tuple[NDArray, dict[str, Array]]:
        """Gradients and values of the sites at rows of coordinates, one for each of `members`."""
        first = one_member((points, members), 0)
        asked = compiled(self._name, self._problem, *self._asked, first, self._problem.args)
        program = self._clock.counted(asked)
        return run_each(program, (points, members), self._problem.args)

    def judged(self, free: Mapping[str, ArrayLike], values: NDArray, members: Any) -> Ends:
        """What the density does near edges where climbs ended, at unconstrained values of the sites."""
        where = coordinates_of(
            abstract_trace(self._problem), {n: np.asarray(v)[0] for n, v in free.items()}
        )
        rows = [np.reshape(free[name], (len(values), -1)) for name in sorted(free)]

        def slopes(ends: NDArray, points: NDArray) -> NDArray:
            return self.at(points, jax.tree.map(lambda leaf: np.asarray(leaf)[ends], members))[0]

        points = np.concatenate([np.zeros((len(values), 0)), *rows], axis=1)
        return judged(self._problem, where, points, values, slopes)


def _groups(far: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Coordinates that are probed together; where these are few, each by itself."""
    spots = np.flatnonzero(far)
    if len(spots) > _FEW:
        return [far]
    return [np.arange(len(far)) == spot for spot in spots]
