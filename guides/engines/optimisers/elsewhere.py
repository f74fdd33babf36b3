"""A search for posterior mass that draws of a small model do not cover."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from numpyro.distributions import constraints
from scipy.stats import chi2, multivariate_t

from sidebayes.common.magnitudes import shown

from ..base import Problem
from ..modes import Modes
from ..plumbing.indicators import plain_support
from ..plumbing.programs import compiled
from ..problem.density import (
    abstract_trace,
    free_shapes,
    latent_sites,
    place,
    unconstrained_start,
)
from ..problem.importance import flat_density
from ..problem.prior_draws import prior_draws
from .dense_climbs import climb_all

__all__ = ["Elsewhere", "log_volume", "mass_elsewhere"]

_MOST_COORDINATES = 12
"""Maximum number of coordinates for which a search from random points can find a narrow mode."""
_STARTS = 1024, 16384
"""Minimum and maximum number of random points; no search is made where `_WORK` allows fewer. The number is at
most the minimum doubled with each coordinate."""
_WORK = 2e7
"""Maximum product of points and entries of the data."""
_CLIMBS = 64
"""Number of points from which climbs start."""
_STEPS = 60
"""Maximum number of steps of a climb."""
_WIDER = 3.0
"""Standard deviation of half of the points, in standard deviations of the draws."""
_DRAWS = 2000
"""Maximum number of draws that are used."""
_PER_COORDINATE = 10
"""Minimum number of draws per coordinate for an estimate of their covariance."""
_PIECE, _AT_ONCE = 1024, 16
"""Number of points per call of a program, and of points whose gradients are computed side by side."""
_MODES = 10
"""Maximum number of ends of climbs, the highest distinct ones, whose mass is computed."""
_NEAR = 0.01
"""Largest difference in nats between ends that may be the same mode."""
_SAME_PLACE = 0.05
"""Largest distance, relative to one plus the size of a coordinate, between ends at the same mode."""
_AT_REST = 0.5
"""Largest gain, in nats, of a step from the end of a climb to its peak for the climb to have converged."""
_FLAT = 1e-8
"""Smallest curvature of a mode, relative to the largest."""
_POINTS, _FREEDOM = 512, 5
"""Number of points from which a mass is computed, and degrees of freedom of their t distribution."""
_EFFECTIVE = 50
"""Minimum effective number of these points for a mass to be known."""
_INSIDE = 0.99
"""Mass of a normal distribution inside the ellipsoid that counts as a mode."""
_MATTERS = 0.05
"""Share of the posterior that draws may not miss."""
_MISSED = 0.2
"""Draws missed a mode if fewer are in it than this multiple of its share."""
_TAILS = 0.01, 0.99
"""Quantiles at which draws are cut off before their covariance is taken."""
_SINGULAR = 1e-12
"""Variance, relative to the largest, of directions in which draws cannot vary."""


class Elsewhere(NamedTuple):
    """A mode that draws did not reach.

    Attributes
    ----------
    share : float
        Share of the posterior that the mode holds, as far as the mode and the draws cover it.
    log_mass, own_log_mass : float
        Log mass of the mode, and upper bound on that of the draws; not normalised.
    starts : int
        Number of points with which the search began.
    sites : dict of ndarray
        Latent sites at its peak.
    turned : tuple of str
        Sites whose signs, turned together, bring it to the draws at the same density; empty if none do.
    """

    share: float
    log_mass: float
    own_log_mass: float
    starts: int
    sites: dict[str, NDArray]
    turned: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return what was found, and what to do."""
        place = ", ".join(f"{name} = {_text(value)}" for name, value in self.sites.items())
        found = (
            f"a search from {self.starts} points found a mode that draws missed, and that holds about "
            f"{self.share:.0%} of the posterior (log mass {self.log_mass:.1f}, that of the draws at most "
            f"{self.own_log_mass:.1f}); it lies at {place}"
        )
        if not self.turned:
            return f"{found}: run another engine that starts there (init=), and do not trust this one alone"
        return (
            f"{found}. It is a mirror image of the draws, by the signs of {' and '.join(self.turned)}: "
            "declare there that signs along an axis may change, "
            'infer={"symmetry": {AXIS: "signs"}}, or give a prior of one sign'
        )


class _Mode(NamedTuple):
    """Peak of a mode, and the Cholesky factor of the curvature there."""

    point: NDArray
    root: NDArray


def mass_elsewhere(
    problem: Problem, draws: Mapping[str, NDArray], seed: int, modes: Modes | None = None
) -> Elsewhere | None:
    r"""Find a mode that holds at least a twentieth of the posterior, and that draws did not reach.

    Points are drawn from the prior, and from a wide region about the draws. Climbs start from the points
    where a Newton step by the covariance of the draws leads furthest from them, from those of highest
    density, and from `modes`. For every end that is a peak, the mass inside its ellipsoid E is computed by
    importance weights,

    .. math:: Z_E = \int_E p(x, \theta)\, d\theta,

    and compared with the maximum that the draws can hold; see `log_volume`. Where none or hardly any of the
    draws are in E, they missed it.

    The result is None, too, where no search is made: with more than twelve coordinates, large data, or few
    draws.

    Parameters
    ----------
    problem : Problem
        Its clusters and signs, if it has any, must be distinguishable.
    draws : mapping of str to ndarray, shape (chain, draw, ...)
        Values of the latent sites; other sites are ignored.
    seed : int
    modes : Modes, optional
        Modes that earlier climbs have found.
    """
    shapes = free_shapes(problem)
    width = sum(math.prod(free.shape) for free in shapes.values())
    latent = latent_sites(abstract_trace(problem))
    entries = sum(np.size(leaf) for leaf in jax.tree.leaves(problem.args))
    number = min(_STARTS[1], _STARTS[0] * 2**width, int(_WORK / max(1, entries)))
    own = {name: _rows(draws[name]) for name in latent}
    total = len(next(iter(own.values())))
    if width > _MOST_COORDINATES or number < _STARTS[0] or total < _PER_COORDINATE * width:
        return None
    rng = np.random.default_rng([seed, 7])
    some = rng.permutation(total)[:_DRAWS]  # the same for all sites, which may depend on each other
    seen = {name: v[some] for name, v in own.items()}
    outward = partial(_run, "elsewhere-start", _starting, problem)
    template = {name: np.zeros(free.shape, free.dtype) for name, free in shapes.items()}
    slopes = _slopes(problem, template, width)
    cloud = outward(seen)
    centre, root = cloud.mean(axis=0), _root(cloud)
    if root is None:
        return None
    starts = centre + _WIDER * rng.normal(size=(number, width)) @ root.T
    known = prior_draws(latent, seed, number // 2)
    if known:
        again = rng.integers(len(some), size=number // 2)
        given = {name: v[again] for name, v in seen.items()}
        starts[::2][: number // 2] = outward(given | known)
    height, slope = slopes(starts)
    usable = np.isfinite(height) & np.isfinite(slope).all(axis=1)
    starts, height, slope = starts[usable], height[usable], slope[usable]
    if not len(starts):
        return None
    away = np.linalg.solve(root, (starts - centre).T) + root.T @ slope.T
    farthest = np.argsort(-np.square(away).sum(axis=0))[: _CLIMBS // 2]
    highest = np.argsort(-height)[: _CLIMBS // 2]
    begun = starts[np.union1d(farthest, highest)]
    if modes is not None and latent.keys() <= modes.sites.keys():
        begun = np.concatenate([begun, outward({n: modes.sites[n][:_MODES] for n in latent})])
    ends = climb_all(slopes, begun, _STEPS)
    density, _ = slopes(cloud)
    bound = float(density[np.isfinite(density)].mean()) + log_volume(cloud)
    for mode in _peaks(slopes, *ends):
        mass = _mass(slopes, mode, rng)
        share = 1 / (1 + np.exp(np.clip(bound - mass, -700, 700)))
        inside = (np.square((cloud - mode.point) @ mode.root).sum(axis=1) <= _radius(width)).mean()
        if share >= _MATTERS and inside < _MISSED * share:
            free = ravel_pytree(template)[1](jnp.asarray(mode.point))
            sites = {n: np.asarray(place(problem, free)[0][n]["value"]) for n in free}
            turns = _turns(latent, sites)
            images = outward(
                {n: np.stack([turn.get(n, v) for turn in turns]) for n, v in sites.items()}
            )
            height, _ = slopes(np.concatenate([mode.point[None], images]))
            apart = np.square(np.linalg.solve(root, (images - centre).T)).sum(axis=0)
            alike = (np.abs(height[1:] - height[0]) <= _NEAR) & (apart <= _radius(width))
            turned = tuple(turns[int(np.argmax(alike))]) if alike.any() else ()
            return Elsewhere(float(share), float(mass), bound, number, sites, turned)
    return None


def _turns(latent: Mapping[str, dict], sites: Mapping[str, NDArray]) -> list[dict[str, NDArray]]:
    """Values with other signs: of sites, of all with an axis of that length, and of single columns."""
    signed = [n for n in sites if plain_support(latent[n]["fn"].support) is constraints.real]
    last = {n: sites[n].shape[-1:] for n in signed}
    groups = [
        *([n] for n in signed),
        *([n for n in signed if last[n] == one] for one in last.values()),
    ]
    found = [{n: -sites[n] for n in group} for group in [*groups, signed]]
    for group in groups:
        size = math.prod(last[group[0]])
        for signs in 1 - 2 * np.eye(size) if size > 1 else ():
            found.append({n: sites[n] * signs for n in group})
    return found


def log_volume(flat: NDArray) -> float:
    r"""Maximum entropy of draws given their covariance, :math:`\tfrac12 \log \det (2 \pi e\, \mathrm{Cov})`.

    Draws are cut off at their outermost hundredths. Directions in which they cannot vary are left out.

    Parameters
    ----------
    flat : ndarray, shape (num_draws, num_numbers)
    """
    cut = np.clip(flat, *np.quantile(flat, _TAILS, axis=0))
    values = np.linalg.eigvalsh(np.atleast_2d(np.cov(cut, rowvar=False)))
    free = values[values > _SINGULAR * values.max(initial=0.0)]
    return 0.5 * float((1 + np.log(2 * np.pi * free)).sum())


def _text(value: NDArray) -> str:
    """Format numbers to three digits."""
    return shown(np.reshape([float(f"{one:.3g}") for one in np.ravel(value)], np.shape(value)))


def _rows(draws: NDArray) -> NDArray:
    return draws.reshape(-1, *draws.shape[2:])


def _radius(width: int) -> float:
    """Return the squared radius of the ellipsoid that counts as a mode."""
    return float(chi2.ppf(_INSIDE, width))


def _root(cloud: NDArray) -> NDArray | None:
    """Return the Cholesky factor of the covariance; None where draws cannot vary in some direction."""
    covariance = np.atleast_2d(np.cov(cloud, rowvar=False))
    if not np.isfinite(covariance).all():
        return None
    values = np.linalg.eigvalsh(covariance)
    return np.linalg.cholesky(covariance) if values[0] > _SINGULAR * values[-1] else None


def _run(name: str, build: Callable, problem: Problem, rows: Mapping[str, NDArray]) -> NDArray:
    """Return the values of a program for all rows, which it takes in pieces of one shape."""
    number = len(next(iter(rows.values())))
    found = []
    for first in range(0, number, _PIECE):
        at = np.minimum(np.arange(first, first + _PIECE), number - 1)
        part = {key: values[at] for key, values in rows.items()}
        program, _ = compiled(name, problem, (), build, part, problem.args)
        found.append(np.asarray(program(part, problem.args)))
    return np.concatenate(found)[:number]


def _starting(problem: Problem) -> Callable:
    """Program that maps values to unconstrained coordinates."""

    def go(values: dict[str, Array], args: tuple) -> Array:
        return jax.vmap(lambda one: ravel_pytree(unconstrained_start(problem, one, args))[0])(
            values
        )

    return go


def _slopes(problem: Problem, template: Mapping[str, NDArray], width: int) -> Callable:
    """Make a function of points that returns log densities, -inf where not finite, and gradients."""
    blank = np.zeros((_PIECE, width), jnp.result_type(float))
    given = template, blank, np.asarray(0), problem.args
    program, _ = compiled("elsewhere", problem, (), _sloping, *given)

    def slopes(points: NDArray) -> tuple[NDArray, NDArray]:
        found = []
        for first in range(0, len(points), _PIECE):
            part = points[first : first + _PIECE]
            room = blank.copy()
            room[: len(part)] = part
            values = program(template, room, np.asarray(len(part)), problem.args)
            found.append(np.asarray(values)[: len(part)])
        both = np.concatenate(found)
        height = np.where(np.isfinite(both[:, 0]), both[:, 0], -np.inf)
        return height, both[:, 1:]

    return slopes


def _sloping(problem: Problem) -> Callable:
    """Program of log densities and gradients at the first points, as columns of one array."""

    def go(template: dict, points: Array, number: Array, args: tuple) -> Array:
        both = jax.vmap(jax.value_and_grad(flat_density(problem, template, args)))

        def some(count: Array, found: Array) -> Array:
            first = count * _AT_ONCE
            height, slope = both(jax.lax.dynamic_slice_in_dim(points, first, _AT_ONCE))
            new = jnp.concatenate([height[:, None], slope], axis=1)
            return jax.lax.dynamic_update_slice_in_dim(found, new, first, 0)

        blank = jnp.zeros((len(points), points.shape[1] + 1), points.dtype)
        return jax.lax.fori_loop(0, -(-number // _AT_ONCE), some, blank)

    return go


def _peaks(slopes: Callable, points: NDArray, heights: NDArray, gradients: NDArray) -> list[_Mode]:
    """Return distinct peaks among the ends of climbs, the highest first."""
    chosen: list[int] = []
    for row in np.argsort(-heights):
        apart = [
            abs(heights[row] - heights[other]) > _NEAR
            or np.abs(points[row] - points[other]).max()
            > _SAME_PLACE * (1 + abs(points[row]).max())
            for other in chosen
        ]
        if np.isfinite(heights[row]) and all(apart) and len(chosen) < _MODES:
            chosen.append(int(row))
    found = [_peak(slopes, points[row], gradients[row]) for row in chosen]
    return [mode for mode in found if mode is not None]


def _peak(slopes: Callable, point: NDArray, gradient: NDArray) -> _Mode | None:
    """Return the peak near the end of a climb; None where there is none."""
    step = np.finfo(gradient.dtype).eps ** (1 / 3) * (1 + np.abs(point))
    sides = np.concatenate([point + np.diag(step), point - np.diag(step)])
    _, slope = slopes(sides)
    bend = -(slope[: len(point)] - slope[len(point) :]) / (2 * step[:, None])
    bend = (bend + bend.T) / 2
    if not np.isfinite(bend).all():
        return None
    values = np.linalg.eigvalsh(bend)
    if values[0] <= _FLAT * values[-1]:
        return None
    ahead = np.linalg.solve(bend, gradient)
    if ahead @ gradient / 2 > _AT_REST:
        return None
    return _Mode(point + ahead, np.linalg.cholesky(bend))


def _mass(slopes: Callable, mode: _Mode, rng: np.random.Generator) -> float:
    """Return the log mass inside the ellipsoid of a mode; -inf where weights do not determine it."""
    width = len(mode.point)
    tail = multivariate_t(np.zeros(width), np.eye(width), df=_FREEDOM)
    white = np.reshape(tail.rvs(_POINTS, random_state=rng), (_POINTS, width))
    height, _ = slopes(mode.point + np.linalg.solve(mode.root.T, white.T).T)
    weights = height - np.reshape(tail.logpdf(white), -1) - np.log(np.diag(mode.root)).sum()
    weights = np.where(np.square(white).sum(axis=1) <= _radius(width), weights, -np.inf)
    top = weights.max()
    if not np.isfinite(top):
        return -np.inf
    share = np.exp(weights - top)
    if share.sum() ** 2 < _EFFECTIVE * np.square(share).sum():
        return -np.inf
    return float(top + np.log(share.mean()))
