"""Draws of an approximation, and diagnostics of it by their importance weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, ndtri

from ..base import Evidence, FitError, Problem
from ..plumbing.clock import Clock
from ..plumbing.programs import compile_ahead
from .causes import edge_advice
from .density import (
    abstract_trace,
    as_numpy,
    bijector_of,
    deterministics,
    free_shapes,
    latent_sites,
    place,
    sum_log_prob,
    trace_model,
)
from .honoured import is_improper

__all__ = [
    "AT_ONCE",
    "along_slopes",
    "effective_share",
    "effective_size",
    "evidence_below",
    "flat_density",
    "in_batches",
    "log_mean_weight",
    "log_student",
    "no_evidence",
    "pareto_k",
    "pareto_smoothed",
    "proper",
    "quality",
    "refuse_infinite",
    "run_at",
    "smoothed_weights",
    "told",
    "visit",
    "visit_ahead",
]

AT_ONCE = 16
"""Number of draws whose densities are computed side by side."""

_EVEN = 0.9
"""Share of effective draws above which the tail of the weights does not matter."""

_RISK = 0.05
"""Probability that a lower bound from unbiased estimates exceeds the evidence."""

_ROUNDING = 1e-7
"""Range of equal log weights, relative to their size, that rounding may produce."""

_ALIKE = 1e-3
"""Range above which log weights differ, however large they are."""

_BOUNDED = 1.0
"""Range of log weights within which no tail is smoothed where rounding leaves them few distinct values."""


def flat_density(
    problem: Problem,
    template: Mapping[str, Array],
    args: tuple,
    total: Callable[[Mapping[str, dict]], Array] = sum_log_prob,
) -> Callable[[Array], Array]:
    """Log density as a function of one vector of unconstrained coordinates, laid out as in `template`.

    `total` computes the log density of a trace of the model; the log Jacobian is added to it.
    """
    _, unravel = ravel_pytree(dict(template))

    def log_density(flat: Array) -> Array:
        trace, log_det = place(problem, unravel(flat), args)
        return total(trace) + log_det

    return log_density


def run_at(problem: Problem, params: Mapping[str, Array], args: tuple) -> tuple[dict, Array]:
    """Run the model at values in their supports.

    Returns
    -------
    trace : dict
    log_det : Array, shape ()
        Log Jacobian determinant of the map from unconstrained coordinates to these values, as of `place`.
    """
    trace = trace_model(problem, params, args)
    log_det = jnp.zeros(())
    for name, value in params.items():
        bijector = bijector_of(trace[name])
        log_det = log_det + jnp.sum(bijector.log_abs_det_jacobian(bijector.inv(value), value))
    return trace, log_det


def in_batches(function: Callable[[Array], Any], rows: Array, size: int) -> Any:
    """Map over rows, `size` side by side; rows are padded, since a remainder would be compiled separately."""
    size = min(size, len(rows))
    if size == 1:
        return jax.lax.map(function, rows)
    padded = jnp.pad(rows, [(0, -len(rows) % size), (0, 0)])
    number = len(padded) // size
    found = jax.lax.map(jax.vmap(function), padded.reshape(number, size, rows.shape[1]))
    # not by lax.map's batch_size, which cannot join what has no entries
    return jax.tree.map(lambda leaf: leaf.reshape(len(padded), *leaf.shape[2:])[: len(rows)], found)


def along_slopes(density: Callable[[Array], Array], points: Array) -> Array:
    """Log density at each point, differentiable in whatever the points depend on.

    On processors it runs point by point, which compiles and computes faster than all points in step.
    """
    here = jax.lax.stop_gradient(points)
    in_step = 1 if jax.default_backend() == "cpu" else len(points)
    value, slope = in_batches(jax.value_and_grad(density), here, in_step)
    return value + ((points - here) * slope).sum(axis=1)


def visit(
    problem: Problem,
    template: Mapping[str, Any],
    draws: NDArray,
    clock: Clock,
    *,
    anywhere: bool = False,
) -> tuple[NDArray, dict[str, NDArray]]:
    """Evaluate the model at draws of its unconstrained coordinates.

    Parameters
    ----------
    problem : Problem
    template : mapping
        Unconstrained values of the latent sites, for their shapes.
    draws : ndarray, shape (num_draws, num_coordinates)
    clock : Clock
        Counts the time taken.
    anywhere : bool
        Draws may lie where the density cannot be computed, which then counts as zero.

    Returns
    -------
    log_density : ndarray, shape (num_draws,)
        In the unconstrained coordinates.
    sites : dict of ndarray, shape (num_draws, ...)
        Latent and deterministic sites.

    Raises
    ------
    FitError
        If the density is not finite at a draw, unless these may lie `anywhere`.
    """
    given = dict(template), draws, problem.args
    log_density, sites = clock.run("visit", problem, AT_ONCE, _visiting, *given)
    if anywhere:
        return np.where(np.isfinite(log_density), log_density, -np.inf), as_numpy(sites)
    refuse_infinite(problem, np.asarray(log_density))
    return np.asarray(log_density), as_numpy(sites)


def refuse_infinite(problem: Problem, log_density: NDArray) -> None:
    """Refuse an approximation with draws at which the log density is not finite.

    Raises
    ------
    FitError
        If the log density is not finite at a draw.
    """
    broken = int(np.sum(~np.isfinite(log_density)))
    if broken:
        raise FitError(
            f"the log density is not finite at {broken} of {len(log_density)} draws of the approximation, "
            f"which reaches too far out; {edge_advice(problem, 'tighten the priors, or use NUTS')}"
        )


def visit_ahead(problem: Problem, num_draws: int) -> None:
    """Compile the program of `visit` in another thread."""
    template = free_shapes(problem)
    shape = num_draws, sum(math.prod(free.shape) for free in template.values())
    draws = jax.ShapeDtypeStruct(shape, jnp.result_type(float))
    given = template, draws, problem.args
    compile_ahead("visit", problem, AT_ONCE, _visiting, *given, once=True)


def _visiting(problem: Problem) -> Callable:
    def go(template: dict, draws: Array, args: tuple):
        _, unravel = ravel_pytree(template)

        def one(flat: Array):
            trace, log_det = place(problem, unravel(flat), args)
            sites = {name: trace[name]["value"] for name in template}
            return sum_log_prob(trace) + log_det, sites | deterministics(trace)

        return in_batches(one, draws, AT_ONCE)

    return go


def no_evidence(problem: Problem) -> str:
    """Say why the integral of the density of a model is not an evidence; empty if it is one.

    A flat prior has infinite mass. A composite likelihood, which a model declares by
    ``infer={"composite": True}``, is no density of data. What `handlers.scale` has raised to a power is no
    density of data or parameters. A model whose method has a power declares it at the site, as
    ``infer={"power": ...}``.
    """
    trace = abstract_trace(problem)
    if any(is_improper(site["fn"]) for site in latent_sites(trace).values()):
        return "a prior is improper"
    if any((site.get("infer") or {}).get("composite") for site in trace.values()):
        return "the likelihood is a composite one, which is no density of the data"
    raised = [
        name
        for name, site in trace.items()
        if site["type"] == "sample"
        and site.get("scale") is not None
        and site["scale"] is not (site.get("infer") or {}).get("power")
    ]
    return f"handlers.scale raises the densities of {raised} to a power" if raised else ""


def proper(problem: Problem, evidence: Evidence) -> Evidence | None:
    """Return the evidence that an engine found; None where the model has none."""
    return None if no_evidence(problem) else evidence


def told(problem: Problem, evidence: Evidence | None) -> str:
    """Return the text on an evidence for the status of a fit."""
    return f"no evidence, as {no_evidence(problem)}" if evidence is None else str(evidence)


def pareto_k(log_weights: NDArray) -> float:
    r"""Shape :math:`\hat k` of the generalised Pareto tail of importance weights.

    The weights have finite moments of order below :math:`1 / k`. The result is 0 where the largest are equal.

    Parameters
    ----------
    log_weights : ndarray, shape (num_draws,)
        Log density less the log density of the approximation, at draws of the approximation. Weights of
        zero are left out.

    References
    ----------
    Vehtari, Simpson, Gelman, Yao and Gabry (2024), J. Mach. Learn. Res. 25(72). Yao, Vehtari,
    Simpson and Gelman (2018), ICML, for its use on variational approximations.
    """
    return float(pareto_smoothed(log_weights[np.isfinite(log_weights)])[1])


def smoothed_weights(log_weights: NDArray) -> NDArray:
    """Importance weights that sum to one, the largest smoothed by the Pareto tail (Vehtari et al. 2024)."""
    usable = np.isfinite(log_weights)
    weights = np.zeros(len(log_weights))
    weights[usable] = np.exp(pareto_smoothed(log_weights[usable])[0])
    return weights


def pareto_smoothed(log_weights: NDArray) -> tuple[NDArray, NDArray]:
    """Logs of weights that sum to one, the largest smoothed by the Pareto tail, and its shape (`pareto_k`).

    Parameters
    ----------
    log_weights : ndarray, shape (..., num_draws)
        Finite.
    """
    from arviz_stats.base import array_stats

    number = log_weights.shape[-1]
    peak = log_weights.max(axis=-1)
    log_weights = log_weights - peak[..., None]  # sums of large log weights would lose digits
    smooth = log_weights - logsumexp(log_weights, axis=-1, keepdims=True)
    shape = np.zeros(log_weights.shape[:-1])
    tail = max(int(min(0.2 * number, 3 * np.sqrt(number))), 1)  # Vehtari et al., section 2.3
    largest = np.partition(log_weights, -tail)[..., -tail:]
    # weights that are equal, but for rounding, have no tail to smooth, and ArviZ refuses them
    spread = np.ptp(largest, axis=-1)
    vary = spread > np.minimum(_ROUNDING * (1 + np.abs(peak)), _ALIKE)
    if vary.any():  # ArviZ takes log likelihoods, by which it divides
        found, tails = array_stats.psislw(-log_weights[vary], r_eff=1.0, axis=-1)
        bounded = np.isnan(tails) & (spread[vary] <= _BOUNDED)
        smooth[vary] = np.where(bounded[..., None], smooth[vary], found)
        shape[vary] = np.where(bounded, 0.0, tails)
    return smooth, shape


def log_student(square: NDArray, width: int, freedom: float) -> NDArray:
    """Log density of a multivariate t distribution of unit scale, at squared distances from its centre.

    Parameters
    ----------
    square : ndarray
    width : int
        Number of coordinates.
    freedom : float
        Degrees of freedom.
    """
    both = (freedom + width) / 2
    constant = gammaln(both) - gammaln(freedom / 2) - width / 2 * math.log(freedom * math.pi)
    found: NDArray = constant - both * np.log1p(square / freedom)
    return found


def log_mean_weight(log_weights: NDArray) -> tuple[float, float]:
    """Importance sampling estimate of the log evidence, and its standard error (delta method)."""
    peak = log_weights.max()
    weights = np.exp(log_weights - peak)
    error = weights.std(ddof=1) / np.sqrt(len(weights)) / weights.mean()
    return float(peak + np.log(weights.mean())), float(error)


def evidence_below(mean: float) -> Evidence:
    """Lower bound on the log evidence, from the logarithm of a mean of unbiased estimates of the evidence.

    By Markov's inequality, the mean exceeds twenty times the evidence with a probability of at most 5 per
    cent, whatever the distribution of the estimates.
    """
    return Evidence(mean + math.log(_RISK), "bound")


def quality(k: float, num_draws: int, share: float) -> tuple[bool, str]:
    """Return a verdict on whether weights can be averaged, and on the approximation that they are of.

    Parameters
    ----------
    k : float
        See `pareto_k`.
    num_draws : int
    share : float
        Effective size of the smoothed weights, as a share of the draws. Where it is near one, a heavy
        tail holds too little to matter.
    """
    limit = min(1 - 1 / np.log10(num_draws), 0.7)
    if k <= limit:
        return True, f"Pareto k-hat {k:.2f}: close to the posterior around this mode"
    if share >= _EVEN:
        return True, (
            f"Pareto k-hat {k:.2f} is of a tail that holds little, as {share:.0%} of the draws are "
            "effective: close to the posterior around this mode"
        )
    return False, (
        f"Pareto k-hat {k:.2f} is above {limit:.2f}: do not trust its spread, nor the evidence"
    )


def effective_share(log_weights: NDArray) -> float:
    """Effective sample size of smoothed weights, as a share of the draws."""
    return float(1 / np.square(smoothed_weights(log_weights)).sum() / len(log_weights))


def effective_size(weights: NDArray, points: NDArray) -> float:
    """Effective number of weighted draws: the least over their ranks in any coordinate, and overall.

    Where large weights are in the tails, the spread along a coordinate rests on fewer draws than the sum of
    the squared weights tells. Ranks as normal scores, as in the bulk ESS of chains, have no heavy tails.

    Parameters
    ----------
    weights : ndarray, shape (num_draws,)
        Weights that sum to one.
    points : ndarray, shape (num_draws, num_coordinates)
    """
    own = weights[np.argsort(points, axis=0)]
    square = ndtri((np.cumsum(own, axis=0) - own / 2).clip(1e-12, 1 - 1e-12)) ** 2
    bulk = (own * square).sum(axis=0)
    known = bulk > 0  # else one draw has all the weight
    by_coordinate = bulk[known] / (own**2 * square).sum(axis=0)[known]
    return float(by_coordinate.min(initial=1 / np.square(weights).sum()))
