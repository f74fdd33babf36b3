r"""Tests draws that were made elsewhere against the density that they are supposed to come from.

A step of Hamiltonian Monte Carlo leaves a density p invariant, and it is reversible: if u is a draw of p,
and u' is where a step from u leads, accepted or not, then (u, u') and (u', u) have the same distribution. The
change f(u') - f(u) of any function is thus symmetric about zero, however heavy the tails of p are. The ratio
of a sum of such changes to the root of the sum of their squares,

.. math:: t = \sum_s d_s \Big/ \Big(\sum_s d_s^2\Big)^{1/2},

exceeds x in absolute value with a probability of at most :math:`2 e^{-x^2/2}` for independent draws.

A single draw that lies absurdly far away has little weight in this test. A second test finds it. For any
one-to-one map T, such as one to a tenth of the distance from a centre, p(T u) |dT/du| is a density too. For
a draw u of p, it exceeds p(u) by a factor of x with a probability of at most 1 / x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from .base import Problem
from .parts import Part
from .plumbing.clock import Clock
from .plumbing.programs import compiled
from .problem.density import abstract_trace, latent_sites, shapes_at
from .problem.importance import flat_density, visit

__all__ = ["Untested", "contradiction"]

_FEWEST = 100
"""Minimum number of draws for a test, and of effective draws for these to count in full."""
_MOST, _COVERED = 2000, 4000
"""Maximum numbers of draws that take a step, and of draws that their spread is estimated from."""
_WORK = 1e8
"""Maximum product of steps and entries of the data; a tenth of the most steps are taken in any case."""
_STEPS, _LENGTH = 6, 0.8
"""Leapfrog steps, and the length of each in one dimension, in standard deviations of the draws."""
_VARIED = 0.3, 1.0
"""Range of random factors of that length: some lengths lead to the other side, as far from the median."""
_SHORT, _SHORTEST = 0.25, 1e-3
"""Share of draws with shorter steps, and the smallest factor: the density may be far narrower than they."""
_MOST_DENSE = 500
"""Maximum number of coordinates for which steps allow for correlations."""
_CHANCE = 1e-3
"""Probability that draws of the density are rejected."""
_NEARER = 0.1
"""Share of their distance from the centre to which draws are moved, to test whether one is absurdly far."""
_BOUNDED = 2.0
"""Standard deviations from which on functions of the coordinates level off."""


class Untested(Exception):
    """Draws cannot be tested; the message says why."""


def contradiction(
    problem: Problem, draws: Mapping[str, NDArray], seed: int = 0, *, among: int = 0
) -> str:
    """Say what shows that draws do not come from the density of a problem; empty where nothing does.

    The test covers the location and spread of every coordinate, and the log density. Draws may hold clusters
    in any numbering, and either sign of values that are identified up to signs. Both are brought to one
    choice first, and steps that would leave it are rejected. Each half of the draws takes steps with the
    covariance of the other half. The gradient need not be right: a wrong one makes the test weak, not false.

    Parameters
    ----------
    problem : Problem
    draws : mapping of str to ndarray, shape (chain, draw, ...)
        Values of the latent sites; other sites are ignored.
    seed : int
    among : int
        Index of a draw of every chain that is always included, such as the least probable one, where others
        may be left out.

    Raises
    ------
    Untested
        If draws or effective draws are few, a site does not vary, or equivalent copies of the posterior
        cannot be told apart.

    References
    ----------
    Besag and Clifford (1989), Biometrika 76, 633-642, for tests by reversible steps. Efron (1969), J. Am.
    Stat. Assoc. 64, 1278-1302, for the bound.
    """
    latent = latent_sites(abstract_trace(problem))
    if any((site.get("infer") or {}).get("manifold") for site in latent.values()):
        raise Untested("lengths of vectors along which points of spheres lie are not always kept")
    chains, number = draws[next(iter(latent))].shape[:2]
    if chains * number < _FEWEST or number < 4:
        raise Untested(f"{chains} x {number} draws are too few")
    step = -(-chains * number // _COVERED)
    first = among % step
    some = {name: np.asarray(draws[name], float)[:, first::step] for name in latent}
    try:
        part = Part.of(problem, some, seed)
    except ValueError as error:
        raise Untested("which copies of the posterior they are of is not known") from error
    half = part.places.shape[1] // 2
    ends = part.places[:, :half], part.places[:, half : 2 * half]
    rng = np.random.default_rng([seed, 13])
    template = {n: np.zeros(own.shape, own.dtype) for n, own in shapes_at(problem, some).items()}
    changes = [_changes(part, template, *pair, rng) for pair in (ends, ends[::-1])]
    found = _judged(template, part.places, np.concatenate(changes, axis=1))
    if found:
        return found
    early, late = part.places[:, :half], part.places[:, half:]
    both = (early, late), (late, early)
    gain = np.concatenate([_gains(part, template, *pair) for pair in both], axis=1)
    if gain.max() <= math.log(gain.size / _CHANCE) + part.log_copies:
        return ""
    chain, place = np.unravel_index(np.argmax(gain), gain.shape)
    return (
        f"draw {first + step * place} of chain {chain} towards the others ({gain.max():.3g} nats)"
    )


def _gains(
    part: Part, template: Mapping[str, NDArray], moved: NDArray, known: NDArray
) -> NDArray[np.float64]:
    """Return the log density gained by moving draws towards the median of the others, shape (chain, draw)."""
    width = moved.shape[-1]
    centre = np.median(known.reshape(-1, width), axis=0)
    rows = moved.reshape(-1, width)
    before, after = (
        visit(part.problem, template, at, Clock(), anywhere=True)[0]
        for at in (rows, centre + _NEARER * (rows - centre))
    )
    gain = after + width * math.log(_NEARER) - before
    return np.where(np.isfinite(gain), gain, -np.inf).reshape(moved.shape[:2])


def _changes(
    part: Part,
    template: Mapping[str, NDArray],
    moved: NDArray,
    known: NDArray,
    rng: np.random.Generator,
) -> NDArray:
    """Return the changes of all functions by a step from some of the draws, shape (chain, draw, function)."""
    problem, width = part.problem, moved.shape[-1]
    entries = sum(np.size(leaf) for leaf in jax.tree.leaves(problem.args))
    most = np.clip(_WORK / max(1, entries, 10 * width), _MOST / 10, _MOST) / 2
    moved = moved[:, :: math.ceil(moved.shape[0] * moved.shape[1] / most)]
    rows = moved.reshape(-1, width)
    centre, scale, root = _spread(known.reshape(-1, width))
    shorter = np.where(rng.uniform(size=len(rows)) < _SHORT, rng.uniform(size=len(rows)), 0.0)
    length = _LENGTH * width**-0.2 * rng.uniform(*_VARIED, len(rows)) * _SHORTEST**shorter
    given = template, rows, rng.normal(size=rows.shape), length, root, problem.args
    program, _ = compiled("invariance", problem, (), _stepping, *given, once=True)
    ends, before, after, gain = map(np.asarray, program(*given))
    accepted = np.log(rng.uniform(size=len(rows))) < np.where(np.isfinite(gain), gain, -np.inf)
    if (
        part.folding is not None or part.signed
    ):  # a step may not leave this part, nor begin outside of it
        for places in (rows, np.where(accepted[:, None], ends, rows)):
            accepted &= np.isfinite(part.density(places))
    change = np.zeros((len(rows), 2 * width + 1))
    first, last = ((at[accepted] - centre) / scale for at in (rows, ends))
    for place, function in enumerate((_location, _distance)):
        change[accepted, place * width : (place + 1) * width] = function(last) - function(first)
    change[accepted, -1] = (after - before)[accepted]
    return change.reshape(*moved.shape[:2], -1)


def _location(z: NDArray) -> NDArray:
    return z / np.sqrt(1 + np.square(z / _BOUNDED))


def _distance(z: NDArray) -> NDArray:
    return np.square(_location(z))


def _spread(rows: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Return the median and standard deviation of coordinates, and the scale of steps.

    The scale is a Cholesky factor of the covariance, which is shrunk to its diagonal where rows are few, or
    the standard deviations alone where coordinates are many.
    """
    number, width = rows.shape
    scale = rows.std(axis=0)
    if not (np.ptp(rows, axis=0) > 0).all():
        raise Untested("a site does not vary")
    root = scale
    if width <= _MOST_DENSE:
        share = width / (width + number)
        correlation = (1 - share) * np.corrcoef(rows, rowvar=False).reshape(width, width)
        np.fill_diagonal(correlation, 1.0)
        root = scale[:, None] * np.linalg.cholesky(correlation)
    return np.median(rows, axis=0), scale, root


def _stepping(problem: Problem) -> Callable:
    """Program that returns ends of trajectories, log densities at both ends, and log acceptance ratios."""

    def go(
        template: dict, rows: Array, momenta: Array, lengths: Array, root: Array, args: tuple
    ) -> tuple[Array, ...]:
        slope = jax.value_and_grad(flat_density(problem, template, args))

        def one(given: tuple[Array, Array, Array]) -> tuple[Array, ...]:
            start, momentum, length = given

            def leap(count: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
                at, speed, first, _ = state
                value, gradient = slope(at)
                ends = (count == 0) | (count == _STEPS)
                kick = root.T @ gradient if root.ndim == 2 else root * gradient
                speed = speed + jnp.where(ends, 0.5, 1.0) * length * kick
                ahead = root @ speed if root.ndim == 2 else root * speed
                at = jnp.where(count < _STEPS, at + length * ahead, at)
                return at, speed, jnp.where(count == 0, value, first), value

            zero = jnp.zeros((), start.dtype)
            end, speed, first, last = jax.lax.fori_loop(
                0, _STEPS + 1, leap, (start, momentum, zero, zero)
            )
            gain = last - first + (jnp.square(momentum).sum() - jnp.square(speed).sum()) / 2
            return end, first, last, gain

        return jax.lax.map(one, (rows, momenta, lengths))

    return go


def _effective(columns: NDArray) -> NDArray:
    """Return effective numbers of draws, zero where they are not known."""
    from arviz_stats.base import array_stats

    return np.nan_to_num(array_stats.ess(columns, chain_axis=0, draw_axis=1), nan=0.0)


def _judged(template: Mapping[str, NDArray], places: NDArray, changes: NDArray) -> str:
    """Describe the largest of the changes, by its site, where it is significant; empty otherwise."""
    number, count = changes[..., 0].size, changes.shape[-1]
    square = np.square(changes).sum(axis=(0, 1))
    ratio = np.abs(changes.sum(axis=(0, 1))) / np.sqrt(np.where(square > 0, square, np.inf))
    limit = math.sqrt(2 * math.log(2 * count / _CHANCE))
    alarms, known = np.flatnonzero(ratio > limit), _effective(places).min()
    if len(alarms):  # draws that resemble one another say less
        share = np.minimum(1.0, _effective(changes[..., alarms]) / number)
        ratio[alarms] *= np.sqrt(share * min(1.0, known / _FEWEST))
    if not (ratio > limit).any():
        if known < _FEWEST:
            raise Untested(f"no more than {known:.0f} of them are effective")
        return ""
    sites = [n for n, own in sorted(template.items()) for _ in range(own.size)]
    blocks = np.split(ratio, [len(sites), 2 * len(sites)])
    kind = next(place for place, block in enumerate(blocks) if (block > limit).any())
    at = int(np.argmax(blocks[kind]))
    name = "the log density" if kind == 2 else sites[at]
    less, more = ("closer together", "further apart") if kind == 1 else ("down", "up")
    way = more if changes[..., kind * len(sites) + at].sum() > 0 else less
    return f"{name} {way} ({blocks[kind][at]:.0f} standard errors)"
