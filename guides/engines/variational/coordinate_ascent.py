"""Variational Bayes by coordinate ascent: factors of conjugate blocks, and points for all other sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from sidebayes.common.fields import Count, NonNegative
from sidebayes.common.magnitudes import counted

from ..base import (
    KEEPS_NOTHING,
    EngineResult,
    Evidence,
    FitError,
    Keeper,
    KeptEngine,
    Problem,
    Status,
)
from ..draw_checks import check_draws
from ..expectation_maximisation.streamed_data import StreamedTable
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..plumbing.progress import progress_bar
from ..plumbing.side_by_side import compiled_batch, one_member
from ..problem.causes import advice, explain_nonfinite
from ..problem.declared import approximation
from ..problem.density import as_numpy, deterministics, sum_log_prob, trace_model, unconstrain
from ..problem.importance import effective_share, pareto_k, proper, quality, run_at, told
from ..steps.climbs import (
    SETTLED,
    at_rest,
    climbed,
    history_length,
    stop_code,
    until_stopped,
)
from ..steps.edges import Ends, Points, climbed_inside
from ..steps.row_tables import in_shares
from ..steps.shortlist import first_of, shortlisted
from ..steps.starts import initial_values, num_candidates, random_keys, starting_point
from ..steps.surrogate import expectation
from ..steps.update_checks import check_updates
from ..steps.updates import Plan, listed
from ..symmetries.ends import distinct_ends
from .factors import FactoredModel, check_factors, plan_factors
from .streamed_ascent import fit_table

__all__ = ["CoordinateAscent"]

_ENOUGH = 100
"""Minimum number of draws for their importance weights to show how close the factors are."""


_ROUGH = 1e-5
"""Relative rise of the bound below which a start of chains is close enough to the best factors."""


class _Ascent(NamedTuple):
    """State of the runs from all starts; every array has one entry per start."""

    steps: Array
    start: dict[str, Array]
    found: tuple
    points: dict[str, Array]
    value: Array
    gain: Array
    code: Array
    history: Array


def _members(state: _Ascent) -> tuple:
    """Return the part of the state on which gradients in the points depend."""
    return state.found, {**state.start, **state.points}


def _shown(state: _Ascent) -> str:
    return f"bound {np.nanmax(np.asarray(state.value)):.6g}"


@dataclass(frozen=True)
class CoordinateAscent(KeptEngine):
    r"""Variational Bayes with one factor for all labels and one for each conjugate block.

    Maximises the evidence lower bound

    .. math:: \log Z(E_q L) - E_q \log\Omega - \sum_b \mathrm{KL}(q_b \,\|\, p_b) \le \log p(x)

    over :math:`q(z) \prod_b q_b(\theta_b)`. The factor of the labels is joint and exact: it keeps
    every dependence that links make, and with its best choice the bound is a log partition function of
    expected log-factors L. The bound never falls. Where it is computed exactly, which needs exact
    label inference, it is reported as the result's `log_evidence`.

    Sites without an exact factor get point estimates :math:`\phi`, which L-BFGS moves up the
    expected log joint density, as in variational EM. The bound is then one of
    :math:`\log p(x, \phi)` at the points, which says nothing about the evidence. The status names
    these sites and the reason.

    A table on disk (`sidebayes.scan`) is read once for each step, if every site has a factor.

    Parameters
    ----------
    tol : float
        Stop when all further steps together would raise the bound by less than `tol` times one plus
        its absolute value, if gains keep falling at the present rate.
    max_steps : int
        Maximum number of sweeps over all factors.
    num_inner_steps : int
        Maximum number of L-BFGS gradients per step, if some sites are points.
    num_restarts : int
        Number of starts, which are those of `EM`; the run with the best bound is kept.
    num_draws : int
        Number of draws from the parameters' factors in the result, in which points are repeated. With
        100 draws or more, the Pareto k-hat of their importance weights, given the points, is part of
        the verdict, as for `SVI`.

    References
    ----------
    Attias (2000), NIPS 12, 209-215. Bishop (2006), Pattern Recognition and Machine Learning, section
    10.2. Neal and Hinton (1998), Learning in Graphical Models, 355-368, on points beside factors.
    """

    tol: NonNegative = 1e-8
    max_steps: Count = 1000
    num_restarts: Count = 10
    num_draws: Count = 1000
    num_inner_steps: Count = 15
    name: ClassVar[str] = "cavi"
    climbs: ClassVar[bool] = True
    streams: ClassVar[bool] = True
    independent_draws: ClassVar[bool] = True

    def roughly(self) -> CoordinateAscent:
        """Return the engine with fewer and shorter steps, and one draw, for starts of chains."""
        return replace(
            self,
            tol=max(self.tol, _ROUGH),
            max_steps=min(self.max_steps, 100),
            num_inner_steps=min(self.num_inner_steps, 5),
            num_draws=1,
        )

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
        keep: Keeper = KEEPS_NOTHING,
    ) -> EngineResult:
        """Fit; see `Engine.run`. An `init` replaces all starts by one.

        Raises
        ------
        ValueError
            If no site has an exact factor; the message gives the reason.
        FitError
            If the bound is not finite from any start.
        """
        if any(isinstance(arg, StreamedTable) for arg in problem.args):
            return fit_table(
                self, self._draws, problem, seed=seed, init=init, progress=progress, keep=keep
            )
        approximate = approximation(problem)
        plan = plan_factors(problem)
        if init is None:
            number = num_candidates(problem, self.num_restarts, by_updates=True)
            starts = initial_values(problem, seed, number, seeded=True)
        else:
            starts = {n: v[None] for n, v in starting_point(problem, init).items()}
        with progress_bar("Variational Bayes", shown=progress) as advance:
            first = one_member(starts, 0)
            check_updates(problem, plan, first)
            check_draws(problem, plan, first)
            check_factors(problem, plan, first)
            clock = Clock()
            state, ends = self._climb(problem, plan, starts, advance, keep, clock)
            best = self._best(problem, state, ends, starts)
            advance(0, "drawing")
            found, points = jax.tree.map(
                lambda leaf: np.asarray(leaf)[best], (state.found, state.points)
            )
            params = first | points
            keys = random_keys(seed, self.num_draws)
            given, build = (found, keys, params, problem.args), partial(self._draws, plan)
            draw = clock.counted(compiled("cavi-draws", problem, None, build, *given))
            with clock.running():
                (draws, lp, log_weights), means = draw(*given)
        draws = {name: value[None] for name, value in as_numpy(draws).items()}
        stats = {"lp": np.asarray(lp)[None], "log_weight": np.asarray(log_weights)[None]}
        result = self._result(plan, state, ends, best, draws, stats, clock.seconds, approximate)
        return replace(result, factor_means=as_numpy(means))

    def _climb(
        self,
        problem: Problem,
        plan: Plan,
        starts: dict[str, NDArray],
        advance: Callable[[int, str], None],
        keep: Keeper,
        clock: Clock,
    ) -> tuple[_Ascent, Ends]:
        """Increase the bound from every start until all have stopped."""
        advance(0, "compiling")
        build = partial(self._begin, plan)
        args = in_shares(problem, self.num_restarts)
        begin = clock.counted(compiled_batch("cavi-begin", problem, None, build, starts, args))
        points = {name: jnp.asarray(starts[name]) for name in plan.rest}
        state = self._start(begin(starts, args), points, starts)
        fixed = args, np.asarray(self.tol, float), np.asarray(self.max_steps)
        given = first_of(state, self.num_restarts), *fixed, np.asarray(0)
        build = partial(self._program, plan)
        climb = clock.counted(compiled_batch("cavi", problem, self.num_inner_steps, build, *given))
        state = shortlisted(
            climb,
            state,
            fixed,
            self.num_restarts,
            height=lambda s: s.value,
            advance=advance,
            keep=keep,
            clock=clock,
        )
        run = partial(climbed, describe=_shown, advance=advance, keep=keep, clock=clock)
        moving = Points(problem, "cavi-edges", plan.rest, partial(self._slopes, plan), clock)

        def judge(state: _Ascent, free: dict[str, Array]) -> Ends:
            return moving.judged(free, np.asarray(state.value), _members(state))

        def send(state: _Ascent, ends: Ends) -> _Ascent:
            moved = moving.at(ends.sent_in, _members(state))[1]
            fresh = self._start(state.found, moved, state.start)
            return fresh._replace(steps=state.steps, history=state.history)

        state, _, ends = climbed_inside(lambda state: run(climb, state, fixed), state, judge, send)
        return state, ends

    def _begin(self, plan: Plan, problem: Problem) -> Callable:
        """Program of the parameters' factors given the expected latent variables at a start."""

        def one(start: dict, args: tuple) -> tuple:
            _, posterior = expectation(problem, start, args)
            return FactoredModel(problem, plan, start, args).update(posterior)

        return one

    def _start(self, found: tuple, points: dict[str, Array], starts: dict[str, Any]) -> _Ascent:
        number, real = len(jax.tree.leaves(found)[0]), jnp.result_type(float)
        blank = {
            "start": starts,
            "steps": np.zeros(number, int),
            "value": np.full(number, -np.inf, real),
            "gain": np.full(number, np.inf, real),
            "code": np.zeros(number, int),
            "history": np.full((number, history_length(self.max_steps)), np.nan, real),
        }
        return _Ascent(found=found, points=points, **jax.device_put(blank))

    def _program(self, plan: Plan, problem: Problem) -> Callable:
        """Program for one start: labels, bound, test, factors and points, until it has stopped."""

        def climb(state: _Ascent, args: tuple, tol: Array, most: Array, limit: Array):
            def step(state: _Ascent) -> _Ascent:
                start = state.start
                model = FactoredModel(problem, plan, start | state.points, args)
                now, posterior = model.bound(state.found)
                good = jnp.isfinite(now)
                settled, gain = at_rest(now, state.value, state.gain, tol)
                stop = ~good | settled | (state.steps >= most)
                found = model.update(posterior)
                points = model.climb(found, posterior, self.num_inner_steps)
                if model.is_followed:
                    moved = FactoredModel(problem, plan, start | points, args)
                    found = moved.update(posterior)
                kept, new = (state.found, state.points), (found, points)
                kept = jax.tree.map(lambda a, b: jnp.where(stop, a, b), kept, new)
                return _Ascent(
                    steps=state.steps + 1,
                    start=start,
                    found=kept[0],
                    points=kept[1],
                    value=jnp.where(good, now, -jnp.inf),
                    gain=gain,
                    code=stop_code(broken=~good, settled=settled, cut=stop),
                    history=state.history.at[state.steps].set(jnp.where(good, now, jnp.nan)),
                )

            state = until_stopped(step, state, limit)
            sites = trace_model(problem, state.start | state.points, args)
            return state, unconstrain(sites, state.points)

        return climb

    @staticmethod
    def _slopes(plan: Plan, problem: Problem) -> Callable:
        """Program of the gradient of the bound in the points, given the other factors; see `Points`."""

        def slopes(given: tuple[Array, tuple], args: tuple) -> tuple[Array, dict]:
            row, (found, params) = given
            return FactoredModel(problem, plan, params, args).slope_at(found, row)

        return slopes

    @staticmethod
    def _best(problem: Problem, state: _Ascent, ends: Ends, starts: dict[str, NDArray]) -> int:
        value = np.asarray(state.value)
        best = ends.best(value, np.isfinite(value))
        if not np.isfinite(value[best]):
            point = {name: np.asarray(value[0]) for name, value in starts.items()}
            blame = explain_nonfinite(problem, point) or "every site is finite at the start"
            raise FitError(
                f"CoordinateAscent: the bound is not finite from any start ({blame}); "
                f"{advice(problem, blame)}",
                point,
            )
        return best

    def _draws(self, plan: Plan, problem: Problem) -> Callable:
        def draws(found: tuple, keys: Array, params: dict, args: tuple):
            model = FactoredModel(problem, plan, params, args)

            def one(key: Array):
                params, log_q = model.draw(key, found)
                trace, log_det = run_at(problem, params, args)
                log_p = sum_log_prob(trace)
                return params | deterministics(trace), log_p + log_det, log_p - log_q

            return lax.map(one, jax.random.wrap_key_data(keys)), model.means(found)

        return draws

    def _result(
        self,
        plan: Plan,
        state: _Ascent,
        ends: Ends,
        best: int,
        draws: dict[str, NDArray],
        stats: dict[str, NDArray],
        seconds: dict[str, float],
        approximate: str | None,
    ) -> EngineResult:
        steps = np.asarray(state.steps) - 1
        bound = np.asarray(state.value)
        value = float(bound[best])
        leaves = map(np.asarray, jax.tree.leaves(state.found))
        places = {str(number): leaf for number, leaf in enumerate(leaves)}
        places |= {name: np.asarray(points) for name, points in state.points.items()}
        modes = distinct_ends(ends.problem, bound, np.isfinite(bound), places)
        points = {name: np.asarray(values)[best] for name, values in state.points.items()}
        is_mode, remark = ends.remark(best, points)
        converged = bool(np.asarray(state.code)[best] == SETTLED) and is_mode
        message = (
            f"coordinate ascent found no best points in {counted(steps[best], 'step')}"
            if not is_mode
            else f"coordinate ascent converged in {counted(steps[best], 'step')}; the best of {modes} has "
            f"the bound {value:.6g}"
            if converged
            else f"coordinate ascent stopped at max_steps={self.max_steps} with more than tol={self.tol} to "
            f"gain; raise max_steps or loosen tol"
        )
        if remark:
            message += f"; {remark}"
        if plan.rest:
            still = listed(plan.rest)
            why = "; ".join(plan.lacking).removeprefix(f"{still} ")
            message += f"; points: {still} ({why}), so that the bound is on the joint density there"
        if self.num_draws >= _ENOUGH:
            weights = stats["log_weight"][0]
            close, verdict = quality(pareto_k(weights), self.num_draws, effective_share(weights))
            given = "given the points, " if plan.rest else ""
            converged, message = converged and close, f"{message}; {given}{verdict}"
            message += "" if close else "; try NUTS"
        exact = approximate is None and not plan.rest
        evidence = proper(ends.problem, Evidence(value, "bound")) if exact else None
        if exact and evidence is None:
            message += f"; {told(ends.problem, evidence)}"
        return EngineResult(
            engine=self.name,
            draws=draws,
            sample_stats=stats,
            objective=np.asarray(state.history)[:, : int(steps.max()) + 1],
            status=Status(converged, message),
            seconds=seconds,
            approximate=approximate,
            density_space="unconstrained",
            log_evidence=evidence,
            points=plan.rest,
        )
