"""Laplace's approximation of a posterior with its labels summed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.linalg import cho_solve, solve_triangular

from sidebayes.common.fields import Count, NonNegative, Range

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
from ..jumps import instead_of_slopes
from ..plumbing.clock import Clock
from ..plumbing.programs import compile_ahead
from ..problem.causes import edge_advice
from ..problem.declared import approximation
from ..problem.density import free_shapes
from ..problem.importance import (
    evidence_below,
    flat_density,
    in_batches,
    log_mean_weight,
    proper,
    told,
    visit,
    visit_ahead,
)
from .ascent import Ascent, ascend
from .moments import judge_draws
from .optimise import need_curvature
from .orbits import Orbits
from .spheres import Spheres

__all__ = ["Laplace"]

_COLUMNS = 32
"""Number of columns of the Hessian computed side by side on accelerators; processors do one at a time."""

_FLAT = 1e-10
"""Curvature, with a unit diagonal, that rounding makes indistinguishable from zero."""


@dataclass(frozen=True)
class Laplace(KeptEngine):
    r"""Gaussian approximation at the posterior mode, in unconstrained space.

    .. math:: \theta \sim \mathcal{N}(\hat\theta, H^{-1}), \qquad
              \log p(x) \approx \log p(x, \hat\theta) + \tfrac d2 \log 2\pi - \tfrac12 \log|H|

    The density is that of the unconstrained coordinates, log Jacobian included, and H is its exact
    negative Hessian where the ascent ended. A gradient that is left there moves the mean to the
    peak of the quadratic. Draws are mapped into the supports. The approximation describes one mode.
    A mixture has at least K! modes, so its log evidence is larger by about log K!, which is not
    added.

    Sites that a model declares to be known up to an orthogonal transform have orbits of modes, and
    no single mode. The Gaussian then lies across the orbits, all draws are turned as the mode is,
    and the volume of the orbit enters the evidence.

    For points on spheres (`sample_direction`) the Gaussian lies along the sphere; the lengths of
    their vectors, on which nothing else depends, have their own distribution.

    Parameters
    ----------
    num_draws : int
        Number of draws of the normal approximation in the result.
    num_restarts : int
        Number of starts of the search for the mode.
    tol : float
        See `MAP`.
    max_steps : int
        Maximum number of gradients in that search.
    importance : bool
        Report as evidence the mean importance weight of the draws, with its standard error, in
        place of the formula above; it is a lower bound if the draws are not to be trusted.

    References
    ----------
    Tierney and Kadane (1986), J. Am. Stat. Assoc. 81, 82-86, doi:10.1080/01621459.1986.10478240.
    """

    num_draws: Annotated[int, Range(least=100, below=2**31)] = 1000
    num_restarts: Count = 10
    tol: NonNegative = 1e-7
    max_steps: Count = 1000
    importance: bool = False
    name: ClassVar[str] = "laplace"
    climbs: ClassVar[bool] = True
    independent_draws: ClassVar[bool] = True

    def prepare(self, problem: Problem) -> None:
        """See `Engine.prepare`."""
        self._refuse(problem)
        given = free_shapes(problem), problem.args
        compile_ahead("laplace", problem, _COLUMNS, _second_order, *given, once=True)
        visit_ahead(problem, self.num_draws)

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
            If labels are summed out by fixed points, which have no exact second derivatives, or sites
            that are known up to an orthogonal transform have unconstrained coordinates that are not.
        FitError
            If no start has a finite density, or the mode found is flat or a saddle point.
        """
        approximate = self._refuse(problem)
        clock = Clock()
        mode = ascend(
            problem,
            title=type(self).__name__,
            seed=seed,
            init=init,
            num_restarts=self.num_restarts,
            tol=self.tol,
            max_steps=self.max_steps,
            jacobian=True,
            progress=progress,
            keep=keep,
            clock=clock,
        )
        given = mode.free, problem.args
        found = clock.run("laplace", problem, _COLUMNS, _second_order, *given)
        gradient, hessian = map(np.asarray, found)
        orbits = Orbits.through(problem, mode.free, mode.sites)
        spheres = Spheres.at(problem, mode.free)
        across = spheres.along(orbits.normal)
        hessian = across.T @ ((hessian + hessian.T) / 2) @ across
        lower = _factor(problem, mode, hessian, across)
        step = cho_solve((lower, True), across.T @ gradient)
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=(self.num_draws, len(step)))
        plane = mode.point + (step + solve_triangular(lower.T, noise.T).T) @ across.T
        draws = spheres.drawn(plane, rng)
        log_density, sites = visit(problem, mode.free, draws, clock)
        log_volume = len(step) / 2 * np.log(2 * np.pi) - np.log(np.diag(lower)).sum()
        peak = mode.value[mode.best] + step @ across.T @ gradient / 2
        here = mode.point[None]
        peak += orbits.log_weights(here)[0] + spheres.log_weights(here, here)[0]
        log_weights = log_density + log_volume + (noise**2).sum(axis=1) / 2
        log_weights += orbits.log_weights(plane) + spheres.log_weights(plane, draws)
        judged = judge_draws(problem, mode.free, draws, sites, log_weights, clock, seed)
        evidence = self._evidence(
            problem, float(peak + log_volume), log_weights, even=judged.even and judged.close
        )
        message = f"{mode.message}; {judged.sentence}" if mode.is_mode else mode.message
        if evidence is None:
            message += f"; {told(problem, evidence)}"
        return EngineResult(
            engine=self.name,
            draws={name: v[None] for name, v in sites.items()},
            sample_stats={
                "lp": log_density[None],
                "log_weight": log_weights[None],
                "gradient": np.full((1, self.num_draws), np.abs(gradient).max(initial=0.0)),
            },
            objective=mode.history,
            status=Status(mode.settled and judged.close, message),
            seconds=clock.seconds,
            approximate=approximate,
            modes=mode.modes,
            remarks=judged.remarks,
            density_space="unconstrained",
            log_evidence=evidence,
        )

    @staticmethod
    def _refuse(problem: Problem) -> str | None:
        """Refuse a model without second derivatives, and return how labels are approximately summed out."""
        approximate = approximation(problem)
        need_curvature(problem, "Laplace", "SVI or NUTS")
        return approximate

    def _evidence(
        self, problem: Problem, value: float, log_weights: NDArray, *, even: bool
    ) -> Evidence | None:
        if not self.importance:
            return proper(problem, Evidence(value))
        mean, error = log_mean_weight(log_weights)
        found = Evidence(mean, "estimate", error) if even else evidence_below(mean)
        return proper(problem, found)


def _second_order(problem: Problem) -> Callable:
    """Program of the gradient and the negative Hessian of the log density."""

    def go(template: dict[str, Array], args: tuple) -> tuple[Array, Array]:
        flat, _ = ravel_pytree(template)
        gradient = jax.grad(flat_density(problem, template, args))

        def along(direction: Array) -> tuple[Array, Array]:
            return jax.jvp(gradient, (flat,), (direction,))

        side_by_side = 1 if jax.default_backend() == "cpu" else _COLUMNS
        slope, bend = in_batches(along, jnp.eye(len(flat)), side_by_side)
        return slope[0], -bend

    return go


def _refuse_no_mode(mode: Ascent) -> None:
    """Raise an error with the reason if the ascent did not end at a mode, where there is no curvature."""
    if not mode.is_mode:
        raise FitError(mode.message, mode.sites)


def _factor(problem: Problem, mode: Ascent, hessian: NDArray, across: NDArray) -> NDArray:
    """Return the Cholesky factor of the negative Hessian in the coordinates `across` the orbits.

    Raises
    ------
    FitError
        If it is not positive definite; the message names the site of its flattest direction.
    """
    if not np.isfinite(hessian).all():
        _refuse_no_mode(mode)
        raise FitError(
            "Laplace: second derivatives are not finite where the ascent ended; "
            + edge_advice(problem, "use SVI or NUTS"),
            mode.sites,
        )
    size = np.sqrt(np.abs(np.diag(hessian)))
    size[size == 0] = 1.0
    # scaled to a unit diagonal, so that units of the coordinates do not matter
    curvature, directions = np.linalg.eigh(hessian / np.outer(size, size))
    if curvature[0] > _FLAT * curvature[-1] and mode.sharp != "edge":
        return np.linalg.cholesky(hessian)
    _refuse_no_mode(mode)
    if mode.sharp:
        raise FitError(
            f"Laplace: the ascent ended at the {mode.sharp} of a density, such as of absolute values, where "
            "slopes jump and a normal approximation has no width; use NUTS",
            mode.sites,
        )
    share = {
        name: float(np.sum(np.square(value)))
        for name, value in ravel_pytree(mode.free)[1](
            jnp.asarray(across @ directions[:, 0])
        ).items()
    }
    site = max(share, key=share.__getitem__)
    what = "a saddle" if curvature[0] < -_FLAT else "flat"
    raise FitError(
        f"Laplace: the posterior is {what} where the ascent ended (least relative curvature "
        f"{curvature[0]:.2g}); the flattest direction lies {share[site]:.0%} in site {site!r}: "
        + edge_advice(
            problem,
            instead_of_slopes(
                problem, "give it an informative prior, add starts (num_restarts), or use NUTS"
            ),
        ),
        mode.sites,
    )
