"""Markov chain Monte Carlo over continuous parameters, labels summed out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from numpyro.infer.hmc import hmc
from numpyro.infer.util import ParamInfo

from .base import EngineResult, FitError, Problem, Status, check_positive
from .checkpoint import Keeper, check_checkpoint, keeping
from .density import (
    approximation,
    deterministics,
    explain_nonfinite,
    latent_supports,
    place,
    sum_log_prob,
    unconstrained_start,
)
from .programs import compiled
from .progress import progress_bar
from .starts import initial_values, starting_point

__all__ = ["NUTS"]

_CHUNK = 50
"""Draws between two looks at the progress bar."""

_UNKNOWN = 1e20
"""Energy of a start before it is known: any move to a finite energy is accepted."""

_CHAIN_METHODS = ("vectorized", "sequential")


@dataclass(frozen=True)
class NUTS:
    """No-U-turn sampler (Hoffman and Gelman 2014), with NumPyro's kernel and adaptation.

    Chains start around `init`, a mode found by EM say, each moved at random in unconstrained
    space. Runs of equal structure and equal shapes share one compiled program, whatever their
    data and number of samples.

    Parameters
    ----------
    num_warmup, num_samples, num_chains : int
    target_accept : float
        Acceptance probability that the step size is adapted to, between 0 and 1.
    dense_mass : bool
        Adapt a full mass matrix rather than a diagonal one.
    max_tree_depth : int
    jitter : float
        Standard deviation of the move from `init`, in unconstrained units.
    chain_method : {"vectorized", "sequential"}
        All chains in step, or one after the other, which needs no chain to wait for the longest
        trajectory of the others.
    checkpoint : path, optional
        File that keeps the state of the run, so that the same call goes on after an interruption.
    checkpoint_every : float
        Seconds between two writings.

    References
    ----------
    Hoffman and Gelman (2014), J. Mach. Learn. Res. 15, 1593-1623.
    """

    num_warmup: int = 1000
    num_samples: int = 1000
    num_chains: int = 4
    target_accept: float = 0.8
    dense_mass: bool = False
    max_tree_depth: int = 10
    jitter: float = 0.05
    chain_method: str = "vectorized"
    checkpoint: str | None = None
    checkpoint_every: float = 60.0
    name: ClassVar[str] = "nuts"

    def __post_init__(self) -> None:
        check_positive(
            self,
            num_warmup=1,
            num_samples=1,
            num_chains=1,
            target_accept=0.0,
            max_tree_depth=1,
            jitter=0.0,
        )
        if not 0 < self.target_accept < 1:
            raise ValueError(
                f"NUTS(target_accept={self.target_accept!r}): expected a number between 0 and 1"
            )
        if self.chain_method not in _CHAIN_METHODS:
            raise ValueError(
                f"NUTS(chain_method={self.chain_method!r}): expected one of {_CHAIN_METHODS}"
            )
        check_checkpoint(self)

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> EngineResult:
        """Sample; see `Engine.run`.

        Raises
        ------
        FitError
            If the log density is not finite where a chain starts, naming the sites to blame.
        """
        approximate = approximation(problem)
        latent_supports(problem)
        if init is None:
            point, jitter = initial_values(problem, seed, self.num_chains), 0.0
        else:
            one = starting_point(problem, init)
            point = {n: jnp.broadcast_to(v, (self.num_chains, *v.shape)) for n, v in one.items()}
            jitter = self.jitter
        keys = jax.random.split(jax.random.key(seed), self.num_chains)
        # drawn here: compiled random numbers cost seconds; supports have no more freedom than this
        width = sum(value[0].size for value in point.values())
        noise = np.random.default_rng(seed).normal(scale=jitter, size=(self.num_chains, width))
        moves = jnp.asarray(noise, jnp.result_type(float))
        per_group = self.num_chains if self.chain_method == "vectorized" else 1
        seconds = {"compile": 0.0, "run": 0.0}
        groups = []
        total = (self.num_warmup + self.num_samples) * (self.num_chains // per_group)
        with (
            progress_bar("NUTS", total, shown=progress) as advance,
            keeping(self, problem, seed, init) as keep,
        ):
            for first in range(0, self.num_chains, per_group):
                group = slice(first, first + per_group)
                chains = jax.tree.map(lambda leaf, g=group: leaf[g], (keys, moves, point))
                groups.append(self._sample(problem, chains, seconds, advance, keep.part(first)))
        draws, stats = jax.tree.map(lambda *parts: np.concatenate(parts), *groups)
        return self._result(draws, stats, seconds, approximate)

    def _sample(
        self,
        problem: Problem,
        chains: tuple,
        seconds: dict[str, float],
        advance: Callable[[int, str], None],
        keep: Keeper,
    ) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Run some chains in step; returns draws and statistics, arrays of (chain, draw, ...)."""
        settings = (self.num_warmup, self.target_accept, self.dense_mass, self.max_tree_depth)
        advance(0, "compiling")
        begin, first = compiled("nuts-begin", problem, settings, self._begin, *chains, problem.args)
        blank = begin(*chains, problem.args)
        march, second = compiled(
            "nuts-march", problem, settings, self._march, blank, problem.args, jnp.asarray(1)
        )
        seconds["compile"] += first + second
        began = time.perf_counter()
        state = self._with_gradient(problem, blank, march)
        _, out = march(state, problem.args, jnp.asarray(0))
        blank = jax.tree.map(lambda a: np.zeros((self.num_samples, *a.shape[1:]), a.dtype), out)
        state, kept, done = keep.restore((state, blank, 0))
        while done < self.num_warmup + self.num_samples:
            at = int(done) - self.num_warmup
            steps = min(_CHUNK, -at if at < 0 else self.num_samples - at)
            state, out = jax.block_until_ready(march(state, problem.args, jnp.asarray(steps)))
            if at >= 0:
                for whole, part in zip(jax.tree.leaves(kept), jax.tree.leaves(out), strict=True):
                    whole[at : at + steps] = part[:steps]
            done += steps
            keep.offer((state, kept, done))
            advance(steps, "warm-up" if at < 0 else "sampling")
        keep.offer((state, kept, done), now=True)
        seconds["run"] += time.perf_counter() - began
        return jax.tree.map(lambda whole: np.swapaxes(whole, 0, 1), kept)

    def _kernel(self, problem: Problem) -> tuple[Callable, Callable]:
        """NumPyro's transition, and the function that readies it for a state."""

        def potential(*args: Any) -> Callable[[dict], Array]:
            @jax.jit
            def energy(free: dict[str, Array]) -> Array:
                trace, log_det = place(problem, free, args)
                return -sum_log_prob(trace) - log_det

            return energy

        ready, move = hmc(potential_fn_gen=potential, algo="NUTS")

        def initialise(at: ParamInfo, key: Array, args: tuple):
            return ready(
                at,
                num_warmup=self.num_warmup,
                dense_mass=[tuple(sorted(at.z))] if self.dense_mass else [],
                target_accept_prob=self.target_accept,
                trajectory_length=None,
                max_tree_depth=self.max_tree_depth,
                model_args=args,
                rng_key=key,
            )

        def chain_start(free: dict[str, Array], key: Array, args: tuple):
            blank = jax.tree.map(jnp.zeros_like, free)
            return initialise(ParamInfo(free, jnp.asarray(_UNKNOWN), blank), key, args)

        def chain_move(state: Any, args: tuple):
            # the transition reads its settings from the last initialisation; what that returns
            # here is not used, so the compiler drops it
            initialise(
                ParamInfo(state.z, state.potential_energy, state.z_grad), state.rng_key, args
            )
            return move(state, args, {})

        return chain_start, chain_move

    def _begin(self, problem: Problem) -> Callable:
        chain_start, _ = self._kernel(problem)

        def begin(keys: Array, moves: Array, point: dict, args: tuple):
            def one(key: Array, move: Array, point: dict):
                flat, unravel = ravel_pytree(unconstrained_start(problem, point, args))
                return chain_start(unravel(flat + move[: flat.size]), key, args)

            return jax.vmap(one)(keys, moves, point)

        return begin

    def _march(self, problem: Problem) -> Callable:
        _, chain_move = self._kernel(problem)

        def one(state: Any, args: tuple):
            state = chain_move(state, args)
            sites, _ = place(problem, state.z, args)
            draw = {name: sites[name]["value"] for name in state.z} | deterministics(sites)
            return state, (
                draw,
                {
                    "lp": -state.potential_energy,
                    "diverging": state.diverging,
                    "energy": state.energy,
                    "acceptance_rate": state.accept_prob,
                    "n_steps": state.num_steps,
                    "step_size": state.adapt_state.step_size,
                },
            )

        both = jax.jit(jax.vmap(one, in_axes=(0, None)))  # so that it is traced once only

        def march(state: Any, args: tuple, count: Array):
            shapes = jax.eval_shape(both, state, args)[1]
            kept = jax.tree.map(lambda s: jnp.zeros((_CHUNK, *s.shape), s.dtype), shapes)

            def step(number: Array, carry):
                state, kept = carry
                state, out = both(state, args)
                return state, jax.tree.map(lambda a, b: a.at[number].set(b), kept, out)

            return lax.fori_loop(0, count, step, (state, kept))

        return march

    def _with_gradient(self, problem: Problem, blank: Any, march: Callable) -> Any:
        """Find energy and gradient at the start by a transition of no length, without momentum.

        A program for the gradient alone would take seconds to compile.
        """
        still = blank.adapt_state._replace(
            step_size=jnp.zeros_like(blank.adapt_state.step_size),
            mass_matrix_sqrt=jax.tree.map(jnp.zeros_like, blank.adapt_state.mass_matrix_sqrt),
        )
        found, _ = march(blank._replace(adapt_state=still), problem.args, jnp.asarray(1))
        state = blank._replace(potential_energy=found.potential_energy, z_grad=found.z_grad)
        slopes = [np.asarray(g).reshape(len(g), -1) for g in jax.tree.leaves(state.z_grad)]
        good = np.isfinite(np.concatenate(slopes, axis=1)).all(axis=1)
        good &= np.asarray(state.potential_energy) < _UNKNOWN
        if good.all():
            return state
        chain = int(np.argmin(good))
        free = {name: value[chain] for name, value in state.z.items()}
        sites, _ = place(problem, free)
        values = {name: np.asarray(sites[name]["value"]) for name in free}
        blame = explain_nonfinite(problem, values) or "its gradient is not finite"
        raise FitError(
            f"NUTS: chain {chain} starts where the log density cannot be used: {blame}; pass init= "
            "with values inside the supports, or check the data of that site",
            values,
        )

    def _result(
        self,
        draws: dict[str, NDArray],
        stats: dict[str, NDArray],
        seconds: dict[str, float],
        approximate: str | None,
    ) -> EngineResult:
        depth = np.ceil(np.log2(stats["n_steps"] + 1)).astype(int)
        reached = stats["n_steps"] >= 2**self.max_tree_depth - 1
        stats = stats | {"tree_depth": depth, "reached_max_tree_depth": reached}
        divergences, cut = int(stats["diverging"].sum()), int(reached.sum())
        message = f"NUTS drew {self.num_chains} x {self.num_samples} with {divergences} divergences"
        if divergences:
            message += "; raise target_accept, or check the prior for a funnel"
        if cut:
            message += (
                f"; {cut} trajectories were cut off at max_tree_depth={self.max_tree_depth}: raise it, "
                "or rescale the data"
            )
        return EngineResult(
            engine=self.name,
            draws=draws,
            sample_stats=stats,
            objective=np.zeros((0, 0)),
            status=Status(divergences < 0.01 * stats["diverging"].size, message),
            seconds=seconds,
            approximate=approximate,
            density_space="unconstrained",
        )
