"""Transitions of chains along Hamiltonian trajectories, with warm-up."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from .metric import MassMatrix
from .paths import until_turning
from .warm_up import WarmUp, warm_up

__all__ = ["UNKNOWN", "Chain", "hamiltonian", "nuts_given"]

UNKNOWN = 1e20
"""Energy of a start before it is known, so that any move to a finite energy is accepted."""


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
        Its gradient, in the order of `ravel_pytree`.
    warm_up : WarmUp
    energy, accept_prob, num_steps, diverging : Array, shape ()
        Statistics of the last transition; see `Followed`.
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
    follow: Callable,
    num_warmup: int,
    *,
    target_accept: float = 0.8,
    dense_mass: MassMatrix = False,
    by_slopes: bool = True,
    jumps: Collection[str] = (),
) -> tuple[Callable, Callable]:
    """Make chains along trajectories, with warm-up.

    Parameters
    ----------
    follow : callable
        Makes a trajectory; see `until_turning`.
    num_warmup : int
        Number of transitions that adapt.
    target_accept, dense_mass, by_slopes
        See `warm_up`.
    jumps : collection of str
        Sites whose slopes it does not learn from; see `jumping_sites`.

    Returns
    -------
    ready : callable
        ``ready(free, rng_key) -> Chain`` before the first transition.
    move : callable
        ``move(chain, potential) -> Chain`` after one transition; the potential is a function of sites in the
        form of `Chain.z`. The first transition does not move; it finds energy and slope at the start.
    """
    begin, adapt = warm_up(
        num_warmup, target_accept=target_accept, dense_mass=dense_mass, by_slopes=by_slopes
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
        key, now = jax.random.split(chain.rng_key)
        metric, is_known = chain.warm_up.metric, chain.potential_energy < UNKNOWN
        found = follow(
            lambda unit: potential(unravel(position + metric.moved(unit))),
            chain.potential_energy,
            metric.slope_of_coordinates(chain.slope),
            jnp.where(is_known, chain.warm_up.step_size, 0.0),
            now,
        )
        position, slope = position + metric.moved(found.unit), metric.slope_of_sites(found.slope)
        told = slope
        if jumps:
            kept, _ = ravel_pytree(
                {n: jnp.full_like(v, n not in jumps) for n, v in chain.z.items()}
            )
            told = kept * slope
        learned = adapt(chain.warm_up, position, told, found.accept_prob, is_known)
        return Chain(key, unravel(position), found.potential_energy, slope, learned, *found[3:])

    return ready, move


def nuts_given(
    potential: Callable[..., Callable[[dict], Array]],
    num_warmup: int,
    *,
    target_accept: float = 0.8,
    max_tree_depth: int = 10,
) -> tuple[Callable, Callable]:
    """Make NUTS on some sites given values of others that change between transitions.

    Parameters
    ----------
    potential : callable
        ``potential(*given)`` returns the energy as a function of the unconstrained sites.
    num_warmup : int
        Number of transitions in which step size and mass matrix adapt.
    target_accept : float
    max_tree_depth : int

    Returns
    -------
    ready : callable
        ``ready(free, rng_key) -> Chain``, before the first transition.
    move : callable
        ``move(chain, given) -> Chain`` after one transition conditional on the current `given`.
    """
    ready, transition = hamiltonian(
        until_turning(max_tree_depth), num_warmup, target_accept=target_accept
    )

    def move(chain: Chain, given: tuple) -> Chain:
        energy = jax.jit(potential(*given))
        value, slope = jax.value_and_grad(energy)(chain.z)
        flat, _ = ravel_pytree(slope)
        return transition(chain._replace(potential_energy=value, slope=flat), energy)

    return ready, move
