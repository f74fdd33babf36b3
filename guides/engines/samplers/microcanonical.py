"""Microcanonical Langevin sampling, whose trajectories are accepted or rejected."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from numpy.typing import NDArray

from sidebayes.common.fields import Positive, Share

from ..base import Problem
from ..problem.density import free_shapes
from .from_prior.particles import load_blackjax
from .hamiltonian.paths import MOST_STEPS, isokinetic
from .mcmc import Hamiltonian, steps_remark

__all__ = ["MCLMC"]


@dataclass(frozen=True)
class MCLMC(Hamiltonian):
    r"""Adjusted microcanonical Langevin Monte Carlo (Robnik et al. 2025), with blackjax's integrator.

    Trajectories have constant speed and turn along the gradient, so steep directions do not make
    them fast: in many dimensions, they need fewer gradients than those of `HMC`. Noise turns their
    direction too. Each is accepted or rejected at its end, so that there is no bias from the step
    size. Its length is uniform between zero and twice the mean. Warm-up is as in `HMC`. This needs
    blackjax: pip install 'sidebayes[sampling]'. A single coordinate, on which no direction can
    turn, is refused.

    Parameters
    ----------
    num_warmup, num_samples, num_chains, target_accept, dense_mass, jitter, chain_method
        See `NUTS`.
    trajectory_length : float
        Mean length in posterior standard deviations, to which the mass matrix is adapted, of a point that
        moves as fast as HMC's do on average. Trajectories are cut off after 1,000 steps of two gradients.

    Notes
    -----
    ``sample_stats["n_steps"]`` counts gradients.

    References
    ----------
    Robnik, Cohn-Gordon and Seljak (2025), "Metropolis adjusted microcanonical Hamiltonian Monte Carlo",
    arXiv:2503.01707. Robnik, De Luca, Silverstein and Seljak (2023), J. Mach. Learn. Res. 24(311), 1-34.
    Noise: Riou-Durand and Vogrinc (2022), arXiv:2202.13230.
    """

    target_accept: Share = 0.9
    trajectory_length: Positive = 1.5
    name: ClassVar[str] = "mclmc"
    by_slopes: ClassVar[bool] = False

    def _check(self, problem: Problem) -> None:
        super()._check(problem)
        load_blackjax("MCLMC")
        if sum(math.prod(free.shape) for free in free_shapes(problem).values()) < 2:
            raise ValueError("MCLMC needs at least two coordinates, and there is one; use NUTS")

    @property
    def _reach(self) -> float:
        return self.trajectory_length

    def _follow(self, walls: bool) -> Callable:
        return isokinetic(self.trajectory_length)

    def _report(
        self, stats: dict[str, NDArray], instead: str = ""
    ) -> tuple[dict[str, NDArray], str]:
        return {}, steps_remark(stats["n_steps"], "gradients", 2 * MOST_STEPS, instead)
