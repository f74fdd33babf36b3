"""Posterior modes by quasi-Newton ascent from several starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sidebayes.models.blocks.fields import Count, NonNegative, Seconds

from ..base import Engine, EngineResult, Problem, Status
from ..density import approximation
from ..plumbing.checkpoint import check_checkpoint, keeping
from .ascent import Ascent, ascend

__all__ = ["MAP", "mode_result"]


@dataclass(frozen=True)
class MAP(Engine):
    """Maximum a posteriori by L-BFGS, from several starts at once.

    Moves in unconstrained coordinates but maximises the density of the constrained parameters
    (no Jacobian), so that its mode is that of `EM`. Starts that break down are set aside.

    Parameters
    ----------
    tol : float
        Stop when the largest entry of the gradient, in unconstrained coordinates and divided by
        one plus the absolute log joint, falls below it.
    max_steps : int
        Gradients at most.
    num_restarts : int
    memory : int
        Pairs of steps and gradients that L-BFGS keeps.
    checkpoint : path, optional
        File that keeps the state of the run, so that the same call goes on after an interruption.
    checkpoint_every : float
        Seconds between two writings.

    References
    ----------
    Liu and Nocedal (1989), Math. Program. 45, 503-528, doi:10.1007/BF01589116.
    """

    tol: NonNegative = 1e-7
    max_steps: Count = 1000
    num_restarts: Count = 10
    memory: Count = 20
    checkpoint: str | None = None
    checkpoint_every: Seconds = 60.0
    name: ClassVar[str] = "map"

    def __post_init__(self) -> None:
        check_checkpoint(self)
        super().__post_init__()

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
        FitError
            If the log joint is finite at no start, naming the sites to blame.
        """
        approximate = approximation(problem)
        with keeping(self, problem, seed, init) as keep:
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
            )
        return mode_result(self.name, found, approximate)


def mode_result(engine: str, found: Ascent, approximate: str | None) -> EngineResult:
    """Result of an engine whose answer is the highest mode found."""
    stats = {"lp": found.value[found.best], "gradient": found.slope[found.best]}
    return EngineResult(
        engine=engine,
        draws={name: v[None, None] for name, v in found.sites.items()},
        sample_stats={name: v[None, None] for name, v in stats.items()},
        objective=found.history,
        status=Status(found.settled, found.message),
        seconds=found.seconds,
        approximate=approximate,
    )
