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

from ...base import (
    KEEPS_NOTHING,
    EngineResult,
    Keeper,
    KeptEngine,
    Problem,
    Status,
)
from ...plumbing.clock import Clock
from ...plumbing.programs import compiled
from ...plumbing.progress import in_pieces, progress_bar
from ...problem.declared import approximation
from ...problem.density import as_numpy
from ...problem.importance import effective_size, proper, told
from .particles import (
    Tails,
    check_prior,
    check_prior_draws,
    draw_usable,
    finish,
    light_tails,
    load_blackjax,
    pool_evidence,
    split_density,
    warn_of_length,
)

__all__ = ["NestedSlice", "num_replacements"]

_VOLUMES = 100
"""Number of sequences of prior volumes that are simulated."""


_SPREAD = 1.0
"""Standard deviation of the runs' log evidence above which they have not converged."""


_KNOWN = 20
"""Maximum number of coordinates for which the default moves are known to forget where a new point began."""


_LAST = 8.0
"""Logarithm by which the volume shrinks from the bulk of the posterior until `tol` is left."""


class _Nest(NamedTuple):
    """Live points, and all dead ones; the first axis of each array but `steps` is that of runs.

    Of `tried` draws of the prior, `found` have a finite likelihood. `dead_birth` is the likelihood above
    which a dead point was drawn.
    """

    key: Array
    tails: Tails
    tried: Array
    found: Array
    live: Any
    dead: Array
    dead_likelihood: Array
    dead_birth: Array
    steps: Array


@dataclass(frozen=True)
class NestedSlice(KeptEngine):
    """Nested slice sampling (Yallup, Kroupa and Handley 2026), by blackjax.

    Live points drawn from the prior contract, likelihood contour by likelihood contour, towards the
    peaks; those left behind, weighted by the prior volume between contours, give the evidence and the
    posterior. New points come from slice moves shaped by the covariance of the live ones. Independent
    runs give the chains of the result.

    The likelihood may be zero, or constant, on a part of the prior. Draws from the prior continue
    until all live points have a finite log likelihood, and a plateau takes the share of the live
    points that lie on it.

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
    (2026), arXiv:2601.23252. Plateaus: Fowlie, Handley and Su (2021), Mon. Not. R. Astron. Soc. 503,
    1199-1205, doi:10.1093/mnras/stab590.
    """

    num_live: Annotated[int, Range(least=2, below=2**31)] = 500
    num_delete: Count = 50
    num_slices: Count | None = None
    num_runs: Annotated[int, Range(least=2, below=2**31)] = 4
    num_samples: Count = 1000
    tol: NonNegative = 1e-3
    max_steps: Count = 2000
    name: ClassVar[str] = "nested"
    starts_at_prior: ClassVar[bool] = True
    for_more: ClassVar[str] = "raise num_live or num_slices"

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
            If no draw of the prior has a finite likelihood.
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
            live, worst = state.live.particles, int(jnp.argmin(state.found))
            outer, _ = jax.vmap(lambda tails, u: tails.outward(u))(state.tails, live.position)
            check_prior_draws(problem, "NestedSlice", outer[worst], live.loglikelihood[worst])
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
                draws, log_evidence, variance, effective, missed = self._weigh(state, seed)
            unnumbered = np.zeros((*draws.shape[:2], 0), int)
            chosen = draws, state.tails, unnumbered, problem.args
            asked = compiled("particles", problem, None, partial(finish, None), *chosen)
            values, lp = clock.counted(asked)(*chosen)
        pooled = proper(problem, pool_evidence(log_evidence, variance, self.tol))
        left = float(_remaining(state).max())
        stopped = left < self.tol
        message = (
            f"nested sampling left {left:.2g} of the evidence after {int(state.steps)} replacements; "
            f"{told(problem, pooled)}; {self.num_runs} x "
            f"{self.num_samples} draws from {effective:.0f} effective ones per run"
        )
        share = float(state.found.sum() / state.tried.sum())
        if share < 1:
            message += f"; the likelihood is not zero on {share:.2g} of the prior"
        spread = float(log_evidence.std(ddof=1))
        if not stopped:
            message += f"; stopped at max_steps={self.max_steps} before tol={self.tol}: raise it"
        elif spread > _SPREAD:
            message += (
                f"; the runs' log evidence spreads by {spread:.2g}: raise num_live or num_slices"
            )
        elif missed:
            message += (
                "; the likelihood rises above a plateau in so small a part of the prior that no live point "
                "lay there, and this part is left out: raise num_live"
            )
        return EngineResult(
            engine=self.name,
            draws=as_numpy(values),
            sample_stats={"lp": np.asarray(lp)},
            objective=np.zeros((0, 0)),
            status=Status(stopped and spread <= _SPREAD and not missed, message),
            seconds=clock.seconds,
            approximate=approximate,
            density_space="unconstrained",
            log_evidence=pooled if stopped else None,
            effective_draws=self.num_runs * min(effective, self.num_samples),
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
            outer, tried, found = draw_usable(problem, use, self.num_live, args)
            tails = light_tails(outer)
            points = tails.inward(outer)
            live = self._algorithm(problem, args, tails, points.shape[1]).init(points, use)
            dead = jnp.zeros((self.max_steps, self.num_delete, points.shape[1]), points.dtype)
            return key, tails, tried, found, live, dead, dead[..., 0], dead[..., 0]

        def begin(keys: Array, args: tuple) -> _Nest:
            return _Nest._make([*jax.vmap(one, in_axes=(0, None))(keys, args), jnp.asarray(0)])

        return begin

    def _march(self, problem: Problem) -> Callable:
        """Program of all runs at once, until each may stop, or `limit` replacements have been made."""

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
                lost, now = info.particles, (slice(None), state.steps)
                return state._replace(
                    key=key,
                    live=live,
                    dead=state.dead.at[now].set(lost.position),
                    dead_likelihood=state.dead_likelihood.at[now].set(lost.loglikelihood),
                    dead_birth=state.dead_birth.at[now].set(lost.loglikelihood_birth),
                    steps=state.steps + 1,
                )

            return lax.while_loop(unfinished, step, state)

        return march

    def _weigh(self, state: _Nest, seed: int) -> tuple[Array, NDArray, float, float, bool]:
        """Return posterior draws of every run, its log evidence, the variance of that, and sample size.

        The last result is whether points were found above a plateau while no live point was above it.
        """
        steps, live = int(state.steps), state.live.particles
        found, missed = [], False
        for run in range(self.num_runs):
            rng = np.random.default_rng([seed, run])
            points, likelihood, birth = (
                np.concatenate(
                    [np.asarray(dead[run, :steps]).reshape(-1, *last.shape[2:]), last[run]]
                )
                for dead, last in (
                    (state.dead, live.position),
                    (state.dead_likelihood, live.loglikelihood),
                    (state.dead_birth, live.loglikelihood_birth),
                )
            )
            birth = np.where(np.isnan(birth), -np.inf, birth)
            counted = np.flatnonzero(likelihood > birth)  # no move led others above
            order = counted[np.argsort(likelihood[counted], kind="stable")]
            level, at, tied = np.unique(likelihood[order], return_inverse=True, return_counts=True)
            alive = np.searchsorted(np.sort(birth[order]), level) - (np.cumsum(tied) - tied)
            missed |= bool((alive == tied)[:-1].any())
            log_width = _log_widths(rng, alive, tied, int(state.tried[run]), int(state.found[run]))
            log_weight = log_width + level
            total = np.logaddexp.reduce(log_weight, axis=1)
            weight = (np.exp(log_weight - total[:, None]).mean(axis=0) / tied)[at]
            shares = (np.arange(self.num_samples) + rng.uniform()) / self.num_samples
            chosen = np.searchsorted(np.cumsum(weight) / weight.sum(), shares)
            kept = points[order]
            draws = kept[rng.permutation(chosen.clip(max=len(order) - 1))]
            worth = effective_size(weight, kept)
            found.append((draws, total.mean(), total.var(ddof=1), worth))
        draws, value, variance, effective = map(np.stack, zip(*found, strict=True))
        return jnp.asarray(draws), value, float(variance.mean()), float(effective.mean()), missed


def _log_widths(
    rng: np.random.Generator, alive: NDArray, tied: NDArray, tried: int, found: int
) -> NDArray:
    """Simulate logarithms of the prior volumes of levels of the likelihood.

    A single point lies on its contour, so that the share above it is the largest of `alive` uniform numbers.
    Points that tie lie on a plateau, and the number of points above it is binomial.

    Parameters
    ----------
    rng : Generator
    alive, tied : ndarray of int, shape (num_levels,)
        Numbers of live points at a level or above, and at it.
    tried, found : int
        Number of draws of the prior, and of those with a finite likelihood.

    Returns
    -------
    ndarray, shape (num_simulations, num_levels)
    """
    plateau = tied > 1
    with np.errstate(divide="ignore"):
        log_share = np.log(rng.uniform(size=(_VOLUMES, len(alive)))) / alive
        log_share[:, plateau] = np.log(_shares(rng, (alive - tied)[plateau], tied[plateau]))
        log_first = np.log(_shares(rng, np.array([found]), np.array([tried - found])))
        volume = np.exp(np.cumsum(np.hstack([log_first, log_share]), axis=1))
        shell = -np.diff(volume, axis=1, append=0.0)
        own = np.where(plateau, 1.0, 0.5)
        below = np.append(np.where(plateau[1:], 0.0, 0.5), 0.5)
        return np.log(own * shell[:, :-1] + below * shell[:, 1:])


def _shares(rng: np.random.Generator, above: NDArray, below: NDArray) -> NDArray:
    """Simulate shares of a volume above a plateau, from the numbers of points above and on it."""
    drawn = rng.beta(np.maximum(above, 1), np.maximum(below, 1), (_VOLUMES, len(above)))
    return np.where(above == 0, 0.0, np.where(below == 0, 1.0, drawn))


def _remaining(state: _Nest) -> Array:
    """Return the share of the evidence that live points hold, shape (num_runs,); zero if they all tie."""
    done, likelihood = state.live.integrator, state.live.particles.loglikelihood
    share = jnp.exp(done.logZ_live - jnp.logaddexp(done.logZ, done.logZ_live))
    return jnp.where(likelihood.max(axis=1) > likelihood.min(axis=1), share, 0.0)


def num_replacements(log_likelihood: NDArray, num_coordinates: int, num_delete: int) -> float:
    r"""Predict the number of replacements, as for a normal likelihood in a flat prior.

    Live points fill a ball of radius r, in standard deviations of the likelihood, whose logarithm has
    a standard deviation s of about :math:`r^2 / d`. The posterior lies at a radius of about
    :math:`\sqrt d`, so that :math:`\tfrac d2 \log s` is the logarithm by which the volume has to shrink.

    Parameters
    ----------
    log_likelihood : ndarray, shape (num_runs, num_live)
        Log likelihoods of the live points.
    num_coordinates : int
    num_delete : int
        See `NestedSlice`.
    """
    first, third = np.quantile(log_likelihood[np.isfinite(log_likelihood)], [0.25, 0.75])
    spread = (third - first) / 1.35
    shrinkage = num_coordinates / 2 * np.log(max(spread, 1.0)) + _LAST
    return float(log_likelihood.shape[1] / num_delete * shrinkage)
