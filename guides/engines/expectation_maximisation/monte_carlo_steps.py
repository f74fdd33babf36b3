"""Steps of Monte-Carlo EM, as programs over draws of the sampled sites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from ..base import Problem
from ..coordinates import coordinates_of
from ..problem.declared import collapsed_sites
from ..problem.density import deterministics, place, sum_log_prob, unconstrained_start
from ..steps.lbfgs import minimise
from ..steps.surrogate import linearised
from ..steps.updates import Part, Plan, block_of, observations, pooled, sources_of

__all__ = ["constrained", "described", "maximise", "moved", "score"]

_BATCH = 64
"""Number of draws at which the model is run side by side."""


def maximise(plan: Plan, num_steps: int, problem: Problem) -> Callable:
    """Program of the parameters that maximise the mean surrogate of draws, and the rise at `others`."""

    def step(draws: dict, others: dict, theta: dict, args: tuple) -> tuple[dict[str, Array], Array]:
        def at(theta: dict[str, Array], free: dict[str, Array]) -> dict:
            return place(problem, free, args, theta)[0]

        def slopes(free: dict[str, Array]) -> dict[str, Any]:
            sources = collapsed_sites(at(theta, free)).items()
            return {n: jax.grad(fn.log_partition)(fn.log_factors(v)) for n, (fn, v) in sources}

        posterior = _over(slopes, draws)
        new = dict(theta)
        for part in plan.parts:
            new |= _closed(part, at, new, draws, posterior)
        if plan.rest:
            new = _numeric(problem, plan.rest, new, draws, posterior, args, num_steps)
        rise = _over(
            lambda free: sum_log_prob(at(new, free)) - sum_log_prob(at(theta, free)), others
        )
        return new, rise

    return step


def _over(function: Callable, inputs: Any) -> Any:
    """Map a function over the leading axis, several entries side by side.

    `lax.map` fails where some values are empty, such as weights where there are no links.
    """
    blank, tree = jax.tree.flatten(
        jax.eval_shape(function, jax.tree.map(lambda leaf: leaf[0], inputs))
    )

    def entries(one: Any) -> list[Array]:
        return [leaf for leaf in jax.tree.leaves(function(one)) if leaf.size]

    found = iter(lax.map(entries, inputs, batch_size=_BATCH))
    number = len(jax.tree.leaves(inputs)[0])
    whole = [
        next(found) if shape.size else jnp.zeros((number, *shape.shape), shape.dtype)
        for shape in blank
    ]
    return jax.tree.unflatten(tree, whole)


def _closed(
    part: Part, at: Callable, theta: dict, draws: dict, posterior: dict
) -> dict[str, Array]:
    """Return the mode of a block given statistics averaged over draws."""

    def statistics(inputs: tuple) -> Any:
        free, slopes = inputs
        trace = at(theta, free)
        block = block_of(trace, part)
        return pooled([block.statistics(one) for one in observations(trace, part, slopes)])

    mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), _over(statistics, (draws, posterior)))
    first = {name: value[0] for name, value in draws.items()}
    trace = at(theta, first)
    block = block_of(trace, part)
    found = block.update(mean, sources_of(trace, part))
    return part.named(block.mode(found, part.values(theta)))


def _numeric(
    problem: Problem,
    names: tuple[str, ...],
    theta: dict,
    draws: dict,
    posterior: dict,
    args: tuple,
    num_steps: int,
) -> dict[str, Array]:
    """Increase the mean surrogate in some sites by L-BFGS; it never decreases."""
    first = {name: value[0] for name, value in draws.items()}
    trace, _ = place(problem, first, args, theta)
    whole = {name: trace[name]["value"] for name in (*theta, *first)}
    free = unconstrained_start(problem, whole, args, names)
    start, unravel = ravel_pytree(free)
    bounded = coordinates_of(trace, free).bounded
    fixed = {name: value for name, value in theta.items() if name not in names}

    def loss(point: Array) -> Array:
        moved = unravel(point)

        def one(inputs: tuple) -> Array:
            free, slopes = inputs
            return linearised(place(problem, {**free, **moved}, args, fixed)[0], slopes)

        return -lax.map(one, (draws, posterior), batch_size=_BATCH).mean()

    found = unravel(minimise(loss, start, num_steps, bounded=bounded))
    sites, _ = place(problem, {**first, **found}, args, fixed)
    return fixed | {name: sites[name]["value"] for name in names}


def described(problem: Problem) -> Callable:
    """Program of all sites and the log density, given unconstrained values of sampled sites."""

    def at(free: dict, theta: dict, args: tuple) -> tuple[dict[str, Array], Array]:
        trace, _ = place(problem, free, args, theta)
        values = {name: trace[name]["value"] for name in (*theta, *free)}
        return values | deterministics(trace), sum_log_prob(trace)

    return at


def constrained(problem: Problem) -> Callable:
    """Program of the values of the sampled sites at each of their unconstrained draws."""

    def at(draws: dict, theta: dict, args: tuple) -> dict[str, Array]:
        def values(free: dict) -> dict[str, Array]:
            trace, _ = place(problem, free, args, theta)
            return {name: trace[name]["value"] for name in free}

        return lax.map(values, draws, batch_size=_BATCH)

    return at


def _coordinates(problem: Problem, theta: dict, first: dict, args: tuple) -> tuple[Array, Callable]:
    """Return unconstrained coordinates of the parameters as a vector, and the inverse map."""
    trace, _ = place(problem, first, args, theta)
    whole = {name: trace[name]["value"] for name in (*theta, *first)}
    return ravel_pytree(unconstrained_start(problem, whole, args, tuple(theta)))


def score(problem: Problem) -> Callable:
    """Program of means over draws of score, second derivatives and squared score of the parameters."""

    def at_draws(draws: dict, theta: dict, args: tuple) -> tuple[Array, Array, Array]:
        first = {name: value[0] for name, value in draws.items()}
        start, unravel = _coordinates(problem, theta, first, args)

        def log_density(point: Array, free: dict) -> Array:
            return sum_log_prob(place(problem, {**free, **unravel(point)}, args)[0])

        slope = jax.grad(log_density)

        def one(free: dict) -> tuple[Array, Array]:
            return slope(start, free), jax.jacfwd(slope)(start, free)

        def add(total: tuple, free: dict) -> tuple[tuple, None]:
            found, bend = one(free)
            return jax.tree.map(jnp.add, total, (found, bend, jnp.outer(found, found))), None

        size = len(start)
        blank = jnp.zeros(size), jnp.zeros((size, size)), jnp.zeros((size, size))
        total, _ = lax.scan(add, blank, draws)
        return jax.tree.map(lambda leaf: leaf / len(next(iter(draws.values()))), total)

    return at_draws


def moved(problem: Problem) -> Callable:
    """Program of the parameters after each of several steps in their unconstrained coordinates."""

    def after(steps: Array, first: dict, theta: dict, args: tuple) -> dict[str, Array]:
        start, unravel = _coordinates(problem, theta, first, args)

        def one(step: Array) -> dict[str, Array]:
            sites, _ = place(problem, {**first, **unravel(start + step)}, args)
            return {name: sites[name]["value"] for name in theta}

        return lax.map(one, steps)

    return after
