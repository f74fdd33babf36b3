"""Sums over one label, in log space: alone, and under an equality potential in O(K)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

__all__ = ["BEST", "DRAW", "FORBIDDEN", "SUM", "Reduce", "logsumexp", "potts_message"]

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
    return _message_forward(belief, weight)[0]


def _message_forward(belief: Array, weight: Array):
    lowest = jnp.finfo(belief.dtype).min
    top = jnp.argmax(belief, axis=1)[:, None] == np.arange(belief.shape[1])
    peak = jnp.where(top, belief, 0.0).sum(axis=1, keepdims=True)  # `max` splits slopes at ties
    rest = jnp.where(top, lowest, belief)
    second = lax.stop_gradient(rest.max(axis=1, keepdims=True))
    scaled = jnp.where(top, 0.0, jnp.exp(rest - second))
    ratio = jnp.exp(second - peak)
    # label l against all others: relative to the runner-up for the top label, else to the top
    total = scaled.sum(axis=1, keepdims=True)
    others = jnp.where(top, total, 1.0 + ratio * (total - scaled))
    base = jnp.where(top, second, peak)
    own = weight[:, None] + belief
    agrees = own > base
    small = jnp.exp(jnp.where(agrees, base - own, own - base))
    norm = jnp.where(agrees, 1.0 + others * small, others + small)
    message = jnp.where(agrees, own, base) + jnp.log(norm)
    same = jnp.where(agrees, 1.0, small) / norm
    differ = jnp.where(agrees, small, 1.0) / norm
    return message, (same, differ, scaled, ratio, top)


def _message_backward(saved, cotangent: Array):
    # P(child = l | parent = l) is `same`; of another k it is `differ` times e^{u_k}, in the units
    # of `others`. Sums of what is not negative are never below a term: no sign can turn.
    same, differ, scaled, ratio, top = saved
    same = cotangent * same
    differ = cotangent * differ
    from_top = jnp.where(top, differ, 0.0).sum(axis=1, keepdims=True)
    from_rest = jnp.where(top, 0.0, differ)
    total = from_rest.sum(axis=1, keepdims=True)
    other = scaled * (from_top + ratio * (total - from_rest))
    return same + jnp.where(top, total, other), same.sum(axis=1)


potts_message.defvjp(_message_forward, _message_backward)


@dataclass(frozen=True)
class Reduce:
    """What becomes of the last axis of a table of log-potentials, and the slope of that.

    Attributes
    ----------
    name : {"sum", "best", "draw"}
        The slope is the distribution of the label, its mode, or a draw from it. Differentiated from
        the last sum back, the slopes are then marginals, a joint mode, or a joint draw.
    """

    name: str

    def value(self, table: Array) -> Array:
        """Log-sum-exp, or the maximum."""
        return table.max(axis=-1) if self.name == "best" else logsumexp(table)

    def share(self, table: Array, value: Array, noise: Array | None) -> Array:
        """Slope of `value` in `table`; `noise` holds a uniform number for each table that is drawn."""
        labels = np.arange(table.shape[-1])
        if self.name == "best":
            return (jnp.argmax(table, axis=-1)[..., None] == labels).astype(table.dtype)
        prob = jnp.exp(table - value[..., None])
        if self.name == "sum":
            return prob
        assert noise is not None
        below = jnp.cumsum(prob, axis=-1)
        label = (below < noise[..., None] * below[..., -1:]).sum(axis=-1)
        return (label[..., None] == labels).astype(table.dtype)

    def __call__(self, table: Array, noise: Array | None) -> Array:
        """Reduce the last axis; differentiated by `share`."""
        return _reduce(self, table, noise)


SUM, BEST, DRAW = Reduce("sum"), Reduce("best"), Reduce("draw")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _reduce(reduce: Reduce, table: Array, noise: Array | None) -> Array:
    return reduce.value(table)


def _reduce_forward(reduce: Reduce, table: Array, noise: Array | None):
    value = reduce.value(table)
    return value, (table, value, noise)


def _reduce_backward(reduce: Reduce, saved, cotangent: Array):
    return cotangent[..., None] * reduce.share(*saved), None


_reduce.defvjp(_reduce_forward, _reduce_backward)
