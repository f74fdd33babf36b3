"""Multi-path Pathfinder: normal approximations along quasi-Newton paths, pooled by importance weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from sidebayes.common.fields import Count, Range

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
from ..optimisers.moments import judge_draws
from ..plumbing.clock import Clock
from ..plumbing.progress import progress_bar
from ..plumbing.side_by_side import compiled_batch
from ..problem.declared import approximation
from ..problem.density import free_shapes, unconstrained_start
from ..problem.importance import (
    effective_size,
    evidence_below,
    flat_density,
    in_batches,
    log_mean_weight,
    log_student,
    proper,
    smoothed_weights,
    told,
    visit,
)
from ..samplers.from_prior.folding import Folding, find_folding, numberings
from ..samplers.from_prior.particles import load_blackjax
from ..steps.starts import initial_values, random_keys, starting_point
from ..steps.updates import refuse_restricted
from ..symmetries.exchangeable import cluster_axes

__all__ = ["Pathfinder"]

_AT_ONCE = 16
"""Number of draws whose densities are computed side by side."""

_FREEDOM = 4.0
"""Degrees of freedom of the t distributions from which every fifth draw comes."""

_ARRIVED = 1.0
"""Distance from the mode, in standard deviations by the estimated inverse Hessian, within which a path that
takes all steps must end. Rounding in single precision leaves up to about one."""


@dataclass(frozen=True)
class Pathfinder(KeptEngine):
    r"""Multi-path Pathfinder (Zhang et al. 2022), with the quasi-Newton paths of blackjax.

    L-BFGS climbs from several starts. At every point of a path its estimate of the inverse Hessian
    makes a normal approximation; the one with the greatest lower bound on the log evidence is kept.
    Draws of all paths are weighted by the density of the posterior over that of the mixture of
    their approximations, and resampled, the largest weights smoothed. Modes in which several paths
    end thus have their masses, where the approximations cover them; separate modes in which no path
    ends are missed.

    Parameters
    ----------
    num_paths : int
        Number of paths, each from a start of its own.
    num_draws : int
        Number of draws of each path's approximation, and of the result.
    max_steps : int
        Maximum number of steps of a path.
    memory : int
        Number of pairs of steps and gradients that L-BFGS keeps, and thus half of the rank by which a
        covariance differs from a diagonal one.
    num_bound_draws : int
        Number of draws that estimate the lower bound at each point of a path.

    Notes
    -----
    The paper draws from normals alone, and weights draws by the approximation of their own path.
    The density of the mixture leaves weights unbiased also where paths end in different modes. As
    in the paper, means are :math:`\theta - H \nabla f` at a point of a path, where f is minus the
    log density and H the estimated inverse Hessian. blackjax 1.7 adds where it should subtract, so
    only its paths are used here.

    References
    ----------
    Zhang, Carpenter, Gelman and Vehtari (2022), J. Mach. Learn. Res. 23(306), 1-49.
    """

    num_paths: Count = 8
    num_draws: Annotated[int, Range(least=100, below=2**31)] = 1000
    max_steps: Count = 100
    memory: Count = 6
    num_bound_draws: Count = 10
    name: ClassVar[str] = "pathfinder"
    independent_draws: ClassVar[bool] = True

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
        ImportError
            If blackjax is not installed.
        FitError
            If no path has a finite density.
        """
        load_blackjax("Pathfinder")
        refuse_restricted(problem)
        approximate = approximation(problem)
        clock = Clock()
        if init is None:
            starts = initial_values(problem, seed, self.num_paths, seeded=True, clock=clock)
        else:
            starts = {name: v[None] for name, v in starting_point(problem, init).items()}
        number = len(next(iter(starts.values())))
        template = {n: jnp.zeros(s.shape, s.dtype) for n, s in free_shapes(problem).items()}
        members = random_keys(seed, number), starts
        with progress_bar("Pathfinder", shown=progress) as advance:
            advance(0, "climbing")
            width = sum(value.size for value in template.values())
            mean, root, arrived = self._normals(problem, members, width, clock, keep)
        rng = np.random.default_rng([seed, 4])
        noise = _noise(rng, (len(mean), self.num_draws, mean.shape[1]))
        pool = mean[:, None] + noise @ np.swapaxes(root, 1, 2)
        looked = [visit(problem, template, part, clock, anywhere=True) for part in pool]
        flat = pool.reshape(-1, mean.shape[1])
        log_density = np.concatenate([part[0] for part in looked])
        folding = find_folding(problem, seed, starts)
        copies = partial(_copies, problem, folding, clock)
        log_q = [_log_pool(copies(part), mean, root) for part in pool]
        log_weights = log_density - np.concatenate(log_q)
        weights = smoothed_weights(log_weights)
        chosen = _resampled(weights, self.num_draws, rng)
        sites = {n: np.concatenate([part[1][n] for part in looked])[chosen] for n in looked[0][1]}
        judged = judge_draws(problem, template, flat[chosen], sites, log_weights, clock, seed)
        remarks = judged.remarks
        short = float(weights.reshape(len(mean), -1).sum(axis=1)[~arrived].sum())
        if short > 0.5:
            remarks += (
                f"{short:.0%} of the draws are of paths whose steps did not reach their mode: raise "
                "max_steps, or use NUTS",
            )
        lp, covered = log_density[chosen], judged.close and judged.even and not judged.remarks
        if folding is not None:
            orders = numberings(folding, seed, (self.num_draws,))
            moved, _ = _renumbered(problem, folding, clock, flat[chosen], orders)
            lp, sites = visit(problem, template, moved, clock)
        elif cluster_axes(
            problem, {n: v[None] for n, v in sites.items()}
        ).are_exchangeable:  # there are more copies of a mode than paths reach
            covered = False
        value, error = log_mean_weight(log_weights)
        estimate = Evidence(value, "estimate", error)
        evidence = proper(problem, estimate if covered else evidence_below(value))
        effective = effective_size(weights, flat)
        message = (
            f"Pathfinder pooled {len(mean)} of {number} paths; {told(problem, evidence)}; "
            f"{self.num_draws} draws from {effective:.0f} effective of {len(flat)}; {judged.sentence}"
        )
        return EngineResult(
            engine=self.name,
            draws={name: value[None] for name, value in sites.items()},
            sample_stats={"lp": lp[None]},
            objective=np.zeros((0, 0)),
            status=Status(judged.close, message),
            seconds=clock.seconds,
            approximate=approximate,
            density_space="unconstrained",
            log_evidence=evidence,
            effective_draws=min(effective, self.num_draws),
            remarks=remarks,
        )

    def _normals(
        self,
        problem: Problem,
        members: tuple[NDArray, dict],
        width: int,
        clock: Clock,
        keep: Keeper,
    ) -> tuple[NDArray, NDArray, NDArray]:
        """Return means and Cholesky factors of those approximations of paths that are finite.

        The third array holds which of these paths ended at a mode, or with steps left.

        Raises
        ------
        FitError
            If no approximation is finite.
        """
        number, version = len(members[0]), load_blackjax("Pathfinder").__version__
        shapes = (number, width), (number, width, width), (number,), (number,)
        blank = tuple(np.full(shape, np.nan, jnp.result_type(float)) for shape in shapes)
        found = keep.restore(blank)
        if np.isnan(found[2]).all():
            config = self.max_steps, self.memory, self.num_bound_draws, version
            asked = compiled_batch("pathfinder", problem, config, self._path, members, problem.args)
            climb = clock.counted(asked)
            with clock.running():
                found = climb(members, problem.args)
            keep.offer(found)
        mean, root, bound, distance = map(np.asarray, found)
        usable = np.isfinite(bound)
        if not usable.any():
            raise FitError(
                "Pathfinder: no path has a normal approximation at whose draws the density is finite; pass "
                "init= with values inside the supports, or use NUTS"
            )
        return mean[usable], root[usable], distance[usable] < _ARRIVED

    def _path(self, problem: Problem) -> Callable:
        """Program of one path: its best normal approximation, the lower bound, and its distance from a mode.

        The distance is 0 where steps were left.
        """
        from blackjax.vi import pathfinder

        def climb(member: tuple[Array, dict], args: tuple) -> tuple[Array, Array, Array, Array]:
            key, start = member
            free = unconstrained_start(problem, start, args)
            point, _ = ravel_pytree(free)
            plain = flat_density(problem, free, args)

            def density(flat: Array) -> Array:
                value = plain(flat)
                return jnp.where(jnp.isnan(value), -jnp.inf, value)

            first, second = jax.random.split(jax.random.wrap_key_data(key))
            # ftol is relative: a gain small beside a large density would end a path along a flat direction
            _, info = pathfinder.approximate(
                first, density, point, 1, maxiter=self.max_steps, maxcor=self.memory, ftol=0.0
            )
            path = info.path
            inner = jnp.einsum("sij,sjk,slk->sil", path.beta, path.gamma, path.beta)
            covariance = inner + jax.vmap(jnp.diag)(path.alpha)
            root = jnp.linalg.cholesky(covariance)
            ahead = jnp.einsum("sij,sj->si", covariance, path.grad_position)
            mean = path.position - ahead
            moved = (jnp.diff(path.position, axis=0) != 0).any(axis=1)
            last = jnp.max(jnp.where(moved, jnp.arange(1, len(mean)), 0))
            gap = jnp.sqrt((ahead * path.grad_position).sum(axis=1))
            shape = len(mean), self.num_bound_draws, len(point)
            noise = jax.random.normal(second, shape, point.dtype)
            draws = mean[:, None] + jnp.einsum("sij,snj->sni", root, noise)
            found = in_batches(density, draws.reshape(-1, len(point)), _AT_ONCE).reshape(shape[:2])
            log_q = -jnp.square(noise).sum(axis=2) / 2 - len(point) / 2 * jnp.log(2 * jnp.pi)
            log_q -= jnp.log(jnp.diagonal(root, axis1=1, axis2=2)).sum(axis=1)[:, None]
            bound = (found - log_q).mean(axis=1)
            bound = jnp.where(jnp.isfinite(bound), bound, -jnp.inf)
            best = jnp.argmax(bound)
            # by rounding, the last point may not have the smallest gradient
            distance = jnp.nanmin(jnp.where(jnp.arange(len(mean)) >= best, gap, jnp.inf))
            # a path that ended with steps left went as far as rounding of the density allows
            distance = jnp.where(last < self.max_steps, 0.0, distance)
            return mean[best], root[best], bound[best], distance

        return climb


def _noise(rng: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """Draw noise for each path: standard normal, but every fifth draw from a t distribution."""
    noise = rng.normal(size=shape)
    wide = noise[:, ::5]
    wide *= np.sqrt(_FREEDOM / rng.chisquare(_FREEDOM, (*wide.shape[:2], 1)))
    return noise


def _log_mixture(points: NDArray, mean: NDArray, root: NDArray) -> NDArray[np.float64]:
    """Log density of the even mixture of all paths' approximations, where every fifth draw is a t draw."""
    width, parts = points.shape[1], []
    share = -(-len(points) // 5) / len(points)
    for centre, lower in zip(mean, root, strict=True):
        white = solve_triangular(lower, (points - centre).T, lower=True)
        square = (white**2).sum(axis=0)
        normal = np.log1p(-share) - square / 2 - width / 2 * np.log(2 * np.pi)
        wide = np.log(share) + log_student(square, width, _FREEDOM)
        parts.append(np.logaddexp(normal, wide) - np.log(np.diag(lower)).sum())
    return np.logaddexp.reduce(parts, axis=0) - np.log(len(parts))


def _renumbered(
    problem: Problem, folding: Folding, clock: Clock, points: NDArray, orders: NDArray
) -> tuple[NDArray, NDArray]:
    """Renumber the clusters of points; return the points and log Jacobian determinants."""
    config = folding.axes, folding.num_clusters
    given = points, orders, problem.args
    moved, log_det = clock.run("renumber", problem, config, folding.images, *given)
    return np.asarray(moved), np.asarray(log_det)


def _copies(
    problem: Problem, folding: Folding | None, clock: Clock, points: NDArray
) -> Iterator[tuple[NDArray, NDArray]]:
    """Yield the points in every numbering of the clusters, with log Jacobian determinants."""
    if folding is None:
        yield points, np.zeros(len(points))
        return
    for order in folding.permutations:
        orders = np.broadcast_to(order, (len(points), len(order)))
        yield _renumbered(problem, folding, clock, points, orders)


def _log_pool(
    copies: Iterable[tuple[NDArray, NDArray]], mean: NDArray, root: NDArray
) -> NDArray[np.float64]:
    """Log density of the even mixture of all approximations in all numberings of the clusters."""
    found = [_log_mixture(points, mean, root) + log_det for points, log_det in copies]
    total: NDArray = np.logaddexp.reduce(found, axis=0) - np.log(len(found))
    return total


def _resampled(weights: NDArray, number: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return indices drawn by systematic resampling, in random order."""
    at = (np.arange(number) + rng.uniform()) / number
    chosen = np.searchsorted(np.cumsum(weights), at).clip(max=len(weights) - 1)
    return rng.permutation(chosen)
