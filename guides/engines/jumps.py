"""Sites with which the density changes by jumps alone, which its gradient does not see."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .base import Problem
from .plumbing.programs import unchecked
from .problem.density import abstract_trace, free_shapes, latent_sites, place, site_log_prob
from .problem.honoured import live_inputs

__all__ = ["instead_of_slopes", "jumping_sites"]


def jumping_sites(problem: Problem) -> tuple[str, ...]:
    """Latent sites that the rest of the density depends on, and its gradient does not.

    They are compared, rounded or counted, as a change point is in ``jnp.where(time < change, one, other)``.
    The structure of the density tells; nothing is computed. Sites of blocks are not asked.
    """
    if "jumps" not in problem.notes:
        problem.notes["jumps"] = _jumping(problem)
    found: tuple[str, ...] = problem.notes["jumps"]
    return found


def _jumping(problem: Problem) -> tuple[str, ...]:
    latent = latent_sites(abstract_trace(problem))
    own = {n for n, site in latent.items() if (site.get("infer") or {}).get("block") is None}
    if not own:
        return ()
    free = {n: jnp.zeros(one.shape, one.dtype) for n, one in free_shapes(problem).items()}

    def others(free: dict[str, Array]) -> Array:
        """Log density of each site given the others, at a value of its own that is fixed."""
        trace, _ = place(problem, free)
        total: Any = 0.0
        for name, site in trace.items():
            if site["type"] == "sample":
                value = jnp.zeros_like(site["value"]) if name in latent else site["value"]
                total += site_log_prob({**site, "value": value})
        return jnp.asarray(total)

    def change(at: tuple) -> Array:
        return jax.jvp(others, at[:1], at[1:])[1]

    with unchecked():
        depends = live_inputs(others, free)
        _, slopes = live_inputs(change, (free, free))
    return tuple(name for name in sorted(own) if depends[name] and not slopes[name])


def instead_of_slopes(problem: Problem, otherwise: str) -> str:
    """What to use where an engine fails: `otherwise`, or where the density jumps what needs no gradients."""
    jumps = jumping_sites(problem)
    if not jumps:
        return otherwise
    return (
        f"use SMC, which needs no gradients: the density jumps with {', '.join(jumps)}, and they do not see "
        "that"
    )
