"""Sequential Monte Carlo from the prior to the posterior, labels summed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sidebayes.common.fields import Count, OneOf, Range, Share

from ...base import (
    KEEPS_NOTHING,
    EngineResult,
    FitError,
    Keeper,
    KeptEngine,
    Problem,
    Status,
)
from ...modes import REMEMBERED
from ...plumbing.clock import Clock
from ...plumbing.programs import compiled
from ...plumbing.progress import in_pieces, progress_bar
from ...plumbing.side_by_side import compiled_batch
from ...problem.declared import approximation
from ...problem.density import as_numpy
from ...problem.importance import evidence_below, proper, told
from ...steps.starts import random_keys
from .cloud import Cloud
from .folding import Folding, find_folding, numberings
from .particle_moves import (
    KERNELS,
    each_particle,
    first_step,
    move_particles,
    num_chains,
    num_shells,
)
from .particles import (
    check_prior,
    check_prior_draws,
    draw_prior,
    finish,
    greatest_rise,
    light_tails,
    num_temperatures,
    pool_evidence,
    resampled,
    split_density,
    warn_of_length,
)

__all__ = ["SMC"]

_SPREAD = 1.0
"""Standard deviation of the runs' log evidence above which they have not converged."""

_REMEMBERED = 0.35
"""Correlation of the log likelihood with that before the last moves, above which draws may be wrong."""


@dataclass(frozen=True)
class SMC(KeptEngine):
    """Adaptive tempered sequential Monte Carlo (Del Moral, Doucet and Jasra 2006).

    Particles drawn from the prior are reweighted to the likelihood raised to a power that grows
    from 0 to 1, resampled, and moved by a Markov kernel tuned to where they lie. The next power is
    chosen by the effective sample size. A fifth of the particles move until they have forgotten
    where they started; the last five states of each then replace all particles, so that none is
    wasted (Dau and Chopin 2022). Because particles start everywhere, all separated modes are kept,
    including permutations of the clusters. Independent runs give the chains of the result.

    The error of the log evidence is the larger of two errors: one from the spread of the runs, and
    one from the weights of a single run, enlarged for the correlation of particles with their
    starts.

    Parameters
    ----------
    num_particles : int
        Number of particles, and hence of draws, of each run.
    num_runs : int
        Number of independent runs, at least 2.
    kernel : {"hmc", "random_walk"}
        Hamiltonian moves, or random walks, which need no gradient. The metric of each half of the
        particles is the covariance of the other half: with their own covariance, they would move
        fastest where they lie too far out by chance, and the evidence would be too low. Steps vary
        from 0.6 to 1.6 times a size that is adapted to the acceptance.
    num_mutations : int
        Maximum number of moves of each chain at each temperature. At least half as many moves as
        coordinates are made, up to this maximum, and up to ten times as many where particles of
        high likelihood lie much closer together than others, as under a vague prior beside an
        unknown scale.
    num_leapfrog : int
        Maximum number of leapfrog steps of a Hamiltonian move.
    target_ess : float
        Share of the particles that remains effective from one temperature to the next, in (0, 1).
    max_steps : int
        Maximum number of temperatures.

    Notes
    -----
    If renumbering up to five clusters leaves the density unchanged, particles are kept in one
    numbering while they move, and are renumbered at random at the end: the covariance over all
    numberings is as wide as the distances between them. Coordinates whose prior has heavy tails are
    moved on the scale of their inverse hyperbolic sine.

    The mean of the runs is uninformative if their log evidences spread by more than one, or if
    particles still depend strongly on their starts after the last moves, as in a regression under
    the horseshoe prior: all runs may lack the same part of the posterior. Apart from the
    adaptation, the evidence of each run is unbiased on the natural scale. By Markov's inequality
    the evidence therefore exceeds a twentieth of their mean with a probability of 95 per cent; this
    is reported as a lower bound.

    References
    ----------
    Del Moral, Doucet and Jasra (2006), J. R. Stat. Soc. B 68, 411-436,
    doi:10.1111/j.1467-9868.2006.00553.x; adaptation: Buchholz, Chopin and Jacob (2021), Bayesian
    Anal. 16, 745-771, doi:10.1214/20-BA1222; states that are kept: Dau and Chopin (2022), J. R. Stat.
    Soc. B 84, 114-148, doi:10.1111/rssb.12475.
    """

    num_particles: Annotated[int, Range(least=2, below=2**31)] = 1000
    num_runs: Annotated[int, Range(least=2, below=2**31)] = 4
    kernel: Annotated[str, OneOf(KERNELS)] = "hmc"
    num_mutations: Count = 10
    num_leapfrog: Count = 8
    target_ess: Share = 0.5
    max_steps: Count = 200
    name: ClassVar[str] = "smc"
    starts_at_prior: ClassVar[bool] = True
    for_more: ClassVar[str] = "raise num_particles or num_mutations"

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
        ValueError
            If a prior is improper.
        FitError
            If no draw of the prior has a finite likelihood.
        """
        check_prior(problem, "SMC", init)
        approximate = approximation(problem)
        with progress_bar("SMC", shown=progress) as advance:
            advance(0, "compiling")
            clock = Clock()
            folding = find_folding(problem, seed)
            known = None if folding is None else (folding.axes, folding.num_clusters)
            shape = (
                self.num_particles,
                self.kernel,
                self.num_mutations,
                self.num_leapfrog,
                self.target_ess,
                self.max_steps,
                known,
            )
            keys = random_keys(seed, self.num_runs)
            build = partial(self._begin, folding)
            asked = compiled_batch(
                "smc-begin", problem, shape, build, keys, problem.args, once=True
            )
            state = clock.counted(asked)(keys, problem.args)
            check_prior_draws(problem, "SMC", *state.outer())
            state = keep.restore(state)
            build, limit = partial(self._march, folding), np.asarray(0)
            asked = compiled_batch("smc", problem, shape, build, state, problem.args, limit)
            march = clock.counted(asked)
            with clock.running():
                state = march(state, problem.args, np.asarray(int(np.max(state.steps)) + 1))
            self._predict_length(state, clock.seconds["run"])
            with clock.running():
                state, _ = in_pieces(
                    lambda state, limit: (march(state, problem.args, limit), None),
                    state,
                    advance,
                    lambda state: f"temperature {float(np.min(state.temperature)):.3g}",
                    keep.offer,
                )
            orders, renumbered = np.zeros((*state.likelihood.shape, 0), int), None
            if folding is not None:
                orders = numberings(folding, seed, state.likelihood.shape)
                renumbered = folding.renumbered
            given = state.particles, state.tails, orders, problem.args
            build = partial(finish, renumbered)
            look = clock.counted(compiled("particles", problem, known, build, *given))
            values, lp = look(*given)
        return self._result(
            problem, state, as_numpy(values), np.asarray(lp), clock.seconds, approximate
        )

    def _predict_length(self, state: Cloud, seconds: float) -> None:
        """Warn of a long run, after its first temperature, as if all moves were made at each."""
        reached, width = float(np.min(state.temperature)), state.particles.shape[-1]
        left = min(num_temperatures(reached, width, self.target_ess), self.max_steps)
        most = seconds * self.num_mutations / float(np.max(state.moves))
        advice = (
            f"give fewer particles, such as SMC(num_particles={self.num_particles // 4}), or use "
            "engine='nuts', which sees one mode"
        )
        warn_of_length("SMC", left, most, "temperatures", advice)

    def _begin(self, folding: Folding | None, problem: Problem) -> Callable:
        def begin(key: Array, args: tuple) -> Cloud:
            rest, use = jax.random.split(jax.random.wrap_key_data(key))
            outer = draw_prior(problem, jax.random.split(use, self.num_particles), args)
            tails = light_tails(outer)
            particles = tails.inward(outer)
            likelihood = each_particle(
                lambda u: split_density(problem, args, tails)(u)[1], particles
            )
            width, zero = particles.shape[1], jnp.zeros((), particles.dtype)
            reference = jnp.zeros((0, 0), particles.dtype)
            if folding is not None:
                best = outer[jnp.argmax(likelihood)]
                reference = folding.described(problem, args)(best)
            return Cloud(
                key=jax.random.key_data(rest),
                particles=particles,
                likelihood=likelihood,
                tails=tails,
                reference=reference,
                temperature=zero,
                log_evidence=zero,
                variance=zero,
                step_size=jnp.full(num_shells(self.num_particles), first_step(self.kernel, width)),
                acceptance=zero,
                correlation=zero,
                memory=zero,
                moves=jnp.asarray(0),
                steps=jnp.asarray(0),
            )

        return begin

    def _march(self, folding: Folding | None, problem: Problem) -> Callable:
        """Program of one run, until it has moved at temperature 1, or done `limit` temperatures."""

        def march(state: Cloud, args: tuple, limit: Array) -> Cloud:
            most = jnp.minimum(limit, self.max_steps)

            def unfinished(state: Cloud) -> Array:
                return (state.temperature < 1) & (state.steps < most)

            step = partial(self._temper, problem, folding, args)
            return lax.while_loop(unfinished, step, state)

        return march

    def _temper(
        self, problem: Problem, folding: Folding | None, args: tuple, cloud: Cloud
    ) -> Cloud:
        """Reweight to the next temperature, resample, and move there."""
        key, choose, go = jax.random.split(jax.random.wrap_key_data(cloud.key), 3)
        temperature, log_weights = self._reweighted(cloud)
        mean = jax.nn.logsumexp(log_weights) - jnp.log(self.num_particles)
        weights = jnp.exp(log_weights - mean)  # of mean 1
        # errors of one temperature persist as far as particles are correlated with it
        again = (1 + cloud.memory) / (1 - cloud.memory)
        chosen = resampled(choose, weights)
        start, reference = cloud.particles[chosen], cloud.reference
        if folding is not None:
            start, reference = folding.fold(problem, args, cloud.tails, start, reference)
        split = split_density(problem, args, cloud.tails)
        walk, particles, likelihood = move_particles(
            split,
            temperature,
            start,
            cloud.likelihood[chosen],
            cloud.step_size,
            go,
            kernel=self.kernel,
            num_mutations=self.num_mutations,
            num_leapfrog=self.num_leapfrog,
        )
        return Cloud(
            key=jax.random.key_data(key),
            particles=particles,
            likelihood=likelihood,
            tails=cloud.tails,
            reference=reference,
            temperature=temperature,
            log_evidence=cloud.log_evidence + mean,
            variance=cloud.variance + again * self._variance(weights),
            step_size=walk.step_size,
            acceptance=walk.acceptance,
            correlation=walk.correlation,
            memory=jnp.clip(walk.memory, 0.0, 0.95),
            moves=cloud.moves + walk.moves,
            steps=cloud.steps + 1,
        )

    def _variance(self, weights: Array) -> Array:
        """Return the variance of the mean of the weights; those of one chain depend on each other."""
        number = num_chains(self.num_particles, self.num_mutations)
        per_chain = -(-self.num_particles // number)
        whole = self.num_particles // per_chain
        chains = weights[: whole * per_chain].reshape(whole, per_chain)
        return jnp.var(chains.mean(axis=1)) / whole

    def _reweighted(self, cloud: Cloud) -> tuple[Array, Array]:
        """Return the next temperature, and the log weights that lead there."""
        left = 1 - cloud.temperature
        known = jnp.isfinite(cloud.likelihood)

        def log_weights(rise: Array) -> Array:
            return jnp.where(known, rise * jnp.where(known, cloud.likelihood, 0.0), -jnp.inf)

        lowest = jnp.min(jnp.where(known, cloud.likelihood, jnp.inf))
        usable = jnp.where(known, cloud.likelihood, lowest - 1e6)
        rise = greatest_rise(usable, self.target_ess, left)
        return jnp.where(rise >= left, 1.0, cloud.temperature + rise), log_weights(rise)

    def _result(
        self,
        problem: Problem,
        state: Cloud,
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
        log_evidence = pool_evidence(np.asarray(state.log_evidence), float(np.mean(state.variance)))
        settled = bool((reached >= 1).all())
        spread = float(np.std(state.log_evidence, ddof=1))
        remarks = self._remarks(state) if settled else ()
        if spread > _SPREAD or remarks:
            log_evidence = evidence_below(log_evidence.value)
        evidence = proper(problem, log_evidence)
        message = (
            f"SMC drew {self.num_runs} x {self.num_particles} over {steps} temperature"
            f"{'s' if steps > 1 else ''}, {float(np.mean(state.moves / state.steps)):.1f} moves at each; "
            f"{told(problem, evidence)}; last acceptance {float(state.acceptance.mean()):.2f}"
        )
        if not settled:
            message = (
                f"SMC stopped at max_steps={self.max_steps}, temperature {reached.min():.3g} of 1: these "
                "are not draws of the posterior; raise max_steps or num_mutations"
            )
        elif spread > _SPREAD:
            message += (
                f"; the runs' log evidence spreads by {spread:.2g}, so that they saw different modes and "
                "give a lower bound only: raise num_particles or num_mutations, or use engine='nuts' or "
                "'gibbs' from a mode, whose draws tell its evidence (fit.with_evidence())"
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
            log_evidence=evidence if settled else None,
            remarks=remarks,
        )

    def _remarks(self, state: Cloud) -> tuple[str, ...]:
        """Remark on the memory of particles, unless weights alone led from the prior to the posterior."""
        memory = float(np.mean(state.memory))
        if int(state.steps.max()) == 1 or not memory > _REMEMBERED:
            return ()
        return (
            f"{REMEMBERED} (correlation {memory:.2f} of the log likelihood), so that all runs may lack the "
            "same part of the posterior: raise num_mutations, and compare with NUTS",
        )
