"""Markov moves of many particles at once, tuned to their distribution."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike

__all__ = [
    "KERNELS",
    "Walk",
    "each_particle",
    "first_step",
    "move_particles",
    "num_chains",
    "num_shells",
]

_TARGET = {"hmc": 0.7, "random_walk": 0.25}
"""Acceptance probability that the step size is adapted to, by kernel."""

KERNELS = tuple(_TARGET)

_STEP = {"hmc": -0.25, "random_walk": -0.5}
"""Exponent of the number of coordinates in the first step size, by kernel."""

_GAIN = 1.0
"""Increase of the log step size per excess of acceptance, after each move."""

_VARIED = 0.5
"""Range of the logarithm of steps around their size, to either side."""

_LENGTH = 1.5
"""Length of a trajectory, in standard deviations of the particles."""

_LONGEST_STEP = 1.8
"""Maximum step size, as leapfrog steps diverge from 2 standard deviations on."""

_KEPT = 5
"""Maximum number of states of a chain that become particles."""

_INDEPENDENT = 0.25
"""Correlation of the worst coordinate with its start below which particles have moved enough."""

_FORGOTTEN = 0.1
"""Correlation of the log likelihood with its value at the start below which they have moved enough."""

_MOST_SHELLS, _IN_SHELL = 8, 50
"""Maximum number of ranges of the log likelihood whose spreads scale steps, and particles for each."""

_LEAST_SPREAD = 1e-4
"""Minimum spread of a shell, in standard deviations of all particles."""

_MORE = 10
"""Factor by which a funnel may raise the maximum number of moves."""

_SIDE_BY_SIDE = 16
"""Number of particles that a processor moves in step; more would be slower."""


class _Place(NamedTuple):
    """Position of a chain.

    Attributes
    ----------
    white : Array, shape (num_coordinates,)
        Position in coordinates of unit covariance.
    value : Array, shape ()
        Log density.
    likelihood : Array, shape ()
        Log likelihood, at temperature 1.
    slope : Array, shape (num_coordinates,)
        Gradient of the log density; zero for random walks.
    """

    white: Array
    value: Array
    likelihood: Array
    slope: Array


class Walk(NamedTuple):
    """State of chains that move at one temperature.

    Attributes
    ----------
    key : Array
    place : _Place
        With an axis of chains in front.
    step_size : Array, shape (num_shells,)
    acceptance : Array, shape ()
        Acceptance of steps that are meant for the shell of the chain.
    trail : Array, shape (num_kept, num_chains, num_coordinates)
        The last states; the one after m moves is at m modulo num_kept.
    likelihood : Array, shape (num_kept, num_chains)
        Log likelihood there.
    correlation, memory : Array, shape ()
        Correlation of the worst coordinate, and of the log likelihood, with its value at the start. At the
        end, memory is the mean over all kept states.
    moves : Array of int, shape ()
        Number of moves; -1 before densities are known where the chains start.
    """

    key: Array
    place: _Place
    step_size: Array
    acceptance: Array
    trail: Array
    likelihood: Array
    correlation: Array
    memory: Array
    moves: Array


def first_step(kernel: str, num_coordinates: int) -> float:
    """Return the first step size, in standard deviations of the particles."""
    return float(num_coordinates ** _STEP[kernel])


def num_chains(num_particles: int, num_mutations: int) -> int:
    """Return the number of chains whose states become particles; see `move_particles`."""
    return -(-num_particles // _num_kept(num_mutations))


def num_shells(num_particles: int) -> int:
    """Return the number of ranges of the log likelihood with spreads of their own."""
    return max(1, min(_MOST_SHELLS, num_particles // _IN_SHELL))


def _num_kept(num_mutations: int) -> int:
    return min(_KEPT, num_mutations + 1)


def move_particles(
    split: Callable,
    temperature: Array,
    cloud: Array,
    likelihood: Array,
    step_size: Array,
    key: Array,
    *,
    kernel: str,
    num_mutations: int,
    num_leapfrog: int,
) -> tuple[Walk, Array, Array]:
    """Move some of the particles until they have forgotten their starts; all last states are kept.

    In d dimensions, they make at least d / 2 moves, up to the maximum.

    Every state of a chain that starts at the target is a draw of it, so that none is wasted: of n particles,
    n / 5 move, and their last five states replace all particles (Dau and Chopin 2022). Coordinates are those
    in which the other half of the particles has unit covariance. In coordinates by their own covariance,
    directions in which particles lie too far out by chance would be forgotten sooner than those in which
    they lie too near.

    Steps are scaled by the spread of the other half within a shell, a range of the log likelihood that is
    drawn anew for every move. Where a scale is unknown, particles of small scale lie a thousand times as near
    to one another as those of large scale, and steps of one size would never lead there (Neal's funnel). A
    walk over scales of a factor :math:`2^k` takes some :math:`(2k)^2` moves there and back; so many are made,
    up to ten times `num_mutations`.

    Parameters
    ----------
    split : callable
        Log prior and log likelihood of one particle.
    temperature : Array, shape ()
    cloud : Array, shape (num_particles, num_coordinates)
        Equally weighted particles, in an order such that every fifth is a sample as even as all.
    likelihood : Array, shape (num_particles,)
        Log likelihood there.
    step_size : Array, shape (num_shells,)
    key : Array
    kernel, num_mutations, num_leapfrog
        See `SMC`.

    Returns
    -------
    walk : Walk
    particles : Array, shape (num_particles, num_coordinates)
        States of the same chain follow one another.
    likelihood : Array, shape (num_particles,)
    """
    total, width = cloud.shape
    kept = _num_kept(num_mutations)
    key, first_key = jax.random.split(key)
    number = num_chains(total, num_mutations)
    # a random shift, so that each particle starts a chain with the same probability
    chosen = (jax.random.randint(first_key, (), 0, total) + kept * jnp.arange(number)) % total
    parts = jnp.stack([cloud[total // 2 :], cloud[: total - total // 2]])
    centres, roots = parts.mean(axis=1), jax.vmap(_root)(parts)
    half = (chosen >= total // 2).astype(int)
    start, begun = cloud[chosen], likelihood[chosen]

    def inward(h: ArrayLike, x: Array) -> Array:
        return solve_triangular(roots[h], x - centres[h], lower=True)

    white, shells = jax.vmap(inward)(half, start), num_shells(total)
    likelihoods = likelihood[total // 2 :], likelihood[: total - total // 2]
    told = [
        _shells(jax.vmap(partial(inward, h))(parts[h]), likelihoods[h], shells) for h in range(2)
    ]
    spreads, edges = map(jnp.stack, zip(*told, strict=True))

    def outward(h: Array, z: Array) -> Array:
        return centres[h] + roots[h] @ z

    def density(h: Array, z: Array) -> tuple[Array, Array]:
        prior, likelihood = split(outward(h, z))
        return prior + temperature * likelihood, likelihood

    propose = _leapfrog if kernel == "hmc" else _random_step

    def move(given: tuple) -> tuple[_Place, Array]:
        count, half, place, speed, size, uniform = given
        end, fall = propose(partial(density, half), place, speed, size, count)
        chance = jnp.exp(jnp.minimum(end.value - place.value + fall, 0.0))
        chance = jnp.where(jnp.isnan(chance), 0.0, chance)
        return jax.tree.map(partial(jnp.where, uniform < chance), end, place), chance

    scales = jnp.abs(_trend(jnp.log2(spreads).mean(axis=0))).max()
    # the likelihood depends on all directions, and does not show the few that mix most slowly
    fewest = max(kept - 1, min(width // 2, num_mutations))
    least = jnp.clip(jnp.square(2 * scales), fewest, _MORE * num_mutations)

    def unfinished(walk: Walk) -> Array:
        # weights depend only on the likelihood, draws on all coordinates
        held = walk.memory > _FORGOTTEN
        held |= (temperature >= 1) & (walk.correlation > _INDEPENDENT)
        return (walk.moves < least) | (held & (walk.moves < num_mutations))

    def step(walk: Walk) -> Walk:
        key, vary, turn, take, pick = jax.random.split(walk.key, 5)
        # the first move has length zero, so that densities are compiled only once
        moves = walk.moves >= 0
        spread = jax.random.uniform(vary, (number,), minval=-_VARIED, maxval=_VARIED)
        shell = jax.random.randint(pick, (number,), 0, shells)
        sizes = jnp.where(moves, walk.step_size[shell] * jnp.exp(spread), 0.0)
        sizes = sizes[:, None] * spreads[half, shell]
        count = jnp.clip(jnp.ceil(_LENGTH / walk.step_size.mean()), 1, num_leapfrog).astype(int)
        count = jnp.where(moves, count, 1)
        speeds, uniform = jax.random.normal(turn, white.shape), jax.random.uniform(take, (number,))
        given = half, walk.place, speeds, sizes, uniform
        place, chance = each_particle(lambda given: move((count, *given)), given)
        # step sizes need not suit particles of other shells
        own = shell == jax.vmap(jnp.searchsorted)(edges[half], walk.place.likelihood)
        member = own[:, None] & (shell[:, None] == jnp.arange(shells))
        excess = jnp.where(member, chance[:, None] - _TARGET[kernel], 0.0).sum(axis=0)
        excess = excess / jnp.maximum(member.sum(axis=0), 1)
        rate = jnp.where(moves, jnp.exp(_GAIN * excess), 1.0)
        slot = (walk.moves + 1) % kept
        return Walk(
            key=key,
            place=place,
            step_size=jnp.minimum(walk.step_size * rate, _LONGEST_STEP),
            acceptance=jnp.where(own, chance, 0.0).sum() / jnp.maximum(own.sum(), 1),
            correlation=jax.vmap(_correlation, 1)(white, place.white).max(),
            trail=walk.trail.at[slot].set(place.white),
            likelihood=walk.likelihood.at[slot].set(place.likelihood),
            memory=_correlation(begun, place.likelihood),
            moves=walk.moves + 1,
        )

    first = Walk(
        key=key,
        place=_Place(white, jnp.full(number, -jnp.inf), begun, jnp.zeros_like(white)),
        step_size=step_size,
        acceptance=jnp.zeros(()),
        trail=jnp.broadcast_to(white, (kept, *white.shape)),
        likelihood=jnp.broadcast_to(begun, (kept, number)),
        correlation=jnp.ones(()),
        memory=jnp.ones(()),
        moves=jnp.asarray(-1),
    )
    walk = lax.while_loop(unfinished, step, first)
    # memory of all kept states, from which the next particles are drawn
    held = jax.vmap(partial(_correlation, begun))(walk.likelihood).mean()
    walk = walk._replace(memory=held)

    places = jax.vmap(jax.vmap(outward), (None, 0))(half, walk.trail)

    def particles(trail: Array) -> Array:
        """Return states chain by chain, each from its oldest state on."""
        in_time = jnp.roll(trail, -(walk.moves + 1), axis=0).swapaxes(0, 1)
        return in_time.reshape(-1, *trail.shape[2:])[:total]

    return walk, particles(places), particles(walk.likelihood)


def _leapfrog(
    density: Callable, place: _Place, speed: Array, size: Array, count: Array
) -> tuple[_Place, Array]:
    """Return the end of a trajectory with unit masses, and the decrease of the kinetic energy."""
    climb = jax.value_and_grad(density, has_aux=True)

    def leap(_: Array, carry: tuple[_Place, Array]) -> tuple[_Place, Array]:
        place, speed = carry
        speed = speed + size / 2 * place.slope
        white = place.white + size * speed
        (value, likelihood), slope = climb(white)
        return _Place(white, value, likelihood, slope), speed + size / 2 * slope

    end, last = lax.fori_loop(0, count, leap, (place, speed))
    return end, (jnp.square(speed).sum() - jnp.square(last).sum()) / 2


def _random_step(
    density: Callable, place: _Place, speed: Array, size: Array, count: Array
) -> tuple[_Place, Array]:
    """Return the end of a random step, which has no kinetic energy."""
    white = place.white + size * speed
    value, likelihood = density(white)
    return _Place(white, value, likelihood, place.slope), jnp.zeros(())


def each_particle(function: Callable, rows: Any) -> Any:
    """Map over particles; on processors, few of them in step."""
    number = len(jax.tree.leaves(rows)[0])
    if jax.default_backend() != "cpu":
        return jax.vmap(function)(rows)
    # a divisor, since a remainder would be compiled separately
    size = max(size for size in range(1, _SIDE_BY_SIDE + 1) if number % size == 0)
    return lax.map(function, rows, batch_size=size)


def _correlation(first: Array, second: Array) -> Array:
    """Return the correlation of two vectors over their finite entries; 1 where one is constant."""
    known = jnp.isfinite(first) & jnp.isfinite(second)
    number = known.sum()
    first, second = (
        jnp.where(known, each - jnp.where(known, each, 0.0).sum() / number, 0.0)
        for each in (first, second)
    )
    size = jnp.sqrt(jnp.square(first).sum() * jnp.square(second).sum())
    return jnp.where(size > 0, (first * second).sum() / jnp.where(size > 0, size, 1.0), 1.0)


def _shells(white: Array, likelihood: Array, number: int) -> tuple[Array, Array]:
    """Return the spread of the coordinates in each shell of the log likelihood, and bounds between shells."""
    edges = jnp.quantile(likelihood, jnp.arange(1, number) / number)
    member = jnp.searchsorted(edges, likelihood)[:, None] == jnp.arange(number)
    count = jnp.maximum(member.sum(axis=0), 1)[:, None]
    mean, square = member.T @ white / count, member.T @ white**2 / count
    return jnp.sqrt(jnp.maximum(square - mean**2, _LEAST_SPREAD**2)), edges


def _trend(values: Array) -> Array:
    """Return the rise from the first row to the last, by least squares; zero for a single row."""
    last = len(values) - 1
    place = jnp.arange(last + 1) - last / 2
    return last * (place @ values) / jnp.maximum(place @ place, 1)


def _root(particles: Array) -> Array:
    """Return the Cholesky factor of the covariance, shrunk towards its diagonal where particles are few."""
    number, width = particles.shape
    apart = particles - particles.mean(axis=0)
    covariance = apart.T @ apart / number
    diagonal = jnp.diag(covariance) + 1e-12
    share = width / (width + number / 2)  # about half are distinct, after resampling
    scale = jnp.sqrt(diagonal)
    correlation = (1 - share) * covariance / jnp.outer(scale, scale)
    correlation = correlation.at[jnp.diag_indices(width)].set(1.0)
    return scale[:, None] * jnp.linalg.cholesky(correlation)
