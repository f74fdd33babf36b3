"""Ways to sum a label out: log-sum-exp, maximum, and log-sum-exp whose slope is a drawn label."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .potts import logsumexp

__all__ = ["BEST", "DRAW", "SUM", "Reduce"]


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


def _forward(reduce: Reduce, table: Array, noise: Array | None):
    value = reduce.value(table)
    return value, (table, value, noise)


def _backward(reduce: Reduce, saved, cotangent: Array):
    return cotangent[..., None] * reduce.share(*saved), None


_reduce.defvjp(_forward, _backward)
