"""Blocked Gibbs sampling: labels of whole connected sets, and then parameters given labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from sidebayes.models.blocks.block import Drawable
from sidebayes.models.blocks.manifolds.circles import wound

from sidebayes.common.fields import Count, NonNegative, Range, Share, check_seed

from ..base import (
    KEEPS_NOTHING,
    EngineResult,
    Keeper,
    KeptEngine,
    Problem,
    Status,
    check_state,
)
from ..draw_checks import check_draws
from ..plumbing.clock import Clock
from ..plumbing.programs import compile_ahead, compiled, unchecked
from ..plumbing.progress import progress_bar
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
from ..problem.importance import run_at
from ..steps.surrogate import drawn, linearised
from ..steps.update_checks import check_updates
from ..steps.updates import Plan, closed_forms, drawable, plan_updates
from .chains import chain_shapes, chain_starts, check_finite, divergences, draw_chains, recording
from .hamiltonian.transitions import nuts_given

__all__ = ["BlockedGibbs", "GibbsState"]


class _Chain(NamedTuple):
    """State of a chain; `moved` is the state of NUTS, or None if all sites are conjugate."""

    rng_key: Array
    params: dict[str, Array]
    moved: Any


class GibbsState(NamedTuple):
    """State of a single chain between two sweeps.

    Attributes
    ----------
    rng_key : Array
        Key for later sweeps.
    params : dict of Array
        Values of the latent sites.
    moved : object
        State of NUTS in the sites that are not conjugate; None if there are none.
    log_joint : Array, shape ()
        Log joint density of parameters and data in unconstrained coordinates, the `lp` of a fit.
    """

    rng_key: Array
    params: dict[str, Array]
    moved: Any
    log_joint: Array


@dataclass(frozen=True)
class BlockedGibbs(KeptEngine):
    """Gibbs sampling: labels and parameters in turn, each drawn given the other.

    A sweep first draws all labels jointly and exactly, one connected set at a time. It then draws
    every conjugate block of the model exactly, blocks of your own models included, and finally the
    other sites by one transition of NUTS on the joint density of parameters, labels and data. The
    sampled labels are not kept: the label probabilities of the result are computed given the
    parameters, which has a lower variance. Chains start around `init`, as in `NUTS`.

    Parameters
    ----------
    num_warmup : int
        Number of draws of each chain that are dropped.
    num_samples : int
        Number of draws of each chain after the warm-up.
    num_chains : int
        Number of chains.
    thinning : int
        Sweeps per draw, in the warm-up too. Only the last of them is kept, and the density is computed
        there only.
    target_accept : float
        Acceptance probability, between 0 and 1, that the step size of NUTS is adapted to where some
        sites are not conjugate.
    max_tree_depth : int
        A trajectory of NUTS has fewer than 2 to this power steps.
    jitter : float
        Standard deviation of the move from `init`, in unconstrained units.

    References
    ----------
    Geman and Geman (1984), IEEE Trans. Pattern Anal. Mach. Intell. 6, 721-741. Diebolt and Robert
    (1994), J. R. Stat. Soc. B 56, 363-375.

    Examples
    --------
    One sweep at a time:

    >>> import jax.numpy as jnp
    >>> from sidebayes.guides.engines.base import Problem
    >>> from sidebayes.models.gmm import gmm
    >>> x = jnp.array([[0.0], [0.2], [0.4], [3.0], [3.1]])
    >>> problem, engine = Problem(gmm, (x,), {"num_clusters": 2}), BlockedGibbs()
    >>> state = engine.init(problem, seed=0)
    >>> state = engine.step(problem, state)
    >>> all(draws.ndim >= 1 for draws in state.params.values())
    True
    """

    num_warmup: Count = 500
    num_samples: Count = 1000
    num_chains: Count = 4
    target_accept: Share = 0.8
    max_tree_depth: Annotated[int, Range(least=1, most=30)] = 10
    jitter: NonNegative = 0.05
    thinning: Count = 1
    name: ClassVar[str] = "gibbs"
    starts_at_mode: ClassVar[bool] = True
    length: ClassVar[str] = "num_samples"

    def prepare(self, problem: Problem) -> None:
        """See `Engine.prepare`."""
        plan = _plan(problem)
        given = *chain_shapes(problem, self.num_chains), problem.args
        if not compile_ahead(
            *self._asked("gibbs-begin", self._begin, problem, plan), *given, once=True
        ):
            return  # tracing it for its shapes would take more time than it saves
        with unchecked():
            state = jax.eval_shape(self._begin(plan, problem), *given)
        asked = self._asked("gibbs-march", self._march, problem, plan)
        compile_ahead(*asked, state, problem.args, np.asarray(1))

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
            If the model observes no mixture, or its prior leads to an improper posterior.
        FitError
            If the log density is not finite where a chain starts or later; the message names the
            sites to blame.
        """
        approximate = approximation(problem)
        plan = _plan(problem)
        starts = chain_starts(problem, seed, self.num_chains, init, self.jitter)
        clock = Clock()
        with progress_bar("Gibbs", self.num_warmup + self.num_samples, shown=progress) as advance:
            first = {n: v[0] for n, v in starts[-1].items()}
            check_updates(problem, plan, first)
            check_draws(problem, plan, first)
            draws, stats = self._sample(problem, plan, starts, advance, keep, clock)
        return self._result(problem, draws, stats, clock.seconds, approximate)

    def init(
        self, problem: Problem, *, seed: int = 0, init: Mapping[str, Any] | None = None
    ) -> GibbsState:
        """Start a single chain, before its first sweep; `step` makes the sweeps.

        Parameters
        ----------
        problem : Problem
        seed : int
        init : mapping, optional
            Values of the latent sites to start around, as for `run`.
        """
        plan = _plan(problem)
        starts = chain_starts(problem, check_seed(seed), 1, init, self.jitter)
        first = {n: v[0] for n, v in starts[-1].items()}
        check_updates(problem, plan, first)
        check_draws(problem, plan, first)
        return self._once("gibbs-init", self._first, problem, plan, *starts)

    def step(self, problem: Problem, state: GibbsState) -> GibbsState:
        """Make one sweep from the state of `init` or of another sweep.

        Where sites are not conjugate, NUTS adapts its step size in the first ``num_warmup * thinning``
        sweeps of a chain.
        """
        check_state(state, GibbsState)
        return self._once("gibbs-step", self._next, problem, _plan(problem), state)

    def _once(
        self, name: str, build: Callable, problem: Problem, plan: Plan, *at: Any
    ) -> GibbsState:
        """Run the program of `init` or `step`."""
        given = *at, problem.args
        program, _ = compiled(*self._asked(name, build, problem, plan), *given, once=True)
        return program(*given)

    def _sample(
        self,
        problem: Problem,
        plan: Plan,
        starts: tuple,
        advance: Callable[[int, str], None],
        keep: Keeper,
        clock: Clock,
    ) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
        """Run all chains in step; draws and statistics are arrays of shape (chain, draw, ...)."""
        advance(0, "compiling")
        given = *starts, problem.args
        state = clock.run(*self._asked("gibbs-begin", self._begin, problem, plan), *given)
        asked = self._asked("gibbs-march", self._march, problem, plan)
        march = clock.counted(compiled(*asked, state, problem.args, np.asarray(1)))
        with clock.running():
            return draw_chains(
                march,
                state,
                problem.args,
                num_warmup=self.num_warmup,
                num_samples=self.num_samples,
                advance=advance,
                keep=keep,
                check=partial(check_finite, "Gibbs", "it was passing through", problem),
            )

    def _asked(self, name: str, build: Callable, problem: Problem, plan: Plan) -> tuple:
        """Return arguments of `compiled` and `compile_ahead`."""
        settings = (self.num_warmup, self.thinning, self.target_accept, self.max_tree_depth)
        return name, problem, settings, partial(build, plan)

    def _first(self, plan: Plan, problem: Problem) -> Callable:
        begin = self._begin(plan, problem)

        def first(keys: Array, moves: Array, point: dict, args: tuple) -> GibbsState:
            chains = begin(keys, moves, point, args)
            return _placed(problem, jax.tree.map(lambda leaf: leaf[0], chains), args)

        return first

    def _next(self, plan: Plan, problem: Problem) -> Callable:
        sweep = self._sweep(problem, plan)
        return lambda state, args: _placed(problem, sweep(_Chain(*state[:-1]), args), args)

    def _begin(self, plan: Plan, problem: Problem) -> Callable:
        ready, _ = self._kernel(problem)

        def begin(keys: Array, moves: Array, point: dict, args: tuple):
            def one(key: Array, move: Array, point: dict):
                flat, unravel = ravel_pytree(unconstrained_start(problem, point, args))
                free = unravel(flat + move[: flat.size])
                trace, _ = place(problem, free, args)
                params = {name: trace[name]["value"] for name in free}
                key, key_moved = jax.random.split(key)
                rest = {name: free[name] for name in plan.rest}
                rest = wound(rest, circular_sites(trace))
                return _Chain(key, params, ready(rest, key_moved) if rest else None)

            return jax.vmap(one)(jax.random.wrap_key_data(keys), moves, point)

        return begin

    def _march(self, plan: Plan, problem: Problem) -> Callable:
        sweep = self._sweep(problem, plan)

        def transition(state: _Chain, args: tuple):
            # described before the first move, so that this program also checks where chains start
            found = _described(problem, state, args)
            return lax.fori_loop(0, self.thinning, lambda _, at: sweep(at, args), state), found

        return recording(transition)

    def _sweep(self, problem: Problem, plan: Plan) -> Callable:
        """Program of one sweep of a chain."""
        _, move = self._kernel(problem)

        def sweep(state: _Chain, args: tuple) -> _Chain:
            key, key_labels, *keys = jax.random.split(state.rng_key, 2 + len(plan.parts))
            labels = drawn(problem, state.params, args, key_labels)

            def pick(number: int, block: Drawable, found: Any, values: dict) -> dict[str, Array]:
                return block.draw(keys[number], found)

            params = closed_forms(problem, plan, state.params, args, labels, pick)
            moved = state.moved
            if moved is not None:
                fixed = {n: v for n, v in params.items() if n not in moved.z}
                moved = move(moved, (args, labels, fixed))
                trace, _ = place(problem, moved.z, args, fixed)
                params |= {n: trace[n]["value"] for n in moved.z}
            return _Chain(key, params, moved)

        return sweep

    def _kernel(self, problem: Problem) -> tuple[Callable, Callable]:
        """Make NUTS on some sites given labels and the other sites."""

        def potential(args: tuple, labels: dict, fixed: dict) -> Callable[[dict], Array]:
            def energy(free: dict[str, Array]) -> Array:
                trace, log_det = place(problem, free, args, fixed)
                return -linearised(trace, labels) - log_det

            return energy

        return nuts_given(
            potential,
            self.num_warmup * self.thinning,
            target_accept=self.target_accept,
            max_tree_depth=self.max_tree_depth,
        )

    def _result(
        self,
        problem: Problem,
        draws: dict[str, NDArray],
        stats: dict[str, NDArray],
        seconds: dict[str, float],
        approximate: str | None,
    ) -> EngineResult:
        message = f"Gibbs drew {self.num_chains} x {self.num_samples}"
        sound = True
        if "diverging" in stats:
            where = " of NUTS on sites that are not conjugate"
            said, sound = divergences(problem, stats, self.target_accept, where)
            message += f" {said}"
        return EngineResult(
            engine=self.name,
            draws=draws,
            sample_stats=stats,
            objective=np.zeros((0, 0)),
            status=Status(sound, message),
            seconds=seconds,
            approximate=approximate,
            density_space="unconstrained",
        )


def _described(problem: Problem, state: _Chain, args: tuple) -> tuple[dict, dict]:
    """Return the current draw of a chain, and its statistics."""
    trace, log_det = run_at(problem, state.params, args)
    stats = {"lp": sum_log_prob(trace) + log_det}
    if state.moved is not None:
        stats |= {
            "diverging": state.moved.diverging,
            "acceptance_rate": state.moved.accept_prob,
            "n_steps": state.moved.num_steps,
            "step_size": state.moved.warm_up.step_size,
        }
    return state.params | deterministics(trace), stats


def _placed(problem: Problem, chain: _Chain, args: tuple) -> GibbsState:
    """Return the chain with the log joint density at its current draw."""
    return GibbsState(*chain, _described(problem, chain, args)[1]["lp"])


def _plan(problem: Problem) -> Plan:
    """Plan which blocks are drawn exactly.

    Raises
    ------
    ValueError
        If nothing is integrated out, or the posterior is improper.
    """
    latent_supports(problem)
    if not collapsed_sites(abstract_trace(problem)):
        raise ValueError(
            "Gibbs sampling draws labels or random effects, and the model integrates none out; observe "
            "the data through a LinkedMixture, say, or use NUTS"
        )
    return drawable(plan_updates(problem), problem)
