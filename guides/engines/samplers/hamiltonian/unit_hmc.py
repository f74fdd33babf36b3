"""Hamiltonian Monte Carlo of many independent units side by side, each with its own acceptance."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

__all__ = ["UnitState", "adapted", "unit_hmc"]

_ACCEPT = 0.8
"""Mean probability of acceptance to which the step size is adapted."""

_JITTER = 0.3
"""Relative variation of the step size between trajectories."""

_FIRST_SCALE = 0.01

_PRIOR_DRAWS = 5.0
"""Weight of the first guess of the covariance, in draws."""


class UnitState(NamedTuple):
    """State of one chain.

    Attributes
    ----------
    z : dict of Array
        The single sampled site, unconstrained, shape (num_rows, size).
    rng_key : Array
    log_step : Array, shape ()
        Logarithm of the step size, in standard deviations.
    scale_tril : Array, shape (size, size)
        Cholesky factor of the covariance that is assumed for all rows.
    num_moves : Array, shape ()
        Number of transitions since the covariance changed.
    """

    z: dict[str, Array]
    rng_key: Array
    log_step: Array
    scale_tril: Array
    num_moves: Array


def unit_hmc(
    energies: Callable[..., Callable[[dict], Array]], num_leapfrog: int
) -> tuple[Callable, Callable]:
    """Make HMC on the rows of one site given values of others that change between transitions.

    All units move at once and share a step size and a mass matrix, as rows are alike. Each accepts or
    rejects its own trajectory.

    Parameters
    ----------
    energies : callable
        ``energies(*given)`` returns the energies of the units as a function of the unconstrained site, with
        as many entries as it has rows. Units are numbered from 0, and entries beyond them are zero.
    num_leapfrog : int
        Number of steps of a trajectory.

    Returns
    -------
    ready : callable
        ``ready(free, rng_key) -> state``, before the first transition.
    move : callable
        ``move(state, (*given, owner)) -> state`` after one transition conditional on the current `given`;
        the owner is the unit of each row.
    """

    def ready(free: dict[str, Array], key: Array) -> UnitState:
        (rows,) = free.values()
        size = rows.shape[1]
        scale_tril = _FIRST_SCALE * jnp.eye(size)
        return UnitState(free, key, -jnp.log(size) / 4, scale_tril, jnp.zeros(()))

    def move(state: UnitState, given: tuple) -> UnitState:
        ((name, start),) = state.z.items()
        *rest, owner = given
        number = len(start)
        energy = energies(*rest)

        def total(rows: Array) -> tuple[Array, Array]:
            found = energy({name: rows})
            return found.sum(), found

        slope = jax.value_and_grad(total, has_aux=True)
        key, key_speed, key_step, key_accept = jax.random.split(state.rng_key, 4)
        step = jnp.exp(state.log_step) * jax.random.uniform(
            key_step, minval=1 - _JITTER, maxval=1 + _JITTER
        )
        speed = jax.random.normal(key_speed, start.shape)

        def kinetic(speed: Array) -> Array:
            return jax.ops.segment_sum(jnp.square(speed).sum(axis=1) / 2, owner, number)

        def leap(_: Array, carry: tuple) -> tuple:
            rows, speed, _, pull = carry
            speed = speed - step / 2 * pull
            rows = rows + step * speed @ state.scale_tril.T
            (_, found), gradient = slope(rows)
            pull = gradient @ state.scale_tril
            return rows, speed - step / 2 * pull, found, pull

        (_, before), gradient = slope(start)
        carry = start, speed, before, gradient @ state.scale_tril
        rows, last, after, _ = lax.fori_loop(0, num_leapfrog, leap, carry)
        rise = before + kinetic(speed) - after - kinetic(last)
        chance = jnp.where(jnp.isnan(rise), 0.0, jnp.exp(jnp.minimum(rise, 0.0)))
        taken = jax.random.uniform(key_accept, (number,)) < chance
        count = state.num_moves + 1
        # stochastic approximation with vanishing steps, as in a warm-up
        log_step = state.log_step + (chance.mean() - _ACCEPT) / jnp.sqrt(count)
        moved = {name: jnp.where(taken[owner][:, None], rows, start)}
        return UnitState(moved, key, log_step, state.scale_tril, count)

    return ready, move


def adapted(state: UnitState, draws: dict[str, NDArray], num_chains: int) -> UnitState:
    """Return states of chains with the mass matrix of some draws.

    Parameters
    ----------
    state : UnitState
        States with a leading axis of chains.
    draws : dict of ndarray
        Draws of the site, shape (num_draws, num_rows, size), chain by chain.
    num_chains : int
    """
    (rows,) = draws.values()
    number, size = rows.shape[0] * rows.shape[1], rows.shape[2]
    apart = (rows - rows.mean(axis=0)).reshape(number, size)
    before = np.asarray(state.scale_tril[0])
    variance = (apart**2).mean()
    scatter = apart.T @ apart + _PRIOR_DRAWS * variance * np.eye(size)
    scale_tril = np.linalg.cholesky(scatter / (number + _PRIOR_DRAWS))
    whole = jnp.broadcast_to(jnp.asarray(scale_tril), (num_chains, *before.shape))
    return state._replace(scale_tril=whole, num_moves=jnp.full((num_chains,), 4.0))
