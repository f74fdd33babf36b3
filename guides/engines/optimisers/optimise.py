"""Posterior modes by quasi-Newton and by Newton ascent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sidebayes.common.fields import Count, NonNegative

from ..base import KEEPS_NOTHING, EngineResult, Keeper, KeptEngine, Problem, Status
from ..modes import mode_stats
from ..plumbing.clock import Clock
from ..problem.declared import approximation, collapsed_sites
from ..problem.density import abstract_trace
from ..steps.newton import full_newton_steps
from .ascent import Ascent, ascend

__all__ = ["MAP", "Newton", "mode_result", "need_curvature"]


@dataclass(frozen=True)
class MAP(KeptEngine):
    """Maximum a posteriori estimation by L-BFGS, from several starts at once.

    The engine moves in unconstrained coordinates but maximises the density of the constrained
    parameters (no Jacobian), so that its mode is that of `EM`. Starts that break down are set
    aside.

    Parameters
    ----------
    tol : float
        Stop when the largest entry of the gradient, in unconstrained coordinates and divided by
        one plus the absolute log joint, falls below it, and the next step promises to raise the log joint
        by no more than a million times `tol`, in nats.
    max_steps : int
        Maximum number of gradients.
    num_restarts : int
        Number of starts; the mode of highest density is kept.
    memory : int
        Number of pairs of steps and gradients that L-BFGS keeps.

    References
    ----------
    Liu and Nocedal (1989), Math. Program. 45, 503-528, doi:10.1007/BF01589116.
    """

    tol: NonNegative = 1e-7
    max_steps: Count = 1000
    num_restarts: Count = 10
    memory: Count = 20
    name: ClassVar[str] = "map"
    gives_point: ClassVar[bool] = True
    climbs: ClassVar[bool] = True

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
        FitError
            If the log joint is not finite at any start; the message names the sites to blame.
        """
        approximate = approximation(problem)
        clock = Clock()
        found = ascend(
            problem,
            title="MAP",
            seed=seed,
            init=init,
            num_restarts=self.num_restarts,
            tol=self.tol,
            max_steps=self.max_steps,
            memory=self.memory,
            jacobian=False,
            progress=progress,
            keep=keep,
            clock=clock,
        )
        return mode_result(self.name, found, approximate, clock)


@dataclass(frozen=True)
class Newton(KeptEngine):
    """Maximum a posteriori estimation by Newton's method, for models with few parameters.

    Steps use the exact Hessian, which costs about three gradients per parameter. Convergence is
    quadratic near the mode, so a handful of steps gives all digits. Coordinates and objective are
    those of `MAP`.

    Parameters
    ----------
    tol : float
        See `MAP`.
    max_steps : int
        Maximum number of gradients.
    num_restarts : int
        Number of starts; one by default, since the method suits objectives with one mode.

    References
    ----------
    Lindstrom and Bates (1988), J. Am. Stat. Assoc. 83, 1014-1022,
    doi:10.1080/01621459.1988.10478693, for linear mixed effects.
    """

    tol: NonNegative = 1e-10
    max_steps: Count = 200
    num_restarts: Count = 1
    name: ClassVar[str] = "newton"
    gives_point: ClassVar[bool] = True
    climbs: ClassVar[bool] = True

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
            If labels are summed out by fixed points, which have no exact second derivatives.
        FitError
            If the log joint is not finite at any start; the message names the sites to blame.
        """
        approximate = approximation(problem)
        need_curvature(problem, "Newton", "MAP")
        clock = Clock()
        found = ascend(
            problem,
            title="Newton",
            seed=seed,
            init=init,
            num_restarts=self.num_restarts,
            tol=self.tol,
            max_steps=self.max_steps,
            jacobian=False,
            progress=progress,
            keep=keep,
            clock=clock,
            solver=_hessian_solver,
        )
        return mode_result(self.name, found, approximate, clock)


def _hessian_solver(problem: Problem, loss: Callable, args: tuple) -> Callable:
    """Newton steps for `ascend`."""
    return full_newton_steps(loss)


def need_curvature(problem: Problem, engine: str, instead: str) -> None:
    """Refuse a model without exact second derivatives.

    Raises
    ------
    ValueError
        If there are none; the message names the approximation to blame.
    """
    sources = collapsed_sites(abstract_trace(problem)).values()
    if not all(fn.has_curvature for fn, _ in sources):
        raise ValueError(
            f"{engine} needs second derivatives, which {approximation(problem)} does not give; use "
            f"{instead}, or inference='exact'"
        )


def mode_result(engine: str, found: Ascent, approximate: str | None, clock: Clock) -> EngineResult:
    """Make the result of an engine from the highest mode found."""
    lp, prior, slope = (each[found.best] for each in (found.value, found.prior, found.slope))
    return EngineResult(
        engine=engine,
        draws={name: v[None, None] for name, v in found.sites.items()},
        sample_stats=mode_stats(lp, prior) | {"gradient": slope[None, None]},
        objective=found.history,
        status=Status(found.settled, found.message),
        seconds=clock.seconds,
        approximate=approximate,
        modes=found.modes,
        is_mode=found.is_mode,
    )
