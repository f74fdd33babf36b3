"""Density of rows of normal features, counts, categories and ordered levels, each relevant or not."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from jax.typing import ArrayLike

from .kinds import Columns, Kind
from .layout import Used
from .passes import Salient, SalientMoments, gains_at_bounds, log_saliency
from .salient_normal import SalientNormal

__all__ = ["MixedMoments", "SalientMixed"]


class MixedMoments(NamedTuple):
    """Expected statistics of a mixed table.

    Attributes
    ----------
    normal : SalientMoments
        Of its normal features.
    kinds : tuple of Array, shape (num_clusters + 1, num_features, num_statistics)
        Of relevant values by cluster, and of all others last; see `Kind.statistics`.
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
        Of the normal features; but saliencies are those of all features, in the order of the table.
    params : tuple of (Array, Array)
        For each kind its parameters in the clusters (first axis), and common to them.
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

    def _compared(
        self, kind: Kind, value: Array, within: Array, common: Array
    ) -> tuple[Array, Array, Array]:
        """Log joint probabilities of relevant values and of others, and which are known."""
        x, known = kind.of(value)
        log_on, log_off = log_saliency(self.features.saliency[np.array(kind.columns)])
        on = log_on + jnp.where(known, kind.log_prob(x, within), 0.0)
        return on, log_off + jnp.where(known, kind.log_prob(x, common), 0.0), known

    def log_prob(self, value: ArrayLike) -> Array:
        """Log density, of the broadcast shape of rows and clusters."""
        total = self.normal.log_prob(self._normal_values(value))
        for kind, (within, common) in zip(self.columns.kinds, self.params, strict=True):
            on, off, _ = self._compared(kind, jnp.asarray(value), within, common)
            total = total + jnp.logaddexp(on, off).sum(axis=-1)
        return total

    def relevance(self, value: Array, labels: Array) -> Array:
        """Probability that each value is relevant given the clusters of the rows, of the shape of `value`."""
        parts: list[Array] = []
        for kind, (within, common) in zip(self.columns.kinds, self.params, strict=True):
            on, off, _ = self._compared(kind, value, within[labels], common)
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

            def one(own: Array, kind: Kind = kind, common: Array = common) -> Array:
                on, off, _ = self._compared(kind, value, own, common)
                return jnp.logaddexp(on, off).sum(axis=-1)

            total = total + lax.map(one, within)
        return total

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
        x, known = kind.of(value)

        def one(state: Any, cluster: tuple[Array, Array]) -> tuple[Any, Array]:
            params, own = cluster
            on, off, _ = self._compared(kind, value, params, common)
            chance = jax.nn.sigmoid(on - off)
            relevant = own[:, None] * known * chance
            total, certainty = state
            new = total + relevant, certainty + (relevant * chance).sum(axis=0)
            return new, kind.statistics(x, relevant)

        start = jnp.zeros_like(x), jnp.zeros(x.shape[-1], x.dtype)
        (total, certainty), statistics = lax.scan(one, start, (within, share))
        others = jnp.maximum(share.sum(axis=0)[:, None] * known - total, 0.0)
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
        """Statistics where it was drawn which values are relevant."""
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
