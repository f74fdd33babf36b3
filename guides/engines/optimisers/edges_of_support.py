"""Modes at the edge of a support that depends on parameters, where the density still rises."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from sidebayes.models.blocks.block_facts import Unbounded

from ..base import EngineResult, Problem
from ..plumbing.clock import Clock
from ..problem.causes import edge_advice
from ..problem.declared import declared_blocks
from ..problem.density import (
    abstract_trace,
    latent_supports,
    place,
    sum_log_prob,
    unconstrained_start,
)
from ..steps.starts import has_walls

__all__ = ["rising_at_edge"]

_STEEP = 1e-3
"""Largest entry of a gradient, relative to the log density, that counts as zero."""

_LITTLE = 1e-4
"""Nats that a step promises by which it is seen whether the density rises along its slope."""


def rising_at_edge(problem: Problem, result: EngineResult) -> str | None:
    """Describe that the density still rises where a climb ended; None if it does not, or is zero nowhere.

    Parameters
    ----------
    problem : Problem
    result : EngineResult
        A point estimate.
    """
    if not has_walls(problem) or _has_no_top(problem):
        return None
    jacobian = result.density_space == "unconstrained"

    def build(bare: Problem) -> Callable:
        def density(free: Mapping[str, Array], args: tuple) -> Array:
            trace, log_det = place(bare, free, args)
            return sum_log_prob(trace) + jacobian * log_det

        def at(params: dict[str, Array], args: tuple) -> tuple[Array, Array, Array]:
            free = unconstrained_start(bare, params, args)
            value, slope = jax.value_and_grad(density)(free, args)
            here, unravel = ravel_pytree(free)
            uphill = ravel_pytree(slope)[0]
            ahead = density(unravel(here + _LITTLE * uphill / (uphill @ uphill)), args)
            return value, jnp.abs(uphill).max(), ahead - value

        return at

    params = {name: result.draws[name][0, 0] for name in latent_supports(problem)}
    value, slope, rise = Clock().run("edge", problem, jacobian, build, params, problem.args)
    if np.abs(slope) <= _STEEP * (1 + np.abs(value)):
        return None
    if np.isfinite(rise) and rise < _LITTLE / 2:  # at a corner of the density
        return None
    return (
        f"The log density still rises where this ended, by {float(slope):.3g} per unit of an unconstrained "
        f"coordinate: {edge_advice(problem, 'raise the number of steps')}"
    )


def _has_no_top(problem: Problem) -> bool:
    """Return whether a block says that the density is unbounded; engines that prune end at an edge of it."""
    return any(
        isinstance(block, Unbounded) and block.unbounded() is not None
        for block, _ in declared_blocks(abstract_trace(problem))
    )
