"""Search for the member of a family of guides that is closest to a posterior, by Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from numpy.typing import NDArray

from sidebayes.common.magnitudes import counted

from ..base import FitError, Keeper, Problem
from ..plumbing.clock import Clock
from ..plumbing.programs import compiled
from ..problem.causes import edge_advice
from ..problem.importance import along_slopes
from ..steps.climbs import BROKEN, SETTLED, climbed, stop_code, until_stopped
from ..steps.starts import random_keys
from .families import FAMILIES

__all__ = ["WINDOW", "Frame", "GuideSearch", "Search", "curvature_at", "widths_of"]

WINDOW = 100
"""Number of steps over which the bound is averaged."""

_SHRINK, _SMALLEST = 0.3, 0.01
"""Factor by which steps shrink when the bound stops rising, and share of the first step at which they end."""


class Frame(NamedTuple):
    """Coordinates of the guide: unconstrained ones, centred at the mode and divided by widths."""

    template: dict[str, Any]
    centre: Any
    widths: Any


class Search(NamedTuple):
    """State of the search for the best guide.

    Attributes
    ----------
    params, adam : pytree
        Parameters of the guide, and state of Adam.
    key : Array
        Random key of the next step.
    steps, code : Array of int, shape ()
    rate, value : Array, shape ()
        Size of the next step, and the bound at the last one.
    total, sound : Array, shape ()
        Sum and number of the finite bounds in the current window.
    best : Array, shape ()
        Highest mean of a window.
    history : Array, shape (num_windows,)
        Means of the windows, NaN for those that have not ended.
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

    @property
    def settled(self) -> bool:
        """Whether the bound stopped rising."""
        return int(self.code) == SETTLED

    @property
    def objective(self) -> NDArray:
        """Means of the windows that have ended, as the single row of an objective."""
        return np.asarray(self.history)[None, : int(self.steps) // WINDOW]


def curvature_at(gradient: Callable[[NDArray], NDArray], point: NDArray) -> NDArray:
    """Compute negative second derivatives at a point, by differences of gradients.

    Parameters
    ----------
    gradient : callable
        Function of rows of points.
    point : ndarray, shape (num_coordinates,)

    Returns
    -------
    ndarray, shape (num_coordinates, num_coordinates)
    """
    step = np.finfo(point.dtype).eps ** (1 / 3) * (1 + np.abs(point))
    moves = np.diag(step)
    fall = gradient(point - moves) - gradient(point + moves)
    return fall / (2 * step[:, None])


def widths_of(curvature: NDArray) -> NDArray:
    """Return the width along each coordinate of a normal density with this curvature; 1 where it bends up.

    Parameters
    ----------
    curvature : ndarray, shape (num_coordinates, num_coordinates)
        See `curvature_at`. It need not be exact, as widths only scale the coordinates.
    """
    own = np.diagonal(curvature)
    bent_down = own > 0
    return np.where(bent_down, 1 / np.sqrt(np.where(bent_down, own, 1.0)), 1.0)


@dataclass(frozen=True)
class GuideSearch:
    """Steps of Adam up the bound, and draws of the guide at which they end.

    Attributes
    ----------
    name : str
        Name of the programs, which identifies their density.
    density : callable
        ``density(problem, frame, data, key)`` returns the log density for one step as a function of
        unconstrained coordinates; a random `key` may select some of the data.
    guide, num_steps, num_particles, num_draws
        See `SVI`.
    """

    name: str
    density: Callable[..., Callable[[Array], Array]]
    guide: str
    num_steps: int
    num_particles: int
    num_draws: int

    @property
    def num_windows(self) -> int:
        """Number of windows after which the search stops in any case."""
        return self.num_steps // WINDOW

    def asked(self, what: str, problem: Problem) -> tuple:
        """Return arguments of `compiled` and `compile_ahead` for one of the programs of a search."""
        builds = {
            "begin": ("svi-begin", self.num_windows, self._begin),
            "march": (self.name, self.num_particles, self._march),
            "draw": ("svi-draw", self.num_draws, self._draw),
        }
        name, size, build = builds[what]
        return name, problem, (self.guide, size), build

    def climb(
        self,
        problem: Problem,
        frame: Frame,
        data: Any,
        rates: tuple[float, float],
        *,
        seed: int,
        above: float = 0.0,
        clock: Clock,
        advance: Callable[[int, str], None],
        keep: Keeper,
        point: Any,
    ) -> Search:
        """Increase the bound until it stops rising, or `num_steps` are done.

        Parameters
        ----------
        problem : Problem
        frame : Frame
        data : pytree
            Passed to `density`.
        rates : tuple of float
            Tolerance and first step size; see `SVI`.
        seed : int
        above : float
            Added to the bound that is shown.
        clock, advance, keep
            See `climbed`.
        point : mapping
            Values of the sites at the mode.

        Raises
        ------
        FitError
            If the bound is not finite at any step of a window.
        """
        given = random_keys(seed, 1)[0], frame.centre, np.asarray(rates[1])
        search = keep.restore(clock.run(*self.asked("begin", problem), *given))
        fixed = frame, data, np.asarray(rates)
        made = compiled(*self.asked("march", problem), search, *fixed, np.asarray(0))
        search, _ = climbed(
            clock.counted(made),
            search,
            fixed,
            describe=lambda search: f"ELBO {above + float(search.value):.6g}",
            advance=advance,
            keep=keep,
            clock=clock,
        )
        if int(search.code) == BROKEN:
            raise FitError(
                "SVI: the bound is not finite at any step of a window; "
                + edge_advice(problem, "lower learning_rate, or tighten the priors"),
                point,
            )
        return search

    def draw(
        self, problem: Problem, frame: Frame, search: Search, clock: Clock
    ) -> tuple[NDArray, NDArray]:
        """Return draws of the guide in unconstrained coordinates, and their log densities."""
        given = frame, search.params, search.key
        flat, log_q = clock.run(*self.asked("draw", problem), *given)
        return np.asarray(flat), np.asarray(log_q)

    def ended(self, search: Search) -> str:
        """Describe in a few words how the search ended."""
        if search.settled:
            return f"SVI ({self.guide}) settled after {counted(int(search.steps), 'step')}"
        return (
            f"SVI ({self.guide}) stopped at num_steps={self.num_steps}; raise it, or learning_rate"
        )

    def _begin(self, problem: Problem) -> Callable:
        def begin(key: Array, centre: Array, rate: Array) -> Search:
            first, rest = jax.random.split(jax.random.wrap_key_data(key))
            params = FAMILIES[self.guide].start(first, len(centre))
            none, nothing = jnp.asarray(0), jnp.zeros(())
            return Search(
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
                history=jnp.full(self.num_windows, jnp.nan),
            )

        return begin

    def _march(self, problem: Problem) -> Callable:
        """Program of Adam's steps, until the run stops or has done `limit` of them.

        A step whose gradient is not finite is skipped.
        """
        family, adam = FAMILIES[self.guide], optax.scale_by_adam()

        def march(
            search: Search, frame: Frame, data: Any, rates: Array, limit: Array
        ) -> tuple[Search, None]:
            def loss(params: Any, key: Array) -> Array:
                first, second = jax.random.split(key)
                density = self.density(problem, frame, data, second)
                moved, log_q = family.draw(params, first, self.num_particles, path=True)
                points = frame.centre + frame.widths * moved
                log_p = along_slopes(density, points)
                return jnp.mean(log_q - log_p) - jnp.log(frame.widths).sum()

            def step(search: Search) -> Search:
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
                return lax.cond(search.steps % WINDOW == 0, _close, lambda s, _: s, search, rates)

            return until_stopped(step, search, limit), None

        return march

    def _draw(self, problem: Problem) -> Callable:
        def draw(frame: Frame, params: Any, key: Array) -> tuple[Array, Array]:
            moved, log_q = FAMILIES[self.guide].draw(params, key, self.num_draws, path=False)
            return frame.centre + frame.widths * moved, log_q - jnp.log(frame.widths).sum()

        return draw


def _close(search: Search, rates: Array) -> Search:
    """End a window: record its mean, shrink the steps if the bound stopped rising, and set the stop code."""
    tol, first_rate = rates
    mean, best = search.total / search.sound, search.best
    rests = jnp.isfinite(best) & (mean - best <= tol * (1 + jnp.abs(best)))
    rate = jnp.where(rests, _SHRINK * search.rate, search.rate)
    cut = search.steps == len(search.history) * WINDOW
    settled = rate < _SMALLEST * first_rate
    return search._replace(
        code=stop_code(broken=search.sound == 0, settled=settled, cut=cut),
        rate=rate,
        total=jnp.zeros_like(search.total),
        sound=jnp.zeros_like(search.sound),
        best=jnp.fmax(best, mean),
        history=search.history.at[search.steps // WINDOW - 1].set(mean),
    )
