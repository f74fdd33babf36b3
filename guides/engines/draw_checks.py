"""Checks whether a user's own blocks draw from the density that they state, and state its means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.special import ndtri
from sidebayes.models.blocks.block import HasMeans

from .base import Problem
from .machine.memory import most_within
from .plumbing.clock import Clock
from .plumbing.programs import compiled
from .problem.density import abstract_trace, bijector_of, place, trace_model
from .steps.surrogate import expectation
from .steps.update_checks import called, returned, update_with
from .steps.updates import Part, Plan, block_of, observations

__all__ = ["check_draws"]

_DRAWS = 4000
"""Number of draws that are compared with the density of a block."""

_SHARE = 0.01
"""Share of the memory above which fewer are drawn."""

_ALARM = 1e-9
"""Probability of a false alarm if sums of draws were normal; as they are skew, it is up to about 1e-6."""

_ALONE = 0.05
"""Share of the variance of draws that one draw must not have, as the variance is then poorly known."""

_REMAPPED = 0.01
"""Change of the log density through coordinates beyond which draws are too close to a bound to be tested."""


def check_draws(
    problem: Problem, plan: Plan, params: Mapping[str, Any], clock: Clock | None = None
) -> None:
    r"""Compare draws of a user's own blocks, given one update, with the log density that they state.

    In unconstrained coordinates u, a density p has :math:`E\,\partial_i\log p = 0`, which draws of another
    centre violate, and :math:`E\,u_i\,\partial_i\log p = -1`, which draws of another spread violate
    (Stein's identities). Exact means are compared with the mean of the draws.

    Raises
    ------
    ValueError
        The message names the class, the method, and the site.
    """
    trace = abstract_trace(problem)
    own = [part for part in plan.parts if has_own_draws(block_of(trace, part))]
    if not own:
        return

    def build(bare: Problem) -> Callable:
        def sampled(params: dict[str, Array], keys: Array, args: tuple) -> list[tuple]:
            _, posterior = expectation(bare, params, args)
            trace = trace_model(bare, params, args)
            return [_sampled(bare, trace, part, posterior, params, keys, args) for part in own]

        return sampled

    inputs = {name: jnp.asarray(value) for name, value in params.items()}
    each = sum(inputs[name].nbytes for part in own for name in part.sites.values())
    count = max(most_within(_SHARE, _DRAWS, 8 * each), 2)
    keys = np.random.default_rng(0).integers(2**32, size=(count, 2), dtype=np.uint32)
    given = inputs, keys, problem.args
    sites = tuple(tuple(part.sites.values()) for part in own)
    asked = compiled("draws-of-blocks", problem, sites, build, *given, once=True)
    for part, samples in zip(own, (clock or Clock()).counted(asked)(*given), strict=True):
        name = type(block_of(trace, part)).__name__
        _compare(name, part, *jax.tree.map(np.asarray, samples))


def has_own_draws(block: Any) -> bool:
    """Return whether a method of draws is a user's own; those of the library are tested."""
    methods = (getattr(type(block), name, None) for name in ("draw", "log_density", "means"))
    modules = (getattr(method, "__module__", None) for method in methods if method is not None)
    return any(not str(module).startswith("sidebayes.models") for module in modules)


def _sampled(
    problem: Problem,
    trace: Mapping[str, dict],
    part: Part,
    posterior: dict[str, Any],
    params: dict[str, Array],
    keys: Array,
    args: tuple,
) -> tuple:
    """Return draws, their coordinates, slopes there, change of the density by the map, and stated means."""
    block, names = block_of(trace, part), tuple(part.sites.values())
    _, found = update_with(block, observations(trace, part, posterior))
    shapes = {name: params[name].shape for name in names}
    fixed = {name: value for name, value in params.items() if name not in names}

    def density(free: dict[str, Array]) -> tuple[Array, Array]:
        sites, log_det = place(problem, free, args, fixed)
        value = block.log_density(found, part.values({n: sites[n]["value"] for n in names}))
        return value + log_det, value

    def one(key: Array) -> tuple:
        values = called(block, "draw", jax.random.wrap_key_data(key), found)
        point = returned(block, "draw", part, values, shapes)
        sites = trace_model(problem, fixed | point, args)
        free = {name: bijector_of(sites[name]).inv(point[name]) for name in names}
        slopes, remapped = jax.grad(density, has_aux=True)(free)
        return point, free, slopes, remapped - block.log_density(found, values)

    means = {}
    if isinstance(block, HasMeans):
        means = returned(block, "means", part, called(block, "means", found), shapes, some=True)
    return *jax.vmap(one)(keys), means


def _compare(
    block: str,
    part: Part,
    points: dict[str, NDArray],
    free: dict[str, NDArray],
    slopes: dict[str, NDArray],
    remapped: NDArray,
    means: dict[str, NDArray],
) -> None:
    """Refuse draws that are not numbers, outside of a support, or other than their density says."""
    count = len(remapped)
    limit = -ndtri(_ALARM / sum(2 * value[0].size + 1 for value in points.values()))
    testable = bool((np.abs(remapped) < _REMAPPED).all())
    for role, name in part.sites.items():
        drawn, u, slope = (a[name].reshape(count, -1) for a in (points, free, slopes))
        bad = f"{block}.draw returned values of {role!r} that are"
        if not np.isfinite(drawn).all():
            raise ValueError(f"{bad} not finite, given an update at the first start")
        if np.isnan(u).any():
            raise ValueError(
                f"{bad} outside the support of {name}, given an update at the first start"
            )
        within = np.isfinite(u).all()
        if within and not np.ptp(u, axis=0).all():
            raise ValueError(f"{bad} the same in all {count} draws, given one update")
        if testable and within and np.isfinite(slope).all():
            stretch = (u - u.mean(axis=0)) * slope + 1
            spread = np.c_[stretch, stretch.sum(axis=1)]
            named = ("centre", slope), ("spread", spread)
            off = {what: _deviation(x).max(initial=0.0) for what, x in named}
            what = max(off, key=lambda one: off[one])
            if off[what] > limit:
                raise ValueError(
                    f"{block}.draw contradicts {block}.log_density: the {what} of {count} draws of "
                    f"{name}, given one update, is {off[what]:.3g} standard errors from that of "
                    "the density. Draw from the density that log_density states"
                )
        if name in means:
            stated = means[name].reshape(-1)
            squares = (drawn - drawn.mean(axis=0)) ** 2
            known = squares.max(axis=0) <= _ALONE * squares.sum(axis=0)
            far = np.where(known, _deviation(drawn - stated), 0.0)
            worst = far.argmax()
            if not far[worst] <= limit:
                raise ValueError(
                    f"{block}.means contradicts {block}.draw: the mean of {count} draws of {name}, "
                    f"given one update, is {drawn[:, worst].mean():.4g} where the block states "
                    f"{stated[worst]:.4g}. Return the means of the density that log_density states"
                )


def _deviation(x: NDArray) -> NDArray:
    """Means of columns in standard errors."""
    error = x.std(axis=0) / np.sqrt(len(x))
    return np.abs(x.mean(axis=0)) / np.maximum(error, np.finfo(float).tiny)
