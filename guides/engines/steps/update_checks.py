"""Checks whether the updates of a user's model agree with its density, and what its blocks return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from sidebayes.models.blocks.block import (
    Augmented,
    Conditional,
    Discrete,
    Expanded,
    Observation,
)

from sidebayes.common.magnitudes import shown

from ..base import Problem
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..problem.density import (
    abstract_trace,
    place,
    sum_log_prob,
    trace_model,
    unconstrained_start,
)
from .surrogate import expectation, linearised
from .updates import (
    Part,
    Plan,
    block_of,
    is_ours,
    is_own,
    listed,
    observations,
    pooled,
    update_of,
)

__all__ = ["called", "check_updates", "returned", "update_with"]

_TOLERANCE = 1e-5
"""Relative difference between an update and the model's density that is put down to rounding."""

_RENEWALS = 100
"""Number of updates after which a block that only increases the surrogate should have converged."""

_EXPANSIONS = 25
"""Number of steps of expanded EM before the first check, and again before the second."""

_STUCK = 0.95
"""Share of the slope at the first check that must not remain at the second."""

_STEP_LENGTHS = -9.0, 1.0, 31
"""Decimal exponents of the first and the last step from a mode, relative to the slope, and their number."""

_FAR_OUT = 10.0
"""Coordinate from which on a slope outwards may be that of a mode on the edge of a support."""

_STEPS = "statistics", "update", "mode"
"""Methods of an update, in their order."""


def returned(
    block: Any,
    method: str,
    part: Part,
    values: Any,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    some: bool = False,
    num_starts: int | None = None,
) -> dict[str, Any]:
    """Return what a method of a block returned, by sites, after checking its roles and shapes.

    Parameters
    ----------
    block : Block
    method : str
    part : Part
    values : mapping of str to array
        What it returned, by role.
    shapes : mapping of str to tuple
        Shape of each site by its name.
    some : bool
        Whether roles may be missing.
    num_starts : int, optional
        The values are those of several starts: all that broadcast to this number of them are accepted.

    Raises
    ------
    ValueError
        The message names the class, the method and the role.
    """
    what = f"{type(block).__name__}.{method}"
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} returned {shown(values)}; return a dict of arrays by role")
    if values.keys() - part.sites.keys() or (part.sites.keys() - values.keys() and not some):
        raise ValueError(
            f"{what} returned values of {listed(values) or 'no role'}; the roles of its sites are "
            f"{listed(part.sites)}"
        )
    for role, value in values.items():
        found, expected = jnp.shape(value), tuple(shapes[part.sites[role]])
        if num_starts is not None:
            expected = (num_starts, *expected)
            same = len(found) <= len(expected) and all(
                one in (1, other) for one, other in zip(found[::-1], expected[::-1], strict=False)
            )
        else:
            same = found == expected
        if not same:
            raise ValueError(f"{what} returned {role!r} of shape {found}; expected {expected}")
    return part.named(values)


def called(block: Any, method: str, *given: Any, after: str = "") -> Any:
    """Return what a method of a block returns; an error in a user's own block names the method."""
    try:
        return getattr(block, method)(*given)
    except Exception as error:  # a user's code may raise anything
        if not is_own(block):
            raise
        what = f"{type(block).__name__}.{method}"
        raise ValueError(f"{what} failed{after} ({type(error).__name__}: {error})") from error


def update_with(block: Any, given: list[Observation]) -> tuple[Any, Any]:
    """Return statistics of a block and its update, as `update_of` does."""
    statistics = pooled([called(block, "statistics", one) for one in given])
    shapes = ", ".join(str(jnp.shape(leaf)) for leaf in jax.tree.leaves(statistics))
    sources = [one.fn for one in given]
    return statistics, called(
        block, "update", statistics, sources, after=f" for statistics of shapes {shapes}"
    )


def _share_undefined(values: Any) -> Array:
    """Return the largest share of NaN in an array of a tree."""
    shares = [jnp.mean(jnp.isnan(leaf)) for leaf in jax.tree.leaves(values) if jnp.size(leaf)]
    return jnp.max(jnp.stack([jnp.zeros(()), *shares]))


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
    increase the log joint density, towards a point where it is flat. From the mode that a user's own block
    returns, no step may raise the log density that the block states.

    Raises
    ------
    ValueError
        The message names the sites whose update contradicts the density, or the method.
    """
    if is_ours(problem) or not plan.parts:
        return

    def build(bare: Problem) -> Callable:
        def differences(params: dict[str, Array], args: tuple) -> tuple[list, list, list]:
            _, posterior = expectation(bare, params, args)
            trace = trace_model(bare, params, args)
            blocks = [block_of(trace, part) for part in plan.parts]
            shapes = {name: value.shape for name, value in params.items()}
            sums, updates, modes = [], [], []
            for block, part in zip(blocks, plan.parts, strict=True):
                statistics, found = update_with(block, observations(trace, part, posterior))
                sums.append(statistics)
                updates.append(found)
                modes.append(called(block, "mode", found, part.values(params)))
            moved = [
                params | returned(block, "mode", part, new, shapes)
                for block, part, new in zip(blocks, plan.parts, modes, strict=True)
            ]
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
            lost = [
                tuple(map(_share_undefined, steps))
                for steps in zip(sums, updates, modes, strict=True)
            ]
            rises = [
                _rise_from_mode(bare, part, block, found, point, args)
                if is_own(block)
                and isinstance(block, Conditional)
                and not isinstance(block, Discrete)
                else jnp.zeros(())
                for part, block, found, point in zip(
                    plan.parts, blocks, updates, moved, strict=True
                )
            ]
            return out, lost, rises

        return differences

    inputs = {name: jnp.asarray(value) for name, value in params.items()}, problem.args
    sites = tuple(tuple(part.sites.values()) for part in plan.parts)  # plans of engines differ
    asked = compiled("updates", problem, sites, build, *inputs, once=True)
    program = (clock or Clock()).counted(asked)
    trace = abstract_trace(problem)
    for part, difference, lost, rise in zip(plan.parts, *program(*inputs), strict=True):
        block = block_of(trace, part)
        if is_own(block) and lost[-1] == 1:
            method = next(m for m, share in zip(_STEPS, lost, strict=True) if share > 0)
            raise ValueError(
                f"{type(block).__name__}.{method} returned NaN at the first start, so that "
                f"{listed(part.sites.values())} cannot be updated"
            )
        if abs(float(difference)) > _TOLERANCE * 10:
            raise ValueError(
                f"the update of {listed(part.sites.values())} contradicts the model's density (by "
                f"{float(difference):.3g}): the model does not use these sites as their block says. "
                "Pass them on unchanged, or sample them without a block"
            )
        if rise > 0:
            own = type(block).__name__
            raise ValueError(
                f"{own}.mode contradicts {own}.log_density: from the values of "
                f"{listed(part.sites.values())} that it returned at the first start, a small step raises the "
                f"log density by {float(rise):.3g}. Return the values at which log_density is highest, which "
                "may differ from its mean"
            )


def _rise_from_mode(
    problem: Problem, part: Part, block: Any, found: Any, point: dict[str, Array], args: tuple
) -> Array:
    """Return by how much a step along the slope raises a block's log density from its mode; zero if little.

    Slopes towards an edge of a support near by do not count, as the mode may lie there.
    """
    names = tuple(part.sites.values())
    fixed = {name: value for name, value in point.items() if name not in names}

    def density(free: dict[str, Array]) -> Array:
        sites, _ = place(problem, free, args, fixed)
        return block.log_density(found, part.values({name: sites[name]["value"] for name in names}))

    def inside(u: Array, slope: Array) -> Array:
        outwards = (jnp.abs(u) > _FAR_OUT) & (u * slope > 0)
        return jnp.where(outwards | ~jnp.isfinite(slope), 0.0, slope)

    free = unconstrained_start(problem, point, args, names)
    height, slope = jax.value_and_grad(density)(free)
    slope = jax.tree.map(inside, free, slope)
    heights = jax.lax.map(
        lambda step: density(jax.tree.map(lambda u, along: u + step * along, free, slope)),
        jnp.logspace(*_STEP_LENGTHS),
    )
    rise = jnp.nanmax(heights - height)
    return jnp.where(rise > _TOLERANCE * 10 * (1 + jnp.abs(height)), rise, 0.0)


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
