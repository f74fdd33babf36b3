"""Sums over one label under an equality potential, in log space and in O(K)."""

from __future__ import annotations

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


def potts_message(belief: Array, weight: Array) -> Array:
    r"""Sum out a label: :math:`\log\sum_k e^{u_k + w [k = l]}` for every l.

    The sum over the other labels is formed without subtraction and, for the likeliest label,
    relative to the runner-up, so that nothing cancels or underflows.

    Parameters
    ----------
    belief : Array, shape (rows, num_clusters)
    weight : Array, shape (rows,)

    Returns
    -------
    Array, shape (rows, num_clusters)
    """
    labels = np.arange(belief.shape[1])
    top = jnp.argmax(belief, axis=1)[:, None] == labels
    peak = lax.stop_gradient(belief.max(axis=1, keepdims=True))
    off_diagonal = jnp.asarray(labels[:, None] != labels, belief.dtype)
    others = jnp.exp(belief - peak) @ off_diagonal
    runner_up = logsumexp(jnp.where(top, FORBIDDEN, belief))[:, None]
    log_others = jnp.where(top, runner_up, peak + jnp.log(jnp.where(top, 1.0, others)))
    return jnp.logaddexp(log_others, weight[:, None] + belief)
