"""Mixtures with labels summed out: a joint prior of the labels times unary factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax

from ..collapsed import Batch, Collapsed, Fitted, NamedArray, Units
from ..label_inference import partition
from ..label_inference.label_graph import LabelGraph
from .linked_categorical import LinkedCategorical

__all__ = ["FiniteMixture"]


class FiniteMixture(Collapsed):
    r"""Data of all points, with their labels summed out.

    .. math:: \log p(x) = \log \sum_z P(z) \prod_i f_i(z_i),

    with a joint prior P of the labels, in which links may tie them, and unary factors :math:`f_i`: densities
    of the data of a point given its label, and what else is known about single labels.

    A subclass sets `labels` and gives `log_factors`, which include those of `log_factors_of_labels`, and
    `label_factors`. It may have latent variables besides the labels.
    """

    arg_constraints: ClassVar[dict] = {}

    is_density: bool = True
    """Whether the points have a density; under a classifier they have none."""

    is_exchangeable: bool = True
    """Whether labels may be renumbered; not if each label has side information of its own."""
    is_untold: bool = False
    """Whether labels or classes mean what side information says of them, and there is none."""

    has_apart_rows: bool = False
    """Whether densities and labels of rows are separate, so that rows can be divided among devices."""

    num_classes: int | None = None
    """Number of classes of the points besides their labels; None if they have no classes."""

    labels: LinkedCategorical
    """Joint prior of the labels."""

    log_side: Array | None = None
    """Log-factors of the labels besides densities of data, shape (num_points, num_clusters)."""

    components: dist.Distribution | None = None
    """Densities of single rows given their labels, if the distribution has them."""

    @property
    def num_clusters(self) -> int:
        """Number of labels that a point may have."""
        return self.labels.log_weights.shape[-1]

    @property
    def num_units(self) -> int:  # type: ignore[override]
        """Number of connected sets of the links."""
        return self.labels.graph.num_connected_sets

    def units(self) -> Units:
        """Points have labels; points that links connect form one unit."""
        graph = self.links()
        if graph is None:
            return super().units()
        owner = np.asarray(graph.connected_set) if graph.num_links else None
        return Units(graph.num_points, owner, graph.num_nodes)

    def observed(self) -> Array:
        """Which connected sets are of data; without densities those that something is stated of."""
        if self.is_density:
            return super().observed()
        graph, told = self.labels.graph, self.told_of_classes()
        pairs = jnp.asarray(graph.pairs)
        stated = jnp.zeros(graph.num_points, bool)
        stated = stated.at[pairs[:, 0]].max(pairs[:, 0] != pairs[:, 1])  # spare rows say nothing
        if told is not None:
            stated |= (told != told[:, :1]).any(axis=1)
        return jnp.zeros(graph.num_nodes, bool).at[jnp.asarray(graph.connected_set)].max(stated)

    def links(self) -> LabelGraph | None:
        """Links that tie the labels; if None, structural properties do not evaluate `labels`."""
        return self.labels.graph

    @property
    def links_move_labels(self) -> bool:
        """Whether labels depend on links given the parameters, and not on the point's own data alone."""
        return True

    def labels_of(self, batch: Batch) -> LinkedCategorical:
        """Joint prior of the labels of a batch, tied by its links."""
        weights = jnp.asarray(self.labels.pair_weights)[batch.links]
        return self.labels.among(batch.graph, weights, batch.points)

    def tied_by(self, graph: LabelGraph) -> FiniteMixture:
        """The same distribution of the same points, tied by the links of another graph of equal sizes.

        Raises
        ------
        ValueError
            If the distribution is valid for its own links only.
        """
        raise ValueError(
            f"the links of a {type(self).__name__} cannot be replaced; use 'em' or 'map'"
        )

    def label_factors(self, factors: dict[str, Array]) -> Array:
        """Log-factors of the labels alone, shape (num_points, num_clusters)."""
        raise NotImplementedError

    def log_factors_of_labels(self) -> dict[str, Array]:
        """Log-factors that do not depend on the data: ``log_weights``, ``pair_weights``, ``log_side``."""
        factors = {
            "log_weights": self.labels.log_weights,
            "pair_weights": jnp.asarray(self.labels.pair_weights),
        }
        return factors if self.log_side is None else factors | {"log_side": self.log_side}

    def side_factors(self) -> Array | None:
        """Log-factors of the labels besides data and links; None if there are none."""
        return self.log_side

    def log_partition(self, factors: dict[str, Array]) -> Array:
        """Logarithm of the sum of the factors over all joint labelings."""
        return self._log_partition(factors, self.label_factors(factors), factors["log_weights"])

    def log_partition_of(self, factors: dict[str, Array], seen: Array) -> Array:
        """`log_partition` if only links are known of the points that are not `seen`, (num_points,).

        Its gradient does not involve their data, statements about them, or weights of their own.
        """
        unary = jnp.where(seen[:, None], self.label_factors(factors), 0.0)
        weights = factors["log_weights"]
        if self.labels.weights_by_point:
            weights = jnp.where(seen[:, None], weights, lax.stop_gradient(weights))
        return self._log_partition(factors, unary, weights)

    def _log_partition(self, factors: dict[str, Array], unary: Array, weights: Array) -> Array:
        options = self.labels.options
        pairs = factors["pair_weights"]
        return partition.log_partition(unary, self.labels.graph, weights, pairs, **options)

    def log_normalizer(self) -> Array:
        """See `LinkedCategorical.log_normalizer`."""
        return self.labels.log_normalizer()

    def log_normalizer_at(self, log_weights: Array) -> Array:
        """Log partition function of the links at other log mixing weights."""
        labels = self.labels
        return partition.log_partition(
            None, labels.graph, log_weights, labels.pair_weights, **labels.options
        )

    def log_prob(self, value: Array) -> Array:
        """Joint log density of all points (and of the statements, under the relation reading)."""
        return self.labels.log_evidence(self._unary(value))

    def by_unit(self, value: Array) -> Array:
        """Terms of `log_prob` by connected set, zero-padded, shape (num_nodes,)."""
        return self.labels.log_evidence_by_connected_set(self._unary(value))

    def responsibilities(self, value: Array) -> Array:
        """Posterior label probabilities, shape (num_points, num_clusters)."""
        return self.labels.responsibilities(self._unary(value))

    def posterior(self, value: Array) -> dict[str, NamedArray]:
        """Return ``responsibilities`` (num_points, num_clusters)."""
        return self.posterior_given(self.responsibilities(value), value)

    def posterior_given(self, share: Array, value: Array) -> dict[str, NamedArray]:
        """The value of `posterior`, given responsibilities that are known already."""
        return {"responsibilities": NamedArray(("points", "clusters"), share)}

    def summaries(self, value: Array) -> tuple[dict[str, NamedArray], Array]:
        """`posterior` and `by_unit` from one pass over the links and its gradient."""

        def total(unary: Array) -> tuple[Array, Array]:
            terms = self.labels.log_evidence_by_connected_set(unary)
            return terms.sum(), terms

        share, terms = jax.grad(total, has_aux=True)(self._unary(value))
        return self.posterior_given(share, value), terms

    def class_probabilities(self, value: Array) -> Array:
        """Probabilities of the classes of all points, shape (num_points, `num_classes`)."""
        raise NotImplementedError

    @property
    def is_told_some(self) -> bool:
        """Whether anything is stated about the labels of points."""
        return self.log_side is not None

    def told(self) -> Array | None:
        """Probability of the statement about each point given its class, (num_points, num_classes).

        Classes are the clusters unless a subclass has others. None if nothing is stated.
        """
        return None if self.log_side is None else jnp.exp(self.log_side)

    def told_of_classes(self) -> Array | None:
        """Like `told`, also where the classes of the points are not the ones that `told` refers to."""
        return self.told()

    def beside_value(self) -> dict[str, Callable[[], Array] | None]:
        """Known classes, and links that are observed statements; see `ScoresMore`."""
        found: dict[str, Callable[[], Array] | None] = {}
        if self.is_told_some:
            found["known classes"] = self._known_classes
        ties = self.links()
        if ties is not None and ties.num_links and self.labels.reading == "relation":
            found["links" if self.is_density else "links alone"] = None  # which, the units say
        return found

    def _known_classes(self) -> Array:
        """Classes that each point may have; none for points about which nothing is stated."""
        told = self.told_of_classes()
        assert told is not None  # asked for with statements only
        may = told >= told.max(axis=1, keepdims=True)
        return may & ~may.all(axis=1, keepdims=True)

    def untold_densities(self, value: Array) -> Array:
        """Log density of each point in each cluster, without statements, (num_points, num_clusters)."""
        factors = self.log_factors(value)
        return self.label_factors({n: v for n, v in factors.items() if n != "log_side"})

    def classes_within(self, value: Array) -> Array:
        """P(class | cluster, data) of points, ignoring the statement about the point itself.

        Shape (num_clusters, num_classes), or (num_points, num_clusters, num_classes).
        """
        return jnp.eye(self.num_clusters)

    def pair_marginals(self, value: Array) -> Array:
        """Posterior probability that each linked pair agrees, shape (num_links,)."""
        return self.labels.pair_marginals(self._unary(value))

    def sample_labels(self, rng_key: Array, value: Array) -> Array:
        """Draw all labels jointly from their posterior, shape (num_points,)."""
        return self.labels.draw_given(rng_key, self._unary(value))

    def mode(self, value: Array) -> Array:
        """Most probable joint labeling given the data, shape (num_points,)."""
        return self.labels.mode_given(self._unary(value))

    def label_statistic(self, labels: Array) -> dict[str, Array]:
        """Sufficient statistics of drawn labels; ``unary`` has an entry for each point and label."""
        graph = self.labels.graph
        member = jax.nn.one_hot(labels, self.num_clusters)
        counted = member
        if self.labels.weight_per == "chunklet":
            counted = member / graph.node_size[graph.node][:, None]
        pairs = jnp.asarray(graph.pairs)
        agree = (labels[pairs[:, 0]] == labels[pairs[:, 1]]) & ~jnp.isinf(graph.pair_weights)
        found = {
            "unary": member,
            "log_weights": counted if self.labels.weights_by_point else counted.sum(axis=0),
            "pair_weights": agree.astype(member.dtype),
        }
        return found | ({} if self.log_side is None else {"log_side": member})

    def remark(self) -> str | None:
        """Say that clusters are arbitrary."""
        if not self.is_untold:
            return None
        return (
            "No link says which components make up a cluster, so that it is arbitrary: state links, or "
            "take gmm, whose clusters are single components"
        )

    def approximation(self) -> str | None:
        """Name what is approximate in `log_prob`; None if it is exact. See `check_inference`."""
        graph = self.links()
        if graph is None:
            return None
        return partition.check_inference(graph, self.num_clusters, self.labels.inference)

    @property
    def has_curvature(self) -> bool:
        """Whether `log_prob` can be differentiated twice; fixed-point sums can be differentiated once."""
        return self.approximation() is None

    @property
    def sums_loops(self) -> bool | Array:
        """See `LabelGraph.sums_loops`."""
        graph = self.links()
        if graph is None:
            return False
        return graph.suited(self.labels.inference, self.num_clusters).sums_loops

    @property
    def has_free_weights(self) -> bool:
        """See `LinkedCategorical.has_free_weights`."""
        return self.links() is None or self.labels.has_free_weights

    def draw_labels(
        self, rng_key: Array, own: Array | None = None, fitted: Fitted | None = None
    ) -> Array:
        """Draw labels given links, known classes, and the labels `own` drawn for fitted groups."""
        labels = self.labels
        factors = jnp.zeros(
            (self.labels.graph.num_points, self.num_clusters), labels.log_weights.dtype
        )
        side = self.side_factors()
        if side is not None:
            factors = factors + side
        if own is not None and fitted is not None:
            other = own[fitted.codes][:, None] != jnp.arange(self.num_clusters)
            other = (fitted.codes[:, None] >= 0) & other
            factors = jnp.where(other, partition.FORBIDDEN, factors)
        return labels.draw_given(rng_key, factors)

    def data_given(self, key: Array, labels: Array) -> Array:
        """Draw data given the labels of all points."""
        raise NotImplementedError

    def _unary(self, value: Array) -> Array:
        return self.label_factors(self.log_factors(value))
