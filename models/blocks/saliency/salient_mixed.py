"""Density of rows of normal features, counts, categories and ordered levels with saliencies."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from jax.typing import ArrayLike

from ..visits import at_a_time
from .kinds import Columns, Kind
from .layout import Used
from .passes import CHUNK, Salient, SalientMoments, gains_at_bounds, log_saliency
from .salient_normal import SalientNormal

__all__ = ["MixedMoments", "SalientMixed"]


class MixedMoments(NamedTuple):
    """Expected statistics of a mixed table.

    Attributes
    ----------
    normal : SalientMoments
        Statistics of the normal features.
    kinds : tuple of Array, shape (num_clusters + 1, num_features, num_statistics)
        Statistics of relevant values by cluster, and of all others last; see `Kind.statistics`.
    on, off, certainty : Array, shape (num_features,)
        Expected numbers of relevant values and of others, and `SalientMoments.certainty`.
    """

    normal: SalientMoments
    kinds: tuple[Array, ...]
    on: Array
    off: Array
    certainty: Array


class SalientMixed(dist.Distribution):
    r"""`SalientNormal` for tables of which some features are counts, categories or ordered levels.

    Parameters
    ----------
    features : Salient
        Parameters of the normal features, but saliencies of all features, in the order of the
        table.
    params : tuple of (Array, Array)
        For each kind, the parameters in the clusters (first axis) and the common parameters.
    columns : Columns
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields: ClassVar[tuple[str, ...]] = ("features", "params")
    pytree_aux_fields: ClassVar[tuple[str, ...]] = ("columns",)
    support = SalientNormal.support

    def __init__(
        self,
        features: Salient,
        params: tuple[tuple[Array, Array], ...],
        columns: Columns,
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.features, self.params, self.columns = features, params, columns
        shape = features.mean.shape[:-1]
        super().__init__(shape, (columns.size,), validate_args=validate_args)

    @property
    def normal(self) -> SalientNormal:
        """Density of the normal features alone."""
        own = self.features.saliency[..., np.array(self.columns.normal, int)]
        return SalientNormal(self.features._replace(saliency=own))

    def _normal_values(self, value: ArrayLike) -> Array:
        return jnp.asarray(value)[..., np.array(self.columns.normal, int)]

    def _joint(
        self, kind: Kind, x: Array, known: ArrayLike, within: Array, common: Array
    ) -> tuple[Array, Array]:
        """Log joint probabilities of relevant values and of others, without `Kind.log_base`."""
        log_on, log_off = log_saliency(self.features.saliency[np.array(kind.columns)])
        on = log_on + jnp.where(known, kind.log_kernel(x, within), 0.0)
        return on, log_off + jnp.where(known, kind.log_kernel(x, common), 0.0)

    def log_prob(self, value: ArrayLike) -> Array:
        """Log density, with the broadcast shape of rows and clusters."""
        total = self.normal.log_prob(self._normal_values(value))
        for kind, (within, common) in zip(self.columns.kinds, self.params, strict=True):
            x, known = kind.of(jnp.asarray(value))
            base = jnp.where(known, kind.log_base(x), 0.0)
            joint = _log_sum(*self._joint(kind, x, known, within, common))
            total = total + (base + joint).sum(axis=-1)
        return total

    def relevance(self, value: Array, labels: Array) -> Array:
        """Probability that each value is relevant given the rows' clusters, with the shape of `value`."""
        parts: list[Array] = []
        for kind, (within, common) in zip(self.columns.kinds, self.params, strict=True):
            on, off = self._joint(kind, *kind.of(value), within[labels], common)
            parts.append(jax.nn.sigmoid(on - off))
        normal = self.normal.relevance(self._normal_values(value), labels)
        return self.columns.joined(normal, parts)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw a row of every cluster."""
        key_normal, *keys = jax.random.split(key, 1 + len(self.params))
        shape = (*sample_shape, *self.batch_shape)
        parts: list[Array] = []
        for one, kind, (within, common) in zip(keys, self.columns.kinds, self.params, strict=True):
            key_on, key_within, key_common = jax.random.split(one, 3)
            chance = self.features.saliency[np.array(kind.columns)]
            relevant = jax.random.uniform(key_on, (*shape, len(kind.columns))) < chance
            inside, outside = (
                kind.draw(own, jnp.broadcast_to(params, (*shape, *common.shape)))
                for own, params in ((key_within, within), (key_common, common))
            )
            parts.append(kind.decoded(jnp.where(relevant, inside, outside)))
        return self.columns.joined(self.normal.sample(key_normal, sample_shape), parts)

    def by_cluster(self, value: Array, used: Used | None = None) -> Array:
        """Log density of every row in every cluster, shape (num_clusters, num_points)."""
        total = jnp.zeros((*self.batch_shape, len(value)))
        if self.columns.normal:
            total = self.normal.by_cluster(self._normal_values(value), used)
        for kind, (within, common) in zip(self.columns.kinds, self.params, strict=True):
            total = total + self._of_rows(kind, value, within, common)
        return total

    def _of_rows(self, kind: Kind, value: Array, within: Array, common: Array) -> Array:
        """Log density of features of one kind, shape (num_clusters, num_points)."""

        def one(x: Array, known: ArrayLike, own: Array) -> Array:
            return _log_sum(*self._joint(kind, x, known, own, common))

        if not kind.levels:
            x, known = kind.of(value)
            base = jnp.where(known, kind.log_base(x), 0.0).sum(axis=-1)
            return base + lax.map(lambda own: one(x, known, own).sum(axis=-1), within)
        grid = kind.grid()
        levels = kind.log_base(grid) + jax.vmap(lambda own: one(grid, True, own))(within)

        def piece(rows: Array) -> Array:
            return jnp.einsum("kcd,ncd->kn", levels, kind.indicators(rows))

        found = lax.map(piece, _in_pieces(value))
        return jnp.moveaxis(found, 0, 1).reshape(len(levels), -1)[:, : len(value)]

    def moments(
        self, value: Array, share: Array, about: Array, used: Used | None = None
    ) -> MixedMoments:
        """Expected statistics given the shares of the rows in the clusters, (num_clusters, num_points)."""
        normal = SalientMoments.of_none(len(share))
        if self.columns.normal:
            normal = self.normal.moments(self._normal_values(value), share, about, used)
        found = [
            self._of_kind(kind, value, share, *params)
            for kind, params in zip(self.columns.kinds, self.params, strict=True)
        ]
        on, off, certainty = (
            self.columns.joined(own, parts)
            for own, parts in (
                (normal.on, [one[1] for one in found]),
                (normal.off, [one[2] for one in found]),
                (normal.certainty, [one[3] for one in found]),
            )
        )
        return MixedMoments(normal, tuple(one[0] for one in found), on, off, certainty)

    def _of_kind(
        self, kind: Kind, value: Array, share: Array, within: Array, common: Array
    ) -> tuple[Array, Array, Array, Array]:
        """Statistics, expected numbers of relevant values and of others, and certainty.

        All depend only on the values of a feature: levels are visited instead of rows.
        """
        x, known = (kind.grid(), jnp.ones(())) if kind.levels else kind.of(value)
        counts = _level_counts(kind, value, share) if kind.levels else share[:, :, None]

        def one(state: Any, cluster: tuple[Array, Array]) -> tuple[Any, Array]:
            params, own = cluster
            on, off = self._joint(kind, x, known, params, common)
            chance = jax.nn.sigmoid(on - off)
            relevant = own * known * chance
            total, certainty = state
            new = total + relevant, certainty + (relevant * chance).sum(axis=0)
            return new, kind.statistics(x, relevant)

        start = jnp.zeros_like(x), jnp.zeros(x.shape[-1], x.dtype)
        (total, certainty), statistics = lax.scan(one, start, (within, counts))
        others = jnp.maximum(counts.sum(axis=0) * known - total, 0.0)
        every = jnp.concatenate([statistics, kind.statistics(x, others)[None]])
        return every, total.sum(axis=0), others.sum(axis=0), certainty

    def at_bounds(
        self, value: Array, log_share: Array, alone: SalientMixed, used: Used
    ) -> tuple[Array, Array]:
        """Change of the log likelihood at a saliency of zero and of one, by feature; see `SalientNormal`."""
        table, parts = jnp.asarray(value), []
        for kind, (within, common), (_, other) in zip(
            self.columns.kinds, self.params, alone.params, strict=True
        ):
            x, known = kind.of(table)

            def gains(one: Any, kind: Kind = kind) -> Array:
                x, known, saliency, *params = one

                def log_prob(own: Array) -> Array:
                    return jnp.where(known, kind.log_prob(x[:, None], own[None])[:, 0], 0.0)

                inside, outside, apart = params
                return gains_at_bounds(
                    saliency,
                    lambda cluster: log_prob(inside[cluster]),
                    log_prob(outside),
                    log_prob(apart),
                    log_share,
                    used,
                )

            saliency = self.features.saliency[np.array(kind.columns)]
            rows = x.T, known.T, saliency, jnp.swapaxes(within, 0, 1), common, other
            parts.append(lax.map(gains, rows).T)
        normal = jnp.zeros(0), jnp.zeros(0)
        if self.columns.normal:
            values = self._normal_values(table)
            normal = self.normal.at_bounds(values, log_share, alone.normal, used)
        found = self.columns.joined(jnp.stack(normal), parts)
        return found[0], found[1]

    def drawn_moments(
        self, value: Array, share: Array, relevant: Array, about: Array
    ) -> MixedMoments:
        """Statistics given drawn indicators of relevant values."""
        columns = np.array(self.columns.normal, int)
        normal = SalientMoments.of_drawn(
            self._normal_values(value), share, relevant[:, columns], about
        )
        kinds = []
        for kind in self.columns.kinds:
            x, known = kind.of(value)
            own = relevant[:, np.array(kind.columns)] & known
            within = jax.vmap(lambda w, k=kind, x=x, own=own: k.statistics(x, w[:, None] * own))(
                share
            )
            kinds.append(jnp.concatenate([within, kind.statistics(x, 1.0 * (known & ~own))[None]]))
        known = ~jnp.isnan(value)
        on, off = (relevant & known).sum(axis=0), (~relevant & known).sum(axis=0)
        return MixedMoments(normal, tuple(kinds), on, off, on)


def _log_sum(one: Array, other: Array) -> Array:
    """`logaddexp` with a logarithm that processors vectorise."""
    return jnp.maximum(one, other) + jnp.log(1.0 + jnp.exp(-jnp.abs(one - other)))


def _level_counts(kind: Kind, value: Array, share: Array) -> Array:
    """Expected numbers of values by cluster and level, shape (num_clusters, num_codes, num_features)."""

    def piece(total: Array, rows: tuple[Array, Array]) -> tuple[Array, None]:
        values, own = rows
        return total + jnp.einsum("nk,ncd->kcd", own, kind.indicators(values)), None

    none = jnp.zeros((len(share), *kind.grid().shape), share.dtype)
    return lax.scan(piece, none, (_in_pieces(value), _in_pieces(share.T, 0.0)))[0]


def _in_pieces(rows: Array, blank: float = jnp.nan) -> Array:
    """Rows in pieces of at most `CHUNK`, shape (num_pieces, num_rows, ...), padded with blank rows."""
    size = min(at_a_time(CHUNK), len(rows))
    filled = jnp.pad(rows, ((0, -len(rows) % size), (0, 0)), constant_values=blank)
    return filled.reshape(-1, size, rows.shape[-1])
