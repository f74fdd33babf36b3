"""Stochastic variational inference over continuous parameters, labels summed out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jax.flatten_util import ravel_pytree

from .base import EngineResult, Evidence, FitError, Problem, Status, check_positive
from .density import approximation, sum_log_prob
from .families import FAMILIES
from .importance import flat_density, has_improper_prior, pareto_k, quality, visit
from .minibatch import Batches, batched_log_prob, split_components
from .optimise import Ascent, ascend
from .programs import timed
from .progress import progress_bar

__all__ = ["SVI"]

_PIECE, _WINDOW = 20, 100
"""Steps run at once, and steps over which the bound is averaged."""

_SHRINK, _SMALLEST = 0.3, 0.01
"""Factor by which steps shrink when the bound rests, and the share of the first where they end."""

_COLUMNS = 32
"""Second derivatives computed side by side."""


class _Frame(NamedTuple):
    """Coordinates of the guide: the unconstrained ones, centred at the mode, divided by widths."""

    template: dict[str, Array]
    centre: Array
    widths: Array


class _Search(NamedTuple):
    """Parameters of the guide, the state of Adam, and the random key of the next step."""

    params: Any
    adam: Any
    key: Array


@dataclass(frozen=True)
class SVI:
    r"""Variational inference by one of NumPyro's families of guides, in unconstrained space.

    Maximises the lower bound :math:`\mathbb{E}_q[\log p(x, \theta) - \log q(\theta)]` on the log
    evidence by Adam. Coordinates are centred at a posterior mode and divided by the widths that the
    curvature has there, so that every guide starts near a standard normal and steps are in
    posterior standard deviations. Steps shrink whenever the bound rests, to a hundredth of the
    first. Gradients of Gaussian guides follow the path of the draws only, so that their noise
    vanishes where q is exact.

    It describes the neighbourhood of one mode: a mixture has at least K! of them, so that the bound
    lies about log K! below the log evidence even where q fits its mode exactly.

    Parameters
    ----------
    guide : {"full_rank", "mean_field", "low_rank", "flow"}
        Multivariate normal; independent normals; a normal whose covariance is diagonal plus one of
        rank about the square root of the number of coordinates; inverse autoregressive flow.
    num_steps : int
        Steps at most, in windows of 100.
    tol : float
        The bound rests when its mean over a window does not exceed the best one before by this
        share of one plus its absolute value.
    learning_rate : float
        First step size of Adam.
    num_particles : int
        Draws that estimate the bound at each step.
    num_draws : int
    num_restarts : int
        Starts of the search for the mode.
    batch_components : int, optional
        Estimate the likelihood, at each step, from so many of the connected components of the
        links (lone points are components); see `Batches`. The search for the mode and the final
        bound use all of them.

    References
    ----------
    Kucukelbir et al. (2017), J. Mach. Learn. Res. 18(14), 1-45. Roeder, Wu and Duvenaud (2017),
    NeurIPS, for gradients along the path. Kingma et al. (2016), NeurIPS, for the flow.
    """

    guide: str = "full_rank"
    num_steps: int = 20_000
    tol: float = 1e-5
    learning_rate: float = 0.05
    num_particles: int = 8
    num_draws: int = 1000
    num_restarts: int = 10
    batch_components: int | None = None
    name: ClassVar[str] = "svi"

    def __post_init__(self) -> None:
        if self.guide not in FAMILIES:
            raise ValueError(f"SVI(guide={self.guide!r}): expected one of {list(FAMILIES)}")
        check_positive(
            self,
            num_steps=_WINDOW,
            tol=0.0,
            learning_rate=1e-6,
            num_particles=1,
            num_draws=100,
            num_restarts=1,
        )
        if self.batch_components is not None:
            check_positive(self, batch_components=1)

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> EngineResult:
        """Fit; see `Engine.run`. An `init` replaces all starts of the search for the mode by one.

        Raises
        ------
        ValueError
            If the likelihood cannot be estimated from some components of the links, or a flow is
            asked for a single coordinate.
        FitError
            If no start has a finite density, or the bound stops being finite.
        """
        approximate = approximation(problem)
        batches = None
        if self.batch_components is not None:
            batches = split_components(problem, self.batch_components, seed)
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
        )
        seconds = dict(mode.seconds)
        given = mode.free, jax.random.key(seed), problem.args
        frame, search = timed(seconds, "svi-begin", problem, self.guide, self._begin, *given)
        with progress_bar("SVI", self.num_steps, shown=progress) as advance:
            search, bounds, settled = self._climb(
                problem, frame, search, batches, seconds, advance, mode
            )
        settings = self.guide, self.num_draws
        flat, log_q = timed(seconds, "svi-draw", problem, settings, self._draw, frame, search)
        log_density, sites = visit(problem, mode.free, np.asarray(flat), seconds)
        log_weights = log_density - np.asarray(log_q)
        error = float(log_weights.std(ddof=1) / np.sqrt(self.num_draws))
        kind = "bound" if approximate is None else "estimate"
        bound = Evidence(float(log_weights.mean()), kind, error)
        close, verdict = quality(pareto_k(log_weights), self.num_draws)
        if settled:
            message = f"settled after {len(bounds) * _WINDOW} steps"
        else:
            message = f"stopped at num_steps={self.num_steps}; raise it, or learning_rate"
        return EngineResult(
            engine=self.name,
            draws={name: v[None] for name, v in sites.items()},
            sample_stats={"lp": log_density[None], "log_weight": log_weights[None]},
            objective=np.array([bounds]),
            status=Status(settled and close, f"SVI ({self.guide}) {message}; {bound}; {verdict}"),
            seconds=seconds,
            approximate=approximate,
            density_space="unconstrained",
            log_evidence=None if has_improper_prior(problem) else bound,
        )

    def _begin(self, problem: Problem) -> Callable:
        def begin(template: dict[str, Array], key: Array, args: tuple) -> tuple[_Frame, _Search]:
            centre, _ = ravel_pytree(template)
            slope = jax.grad(flat_density(problem, template, args))

            def curvature(direction: Array) -> Array:
                return -jax.jvp(slope, (centre,), (direction,))[1] @ direction

            found = lax.map(curvature, jnp.eye(len(centre)), batch_size=_COLUMNS)
            widths = jnp.where(found > 0, 1 / jnp.sqrt(jnp.where(found > 0, found, 1.0)), 1.0)
            first, rest = jax.random.split(key)
            params = FAMILIES[self.guide].start(first, len(centre))
            return (
                _Frame(template, centre, widths),
                _Search(params, optax.scale_by_adam().init(params), rest),
            )

        return begin

    def _climb(
        self,
        problem: Problem,
        frame: _Frame,
        search: _Search,
        batches: Batches | None,
        seconds: dict[str, float],
        advance: Callable[[int, str], None],
        mode: Ascent,
    ) -> tuple[_Search, list[float], bool]:
        """Raise the bound window by window; returns its means, and whether it came to rest."""
        settings = self.guide, self.num_particles
        rate = self.learning_rate
        bounds: list[float] = []
        for _ in range(self.num_steps // _WINDOW):
            window = []
            for _ in range(_WINDOW // _PIECE):
                given = search, jnp.asarray(rate), frame, batches, problem.args
                search, values = timed(seconds, "svi", problem, settings, self._march, *given)
                window.append(np.asarray(values))
                advance(_PIECE, f"ELBO {window[-1].mean():.6g}")
            if not np.isfinite(window).any():
                raise FitError(
                    "SVI: the bound is not finite at any step of a window; lower learning_rate, or "
                    "tighten the priors",
                    mode.sites,
                )
            bounds.append(float(np.nanmean(window)))
            best = max(bounds[:-1], default=-np.inf)
            if np.isfinite(best) and bounds[-1] - best <= self.tol * (1 + abs(best)):
                rate *= _SHRINK
            if rate < _SMALLEST * self.learning_rate:
                return search, bounds, True
        return search, bounds, False

    def _march(self, problem: Problem) -> Callable:
        """Some steps of Adam; one whose gradient is not finite is skipped, its bound NaN."""
        family, adam = FAMILIES[self.guide], optax.scale_by_adam()

        def march(
            search: _Search, rate: Array, frame: _Frame, batches: Batches | None, args: tuple
        ) -> tuple[_Search, Array]:
            def loss(params: Any, key: Array) -> Array:
                first, second = jax.random.split(key)
                total = sum_log_prob
                if batches is not None:
                    number = jax.random.randint(second, (), 0, batches.num_batches)
                    total = partial(batched_log_prob, batches=batches, number=number)
                density = flat_density(problem, frame.template, args, total)
                moved, log_q = family.draw(params, first, self.num_particles, path=True)
                log_p = jax.vmap(density)(frame.centre + frame.widths * moved)
                return jnp.mean(log_q - log_p) - jnp.log(frame.widths).sum()

            def step(search: _Search, _: None) -> tuple[_Search, Array]:
                key, now = jax.random.split(search.key)
                value, gradient = jax.value_and_grad(loss)(search.params, now)
                sound = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(gradient))
                uphill, state = adam.update(gradient, search.adam)
                params = jax.tree.map(lambda a, b: a - rate * b, search.params, uphill)
                params, state = jax.tree.map(
                    lambda a, b: jnp.where(sound, a, b),
                    (params, state),
                    (search.params, search.adam),
                )
                return _Search(params, state, key), jnp.where(sound, -value, jnp.nan)

            return lax.scan(step, search, length=_PIECE)

        return march

    def _draw(self, problem: Problem) -> Callable:
        def draw(frame: _Frame, search: _Search) -> tuple[Array, Array]:
            family = FAMILIES[self.guide]
            moved, log_q = family.draw(search.params, search.key, self.num_draws, path=False)
            return frame.centre + frame.widths * moved, log_q - jnp.log(frame.widths).sum()

        return draw
