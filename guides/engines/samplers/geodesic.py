"""Hamiltonian Monte Carlo for models with points on spheres, which follow great circles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from sidebayes.models.blocks.manifolds import sphere
from sidebayes.models.blocks.manifolds.circles import unwound, wound
from sidebayes.models.blocks.manifolds.directions import draw_lengths

from sidebayes.common.fields import Count, NonNegative, Positive, Share

from ..base import KEEPS_NOTHING, EngineResult, Keeper, KeptEngine, Problem
from ..plumbing.clock import Clock
from ..plumbing.programs import compile_ahead, compiled, unchecked
from ..plumbing.progress import progress_bar
from ..problem.declared import approximation
from ..problem.density import (
    circular_sites,
    deterministics,
    latent_supports,
    place,
    unconstrained_start,
)
from ..steps.updates import refuse_restricted
from .chains import (
    chain_shapes,
    chain_starts,
    check_finite,
    draw_chains,
    recording,
    sampled,
)
from .hamiltonian.paths import MOST_STEPS
from .hamiltonian.warm_up import WarmUp, warm_up
from .points import check_lengths, place_points, points_of_spheres

__all__ = ["GeodesicHMC"]

_DIVERGENT = 1000.0
"""Gain of energy above which a trajectory counts as divergent, as in NumPyro."""


class _Chain(NamedTuple):
    """State of a chain.

    Attributes
    ----------
    rng_key : Array
    at : dict of Array
        Points of spheres, and unconstrained values of all other sites.
    energy, slope
        Negative log density there and its gradient; infinite and zero before the first transition.
    adapted : WarmUp
    """

    rng_key: Array
    at: dict[str, Array]
    energy: Array
    slope: dict[str, Array]
    adapted: WarmUp


class _Trajectory(NamedTuple):
    at: dict[str, Array]
    velocity: dict[str, Array]
    energy: Array
    slope: dict[str, Array]


@dataclass(frozen=True)
class GeodesicHMC(KeptEngine):
    r"""Hamiltonian Monte Carlo on spheres (Byrne and Girolami 2013): points move along great circles.

    This engine is for models that sample points of spheres by `sample_direction` or
    `sample_preshape`. Other engines move the vector whose direction is the point. This one moves
    the point itself, and all other sites as `HMC` does, along trajectories of random length. It
    needs no coordinates that bend, which matters if a point is close to uniform, or there are many.
    The length of the vector, which carries no information, is drawn from its distribution.

    Step size and widths are adapted in the warm-up: one width for each coordinate of other sites, and one for
    each point, whose geodesics allow no more. Chains move in step.

    Parameters
    ----------
    num_warmup : int
        Number of transitions of each chain that adapt the step size.
    num_samples : int
        Number of draws of each chain after the warm-up.
    num_chains : int
        Number of chains.
    target_accept : float
        Acceptance probability that the step size is adapted to, between 0 and 1.
    trajectory_length : float
        Mean length of a trajectory in posterior standard deviations; lengths are uniform between
        half and one and a half times this. A point without any data moves by about this angle, in
        radians.
    jitter : float
        Standard deviation of the move from `init`, in unconstrained units.

    References
    ----------
    Byrne and Girolami (2013), Scand. J. Stat. 40, 825-845, doi:10.1111/sjos.12036.

    Examples
    --------
    The mean direction of a few directions, by a von Mises-Fisher likelihood of known concentration:

    >>> import jax.numpy as jnp
    >>> import numpyro
    >>> import sidebayes
    >>> def model(x):
    ...     axis = sidebayes.sample_direction("axis", 3)
    ...     numpyro.factor("likelihood", 10.0 * (x @ axis).sum())
    >>> x = jnp.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.8, 0.0, 0.6]])
    >>> engine = sidebayes.GeodesicHMC(num_warmup=100, num_samples=100)
    >>> fit = sidebayes.fit(model, x, engine=engine, progress=False)
    >>> fit.tree["posterior"]["axis"].shape
    (4, 100, 3)
    """

    num_warmup: Count = 1000
    num_samples: Count = 2000
    num_chains: Count = 4
    target_accept: Share = 0.8
    trajectory_length: Positive = 1.5
    jitter: NonNegative = 0.05
    name: ClassVar[str] = "geodesic"
    starts_at_mode: ClassVar[bool] = True
    length: ClassVar[str] = "num_samples"

    def prepare(self, problem: Problem) -> None:
        """See `Engine.prepare`."""
        refuse_restricted(problem)
        points = points_of_spheres(problem)
        given = *chain_shapes(problem, self.num_chains), problem.args
        begin = partial(self._begin, points)
        if not compile_ahead(*self._asked("geodesic-begin", problem, begin), *given, once=True):
            return  # tracing it for its shapes would take more time than it saves
        with unchecked():
            blank = jax.eval_shape(begin(problem), *given)
        march = self._asked("geodesic-march", problem, partial(self._march, points))
        compile_ahead(*march, blank, problem.args, np.asarray(1))

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
        keep: Keeper = KEEPS_NOTHING,
    ) -> EngineResult:
        """Sample; see `Engine.run`.

        Raises
        ------
        ValueError
            If the model declares no point of a sphere, or its density depends on the length of a
            vector whose direction is such a point.
        FitError
            If the log density is not finite where a chain starts; the message names the sites to
            blame.
        """
        refuse_restricted(problem)
        approximate = approximation(problem)
        latent_supports(problem)
        points = points_of_spheres(problem)
        starts = chain_starts(problem, seed, self.num_chains, init, self.jitter)
        clock, total = Clock(), self.num_warmup + self.num_samples
        with progress_bar("Geodesic HMC", total, shown=progress) as advance:
            draws, stats = self._sample(problem, points, starts, advance, keep, clock)
        _lengthen(points, draws, stats, seed)
        mean_steps, longest = stats["n_steps"].mean(), stats["n_steps"].max()
        remark = f"; {mean_steps:.0f} leapfrog steps per draw"
        if longest >= MOST_STEPS:
            remark += f", some cut off at {MOST_STEPS}: rescale the data"
        return sampled(
            self,
            problem,
            draws,
            stats,
            remark=remark,
            seconds=clock.seconds,
            approximate=approximate,
        )

    def _sample(
        self,
        problem: Problem,
        points: tuple[str, ...],
        starts: tuple,
        advance: Callable[[int, str], None],
        keep: Keeper,
        clock: Clock,
    ) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Run all chains in step; draws and statistics are arrays of shape (chain, draw, ...)."""
        advance(0, "compiling")
        begin = partial(self._begin, points)
        state = clock.run(*self._asked("geodesic-begin", problem, begin), *starts, problem.args)
        check_lengths(problem, points, state.at, clock)
        asked = self._asked("geodesic-march", problem, partial(self._march, points))
        march = clock.counted(compiled(*asked, state, problem.args, np.asarray(1)))
        blame = "its gradient is not finite"
        with clock.running():
            return draw_chains(
                march,
                state,
                problem.args,
                num_warmup=self.num_warmup,
                num_samples=self.num_samples,
                advance=advance,
                keep=keep,
                check=partial(check_finite, type(self).__name__, blame, problem),
            )

    def _asked(self, name: str, problem: Problem, build: Callable) -> tuple:
        """Return arguments of `compiled` and `compile_ahead`."""
        settings = self.num_warmup, self.target_accept, self.trajectory_length
        return name, problem, settings, build

    def _adaptation(self) -> tuple[Callable, Callable]:
        learning = self.num_warmup - 1  # since the first transition does not move
        return warm_up(learning, target_accept=self.target_accept, by_slopes=False)

    def _begin(self, points: tuple[str, ...], problem: Problem) -> Callable:
        ready, _ = self._adaptation()

        def begin(keys: Array, moves: Array, start: dict, args: tuple) -> _Chain:
            def one(key: Array, move: Array, start: dict) -> _Chain:
                flat, unravel = ravel_pytree(unconstrained_start(problem, start, args))
                free = unravel(flat + move[: flat.size])
                trace, _ = place(problem, free, args)
                free = wound(free, circular_sites(trace))
                at = free | {name: _unit(trace[name]["value"]) for name in points}
                blank = jax.tree.map(jnp.zeros_like, at)
                adapted = ready(ravel_pytree(at)[0].size)
                return _Chain(key, at, jnp.asarray(jnp.inf), blank, adapted)

            return jax.vmap(one)(jax.random.wrap_key_data(keys), moves, start)

        return begin

    def _march(self, points: tuple[str, ...], problem: Problem) -> Callable:
        _, adapt = self._adaptation()

        def transition(state: _Chain, args: tuple) -> tuple[_Chain, tuple[dict, dict]]:
            key, *keys = jax.random.split(state.rng_key, 4)
            width = _widths(state, points)
            most = state.adapted.step_size
            length = self.trajectory_length * jax.random.uniform(keys[0], minval=0.5, maxval=1.5)
            count = jnp.clip(jnp.ceil(length / most), 1, MOST_STEPS).astype(int)
            # where a density is flat, any step is accepted, and adaptation ends with huge steps
            step = jnp.minimum(most, length / count)
            # the first transition only finds energy and slope where the chain starts, and does not move
            is_first = jnp.isinf(state.energy)
            step, count = jnp.where(is_first, 0.0, step), jnp.where(is_first, 1, count)

            begun = _Trajectory(
                state.at, _velocity(keys[1], state.at, width, points), state.energy, state.slope
            )
            leap = _leapfrog(problem, points, width, step, args)
            end = lax.fori_loop(0, count, lambda _, carry: leap(carry), begun)
            before, after = _total(begun, width), _total(end, width)
            gain = jnp.where(jnp.isnan(after - before), jnp.inf, after - before)
            accepted = jnp.log(jax.random.uniform(keys[2])) < -gain
            at, energy, slope = jax.tree.map(
                partial(jnp.where, accepted),
                (end.at, end.energy, end.slope),
                (state.at, state.energy, state.slope),
            )
            chance = jnp.exp(jnp.minimum(0.0, -gain))
            flat = (ravel_pytree(one)[0] for one in (at, slope))
            adapted = adapt(state.adapted, *flat, chance, ~is_first)
            new = _Chain(key, at, energy, slope, adapted)
            sites, _ = place_points(problem, points, at, args)
            return new, (
                {name: sites[name]["value"] for name in at} | deterministics(sites),
                {
                    "lp": -energy + unwound(at, circular_sites(sites)),
                    "diverging": gain > _DIVERGENT,
                    "energy": jnp.where(accepted, after, before),
                    "acceptance_rate": chance,
                    "n_steps": count,
                    "step_size": most,
                },
            )

        return recording(transition)


def _unit(vector: Array) -> Array:
    return vector / jnp.linalg.norm(vector, axis=-1, keepdims=True)


def _widths(state: _Chain, points: tuple[str, ...]) -> dict[str, Array]:
    """Return squared widths of the posterior by coordinate; all coordinates of a point share one width."""
    unravel = ravel_pytree(state.at)[1]
    found = unravel(state.adapted.metric.scale**2)
    for name in points:
        size = found[name].shape[-1]  # including one direction along the radius
        pooled = found[name].mean(axis=-1, keepdims=True) * size / (size - 1)
        found[name] = jnp.broadcast_to(pooled, found[name].shape)
    return found


def _velocity(
    key: Array, at: dict[str, Array], width: dict[str, Array], points: tuple[str, ...]
) -> dict[str, Array]:
    """Draw velocities: normal, and in tangent spaces for points of spheres."""
    flat, unravel = ravel_pytree(width)
    found = unravel(jnp.sqrt(flat) * jax.random.normal(key, flat.shape))
    return found | {name: sphere.tangent(at[name], found[name]) for name in points}


def _total(where: _Trajectory, width: dict[str, Array]) -> Array:
    """Return the total energy, including kinetic energy."""
    squares = jax.tree.map(lambda v, w: (jnp.square(v) / w).sum(), where.velocity, width)
    return where.energy + sum(jax.tree.leaves(squares)) / 2


def _leapfrog(
    problem: Problem, points: tuple[str, ...], width: dict[str, Array], step: Array, args: tuple
) -> Callable[[_Trajectory], _Trajectory]:
    """Function of one leapfrog step: half a change of velocity, a move, and the other half."""

    def potential(at: dict[str, Array]) -> Array:
        return -place_points(problem, points, at, args)[1]

    def kick(
        at: dict[str, Array], velocity: dict[str, Array], slope: dict[str, Array]
    ) -> dict[str, Array]:
        new = jax.tree.map(lambda v, w, s: v - step / 2 * w * s, velocity, width, slope)
        return new | {name: sphere.tangent(at[name], new[name]) for name in points}

    def leap(begun: _Trajectory) -> _Trajectory:
        velocity = kick(begun.at, begun.velocity, begun.slope)
        at = jax.tree.map(lambda z, v: z + step * v, begun.at, velocity)
        for name in points:
            moved, velocity[name] = sphere.flow(begun.at[name], velocity[name], step)
            at[name] = _unit(moved)  # otherwise, rounding errors would add up
        energy, slope = jax.value_and_grad(potential)(at)
        usable = jnp.isfinite(ravel_pytree(slope)[0]).all()
        return _Trajectory(at, kick(at, velocity, slope), jnp.where(usable, energy, jnp.inf), slope)

    return leap


def _lengthen(
    points: tuple[str, ...], draws: dict[str, NDArray], stats: dict[str, NDArray], seed: int
) -> None:
    """Give vectors along points lengths from their distribution, and draws the log density of the vectors."""
    rng = np.random.default_rng([seed, 2])
    for name in points:
        *shape, size = draws[name].shape
        lengths, log_ratio = draw_lengths(rng, size, tuple(shape))
        draws[name] = draws[name] * lengths[..., None]
        stats["lp"] = stats["lp"] + log_ratio.reshape(*stats["lp"].shape, -1).sum(axis=-1)
