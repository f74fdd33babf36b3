"""Transitions along Hamiltonian trajectories, of one length or until they turn back."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpyro.infer.hmc_util import (
    IntegratorState,
    build_tree,
    euclidean_kinetic_energy,
    velocity_verlet,
)

from .warm_up import Metric, WarmUp, warm_up

__all__ = ["MOST_STEPS", "UNKNOWN", "Chain", "hamiltonian", "nuts_given"]

UNKNOWN = 1e20
"""Energy of a start before it is known: any move to a finite energy is accepted."""

MOST_STEPS = 1000
"""Leapfrog steps of a trajectory of one length at most."""

_DIVERGENT = 1000.0
"""Rise of the total energy from which on a trajectory diverges."""


class Chain(NamedTuple):
    """State of one chain.

    Attributes
    ----------
    rng_key : Array
    z : dict of Array
        Unconstrained sites.
    potential_energy : Array, shape ()
        Negative log density there, `UNKNOWN` before the first transition.
    slope : Array, shape (size,)
        Its gradient in the order of `ravel_pytree`.
    warm_up : WarmUp
    energy, accept_prob, num_steps, diverging : Array, shape ()
        Of the last transition: total energy, mean probability of acceptance, leapfrog steps, and whether
        the energy rose without limit.
    """

    rng_key: Array
    z: dict[str, Array]
    potential_energy: Array
    slope: Array
    warm_up: WarmUp
    energy: Array
    accept_prob: Array
    num_steps: Array
    diverging: Array


def hamiltonian(
    num_warmup: int,
    *,
    target_accept: float = 0.8,
    dense_mass: bool = False,
    max_tree_depth: int = 10,
    trajectory_length: float | None = None,
) -> tuple[Callable, Callable]:
    """No-U-turn sampling, or trajectories of one length, with warm-up.

    Parameters
    ----------
    num_warmup : int
        Transitions that adapt.
    target_accept : float
    dense_mass : bool
    max_tree_depth : int
        A trajectory has less than 2 to this power steps.
    trajectory_length : float, optional
        Length of all trajectories, of at most 1000 steps; by default they end where they turn back.

    Returns
    -------
    ready : callable
        ``ready(free, rng_key) -> Chain`` before the first transition.
    move : callable
        ``move(chain, potential) -> Chain`` after one transition; the potential is a function of the sites
        like `Chain.z`. The first goes nowhere, and finds energy and slope where the chain starts.
    """
    begin, adapt = warm_up(
        num_warmup,
        target_accept=target_accept,
        dense_mass=dense_mass,
        by_slopes=trajectory_length is None,
    )

    def ready(free: dict[str, Array], key: Array) -> Chain:
        position, _ = ravel_pytree(free)
        zero = jnp.zeros((), position.dtype)
        unknown = jnp.full_like(zero, UNKNOWN)
        return Chain(
            key,
            free,
            unknown,
            jnp.zeros_like(position),
            begin(position.size),
            unknown,
            zero,
            jnp.asarray(0),
            jnp.asarray(False),
        )

    def move(chain: Chain, potential: Callable[[dict[str, Array]], Array]) -> Chain:
        position, unravel = ravel_pytree(chain.z)
        key, key_momentum, key_path = jax.random.split(chain.rng_key, 3)
        metric, is_known = chain.warm_up.metric, chain.potential_energy < UNKNOWN
        momentum = jnp.where(is_known, _momentum(key_momentum, metric), 0.0)
        step_size = jnp.where(is_known, chain.warm_up.step_size, 0.0)
        begun = IntegratorState(position, momentum, chain.potential_energy, chain.slope)
        _, leap = velocity_verlet(lambda flat: potential(unravel(flat)), euclidean_kinetic_energy)
        if trajectory_length is None:
            tree = build_tree(
                leap,
                euclidean_kinetic_energy,
                begun,
                metric.inverse,
                step_size,
                key_path,
                max_delta_energy=_DIVERGENT,
                max_tree_depth=max_tree_depth,
            )
            end = tree.z_proposal, tree.z_proposal_pe, tree.z_proposal_grad
            accept_prob = tree.sum_accept_probs / tree.num_proposals
            report = tree.z_proposal_energy, accept_prob, tree.num_proposals, tree.diverging
        else:
            length = jnp.where(is_known, trajectory_length, 0.0)
            end, report = _of_length(leap, begun, metric, step_size, length, key_path)
        learned = adapt(chain.warm_up, end[0], end[2], report[1])
        return Chain(key, unravel(end[0]), *end[1:], learned, *report)

    return ready, move


def nuts_given(
    potential: Callable[..., Callable[[dict], Array]],
    num_warmup: int,
    *,
    target_accept: float = 0.8,
    max_tree_depth: int = 10,
) -> tuple[Callable, Callable]:
    """NUTS on some sites given values of others that change between transitions.

    Parameters
    ----------
    potential : callable
        ``potential(*given)`` returns the energy as a function of the unconstrained sites.
    num_warmup : int
        Transitions in which step size and mass matrix adapt.
    target_accept : float
    max_tree_depth : int

    Returns
    -------
    ready : callable
        ``ready(free, rng_key) -> Chain``, before the first transition.
    move : callable
        ``move(chain, given) -> Chain`` after one transition under what is given now.
    """
    ready, transition = hamiltonian(
        num_warmup, target_accept=target_accept, max_tree_depth=max_tree_depth
    )

    def move(chain: Chain, given: tuple) -> Chain:
        energy = jax.jit(potential(*given))
        value, slope = jax.value_and_grad(energy)(chain.z)
        flat, _ = ravel_pytree(slope)
        return transition(chain._replace(potential_energy=value, slope=flat), energy)

    return ready, move


def _momentum(key: Array, metric: Metric) -> Array:
    normal = jax.random.normal(key, metric.sqrt.shape[:1])
    return metric.sqrt @ normal if metric.sqrt.ndim == 2 else metric.sqrt * normal


def _of_length(
    leap: Callable,
    begun: IntegratorState,
    metric: Metric,
    step_size: Array,
    length: Array,
    key: Array,
) -> tuple[tuple, tuple]:
    """Follow a trajectory to its end, which is accepted or rejected."""
    wanted = jnp.ceil(length / jnp.where(length > 0, step_size, 1.0))
    number = jnp.clip(wanted, 1, MOST_STEPS).astype(int)
    step = jnp.minimum(length / number, step_size)  # all that are not cut off have this length
    last = lax.fori_loop(0, number, lambda _, at: leap(step, metric.inverse, at), begun)
    before, after = (
        at.potential_energy + euclidean_kinetic_energy(metric.inverse, at.r) for at in (begun, last)
    )
    rise = jnp.where(jnp.isnan(after - before), jnp.inf, after - before)
    accept_prob = jnp.exp(jnp.minimum(-rise, 0.0))
    accepted = jax.random.bernoulli(key, accept_prob)
    end, energy = jax.tree.map(
        lambda new, old: jnp.where(accepted, new, old),
        ((last.z, last.potential_energy, last.z_grad), after),
        ((begun.z, begun.potential_energy, begun.z_grad), before),
    )
    return end, (energy, accept_prob, number, rise > _DIVERGENT)
