"""Stochastic variational inference over continuous parameters, labels summed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from sidebayes.common.fields import Count, NonNegative, OneOf, Range

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
from ..optimisers.ascent import Ascent, ascend
from ..optimisers.moments import judge_draws
from ..plumbing.clock import Clock
from ..plumbing.programs import compile_ahead, compiled
from ..plumbing.progress import progress_bar
from ..problem.density import approximation, free_shapes
from ..problem.importance import (
    along_slopes,
    flat_density,
    has_improper_prior,
    visit,
    visit_ahead,
)
from ..steps.batches import Batches, deal_connected_sets, estimated_log_prob, large_batches
from ..steps.climbs import BROKEN, SETTLED, climbed, stop_code, until_stopped
from ..steps.starts import random_keys
from ..steps.updates import refuse_restricted
from .families import FAMILIES

__all__ = ["SVI"]

_WINDOW = 100
"""Steps over which the bound is averaged."""

_SHRINK, _SMALLEST = 0.3, 0.01
"""Factor by which steps shrink when the bound rests, and the share of the first where they end."""


class _Frame(NamedTuple):
    """Coordinates of the guide: the unconstrained ones, centred at the mode, divided by widths."""

    template: dict[str, Any]
    centre: Any
    widths: Any


class _Search(NamedTuple):
    """State of the search for the best guide.

    Attributes
    ----------
    params, adam : pytree
        Of the guide; state of Adam.
    key : Array
        Random key of the next step.
    steps, code : Array of int, shape ()
    rate, value : Array, shape ()
        Size of the next step, and the bound at the last one.
    total, sound : Array, shape ()
        Sum and number of the finite bounds in the window that has begun.
    best : Array, shape ()
        Highest mean of a window.
    history : Array, shape (num_windows,)
        Their means, NaN where none has ended.
    """

    params: Any
    adam: Any
    key: Array
    steps: Array
    code: Array
    rate: Array
    value: Array
    total: Array
    sound: Array
    best: Array
    history: Array


@dataclass(frozen=True)
class SVI(KeptEngine):
    r"""Variational inference by one of NumPyro's families of guides, in unconstrained space.

    Maximises the lower bound :math:`\mathbb{E}_q[\log p(x, \theta) - \log q(\theta)]` on the log
    evidence by Adam. Coordinates are centred at a posterior mode and divided by the widths that the
    curvature has there, so that every guide starts near a standard normal and steps are in
    posterior standard deviations. Steps shrink whenever the bound stops rising, down to a hundredth of
    the first step size. Gradients of Gaussian guides follow the path of the draws only, so that their
    noise vanishes where q is exact.

    It describes the neighbourhood of one mode: a mixture has at least K! of them, so that the bound
    lies about log K! below the log evidence even where q fits its mode exactly.

    Parameters
    ----------
    guide : {"full_rank", "mean_field", "low_rank", "flow"}
        Multivariate normal; independent normals; a normal whose covariance is diagonal plus one of
        rank about the square root of the number of coordinates; inverse autoregressive flow.
    num_steps : int
        Maximum number of steps, in windows of 100.
    tol : float
        The bound has stopped rising when its mean over a window does not exceed the best earlier mean
        by this share of one plus its absolute value.
    learning_rate : float
        First step size of Adam.
    num_particles : int
        Number of draws that estimate the bound at each step.
    num_draws : int
    num_restarts : int
        Number of starts of the search for the mode.
    batch_sets : int, optional
        Estimate the likelihood, at each step, from about so many connected sets of points, of which a
        point without links is one; see `Batches`. The search for the mode uses one batch of at least
        2000 connected sets, or all data where there are fewer; the final bound uses all data.

    References
    ----------
    Kucukelbir et al. (2017), J. Mach. Learn. Res. 18(14), 1-45. Roeder, Wu and Duvenaud (2017),
    NeurIPS, for gradients along the path. Kingma et al. (2016), NeurIPS, for the flow.
    """

    guide: Annotated[str, OneOf(tuple(FAMILIES))] = "full_rank"
    num_steps: Annotated[int, Range(least=_WINDOW, below=2**31)] = 20_000
    tol: NonNegative = 1e-5
    learning_rate: Annotated[float, Range(least=1e-6)] = 0.05
    num_particles: Count = 8
    num_draws: Annotated[int, Range(least=100, below=2**31)] = 1000
    num_restarts: Count = 10
    batch_sets: Count | None = None
    name: ClassVar[str] = "svi"
    length: ClassVar[str] = "num_steps"
    independent_draws: ClassVar[bool] = True

    def prepare(self, problem: Problem) -> None:
        """See `Engine.prepare`."""
        refuse_restricted(problem)
        template = free_shapes(problem)
        real = jnp.result_type(float)
        flat = jax.eval_shape(lambda free: ravel_pytree(free)[0], template)
        frame = _Frame(dict(template), flat, flat)
        given = random_keys(0, 1)[0], flat, np.asarray(0.0, real)
        search = jax.eval_shape(self._begin(problem), *given)
        compile_ahead(*self._asked("svi-begin", problem), *given, once=True)
        if self.batch_sets is None:
            fixed = frame, None, problem.args, np.zeros(2, real), np.asarray(0)
            compile_ahead(*self._asked("svi", problem), search, *fixed)
        last = frame, search.params, search.key
        compile_ahead(*self._asked("svi-draw", problem), *last, once=True)
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

        Raises
        ------
        ValueError
            If the likelihood cannot be estimated from some of the connected sets, or a flow is
            asked for a single coordinate.
        FitError
            If no start has a finite density, or the bound stops being finite.
        """
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
            tol=1e-5,
            max_steps=1000,
            jacobian=True,
            progress=progress,
            keep=keep.part(0),
            clock=clock,
            batches=large,
        )
        frame = _Frame(*jax.device_put((mode.free, mode.point, _widths(mode))))
        given = random_keys(seed, 1)[0], frame.centre, np.asarray(self.learning_rate)
        search = clock.run(*self._asked("svi-begin", problem), *given)
        with progress_bar("SVI", self.num_steps, shown=progress) as advance:
            search = self._climb(problem, frame, search, batches, clock, advance, keep.part(1))
        if int(search.code) == BROKEN:
            raise FitError(
                "SVI: the bound is not finite at any step of a window; lower learning_rate, or "
                "tighten the priors",
                mode.sites,
            )
        q = frame, search.params, search.key
        flat, log_q = clock.run(*self._asked("svi-draw", problem), *q)
        log_density, sites = visit(problem, mode.free, np.asarray(flat), clock)
        log_weights = log_density - np.asarray(log_q)
        error = float(log_weights.std(ddof=1) / np.sqrt(self.num_draws))
        kind = "bound" if approximate is None else "estimate"
        bound = Evidence(float(log_weights.mean()), kind, error)
        judged = judge_draws(problem, mode.free, np.asarray(flat), sites, log_weights, clock, seed)
        settled = int(search.code) == SETTLED
        if settled:
            message = f"settled after {search.steps} steps"
        else:
            message = f"stopped at num_steps={self.num_steps}; raise it, or learning_rate"
        return EngineResult(
            engine=self.name,
            draws={name: v[None] for name, v in sites.items()},
            sample_stats={"lp": log_density[None], "log_weight": log_weights[None]},
            objective=np.asarray(search.history)[None, : int(search.steps) // _WINDOW],
            status=Status(
                settled and judged.close,
                f"SVI ({self.guide}) {message}; {bound}; {judged.sentence}",
            ),
            seconds=clock.seconds,
            approximate=approximate,
            modes=mode.modes,
            remarks=judged.remarks,
            density_space="unconstrained",
            log_evidence=None if has_improper_prior(problem) else bound,
        )

    @property
    def _num_windows(self) -> int:
        return self.num_steps // _WINDOW

    def _asked(self, name: str, problem: Problem) -> tuple:
        """Arguments of `compiled` and `compile_ahead`."""
        builds = {
            "svi-begin": (self._num_windows, self._begin),
            "svi": (self.num_particles, self._march),
            "svi-draw": (self.num_draws, self._draw),
        }
        size, build = builds[name]
        return name, problem, (self.guide, size), build

    def _begin(self, problem: Problem) -> Callable:
        def begin(key: Array, centre: Array, rate: Array) -> _Search:
            first, rest = jax.random.split(jax.random.wrap_key_data(key))
            params = FAMILIES[self.guide].start(first, len(centre))
            none, nothing = jnp.asarray(0), jnp.zeros(())
            return _Search(
                params=params,
                adam=optax.scale_by_adam().init(params),
                key=rest,
                steps=none,
                code=none,
                rate=rate,
                value=nothing,
                total=nothing,
                sound=none,
                best=jnp.asarray(-jnp.inf),
                history=jnp.full(self._num_windows, jnp.nan),
            )

        return begin

    def _climb(
        self,
        problem: Problem,
        frame: _Frame,
        search: _Search,
        batches: Batches | None,
        clock: Clock,
        advance: Callable[[int, str], None],
        keep: Keeper,
    ) -> _Search:
        """Raise the bound until it rests, or `num_steps` are done."""
        search = keep.restore(search)
        rates = np.asarray([self.tol, self.learning_rate])
        fixed = frame, batches, problem.args, rates
        asked = compiled(*self._asked("svi", problem), search, *fixed, np.asarray(0))
        march = clock.counted(asked)
        search, _ = climbed(
            march,
            search,
            fixed,
            describe=lambda search: f"ELBO {float(search.value):.6g}",
            advance=advance,
            keep=keep,
            clock=clock,
        )
        return search

    def _march(self, problem: Problem) -> Callable:
        """Steps of Adam until the run stops or has done `limit`.

        A step whose gradient is not finite is skipped.
        """
        family, adam = FAMILIES[self.guide], optax.scale_by_adam()

        def march(
            search: _Search,
            frame: _Frame,
            batches: Batches | None,
            args: tuple,
            rates: Array,
            limit: Array,
        ) -> tuple[_Search, None]:
            def loss(params: Any, key: Array) -> Array:
                first, second = jax.random.split(key)
                number = 0 if batches is None else jax.random.randint(second, (), 0, len(batches))
                total = estimated_log_prob(batches, number)
                density = flat_density(problem, frame.template, args, total)
                moved, log_q = family.draw(params, first, self.num_particles, path=True)
                points = frame.centre + frame.widths * moved
                log_p = along_slopes(density, points)
                return jnp.mean(log_q - log_p) - jnp.log(frame.widths).sum()

            def step(search: _Search) -> _Search:
                key, now = jax.random.split(search.key)
                value, gradient = jax.value_and_grad(loss)(search.params, now)
                sound = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(gradient))
                uphill, state = adam.update(gradient, search.adam)
                params = jax.tree.map(lambda a, b: a - search.rate * b, search.params, uphill)
                params, state = jax.tree.map(
                    lambda a, b: jnp.where(sound, a, b),
                    (params, state),
                    (search.params, search.adam),
                )
                search = search._replace(
                    params=params,
                    adam=state,
                    key=key,
                    steps=search.steps + 1,
                    value=jnp.where(sound, -value, search.value),
                    total=search.total + jnp.where(sound, -value, 0.0),
                    sound=search.sound + sound,
                )
                return lax.cond(search.steps % _WINDOW == 0, _close, lambda s, _: s, search, rates)

            return until_stopped(step, search, limit), None

        return march

    def _draw(self, problem: Problem) -> Callable:
        def draw(frame: _Frame, params: Any, key: Array) -> tuple[Array, Array]:
            moved, log_q = FAMILIES[self.guide].draw(params, key, self.num_draws, path=False)
            return frame.centre + frame.widths * moved, log_q - jnp.log(frame.widths).sum()

        return draw


def _widths(mode: Ascent) -> NDArray:
    """Widths of a normal density of the curvature at the mode along each coordinate, 1 where bent up.

    By differences of gradients, which need not be exact, as they only scale the coordinates.
    """
    step = np.finfo(mode.point.dtype).eps ** (1 / 3) * (1 + np.abs(mode.point))
    moves = np.diag(step)
    rise = mode.gradient(mode.point + moves) - mode.gradient(mode.point - moves)
    curvature = -np.diagonal(rise) / (2 * step)
    bent_down = curvature > 0
    return np.where(bent_down, 1 / np.sqrt(np.where(bent_down, curvature, 1.0)), 1.0)


def _close(search: _Search, rates: Array) -> _Search:
    """End a window: record its mean, shrink the steps if the bound rests, see whether to stop."""
    tol, first_rate = rates
    mean, best = search.total / search.sound, search.best
    rests = jnp.isfinite(best) & (mean - best <= tol * (1 + jnp.abs(best)))
    rate = jnp.where(rests, _SHRINK * search.rate, search.rate)
    cut = search.steps == len(search.history) * _WINDOW
    settled = rate < _SMALLEST * first_rate
    return search._replace(
        code=stop_code(broken=search.sound == 0, settled=settled, cut=cut),
        rate=rate,
        total=jnp.zeros_like(search.total),
        sound=jnp.zeros_like(search.sound),
        best=jnp.fmax(best, mean),
        history=search.history.at[search.steps // _WINDOW - 1].set(mean),
    )
