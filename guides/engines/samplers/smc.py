"""Sequential Monte Carlo from the prior to the posterior, labels summed out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sidebayes.common.fields import Count, OneOf, Range, Share

from ..base import (
    KEEPS_NOTHING,
    EngineResult,
    FitError,
    Keeper,
    KeptEngine,
    Problem,
    SideBayesWarning,
    Status,
)
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..plumbing.progress import in_pieces, progress_bar
from ..problem.density import approximation, as_numpy
from .particles import (
    check_prior,
    check_prior_draws,
    draw_prior,
    finish,
    load_blackjax,
    log_densities,
    pool_evidence,
    unraveller,
)

__all__ = ["SMC", "num_temperatures"]

_TARGET = {"hmc": 0.7, "random_walk": 0.25}
"""Acceptance probability that the step size is adapted to, by kernel."""

_GAIN = 2.0
"""What an excess of acceptance adds to the log step size, after each temperature."""

_SPREAD = 1.0
"""Standard deviation of the runs' log evidence above which they have not converged."""


_LONG = 120.0
"""Seconds of a run from which on a warning predicts its length."""


class _Cloud(NamedTuple):
    """Particles of every run; the first axis of each array numbers the runs."""

    key: Array
    particles: Array
    weights: Array
    temperature: Array
    log_evidence: Array
    step_size: Array
    acceptance: Array
    steps: Array
    settled: Array


@dataclass(frozen=True)
class SMC(KeptEngine):
    """Adaptive tempered sequential Monte Carlo (Del Moral, Doucet and Jasra 2006), by blackjax.

    Particles drawn from the prior are reweighted to the likelihood raised to a power that grows from
    0 to 1, resampled, and moved by a Markov kernel tuned to where they lie. The next power is chosen
    by the effective sample size. Because particles start everywhere, all separated modes are kept,
    permutations of the clusters among them. Independent runs give the chains of the result, and the
    standard error of its log evidence.

    Parameters
    ----------
    num_particles : int
        Number of particles, and hence of draws, of each run.
    num_runs : int
        At least 2.
    kernel : {"hmc", "random_walk"}
        Hamiltonian moves with the particles' variances as metric and a step size of its own for each
        particle; one leapfrog step makes them MALA. Random walks with the particles' covariance
        need no gradient.
    num_mutations : int
        Number of moves of each particle at each temperature.
    num_leapfrog : int
        Number of leapfrog steps of a Hamiltonian move.
    target_ess : float
        Share of the particles that remains effective from one temperature to the next, in (0, 1).
    max_steps : int
        Maximum number of temperatures.

    References
    ----------
    Del Moral, Doucet and Jasra (2006), J. R. Stat. Soc. B 68, 411-436,
    doi:10.1111/j.1467-9868.2006.00553.x; step sizes: Buchholz, Chopin and Jacob (2021), Bayesian
    Anal. 16, 745-771, doi:10.1214/20-BA1222.
    """

    num_particles: Annotated[int, Range(least=2, below=2**31)] = 1000
    num_runs: Annotated[int, Range(least=2, below=2**31)] = 4
    kernel: Annotated[str, OneOf(tuple(_TARGET))] = "hmc"
    num_mutations: Count = 5
    num_leapfrog: Count = 8
    target_ess: Share = 0.5
    max_steps: Count = 200
    name: ClassVar[str] = "smc"

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
        keep: Keeper = KEEPS_NOTHING,
    ) -> EngineResult:
        """Sample; see `Engine.run`. Takes no `init`.

        Raises
        ------
        ImportError
            If blackjax is not installed.
        ValueError
            If a prior is improper.
        FitError
            If the likelihood is finite at no draw of the prior.
        """
        version = load_blackjax("SMC").__version__
        check_prior(problem, "SMC", init)
        approximate = approximation(problem)
        keys = jax.random.split(jax.random.key(seed), self.num_runs)
        shape = (
            self.num_particles,
            self.kernel,
            self.num_mutations,
            self.num_leapfrog,
            self.target_ess,
            version,
        )
        with progress_bar("SMC", shown=progress) as advance:
            advance(0, "compiling")
            clock = Clock()
            given = keys, problem.args
            begin = clock.counted(compiled("smc-begin", problem, shape, self._begin, *given))
            state, likelihood = begin(*given)
            check_prior_draws(problem, "SMC", state.particles, likelihood)
            state = keep.restore(state)
            limit = jnp.asarray(0)
            asked = compiled("smc", problem, shape, self._march, state, problem.args, limit)
            march = clock.counted(asked)
            one_more = jnp.asarray(min(int(np.max(state.steps)) + 1, self.max_steps))
            with clock.running():
                state = march(state, problem.args, one_more)
            self._predict_length(state, clock.seconds["run"])
            with clock.running():
                state, _ = in_pieces(
                    lambda state, limit: (
                        march(state, problem.args, jnp.minimum(limit, self.max_steps)),
                        None,
                    ),
                    state,
                    advance,
                    lambda state: f"temperature {float(state.temperature.min()):.3g}",
                    keep.offer,
                )
            given = state.particles, problem.args
            look = clock.counted(compiled("particles", problem, None, finish, *given))
            values, lp = look(*given)
        return self._result(state, as_numpy(values), np.asarray(lp), clock.seconds, approximate)

    def _predict_length(self, state: _Cloud, seconds: float) -> None:
        """Warn of a long run, after its first temperature."""
        left = num_temperatures(
            float(state.temperature.min()), state.particles.shape[-1], self.target_ess
        )
        wait = min(left, self.max_steps) * seconds
        if wait > _LONG:
            warnings.warn(
                f"SMC will take about {wait / 60:.0f} minutes: {left:.0f} temperatures of {seconds:.1f} s; "
                f"give fewer particles or moves, such as SMC(num_particles={self.num_particles // 4}), "
                "or use engine='nuts', which sees one mode",
                SideBayesWarning,
                stacklevel=2,
            )

    def _begin(self, problem: Problem) -> Callable:
        def one(key: Array, args: tuple) -> tuple[_Cloud, Array]:
            key, use = jax.random.split(key)
            particles = draw_prior(problem, jax.random.split(use, self.num_particles), args)
            unravel = unraveller(problem, args)
            likelihood = jax.vmap(lambda v: log_densities(problem, unravel(v), args)[1])(particles)
            width = particles.shape[1]
            start = width**-0.25 if self.kernel == "hmc" else 2.38 * width**-0.5
            zero = jnp.zeros((), particles.dtype)
            cloud = _Cloud(
                key=key,
                particles=particles,
                weights=jnp.full(self.num_particles, 1 / self.num_particles),
                temperature=zero,
                log_evidence=zero,
                step_size=zero + start,
                acceptance=zero,
                steps=jnp.asarray(0),
                settled=jnp.asarray(False),
            )
            return cloud, likelihood

        return jax.vmap(one, in_axes=(0, None))

    def _march(self, problem: Problem) -> Callable:
        """All runs at once, until each has moved at temperature 1, or done `limit` temperatures."""

        def march(state: _Cloud, args: tuple, limit: Array) -> _Cloud:
            def unfinished(state: _Cloud) -> Array:
                return ~state.settled.all() & (state.steps.max() < limit)

            step = jax.vmap(lambda cloud: self._temper(problem, cloud, args))
            return lax.while_loop(unfinished, step, state)

        return march

    def _temper(self, problem: Problem, cloud: _Cloud, args: tuple) -> _Cloud:
        """Resample, move, and reweight to the next temperature; at temperature 1 just move."""
        from blackjax.smc import adaptive_tempered, resampling
        from blackjax.smc.tempered import TemperedSMCState

        unravel = unraveller(problem, args)
        initialise, move, moves = self._kernel(cloud)
        kernel = adaptive_tempered.build_kernel(
            lambda v: log_densities(problem, unravel(v), args)[0],
            lambda v: log_densities(problem, unravel(v), args)[1],
            move,
            initialise,
            resampling.systematic,
            self.target_ess,
        )
        key, use = jax.random.split(cloud.key)
        before = TemperedSMCState(cloud.particles, cloud.weights, cloud.temperature)
        after, info = kernel(use, before, self.num_mutations, moves)
        acceptance = info.update_info.acceptance_rate.mean()
        return _Cloud(
            key=key,
            particles=after.particles,
            weights=after.weights,
            temperature=jnp.asarray(after.tempering_param),
            log_evidence=cloud.log_evidence + info.log_likelihood_increment,
            step_size=cloud.step_size * jnp.exp(_GAIN * (acceptance - _TARGET[self.kernel])),
            acceptance=acceptance,
            steps=cloud.steps + 1,
            settled=cloud.temperature >= 1,
        )

    def _kernel(self, cloud: _Cloud) -> tuple[Callable, Callable, dict[str, Array]]:
        """Start and transition of blackjax's kernel, and its settings tuned to the particles."""
        from blackjax.mcmc import hmc, random_walk

        apart = cloud.particles - cloud.weights @ cloud.particles
        if self.kernel == "hmc":
            leap = hmc.build_kernel()
            # steps of several lengths, so that no particle is left where all are too long
            share = (jnp.arange(self.num_particles) + 0.5) / self.num_particles
            return (
                hmc.init,
                lambda *state, **settings: leap(
                    *state, **settings, num_integration_steps=self.num_leapfrog
                ),
                {
                    "step_size": cloud.step_size * (0.2 + 1.6 * share),
                    "inverse_mass_matrix": (cloud.weights @ apart**2 + 1e-12)[None],
                },
            )
        walk = random_walk.build_additive_step()
        covariance = (apart * cloud.weights[:, None]).T @ apart
        ridge = 1e-8 * jnp.trace(covariance) / len(covariance) + 1e-12
        root = jnp.linalg.cholesky(covariance + ridge * jnp.eye(len(covariance)))

        def transition(key: Array, state: Any, log_density: Callable, root: Array) -> tuple:
            def stride(key: Array, position: Array) -> Array:
                return root @ jax.random.normal(key, position.shape, position.dtype)

            return walk(key, state, log_density, stride)

        return random_walk.init, transition, {"root": (cloud.step_size * root)[None]}

    def _result(
        self,
        state: _Cloud,
        values: dict[str, np.ndarray],
        lp: np.ndarray,
        seconds: dict[str, float],
        approximate: str | None,
    ) -> EngineResult:
        reached, steps = np.asarray(state.temperature), int(state.steps.max())
        if not np.isfinite(state.log_evidence).all():
            raise FitError(
                "SMC: the log evidence of a run is not finite; raise num_particles, or check the prior"
            )
        log_evidence = pool_evidence(np.asarray(state.log_evidence))
        settled = bool(np.asarray(state.settled).all())
        spread = float(np.std(state.log_evidence, ddof=1))
        message = (
            f"SMC drew {self.num_runs} x {self.num_particles} over {steps} temperatures; "
            f"{log_evidence}; last acceptance "
            f"{float(state.acceptance.mean()):.2f}"
        )
        if not settled:
            message = (
                f"SMC stopped at max_steps={self.max_steps}, temperature {reached.min():.3g} of 1: these "
                "are not draws of the posterior; raise max_steps or num_mutations"
            )
        elif spread > _SPREAD:
            message += (
                f"; the runs' log evidence spreads by {spread:.2g}: raise num_particles or "
                "num_mutations"
            )
        return EngineResult(
            engine=self.name,
            draws=values,
            sample_stats={"lp": lp},
            objective=np.zeros((0, 0)),
            status=Status(settled and spread <= _SPREAD, message),
            seconds=seconds,
            approximate=approximate,
            density_space="unconstrained",
            log_evidence=log_evidence if settled else None,
        )


def num_temperatures(temperature: float, num_coordinates: int, target_ess: float) -> float:
    r"""How many temperatures there will be from one on, as for a normal posterior.

    Between temperatures the log-weights, of variance v, leave a share :math:`e^{-v}` of the particles
    effective. At power t of the likelihood its logarithm has variance :math:`d / (2 t^2)`, so that
    there are :math:`\sqrt{d / 2} \log(1 / t) / \sqrt{-\log \text{share}}` steps to power one.

    Parameters
    ----------
    temperature : float
        Power of the likelihood that has been reached, in (0, 1].
    num_coordinates : int
        Unconstrained dimension d.
    target_ess : float
        See `SMC`.
    """
    steps = -np.log(temperature) * np.sqrt(num_coordinates / 2) / np.sqrt(-np.log(target_ess))
    return 1.0 + float(steps)  # a last move at the posterior itself
