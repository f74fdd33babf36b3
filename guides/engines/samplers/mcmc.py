"""Markov chain Monte Carlo over continuous parameters, labels summed out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from sidebayes.models.blocks.manifolds.circles import unwound, wound

from sidebayes.common.fields import (
    Count,
    NonNegative,
    OneOf,
    Positive,
    Range,
    Share,
)

from ..base import KEEPS_NOTHING, EngineResult, FitError, Keeper, KeptEngine, Problem
from ..jumps import instead_of_slopes, jumping_sites
from ..plumbing.clock import Clock
from ..plumbing.programs import Program, compile_ahead, compiled, unchecked
from ..plumbing.progress import progress_bar
from ..plumbing.side_by_side import run_all
from ..problem.causes import advice, explain_at
from ..problem.declared import approximation, collapsed_sites
from ..problem.density import (
    abstract_trace,
    circular_sites,
    deterministics,
    latent_supports,
    place,
    sum_log_prob,
    unconstrained_start,
)
from ..ridges import flat_sites
from ..steps.starts import has_walls
from ..steps.updates import refuse_restricted
from .chains import chain_shapes, chain_starts, draw_chains, recording, sampled
from .hamiltonian.metric import MassMatrix
from .hamiltonian.paths import MOST_STEPS, of_one_length, until_turning
from .hamiltonian.transitions import UNKNOWN, Chain, hamiltonian

__all__ = ["HMC", "NUTS", "Hamiltonian", "steps_remark"]

_LONG = 20
"""Number of leapfrog steps per draw above which another mass matrix is recommended."""


@dataclass(frozen=True)
class Hamiltonian(KeptEngine, ABC):
    """Base class of samplers by Hamiltonian dynamics; see `NUTS`."""

    num_warmup: Count = 1000
    num_samples: Count = 2000
    num_chains: Count = 4
    target_accept: Share = 0.8
    dense_mass: MassMatrix = False
    jitter: NonNegative = 0.05
    chain_method: Annotated[str, OneOf(("vectorized", "parallel"))] | None = None
    name: ClassVar[str]
    starts_at_mode: ClassVar[bool] = True
    length: ClassVar[str] = "num_samples"
    by_slopes: ClassVar[bool]

    @property
    def _title(self) -> str:
        return type(self).__name__

    @property
    def _per_group(self) -> int:
        """Number of chains that run in step."""
        method = self.chain_method
        if method is None:
            method = "parallel" if jax.default_backend() == "cpu" else "vectorized"
        return 1 if method == "parallel" else self.num_chains

    @property
    @abstractmethod
    def _reach(self) -> float:
        """Option that limits how far a trajectory goes."""

    @abstractmethod
    def _follow(self, walls: bool) -> Callable:
        """Make the function of trajectories; see `until_turning`."""

    @abstractmethod
    def _report(
        self, stats: dict[str, NDArray], instead: str = ""
    ) -> tuple[dict[str, NDArray], str]:
        """Return statistics of the trajectories, and a remark on them.

        `instead` is the advice where trajectories were cut off, if it is not the usual one.
        """

    def _check(self, problem: Problem) -> None:
        """Refuse models that the engine cannot sample."""
        refuse_restricted(problem)

    def prepare(self, problem: Problem) -> None:
        """See `Engine.prepare`."""
        self._check(problem)
        given = *chain_shapes(problem, self._per_group), problem.args
        if not compile_ahead(*self._asked("hmc-begin", problem), *given, once=True):
            return  # tracing it for its shapes would take more time than it saves
        with unchecked():
            *_, begin = self._asked("hmc-begin", problem)
            blank = jax.eval_shape(begin(problem), *given)
        marched = blank, problem.args, np.asarray(1)
        compile_ahead(*self._asked("hmc-march", problem), *marched, often=_sums_rows(problem))

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
        FitError
            If the log density is not finite where a chain starts; the message names the sites to
            blame.
        """
        self._check(problem)
        approximate = approximation(problem)
        latent_supports(problem)
        starts = chain_starts(problem, seed, self.num_chains, init, self.jitter)
        clock = Clock()
        with progress_bar(
            self._title, self.num_warmup + self.num_samples, shown=progress
        ) as advance:
            draws, stats = self._sample(problem, starts, clock, advance, keep)
        described, remark = self._report(stats, _instead(problem))
        return sampled(
            self,
            problem,
            draws,
            stats | described,
            remark=remark,
            seconds=clock.seconds,
            approximate=approximate,
        )

    def _sample(
        self,
        problem: Problem,
        starts: tuple,
        clock: Clock,
        advance: Callable[[int, str], None],
        keep: Keeper,
    ) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Run the chains; return draws and statistics, arrays of shape (chain, draw, ...)."""
        advance(0, "compiling")
        size = self._per_group
        groups = [
            (*jax.tree.map(lambda leaf, n=first: leaf[n : n + size], starts), problem.args)
            for first in range(0, self.num_chains, size)
        ]
        asked = self._asked("hmc-begin", problem)
        begin = clock.counted(compiled(*asked, *groups[0], once=True))
        blanks = [begin(*group) for group in groups]
        asked = self._asked("hmc-march", problem)
        marched = blanks[0], problem.args, np.asarray(1)
        march = clock.counted(compiled(*asked, *marched, often=_sums_rows(problem)))
        with clock.running():
            return draw_chains(
                partial(_march_all, march),
                self._measured(problem, blanks, march),
                problem.args,
                num_warmup=self.num_warmup,
                num_samples=self.num_samples,
                advance=advance,
                keep=keep,
            )

    def _asked(self, name: str, problem: Problem) -> tuple:
        """Return arguments of `compiled` and `compile_ahead`."""
        settings = self.name, self.num_warmup, self.target_accept, self.dense_mass, self._reach
        if name == "hmc-begin":
            circles = circular_sites(abstract_trace(problem))
            return name, problem, (*settings, circles), partial(self._begin, circles)
        walls, jumps = has_walls(problem), jumping_sites(problem)
        return name, problem, (*settings, walls, jumps), partial(self._march, walls, jumps)

    def _kernel(
        self, walls: bool = False, jumps: tuple[str, ...] = ()
    ) -> tuple[Callable, Callable]:
        return hamiltonian(
            self._follow(walls),
            self.num_warmup,
            target_accept=self.target_accept,
            dense_mass=self.dense_mass,
            by_slopes=self.by_slopes,
            jumps=jumps,
        )

    def _begin(self, circles: tuple[str, ...], problem: Problem) -> Callable:
        ready, _ = self._kernel()

        def begin(keys: Array, moves: Array, point: dict, args: tuple):
            def one(key: Array, move: Array, point: dict):
                flat, unravel = ravel_pytree(unconstrained_start(problem, point, args))
                free = unravel(flat + move[: flat.size])
                return ready(wound(free, circles), key)

            return jax.vmap(one)(jax.random.wrap_key_data(keys), moves, point)

        return begin

    def _march(self, walls: bool, jumps: tuple[str, ...], problem: Problem) -> Callable:
        _, move = self._kernel(walls, jumps)

        def one(state: Chain, args: tuple):
            @jax.jit
            def potential(free: dict[str, Array]) -> Array:
                trace, log_det = place(problem, free, args)
                return -sum_log_prob(trace) - log_det

            state = move(state, potential)
            sites, _ = place(problem, state.z, args)
            draw = {name: sites[name]["value"] for name in state.z} | deterministics(sites)
            return state, (
                draw,
                {
                    "lp": -state.potential_energy + unwound(state.z, circular_sites(sites)),
                    "diverging": state.diverging,
                    "energy": state.energy,
                    "acceptance_rate": state.accept_prob,
                    "n_steps": state.num_steps,
                    "step_size": state.warm_up.step_size,
                },
            )

        return recording(one)

    def _measured(self, problem: Problem, blanks: list, march: Program) -> list:
        """Find energy and gradient where the chains start, by a transition that does not move.

        A program for the gradient alone would take seconds to compile.
        """
        states, _ = _march_all(march, blanks, problem.args, np.asarray(1))
        for number, state in enumerate(states):
            self._check_start(problem, state, number * self._per_group)
        return states

    def _check_start(self, problem: Problem, state: Chain, first: int) -> None:
        """Check the starts of chains, which are numbered from `first`."""
        good = np.isfinite(np.asarray(state.slope)).all(axis=1)
        good &= np.asarray(state.potential_energy) < UNKNOWN
        if good.all():
            return
        chain = int(np.argmin(good))
        free = {name: value[chain] for name, value in state.z.items()}
        values, blame = explain_at(problem, free)
        blame = blame or "its gradient is not finite"
        raise FitError(
            f"{self._title}: chain {first + chain} starts where the log density cannot be used: "
            f"{blame}; {advice(problem, blame)}",
            values,
        )


def _instead(problem: Problem) -> str:
    """Advice where trajectories are long for a reason that no setting mends; empty if there is none."""
    flat = ", ".join(flat_sites(problem))
    proper = (
        f"take proper priors for {flat}: under flat ones, the posterior may have no finite mass"
    )
    return instead_of_slopes(problem, proper if flat else "")


def _sums_rows(problem: Problem) -> bool:
    """Return whether sums over rows take most of the time; in mixtures, exponentials do."""
    return not collapsed_sites(abstract_trace(problem))


def _march_all(march: Program, states: list, args: tuple, count: NDArray) -> tuple[list, Any]:
    """Make some transitions of all groups of chains; records have axes (draw, chain, ...)."""
    new, found = zip(*run_all(march, states, args, count), strict=True)
    return list(new), jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *found)


@dataclass(frozen=True)
class NUTS(Hamiltonian):
    """No-U-turn sampler (Hoffman and Gelman 2014), by NumPyro's trees.

    Chains start around `init`, for example a mode found by EM; each is moved at random in
    unconstrained space. Runs of equal structure and equal shapes share one compiled program,
    whatever their data and number of samples. The mass matrix is adapted to draws and gradients
    (Seyboldt, Carlson and Carpenter 2026) over the first 85 % of the warm-up, and the step size
    over all of it.

    Parameters
    ----------
    num_warmup : int
        Number of transitions of each chain that adapt step size and mass matrix.
    num_samples : int
        Number of draws of each chain after the warm-up.
    num_chains : int
        Number of chains.
    target_accept : float
        Mean acceptance probability that the step size is adapted to, between 0 and 1.
    dense_mass : bool or "low_rank"
        By default the mass matrix is diagonal. True adapts a full one, and "low_rank" one that
        differs from a multiple of a diagonal along up to 32 axes, learned from draws and gradients.
        Both shorten the trajectories if coordinates are correlated. A full matrix needs twice as
        many draws as there are coordinates, and each of its steps takes as many products as it has
        entries.
    jitter : float
        Standard deviation of the move from `init`, in unconstrained units.
    chain_method : {"vectorized", "parallel"}, optional
        "vectorized" runs all chains in step. "parallel" runs each by itself, as many at once as
        there are processors, so that no chain waits for the longest trajectory of the others. By
        default "parallel" on processors, where a step of all chains costs as much as one step of
        each, and "vectorized" on an accelerator.
    max_tree_depth : int
        A trajectory has fewer than 2 to this power steps.

    References
    ----------
    Hoffman and Gelman (2014), J. Mach. Learn. Res. 15, 1593-1623. Seyboldt, Carlson and Carpenter (2026),
    "Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence", arXiv:2603.18845.
    """

    max_tree_depth: Annotated[int, Range(least=1, most=30)] = 10
    name: ClassVar[str] = "nuts"
    by_slopes: ClassVar[bool] = True

    @property
    def _reach(self) -> float:
        return self.max_tree_depth

    def _follow(self, walls: bool) -> Callable:
        return until_turning(self.max_tree_depth, walls=walls)

    def _report(
        self, stats: dict[str, NDArray], instead: str = ""
    ) -> tuple[dict[str, NDArray], str]:
        depth = np.ceil(np.log2(stats["n_steps"] + 1)).astype(int)
        reached = stats["n_steps"] >= 2**self.max_tree_depth - 1
        found, remark = {"tree_depth": depth, "reached_max_tree_depth": reached}, ""
        if reached.any():
            remark = (
                f"; {reached.sum()} trajectories were cut off at max_tree_depth={self.max_tree_depth}: "
                f"{instead or 'raise it, or rescale the data'}"
            )
        others = instead and reached.any()
        if not self.dense_mass and not others and stats["n_steps"].mean() >= _LONG:
            remark += (
                f"; {stats['n_steps'].mean():.0f} leapfrog steps per draw, of which "
                'dense_mass="low_rank" may need fewer'
            )
        return found, remark


@dataclass(frozen=True)
class HMC(Hamiltonian):
    r"""Hamiltonian Monte Carlo (Neal 2011): trajectories of one length, kept or rejected at the end.

    The mass matrix is adapted to the variances of the draws; everything else, except for the length
    of a trajectory, is as in `NUTS`. Every draw costs about the same, so chains that run in step
    hardly wait for each other. However, too short a length makes a random walk, and a length near a
    period of the motion returns to where it began.

    Parameters
    ----------
    num_warmup, num_samples, num_chains, target_accept, dense_mass, jitter, chain_method
        See `NUTS`.
    trajectory_length : float
        Length in posterior standard deviations, to which the mass matrix is adapted. On a normal
        posterior with its own mass matrix :math:`\pi / 2` makes independent draws, and
        :math:`2 \pi` none at all. Trajectories are cut off after 1,000 steps.

    References
    ----------
    Duane, Kennedy, Pendleton and Roweth (1987), Phys. Lett. B 195, 216-222. Neal (2011), Handbook
    of Markov Chain Monte Carlo, chapter 5.
    """

    trajectory_length: Positive = 1.5
    name: ClassVar[str] = "hmc"
    by_slopes: ClassVar[bool] = False

    @property
    def _reach(self) -> float:
        return self.trajectory_length

    def _follow(self, walls: bool) -> Callable:
        return of_one_length(self.trajectory_length, walls=walls)

    def _report(
        self, stats: dict[str, NDArray], instead: str = ""
    ) -> tuple[dict[str, NDArray], str]:
        return {}, steps_remark(stats["n_steps"], "leapfrog steps", MOST_STEPS, instead)


def steps_remark(num_steps: NDArray, unit: str, most: int, instead: str = "") -> str:
    """Say how long trajectories of a given length were, whether some were cut off, and what to do then."""
    remark = f"; {num_steps.mean():.0f} {unit} per draw"
    cut = int((num_steps >= most).sum())
    if cut:
        remark += (
            f", and {cut} trajectories were cut off at {most}: "
            f"{instead or 'use NUTS, or rescale the data'}"
        )
    return remark
