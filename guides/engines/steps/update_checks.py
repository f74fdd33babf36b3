"""Checks whether the updates of a user's model agree with its density."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from sidebayes.models.blocks.block import Augmented, Conditional, Discrete, Expanded

from ..base import Problem
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..problem.density import place, sum_log_prob, trace_model, unconstrained_start
from .surrogate import expectation, linearised
from .updates import Part, Plan, block_of, is_ours, listed, observations, update_of

__all__ = ["check_updates"]

_TOLERANCE = 1e-5
"""Relative difference between an update and the model's density that is put down to rounding."""

_RENEWALS = 100
"""Number of updates after which a block that only increases the surrogate should have converged."""

_EXPANSIONS = 25
"""Number of steps of expanded EM before the first check, and again before the second."""

_STUCK = 0.95
"""Share of the slope at the first check that must not remain at the second."""


def check_updates(
    problem: Problem,
    plan: Plan,
    params: Mapping[str, Any],
    clock: Clock | None = None,
) -> None:
    """Compare the updates of a user's model with its density, at two points.

    The `clock` counts the time of compilation.

    Blocks of the library are tested in models of the library. A user's model may use them in a way that
    their updates do not allow for, such as weights that are transformed before use. A block whose update
    only increases the surrogate must converge to a point where this is flat. Steps of expanded EM must
    increase the log joint density, towards a point where it is flat.

    Raises
    ------
    ValueError
        The message names the sites whose update contradicts the density.
    """
    if is_ours(problem) or not plan.parts:
        return

    def build(bare: Problem) -> Callable:
        def differences(params: dict[str, Array], args: tuple) -> list[Array]:
            _, posterior = expectation(bare, params, args)
            trace = trace_model(bare, params, args)
            blocks = [block_of(trace, part) for part in plan.parts]
            updates = [
                update_of(block, observations(trace, part, posterior))
                for block, part in zip(blocks, plan.parts, strict=True)
            ]
            modes = [
                block.mode(found, part.values(params))
                for block, found, part in zip(blocks, updates, plan.parts, strict=True)
            ]
            moved = [params | part.named(new) for part, new in zip(plan.parts, modes, strict=True)]
            # one after the other, so that the program contains the density only once
            before, *after = jax.lax.map(
                lambda point: linearised(trace_model(bare, point, args), posterior),
                jax.tree.map(lambda *values: jnp.stack(values), params, *moved),
            )
            out = []
            for part, block, found, new, value in zip(
                plan.parts, blocks, updates, modes, after, strict=True
            ):
                if isinstance(block, Expanded):
                    out.append(_left_by_expansion(bare, part, params, args))
                    continue
                gain, values = value - before, part.values(params)
                if not isinstance(block, Conditional) or isinstance(block, Augmented):
                    fell = gain < -_TOLERANCE * (1 + jnp.abs(before))
                    slope: Any = 0.0
                    if not isinstance(block, Discrete):
                        slope = _slope_at_rest(bare, part, params, args, posterior)
                    out.append(jnp.where(fell, gain, slope / (1 + jnp.abs(before))))
                    continue
                claimed = block.log_density(found, new) - block.log_density(found, values)
                out.append((gain - claimed) / (1 + jnp.abs(gain)))
            return out

        return differences

    inputs = {name: jnp.asarray(value) for name, value in params.items()}, problem.args
    sites = tuple(tuple(part.sites.values()) for part in plan.parts)  # plans of engines differ
    asked = compiled("updates", problem, sites, build, *inputs, once=True)
    program = (clock or Clock()).counted(asked)
    for part, difference in zip(plan.parts, program(*inputs), strict=True):
        if abs(float(difference)) > _TOLERANCE * 10:
            raise ValueError(
                f"the update of {listed(part.sites.values())} contradicts the model's density (by "
                f"{float(difference):.3g}): the model does not use these sites as their block says. "
                "Pass them on unchanged, or sample them without a block"
            )


def _left_by_expansion(
    problem: Problem, part: Part, params: dict[str, Array], args: tuple
) -> Array:
    """Log joint density lost by steps of expanded EM, or slope that they leave; zero if all is well."""
    names = tuple(part.sites.values())
    fixed = {name: value for name, value in params.items() if name not in names}

    def renew(_: Array, params: dict[str, Array]) -> dict[str, Array]:
        return _renewed(problem, part, params, args, expectation(problem, params, args)[1])

    def density(free: dict[str, Array]) -> Array:
        return sum_log_prob(place(problem, free, args, fixed)[0])

    def height(point: dict[str, Array]) -> tuple[Array, Array]:
        value, slope = jax.value_and_grad(density)(unconstrained_start(problem, point, args, names))
        return value, jnp.max(jnp.stack([jnp.abs(leaf).max() for leaf in jax.tree.leaves(slope)]))

    def onwards(point: dict[str, Array], steps: Array) -> tuple[dict, tuple[Array, Array]]:
        point = jax.lax.fori_loop(0, steps, renew, point)
        return point, height(point)

    steps = jnp.array([0, _EXPANSIONS, _EXPANSIONS])
    _, (value, slope) = jax.lax.scan(onwards, dict(params), steps)
    size = 1 + jnp.abs(value[0])
    fell = jnp.where(value[2] - value[0] < -_TOLERANCE * size, value[2] - value[0], 0.0)
    stuck = (fell == 0) & (slope[2] > _STUCK * slope[1])
    return jnp.where(stuck, slope[2] / size, fell)


def _slope_at_rest(
    problem: Problem, part: Part, params: dict[str, Array], args: tuple, posterior: dict[str, Any]
) -> Array:
    """Return the largest slope of Q in the sites of a block where its update has converged."""

    def renew(_: Array, params: dict[str, Array]) -> dict[str, Array]:
        return _renewed(problem, part, params, args, posterior)

    rest = jax.lax.fori_loop(0, _RENEWALS, renew, dict(params))
    names = tuple(part.sites.values())
    fixed = {name: value for name, value in rest.items() if name not in names}
    slope = jax.grad(lambda free: linearised(place(problem, free, args, fixed)[0], posterior))
    found = slope(unconstrained_start(problem, rest, args, names))
    return jnp.max(jnp.stack([jnp.abs(leaf).max() for leaf in jax.tree.leaves(found)]))


def _renewed(
    problem: Problem, part: Part, params: dict[str, Array], args: tuple, posterior: dict[str, Any]
) -> dict[str, Array]:
    """Return the parameters after one update of one block."""
    trace = trace_model(problem, params, args)
    block = block_of(trace, part)
    found = update_of(block, observations(trace, part, posterior))
    return params | part.named(block.mode(found, part.values(params)))
