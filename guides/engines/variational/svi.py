"""Stochastic variational inference over continuous parameters, labels summed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from sidebayes.common.fields import Count, NonNegative, OneOf, Range

from ..base import (
    KEEPS_NOTHING,
    EngineResult,
    Evidence,
    Keeper,
    KeptEngine,
    Problem,
    Status,
)
from ..expectation_maximisation.streamed_data import StreamedTable
from ..optimisers.ascent import ascend
from ..optimisers.moments import Judgement, judge_draws
from ..plumbing.clock import Clock
from ..plumbing.programs import compile_ahead
from ..plumbing.progress import progress_bar
from ..problem.declared import approximation
from ..problem.density import free_shapes
from ..problem.importance import (
    flat_density,
    proper,
    told,
    visit,
    visit_ahead,
)
from ..ridges import FLAT
from ..steps.batches import Batches, deal_connected_sets, estimated_log_prob, large_batches
from ..steps.starts import random_keys
from ..steps.updates import refuse_restricted
from .families import FAMILIES
from .guide_search import WINDOW, Frame, GuideSearch, curvature_at, widths_of
from .streamed_svi import fit_table

__all__ = ["SVI"]


def _density(problem: Problem, frame: Frame, data: tuple, key: Array) -> Callable[[Array], Array]:
    """Log density of all data, or its estimate from a random batch."""
    batches: Batches | None
    batches, args = data
    number = 0 if batches is None else jax.random.randint(key, (), 0, len(batches))
    total = estimated_log_prob(batches, number)
    return flat_density(problem, frame.template, args, total)


@dataclass(frozen=True)
class SVI(KeptEngine):
    r"""Variational inference by one of NumPyro's families of guides, in unconstrained space.

    The engine maximises the lower bound :math:`\mathbb{E}_q[\log p(x, \theta) - \log q(\theta)]` on
    the log evidence by Adam. Coordinates are centred at a posterior mode and divided by the widths
    that the curvature implies there, so that every guide starts near a standard normal and steps
    are in posterior standard deviations. Steps shrink whenever the bound stops rising, down to a
    hundredth of the first step size. Gradients of Gaussian guides follow the path of the draws
    only, so that their noise vanishes where q is exact.

    It describes the neighbourhood of one mode: a mixture has at least K! of them, so that the bound
    lies about log K! below the log evidence even where q fits its mode exactly.

    A table on disk (`sidebayes.scan`) is read once for each of a few Newton steps, which lead from
    the mode of a sample of its rows to that of all of them. Away from this mode the log density is
    its first-order expansion there, for all rows, plus a remainder. Random rows estimate the
    remainder at each step of Adam; at the draws it is computed from all rows, or from as many as
    the status says.

    Parameters
    ----------
    guide : {"full_rank", "mean_field", "low_rank", "flow"}
        In this order: a multivariate normal; independent normals; a normal whose covariance is
        diagonal plus one of rank about the square root of the number of coordinates; an inverse
        autoregressive flow.
    num_steps : int
        Maximum number of steps, in windows of 100.
    tol : float
        The bound has stopped rising when its mean over a window does not exceed the best earlier mean
        by this share of one plus its absolute value. For a table on disk the bound counts from the log
        density at the mode.
    learning_rate : float
        First step size of Adam.
    num_particles : int
        Number of draws that estimate the bound at each step.
    num_draws : int
        Number of draws of the fitted family in the result.
    num_restarts : int
        Number of starts of the search for the mode.
    batch_sets : int, optional
        Estimate the likelihood, at each step, from about this many connected sets of points; a
        point without links counts as one. See `Batches`. The search for the mode uses one batch of
        at least 2000 connected sets, or all data where there are fewer; the final bound uses all
        data. For a table on disk, it is the number of rows that estimate the remainder at each
        step, by default 4096.

    References
    ----------
    Kucukelbir et al. (2017), J. Mach. Learn. Res. 18(14), 1-45. Roeder, Wu and Duvenaud (2017),
    NeurIPS, for gradients along the path. Kingma et al. (2016), NeurIPS, for the flow. Quiroz, Kohn,
    Villani and Tran (2019), J. Am. Stat. Assoc. 114, 831-843, for estimates by an expansion at the mode.
    """

    guide: Annotated[str, OneOf(tuple(FAMILIES))] = "full_rank"
    num_steps: Annotated[int, Range(least=WINDOW, below=2**31)] = 20_000
    tol: NonNegative = 1e-5
    learning_rate: Annotated[float, Range(least=1e-6)] = 0.05
    num_particles: Count = 8
    num_draws: Annotated[int, Range(least=100, below=2**31)] = 1000
    num_restarts: Count = 10
    batch_sets: Count | None = None
    name: ClassVar[str] = "svi"
    length: ClassVar[str] = "num_steps"
    independent_draws: ClassVar[bool] = True
    streams: ClassVar[bool] = True

    def prepare(self, problem: Problem) -> None:
        """See `Engine.prepare`."""
        refuse_restricted(problem)
        template = free_shapes(problem)
        real = jnp.result_type(float)
        flat = jax.eval_shape(lambda free: ravel_pytree(free)[0], template)
        frame = Frame(dict(template), flat, flat)
        guides, given = self.guides(), (random_keys(0, 1)[0], flat, np.asarray(0.0, real))
        name, _, config, begin = guides.asked("begin", problem)
        search = jax.eval_shape(begin(problem), *given)
        compile_ahead(name, problem, config, begin, *given, once=True)
        if self.batch_sets is None:
            fixed = frame, (None, problem.args), np.zeros(2, real), np.asarray(0)
            compile_ahead(*guides.asked("march", problem), search, *fixed)
        last = frame, search.params, search.key
        compile_ahead(*guides.asked("draw", problem), *last, once=True)
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
        """Fit; see `Engine.run`. An `init` replaces all starts of the search for the mode by one.

        For a table on disk, Newton steps begin there.

        Raises
        ------
        ValueError
            If the likelihood cannot be estimated from some of the connected sets, or a flow is
            requested for a single coordinate.
        FitError
            If no start has a finite density, or the bound stops being finite.
        """
        if any(isinstance(arg, StreamedTable) for arg in problem.args):
            return fit_table(self, problem, seed=seed, init=init, progress=progress, keep=keep)
        refuse_restricted(problem)
        approximate = approximation(problem)
        batches = large = None
        if self.batch_sets is not None:
            batches = jax.device_put(deal_connected_sets(problem, self.batch_sets, seed))
            large = jax.device_put(large_batches(problem, self.batch_sets, seed))
        clock = Clock()
        mode = ascend(
            problem,
            title=type(self).__name__,
            seed=seed,
            init=init,
            num_restarts=self.num_restarts,
            tol=1e-6,
            max_steps=1000,
            jacobian=True,
            progress=progress,
            keep=keep.part(0),
            clock=clock,
            batches=large,
        )
        widths = widths_of(curvature_at(mode.gradient, mode.point))
        frame = Frame(*jax.device_put((mode.free, mode.point, widths)))
        guides = self.guides()
        with progress_bar("SVI", self.num_steps, shown=progress) as advance:
            search = guides.climb(
                problem,
                frame,
                (batches, problem.args),
                (self.tol, self.learning_rate),
                seed=seed,
                clock=clock,
                advance=advance,
                keep=keep.part(1),
                point=mode.sites,
            )
        flat, log_q = guides.draw(problem, frame, search, clock)
        log_density, sites = visit(problem, mode.free, flat, clock)
        log_weights = log_density - log_q
        error = float(log_weights.std(ddof=1) / np.sqrt(self.num_draws))
        kind = "bound" if approximate is None else "estimate"
        bound = proper(problem, Evidence(float(log_weights.mean()), kind, error))
        judged = judge_draws(problem, mode.free, flat, sites, log_weights, clock, seed)
        if not mode.is_mode and FLAT in mode.message:  # no posterior that draws could be close to
            judged = Judgement(False, mode.message[mode.message.index(FLAT) :], even=False)
        return EngineResult(
            engine=self.name,
            draws={name: v[None] for name, v in sites.items()},
            sample_stats={"lp": log_density[None], "log_weight": log_weights[None]},
            objective=search.objective,
            status=Status(
                search.settled and judged.close,
                f"{guides.ended(search)}; {told(problem, bound)}; {judged.sentence}",
            ),
            seconds=clock.seconds,
            approximate=approximate,
            modes=mode.modes,
            remarks=judged.remarks,
            density_space="unconstrained",
            log_evidence=bound,
        )

    def guides(self, name: str = "svi", density: Callable = _density) -> GuideSearch:
        """Make the search for the best guide; a search that uses another density needs another name."""
        own = self.guide, self.num_steps, self.num_particles, self.num_draws
        return GuideSearch(name, density, *own)
