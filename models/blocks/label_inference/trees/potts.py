"""Sums over one label, in log space: alone, and under an equality potential in O(K)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

__all__ = [
    "BEST",
    "DRAW",
    "FORBIDDEN",
    "SUM",
    "Reduce",
    "logsumexp",
    "message_and_sum",
    "potts_message",
    "reduced_message",
]

FORBIDDEN = -1e30
"""Log-potential of impossible events: finite, so that gradients stay finite."""


def logsumexp(table: Array) -> Array:
    """Logarithm of the sum of exponentials over the last axis; entries must not be infinite."""
    peak = lax.stop_gradient(table.max(axis=-1))
    return peak + jnp.log(jnp.exp(table - peak[..., None]).sum(axis=-1))


@jax.custom_vjp
def potts_message(belief: Array, weight: Array) -> Array:
    r"""Sum out a label: :math:`m_l = \log\sum_k e^{u_k + w [k = l]}` for every l, in O(K).

    Nothing cancels or underflows, however large the weights and the gaps between potentials,
    because for the likeliest label the others are summed relative to the runner-up.

    Parameters
    ----------
    belief : Array, shape (rows, num_clusters)
    weight : Array, shape (rows,)

    Returns
    -------
    Array, shape (rows, num_clusters)
    """
    return _rows_forward(belief, weight)[0]


def _rows_forward(belief: Array, weight: Array):
    message, saved = _message(belief.T, weight)
    return message.T, saved


def _rows_backward(saved: _Saved, cotangent: Array):
    slope, weight_slope = _slopes(saved, cotangent.T)
    return slope.T, weight_slope


potts_message.defvjp(_rows_forward, _rows_backward)


@jax.custom_vjp
def message_and_sum(belief: Array, weight: Array) -> tuple[Array, Array]:
    """`potts_message` with labels along the first axis, and the log of the sum of exponentials over it.

    Parameters
    ----------
    belief : Array, shape (num_clusters, ...)
    weight : Array, shape (...,)

    Returns
    -------
    message : Array, shape (num_clusters, ...)
    total : Array, shape (...,)
    """
    return _both_forward(belief, weight)[0]


def _both_forward(belief: Array, weight: Array):
    message, saved = _message(belief, weight)
    whole = 1.0 + saved.ratio * saved.scaled.sum(axis=0)
    return (message, saved.peak + jnp.log(whole)), (saved, whole)


def _both_backward(kept: tuple[_Saved, Array], cotangents: tuple[Array, Array]):
    saved, whole = kept
    slope, weight_slope = _slopes(saved, cotangents[0])
    share = jnp.where(saved.top, 1.0, saved.ratio * saved.scaled) * (cotangents[1] / whole)
    return slope + share, weight_slope


message_and_sum.defvjp(_both_forward, _both_backward)


class _Saved(NamedTuple):
    """Values from which gradients of a message are computed, with labels along the first axis.

    P(child = l | parent = l) is `same`; of another k it is `differ` times e^{u_k}, in the units of
    `scaled`: those of the runner-up, which is `ratio` of the likeliest label, `top`, at `peak`.
    """

    same: Array
    differ: Array
    scaled: Array
    ratio: Array
    top: Array
    peak: Array


def _message(belief: Array, weight: Array) -> tuple[Array, _Saved]:
    """Messages, labels along the first axis."""
    lowest = jnp.finfo(belief.dtype).min
    peak, top = _highest(belief)
    rest = jnp.where(top, lowest, belief)
    second = lax.stop_gradient(rest.max(axis=0))
    scaled = jnp.where(top, 0.0, jnp.exp(rest - second))
    ratio = jnp.exp(second - peak)
    # label l against all others: relative to the runner-up for the top label, else to the top
    total = scaled.sum(axis=0)
    others = jnp.where(top, total, 1.0 + ratio * (total - scaled))
    base = jnp.where(top, second, peak)
    own = weight + belief
    gap = own - base
    agrees = gap > 0
    small = jnp.exp(jnp.where(agrees, -gap, gap))
    norm = jnp.where(agrees, 1.0 + others * small, others + small)
    message = jnp.where(agrees, own, base) + jnp.log(norm)
    inverse = 1.0 / norm
    same = jnp.where(agrees, inverse, small * inverse)
    differ = jnp.where(agrees, small * inverse, inverse)
    return message, _Saved(same, differ, scaled, ratio, top, peak)


@jax.custom_jvp
def _highest(belief: Array) -> tuple[Array, Array]:
    """Maximum over the first axis, and an indicator of its place (the first one if there are ties)."""
    number = np.arange(len(belief), dtype=np.int32).reshape(-1, *[1] * (belief.ndim - 1))
    peak = belief.max(axis=0)
    # `argmax` is not a vector instruction on a processor
    first = jnp.where(belief == peak, number, np.int32(len(belief))).min(axis=0)
    return peak, first == number


@_highest.defjvp
def _highest_jvp(primals: tuple[Array], tangents: tuple[Array]):
    peak, top = _highest(*primals)  # the slope of `max` is split at ties
    moved = jnp.where(top, tangents[0], 0.0).sum(axis=0)
    return (peak, top), (moved, np.zeros(top.shape, jax.dtypes.float0))


def _slopes(saved: _Saved, cotangent: Array) -> tuple[Array, Array]:
    """Gradients in potentials and weights, as sums of non-negative terms, so that no sign can change."""
    same, differ = cotangent * saved.same, cotangent * saved.differ
    from_top = jnp.where(saved.top, differ, 0.0).sum(axis=0)
    from_rest = jnp.where(saved.top, 0.0, differ)
    total = from_rest.sum(axis=0)
    other = saved.scaled * (from_top + saved.ratio * (total - from_rest))
    return same + jnp.where(saved.top, total, other), same.sum(axis=0)


@dataclass(frozen=True)
class Reduce:
    """Reduction of the last axis of a table of log-potentials, with its gradient.

    Attributes
    ----------
    name : {"sum", "best", "draw"}
        The gradient is the distribution of the label, its mode, or a draw from it. Reverse
        differentiation from the last sum then gives marginals, a joint mode, or a joint draw.
    """

    name: str

    def value(self, table: Array) -> Array:
        """Log-sum-exp, or the maximum."""
        return table.max(axis=-1) if self.name == "best" else logsumexp(table)

    def share(self, table: Array, value: Array, noise: Array | None) -> Array:
        """Gradient of `value` in `table`; `noise` holds a uniform number for each drawn label."""
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
        """Reduce the last axis; the derivative is `share`."""
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


def reduced_message(reduce: Reduce, belief: Array, weight: Array, noise: Array | None) -> Array:
    """Message of each row to its parent, for any reduction of the label; see `potts_message`."""
    if reduce is SUM:
        return potts_message(belief, weight)
    equal = np.eye(belief.shape[1], dtype=bool)
    table = belief[:, None, :] + jnp.where(equal, weight[:, None, None], 0.0)
    return reduce(table, None if noise is None else jnp.broadcast_to(noise[:, None], belief.shape))
