"""NumPyro distribution over data whose labels are tied by links."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import constraints

from ..collapsed import Collapsed, Fitted
from ..label_inference import partition
from ..side_information.partial_labels import Groups
from .linked_categorical import LinkedCategorical

__all__ = ["LinkedMixture"]

_ROWS = 1024
"""Rows of data whose densities are computed at a time; more would leave a processor's cache."""


class LinkedMixture(Collapsed):
    r"""Data of all points, with their linked labels summed out.

    .. math:: \log p(x) = \log \sum_z \prod_i \pi_{z_i} p(x_i | \theta_{z_i})
              \prod_{(i,j)} e^{w_{ij}[z_i = z_j]} - \log\Omega

    (Lu 2008, eq. 2.14). The value holds all points: its event shape is ``(num_points, ...)``.

    Parameters
    ----------
    labels : LinkedCategorical
    components : Distribution, batch_shape (num_clusters,) or (num_rows, num_clusters)
        Density of a row in each cluster, the same for all rows or with parameters of its own. Where
        it is a `MixtureSameFamily`, the components of the clusters are latent as well, and have
        factors of their own.
    evidence : Array, shape (num_points, num_clusters), optional
        Further log-factors of the labels, such as log-probabilities of known classes.
    groups : Groups, optional
        The point, of several rows each, that a row of the data belongs to: all its rows have its
        label. Without groups every point is one row.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields: ClassVar[tuple[str, ...]] = ("labels", "components", "evidence", "groups")
    latent = "labels"

    def __init__(
        self,
        labels: LinkedCategorical,
        components: dist.Distribution,
        evidence: Array | None = None,
        groups: Groups | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(labels, LinkedCategorical) or not isinstance(
            components, dist.Distribution
        ):
            raise TypeError(
                f"labels is a {type(labels).__name__} and components a {type(components).__name__}; "
                "expected a LinkedCategorical and a NumPyro distribution"
            )
        num_clusters = labels.log_weights.shape[-1]
        points = labels.graph.num_points
        rows = points if groups is None else len(groups)
        if components.batch_shape not in ((num_clusters,), (rows, num_clusters)):
            raise ValueError(
                f"components have batch shape {components.batch_shape}; expected ({num_clusters},), one "
                f"per mixing weight, or ({rows}, {num_clusters}), one per row and mixing weight"
            )
        if groups is not None and groups.num_groups != points:
            raise ValueError(
                f"groups has {groups.num_groups} groups, and there are labels for {points} points; links "
                "join groups, one label each"
            )
        if evidence is not None and jnp.shape(evidence) != (points, num_clusters):
            raise ValueError(
                f"evidence has shape {jnp.shape(evidence)}; expected {(points, num_clusters)}, a "
                "log-factor per point and cluster"
            )
        self.labels, self.components = labels, components
        self.evidence, self.groups = evidence, groups
        super().__init__(event_shape=(rows, *components.event_shape), validate_args=validate_args)

    @property
    def num_clusters(self) -> int:
        """Number of clusters."""
        return self.labels.log_weights.shape[-1]

    @property
    def num_units(self) -> int:  # type: ignore[override]
        """Number of connected sets of points."""
        return self.labels.graph.num_connected_sets

    @property
    def is_density(self) -> bool:  # type: ignore[override]
        """Whether the components are densities of the data, not probabilities of classes."""
        return getattr(self.components, "is_density", True)

    @property
    def support(self) -> constraints.Constraint:
        """Support of the components, one row per point."""
        return constraints.independent(self.components.support, 1)

    @property
    def varies_by_row(self) -> bool:
        """Whether densities have parameters of each row, so that some rows alone have none."""
        return len(self.components.batch_shape) == 2

    @property
    def _nested(self) -> bool:
        """Whether clusters are mixtures themselves."""
        return isinstance(self.components, dist.MixtureSameFamily)

    def log_factors(self, value: Array) -> dict[str, Array]:
        """Log-factors that couple data, labels and links.

        Returns
        -------
        dict
            ``unary`` (num_points, num_clusters), without mixing weights; ``log_weights``
            (num_clusters,), or one row per point; ``pair_weights`` (num_links,). Where clusters are
            mixtures, ``unary`` has an axis of components, and ``log_within``
            (num_clusters, num_components) are their log weights. ``evidence``, where there is some.
        """
        by_row = self.varies_by_row
        # some rows are left for the last block; parameters by row are not cut
        full = 0 if by_row else max(len(value) - 1, 0) // _ROWS
        component: Any = self.components
        each = component.component_distribution if self._nested else component

        def density(rows: Array) -> Array:
            own = len(each.batch_shape) - (1 if by_row else 0)
            return each.log_prob(rows.reshape(len(rows), *(1,) * own, *rows.shape[1:]))

        unary = density(value[full * _ROWS :])
        if full:  # no array of points by clusters by features, in gradients neither
            blocks = value[: full * _ROWS].reshape(full, _ROWS, *value.shape[1:])
            most = jax.lax.map(jax.checkpoint(density), blocks)
            unary = jnp.concatenate([most.reshape(-1, *unary.shape[1:]), unary])
        factors = {"unary": unary, **self._label_factors_of_links()}
        if self._nested:
            factors["log_within"] = jnp.log(component.mixing_distribution.probs)
        return factors

    def _label_factors_of_links(self) -> dict[str, Array]:
        """Log-factors that do not depend on the data."""
        factors = {
            "log_weights": self.labels.log_weights,
            "pair_weights": jnp.asarray(self.labels.pair_weights),
        }
        return factors if self.evidence is None else factors | {"evidence": self.evidence}

    def label_factors(self, factors: dict[str, Array]) -> Array:
        """Log-factors of the labels alone, shape (num_points, num_clusters)."""
        unary = factors["unary"]
        if "log_within" in factors:
            unary = jax.nn.logsumexp(unary + factors["log_within"], axis=-1)
        if self.groups is not None:
            unary = jax.ops.segment_sum(unary, self.groups.codes, self.groups.num_groups)
        return unary + factors["evidence"] if "evidence" in factors else unary

    def among(
        self, labels: LinkedCategorical, points: Any = slice(None), groups: Groups | None = None
    ) -> LinkedMixture:
        """The same law for some of the points, whose labels are tied by other links."""
        known = None if self.evidence is None else self.evidence[points]
        return LinkedMixture(labels, self.components, known, groups)

    def side_factors(self) -> Array | None:
        """Log-factors of the labels besides data and links, None without any."""
        return self.evidence

    @property
    def has_side_evidence(self) -> bool:
        """Whether points have log-factors of their labels besides their density."""
        return self.evidence is not None

    def class_statements(self) -> tuple[Array, Array] | None:
        """Statements about classes of the points, for `gaussian_pass`; None without any."""
        return None

    def log_partition(self, factors: dict[str, Array]) -> Array:
        """Sum of the factors over all joint labelings, in logs."""
        return self._from_factors(partition.log_partition, factors)

    def approximation(self) -> str | None:
        """Name what is approximate in `log_prob`, None where it is exact; see `check_inference`."""
        labels = self.labels
        return partition.check_inference(
            labels.graph, labels.log_weights.shape[-1], labels.inference
        )

    @property
    def has_curvature(self) -> bool:
        """Whether `log_prob` can be differentiated twice; sums by fixed points can once."""
        return self.approximation() is None

    @property
    def sums_loops(self) -> bool | Array:
        """See `LabelGraph.sums_loops`."""
        graph = self.labels.graph.suited(self.labels.inference, self.num_clusters)
        return graph.sums_loops

    @property
    def has_free_weights(self) -> bool:
        """See `LinkedCategorical.has_free_weights`."""
        return self.labels.has_free_weights

    def log_normalizer(self) -> Array:
        """See `LinkedCategorical.log_normalizer`."""
        return self.labels.log_normalizer()

    def log_normalizer_at(self, log_weights: Array) -> Array:
        """Log partition function of the links at other log mixing weights."""
        labels = self.labels
        blank = jnp.zeros((labels.graph.num_points, self.num_clusters), log_weights.dtype)
        return partition.log_partition(
            blank, labels.graph, log_weights, labels.pair_weights, **labels.options
        )

    def log_prob(self, value: Array) -> Array:
        """Joint log-density of all points (and of the statements, under the relation reading)."""
        return self.labels.log_evidence(self.label_factors(self.log_factors(value)))

    def _from_factors(self, routine: Any, factors: dict[str, Array], *before: Array) -> Array:
        return routine(
            *before,
            self.label_factors(factors),
            self.labels.graph,
            factors["log_weights"],
            factors["pair_weights"],
            **self.labels.options,
        )

    def _posterior(self, routine: Any, value: Array, *before: Array) -> Array:
        return self._from_factors(routine, self.log_factors(value), *before)

    def responsibilities(self, value: Array) -> Array:
        """Posterior label probabilities, shape (num_points, num_clusters)."""
        return self._posterior(partition.responsibilities, value)

    def posterior(self, value: Array) -> dict[str, Array]:
        """Return ``responsibilities`` (num_points, num_clusters)."""
        return {"responsibilities": self.responsibilities(value)}

    def pair_marginals(self, value: Array) -> Array:
        """Posterior probability that each linked pair agrees, shape (num_links,)."""
        return self._posterior(partition.pair_marginals, value)

    def by_unit(self, value: Array) -> Array:
        """Terms of `log_prob` by connected set, zero-padded, shape (num_nodes,)."""
        return self.labels.log_evidence_by_connected_set(
            self.label_factors(self.log_factors(value))
        )

    def summaries(self, value: Array) -> tuple[dict[str, Array], Array]:
        """`posterior` and `by_unit` by one pass over the links, and its slope."""

        def total(unary: Array) -> tuple[Array, Array]:
            terms = self.labels.log_evidence_by_connected_set(unary)
            return terms.sum(), terms

        unary = self.label_factors(self.log_factors(value))
        prob, terms = jax.grad(total, has_aux=True)(unary)
        return {"responsibilities": prob}, terms

    def sample_labels(self, rng_key: Array, value: Array) -> Array:
        """Draw all labels jointly from their posterior, shape (num_points,)."""
        return self._posterior(partition.sample, value, rng_key)

    def draw(self, rng_key: Array, value: Array) -> tuple[Array, Array | None]:
        """Draw all labels jointly, and the components of clusters that are mixtures."""
        factors = self.log_factors(value)
        if "log_within" not in factors:
            return self._from_factors(partition.sample, factors, rng_key), None
        key_labels, key_within = jax.random.split(rng_key)
        labels = self._from_factors(partition.sample, factors, key_labels)
        joint = factors["unary"] + factors["log_within"]
        own = jnp.take_along_axis(joint, self._by_row(labels)[:, None, None], axis=1)[:, 0]
        return labels, jax.random.categorical(key_within, own)

    def statistic(self, latent: tuple[Array, Array | None]) -> dict[str, Array]:
        """Sufficient statistics of drawn labels, of the structure of `log_factors`."""
        labels, within = latent
        graph = self.labels.graph
        member = jax.nn.one_hot(labels, self.num_clusters)
        counted = member
        if self.labels.weight_per == "chunklet":
            counted = member / graph.node_size[graph.node][:, None]
        pairs = jnp.asarray(graph.pairs)
        agree = (labels[pairs[:, 0]] == labels[pairs[:, 1]]) & ~jnp.isinf(graph.pair_weights)
        rows = self._by_row(member)
        found = {
            "unary": rows,
            "log_weights": counted if self.labels.weights_by_point else counted.sum(axis=0),
            "pair_weights": agree.astype(member.dtype),
        }
        if within is not None:
            weights = self.components.mixing_distribution.probs  # type: ignore[attr-defined]
            inside = rows[:, :, None] * jax.nn.one_hot(within, weights.shape[-1])[:, None]
            own = weights.ndim == 3  # each row has weights of its own
            found |= {"unary": inside, "log_within": inside if own else inside.sum(axis=0)}
        return found | ({} if self.evidence is None else {"evidence": member})

    def mode(self, value: Array) -> Array:
        """Most probable joint labeling given the data, shape (num_points,)."""
        return self._posterior(partition.mode, value)

    def _by_row(self, values: Array) -> Array:
        """Values of the points, repeated for all their rows."""
        return values if self.groups is None else values[self.groups.codes]

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw labels, then data; statements and known classes would be drawn anew."""
        key_labels, key_data = jax.random.split(key)
        return self._data(key_data, self.labels.sample(key_labels, sample_shape), sample_shape)

    def _data(self, key: Array, labels: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw data given labels of shape (*sample_shape, num_points)."""
        labels = jnp.moveaxis(self._by_row(jnp.moveaxis(labels, -1, 0)), 0, -1)
        shape = sample_shape if self.varies_by_row else (*sample_shape, labels.shape[-1])
        drawn = self.components.sample(key, shape)
        index = labels.reshape(labels.shape + (1,) * (drawn.ndim - labels.ndim))
        return jnp.take_along_axis(drawn, index, axis=labels.ndim).squeeze(labels.ndim)

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        """Draw labels given links, known classes and the data of fitted groups; then data."""
        key_fitted, key_labels, key_data = jax.random.split(rng_key, 3)
        own = None
        if fitted is not None and self.groups is not None:
            own, _ = fitted.fn.draw(key_fitted, fitted.value)
        return self._data(key_data, self._labels_given(key_labels, own, fitted))

    def _labels_given(self, key: Array, own: Array | None, fitted: Fitted | None) -> Array:
        """Draw labels given links, known classes, and the labels drawn of fitted groups."""
        labels, clusters = self.labels, jnp.arange(self.num_clusters)
        factors = jnp.zeros((labels.graph.num_points, self.num_clusters), labels.log_weights.dtype)
        side = self.side_factors()
        if side is not None:
            factors = factors + side
        if own is not None and fitted is not None:
            other = (fitted.codes[:, None] >= 0) & (own[fitted.codes][:, None] != clusters)
            factors = jnp.where(other, partition.FORBIDDEN, factors)
        return partition.sample(
            key,
            factors,
            labels.graph,
            labels.log_weights,
            labels.pair_weights,
            **labels.options,
        )
