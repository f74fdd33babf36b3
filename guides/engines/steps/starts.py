"""Starting values: at partitions; for other sites near zero or at draws of priors; or as given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from numpyro import handlers
from numpyro.distributions import constraints
from scipy.special import expit
from sidebayes.models.blocks.block_facts import Starting, TakesMissing, Typical
from sidebayes.models.blocks.components.partition_starts import partition_labels

from ..base import Problem
from ..machine.memory import most_within, refuse_beyond_memory
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..problem.declared import finite_mixtures, individual_sites, observed_table
from ..problem.density import (
    abstract_trace,
    as_numpy,
    filled,
    filling,
    latent_sites,
    log_joint,
    traced,
)
from ..problem.honoured import Honoured, is_improper
from ..problem.importance import AT_ONCE
from ..problem.prior_draws import prior_draws
from ..problem.values import check_start, evaluated, may_vanish, trace_anywhere
from .surrogate import allot, expectation, raise_surrogate
from .update_checks import called, returned
from .updates import block_of, is_ours, is_own, plan_updates

__all__ = [
    "has_walls",
    "initial_values",
    "num_candidates",
    "random_keys",
    "starting_point",
    "with_density",
]

_SEEDED_STEPS = 50
"""Number of gradients of L-BFGS that fit components without closed form to a partition."""

_CANDIDATES = 4, 8
"""Minimum and maximum number of starts drawn for each climb to the end, where labels are latent."""

_ENTRIES = 100_000
"""Product of entries of the data, clusters and such starts up to which more than the minimum are drawn."""

_SHARE = 0.05
"""Share of the memory above which fewer starts are drawn."""

_PRIOR_DRAWS = 1000
"""Number of draws of the prior that are searched for starts where the density may be zero."""

_WIDE = 3.0
"""Standard deviation of unconstrained coordinates in these draws where a prior is flat."""

_ELEMENTWISE: dict[type, Callable[[NDArray], NDArray]] = {
    type(constraints.real): np.positive,
    type(constraints.positive): np.exp,
    type(constraints.unit_interval): expit,
}
"""Maps from unconstrained numbers to supports that run without a compiled program."""


def starting_point(problem: Problem, init: Any) -> dict[str, Any]:
    """Return the values of the latent sites, as NumPy arrays, from a mapping or a result's ``params``.

    Raises
    ------
    ValueError
        If a latent site has no value, or one of another shape.
    """
    values = getattr(init, "params", init)
    found = {}
    for name, site in latent_sites(abstract_trace(problem)).items():
        if name not in values:
            raise ValueError(f"init has no value for site {name!r}; it has {sorted(values)}")
        value = np.asarray(values[name], jnp.result_type(float))
        shape = jnp.shape(site["value"])
        if value.shape != shape:
            raise ValueError(f"init[{name!r}] has shape {value.shape}; expected {shape}")
        found[name] = value
    return found


def initial_values(
    problem: Problem,
    seed: int,
    num_starts: int,
    *,
    seeded: bool = False,
    clock: Clock | None = None,
) -> dict[str, NDArray]:
    """Starting values for several runs, each array with a leading axis of length `num_starts`.

    Blocks declare where their sites start; Gaussians, for example, start at the moments of partitions.
    Weights start uniform, other sites near zero in unconstrained space. Starts of zero density, such as
    those whose support excludes some data, are replaced by draws of the prior at which it is not zero.

    Parameters
    ----------
    problem : Problem
    seed, num_starts : int
    seeded : bool
        Fit sites to partitions of the data, where labels are latent and no block has starts. In every
        second start, sites without a block are at draws of their priors. Duplicate starts are dropped.
    clock : Clock, optional
        Counts the time of compilation.
    """
    clock = clock or Clock()
    latent = latent_sites(abstract_trace(problem))
    shapes = {name: jnp.shape(site["value"]) for name, site in latent.items()}
    found, located, own = _of_blocks(problem, shapes, seed, num_starts)
    for name, site in latent.items():
        if name not in found and site["fn"].support is constraints.simplex:
            found[name] = np.full(shapes[name], 1.0 / shapes[name][-1])
    rest = _near_zero(problem, latent, seed, num_starts, set(shapes) - set(found), clock)
    real = jnp.result_type(float)
    size = num_starts * sum(map(math.prod, shapes.values()))
    refuse_beyond_memory(f"{num_starts} starting points", size * real.itemsize, latent)
    starts = {
        name: np.broadcast_to(
            found[name] if name in found else rest[name], (num_starts, *shape)
        ).astype(real)
        for name, shape in shapes.items()
    }
    if own:
        check_start(problem, {name: values[0] for name, values in starts.items()}, own)
    if not seeded:
        return with_density(problem, starts, seed, clock)
    for name, values in prior_draws(latent, seed, num_starts // 2).items():
        starts[name][1::2] = values
    starts = with_density(problem, starts, seed, clock)
    return _distinct(starts if located else _seeded(problem, starts, seed, clock))


def has_walls(problem: Problem) -> bool:
    """Return whether the density may be zero in a part of the space; in the library's models it is not."""
    return not is_ours(problem) and may_vanish(problem)


def with_density(
    problem: Problem, starts: dict[str, NDArray], seed: int, clock: Clock
) -> dict[str, NDArray]:
    """Replace starts at which the density is zero by draws of the prior at which it is not.

    All starts stay where there are no such draws.
    """
    if not has_walls(problem):
        return starts
    lacking = np.flatnonzero(np.isneginf(log_densities(problem, starts, clock)))
    if not len(lacking):
        return starts

    def build(bare: Problem) -> Callable:
        return lambda keys, args: jax.lax.map(
            lambda key: _prior_draw(bare, jax.random.wrap_key_data(key), args),
            keys,
            batch_size=AT_ONCE,
        )

    each = sum(values[0].nbytes for values in starts.values())
    inputs = random_keys(seed, most_within(_SHARE, _PRIOR_DRAWS, each)), problem.args
    program = clock.counted(compiled("prior-starts", problem, None, build, *inputs, once=True))
    drawn = as_numpy(program(*inputs))
    found = np.flatnonzero(np.isfinite(log_densities(problem, drawn, clock)))
    if not len(found):
        return starts
    taken = found[np.arange(len(lacking)) % len(found)]
    for name, values in drawn.items():
        starts[name][lacking] = values[taken]
    return starts


def _prior_draw(problem: Problem, key: Array, args: tuple) -> dict[str, Array]:
    """Draw latent sites from their priors; those with a flat prior, widely in unconstrained space."""
    of_priors, of_flat = jax.random.split(key)

    def fill(site: dict) -> Array | None:
        flat = site["type"] == "sample" and not site["is_observed"] and is_improper(site["fn"])
        return (
            filling(lambda shape: _WIDE * jax.random.normal(of_flat, shape))(site) if flat else None
        )

    model = handlers.substitute(Honoured(problem.model), substitute_fn=fill)
    sites = traced(handlers.seed(model, of_priors), args, problem.kwargs)
    return {name: site["value"] for name, site in latent_sites(sites).items()}


def log_densities(problem: Problem, points: Mapping[str, Any], clock: Clock) -> NDArray:
    """Log joint density at points along a leading axis."""

    def build(bare: Problem) -> Callable:
        return lambda points, args: jax.lax.map(
            lambda point: log_joint(bare, point, args), points, batch_size=AT_ONCE
        )

    inputs = dict(points), problem.args
    program = clock.counted(compiled("densities", problem, None, build, *inputs, once=True))
    return np.asarray(program(*inputs))


def num_candidates(problem: Problem, num_restarts: int, *, by_updates: bool = False) -> int:
    """Return how many starts to draw, for a climb to the end from some of them.

    More are drawn where labels are latent, unless they would fill the memory. The maximum is drawn where the
    climb uses updates of blocks (`by_updates`), all of them in closed form, and data are few.
    """
    trace = abstract_trace(problem)
    hidden = [fn.num_clusters for fn, _ in finite_mixtures(trace).values()]
    if num_restarts == 1 or max(hidden, default=1) == 1:
        return num_restarts
    entries = sum(np.size(leaf) for leaf in jax.tree.leaves(problem.args)) * max(hidden)
    fewest, most = _CANDIDATES
    quick = by_updates and not plan_updates(problem).rest
    times = int(np.clip(_ENTRIES / entries, fewest, most)) if quick else fewest
    sites = latent_sites(trace).values()
    each = sum(np.size(site["value"]) for site in sites) * jnp.result_type(float).itemsize
    return max(num_restarts, most_within(_SHARE, num_restarts * times, each))


def _distinct(starts: dict[str, NDArray]) -> dict[str, NDArray]:
    """Keep one start of several that are equal."""
    number = len(next(iter(starts.values())))
    table = np.concatenate([values.reshape(number, -1) for values in starts.values()], axis=1)
    first = np.sort(np.unique(table, axis=0, return_index=True)[1])
    return {name: values[first] for name, values in starts.items()}


def _of_blocks(
    problem: Problem, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
) -> tuple[dict[str, NDArray], bool, dict[str, str]]:
    """Return the starts that blocks declare from the data of the first site that they learn from, or a guess.

    Also return whether these starts distinguish clusters, and for sites of a user's own blocks the method.
    """
    guesses = _guesses(problem)
    found: dict[str, NDArray] = dict(guesses)
    located = False
    own: dict[str, str] = {}
    trace = abstract_trace(problem)
    for part in plan_updates(problem).starting:
        source = part.sources[0]
        data = guesses[source] if source in guesses else observed_table(problem, source)
        block = block_of(trace, part)
        if data is not None and (np.isfinite(data).all() or isinstance(block, TakesMissing)):
            sizes = {role: shapes[name] for role, name in part.sites.items()}
            method, given = _starting_method(block, data, sizes, seed, num_starts)
            if method is None:
                continue
            values = called(block, method, *given)
            at = returned(block, method, part, values, shapes, some=True, num_starts=num_starts)
            found |= at
            located |= method == "starts" and bool(at)
            if is_own(block):
                own |= dict.fromkeys(at, f"{type(block).__name__}.{method}")
    return found, located, own


def _starting_method(
    block: Any, data: NDArray, sizes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
) -> tuple[str | None, tuple[Any, ...]]:
    """Return the method by which a block declares starts, if any, and its arguments."""
    if isinstance(block, Starting):
        return "starts", (data, sizes, seed, num_starts)
    if isinstance(block, Typical):
        return "typical", (sizes,)
    return None, ()


def _guesses(problem: Problem) -> dict[str, NDArray]:
    """Return rough values of latent rows of individuals."""
    names = individual_sites(problem)
    if not names:
        return {}

    def guesses() -> dict[str, Array]:
        trace = trace_anywhere(problem)
        return {name: trace[name]["infer"]["block"].guess() for name in names}

    return as_numpy(evaluated(guesses))


def _seeded(
    problem: Problem, starts: dict[str, NDArray], seed: int, clock: Clock
) -> dict[str, NDArray]:
    """Fit starts to partitions of the rows of the first site whose labels are latent."""
    trace = abstract_trace(problem)
    plain = finite_mixtures({n: site for n, site in trace.items() if site.get("scale") is None})
    labelled = [(n, fn) for n, (fn, _) in plain.items() if fn.is_density]
    if not labelled:
        return starts
    name, fn = labelled[0]
    data = observed_table(problem, name)
    if data is None or not np.isfinite(data).all():
        return starts
    number = len(next(iter(starts.values())))
    labels = partition_labels(data.reshape(len(data), -1), fn.num_clusters, seed, number)

    def build(bare: Problem) -> Callable:
        def one(start: dict, label: Array, args: tuple) -> dict:
            posterior = allot(expectation(bare, start, args)[1], name, label)
            return raise_surrogate(bare, start, args, posterior, _SEEDED_STEPS)

        return jax.vmap(one, in_axes=(0, 0, None))

    inputs = starts, labels, problem.args
    fit = clock.counted(compiled("seeded", problem, _SEEDED_STEPS, build, *inputs))
    return as_numpy(fit(*inputs))


def _near_zero(
    problem: Problem,
    latent: Mapping[str, dict],
    seed: int,
    num_starts: int,
    wanted: set[str],
    clock: Clock,
) -> dict[str, NDArray]:
    """Draw values of the wanted sites around zero in unconstrained space."""
    if not wanted:
        return {}
    # drawn on the host: compiled random numbers cost a second or two of every first fit
    sizes = [math.prod(jnp.shape(site["value"])) for site in latent.values()]
    noise = np.random.default_rng(seed).uniform(-1.0, 1.0, (num_starts, sum(sizes)))
    kinds = {name: type(latent[name]["fn"].support) for name in wanted}
    if all(kind in _ELEMENTWISE for kind in kinds.values()):
        own = dict(zip(latent, np.split(noise, np.cumsum(sizes[:-1]), axis=1), strict=True))
        return {
            name: _ELEMENTWISE[kind](own[name]).reshape(-1, *jnp.shape(latent[name]["value"]))
            for name, kind in kinds.items()
        }

    def build(bare: Problem) -> Callable:
        def start(noise: Array, args: tuple) -> dict[str, Array]:
            used = 0

            def draw(shape: tuple[int, ...]) -> Array:
                nonlocal used
                taken = noise[used : used + math.prod(shape)]  # no support has more coordinates
                used += math.prod(shape)
                return taken.reshape(shape)

            sites = traced(filled(bare.model, filling(draw)), args, bare.kwargs)
            return {name: sites[name]["value"] for name in latent}

        return jax.vmap(start, in_axes=(0, None))

    inputs = noise.astype(jnp.result_type(float)), problem.args
    program = clock.counted(compiled("starts", problem, num_starts, build, *inputs, once=True))
    return as_numpy(program(*inputs))


def random_keys(seed: int, count: int) -> NDArray[np.uint32]:
    """Raw random keys, for `jax.random.wrap_key_data`; made on the host, as JAX would compile programs."""
    return (
        np.random.SeedSequence(seed).generate_state(2 * count).astype(np.uint32).reshape(count, 2)
    )
