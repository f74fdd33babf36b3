"""Layout of clusters and features for passes over the data: in groups, used ones first."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

__all__ = ["ABREAST", "Layout", "Places", "Used"]

TOGETHER = 4
"""Features visited at a time."""

ABREAST = 4
"""Clusters visited at a time: enough work for XLA to divide among cores."""


class Used(NamedTuple):
    """Order and number of the used clusters.

    Attributes
    ----------
    order : Array of int, shape (num_clusters,)
        Numbers of the clusters, used ones first.
    number : int or Array
        Number of used clusters.
    """

    order: Array
    number: Any


class Places(NamedTuple):
    """Clusters in groups, used ones first; the last group is padded."""

    order: Array
    used: Array
    size: int

    @classmethod
    def of(cls, size: int, used: Used | None) -> Places:
        """Lay clusters out."""
        order, number = Used(jnp.arange(size), size) if used is None else used
        filled = jnp.pad(order, (0, -size % ABREAST))
        return cls(filled, jnp.arange(len(filled)) < number, size)

    @property
    def most(self) -> int:
        """Number of groups."""
        return len(self.order) // ABREAST

    @property
    def number(self) -> Array:
        """Number of groups with a used cluster."""
        return -(-self.used.sum() // ABREAST)

    def cut(self, values: Array) -> Array:
        """Values by cluster (first axis) in groups, shape (num_groups, num_abreast, ...)."""
        return values[self.order].reshape(self.most, ABREAST, *values.shape[1:])

    def joined(self, values: Array) -> Array:
        """Values by cluster from values in groups; zero for unused clusters."""
        back = jnp.argsort(self.order[: self.size])
        flat = values.reshape(-1, *values.shape[2:])
        shown = self.used.reshape(-1, *(1,) * (flat.ndim - 1))
        return jnp.where(shown, flat, 0.0)[back]


class Layout(NamedTuple):
    """Features in blocks: those with saliency between its bounds, then with one, then with zero."""

    order: Array
    num_free: Array
    number: Array
    certain: Array
    nowhere: Array

    @classmethod
    def of(cls, saliency: Array) -> Layout:
        """Lay features out."""
        order = jnp.argsort(jnp.where(saliency <= 0, 2, saliency >= 1), stable=True)
        free = ((saliency > 0) & (saliency < 1)).sum()
        ends = -(-jnp.stack([free, (saliency > 0).sum()]) // TOGETHER)
        ranked = jnp.pad(saliency[order], (0, _spare(len(order))), constant_values=0.5)
        blocks = ranked.reshape(-1, TOGETHER)
        beyond = jnp.arange(len(blocks))[:, None] >= ends[0]
        return cls(order, ends[0], ends[1], beyond & (blocks >= 1), beyond & (blocks <= 0))

    @property
    def free(self) -> Array:
        """Whether each block has a feature with saliency between its bounds."""
        return jnp.arange(len(self.certain)) < self.num_free

    def cut(self, values: Array, fill: float = 0.0) -> Array:
        """Values by feature (last axis) in blocks, shape (..., num_blocks, num_together)."""
        spare = [(0, 0)] * (values.ndim - 1) + [(0, _spare(len(self.order)))]
        filled = jnp.pad(values[..., self.order], spare, constant_values=fill)
        return filled.reshape(*values.shape[:-1], -1, TOGETHER)

    def joined(self, values: Array) -> Array:
        """Values by feature from values in blocks (last two axes)."""
        return values.reshape(*values.shape[:-2], -1)[..., jnp.argsort(self.order)]


def _spare(size: int) -> int:
    """Number of padding features of blocks, at least one."""
    return max(size, 1) + -max(size, 1) % TOGETHER - size
