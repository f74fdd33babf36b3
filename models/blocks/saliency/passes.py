r"""Passes over the data of a mixture with feature saliencies.

Rows are visited in chunks that stay in the processor's cache, with rows along the last axis, and a
few clusters and features at a time. No array of shape (num_points, num_clusters, num_features) is
stored. Missing values, NaN, have a density of one, which sums them out exactly.

Unused clusters are skipped. So are features of saliency zero, which have the same density in every
cluster. Features of saliency one have no common density: their log densities and moments are matrix
products. For the others one logarithm serves many features: :math:`\sum_l \log(1 +
e^{-|s_l|})` is the log of a product of factors between one and two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ..visits import at_a_time
from .layout import ABREAST, Layout, Places, Used

__all__ = [
    "CHUNK",
    "Salient",
    "SalientMoments",
    "gains_at_bounds",
    "log_saliency",
    "salient_densities",
    "salient_moments",
]

CHUNK = 4096
"""Rows visited at a time on a processor."""

_UNDER_ONE_LOG = 24
"""Number of factors under one logarithm; two to this power is finite in 32 bits."""

_NEVER = -1e30
"""Logarithm of a saliency of zero: finite, so that differences are finite as well."""

_LOG_2PI = 1.8378770664093453


class Salient(NamedTuple):
    """Parameters of the features.

    Attributes
    ----------
    mean, variance : Array, shape (num_clusters, num_features)
        Parameters of the density of a feature if it is relevant.
    common_mean, common_variance, saliency : Array, shape (num_features,)
        Parameters of its density if it is not relevant, and the probability that it is.
    """

    mean: Array
    variance: Array
    common_mean: Array
    common_variance: Array
    saliency: Array


class SalientMoments(NamedTuple):
    """Expected statistics of the values of all features, about a given centre.

    Attributes
    ----------
    total, first, second : Array, shape (num_clusters + 1, num_features)
        Expected numbers of values, and sums and sums of squares of their deviations from the
        centre: those of relevant values by cluster, and those of all others in the last row.
    certainty : Array, shape (num_features,)
        Sum over values and clusters of the squared probability that a value is relevant.
    """

    total: Array
    first: Array
    second: Array
    certainty: Array

    @property
    def on(self) -> Array:
        """Expected numbers of relevant values."""
        return self.total[:-1].sum(axis=0)

    @property
    def off(self) -> Array:
        """Expected numbers of other values."""
        return self.total[-1]

    @classmethod
    def of_none(cls, num_clusters: int) -> SalientMoments:
        """Statistics of a table without columns."""
        nothing = jnp.zeros((num_clusters + 1, 0))
        return cls(nothing, nothing, nothing, nothing[0])

    @classmethod
    def of_drawn(cls, x: Array, share: Array, relevant: Array, about: Array) -> SalientMoments:
        """Statistics given drawn indicators of relevant values."""
        known = ~jnp.isnan(x)
        relevant = relevant & known
        deviation = jnp.where(known, x, about) - about
        powers = jnp.stack([jnp.ones_like(deviation), deviation, deviation**2])
        within = share @ (powers * relevant)
        common = (powers * (known & ~relevant)).sum(axis=1, keepdims=True)
        total, first, second = jnp.concatenate([within, common], axis=1)
        return cls(total, first, second, relevant.sum(axis=0))


def log_saliency(saliency: Array) -> tuple[Array, Array]:
    """Logarithms of a saliency and of its complement, which are finite at zero and one as well."""
    inside = (saliency > 0) & (saliency < 1)
    held = jnp.where(inside, saliency, 0.5)
    log_on = jnp.where(inside, jnp.log(held), jnp.where(saliency > 0, 0.0, _NEVER))
    log_off = jnp.where(inside, jnp.log1p(-held), jnp.where(saliency < 1, 0.0, _NEVER))
    return log_on, log_off


def gains_at_bounds(
    saliency: Array,
    within: Callable[[Array], Array],
    common: Array,
    alone: Array,
    log_share: Array,
    used: Used,
) -> Array:
    r"""Change of the log likelihood if one feature had a saliency of zero, or of one.

    .. math:: \sum_i \log \sum_j w_{ij} \frac{q^*(x_i)}{\rho p_j(x_i) + (1 - \rho) q(x_i)}

    and the same with :math:`p_j` for :math:`q^*`, with everything else held fixed. It is exact if
    no links tie rows.

    Parameters
    ----------
    saliency : Array, shape ()
        Saliency of the feature; at zero nothing is computed.
    within : callable
        Log densities of its values in a cluster, shape (num_points,).
    common, alone : Array, shape (num_points,)
        Log densities common to all clusters, at present and at a saliency of zero.
    log_share : Array, shape (num_clusters, num_points)
        Logarithms of the responsibilities.
    used : Used
        Used clusters; the others have no responsibilities.
    """
    log_on, log_off = log_saliency(saliency)

    def visit(number: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        top, total = state
        cluster = used.order[number]
        own = within(cluster)
        ratio = log_share[cluster] - jnp.logaddexp(log_on + own, log_off + common)
        new = jnp.stack([ratio, ratio + own])
        greatest = jnp.maximum(top, new)
        return greatest, total * jnp.exp(top - greatest) + jnp.exp(new - greatest)

    def visited() -> Array:
        start = jnp.full((2, len(common)), _NEVER, common.dtype), jnp.zeros((2, len(common)))
        top, total = lax.fori_loop(0, used.number, visit, start)
        return (jnp.log(total) + top).sum(axis=1).at[0].add(alone.sum())

    return lax.cond(saliency > 0, visited, lambda: jnp.zeros(2, common.dtype))


def salient_densities(x: ArrayLike, given: Salient, used: Used | None = None) -> Array:
    r"""Log density of every row in every cluster, shape (num_clusters, num_points).

    .. math:: \log \prod_l [\rho_l \mathcal{N}(x_l | \mu_{kl}, \sigma^2_{kl})
              + (1 - \rho_l) \mathcal{N}(x_l | m_l, v_l)]

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    given : Salient
    used : Used, optional
        Used clusters, all by default; densities in the others are zero.
    """
    return _densities(jnp.asarray(x), given, used, at_a_time(CHUNK))


@partial(jax.jit, static_argnums=3)
def _densities(value: Array, given: Salient, used: Used | None, chunk: int) -> Array:
    places = Places.of(len(given.mean), used)

    def visit(rows: _Rows, begin: Array, joint: Array) -> Array:
        num_free = rows.layout.num_free

        def some(group: Any, found: Array) -> Array:
            def few(block: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
                total, product = state
                log_on, gap = rows.compared(group, block)
                top = jnp.maximum(log_on, rows.log_off[block])
                return _over_lanes(jnp.add, total, top), _over_lanes(jnp.multiply, product, 1 + gap)

            def many(turn: Any, total: Array) -> Array:
                begin = turn * _UNDER_ONE_LOG
                end = jnp.minimum(begin + _UNDER_ONE_LOG, num_free)
                total, product = lax.fori_loop(begin, end, few, (total, jnp.ones_like(total)))
                return total + jnp.log(product)

            def certain(block: Any, total: Array) -> Array:
                return total + rows.quadratic(group, block)

            total = jnp.broadcast_to(rows.base(), (ABREAST, rows.value.shape[-1]))
            total = lax.fori_loop(0, -(-num_free // _UNDER_ONE_LOG), many, total)
            total = lax.fori_loop(num_free, rows.layout.number, certain, total)
            return found.at[group].set(total)

        shape = (places.most, ABREAST, rows.value.shape[-1])
        found = lax.fori_loop(0, places.number, some, jnp.zeros(shape, joint.dtype))
        return lax.dynamic_update_slice(joint, places.joined(found), (0, begin))

    blank = jnp.zeros((places.size, len(value)), jnp.result_type(value, given.mean))
    return _in_chunks(value, given, places, given.common_mean, visit, blank, chunk)


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
        Current parameters, which determine the probability that a value is relevant in a cluster.
    about : array_like, shape (num_features,)
        Centre of the moments.
    used : Used, optional
        Used clusters, all by default.
    """
    return _moments(
        jnp.asarray(x), jnp.asarray(share), given, jnp.asarray(about), used, at_a_time(CHUNK)
    )


@partial(jax.jit, static_argnums=5)
def _moments(
    value: Array, own: Array, given: Salient, about: Array, used: Used | None, chunk: int
) -> SalientMoments:
    places = Places.of(len(given.mean), used)

    def visit(rows: _Rows, begin: Array, before: tuple[Array, ...]) -> tuple[Array, ...]:
        return jax.tree.map(jnp.add, before, _visited_moments(rows, places))

    layout = Layout.of(given.saliency)
    size, real = layout.certain.shape, jnp.result_type(value, own, given.mean)
    shapes = (places.most, ABREAST, 3, *size), (3, *size), size
    none = tuple(jnp.zeros(shape, real) for shape in shapes)
    found, common, certainty = _in_chunks(value, given, places, about, visit, none, chunk, own)
    moments = layout.joined(jnp.concatenate([places.joined(found), common[None]]))
    total, first, second = (moments[:, power] for power in range(3))
    return SalientMoments(total, first, second, layout.joined(certainty))


def _visited_moments(rows: _Rows, places: Places) -> tuple[Array, Array, Array]:
    """Moments of relevant values by cluster, of the others, and `certainty`, of some rows."""
    layout = rows.layout

    def some(group: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        own = rows.share[group]

        def few(block: Any, state: tuple[Array, ...]) -> tuple[Array, Array, Array]:
            found, total, certainty = state
            log_on, gap = rows.compared(group, block)
            chance = jnp.where(log_on > rows.log_off[block], 1.0, gap) / (1.0 + gap)
            relevant, chance = lax.optimization_barrier((chance * own[:, None], chance))
            moments = jnp.einsum("lpr,klr->kpl", rows.powers[block], relevant)
            return (
                found.at[group, :, :, block].set(moments),
                total.at[block].add(relevant.sum(axis=0)),
                certainty.at[block].add((relevant * chance).sum(axis=0)),
            )

        def certain(block: Any, found: Array) -> Array:
            moments = jnp.einsum("lpr,kr->kpl", rows.powers[block], own)
            moments = jnp.where(layout.certain[block], moments, 0.0)
            return found.at[group, :, :, block].set(moments)

        found, total, certainty = lax.fori_loop(0, layout.num_free, few, state)
        found = lax.fori_loop(layout.num_free, layout.number, certain, found)
        return found, total, certainty

    blank = jnp.zeros_like(rows.value)
    shape = (places.most, ABREAST, 3, *blank.shape[:2])
    state = jnp.zeros(shape, blank.dtype), blank, blank
    found, relevant, certainty = lax.fori_loop(0, places.number, some, state)
    whole = rows.share.sum(axis=(0, 1))
    unvisited = jnp.where(layout.certain[..., None], whole, 0.0)
    free = layout.free[:, None, None]
    others = jnp.maximum(whole - jnp.where(free, relevant, unvisited), 0.0)
    certainty = jnp.where(free, certainty, unvisited) * rows.powers[:, :, 0]
    common = jnp.einsum("blpr,blr->pbl", rows.powers, others)
    return found, common, certainty.sum(axis=-1)


class _Rows(NamedTuple):
    """Some rows and all parameters.

    Rows are along the last axis, with shape (num_blocks, num_together, num_rows); `powers` has an
    axis of three before it. Parameters of clusters have the shape (num_groups, num_abreast,
    num_blocks, num_together).
    """

    layout: Layout
    value: Array
    powers: Array
    share: Array
    log_off: Array
    log_on: Array
    mean: Array
    precision: Array
    constant: Array
    about: Array

    def base(self) -> Array:
        """Log density of the features that are skipped, shape (num_rows,)."""
        return jnp.where(self.layout.nowhere[..., None], self.log_off, 0.0).sum(axis=(0, 1))

    def compared(self, group: Any, block: Any) -> tuple[Array, Array]:
        """Log densities of relevant values, and the ratio of the smaller to the larger density."""
        mean, precision, constant = (
            part[group, :, block][..., None] for part in (self.mean, self.precision, self.constant)
        )
        within = constant - precision * (self.value[block] - mean) ** 2
        log_on = self.log_on[block][:, None] + self.powers[block, :, 0] * within
        log_on = lax.optimization_barrier(log_on)  # else every use recomputes it
        return log_on, jnp.exp(-jnp.abs(log_on - self.log_off[block]))

    def quadratic(self, group: Any, block: Any) -> Array:
        """Log density of features of saliency one, shape (num_abreast, num_rows)."""
        mean, precision, constant = (
            part[group, :, block] for part in (self.mean, self.precision, self.constant)
        )
        shift = mean - self.about[block]
        terms = [constant - precision * shift**2, 2 * precision * shift, -precision]
        slopes = jnp.where(self.layout.certain[block][:, None], jnp.stack(terms, axis=-1), 0.0)
        return jnp.einsum("klp,lpr->kr", slopes, self.powers[block])


def _over_lanes(join: Callable[[Array, Array], Array], start: Array, values: Array) -> Array:
    """Join the few features of a block (axis 1) term by term; XLA's reductions do not vectorise."""
    return reduce(join, jnp.moveaxis(values, 1, 0), start)


def _in_chunks(
    x: Array,
    given: Salient,
    places: Places,
    about: Array,
    visit: Callable[[_Rows, Array, Any], Any],
    state: Any,
    chunk: int,
    share: Array | None = None,
) -> Any:
    """Visit all chunks of rows; the last chunk repeats rows of the previous one, with share zero."""
    layout = Layout.of(given.saliency)
    # padding features of blocks are missing with saliency one half, so that their density is one
    log_on, log_off = log_saliency(layout.cut(given.saliency, 0.5))
    mean, variance = places.cut(layout.cut(given.mean)), places.cut(layout.cut(given.variance, 1.0))
    common = layout.cut(given.common_mean)[..., None]
    width = layout.cut(given.common_variance, 1.0)[..., None]
    peak, precision = -0.5 * (_LOG_2PI + jnp.log(width)), 0.5 / width
    constant = -0.5 * (_LOG_2PI + jnp.log(variance))
    centre = layout.cut(about)
    size, once = min(chunk, len(x)), len(x) <= chunk
    none = jnp.zeros((places.size, 0), x.dtype)

    def at(number: Array, state: Any) -> Any:
        first = number * size
        begin = jnp.minimum(first, len(x) - size)
        rows = x if once else lax.dynamic_slice_in_dim(x, begin, size)
        new = begin + jnp.arange(size) >= first
        given_as = jnp.moveaxis(layout.cut(rows, jnp.nan), 0, -1)
        known = (~jnp.isnan(given_as)).astype(rows.dtype)
        value = jnp.where(known > 0, given_as, 0.0)
        deviation = (value - centre[..., None]) * known
        shown = none if share is None else share
        if share is not None and not once:
            shown = lax.dynamic_slice_in_dim(share, begin, size, axis=1) * new
        each = _Rows(
            layout=layout,
            value=value,
            powers=jnp.stack([known, deviation, deviation**2], axis=2),
            share=jnp.where(places.used.reshape(-1, ABREAST, 1), places.cut(shown), 0.0),
            log_off=log_off[..., None] + known * (peak - precision * (value - common) ** 2),
            log_on=log_on,
            mean=mean,
            precision=0.5 / variance,
            constant=constant,
            about=centre,
        )
        return visit(each, begin, state)

    return at(jnp.asarray(0), state) if once else lax.fori_loop(0, -(-len(x) // size), at, state)
