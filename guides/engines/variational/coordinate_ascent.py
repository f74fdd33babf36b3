"""Variational Bayes by coordinate ascent, for models whose every site is conjugate given labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray
from sidebayes.models.blocks.block import Block
from sidebayes.models.blocks.block import Evidence as _Evidence

from ..base import Engine, EngineResult, Evidence, FitError, Problem, Status, check_positive
from ..density import (
    approximation,
    as_numpy,
    collapsed_sites,
    deterministics,
    explain_nonfinite,
    place,
    sum_log_prob,
    trace_model,
    unconstrained_start,
)
from ..plumbing.checkpoint import Keeper, check_checkpoint, keeping
from ..plumbing.programs import compiled
from ..plumbing.progress import in_pieces, progress_bar
from ..samplers.importance import pareto_k, quality
from ..starts import initial_values, random_keys, starting_point
from ..surrogate import expectation
from ..updates import Part, Plan, block_of, check_updates, drawable, evidence, plan_updates, pooled

__all__ = ["CoordinateAscent"]

_SETTLED, _CUT, _BROKEN = 1, 2, 3
"""Why a run stopped."""

_ENOUGH = 100
"""Draws from which on their importance weights tell how close the factors are."""


class _Ascent(NamedTuple):
    """Where the runs from all starts have got; every array has one entry per start."""

    steps: Array
    found: tuple
    value: Array
    code: Array
    history: Array


@dataclass(frozen=True)
class CoordinateAscent(Engine):
    r"""Variational Bayes with one factor for all labels and one for each conjugate block.

    Maximises the evidence lower bound

    .. math:: \log Z(E_q L) - E_q \log\Omega - \sum_b \mathrm{KL}(q_b \,\|\, p_b) \le \log p(x)

    over :math:`q(z) \prod_b q_b(\theta_b)`. The factor of the labels is joint and exact: it keeps
    every dependence that links make, and with its best choice the bound is a log partition function of
    expected log-factors L. The bound never falls. Where it is computed exactly, which needs exact
    label inference, it is reported as the result's `log_evidence`.

    Parameters
    ----------
    tol : float
        Stop when the bound rises by less than `tol` times one plus its absolute value.
    max_steps : int
    num_restarts : int
        Starts, at k-means partitions as those of `EM`; the best bound is kept.
    num_draws : int
        Draws from the parameters' factors in the result; from 100 on, the Pareto k-hat of their
        importance weights is part of the verdict, as for `SVI`.
    checkpoint : path, optional
        File that keeps the state of the run, so that the same call goes on after an interruption.
    checkpoint_every : float
        Seconds between two writings.

    References
    ----------
    Attias (2000), NIPS 12, 209-215. Bishop (2006), Pattern Recognition and Machine Learning, section
    10.2.
    """

    tol: float = 1e-8
    max_steps: int = 1000
    num_restarts: int = 10
    num_draws: int = 1000
    checkpoint: str | None = None
    checkpoint_every: float = 60.0
    name: ClassVar[str] = "cavi"

    def __post_init__(self) -> None:
        check_positive(self, tol=0.0, max_steps=1, num_restarts=1, num_draws=1)
        check_checkpoint(self)

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> EngineResult:
        """Fit; see `Engine.run`. An `init` replaces all starts by one.

        Raises
        ------
        ValueError
            If a site has no conjugate block; the message says why.
        FitError
            If the bound is finite from no start.
        """
        approximate = approximation(problem)
        plan = _conjugate_plan(problem)
        if init is None:
            starts = initial_values(problem, seed, self.num_restarts)
        else:
            starts = {n: v[None] for n, v in starting_point(problem, init).items()}
        with (
            progress_bar("Variational Bayes", shown=progress) as advance,
            keeping(self, problem, seed, init) as keep,
        ):
            check_updates(problem, plan, {n: v[0] for n, v in starts.items()})
            state, seconds = self._climb(problem, plan, starts, advance, keep)
            best = self._best(problem, state, starts)
            advance(0, "drawing")
            found = jax.tree.map(lambda leaf: np.asarray(leaf)[best], state.found)
            keys = random_keys(seed, self.num_draws)
            first = {name: value[0] for name, value in starts.items()}
            draw, compiling = compiled(
                "cavi-draws",
                problem,
                None,
                partial(self._draws, plan),
                found,
                keys,
                first,
                problem.args,
            )
            began = time.perf_counter()
            draws, lp, log_weights = jax.block_until_ready(draw(found, keys, first, problem.args))
        seconds["compile"] += compiling
        seconds["run"] += time.perf_counter() - began
        draws = {name: value[None] for name, value in as_numpy(draws).items()}
        stats = {"lp": np.asarray(lp)[None], "log_weight": np.asarray(log_weights)[None]}
        return self._result(state, best, draws, stats, seconds, approximate)

    def _climb(
        self,
        problem: Problem,
        plan: Plan,
        starts: dict[str, NDArray],
        advance: Callable[[int, str], None],
        keep: Keeper,
    ) -> tuple[_Ascent, dict[str, float]]:
        """Raise the bound from every start until all have stopped."""
        advance(0, "compiling")
        begin, first = compiled(
            "cavi-begin", problem, None, partial(self._begin, plan), starts, problem.args
        )
        state = keep.restore(self._start(begin(starts, problem.args)))
        fixed = starts, problem.args, np.asarray(self.tol, float)
        climb, second = compiled(
            "cavi",
            problem,
            self.max_steps,
            partial(self._program, plan),
            state,
            *fixed,
            np.asarray(0),
        )
        began = time.perf_counter()
        state, _ = in_pieces(
            lambda state, limit: (climb(state, *fixed, limit), None),
            state,
            advance,
            lambda state: f"bound {np.nanmax(np.asarray(state.value)):.6g}",
            keep.offer,
        )
        keep.offer(state, now=True)
        return state, {"compile": first + second, "run": time.perf_counter() - began}

    @staticmethod
    def _begin(plan: Plan, problem: Problem) -> Callable:
        """Factors of the parameters given the latent variables expected at each start."""

        def one(start: dict, args: tuple) -> tuple:
            _, posterior = expectation(problem, start, args)
            return _Model(problem, plan, start, args).update(posterior)

        return jax.vmap(one, in_axes=(0, None))

    def _start(self, found: tuple) -> _Ascent:
        number, real = len(jax.tree.leaves(found)[0]), jnp.result_type(float)
        blank = {
            "steps": np.zeros(number, int),
            "value": np.full(number, -np.inf, real),
            "code": np.zeros(number, int),
            "history": np.full((number, self.max_steps + 1), np.nan, real),
        }
        return _Ascent(found=found, **jax.device_put(blank))

    def _program(self, plan: Plan, problem: Problem) -> Callable:
        """All starts at once: labels, bound, test, parameters; until all have stopped."""

        def one(state: _Ascent, start: dict, args: tuple, tol: Array, limit: Array):
            model = _Model(problem, plan, start, args)

            def step(state: _Ascent) -> _Ascent:
                now, posterior = model.bound(state.found)
                good = jnp.isfinite(now)
                small = jnp.abs(now - state.value) <= tol * (1 + jnp.abs(now))
                stop = ~good | small | (state.steps == self.max_steps)
                new = model.update(posterior)
                return _Ascent(
                    steps=state.steps + 1,
                    found=jax.tree.map(lambda a, b: jnp.where(stop, a, b), state.found, new),
                    value=jnp.where(good, now, -jnp.inf),
                    code=jnp.where(
                        ~good, _BROKEN, jnp.where(small, _SETTLED, jnp.where(stop, _CUT, 0))
                    ),
                    history=state.history.at[state.steps].set(jnp.where(good, now, jnp.nan)),
                )

            return lax.while_loop(lambda s: (s.code == 0) & (s.steps < limit), step, state)

        return jax.vmap(one, in_axes=(0, 0, None, None, None))

    @staticmethod
    def _best(problem: Problem, state: _Ascent, starts: dict[str, NDArray]) -> int:
        value = np.asarray(state.value)
        best = int(np.argmax(value))
        if not np.isfinite(value[best]):
            point = {name: np.asarray(value[0]) for name, value in starts.items()}
            blame = explain_nonfinite(problem, point) or "every site is finite at the start"
            raise FitError(
                f"CoordinateAscent: the bound is not finite from any start ({blame}); check for hard "
                "links that no labeling satisfies",
                point,
            )
        return best

    @staticmethod
    def _draws(plan: Plan, problem: Problem) -> Callable:
        def draws(found: tuple, keys: Array, start: dict, args: tuple):
            model = _Model(problem, plan, start, args)

            def one(key: Array):
                params, log_q = model.draw(key, found)
                trace, log_det = place(problem, unconstrained_start(problem, params, args), args)
                log_p = sum_log_prob(trace)
                return params | deterministics(trace), log_p + log_det, log_p - log_q

            return lax.map(one, jax.random.wrap_key_data(keys))

        return draws

    def _result(
        self,
        state: _Ascent,
        best: int,
        draws: dict[str, NDArray],
        stats: dict[str, NDArray],
        seconds: dict[str, float],
        approximate: str | None,
    ) -> EngineResult:
        steps = np.asarray(state.steps) - 1
        value = float(np.asarray(state.value)[best])
        converged = bool(np.asarray(state.code)[best] == _SETTLED)
        message = (
            f"coordinate ascent converged in {steps[best]} steps; the best of {len(steps)} starts "
            f"reached the bound {value:.6g}"
            if converged
            else f"coordinate ascent stopped at max_steps={self.max_steps} before the bound rose by less "
            f"than tol={self.tol}; raise max_steps or loosen tol"
        )
        if self.num_draws >= _ENOUGH:
            close, verdict = quality(pareto_k(stats["log_weight"][0]), self.num_draws)
            converged, message = converged and close, f"{message}; {verdict}"
        return EngineResult(
            engine=self.name,
            draws=draws,
            sample_stats=stats,
            objective=np.asarray(state.history)[:, : int(steps.max()) + 1],
            status=Status(converged, message),
            seconds=seconds,
            approximate=approximate,
            density_space="unconstrained",
            log_evidence=Evidence(value, "bound") if approximate is None else None,
        )


class _Model:
    """Blocks of a model and what they learn from; the prior has no parameters but the blocks' own.

    Parameters
    ----------
    problem : Problem
    plan : Plan
        All of whose sites are in blocks.
    params : mapping
        Any values of the latent sites; what depends on them is replaced by expectations.
    args : tuple
    """

    def __init__(
        self, problem: Problem, plan: Plan, params: Mapping[str, Array], args: tuple
    ) -> None:
        self._trace = trace_model(problem, params, args)
        self._pairs: list[tuple[Part, Block]] = [
            (part, block_of(self._trace, part)) for part in plan.parts
        ]
        self._sources = collapsed_sites(self._trace)

    def update(self, posterior: Mapping[str, Any]) -> tuple:
        """Best factor of every block given expected latent variables."""
        out = []
        for part, block in self._pairs:
            given = evidence(self._trace, part, posterior)
            statistics = pooled([block.statistics(one) for one in given])
            out.append(block.update(statistics, [one.fn for one in given]))
        return tuple(out)

    def bound(self, found: tuple) -> tuple[Array, dict[str, Any]]:
        """Evidence lower bound with the best factor of the latent variables, and its slopes."""
        total, posterior = jnp.zeros(()), {}
        for name, (fn, value) in self._sources.items():
            factors = fn.log_factors(value) | {"log_normalizer": fn.log_normalizer()}
            given = _Evidence(fn, value, {})
            for (part, block), factor in zip(self._pairs, found, strict=True):
                if name in part.sources:
                    factors |= block.expected_factors(factor, given)
            normalizer = factors.pop("log_normalizer")
            log_z, posterior[name] = jax.value_and_grad(fn.log_partition)(factors)
            total = total + log_z - normalizer
        cost = sum(
            block.divergence(factor) for (_, block), factor in zip(self._pairs, found, strict=True)
        )
        return total - cost, posterior

    def draw(self, rng_key: Array, found: tuple) -> tuple[dict[str, Array], Array]:
        """Draw the sites from the factors; returns them and their log density."""
        params: dict[str, Array] = {}
        log_q = jnp.zeros(())
        keys = jax.random.split(rng_key, len(found))
        for (part, block), factor, key in zip(self._pairs, found, keys, strict=True):
            values = block.draw(key, factor)
            log_q = log_q + block.log_density(factor, values)
            params |= part.named(values)
        return params, log_q


def _conjugate_plan(problem: Problem) -> Plan:
    """Plan of a model whose every latent site is in a block, under a prior without parents."""
    plan = drawable(plan_updates(problem), problem)
    chained = [name for part in plan.parts if part.chained for name in part.sites.values()]
    missing = sorted({*plan.rest, *chained})
    if missing:
        why = [*plan.lacking, *(f"the prior of {name} depends on other sites" for name in chained)]
        raise ValueError(
            f"CoordinateAscent: sites {missing} are not conjugate ({'; '.join(why)}); change that, or "
            "use 'gibbs' or 'nuts'"
        )
    return plan
