"""Chains of draws, made in short pieces, so that progress can be shown and the state kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from ..base import EngineResult, FitError, Keeper, Problem, Status
from ..plumbing.programs import compiled
from ..plumbing.progress import piece_length
from ..problem.causes import advice, explain_nonfinite, out_of_range
from ..problem.density import abstract_trace, latent_sites, unconstrained_start
from ..problem.importance import flat_density
from ..steps.starts import has_walls, initial_values, random_keys, starting_point

__all__ = [
    "chain_shapes",
    "chain_starts",
    "check_finite",
    "divergences",
    "draw_chains",
    "recording",
    "sampled",
]

_FEW, _MANY = 50, 250
"""Maximum numbers of transitions per piece, for large draws, and for small ones, whose pieces end soon."""

_SMALL = 4_000
"""Maximum size, in numbers, of a small draw of all chains of a program."""

_FIRST = 4

_FACTORS = np.array([1.0, -1.0, 0.25, -0.25, 0.05, -0.05, 0.01, -0.01, 1e-3, -1e-3, 0.0])
"""Factors of moves from a mode, in the order in which they are tried."""

_HIGH = 0.99
"""Acceptance of trajectories from which on a higher one hardly helps."""


def chain_starts(
    problem: Problem, seed: int, num_chains: int, init: Mapping[str, Any] | None, jitter: float
) -> tuple[NDArray, NDArray, dict[str, NDArray]]:
    """Return where chains start: around `init`, or at starts of their own.

    Parameters
    ----------
    problem : Problem
    seed, num_chains : int
    init : mapping or None
    jitter : float
        Standard deviation of the moves, in unconstrained units; none without `init`.

    Returns
    -------
    keys : ndarray of int, shape (num_chains, 2)
        See `random_keys`.
    moves : ndarray, shape (num_chains, num_coordinates)
        Moves to be added to the unconstrained coordinates, which may be fewer.
    point : dict of ndarray, shape (num_chains, ...)
    """
    if init is None:
        point, jitter = initial_values(problem, seed, num_chains), 0.0
    else:
        one = starting_point(problem, init)
        point = {n: np.broadcast_to(v, (num_chains, *v.shape)) for n, v in one.items()}
    # drawn on the host, as compiled random numbers cost seconds; sites have no more coordinates than this
    width = sum(value[0].size for value in point.values())
    noise = np.random.default_rng(seed).normal(scale=jitter, size=(num_chains, width))
    moves = noise.astype(jnp.result_type(float))
    if jitter and has_walls(problem):
        moves = _inside(problem, point, moves)
    return random_keys(seed, num_chains), moves, point


def _inside(problem: Problem, point: dict[str, NDArray], moves: NDArray) -> NDArray:
    """Return moves to points of positive density; where it is zero, a move is reversed or shortened."""

    def build(bare: Problem) -> Callable:
        def one(given: tuple[dict, Array], args: tuple) -> Array:
            point, move = given
            flat, unravel = ravel_pytree(unconstrained_start(bare, point, args))
            density = flat_density(bare, unravel(flat), args)
            return jax.lax.map(
                lambda factor: jnp.isfinite(density(flat + factor * move[: flat.size])), _FACTORS
            )

        return lambda points, moves, args: jax.lax.map(lambda at: one(at, args), (points, moves))

    given = point, moves, problem.args
    program, _ = compiled("inside", problem, None, build, *given, once=True)
    chosen = _FACTORS[np.asarray(program(*given)).argmax(axis=1)]
    return moves * chosen[:, None].astype(moves.dtype)


def chain_shapes(problem: Problem, num_chains: int) -> tuple:
    """Return the shapes of the results of `chain_starts`."""
    point = {
        name: jax.ShapeDtypeStruct((num_chains, *jnp.shape(site["value"])), jnp.result_type(float))
        for name, site in latent_sites(abstract_trace(problem)).items()
    }
    width = sum(math.prod(value.shape[1:]) for value in point.values())
    moves = jax.ShapeDtypeStruct((num_chains, width), jnp.result_type(float))
    return random_keys(0, num_chains), moves, point


def recording(transition: Callable) -> Callable:
    """Program that makes some transitions of chains in step, and records the result of each.

    Parameters
    ----------
    transition : callable
        ``transition(state, args) -> (state, found)`` for one chain.

    Returns
    -------
    march : callable
        ``march(state, args, count) -> (state, found)``; `found` has shape (draw, chain, ...), and only the
        first `count` places of its leading axis are filled. There are 250 places, or 50 if draws are
        large.
    """

    @jax.jit  # traced only once
    def both(state: Any, args: tuple):
        if len(jax.tree.leaves(state)[0]) > 1:
            return jax.vmap(transition, in_axes=(0, None))(state, args)
        # a single chain is not batched, as a loop would then evaluate batched conditions
        found = transition(jax.tree.map(lambda leaf: leaf[0], state), args)
        return jax.tree.map(lambda leaf: leaf[None], found)

    def march(state: Any, args: tuple, count: Array):
        shapes = jax.eval_shape(both, state, args)[1]
        size = sum(math.prod(s.shape) for s in jax.tree.leaves(shapes))
        places = _MANY if size <= _SMALL else _FEW
        kept = jax.tree.map(lambda s: jnp.zeros((places, *s.shape), s.dtype), shapes)

        def step(number: Array, carry):
            state, kept = carry
            state, found = both(state, args)
            return state, jax.tree.map(lambda a, b: a.at[number].set(b), kept, found)

        return lax.fori_loop(0, count, step, (state, kept))

    return march


def draw_chains(
    march: Callable,
    state: Any,
    args: tuple,
    *,
    num_warmup: int,
    num_samples: int,
    advance: Callable[[int, str], None],
    keep: Keeper,
    check: Callable[[Any, Any], None] = lambda state, found: None,
) -> Any:
    """Warm up chains and draw, in pieces of about half a second.

    Parameters
    ----------
    march : callable
        From `recording`, compiled.
    state : pytree
        State of all chains before their first transition.
    args : tuple
    num_warmup, num_samples : int
        Numbers of transitions that are discarded, and that are kept.
    advance : callable
        As from `progress_bar`.
    keep : Keeper
        Keeps state and draws.
    check : callable
        Receives state and records after every piece, and may raise an error.

    Returns
    -------
    pytree of ndarray, shape (chain, num_samples, ...)
    """
    _, found = march(state, args, np.asarray(0))
    blank = jax.tree.map(lambda a: np.zeros((num_samples, *a.shape[1:]), a.dtype), found)
    most = len(jax.tree.leaves(found)[0])
    state, kept, done = keep.restore((state, blank, 0))
    done, wanted = int(done), _FIRST
    while done < num_warmup + num_samples:
        at = done - num_warmup
        steps = min(wanted, most, -at if at < 0 else num_samples - at)
        began = time.perf_counter()
        state, found = march(state, args, np.asarray(steps))
        wanted = piece_length(steps, time.perf_counter() - began)
        found = jax.tree.map(lambda leaf, n=steps: np.asarray(leaf)[:n], found)
        check(state, found)
        if at >= 0:
            for whole, part in zip(jax.tree.leaves(kept), jax.tree.leaves(found), strict=True):
                whole[at : at + steps] = part
        done += steps
        keep.offer((state, kept, done))
        advance(steps, "warm-up" if at < 0 else "sampling")
    keep.offer((state, kept, done), now=True)
    return jax.tree.map(lambda whole: np.swapaxes(whole, 0, 1), kept)


def check_finite(
    title: str, otherwise: str, problem: Problem, state: Any, found: tuple[dict, dict]
) -> None:
    """Refuse log densities that are not finite.

    Parameters
    ----------
    title : str
        The engine's name in messages.
    otherwise : str
        Cause to name if the density of every site is finite.
    problem : Problem
    state : pytree
        State of the chains; not used.
    found : tuple of dict
        Draws and statistics, arrays of shape (draw, chain, ...).

    Raises
    ------
    FitError
        The message names the chain and the sites to blame.
    """
    bad = np.argwhere(~np.isfinite(found[1]["lp"]))
    if not len(bad):
        return
    draw, chain = bad[0]
    latent = latent_sites(abstract_trace(problem))
    values = {name: found[0][name][draw, chain] for name in latent}
    blame = explain_nonfinite(problem, values) or otherwise
    raise FitError(
        f"{title}: chain {chain} is where the log density cannot be used: {blame}; "
        f"{advice(problem, blame)}",
        values,
    )


def sampled(
    engine: Any,
    problem: Problem,
    draws: dict[str, NDArray],
    stats: dict[str, NDArray],
    *,
    remark: str,
    seconds: dict[str, float],
    approximate: str | None,
) -> EngineResult:
    """Make the result of an engine whose chains move along Hamiltonian trajectories.

    Parameters
    ----------
    engine : Engine
        Has fields `num_chains`, `num_samples` and `target_accept`.
    problem : Problem
    draws, stats : dict of ndarray, shape (chain, draw, ...)
    remark : str
        End of its message.
    seconds, approximate
        See `EngineResult`.
    """
    message, sound = divergences(problem, stats, engine.target_accept)
    message = f"{type(engine).__name__} drew {engine.num_chains} x {engine.num_samples} {message}"
    return EngineResult(
        engine=engine.name,
        draws=draws,
        sample_stats=stats,
        objective=np.zeros((0, 0)),
        status=Status(sound, message + remark),
        seconds=seconds,
        approximate=approximate,
        density_space="unconstrained",
    )


def divergences(
    problem: Problem, stats: dict[str, NDArray], target_accept: float, where: str = ""
) -> tuple[str, bool]:
    """Return text on divergences for a message, and whether fewer than one in a hundred draws has one.

    Parameters
    ----------
    problem : Problem
    stats : dict of ndarray
        Has ``diverging``, shape (chain, draw).
    target_accept : float
        Of the trajectories.
    where : str
        Text after their number.
    """
    number = int(stats["diverging"].sum())
    said = f"with {number} divergence{'s' * (number != 1)}{where}"
    if number:
        if cause := out_of_range(problem):
            said += f"; {cause}"
        elif target_accept < _HIGH:
            said += "; raise target_accept, or check the prior for a funnel"
        else:
            said += (
                f" at target_accept = {target_accept:g}; check the prior for a funnel, or reparametrise "
                "the model"
            )
    return said, number < 0.01 * stats["diverging"].size
