"""Monte-Carlo EM: latent variables without closed form are sampled, parameters maximised."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from sidebayes.models.blocks.fields import Count, NonNegative, Range

from ..base import Engine, EngineResult, FitError, Problem, Status
from ..density import (
    approximation,
    explain_nonfinite,
    latent_supports,
    place,
    sum_log_prob,
    unconstrained_start,
)
from ..plumbing.programs import compiled
from ..plumbing.progress import progress_bar
from ..samplers.chains import nuts_given, recording
from ..starts import initial_values, random_keys, starting_point
from ..update_checks import check_updates
from ..updates import Plan, plan_updates
from .monte_carlo_steps import described, maximise, moved, score

__all__ = ["MonteCarloEM"]

_PIECE = 50
"""Transitions that one call records at most."""

_NEWTON_STEPS = 3


class _Gain(NamedTuple):
    """Estimated rise of the surrogate in a step, and its Monte Carlo standard error."""

    mean: float
    error: float


@dataclass(frozen=True)
class MonteCarloEM(Engine):
    r"""EM whose E-step is sampled: for latent variables that cannot be integrated in closed form.

    The sites named by `sampled`, b, are drawn by NUTS given the others, :math:`\theta`; these then
    maximise the mean over draws of the log joint density,

    .. math:: \hat Q(\theta) = \frac1M \sum_m \log p(x, b_m, \theta), \qquad
              b_m \sim p(b \mid x, \theta_t).

    Labels and random effects that the model integrates out stay integrated out, and blocks take
    their closed forms from statistics averaged over draws. A step is taken if the surrogate rises by
    more than its Monte Carlo error; else there are twice as many draws from then on. Once the rise is
    below `tol` with that error counted in, three Newton steps on the log likelihood follow, as EM is
    slow at the end. Their score and observed information are those of Louis,

    .. math:: S = E[s_b \mid x], \quad I = -E[\partial^2 \log p(x, b, \theta) \mid x]
              - \mathrm{Var}[s_b \mid x], \quad s_b = \partial \log p(x, b, \theta),

    from `num_final` batches of draws each; the differences between batches give Monte Carlo standard
    errors.

    Parameters
    ----------
    sampled : tuple of str
        Latent sites that are drawn.
    num_samples, max_samples : int
        Draws of the first step, and most of any.
    num_chains : int
    num_warmup : int
        Transitions of each chain in which NUTS adapts; those of the first ones are thrown away.
    tol : float
        Rise of the surrogate, in nats, below which the run ends.
    max_steps : int
    num_final : int
        Batches of draws, as large as those of the last step, for a Newton step.
    num_inner_steps : int
        Most gradients of L-BFGS in an M-step.
    confidence : float
        Standard errors by which a rise must exceed zero.

    References
    ----------
    Wei and Tanner (1990), J. Am. Stat. Assoc. 85, 699-704. Caffo, Jank and Jones (2005), J. R. Stat.
    Soc. B 67, 235-251, for the rule of when to take more draws and when to stop. Louis (1982), J. R.
    Stat. Soc. B 44, 226-233.
    """

    sampled: tuple[str, ...] = ()
    num_samples: Annotated[int, Range(least=4, below=2**31)] = 100
    max_samples: Annotated[int, Range(least=4, below=2**31)] = 6400
    num_chains: Count = 4
    num_warmup: Count = 200
    tol: NonNegative = 0.01
    max_steps: Count = 300
    num_final: Annotated[int, Range(least=2, below=2**31)] = 20
    num_inner_steps: Count = 30
    confidence: NonNegative = 1.645
    name: ClassVar[str] = "monte_carlo_em"
    gives_point: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.sampled, str):
            object.__setattr__(self, "sampled", (self.sampled,))
        super().__post_init__()

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> EngineResult:
        """Fit; see `Engine.run`.

        Raises
        ------
        ValueError
            If `sampled` names no latent sites, or all of them.
        FitError
            If the log density is not finite at the start.
        """
        approximate = approximation(problem)
        self._check_sites(list(latent_supports(problem)))
        plan = self._plan(problem)
        if init is None:
            start = {n: v[0] for n, v in initial_values(problem, seed, 1).items()}
        else:
            start = starting_point(problem, init)
        clock = {"compile": 0.0}
        began = time.perf_counter()
        check_updates(problem, plan, start, clock)
        with progress_bar("Monte-Carlo EM", self.max_steps + self.num_final, shown=progress) as bar:
            walk = _Walk(self, problem, plan, start, seed, clock)
            settled = self._climb(walk, bar)
            finals = []
            for _ in range(_NEWTON_STEPS):
                finals.append(walk.newton(self.num_final, bar))
                if finals[-1] is None:
                    break
            draws = walk.draw(walk.count)
            result = self._result(problem, walk, finals, draws, settled, approximate)
        result.seconds.update(clock, run=time.perf_counter() - began - clock["compile"])
        return result

    def _check_sites(self, latent: list[str]) -> None:
        unknown = [name for name in self.sampled if name not in latent]
        if unknown or not self.sampled or len(set(self.sampled)) == len(latent):
            raise ValueError(
                f"MonteCarloEM(sampled={self.sampled!r}): expected some, not all, of the latent sites "
                f"{latent}; the rest is maximised. To sample all use 'nuts', to maximise all 'map'"
            )

    def _plan(self, problem: Problem) -> Plan:
        """Updates of the sites that are maximised."""
        whole = plan_updates(problem)
        sampled = set(self.sampled)
        parts = tuple(p for p in whole.parts if not sampled & set(p.sites.values()))
        inside = {name for part in parts for name in part.sites.values()} | sampled
        rest = tuple(name for name in latent_supports(problem) if name not in inside)
        return Plan(parts, rest, whole.lacking, {})

    def _climb(self, walk: _Walk, advance: Callable[[int, str], None]) -> bool:
        """Take steps until the surrogate rests; whether it does."""
        walk.draw(self.num_samples)  # chains settle
        for _ in range(self.max_steps):
            draws = walk.draw(walk.count)
            theta, gain = walk.maximise(draws)
            while (
                gain.mean - self.confidence * gain.error < 0
                and gain.mean + self.confidence * gain.error > self.tol
                and walk.count < self.max_samples
            ):
                more = min(walk.count, self.max_samples - walk.count)
                draws = walk.joined(draws, walk.draw(more))
                walk.count += more
                theta, gain = walk.maximise(draws)
            walk.theta = theta
            walk.gains.append(gain.mean)
            advance(1, f"rise {gain.mean:.3g} ± {gain.error:.2g}, {walk.count} draws")
            if gain.mean + self.confidence * gain.error < self.tol:
                return True
        return False

    def _result(
        self,
        problem: Problem,
        walk: _Walk,
        finals: list[dict[str, NDArray] | None],
        draws: dict[str, NDArray],
        settled: bool,
        approximate: str | None,
    ) -> EngineResult:
        theta = {name: np.asarray(value) for name, value in walk.theta.items()}
        errors, last = None, finals[-1]
        if last is not None:
            errors = {n: v.std(axis=0, ddof=1) / np.sqrt(len(v)) for n, v in last.items()}
        middle = {name: value.mean(axis=0) for name, value in draws.items()}
        inputs = middle, theta, problem.args
        values, lp = jax.tree.map(
            np.asarray, walk._compiled("mcem-end", described, *inputs)(*inputs)
        )
        message = (
            f"Monte-Carlo EM {'converged' if settled else 'stopped at max_steps'} after "
            f"{len(walk.gains)} steps with {walk.count} draws"
        )
        if errors is None:
            message += (
                f"; after {len(finals) - 1} Newton steps the observed information is singular, so that "
                "further ones and Monte Carlo errors are left out: a parameter lies at its limit, or there "
                "are too few draws"
            )
        else:
            worst = max(errors, key=lambda name: float(errors[name].max(initial=0.0)))
            largest = float(errors[worst].max(initial=0.0))
            message += f"; Monte Carlo standard errors are at most {largest:.2g} ({worst})"
        if not settled:
            message += "; raise max_steps or max_samples, or loosen tol"
        return EngineResult(
            engine=self.name,
            draws={name: value[None, None] for name, value in values.items()},
            sample_stats={"lp": lp[None, None]},
            objective=np.cumsum([0.0, *walk.gains])[None],
            status=Status(settled, message),
            seconds={},
            approximate=approximate,
            standard_errors=errors,
        )


class _Walk:
    """Where a run has got: parameters, chains, and the number of draws."""

    def __init__(
        self,
        config: MonteCarloEM,
        problem: Problem,
        plan: Plan,
        start: Mapping[str, Any],
        seed: int,
        clock: dict[str, float],
    ) -> None:
        self.config, self.problem, self.plan, self.clock = config, problem, plan, clock
        self.theta = {n: jnp.asarray(v) for n, v in start.items() if n not in config.sampled}
        self.count = config.num_samples
        self.gains: list[float] = []
        self._programs: dict[Any, Callable] = {}
        keys = random_keys(seed, config.num_chains)
        first = {n: jnp.asarray(start[n]) for n in config.sampled}
        inputs = keys, first, self.theta, problem.args
        begin = self._compiled("mcem-begin", self._begin, *inputs)
        self._chains, energy = begin(*inputs)
        if not np.isfinite(energy).all():
            point = {name: np.asarray(value) for name, value in start.items()}
            blame = explain_nonfinite(problem, point) or "its value is not a number"
            raise FitError(
                f"MonteCarloEM: the log density is not finite at the start ({blame})", point
            )

    def _compiled(self, name: str, build: Callable, *inputs: Any) -> Callable:
        # what a program returns differs from what it was given in where it lies, not in shape
        key = name, tuple(map(jnp.shape, jax.tree.leaves(inputs)))
        if key not in self._programs:
            self._programs[key], spent = compiled(name, self.problem, self.config, build, *inputs)
            self.clock["compile"] += spent
        return self._programs[key]

    def draw(self, count: int) -> dict[str, NDArray]:
        """Draw the sampled sites given the others: unconstrained values, (draw, ...), chain by chain."""
        each = -(-count // self.config.num_chains)
        inputs = self._chains, (self.problem.args, self.theta), np.asarray(1)
        march = self._compiled("mcem-march", self._march, *inputs)
        pieces = []
        while each > 0:
            steps = min(each, _PIECE)
            self._chains, found = march(self._chains, inputs[1], np.asarray(steps))
            # by NumPy, as JAX would compile every length anew
            pieces.append({name: np.asarray(value)[:steps] for name, value in found.items()})
            each -= steps
        whole = {n: np.concatenate([piece[n] for piece in pieces]) for n in pieces[0]}
        return {n: v.swapaxes(0, 1).reshape(-1, *v.shape[2:]) for n, v in whole.items()}

    def joined(self, draws: dict[str, NDArray], more: dict[str, NDArray]) -> dict[str, NDArray]:
        """Draws of both, chain by chain."""
        chains = self.config.num_chains

        def one(*both: NDArray) -> NDArray:
            parts = [values.reshape(chains, -1, *values.shape[1:]) for values in both]
            whole = np.concatenate(parts, axis=1)
            return whole.reshape(-1, *whole.shape[2:])

        return jax.tree.map(one, draws, more)

    def maximise(self, draws: dict[str, NDArray]) -> tuple[dict[str, Array], _Gain]:
        """Parameters that maximise the surrogate of some draws, and its rise."""
        inputs = draws, self.theta, self.problem.args
        build = partial(maximise, self.plan, self.config.num_inner_steps)
        theta, rise = self._compiled("mcem-maximise", build, *inputs)(*inputs)
        chains = np.asarray(rise).reshape(self.config.num_chains, -1)
        spread, ess = chains.std(), float(chains.size)
        if spread > 0 and chains.shape[1] >= 4:
            from arviz_stats.base import array_stats

            ess = max(float(array_stats.ess(chains, chain_axis=0, draw_axis=1)), 1.0)
        return theta, _Gain(float(chains.mean()), float(spread / np.sqrt(min(ess, chains.size))))

    def newton(
        self, num_batches: int, advance: Callable[[int, str], None]
    ) -> dict[str, NDArray] | None:
        """Take a Newton step; parameters that each batch alone would have led to, None if singular."""
        batches = []
        for _ in range(num_batches):
            inputs = self.draw(self.count), self.theta, self.problem.args
            batches.append(self._compiled("mcem-score", score, *inputs)(*inputs))
            advance(1, "last steps")
        scores, bend, square = (np.stack(part) for part in zip(*batches, strict=True))
        mean = scores.mean(axis=0)
        information = -bend.mean(axis=0) - square.mean(axis=0) + np.outer(mean, mean)
        if not np.isfinite(information).all() or np.linalg.eigvalsh(information)[0] <= 0:
            return None
        steps = np.linalg.solve(information, np.vstack([mean, scores]).T).T
        first = {name: value[0] for name, value in inputs[0].items()}
        given = np.clip(steps, -1.0, 1.0), first, *inputs[1:]
        found = self._compiled("mcem-moved", moved, *given)(*given)
        found = {name: np.asarray(value) for name, value in found.items()}
        self.theta = {name: jnp.asarray(value[0]) for name, value in found.items()}
        return {name: value[1:] for name, value in found.items()}

    def _kernel(self, problem: Problem) -> tuple[Callable, Callable]:
        """NUTS on the sampled sites given the parameters."""

        def potential(args: tuple, theta: dict) -> Callable[[dict], Array]:
            return partial(_energy, problem, args, theta)

        return nuts_given(potential, self.config.num_warmup)

    def _begin(self, problem: Problem) -> Callable:
        ready, _ = self._kernel(problem)

        def begin(keys: Array, first: dict, theta: dict, args: tuple) -> tuple[Any, Array]:
            free = unconstrained_start(problem, {**theta, **first}, args, tuple(first))
            states = jax.vmap(partial(ready, free))(jax.random.wrap_key_data(keys))
            return states, _energy(problem, args, theta, free)

        return begin

    def _march(self, problem: Problem) -> Callable:
        _, move = self._kernel(problem)

        def transition(state: Any, inputs: tuple) -> tuple[Any, dict[str, Array]]:
            state = move(state, inputs)
            return state, state.z

        return recording(transition)


def _energy(problem: Problem, args: tuple, theta: dict, free: dict[str, Array]) -> Array:
    """Negative log joint density of the sampled sites, unconstrained, given the parameters."""
    trace, log_det = place(problem, free, args, theta)
    return -sum_log_prob(trace) - log_det
