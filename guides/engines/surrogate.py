r"""The EM surrogate of any model whose labels are summed out.

The log joint is :math:`\log Z(L(\theta)) - \log\Omega(\theta) + \log p(\theta)` with log-factors L.
Since :math:`\log Z` is convex in L, its linearisation at the current parameters,

.. math:: Q(\theta \mid \theta_0) = \langle \partial_L \log Z |_{L(\theta_0)}, L(\theta) \rangle
          - \log\Omega(\theta) + \log p(\theta),

is up to a constant a lower bound that touches: exactly the expected complete-data log density.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from sidebayes.models.blocks.linked import LinkedMixture

from .base import Problem
from .density import as_mixture, trace_model

__all__ = ["allot", "cluster_sizes", "drawn", "expectation", "linearised", "shares", "surrogate"]


def expectation(
    problem: Problem, params: dict[str, Array], args: tuple
) -> tuple[Array, dict[str, Any]]:
    """E-step.

    Returns
    -------
    log_joint : Array, shape ()
    posterior : dict
        For each observed mixture site the gradient of its log partition in its log-factors:
        responsibilities under "unary", agreement probabilities under "pair_weights".
    """
    total = jnp.asarray(0.0)
    posterior = {}
    for name, site in trace_model(problem, params, args).items():
        if site["type"] != "sample":
            continue
        fn, value = _linear(site), site["value"]
        if fn is not None:
            log_z, posterior[name] = jax.value_and_grad(_log_partition, argnums=1)(
                fn, _log_factors(fn, value)
            )
            total = total + log_z - _log_normalizer(fn)
        else:
            total = total + _log_prob(site)
    return total, posterior


def drawn(
    problem: Problem, params: dict[str, Array], args: tuple, rng_key: Array
) -> dict[str, Any]:
    """Labels drawn jointly given parameters and data, as the slopes whose mean `expectation` takes.

    With these in place of a posterior `linearised` is the log density of parameters, labels and
    data.
    """
    found = {}
    for name, site in trace_model(problem, params, args).items():
        fn = _linear(site) if site["type"] == "sample" else None
        if fn is not None:
            rng_key, key = jax.random.split(rng_key)
            found[name] = _drawn_slope(fn, site["value"], key)
    return found


def _drawn_slope(fn: dist.Distribution, value: Array, rng_key: Array) -> Any:
    if not isinstance(fn, LinkedMixture):
        joint = fn.component_log_probs(value)
        return jax.nn.one_hot(jax.random.categorical(rng_key, joint), joint.shape[-1])
    graph, num_clusters = fn.labels.graph, fn.labels.log_weights.shape[-1]
    labels = fn.sample_labels(rng_key, value)
    member = jax.nn.one_hot(labels, num_clusters)
    share = 1.0 if fn.labels.sampling == "points" else 1.0 / graph.node_size[graph.node][:, None]
    pairs = jnp.asarray(graph.pairs)
    agree = (labels[pairs[:, 0]] == labels[pairs[:, 1]]) & ~jnp.isinf(graph.pair_weights)
    return {
        "unary": member,
        "log_weights": (member * share).sum(axis=0),
        "pair_weights": agree.astype(member.dtype),
    }


def surrogate(
    problem: Problem, params: dict[str, Array], args: tuple, posterior: dict[str, Any]
) -> Array:
    """Q at `params`, up to a constant, for the posterior that `expectation` found."""
    return linearised(trace_model(problem, params, args), posterior)


def linearised(trace: dict[str, dict], posterior: dict[str, Any]) -> Array:
    """Q of a trace of the model."""
    total = jnp.asarray(0.0)
    for name, site in trace.items():
        if site["type"] != "sample":
            continue
        fn, value = _linear(site), site["value"]
        if fn is not None and name in posterior:
            total = total + _inner(posterior[name], _log_factors(fn, value)) - _log_normalizer(fn)
        else:
            total = total + _log_prob(site)
    return total


def allot(posterior: dict[str, Any], labels: Array) -> dict[str, Any]:
    """Give each point mostly to one cluster, in place of responsibilities of the first mixture.

    Parameters
    ----------
    posterior : dict
        As from `expectation`.
    labels : Array, shape (num_points,)
    """
    name = next(iter(posterior))
    slope, num_clusters = posterior[name], shares(posterior).shape[-1]
    # a share for every cluster keeps one that has few points from shrinking onto them
    share = 0.9 * jax.nn.one_hot(labels, num_clusters) + 0.1 / num_clusters
    if isinstance(slope, dict):
        return posterior | {name: slope | {"unary": share, "log_weights": share.sum(axis=0)}}
    return posterior | {name: share}


def shares(posterior: dict[str, Any]) -> Array:
    """Responsibilities of the first mixture, shape (num_points, num_clusters); (0, 0) without one."""
    if not posterior:
        return jnp.zeros((0, 0))
    slope = next(iter(posterior.values()))
    each = slope["unary"] if isinstance(slope, dict) else slope
    return each.reshape(-1, each.shape[-1])


def cluster_sizes(posterior: dict[str, Any]) -> Array:
    """Expected number of points in each cluster of the first mixture, shape (num_clusters,)."""
    slope = next(iter(posterior.values()), None)
    if isinstance(slope, dict) and "moments" in slope:
        return slope["moments"].total
    return shares(posterior).sum(axis=0)


def _linear(site: dict) -> dist.Distribution | None:
    """Mixture that EM linearises; a site under a scale is left as the density that it is."""
    plain = site["is_observed"] and site.get("scale") is None
    return as_mixture(site["fn"]) if plain else None


def _log_prob(site: dict) -> Array:
    total = jnp.sum(site["fn"].log_prob(site["value"]))
    return total if site.get("scale") is None else site["scale"] * total


def _inner(slope: Any, factors: Any) -> Array:
    def one(weight: Array, factor: Array) -> Array:
        used = weight != 0  # a state of probability zero may have a factor of zero
        return jnp.sum(jnp.where(used, weight * jnp.where(used, factor, 0.0), 0.0))

    return sum(jax.tree.leaves(jax.tree.map(one, slope, factors)), start=jnp.zeros(()))


def _log_factors(fn: dist.Distribution, value: Array) -> Any:
    return fn.log_factors(value) if isinstance(fn, LinkedMixture) else fn.component_log_probs(value)


def _log_partition(fn: dist.Distribution, factors: Any) -> Array:
    if isinstance(fn, LinkedMixture):
        return fn.log_partition(factors)
    return jax.nn.logsumexp(factors, axis=-1).sum()


def _log_normalizer(fn: dist.Distribution) -> Array:
    return fn.log_normalizer() if isinstance(fn, LinkedMixture) else jnp.asarray(0.0)
