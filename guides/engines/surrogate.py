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
from .density import is_mixture, trace_model

__all__ = ["expectation", "surrogate"]


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
        fn, value = site["fn"], site["value"]
        if site["is_observed"] and is_mixture(fn):
            log_z, posterior[name] = jax.value_and_grad(_log_partition, argnums=1)(
                fn, _log_factors(fn, value)
            )
            total = total + log_z - _log_normalizer(fn)
        else:
            total = total + jnp.sum(fn.log_prob(value))
    return total, posterior


def surrogate(
    problem: Problem, params: dict[str, Array], args: tuple, posterior: dict[str, Any]
) -> Array:
    """Q at `params`, up to a constant, for the posterior that `expectation` found."""
    total = jnp.asarray(0.0)
    for name, site in trace_model(problem, params, args).items():
        if site["type"] != "sample":
            continue
        fn, value = site["fn"], site["value"]
        if name in posterior:
            total = total + _inner(posterior[name], _log_factors(fn, value)) - _log_normalizer(fn)
        else:
            total = total + jnp.sum(fn.log_prob(value))
    return total


def _inner(slope: Any, factors: Any) -> Array:
    def one(weight: Array, factor: Array) -> Array:
        used = weight != 0  # a state of probability zero may have a factor of zero
        return jnp.sum(jnp.where(used, weight * jnp.where(used, factor, 0.0), 0.0))

    return sum(jax.tree.leaves(jax.tree.map(one, slope, factors)))


def _log_factors(fn: dist.Distribution, value: Array) -> Any:
    return fn.log_factors(value) if isinstance(fn, LinkedMixture) else fn.component_log_probs(value)


def _log_partition(fn: dist.Distribution, factors: Any) -> Array:
    if isinstance(fn, LinkedMixture):
        return fn.log_partition(factors)
    return jax.nn.logsumexp(factors, axis=-1).sum()


def _log_normalizer(fn: dist.Distribution) -> Array:
    return fn.log_normalizer() if isinstance(fn, LinkedMixture) else jnp.asarray(0.0)
