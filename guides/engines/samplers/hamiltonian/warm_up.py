"""Warm-up of Hamiltonian samplers: a mass matrix from draws and slopes, and a step size."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from numpyro.infer.hmc_util import dual_averaging

__all__ = ["Metric", "WarmUp", "warm_up"]

_EARLY, _CLOSING = 0.3, 0.15
"""Shares of the warm-up: the first, of draws soon forgotten, and the last, where the step alone adapts."""

_WINDOW_EARLY, _WINDOW = 10, 80
"""Draws after which older ones are forgotten: the mass matrix rests on one to two times as many."""

_LEAST = 3
"""Draws from which a mass matrix is estimated."""

_TRUST = 10.0
"""Ratio of two masses of a coordinate, one transition apart: few draws may lie along a ridge."""

_SHRINKAGE = 5e-3
"""Share of the diagonal in a full mass matrix, times the number of draws."""

_EVERY = 10
"""Transitions between factorisations of a full mass matrix."""


class Metric(NamedTuple):
    """Mass matrix of the momenta, diagonal or full.

    Attributes
    ----------
    inverse : Array, shape (size,) or (size, size)
        Near the covariance of the draws.
    sqrt : Array, shape (size,) or (size, size)
        Factor by which standard normal numbers become momenta.
    """

    inverse: Array
    sqrt: Array


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
    """

    number: Array
    step_size: Array
    metric: Metric
    averaging: tuple
    mean_log_step: Array
    recent: _Moments
    coming: _Moments


def warm_up(
    num_warmup: int,
    *,
    target_accept: float = 0.8,
    dense_mass: bool = False,
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
        ``adapt(state, position, slope, acceptance) -> WarmUp`` after one.

    References
    ----------
    Hoffman and Gelman (2014), J. Mach. Learn. Res. 15, section 3.2. Seyboldt, Carlson and Carpenter (2026),
    "Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence", arXiv:2603.18845.
    """
    ready_average, average = dual_averaging()
    closing = num_warmup - max(int(_CLOSING * num_warmup), 1)
    half = (num_warmup - closing) // 2

    def ready(size: int) -> WarmUp:
        unit = jnp.eye(size) if dense_mass else jnp.ones(size)
        moments = _no_moments(size, dense_mass)
        zero, one = jnp.zeros(()), jnp.ones(())
        averaging = ready_average(jnp.log(10 * one))
        return WarmUp(jnp.asarray(-1), one, Metric(unit, unit), averaging, zero, moments, moments)

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
        late = _WINDOW if by_slopes and not dense_mass else num_warmup
        window = jnp.where(is_early, _WINDOW_EARLY, late)
        moments = jax.tree.map(
            lambda new, old: jnp.where(coming.number >= window, new, old),
            (coming, _no_moments(len(position), dense_mass)),
            (recent, coming),
        )
        refresh = ~is_closing & (moments[0].number >= _LEAST)
        if dense_mass:
            refresh &= state.number % _EVERY == 0
        metric = lax.cond(
            refresh,
            lambda: _metric(moments[0], state.metric, is_early | by_slopes),
            lambda: state.metric,
        )
        return WarmUp(
            state.number + 1,
            jnp.clip(step_size, real.tiny, real.max),
            metric,
            averaging,
            mean,
            *moments,
        )

    def adapt(state: WarmUp, position: Array, slope: Array, acceptance: Array) -> WarmUp:
        learns = (state.number >= 0) & (state.number < num_warmup)
        return lax.cond(
            learns,
            lambda: learn(state, position, slope, acceptance),
            lambda: state._replace(number=jnp.maximum(state.number, 0)),
        )

    return ready, adapt


def _no_moments(size: int, dense_mass: bool) -> _Moments:
    blank = jnp.zeros((2, size))
    return _Moments(jnp.asarray(0), blank, blank, jnp.zeros((size if dense_mass else 0, size)))


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


def _metric(moments: _Moments, last: Metric, by_slopes: Array) -> Metric:
    """Mass matrix from moments; a coordinate that has not moved keeps what it had."""
    is_full = last.inverse.ndim == 2
    before = jnp.diag(last.inverse) if is_full else last.inverse
    spread, bend = moments.scatter
    real = jnp.finfo(spread.dtype)
    found = jnp.where(by_slopes, jnp.sqrt(spread / bend), spread / (moments.number - 1))
    usable = (spread > real.tiny) & (bend > real.tiny) & jnp.isfinite(found) & (found > 0)
    diagonal = jnp.where(usable, jnp.clip(found, before / _TRUST, before * _TRUST), before)
    if not is_full:
        return Metric(diagonal, 1 / jnp.sqrt(diagonal))
    size, count = len(diagonal), moments.number
    share = jnp.where(count > 2 * size, 1 - _SHRINKAGE / count, 0.0)
    covariance = share * moments.products / (count - 1) + (1 - share) * jnp.diag(diagonal)
    # the factor of the inverse, from that of the covariance in reversed order
    upper = jnp.linalg.cholesky(covariance[::-1, ::-1])[::-1, ::-1]
    sqrt = jax.scipy.linalg.solve_triangular(upper.T, jnp.eye(size), lower=True)
    fine = jnp.isfinite(sqrt).all()
    return Metric(
        *(jnp.where(fine, new, old) for new, old in zip((covariance, sqrt), last, strict=True))
    )
