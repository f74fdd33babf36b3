"""Trajectories in coordinates with unit masses, and the choice of the next draw among their points."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from numpyro.infer.hmc_util import (
    IntegratorState,
    build_tree,
    euclidean_kinetic_energy,
    velocity_verlet,
)

__all__ = ["MOST_STEPS", "Followed", "isokinetic", "of_one_length", "until_turning"]

MOST_STEPS = 1000
"""Maximum number of steps of a trajectory of given length."""

_DIVERGENT = 1000.0
"""Rise of the total energy above which a trajectory diverges."""

_REFRESHMENT = 1.25
"""Length over which noise turns the direction of an isokinetic trajectory, in trajectory lengths."""


class Followed(NamedTuple):
    """The next draw, and statistics of its trajectory.

    Attributes
    ----------
    unit : Array, shape (size,)
        Its position, relative to the start of the trajectory.
    potential_energy : Array, shape ()
    slope : Array, shape (size,)
        Gradient in the coordinates.
    energy, accept_prob, num_steps, diverging : Array, shape ()
        Total energy, mean probability of acceptance, number of gradients, and whether the energy diverged;
        trajectories that leave the support where it has edges do not count as divergent.
    """

    unit: Array
    potential_energy: Array
    slope: Array
    energy: Array
    accept_prob: Array
    num_steps: Array
    diverging: Array


def until_turning(max_tree_depth: int, *, walls: bool = False) -> Callable:
    """Trajectories that end where they turn back, of fewer than 2 ** `max_tree_depth` leapfrog steps.

    Parameters
    ----------
    max_tree_depth : int
    walls : bool
        Whether the density may be zero in a part of the space. A trajectory that ends there has hit an
        edge, which is not due to its step size.

    Returns
    -------
    follow : callable
        ``follow(energy, value, slope, step_size, key) -> Followed``, from the origin, where the function
        `energy` has this value and slope. With a step size of zero, it does not move.
    """

    def follow(energy: Callable, value: Array, slope: Array, step_size: Array, key: Array):
        key_momentum, key_path = jax.random.split(key)
        begun, leap = _leaps(energy, value, slope, step_size, key_momentum)
        tree = build_tree(
            leap,
            euclidean_kinetic_energy,
            begun,
            jnp.ones_like(slope),
            step_size,
            key_path,
            max_delta_energy=_DIVERGENT,
            max_tree_depth=max_tree_depth,
        )
        diverging = tree.diverging
        if walls:
            ends = tree.z_left, tree.z_right
            diverging &= ~lax.cond(diverging, lambda: _any_outside(energy, ends), lambda: False)
        return Followed(
            tree.z_proposal,
            tree.z_proposal_pe,
            tree.z_proposal_grad,
            tree.z_proposal_energy,
            tree.sum_accept_probs / tree.num_proposals,
            tree.num_proposals,
            diverging,
        )

    return follow


def of_one_length(length: float, *, walls: bool = False) -> Callable:
    """Trajectories of one length, cut off after 1000 leapfrog steps; see `until_turning`."""

    def follow(energy: Callable, value: Array, slope: Array, step_size: Array, key: Array):
        key_momentum, key_path = jax.random.split(key)
        begun, leap = _leaps(energy, value, slope, step_size, key_momentum)
        masses = jnp.ones_like(slope)
        wanted = length / jnp.where(step_size > 0, step_size, jnp.inf)
        number = jnp.clip(jnp.ceil(wanted), 1, MOST_STEPS).astype(int)
        step = jnp.minimum(length / number, step_size)  # the length of all that are not cut off
        last = lax.fori_loop(0, number, lambda _, at: leap(step, masses, at), begun)
        before, after = (
            at.potential_energy + euclidean_kinetic_energy(masses, at.r) for at in (begun, last)
        )
        rise = jnp.where(jnp.isnan(after - before), jnp.inf, after - before)
        diverging = rise > _DIVERGENT
        if walls:
            diverging &= ~jnp.isposinf(last.potential_energy)
        accept_prob = jnp.exp(jnp.minimum(-rise, 0.0))
        accepted = jax.random.bernoulli(key_path, accept_prob)
        end, total = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old), (last, after), (begun, before)
        )
        return Followed(
            end.z,
            end.potential_energy,
            end.z_grad,
            total,
            accept_prob,
            number,
            diverging,
        )

    return follow


def isokinetic(length: float) -> Callable:
    r"""Trajectories of constant speed, whose direction noise turns too; see `until_turning`.

    The speed is 1, so that a trajectory of the same time as one of `of_one_length` has
    :math:`\sqrt{\text{size}}` times its length. Lengths are uniform, with that mean, and cut off at 1000
    steps of two gradients each.
    """
    from blackjax.mcmc.adjusted_mclmc import adjusted_mclmc_proposal
    from blackjax.mcmc.integrators import (
        IntegratorState as State,
    )
    from blackjax.mcmc.integrators import isokinetic_mclachlan, with_isokinetic_maruyama

    def follow(energy: Callable, value: Array, slope: Array, step_size: Array, key: Array):
        key_direction, key_length, key_path = jax.random.split(key, 3)
        known = step_size > 0
        direction = jax.random.normal(key_direction, slope.shape)
        longest = 2 * length * math.sqrt(len(slope))
        wanted = longest * jax.random.uniform(key_length) / jnp.where(known, step_size, jnp.inf)
        number = jnp.clip(jnp.ceil(wanted), 1, MOST_STEPS).astype(int)
        propose = adjusted_mclmc_proposal(
            with_isokinetic_maruyama(isokinetic_mclachlan(lambda unit: -energy(unit))),
            step_size,
            jnp.where(known, _REFRESHMENT * number * step_size, jnp.inf),
            number,
            _DIVERGENT,
        )
        begun = State(
            jnp.zeros_like(slope),
            direction / jnp.linalg.norm(direction),
            -value,
            jnp.where(known, -slope, 1.0),  # the direction must be defined
        )
        end, report, _ = propose(key_path, begun)
        return Followed(
            end.position,
            -end.logdensity,
            -end.logdensity_grad,
            report.energy,
            report.acceptance_rate,
            2 * number,
            report.is_divergent,
        )

    return follow


def _any_outside(energy: Callable, points: tuple[Array, ...]) -> Array:
    """Return whether the density is zero at one of several points."""
    return jnp.stack([jnp.isposinf(energy(point)) for point in points]).any()


def _leaps(
    energy: Callable, value: Array, slope: Array, step_size: Array, key: Array
) -> tuple[IntegratorState, Callable]:
    """Return a start with a random momentum, and the leapfrog step."""
    momentum = jnp.where(step_size > 0, jax.random.normal(key, slope.shape), 0.0)
    _, leap = velocity_verlet(energy, euclidean_kinetic_energy)
    return IntegratorState(jnp.zeros_like(slope), momentum, value, slope), leap
