"""Monte-Carlo EM: latent variables without closed form are sampled, and parameters are maximised."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import jax
import numpy as np
from numpy.typing import NDArray

from sidebayes.common.fields import Count, NonNegative, OneOf, Positive, Range

from ..base import KEEPS_NOTHING, EngineResult, Keeper, KeptEngine, Problem, Status
from ..plumbing.clock import Clock
from ..plumbing.progress import progress_bar
from ..problem.declared import approximation, individual_sites, schedule_of
from ..problem.density import latent_supports
from ..problem.options import with_option
from ..problem.posterior import latent_shapes, thin
from ..problem.units import lay_out_units
from ..steps.starts import initial_values, starting_point
from ..steps.update_checks import check_updates
from ..steps.updates import Plan, plan_updates
from .monte_carlo_steps import constrained, described
from .monte_carlo_walk import Gain, Walk, hidden_rise, left_to_rise

__all__ = ["MonteCarloEM"]

_NEWTON_STEPS = 3

_MOST, _MOST_BY_ROW = 6400, 400
"""Default maximum numbers of draws of a step; the second is for sites with a row per individual."""

_BATCHES = 20
"""Default number of batches of draws for a Newton step."""

_TOL, _TOL_EACH = 0.1, 0.03
"""Remaining rise in nats at which runs end: in total, and for each maximised number."""

_MOST_NUMBERS = 2**25
"""Maximum size of the draws of a step, in numbers; a quarter of a gigabyte."""

_KEPT, _KEPT_NUMBERS = 400, 2**23
"""Minimum number of draws at the estimate in a result, and their maximum size in numbers; 64 megabytes."""


@dataclass(frozen=True)
class MonteCarloEM(KeptEngine):
    r"""EM with a sampled E-step, for latent variables that cannot be integrated out in closed form.

    The sites named by `sampled`, b, are drawn by NUTS given the others, :math:`\theta`; these then
    maximise the mean over draws of the log joint density,

    .. math:: \hat Q(\theta) = \frac1M \sum_m \log p(x, b_m, \theta), \qquad
              b_m \sim p(b \mid x, \theta_t).

    Labels and random effects that the model integrates out stay integrated out, and blocks take
    their closed forms from statistics averaged over draws. A step is taken if the surrogate rises
    by more than its Monte Carlo error; otherwise the number of draws is doubled from then on. The
    run ends once the remaining rise is less than `tol`, or once the last steps, each with the
    maximum number of draws, show no rise beyond that error; the status then says so. The remaining
    rise is extrapolated from the way in which rises fall: by :math:`r^2`, where EM comes nearer to
    the mode by a factor r in every step. After a rise g there remains :math:`g r^2 / (1 - r)`, in
    which the Monte Carlo error of g is counted.

    Three Newton steps on the log likelihood follow, as EM is slow at the end. Their score and observed
    information are those of Louis,

    .. math:: S = E[s_b \mid x], \quad I = -E[\partial^2 \log p(x, b, \theta) \mid x]
              - \mathrm{Var}[s_b \mid x], \quad s_b = \partial \log p(x, b, \theta),

    from `num_final` batches of draws each; the differences between batches give Monte Carlo standard
    errors.

    The result is the estimate of :math:`\theta`, the mean of b there, and draws of b from
    :math:`p(b \mid x, \hat\theta)` in the group ``conditional_posterior`` of the tree. This is the
    posterior of empirical Bayes, which ignores that :math:`\theta` is estimated.

    Parameters
    ----------
    sampled : tuple of str
        Latent sites that are drawn. By default those whose values the data roughly determine, such as the
        coordinates of latent shapes.
    num_samples, max_samples : int
        Number of draws in the first step, and its maximum in later ones: 6400 by default, 400 with "hmc",
        and fewer where they would take more than a quarter of a gigabyte.
    num_chains : int
        Number of chains, which run on from step to step.
    num_warmup : int
        Number of transitions of each chain in which NUTS adapts; those before the first step are
        discarded.
    kernel : {"auto", "nuts", "hmc"}
        "nuts" moves all sampled sites at once. "hmc" is for a single site with a row for each individual:
        the connected sets of individuals move side by side, and each accepts its own trajectory. They share
        a step size, and a mass matrix that is estimated anew from the draws of every step. "auto" is "hmc"
        where the model declares such a site, else "nuts".
    num_leapfrog : int
        Steps of a trajectory of "hmc".
    schedule : tuple of float, optional
        Values of the option `scheduled` of the model in the first steps, one per step; later steps
        use the model's own value. By default the schedule that the model declares, such as a kernel
        of falling width; () is none.
    scheduled : str
        Name of that option.
    tol : float, optional
        Remaining rise, in nats, at which the run ends. By default 0.1, or 0.03 for each maximised
        number, if that is more.
    max_steps : int
        Maximum number of steps.
    num_final : int, optional
        Number of batches of draws, each as large as the last step's, for a Newton step; 0 takes none. By
        default 20, and 0 after "hmc", whose models have too many parameters.
    num_inner_steps : int
        Maximum number of gradients of L-BFGS in an M-step.
    confidence : float
        Number of standard errors by which a rise must exceed zero.

    References
    ----------
    Wei and Tanner (1990), J. Am. Stat. Assoc. 85, 699-704. Caffo, Jank and Jones (2005), J. R. Stat.
    Soc. B 67, 235-251, for the rule of when to take more draws and when to stop. Louis (1982), J. R.
    Stat. Soc. B 44, 226-233.
    """

    sampled: tuple[str, ...] = ()
    num_samples: Annotated[int, Range(least=4, below=2**31)] = 100
    max_samples: Annotated[int, Range(least=4, below=2**31)] | None = None
    num_chains: Count = 4
    num_warmup: Count = 200
    kernel: Annotated[str, OneOf(("auto", "nuts", "hmc"))] = "auto"
    num_leapfrog: Count = 8
    schedule: tuple[Positive, ...] | None = None
    scheduled: str = "width"
    tol: NonNegative | None = None
    max_steps: Count = 300
    num_final: Annotated[int, Range(least=0, below=2**31)] | None = None
    num_inner_steps: Count = 30
    confidence: NonNegative = 1.645
    name: ClassVar[str] = "monte_carlo_em"
    gives_point: ClassVar[bool] = True
    one_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.sampled, str):
            object.__setattr__(self, "sampled", (self.sampled,))
        super().__post_init__()
        if self.num_final == 1:
            raise ValueError(
                "MonteCarloEM(num_final=1): expected 0, for no Newton steps, or two batches at least, whose "
                "differences are their error"
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
        """Fit; see `Engine.run`.

        Raises
        ------
        ValueError
            If `sampled` names no latent sites, or all of them.
        FitError
            If the log density is not finite at the start.
        """
        return self._resolved(problem)._run(
            problem, seed=seed, init=init, progress=progress, keep=keep
        )

    def _resolved(self, problem: Problem) -> MonteCarloEM:
        """Return the engine with options that are left to the model filled in."""
        individuals = individual_sites(problem)
        sampled = self.sampled or individuals
        shapes = latent_shapes(problem)
        self._check_sites(sampled, list(shapes))
        alone = len(sampled) == 1 and sampled[0] in individuals
        if self.kernel == "hmc" and not alone:
            raise ValueError(
                f"MonteCarloEM(kernel='hmc', sampled={sampled}): expected one site with a row for each "
                f"individual, which the model declares; it declares {individuals}: use kernel='nuts'"
            )
        kernel = self.kernel if self.kernel != "auto" else ("hmc" if alone else "nuts")
        found = schedule_of(problem, sampled) if self.schedule is None else None
        name, values = found or (self.scheduled, self.schedule or ())
        whole = sum(map(math.prod, shapes.values()))
        size = sum(math.prod(shapes[site]) for site in sampled)
        by_row = kernel == "hmc"
        most = _MOST_BY_ROW if by_row else _MOST
        return replace(
            self,
            sampled=sampled,
            kernel=kernel,
            schedule=values,
            scheduled=name,
            tol=max(_TOL, _TOL_EACH * (whole - size)) if self.tol is None else self.tol,
            num_final=((0 if by_row else _BATCHES) if self.num_final is None else self.num_final),
            max_samples=max(min(self.max_samples or most, _MOST_NUMBERS // size), self.num_samples),
        )

    def _run(
        self,
        problem: Problem,
        *,
        seed: int,
        init: Mapping[str, Any] | None,
        progress: bool,
        keep: Keeper,
    ) -> EngineResult:
        approximate = approximation(problem)
        plan = self._plan(problem)
        if init is None:
            start = {n: v[0] for n, v in initial_values(problem, seed, 1).items()}
        else:
            start = starting_point(problem, init)
        clock = Clock()
        length = len(self.schedule or ()) + self.max_steps + _NEWTON_STEPS * (self.num_final or 0)
        with (
            clock.running(),
            progress_bar("Monte-Carlo EM", length, shown=progress) as bar,
        ):
            if self.schedule:
                start = self._anneal(problem, start, seed, clock, bar)
            check_updates(problem, plan, start, clock)
            walk = Walk(self, problem, plan, start, seed, clock)
            walk.resume(keep.restore(walk.state))
            self._climb(walk, bar, keep)
            final = self.num_final or 0
            while final and not walk.is_singular and walk.num_newton < _NEWTON_STEPS:
                walk.newton(final, bar)
                keep.offer(walk.state)
            return self._result(problem, walk, approximate)

    def _check_sites(self, sampled: tuple[str, ...], latent: list[str]) -> None:
        unknown = [name for name in sampled if name not in latent]
        if unknown or not sampled or len(set(sampled)) == len(latent):
            raise ValueError(
                f"MonteCarloEM(sampled={sampled!r}): expected some, not all, of the latent sites "
                f"{latent}; the rest is maximised. To sample all use 'nuts', to maximise all 'map'"
            )

    def _plan(self, problem: Problem) -> Plan:
        """Return the plan of updates of the sites that are maximised."""
        whole = plan_updates(problem)
        sampled = set(self.sampled)
        parts = tuple(p for p in whole.parts if not sampled & set(p.sites.values()))
        inside = {name for part in parts for name in part.sites.values()} | sampled
        rest = tuple(name for name in latent_supports(problem) if name not in inside)
        return Plan(parts, rest, whole.lacking, {})

    def _anneal(
        self,
        problem: Problem,
        start: Mapping[str, Any],
        seed: int,
        clock: Clock,
        advance: Callable[[int, str], None],
    ) -> dict[str, Any]:
        """Return values after a step at each value of the schedule."""
        name, values = self.scheduled, self.schedule or ()
        staged = with_option(problem, name, values[0])
        sites = latent_supports(staged)
        begin = {site: value for site, value in start.items() if site in sites}
        # data of the staged problem have no roles
        layout = lay_out_units(problem) if self.kernel == "hmc" else None
        walk = Walk(self, staged, self._plan(staged), begin, seed, clock, layout)
        if self.kernel == "hmc":
            walk.step_from_start()
        walk.draw(self.num_samples)  # chains settle
        for value in values:
            walk.problem = with_option(problem, name, value)
            walk.theta, gain = walk.maximise(walk.draw(self.num_samples))
            advance(1, f"{name} = {value:g}, rise {gain.mean:.3g} ± {gain.error:.2g}")
        middle = {site: found.mean(axis=0) for site, found in walk.draw(self.num_samples).items()}
        inputs = middle, walk.theta, walk.problem.args
        found, _ = walk.compiled("mcem-end", described, *inputs)(*inputs)
        return dict(start) | {site: np.asarray(found[site]) for site in sites}

    def _climb(self, walk: Walk, advance: Callable[[int, str], None], keep: Keeper) -> None:
        """Take steps until the surrogate no longer rises."""
        tol, most = self.tol or 0.0, self.max_samples or _MOST
        if not walk.gains:
            if self.kernel == "hmc" and not self.schedule:
                walk.step_from_start()
            walk.draw(self.num_samples)  # chains settle
        while not walk.settled and len(walk.gains) < self.max_steps:
            draws = walk.draw(walk.count)
            theta, gain = walk.maximise(draws)
            while (
                gain.mean - self.confidence * gain.error < 0
                and (self._left([*walk.gains, gain]) > tol or gain.mean < -tol)
                and walk.count < most
            ):
                more = min(walk.count, most - walk.count)
                draws = walk.joined(draws, walk.draw(more))
                walk.count += more
                theta, gain = walk.maximise(draws)
            walk.theta = theta
            walk.gains.append(gain)
            advance(1, f"rise {gain.mean:.3g} ± {gain.error:.2g}, {walk.count} draws")
            walk.settled = self._left(walk.gains) < tol or self._hidden(walk.gains) is not None
            keep.offer(walk.state)

    def _left(self, gains: Sequence[Gain]) -> float:
        return left_to_rise(gains, self.confidence)

    def _hidden(self, gains: Sequence[Gain]) -> float | None:
        return hidden_rise(gains, self.confidence, self.max_samples or _MOST)

    def _ended(self, walk: Walk) -> str:
        """Describe how the steps ended, and how much they leave to gain."""
        left, hidden = self._left(walk.gains), self._hidden(walk.gains)
        ended = "converged" if walk.settled else "stopped at max_steps"
        message = f"Monte-Carlo EM {ended} after {len(walk.gains)} steps with {walk.count} draws"
        if self.schedule:
            shown = ", ".join(f"{value:.3g}" for value in sorted(set(self.schedule), reverse=True))
            message += f", after {len(self.schedule)} with {self.scheduled} = {shown}"
        message += "; before the Newton steps " if walk.num_newton else "; "
        if walk.settled and left >= (self.tol or 0.0):
            message += f"rises below {hidden:.2g} nats per step are lost in Monte Carlo error"
            if math.isinf(left):
                return message
            message += ", and "
        if math.isinf(left):
            return f"{message}the rises of the steps do not fall yet"
        return f"{message}some {left:.2g} nats may be left to rise"

    def _result(self, problem: Problem, walk: Walk, approximate: str | None) -> EngineResult:
        theta = {name: np.asarray(value) for name, value in walk.theta.items()}
        size = sum(math.prod(latent_shapes(problem)[site]) for site in self.sampled)
        draws = walk.draw(max(walk.count, min(_KEPT, _KEPT_NUMBERS // size)))
        middle = {name: value.mean(axis=0) for name, value in draws.items()}
        kept = self._kept(walk, draws, _KEPT_NUMBERS // (size * self.num_chains))
        inputs = middle, theta, problem.args
        values, lp = jax.tree.map(
            np.asarray, walk.compiled("mcem-end", described, *inputs)(*inputs)
        )
        errors = None
        if self.num_final and not walk.is_singular:
            errors = {n: v.std(axis=0, ddof=1) / np.sqrt(len(v)) for n, v in walk.moved.items()}
        message = self._ended(walk)
        if errors is None and self.num_final:
            message += (
                f"; after {walk.num_newton} Newton steps the observed information is singular, so that "
                "further ones and Monte Carlo errors are left out: a parameter lies at its limit, or there "
                "are too few draws"
            )
        elif errors is not None:
            worst = max(errors, key=lambda name: float(errors[name].max(initial=0.0)))
            largest = float(errors[worst].max(initial=0.0))
            message += f"; Monte Carlo standard errors are at most {largest:.2g} ({worst})"
        if not walk.settled:
            message += "; raise max_steps or max_samples, or loosen tol"
        return EngineResult(
            engine=self.name,
            draws={name: value[None, None] for name, value in values.items()},
            sample_stats={"lp": lp[None, None]},
            objective=np.cumsum([0.0, *(gain.mean for gain in walk.gains)])[None],
            status=Status(walk.settled, message),
            seconds=walk.clock.seconds,
            approximate=approximate,
            standard_errors=errors,
            conditional_draws=kept,
        )

    def _kept(
        self, walk: Walk, draws: dict[str, NDArray], most: int
    ) -> dict[str, NDArray[np.float64]]:
        """Return draws at the estimate, shape (chain, draw, ...), at most `most` of each chain."""

        def thinned(values: NDArray) -> NDArray:
            by_chain = values.reshape(self.num_chains, -1, *values.shape[1:])
            kept = by_chain[:, thin(by_chain.shape[1], max(most, 1))]
            return kept.reshape(-1, *values.shape[1:])

        inputs = jax.tree.map(thinned, draws), walk.theta, walk.problem.args
        found = walk.compiled("mcem-kept", constrained, *inputs)(*inputs)
        return {n: np.reshape(v, (self.num_chains, -1, *v.shape[1:])) for n, v in found.items()}
