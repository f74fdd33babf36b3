"""Expectation maximisation for any declared model whose labels are summed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from sidebayes.common.fields import Count, NonNegative, OneOf, check_seed

from ..base import KEEPS_NOTHING, EngineResult, Keeper, KeptEngine, Problem, check_state
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..plumbing.progress import progress_bar
from ..plumbing.side_by_side import one_member, run_each
from ..problem.declared import approximation, prior_off_data
from ..problem.density import (
    as_numpy,
    deterministics,
    latent_supports,
    sum_log_prob,
    trace_model,
    unconstrain,
)
from ..steps.climbs import at_rest, climbed, stop_code, until_stopped
from ..steps.edges import Ends, Points, climbed_inside
from ..steps.row_tables import in_shares
from ..steps.shortlist import shortlisted
from ..steps.starts import initial_values, num_candidates, starting_point
from ..steps.surrogate import expectation, raise_surrogate, slope_at, tightened
from ..steps.update_checks import check_updates
from ..steps.updates import Plan, closed_forms, maximised, plan_updates
from .em_climbs import Climb, begin, lowered, promise, result
from .failures import nowhere_finite

__all__ = ["EM", "EMState"]

_TO_THE_END = 1000
"""Maximum number of gradients of an M-step where nothing is latent, so that no E-step follows it."""


class EMState(NamedTuple):
    """State of a single run of EM between two steps.

    Attributes
    ----------
    params : dict of Array
        Values of the latent sites.
    log_joint : Array, shape ()
        Log joint density there, or its lower bound where a posterior is restricted.
    expected : dict
        Expected sufficient statistics of the latent variables there, by observed site.
    """

    params: dict[str, Array]
    log_joint: Array
    expected: dict[str, Any]


def _numeric(plan: Plan) -> tuple[str, ...]:
    """Return the sites that an M-step moves numerically."""
    return tuple(name for name in plan.rest if name not in plan.tightened)


def _shown(state: Climb) -> str:
    return f"log joint {np.nanmax(np.asarray(state.value)):.6g}"


@dataclass(frozen=True)
class EM(KeptEngine):
    """Expectation maximisation from several starts.

    EM maximises the log joint density in the constrained space. In an M-step the blocks of the
    model, such as `GaussianComponents`, take the modes of their full conditionals, and L-BFGS
    maximises the surrogate over all other sites. Sites that describe a restricted posterior, such
    as those of `Discriminants`, are optimised before each E-step; the objective is then a lower
    bound. If latent variables are integrated out exactly, the objective never falls. Fits of equal
    structure and equal shapes share one compiled program.

    Parameters
    ----------
    tol : float
        Stop when all further steps together would raise the log joint by less than `tol` times one
        plus its absolute value, if gains keep falling at the present rate.
    max_steps : int
        Maximum number of steps from each start.
    num_restarts : int
        Number of starting points; the run with the best final objective is kept. Gaussians start at
        the moments of partitions of the data; other components are fitted to such partitions. If
        labels are latent, four to eight times as many starts are drawn, and those that are highest
        after some steps, as far as they differ, are run to convergence. Starts in which a cluster
        collapses are set aside.
    num_inner_steps : int
        Maximum number of L-BFGS gradients in an M-step without closed form, or for a restricted
        posterior. If nothing is latent, an M-step runs to convergence.
    rank : {"likelihood", "joint"}
        Criterion by which the best of the modes found is chosen. "likelihood" leaves out the
        density of priors that were set from the data, such as ``prior="empirical"``: such a prior
        keeps spreads from vanishing (Fraley and Raftery 2007, section 4, who compare models by the
        likelihood at the mode), and its density is highest where clusters have hardly any points.
        "joint" takes the mode of highest posterior density. Without such a prior both are the same.

    References
    ----------
    Dempster, Laird and Rubin (1977), J. R. Stat. Soc. B 39, 1-38,
    doi:10.1111/j.2517-6161.1977.tb01600.x.

    Examples
    --------
    One step at a time:

    >>> import jax.numpy as jnp
    >>> from sidebayes.guides.engines.base import Problem
    >>> from sidebayes.models.gmm import gmm
    >>> x = jnp.array([[0.0], [0.2], [0.4], [3.0], [3.1]])
    >>> problem, engine = Problem(gmm, (x,), {"num_clusters": 2}), EM()
    >>> first = engine.init(problem, seed=0)
    >>> second = engine.step(problem, first)
    >>> bool(second.log_joint >= first.log_joint)
    True
    """

    tol: NonNegative = 1e-7
    max_steps: Count = 1000
    num_restarts: Count = 10
    num_inner_steps: Count = 15
    rank: Annotated[str, OneOf(("likelihood", "joint"))] = "likelihood"
    name: ClassVar[str] = "em"
    gives_point: ClassVar[bool] = True
    climbs: ClassVar[bool] = True

    def roughly(self) -> EM:
        """The engine that finds starts of chains, at the mode of highest posterior density."""
        return replace(self, rank="joint")

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        progress: bool = True,
        keep: Keeper = KEEPS_NOTHING,
    ) -> EngineResult:
        """Fit; see `Engine.run`. An `init` replaces all starts by one, or by those in a sequence.

        Raises
        ------
        FitError
            If no start has a finite log joint, or a cluster collapses from every start; its
            `params` hold the last good state.
        """
        approximate = approximation(problem)
        latent_supports(problem)
        plan = plan_updates(problem)
        with progress_bar("EM", shown=progress) as advance:
            advance(0, "compiling")
            clock = Clock()
            starts = self._starts(problem, seed, init, clock)
            check_updates(problem, plan, one_member(starts, 0), clock)
            names = _numeric(plan)
            state = begin(starts, self.max_steps)
            kept = self.num_restarts if init is None else len(state.code)
            fixed = (
                in_shares(problem, kept, plan.one_pass),
                np.asarray(self.tol, float),
                np.asarray(self.max_steps),
            )
            limit = np.asarray(0)
            build = partial(self._program, plan)
            first = one_member(state, 0)
            asked = compiled("em", problem, self.num_inner_steps, build, first, *fixed, limit)
            climb = clock.counted(asked)
            each = partial(run_each, climb)  # run in step, they would wait for the slowest
            height = partial(promise, problem, rank=self.rank)
            highest = partial(shortlisted, height=height, keep=keep, clock=clock)
            state = highest(each, state, fixed, kept, advance=advance)
            run = partial(climbed, describe=_shown, advance=advance, keep=keep, clock=clock)
            points = Points(problem, "em-edges", names, partial(self._slopes, names), clock)

            def judge(state: Climb, found: tuple) -> Ends:
                return points.judged(found[1], np.asarray(state.value), state.params)

            def send(state: Climb, ends: Ends) -> Climb:
                moved = {**state.params, **points.at(ends.sent_in, state.params)[1]}
                fresh = begin(moved, self.max_steps)
                return fresh._replace(steps=state.steps, history=state.history)

            state, (sites, _), ends = climbed_inside(
                lambda state: run(each, state, fixed), state, judge, send
            )
        if not np.isfinite(state.value).any():
            raise nowhere_finite(problem, one_member(starts, 0))
        params = as_numpy(state.params | sites)
        told = state, starts, params, ends, clock.seconds, approximate
        return result(
            self.name, problem, *told, tol=self.tol, max_steps=self.max_steps, rank=self.rank
        )

    def init(
        self, problem: Problem, *, seed: int = 0, init: Mapping[str, Any] | None = None
    ) -> EMState:
        """Start a single run, whose steps are taken by `step`.

        Parameters
        ----------
        problem : Problem
        seed : int
            The start is that of ``EM(num_restarts=1)`` with this seed.
        init : mapping, optional
            Values of the latent sites, from which the run starts instead.

        Returns
        -------
        EMState
            After the first E-step.
        """
        latent_supports(problem)
        plan = plan_updates(problem)
        starts = replace(self, num_restarts=1)._starts(problem, check_seed(seed), init, Clock())
        start = one_member(starts, 0)
        check_updates(problem, plan, start)
        return self._once("em-init", self._first_step, problem, start)

    def step(self, problem: Problem, state: EMState) -> EMState:
        """Take one step (M-step and E-step) from the state of `init` or of another step.

        Parameters
        ----------
        problem : Problem
        state : EMState

        Returns
        -------
        EMState
            With exact inference its log joint is not below the one before.
        """
        check_state(state, EMState)
        return self._once("em-step", self._next_step, problem, state)

    def _once(self, name: str, build: Callable, problem: Problem, at: Any) -> EMState:
        """Run the program of `init` or `step`."""
        build, given = partial(build, plan_updates(problem)), (at, problem.args)
        program, _ = compiled(name, problem, self.num_inner_steps, build, *given, once=True)
        return program(*given)

    def _first_step(self, plan: Plan, problem: Problem) -> Callable:
        return lambda params, args: self._expect(problem, plan, params, args)

    def _next_step(self, plan: Plan, problem: Problem) -> Callable:
        def step(state: EMState, args: tuple) -> EMState:
            return self._expect(problem, plan, self._maximise(problem, plan, state, args), args)

        return step

    def _starts(
        self,
        problem: Problem,
        seed: int,
        init: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        clock: Clock,
    ) -> dict[str, NDArray]:
        """Return starting values, with an axis of starts in front."""
        if init is None:
            number = num_candidates(problem, self.num_restarts, by_updates=True)
            return initial_values(problem, seed, number, seeded=True, clock=clock)
        several = [init] if isinstance(init, Mapping) or hasattr(init, "params") else init
        given = [starting_point(problem, one) for one in several]
        return {name: np.stack([one[name] for one in given]) for name in given[0]}

    def _expect(
        self, problem: Problem, plan: Plan, params: dict[str, Array], args: tuple
    ) -> EMState:
        """Compute the E-step, after improving restricted posteriors."""
        if plan.tightened:
            params = tightened(problem, params, args, self.num_inner_steps)
        return EMState(params, *expectation(problem, params, args, plan.one_pass))

    def _maximise(
        self, problem: Problem, plan: Plan, state: EMState, args: tuple
    ) -> dict[str, Array]:
        """Compute the M-step."""
        new = closed_forms(problem, plan, state.params, args, state.expected, maximised)
        numeric = _numeric(plan)
        if not numeric:
            return new
        num_steps = self.num_inner_steps if state.expected else _TO_THE_END
        return raise_surrogate(problem, new, args, state.expected, num_steps, numeric)

    def _program(self, plan: Plan, problem: Problem) -> Callable:
        """Program for one start: E-step, test and M-step, until it has stopped or done `limit` steps."""

        def move(stop: Array, kept: dict[str, Array], at: EMState, args: tuple) -> dict[str, Array]:
            if _numeric(plan):
                return lax.cond(stop, lambda: kept, lambda: self._maximise(problem, plan, at, args))
            # outside a branch, XLA computes only once what in an M-step depends on the data alone
            new = self._maximise(problem, plan, at, args)
            return jax.tree.map(partial(jnp.where, stop), kept, new)

        def step(state: Climb, args: tuple, tol: Array, most: Array) -> Climb:
            at = self._expect(problem, plan, state.params, args)
            now, off_data = at.log_joint, prior_off_data(trace_model(problem, at.params, args))
            good = jnp.isfinite(now)
            settled, gain = at_rest(now, state.value, state.gain, tol)
            stop = ~good | settled | (state.steps >= most)
            # a start that stops keeps the parameters of its last finite E-step
            kept = jax.tree.map(lambda a, b: jnp.where(good, a, b), at.params, state.last)
            return Climb(
                steps=state.steps + 1,
                params=move(stop, kept, at, args),
                last=kept,
                value=jnp.where(good, now, state.value),
                prior=jnp.where(good, off_data, state.prior),
                gain=gain,
                fall=lowered(state.fall, gain, now),
                code=stop_code(broken=~good, settled=settled, cut=stop),
                history=state.history.at[state.steps].set(jnp.where(good, now, jnp.nan)),
            )

        def climb(state: Climb, args: tuple, tol: Array, most: Array, limit: Array):
            state = until_stopped(lambda s: step(s, args, tol, most), state, limit)
            trace = trace_model(problem, state.params, args)
            free = unconstrain(trace, {name: state.params[name] for name in _numeric(plan)})
            return state, (deterministics(trace), free)

        return climb

    @staticmethod
    def _slopes(names: tuple[str, ...], problem: Problem) -> Callable:
        """Program of the gradient of the log joint in sites that are moved numerically; see `Points`."""

        def slopes(given: tuple[Array, dict[str, Array]], args: tuple) -> tuple[Array, dict]:
            point, params = given
            return slope_at(problem, params, args, sum_log_prob, names, point)

        return slopes
