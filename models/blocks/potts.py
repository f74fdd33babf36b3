"""Sums over one label under an equality potential, in log space and in O(K)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

__all__ = ["FORBIDDEN", "logsumexp", "potts_message"]

FORBIDDEN = -1e30
"""Log-potential of what cannot be: finite, so that gradients stay finite."""


def logsumexp(table: Array) -> Array:
    """Logarithm of the sum of exponentials over the last axis; entries must not be infinite."""
    peak = lax.stop_gradient(table.max(axis=-1))
    return peak + jnp.log(jnp.exp(table - peak[..., None]).sum(axis=-1))


@jax.custom_vjp
def potts_message(belief: Array, weight: Array) -> Array:
    r"""Sum out a label: :math:`m_l = \log\sum_k e^{u_k + w [k = l]}` for every l, in O(K).

    Nothing cancels or underflows, however large the weights and the gaps between the potentials:
    for the likeliest label the others are summed relative to the runner-up.

    Parameters
    ----------
    belief : Array, shape (rows, num_clusters)
    weight : Array, shape (rows,)

    Returns
    -------
    Array, shape (rows, num_clusters)
    """
    return _forward(belief, weight)[0]


def _forward(belief: Array, weight: Array):
    labels = np.arange(belief.shape[1])
    top = jnp.argmax(belief, axis=1)[:, None] == labels
    peak = belief.max(axis=1)
    scaled = jnp.exp(belief - peak[:, None])
    rest = jnp.where(top, FORBIDDEN, belief)
    second = rest.max(axis=1)
    scaled_rest = jnp.exp(rest - second[:, None])
    at_top = jnp.logaddexp(second + jnp.log(scaled_rest.sum(axis=1)), weight + peak)
    # elsewhere the likeliest label is among the others, whose sum is at least one
    others = scaled.sum(axis=1, keepdims=True) - scaled
    safe = -jnp.log(jnp.finfo(belief.dtype).tiny) - 8.0
    elsewhere = lax.cond(jnp.any(weight > safe), _in_logs, _scaled, others, scaled, belief, weight)
    message = jnp.where(top, at_top[:, None], elsewhere)
    return message, (belief, weight, message)


def _scaled(others: Array, scaled: Array, belief: Array, weight: Array) -> Array:
    positive = jnp.maximum(weight, 0.0)
    total = scaled * jnp.exp(weight - positive)[:, None] + others * jnp.exp(-positive)[:, None]
    return jnp.log(total) + (belief.max(axis=1) + positive)[:, None]


def _in_logs(others: Array, scaled: Array, belief: Array, weight: Array) -> Array:
    others = belief.max(axis=1, keepdims=True) + jnp.log(others)
    return jnp.logaddexp(others, weight[:, None] + belief)


def _backward(saved, cotangent: Array):
    belief, weight, message = saved
    labels = np.arange(belief.shape[1])
    off_diagonal = jnp.asarray(labels[:, None] != labels, belief.dtype)
    top = jnp.argmax(belief, axis=1)[:, None] == labels
    peak = belief.max(axis=1, keepdims=True)
    same = cotangent * jnp.exp(weight[:, None] + belief - message)
    # P(child = k | parent = l), l and k different: for l the top label relative to the runner-up
    from_others = jnp.where(top, 0.0, cotangent * jnp.exp(peak - message)) @ off_diagonal
    at_top = jnp.where(top, message, 0.0).sum(axis=1, keepdims=True)
    from_top = jnp.where(top, cotangent, 0.0).sum(axis=1, keepdims=True)
    differ = from_others * jnp.exp(belief - peak)
    differ = differ + jnp.where(top, 0.0, from_top * jnp.exp(belief - at_top))
    return same + differ, same.sum(axis=1)


potts_message.defvjp(_forward, _backward)
