"""Densities of data rows under every component of a mixture, and draws of rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array

from ..row_shares import map_rows

__all__ = ["draw_rows", "row_log_densities", "varies_by_row"]

_ROWS = 1024
"""Rows of data whose densities are computed at a time; more would not fit a processor's cache."""


def varies_by_row(components: dist.Distribution) -> bool:
    """Whether components have parameters by row, so that a subset of the rows has no density."""
    return len(components.batch_shape) == 2


def row_log_densities(components: dist.Distribution, value: Array) -> Array:
    """Log density of each row under each component.

    Parameters
    ----------
    components : Distribution, batch_shape (num_components,) or (num_rows, num_components)
        For a `MixtureSameFamily`, densities are those of the components within each component.
    value : Array, shape (num_rows, ...)

    Returns
    -------
    Array, shape (num_rows, num_components), or (num_rows, num_components, num_within)
    """
    each = components
    if isinstance(components, dist.MixtureSameFamily):
        each = components.component_distribution
    if varies_by_row(components):  # parameters by row are not cut
        return _densities(value, each, len(each.batch_shape) - 1)
    return map_rows(_in_blocks, value, each)


def _densities(rows: Array, components: dist.Distribution, num_axes: int) -> Array:
    """Densities of rows under all components; `num_axes` is the number of batch axes of the components."""
    return components.log_prob(rows.reshape(len(rows), *(1,) * num_axes, *rows.shape[1:]))


def _in_blocks(value: Array, components: dist.Distribution) -> Array:
    """Densities of all rows, computed block by block."""

    def density(rows: Array) -> Array:
        return _densities(rows, components, len(components.batch_shape))

    full = max(len(value) - 1, 0) // _ROWS  # some rows are left for the last block
    found = density(value[full * _ROWS :])
    if full:  # no array of points by clusters by features, in gradients neither
        blocks = value[: full * _ROWS].reshape(full, _ROWS, *value.shape[1:])
        most = jax.lax.map(jax.checkpoint(density), blocks)
        found = jnp.concatenate([most.reshape(-1, *found.shape[1:]), found])
    return found


def draw_rows(
    key: Array, components: dist.Distribution, labels: Any, sample_shape: tuple[int, ...] = ()
) -> Array:
    """Draw rows given the component of each, of shape (*sample_shape, num_rows)."""
    shape = sample_shape if varies_by_row(components) else (*sample_shape, labels.shape[-1])
    drawn = components.sample(key, shape)
    index = labels.reshape(labels.shape + (1,) * (drawn.ndim - labels.ndim))
    return jnp.take_along_axis(drawn, index, axis=labels.ndim).squeeze(labels.ndim)
