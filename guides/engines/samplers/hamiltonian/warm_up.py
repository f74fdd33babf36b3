"""Warm-up of Hamiltonian samplers: a mass matrix from draws and slopes, and a step size."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from numpyro.infer.hmc_util import dual_averaging

from .metric import MassMatrix, Metric, by_axes, by_covariance, by_variances, unit_metric

__all__ = ["WarmUp", "warm_up"]

_EARLY, _CLOSING = 0.3, 0.15
"""Shares of the warm-up: the first, of draws soon forgotten, and the last, where the step alone adapts."""

_WINDOW_EARLY, _WINDOW = 10, 80
"""Draws after which older ones are forgotten: the mass matrix rests on one to two times as many."""

_LEAST = 3
"""Draws from which a mass matrix is estimated."""

_PLACES = 2 * _WINDOW
"""Draws that axes are estimated from at most."""

_EVERY_EARLY, _EVERY = 5, 20
"""Transitions between factorisations of a mass matrix that is not diagonal."""


class _Moments(NamedTuple):
    """Sums over draws by Welford's method, of coordinates and of slopes."""

    number: Array
    mean: Array
    scatter: Array
    products: Array
    """Scatter matrix of the coordinates, without rows where the mass matrix is diagonal."""


class WarmUp(NamedTuple):
    """What a chain has learned.

    Attributes
    ----------
    number : Array, shape ()
        Transitions that it has learned from; -1 before the first, which goes nowhere.
    step_size : Array, shape ()
        For the next transition.
    metric : Metric
    averaging : tuple
        State of the dual averaging of the step size.
    mean_log_step : Array, shape ()
        Mean of the last steps.
    recent, coming : tuple
        Moments of two windows of draws, one of which replaces the other when it is full.
    ring : Array, shape (places, 2, size)
        Last draws and slopes, without places unless the mass matrix is of low rank.
    """

    number: Array
    step_size: Array
    metric: Metric
    averaging: tuple
    mean_log_step: Array
    recent: _Moments
    coming: _Moments
    ring: Array


def warm_up(
    num_warmup: int,
    *,
    target_accept: float = 0.8,
    dense_mass: MassMatrix = False,
    by_slopes: bool = True,
) -> tuple[Callable, Callable]:
    r"""Adaptation of step size and mass matrix.

    The diagonal of the inverse mass matrix is :math:`\sqrt{\operatorname{var} z / \operatorname{var} g}`
    for coordinates :math:`z` and their slopes :math:`g`, of the last 80 to 160 draws. On a normal posterior
    that is the geometric mean of a coordinate's variance and of its variance given all others. It takes few
    draws, since slopes know the curvature also where a chain has hardly moved. A full matrix
    is the covariance of all draws but the first, once there are two of them for each coordinate.

    Over the last part of the warm-up the mass matrix rests. The step size moves by ever
    smaller steps until trajectories are accepted with probability `target_accept`, and the mean of their
    logarithms is kept. Dual averaging alone ends with shorter steps, as acceptance is a concave function of
    the logarithm of a step that still varies.

    Parameters
    ----------
    num_warmup : int
        Transitions that adapt.
    target_accept : float
    dense_mass : bool
    by_slopes : bool
        Whether slopes have a part in a diagonal after the first draws too. Without, it is that of variances,
        which give trajectories of one length their unit.

    Returns
    -------
    ready : callable
        ``ready(size) -> WarmUp`` before any transition.
    adapt : callable
        ``adapt(state, position, slope, acceptance, went) -> WarmUp`` after one, if it went anywhere.

    References
    ----------
    Hoffman and Gelman (2014), J. Mach. Learn. Res. 15, section 3.2. Seyboldt, Carlson and Carpenter (2026),
    "Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence", arXiv:2603.18845.
    """
    ready_average, average = dual_averaging()
    closing = num_warmup - max(int(_CLOSING * num_warmup), 1)
    half = (num_warmup - closing) // 2

    def ready(size: int) -> WarmUp:
        moments = _no_moments(size, dense_mass)
        zero, one = jnp.zeros(()), jnp.ones(())
        averaging = ready_average(jnp.log(10 * one))
        return WarmUp(
            jnp.asarray(0),
            one,
            unit_metric(size, dense_mass),
            averaging,
            zero,
            moments,
            moments,
            jnp.zeros((_PLACES if dense_mass == "low_rank" else 0, 2, size)),
        )

    def closing_step(state: WarmUp, excess: Array) -> tuple[Array, Array]:
        number = jnp.maximum(state.number - closing, 0)
        log_step = jnp.where(number == 0, state.averaging[1], jnp.log(state.step_size))
        log_step += excess / jnp.sqrt(1.0 + number)
        counted = jnp.maximum(number - half + 1, 1)
        mean = state.mean_log_step + (log_step - state.mean_log_step) / counted
        is_last = state.number == num_warmup - 1
        return jnp.where(is_last, mean, log_step), mean

    def learn(state: WarmUp, position: Array, slope: Array, acceptance: Array) -> WarmUp:
        is_closing = state.number >= closing
        excess = acceptance - target_accept
        averaging = average(-excess, state.averaging)
        log_step, mean = closing_step(state, excess)
        step_size = jnp.exp(jnp.where(is_closing, log_step, averaging[0]))
        real = jnp.finfo(step_size.dtype)

        coming, recent = (_with(one, position, slope) for one in (state.coming, state.recent))
        is_early = state.number < _EARLY * num_warmup
        # variances and covariances take all later draws
        late = _WINDOW if by_slopes and dense_mass is not True else num_warmup
        window = jnp.where(is_early, _WINDOW_EARLY, late)
        moments = jax.tree.map(
            lambda new, old: jnp.where(coming.number >= window, new, old),
            (coming, _no_moments(len(position), dense_mass)),
            (recent, coming),
        )
        refresh = ~is_closing & (moments[0].number >= _LEAST)
        if dense_mass:
            refresh &= state.number % jnp.where(is_early, _EVERY_EARLY, _EVERY) == 0
        ring = _kept(state.ring, state.number, position, slope)
        metric = lax.cond(
            refresh,
            lambda: _metric(moments[0], ring, state.number, state.metric, is_early | by_slopes),
            lambda: state.metric,
        )
        return WarmUp(
            state.number + 1,
            jnp.clip(step_size, real.tiny, real.max),
            metric,
            averaging,
            mean,
            recent=moments[0],
            coming=moments[1],
            ring=ring,
        )

    def adapt(
        state: WarmUp,
        position: Array,
        slope: Array,
        acceptance: Array,
        went: Array | bool = True,
    ) -> WarmUp:
        return lax.cond(
            went & (state.number < num_warmup),
            lambda: learn(state, position, slope, acceptance),
            lambda: state,
        )

    return ready, adapt


def _no_moments(size: int, dense_mass: MassMatrix) -> _Moments:
    blank, rows = jnp.zeros((2, size)), size if dense_mass is True else 0
    return _Moments(jnp.asarray(0), blank, blank, jnp.zeros((rows, size)))


def _with(moments: _Moments, position: Array, slope: Array) -> _Moments:
    """Moments with one draw more."""
    count = moments.number + 1
    both = jnp.stack([position, slope])
    before = both - moments.mean
    mean = moments.mean + before / count
    after = both - mean
    products = moments.products
    if len(products):
        products = products + jnp.outer(before[0], after[0])
    return _Moments(count, mean, moments.scatter + before * after, products)


def _kept(ring: Array, number: Array, position: Array, slope: Array) -> Array:
    """Draws and slopes with one more, which takes the place of the oldest."""
    if not len(ring):
        return ring
    return ring.at[number % len(ring)].set(jnp.stack([position, slope]))


def _metric(
    moments: _Moments, ring: Array, number: Array, last: Metric, by_slopes: Array
) -> Metric:
    """Mass matrix from draws, of which the last has that number."""
    diagonal = by_variances(last, moments.scatter, moments.number, by_slopes)
    if last.scale.ndim == 2:
        return by_covariance(diagonal, last, moments.products, moments.number)
    if not len(ring):
        return diagonal
    age = (number - jnp.arange(len(ring))) % len(ring)
    weight = (age < jnp.minimum(moments.number, len(ring))).astype(ring.dtype)
    alone = (ring[:, 0] - moments.mean[0]) / jnp.square(diagonal.scale)
    slopes = jnp.where(moments.scatter[1] > 0, ring[:, 1], alone)  # as of a normal coordinate
    return by_axes(diagonal, ring[:, 0], slopes, weight)
