r"""Passes over the data of a mixture with feature saliencies.

Rows are visited in chunks that stay in the processor's cache, with the rows along the last axis, and
clusters one after the other: no array of shape (num_points, num_clusters, num_features) is ever held.
Clusters that are not used are skipped, and so are features of saliency zero, eight at a time, which have
the same density in every cluster. Missing values, NaN, have a density of one, which sums them out exactly.

One logarithm is taken for eight features: :math:`\sum_l \log(1 + e^{-|s_l|})` is that of a product of
factors between one and two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

__all__ = [
    "Salient",
    "SalientMoments",
    "Used",
    "log_saliency",
    "salient_densities",
    "salient_moments",
]

_CHUNK = 2048
"""Rows visited at a time."""

_TOGETHER = 8
"""Features visited at a time."""

_NEVER = -1e30
"""Logarithm of a saliency of zero: a number, so that differences are numbers as well."""

_LOG_2PI = 1.8378770664093453


class Salient(NamedTuple):
    """Parameters of the features.

    Attributes
    ----------
    mean, variance : Array, shape (num_clusters, num_features)
        Of the density of a feature where it is relevant.
    common_mean, common_variance, saliency : Array, shape (num_features,)
        Of its density where it is not, and the probability that it is.
    """

    mean: Array
    variance: Array
    common_mean: Array
    common_variance: Array
    saliency: Array


class Used(NamedTuple):
    """Which clusters are used.

    Attributes
    ----------
    order : Array of int, shape (num_clusters,)
        Numbers of the clusters, those that are used first.
    number : int or Array
        How many are used.
    """

    order: Array
    number: Any


class SalientMoments(NamedTuple):
    """Expected statistics of the values of all features, about a given centre.

    Attributes
    ----------
    total, first, second : Array, shape (num_clusters + 1, num_features)
        Expected numbers of values, sums and sums of squares of their deviations from the centre: of
        values that are relevant by cluster, and of all others in the last row.
    certainty : Array, shape (num_features,)
        Sum over values and clusters of the squared probability that a value is relevant.
    """

    total: Array
    first: Array
    second: Array
    certainty: Array


def log_saliency(saliency: Array) -> tuple[Array, Array]:
    """Logarithms of a saliency and of its complement, which are numbers at zero and one as well."""
    inside = (saliency > 0) & (saliency < 1)
    held = jnp.where(inside, saliency, 0.5)
    log_on = jnp.where(inside, jnp.log(held), jnp.where(saliency > 0, 0.0, _NEVER))
    log_off = jnp.where(inside, jnp.log1p(-held), jnp.where(saliency < 1, 0.0, _NEVER))
    return log_on, log_off


def salient_densities(x: ArrayLike, given: Salient, used: Used | None = None) -> Array:
    r"""Log density of every row in every cluster, shape (num_clusters, num_points).

    .. math:: \log \prod_l [\rho_l \mathcal{N}(x_l | \mu_{kl}, \sigma^2_{kl})
              + (1 - \rho_l) \mathcal{N}(x_l | m_l, v_l)]

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    given : Salient
    used : Used, optional
        Clusters that are used, all by default; densities in the others are zero.
    """
    num_clusters = len(given.mean)
    order, number = _all(given) if used is None else used

    def visit(rows: _Rows) -> Array:
        def one(place: Any, found: Array) -> Array:
            def few(block: Any, total: Array) -> Array:
                log_on, gap = rows.compared(order[place], block)
                top = jnp.maximum(log_on, rows.log_off[block]).sum(axis=0)
                return total + top + jnp.log(jnp.prod(1.0 + gap, axis=0))

            return found.at[order[place]].set(lax.fori_loop(0, rows.number, few, rows.base()))

        blank = jnp.zeros((num_clusters, rows.value.shape[-1]), rows.value.dtype)
        return lax.fori_loop(0, number, one, blank)

    found, rest = _in_chunks(jnp.asarray(x), given, visit)
    joined = jnp.moveaxis(found, 0, 1).reshape(num_clusters, len(found) * _CHUNK)
    return jnp.concatenate([joined, rest], axis=1)


def salient_moments(
    x: ArrayLike, share: ArrayLike, given: Salient, about: ArrayLike, used: Used | None = None
) -> SalientMoments:
    """Expected statistics of the features given the shares of the rows in the clusters.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    share : array_like, shape (num_clusters, num_points)
        Responsibilities.
    given : Salient
        Current parameters, which say with which probability a value is relevant in a cluster.
    about : array_like, shape (num_features,)
        Centre of the moments.
    used : Used, optional
        Clusters that are used, all by default.
    """
    num_clusters = len(given.mean)
    order, number = _all(given) if used is None else used
    layout = _Layout.of(given.saliency)
    centre = layout.cut(jnp.asarray(about))[..., None]

    def visit(rows: _Rows) -> tuple[Array, Array]:
        deviation = (rows.value - centre) * rows.known
        powers = jnp.stack([rows.known, deviation, deviation**2], axis=1)

        def one(place: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
            def few(block: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
                found, others, certainty = state
                k = order[place]
                log_on, gap = rows.compared(k, block)
                relevant = jnp.where(log_on > rows.log_off[block], 1.0, gap) / (1.0 + gap)
                own = rows.share[k]
                return (
                    found.at[k, block].set((powers[block] * relevant) @ own),
                    others.at[block].add(own * (1.0 - relevant)),
                    certainty.at[block].add(own * relevant**2),
                )

            return lax.fori_loop(0, rows.number, few, state)

        # features of saliency zero are relevant nowhere
        skipped = jnp.arange(len(rows.value))[:, None, None] >= rows.number
        others = jnp.where(skipped, rows.share.sum(axis=0), jnp.zeros_like(rows.value))
        blank = jnp.zeros((num_clusters + 1, *powers.shape[:3]), rows.value.dtype)
        found, others, certainty = lax.fori_loop(
            0, number, one, (blank, others, jnp.zeros_like(others))
        )
        found = found.at[-1].set((powers * others[:, None]).sum(axis=-1))
        return found, (certainty * rows.known).sum(axis=-1)

    blocks, rest = _in_chunks(jnp.asarray(x), given, visit, jnp.asarray(share))
    found, certainty = (one.sum(axis=0) + two for one, two in zip(blocks, rest, strict=True))
    total, first, second = (layout.joined(found[:, :, part]) for part in range(3))
    return SalientMoments(total, first, second, layout.joined(certainty))


def _all(given: Salient) -> Used:
    return Used(jnp.arange(len(given.mean)), len(given.mean))


class _Layout(NamedTuple):
    """Features in blocks, those of saliency zero in the last ones, which are filled up."""

    order: Array
    back: Array
    number: Array

    @classmethod
    def of(cls, saliency: Array) -> _Layout:
        """Lay features out."""
        order = jnp.argsort(saliency <= 0, stable=True)
        active = (saliency > 0).sum()
        return cls(order, jnp.argsort(order), (active + _TOGETHER - 1) // _TOGETHER)

    def cut(self, values: Array, fill: float = 0.0) -> Array:
        """Values by feature (last axis) in blocks, shape (..., num_blocks, num_together)."""
        spare = [(0, 0)] * (values.ndim - 1) + [(0, -len(self.order) % _TOGETHER)]
        filled = jnp.pad(values[..., self.order], spare, constant_values=fill)
        return filled.reshape(*values.shape[:-1], -1, _TOGETHER)

    def joined(self, values: Array) -> Array:
        """Values in blocks (last two axes) by feature."""
        return values.reshape(*values.shape[:-2], -1)[..., self.back]


class _Rows(NamedTuple):
    """Some rows: arrays of shape (num_blocks, num_together, num_rows), and parameters in blocks."""

    number: Array
    value: Array
    known: Array
    share: Array
    log_off: Array
    log_on: Array
    mean: Array
    precision: Array
    constant: Array

    def base(self) -> Array:
        """Log density of the features that are skipped, shape (num_rows,)."""
        skipped = jnp.arange(len(self.value))[:, None, None] >= self.number
        return jnp.where(skipped, self.log_off, 0.0).sum(axis=(0, 1))

    def compared(self, k: Any, block: Any) -> tuple[Array, Array]:
        """Log densities of relevant values, and the lesser of both densities relative to the greater."""
        square = (self.value[block] - self.mean[k, block][:, None]) ** 2
        within = self.constant[k, block][:, None] - self.precision[k, block][:, None] * square
        log_on = self.log_on[block][:, None] + self.known[block] * within
        return log_on, jnp.exp(-jnp.abs(log_on - self.log_off[block]))


def _in_chunks(
    x: Array, given: Salient, visit: Callable[[_Rows], Any], share: Array | None = None
) -> tuple[Any, Any]:
    """What `visit` finds of every full chunk of rows, and of the remaining ones."""
    layout = _Layout.of(given.saliency)
    # features that fill blocks up are missing ones of saliency one half, whose density is one
    log_on, log_off = log_saliency(layout.cut(given.saliency, 0.5))
    mean, variance = layout.cut(given.mean), layout.cut(given.variance, 1.0)
    centre = layout.cut(given.common_mean)[..., None]
    width = layout.cut(given.common_variance, 1.0)[..., None]
    full = max(len(x) - 1, 0) // _CHUNK

    def at(rows: Array, own: Array) -> Array:
        known = ~jnp.isnan(rows)
        values = jnp.where(known, rows, 0.0)
        value, known = (
            jnp.moveaxis(layout.cut(part.astype(rows.dtype)), 0, -1) for part in (values, known)
        )
        outside = -0.5 * (_LOG_2PI + jnp.log(width) + (value - centre) ** 2 / width)
        off = log_off[..., None] + known * outside
        constant = -0.5 * (_LOG_2PI + jnp.log(variance))
        return visit(
            _Rows(layout.number, value, known, own, off, log_on, mean, 0.5 / variance, constant)
        )

    share = jnp.zeros((0, len(x)), x.dtype) if share is None else share
    rest = at(x[full * _CHUNK :], share[:, full * _CHUNK :])
    blocks = x[: full * _CHUNK].reshape(full, _CHUNK, x.shape[1])
    cut = share[:, : full * _CHUNK].reshape(len(share), full, _CHUNK)
    return lax.map(lambda both: at(*both), (blocks, jnp.moveaxis(cut, 1, 0))), rest
