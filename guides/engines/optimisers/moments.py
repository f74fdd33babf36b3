"""Compares moments of an approximation's draws with those of weighted draws from farther out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from ..base import FitError, Problem
from ..jumps import instead_of_slopes
from ..plumbing.clock import Clock
from ..problem.density import abstract_trace, latent_sites
from ..problem.importance import (
    effective_share,
    log_student,
    pareto_k,
    quality,
    smoothed_weights,
    visit,
)
from ..steps.climbs import rounding_of
from ..symmetries.declared import site_symmetries, sites_up_to_signs
from ..symmetries.exchangeable import ClusterAxes, cluster_axes
from ..symmetries.signs import one_sign

__all__ = ["Judgement", "judge_draws", "judge_moments"]

_DF = 4
"""Degrees of freedom of the draws from farther out: a share of these is effective in any dimension."""

_BATCHES = 4
"""Number of sets of draws from farther out, each as large as the set of the approximation's draws."""

_ENOUGH = 100
"""Minimum effective number of weighted draws for them to be trusted."""

_LIMIT = 0.7
"""Maximum Pareto k-hat for weights of draws from farther out to be trusted."""

_WRONG, _DOUBTFUL = 0.3, 0.2
"""Shift of a mean in standard deviations, or relative excess of one standard deviation over the other, above
which draws are wrong, or doubtful."""

_BLUR = 0.3
"""Rounding error of log densities, in nats, above which their differences do not allow a verdict on draws."""

_ERRORS = 3.0
"""Number of Monte Carlo errors that a difference must also exceed."""


class Judgement(NamedTuple):
    """Whether draws are close to the posterior, a sentence on it, and remarks on what is doubtful.

    ``even`` is whether the mean of their weights can be trusted as an evidence.
    """

    close: bool
    sentence: str
    remarks: tuple[str, ...] = ()
    even: bool = True


class _Gap(NamedTuple):
    """Largest difference of moments: its size, and a description."""

    size: float
    what: str


class _Farther(NamedTuple):
    """Draws of a t distribution in equal parts, and their log densities."""

    parts: NDArray
    log_q: NDArray


def judge_draws(
    problem: Problem,
    template: Mapping[str, Any],
    draws: NDArray,
    sites: Mapping[str, NDArray],
    log_weights: NDArray,
    clock: Clock,
    seed: int,
    look: Callable[[NDArray], tuple[NDArray, dict[str, NDArray]]] | None = None,
) -> Judgement:
    """Judge an approximation by the k-hat of its weights, their effective size, and moments.

    k-hat measures how heavy the tail of the weights is, however little mass it holds, and does not detect
    mass that lies farther out than the draws. Therefore, the moments of all sites are compared with those of
    draws from a multivariate t distribution of the same centre and shape, weighted to the posterior.

    Parameters
    ----------
    problem : Problem
    template : mapping
        Unconstrained values of the latent sites, for their shapes.
    draws : ndarray, shape (num_draws, num_coordinates)
        Draws of the approximation, in unconstrained coordinates.
    sites : mapping of str to ndarray, shape (num_draws, ...)
        The same draws in their supports.
    log_weights : ndarray, shape (num_weights,)
        Log weights of the draws, or of a larger pool from which these were resampled by weight.
    clock : Clock
    seed : int
    look : callable, optional
        Returns log densities and sites at points, for a problem whose data are not in memory; by default,
        `visit`.

    Raises
    ------
    FitError
        If the draws reach so far out that they have no standard deviation.
    """
    _refuse_endless(template, draws)
    blur = _rounding(log_weights)
    if blur > _BLUR:
        is_single = jnp.result_type(float) == jnp.float32
        remark = (
            f"Rounding leaves errors of some {blur:.1g} in log densities of {np.nanmedian(log_weights):.3g}, "
            "so that nothing shows how close the draws are to the posterior: "
            + (
                "fit in float64"
                if is_single
                else "subtract from the data what is far from the prior"
            )
        )
        return Judgement(True, "its draws cannot be judged", (remark,), even=False)
    k = pareto_k(log_weights)
    close, sentence = quality(k, len(log_weights), effective_share(log_weights))
    weights, reliable, size = smoothed_weights(log_weights), False, float(len(draws))
    if len(weights) != len(draws):  # weights of a pool from which the draws were resampled
        size = min(size, 1 / np.square(weights).sum())
        weights = np.full(len(draws), 1 / len(draws))
    farther = _farther(draws, seed)
    if farther is None:
        sites, others, _ = _one_sign(problem, sites, sites)
    else:
        if look is None:
            look = partial(visit, problem, template, clock=clock, anywhere=True)
        looked = [look(part) for part in farther.parts]
        found = {name: np.concatenate([part[1][name] for part in looked]) for name in sites}
        sites, found, alike = _one_sign(problem, sites, found)
        log_weights = np.concatenate([part[0] for part in looked]) - farther.log_q
        # other signs give another copy of the same mode, which the draws need not reach
        log_weights = np.where(alike, log_weights, -np.inf)
        smooth = smoothed_weights(log_weights)
        others = sites
        if 1 / np.square(smooth).sum() >= _ENOUGH:
            others, weights = found, smooth
            reliable = pareto_k(log_weights[alike]) <= _LIMIT
    axes = cluster_axes(problem, {name: value[None] for name, value in sites.items()})
    gap = judge_moments(
        _comparable(problem, axes, sites), _comparable(problem, axes, others), weights, size
    )
    if gap is not None and gap.size > _WRONG:
        sentence = f"Pareto k-hat {k:.2f}; {gap.what}: do not trust its draws"
        sentence += f"; {instead_of_slopes(problem, 'try NUTS')}"
        return Judgement(False, sentence, even=False)
    even = close
    if not (reliable or close):
        sentence += f"; {instead_of_slopes(problem, 'try NUTS')}"
    if reliable and not close:
        close = True
        sentence = (
            f"Pareto k-hat {k:.2f}, but its moments are those of weighted draws from farther out: close to "
            "the posterior around this mode; do not trust evidence by importance"
        )
    remarks = () if gap is None else (f"{gap.what[0].upper()}{gap.what[1:]}",)
    return Judgement(close, sentence, remarks, even)


def _refuse_endless(template: Mapping[str, Any], draws: NDArray) -> None:
    """Refuse draws along a direction in which the posterior is flat, naming its sites."""
    with np.errstate(over="ignore", invalid="ignore"):
        endless = ~np.isfinite(draws.var(axis=0))
    if endless.any():
        _, unravel = ravel_pytree(template)
        parts = unravel(jnp.asarray(endless, draws.dtype)).items()
        raise FitError(
            f"the approximation has no end at the sites {[n for n, part in parts if part.any()]}, where the "
            "posterior is flat: give them informative priors"
        )


def _rounding(log_weights: NDArray) -> float:
    """Rounding error of the largest log weights, in the precision of the fit; others do not matter."""
    finite = log_weights[np.isfinite(log_weights)]
    return float(rounding_of(jnp.asarray(np.abs(finite.max() if finite.size else 0.0))))


def _one_sign(
    problem: Problem, sites: Mapping[str, NDArray], others: Mapping[str, NDArray]
) -> tuple[dict[str, NDArray], dict[str, NDArray], NDArray[np.bool_]]:
    """Return draws and others with one choice of signs, and which others had the signs of most draws."""
    number = len(next(iter(sites.values())))
    both, signs = one_sign(
        problem, {n: np.concatenate([v, others[n]])[None] for n, v in sites.items()}, (0, 0)
    )
    alike = np.ones(len(next(iter(others.values()))), bool)
    for each in signs:
        flat = each[0].reshape(number + len(alike), -1)
        usual = np.where(flat[:number].sum(axis=0) < 0, -1, 1)
        alike &= (flat[number:] == usual).all(axis=1)
    first = {name: values[0, :number] for name, values in both.items()}
    return first, {name: values[0, number:] for name, values in both.items()}, alike


def judge_moments(
    plain: Mapping[str, NDArray], others: Mapping[str, NDArray], weights: NDArray, size: float
) -> _Gap | None:
    """Return the largest difference between moments of draws and of weighted draws; None if none matters.

    Parameters
    ----------
    plain : mapping of str to ndarray, shape (num_draws, ...)
    others : mapping of str to ndarray, shape (num_others, ...)
    weights : ndarray, shape (num_others,)
        Weights that sum to one.
    size : float
        Effective number of the draws of `plain`.
    """
    if not plain:
        return None
    portion = 1 / size + np.square(weights).sum()  # 1 / ESS, of both
    found = []
    for name, draws in plain.items():
        first = np.asarray(draws, float).reshape(len(draws), -1)
        second = np.asarray(others[name], float).reshape(len(weights), -1)
        second = np.where(weights[:, None] > 0, second, 0.0)
        mean, sd = first.mean(axis=0), first.std(axis=0)
        mean_of, sd_of, kurtosis = _weighted(second, weights)
        for at in np.flatnonzero((sd > 1e-12 * (1 + np.abs(mean))) & (sd_of > 0)):
            shift = abs(mean_of[at] - mean[at]) / sd_of[at]
            said = f"the mean of {name} is off by {shift:.2f} standard deviations"
            found.append((shift, np.sqrt(portion), said))
            excess = max(sd_of[at] / sd[at], sd[at] / sd_of[at]) - 1
            said = (
                f"the standard deviation of {name} is {sd[at]:.3g}, where the posterior has about "
                f"{sd_of[at]:.3g}"
            )
            found.append((excess, np.sqrt(max(kurtosis[at] - 1, 2.0) / 4 * portion), said))
    sure = [each for each in found if each[0] > max(_DOUBTFUL, _ERRORS * each[1])]
    if not sure:
        return None
    size, _, what = max(sure, key=lambda each: each[0] - _ERRORS * each[1])
    return _Gap(float(size), what)


def _weighted(values: NDArray, weights: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Return means, standard deviations and kurtosis of weighted columns."""
    mean = weights @ values
    apart = values - mean
    variance = weights @ apart**2
    kurtosis = weights @ apart**4 / np.where(variance > 0, variance, 1.0) ** 2
    return mean, np.sqrt(variance), kurtosis


def _farther(draws: NDArray, seed: int) -> _Farther | None:
    """Draw from a t distribution of the centre and shape of some draws; None where these span too little."""
    number, width = draws.shape
    if number < 5 * width:
        return None
    covariance = np.atleast_2d(np.cov(draws.T))
    scale = np.sqrt(np.diag(covariance))
    if not (scale > 0).all():
        return None
    correlation = covariance / np.outer(scale, scale)
    if np.linalg.eigvalsh(correlation)[0] < 1e-8:
        return None
    root = scale[:, None] * np.linalg.cholesky(correlation)
    rng = np.random.default_rng([seed, 3])
    noise = rng.normal(size=(_BATCHES * number, width))
    noise /= np.sqrt(rng.chisquare(_DF, size=(len(noise), 1)) / _DF)
    log_q = log_student((noise**2).sum(axis=1), width, _DF) - np.log(np.diag(root)).sum()
    points = draws.mean(axis=0) + noise @ root.T
    return _Farther(points.reshape(_BATCHES, number, width), log_q)


def _comparable(
    problem: Problem, axes: ClusterAxes, sites: Mapping[str, NDArray]
) -> dict[str, NDArray]:
    """Return latent sites, with those that may be renumbered replaced by means and spreads over clusters.

    Sites that are identified only up to an orthogonal transform or to signs are left out. Vectors whose
    length has no effect, points of spheres, are compared by their directions.
    """
    turned = {*site_symmetries(problem), *sites_up_to_signs(problem)}
    found = {}
    for site, told in latent_sites(abstract_trace(problem)).items():
        if site in turned:
            continue
        name, own, values = site, axes.dims[site], sites[site]
        if (told.get("infer") or {}).get("manifold") == "sphere":
            name = f"the direction of {site}"
            values = values / np.linalg.norm(values, axis=-1, keepdims=True)
        over = tuple(1 + at for at, dim in enumerate(own) if dim.startswith("clusters"))
        if over and not axes.ordered:
            found[f"{name}, averaged over clusters"] = values.mean(axis=over)
            found[f"the spread of {name} over clusters"] = values.std(axis=over)
        else:
            found[name] = values
    return found
