"""Nested sampling with slice moves, labels summed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from sidebayes.common.fields import Count, NonNegative, Range

from ..base import (
    KEEPS_NOTHING,
    EngineResult,
    Keeper,
    KeptEngine,
    Problem,
    Status,
)
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..plumbing.progress import in_pieces, progress_bar
from ..problem.density import approximation, as_numpy
from .particles import (
    Tails,
    check_prior,
    check_prior_draws,
    draw_prior,
    finish,
    light_tails,
    load_blackjax,
    pool_evidence,
    split_density,
    warn_of_length,
)

__all__ = ["NestedSlice", "num_replacements"]

_VOLUMES = 100
"""Sequences of prior volumes that are simulated."""


_SPREAD = 1.0
"""Standard deviation of the runs' log evidence above which they have not converged."""


_KNOWN = 20
"""Coordinates up to which the default number of moves is known to forget where a new point began."""


_LAST = 8.0
"""Logarithm by which the volume shrinks from the bulk of the posterior on, until `tol` is left."""


class _Nest(NamedTuple):
    """Live points, and all that died; the first axis of each array but `steps` numbers the runs."""

    key: Array
    tails: Tails
    live: Any
    dead: Array
    dead_likelihood: Array
    steps: Array


@dataclass(frozen=True)
class NestedSlice(KeptEngine):
    """Nested slice sampling (Yallup, Kroupa and Handley 2026), by blackjax.

    Live points drawn from the prior contract, likelihood contour by likelihood contour, towards the
    peaks; those left behind, weighted by the prior volume between contours, give the evidence and the
    posterior. New points come from slice moves shaped by the covariance of the live ones. Independent
    runs give the chains of the result.

    Parameters
    ----------
    num_live : int
        Number of live points of each run.
    num_delete : int
        Number of points replaced at once, fewer than `num_live`.
    num_slices : int, optional
        Number of slice moves of a new point; by default twice the number of dimensions, at least 5. Too
        few moves bias the evidence upwards.
    num_runs : int
        Number of independent runs, at least 2.
    num_samples : int
        Number of equally weighted posterior draws of each run.
    tol : float
        Stop when the live points hold less than this share of the evidence in every run.
    max_steps : int
        Maximum number of replacements.

    References
    ----------
    Skilling (2006), Bayesian Anal. 1, 833-859, doi:10.1214/06-BA127; Yallup, Kroupa and Handley
    (2026), arXiv:2601.23252.
    """

    num_live: Annotated[int, Range(least=2, below=2**31)] = 500
    num_delete: Count = 50
    num_slices: Count | None = None
    num_runs: Annotated[int, Range(least=2, below=2**31)] = 4
    num_samples: Count = 1000
    tol: NonNegative = 1e-3
    max_steps: Count = 2000
    name: ClassVar[str] = "nested"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_delete >= self.num_live:
            raise ValueError(
                f"NestedSlice(num_delete={self.num_delete!r}): expected less than "
                f"num_live={self.num_live}"
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
        version = load_blackjax("NestedSlice").__version__
        check_prior(problem, "NestedSlice", init)
        approximate = approximation(problem)
        keys = jax.random.split(jax.random.key(seed), self.num_runs)
        shape = self.num_live, self.num_delete, self.num_slices, self.max_steps, version
        with progress_bar("Nested sampling", shown=progress) as advance:
            advance(0, "compiling")
            clock = Clock()
            given = keys, problem.args
            begin = clock.counted(compiled("nested-begin", problem, shape, self._begin, *given))
            state = begin(*given)
            live = state.live.particles
            outer, _ = jax.vmap(lambda tails, u: tails.outward(u))(state.tails, live.position)
            check_prior_draws(problem, "NestedSlice", outer, live.loglikelihood)
            possible = np.isfinite(live.loglikelihood).sum(axis=1)
            state = keep.restore(state)
            fixed = problem.args, jnp.asarray(float(self.tol))
            limit = jnp.asarray(0)
            asked = compiled("nested", problem, shape, self._march, state, *fixed, limit)
            march = clock.counted(asked)
            with clock.running():
                state = march(state, *fixed, jnp.asarray(int(state.steps) + 1))
            self._predict_length(state, clock.seconds["run"])
            with clock.running():
                state, _ = in_pieces(
                    lambda state, limit: (march(state, *fixed, limit), None),
                    state,
                    advance,
                    lambda state: f"remaining evidence {float(_remaining(state).max()):.2g}",
                    keep.offer,
                )
                draws, log_evidence, variance, effective = self._weigh(state, possible, seed)
            unnumbered = np.zeros((*draws.shape[:2], 0), int)
            chosen = draws, state.tails, unnumbered, problem.args
            asked = compiled("particles", problem, None, partial(finish, None), *chosen)
            values, lp = clock.counted(asked)(*chosen)
        pooled = pool_evidence(log_evidence, variance, self.tol)
        left = float(_remaining(state).max())
        stopped = left < self.tol
        message = (
            f"nested sampling left {left:.2g} of the evidence after {int(state.steps)} replacements; "
            f"{pooled}; {self.num_runs} x "
            f"{self.num_samples} draws from {effective:.0f} effective ones per run"
        )
        spread = float(log_evidence.std(ddof=1))
        if not stopped:
            message += f"; stopped at max_steps={self.max_steps} before tol={self.tol}: raise it"
        elif spread > _SPREAD:
            message += (
                f"; the runs' log evidence spreads by {spread:.2g}: raise num_live or num_slices"
            )
        return EngineResult(
            engine=self.name,
            draws=as_numpy(values),
            sample_stats={"lp": np.asarray(lp)},
            objective=np.zeros((0, 0)),
            status=Status(stopped and spread <= _SPREAD, message),
            seconds=clock.seconds,
            approximate=approximate,
            density_space="unconstrained",
            log_evidence=pooled if stopped else None,
            remarks=self._remarks(state.dead.shape[-1]),
        )

    def _remarks(self, width: int) -> tuple[str, ...]:
        if self.num_slices is not None or width <= _KNOWN:
            return ()
        return (
            f"{2 * width} slice moves of a new point may not forget where it began in {width} coordinates "
            f"(they do up to {_KNOWN}); compare with NUTS, or with more moves (num_slices)",
        )

    def _predict_length(self, state: _Nest, seconds: float) -> None:
        """Warn of a long run, after its first replacement."""
        live, few = state.live.particles, max(self.num_live // 4, self.num_delete + 1)
        width = live.position.shape[-1]
        left = num_replacements(np.asarray(live.loglikelihood), width, self.num_delete)
        advice = (
            f"give fewer live points, such as NestedSlice(num_live={few}), or use SMC, whose time grows less "
            "with the number of coordinates"
        )
        warn_of_length("NestedSlice", min(left, self.max_steps), seconds, "replacements", advice)

    def _algorithm(self, problem: Problem, args: tuple, tails: Tails, width: int) -> Any:
        """Nested slice sampling of vectors of length `width`."""
        from blackjax.ns import nss

        split = split_density(problem, args, tails)
        return nss.as_top_level_api(
            lambda u: split(u)[0],
            lambda u: split(u)[1],
            num_inner_steps=self.num_slices or max(5, 2 * width),
            num_delete=self.num_delete,
        )

    def _begin(self, problem: Problem) -> Callable:
        def one(key: Array, args: tuple) -> tuple:
            key, use = jax.random.split(key)
            outer = draw_prior(problem, jax.random.split(use, self.num_live), args)
            tails = light_tails(outer)
            points = tails.inward(outer)
            live = self._algorithm(problem, args, tails, points.shape[1]).init(points, use)
            dead = jnp.zeros((self.max_steps, self.num_delete, points.shape[1]), points.dtype)
            return key, tails, live, dead, dead[..., 0]

        def begin(keys: Array, args: tuple) -> _Nest:
            key, tails, live, dead, value = jax.vmap(one, in_axes=(0, None))(keys, args)
            return _Nest(key, tails, live, dead, value, jnp.asarray(0))

        return begin

    def _march(self, problem: Problem) -> Callable:
        """All runs at once, until each may stop, or `limit` replacements were made."""

        def march(state: _Nest, args: tuple, tol: Array, limit: Array) -> _Nest:
            width = state.dead.shape[-1]
            replace = jax.vmap(
                lambda tails, key, live: self._algorithm(problem, args, tails, width).step(
                    key, live
                )
            )

            def unfinished(state: _Nest) -> Array:
                most = jnp.minimum(limit, self.max_steps)
                return (_remaining(state) >= tol).any() & (state.steps < most)

            def step(state: _Nest) -> _Nest:
                key, use = jnp.moveaxis(jax.vmap(jax.random.split)(state.key), 1, 0)
                live, info = replace(state.tails, use, state.live)
                lost = info.particles
                return _Nest(
                    key=key,
                    tails=state.tails,
                    live=live,
                    dead=state.dead.at[:, state.steps].set(lost.position),
                    dead_likelihood=state.dead_likelihood.at[:, state.steps].set(
                        lost.loglikelihood
                    ),
                    steps=state.steps + 1,
                )

            return lax.while_loop(unfinished, step, state)

        return march

    def _weigh(
        self, state: _Nest, possible: NDArray, seed: int
    ) -> tuple[Array, NDArray, float, float]:
        """Posterior draws of every run, its log evidence, the variance of that, and sample size.

        The part of the prior without likelihood is no sequence of contours: its volume is that of the first
        points, of which `possible` have one.
        """
        steps, particles = int(state.steps), state.live.particles
        count = np.tile(self.num_live - np.arange(self.num_delete), steps)
        count = np.concatenate([count, np.arange(self.num_live, 0, -1)])
        found = []
        for run in range(self.num_runs):
            rng = np.random.default_rng([seed, run])
            dead = np.asarray(state.dead_likelihood[run, :steps]).ravel()
            live = np.asarray(particles.loglikelihood[run])
            order = np.argsort(live)
            points = np.concatenate(
                [
                    np.asarray(state.dead[run, :steps]).reshape(-1, state.dead.shape[-1]),
                    np.asarray(particles.position[run])[order],
                ]
            )
            height = np.concatenate([dead, live[order]])
            shrunk = np.log(rng.uniform(size=(_VOLUMES, len(count)))) / count
            shrunk[:, ~np.isfinite(height)] = 0.0
            first = np.ones((_VOLUMES, 1))
            if possible[run] < self.num_live:
                first = rng.beta(possible[run], self.num_live - possible[run], first.shape)
            inside = first * np.exp(np.cumsum(shrunk, axis=1))
            padded = np.concatenate([first, inside, np.zeros_like(first)], axis=1)
            with np.errstate(divide="ignore"):
                width = np.log((padded[:, :-2] - padded[:, 2:]) / 2)
            log_weight = np.where(np.isfinite(height), width + height, -np.inf)
            total = np.logaddexp.reduce(log_weight, axis=1)
            weight = np.exp(log_weight - total[:, None]).mean(axis=0)
            at = (np.arange(self.num_samples) + rng.uniform()) / self.num_samples
            chosen = np.searchsorted(np.cumsum(weight) / weight.sum(), at).clip(max=len(points) - 1)
            draws = points[rng.permutation(chosen)]
            found.append((draws, total.mean(), total.var(ddof=1), 1 / np.sum(weight**2)))
        draws, value, variance, effective = map(np.stack, zip(*found, strict=True))
        return jnp.asarray(draws), value, float(variance.mean()), float(effective.mean())


def _remaining(state: _Nest) -> Array:
    """Share of the evidence that the live points hold, shape (num_runs,)."""
    done = state.live.integrator
    return jnp.exp(done.logZ_live - jnp.logaddexp(done.logZ, done.logZ_live))


def num_replacements(log_likelihood: NDArray, num_coordinates: int, num_delete: int) -> float:
    r"""How many replacements there will be, as for a normal likelihood in a flat prior.

    Live points fill a ball of radius r, in standard deviations of the likelihood, whose logarithm has
    a standard deviation s of about :math:`r^2 / d`. The posterior lies at a radius of about
    :math:`\sqrt d`, so that :math:`\tfrac d2 \log s` is the logarithm by which the volume has to shrink.

    Parameters
    ----------
    log_likelihood : ndarray, shape (num_runs, num_live)
        Of the live points.
    num_coordinates : int
    num_delete : int
        See `NestedSlice`.
    """
    first, third = np.quantile(log_likelihood[np.isfinite(log_likelihood)], [0.25, 0.75])
    spread = (third - first) / 1.35
    shrinkage = num_coordinates / 2 * np.log(max(spread, 1.0)) + _LAST
    return float(log_likelihood.shape[1] / num_delete * shrinkage)
