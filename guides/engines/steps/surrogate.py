r"""The EM surrogate of any model whose latent variables are integrated out.

The log joint is :math:`\log Z(L(\theta)) - \log\Omega(\theta) + \log p(\theta)` with log-factors L.
Since :math:`\log Z` is convex in L, the linearisation at the current parameters,

.. math:: Q(\theta \mid \theta_0) = \langle \partial_L \log Z |_{L(\theta_0)}, L(\theta) \rangle
          - \log\Omega(\theta) + \log p(\theta),

is, up to a constant, a lower bound that touches the log joint there. It is the expected complete-data log
density.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from sidebayes.models.blocks.block import Tightening
from sidebayes.models.blocks.collapsed import Collapsed

from ..base import Problem
from ..coordinates import coordinates_of
from ..problem.declared import collapsed_of, collapsed_sites, declared_blocks
from ..problem.density import place, site_log_prob, trace_model, unconstrain
from .lbfgs import minimise

__all__ = [
    "allot",
    "climb",
    "cluster_sizes",
    "drawn",
    "expectation",
    "inner",
    "linearised",
    "raise_surrogate",
    "shares",
    "slope_at",
    "tightened",
]


def expectation(
    problem: Problem,
    params: Mapping[str, Array],
    args: tuple,
    one_pass: Mapping[str, str] | None = None,
) -> tuple[Array, dict[str, Any]]:
    """Compute the E-step: the log joint density, and the expected sufficient statistics.

    Parameters
    ----------
    problem, params, args
    one_pass : mapping of str to str, optional
        For each observed site, a site of the block that finds its statistics in one pass.

    Returns
    -------
    log_joint : Array, shape ()
    posterior : dict
        For each observed site that integrates latent variables out, the gradient of its log partition
        function in its log-factors, which are the expected sufficient statistics.
    """
    total = jnp.asarray(0.0)
    posterior = {}
    trace = trace_model(problem, params, args)
    for name, site in trace.items():
        if site["type"] != "sample":
            continue
        fn, value = _linear(site), site["value"]
        if fn is None:
            total = total + site_log_prob(site)
        elif one_pass and name in one_pass:
            block = trace[one_pass[name]]["infer"]["block"]
            log_z, posterior[name] = block.one_pass(fn, value)
            total = total + log_z - fn.log_normalizer()
        else:
            log_z, posterior[name] = jax.value_and_grad(fn.log_partition)(fn.log_factors(value))
            total = total + log_z - fn.log_normalizer()
    return total, posterior


def tightened(
    problem: Problem, params: Mapping[str, Array], args: tuple, num_steps: int
) -> dict[str, Array]:
    """Improve restricted posteriors before an E-step, in sites of blocks that describe them.

    Parameters
    ----------
    problem, params, args
    num_steps : int
        Maximum number of gradients of L-BFGS.
    """
    trace = trace_model(problem, params, args)
    better = dict(params)
    for block, sites in declared_blocks(trace):
        if not isinstance(block, Tightening):
            continue
        for fn, value in collapsed_sites(trace).values():
            if block.factor in fn.log_factors(value):
                values = {role: params[name] for role, name in sites.items()}
                found = block.tighten(fn, value, values, partial(minimise, num_steps=num_steps))
                better |= {sites[role]: value for role, value in found.items()}
    return better


def drawn(
    problem: Problem, params: Mapping[str, Array], args: tuple, rng_key: Array
) -> dict[str, Any]:
    """Return statistics of latent variables that are drawn jointly given parameters and data.

    `expectation` returns their mean. With drawn statistics in its place, `linearised` is the log density of
    parameters, latent variables and data.
    """
    found = {}
    for name, site in trace_model(problem, params, args).items():
        fn = _linear(site) if site["type"] == "sample" else None
        if fn is not None:
            rng_key, key = jax.random.split(rng_key)
            found[name] = fn.statistic(fn.draw(key, site["value"]))
    return found


def linearised(trace: Mapping[str, dict], posterior: Mapping[str, Any]) -> Array:
    """Q of a trace of the model, up to a constant, for the posterior that `expectation` found."""
    total = jnp.asarray(0.0)
    for name, site in trace.items():
        if site["type"] != "sample":
            continue
        fn = _linear(site) if name in posterior else None
        if fn is None:
            total = total + site_log_prob(site)
        else:
            factors = fn.log_factors(site["value"])
            total = total + inner(posterior[name], factors) - fn.log_normalizer()
    return total


def raise_surrogate(
    problem: Problem,
    params: Mapping[str, Array],
    args: tuple,
    posterior: Mapping[str, Any],
    num_steps: int,
    names: tuple[str, ...] | None = None,
) -> dict[str, Array]:
    """Increase Q in some sites, all by default; see `climb`."""
    chosen = tuple(params) if names is None else names
    return climb(problem, params, args, partial(linearised, posterior=posterior), num_steps, chosen)


def climb(
    problem: Problem,
    params: Mapping[str, Array],
    args: tuple,
    objective: Callable[[Mapping[str, dict]], Array],
    num_steps: int,
    names: tuple[str, ...],
) -> dict[str, Array]:
    """Increase an objective in some sites by L-BFGS in unconstrained coordinates; it never decreases.

    Parameters
    ----------
    problem, params, args
    objective : callable
        Function of a trace of the model.
    num_steps : int
        Maximum number of gradients.
    names : tuple of str
        Sites to move; the others are held fixed.
    """
    start, bounded, at = _in_coordinates(problem, params, args, names)
    sites = at(minimise(lambda point: -objective(at(point)), start, num_steps, bounded=bounded))
    return {**params, **{name: sites[name]["value"] for name in names}}


def slope_at(
    problem: Problem,
    params: Mapping[str, Array],
    args: tuple,
    objective: Callable[[Mapping[str, dict]], Array],
    names: tuple[str, ...],
    point: Array,
) -> tuple[Array, dict[str, Array]]:
    """Return the gradient of an objective at a vector of coordinates of some sites, and the sites' values."""
    _, _, at = _in_coordinates(problem, params, args, names)

    def value(point: Array) -> tuple[Array, dict[str, Array]]:
        sites = at(point)
        return objective(sites), {name: sites[name]["value"] for name in names}

    return jax.grad(value, has_aux=True)(point)


def _in_coordinates(
    problem: Problem, params: Mapping[str, Array], args: tuple, names: tuple[str, ...]
) -> tuple[Array, NDArray[np.bool_], Callable[[Array], dict]]:
    """Return coordinates of some sites as a vector, which are bounded, and the map of vectors to traces."""
    fixed = {name: value for name, value in params.items() if name not in names}
    sites = trace_model(problem, params, args)
    start = unconstrain(sites, {name: params[name] for name in names})
    flat, unravel = ravel_pytree(start)

    def at(point: Array) -> dict:
        return place(problem, unravel(point), args, fixed)[0]

    return flat, coordinates_of(sites, start).bounded, at


def allot(posterior: Mapping[str, Any], site: str, labels: Array) -> dict[str, Any]:
    """Replace responsibilities: allot each point of an observed site mostly to one cluster.

    Parameters
    ----------
    posterior : dict
        As from `expectation`.
    site : str
    labels : Array, shape (num_points,)
        Where they do not match the points of the site, which may be groups of rows, `posterior` is kept.
    """
    slope = dict(posterior[site])
    unary = slope["unary"]
    if len(unary) != len(labels):
        return dict(posterior)
    num_clusters = unary.shape[1]
    # a share of each point for every cluster keeps clusters of few points from shrinking onto these
    share = 0.9 * jax.nn.one_hot(labels, num_clusters) + 0.1 / num_clusters
    if unary.ndim == 3:
        slope["unary"] = jnp.broadcast_to(share[..., None] / unary.shape[2], unary.shape)
        by_row = slope["log_within"].ndim == 3
        slope["log_within"] = slope["unary"] if by_row else slope["unary"].sum(axis=0)
    else:
        slope["unary"] = share
    if "log_weights" in slope:
        total = slope["log_weights"].sum()
        by_point = slope["log_weights"].ndim == 2
        slope["log_weights"] = share if by_point else share.mean(axis=0) * total
    return {**posterior, site: slope}


def shares(slope: Mapping[str, Any]) -> Array:
    """Responsibilities in the expected statistics of one site, shape (num_points, num_clusters)."""
    unary = slope["unary"]
    return unary.sum(axis=2) if unary.ndim == 3 else unary


def cluster_sizes(posterior: Mapping[str, Any]) -> Array:
    """Expected number of points in each cluster of the first site with labels; empty without one."""
    for slope in posterior.values():
        if "moments" in slope:
            return slope["moments"].total
        if "unary" in slope:
            return shares(slope).sum(axis=0)
    return jnp.zeros(0)


def _linear(site: dict) -> Collapsed | None:
    """Distribution that EM linearises; None for a site with a scale, whose density is left as it is."""
    return collapsed_of(site) if site.get("scale") is None else None


def inner(slope: Any, factors: Any) -> Array:
    """Sum of the products of statistics and factors."""

    def one(weight: Array, factor: Array) -> Array:
        used = weight != 0  # a state of probability zero may have a log-factor of minus infinity
        return jnp.sum(jnp.where(used, weight * jnp.where(used, factor, 0.0), 0.0))

    return sum(jax.tree.leaves(jax.tree.map(one, slope, factors)), start=jnp.zeros(()))
