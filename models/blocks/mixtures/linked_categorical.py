"""NumPyro distribution over labels that are tied by links."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from sidebayes.common.magnitudes import shown

from ..label_inference import partition
from ..label_inference.approximate import Inference, as_inference
from ..label_inference.label_graph import LabelGraph

__all__ = ["LinkedCategorical", "check_reading"]

_READINGS = ("field", "relation", "unnormalised")


class LinkedCategorical(dist.Distribution):
    r"""Labels of all points, tied by links.

    With ``reading="field"`` the links form a Markov random field prior (Lu 2008, eq. 2.10)

    .. math:: P(z) = \Omega^{-1} \prod_i \pi_{z_i} \prod_{(i,j)} e^{w_{ij}[z_i = z_j]},

    which includes the partition function :math:`\Omega(\pi, w)`. With ``reading="relation"`` labels
    are independent and each link is an observed statement, right with the log-odds :math:`|w|` (Lu
    2008, App. A): ``P(z, links) = prod pi * prod P(statement | z_i, z_j)``, which is a normalised
    likelihood and has no partition function.

    With ``reading="unnormalised"`` links form the same field, but :math:`\Omega` is left out of the
    joint density of labels and weights:
    :math:`p(\pi, z) \propto p(\pi) \prod_i \pi_{z_i} \prod e^{w[z_i = z_j]}`. Given the weights,
    labels have the same distribution; the prior of the weights is tilted by :math:`\Omega(\pi)`.
    Updates of conjugate weights are then exact, and `log_evidence` is that of the tilted joint
    density; its terms by connected set are normalised, as the likelihood given the weights is.

    Parameters
    ----------
    log_weights : Array, shape (num_clusters,) or (num_points, num_clusters)
        Log mixing weights: shared by all points, or one set per point, as in mixtures of experts.
    graph : LabelGraph
    reading : {"field", "relation", "unnormalised"}
    weight_per : {"point", "chunklet"}
        See `log_partition`. A chunklet has one set of weights, so that "chunklet" does not admit
        weights by point.
    pair_weights : Array, shape (num_links,), optional
        Replacements for the finite weights of the links, e.g. learned ones.
    inference : str or inference object
        See `log_partition`.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields = ("log_weights", "graph", "pair_weights")
    pytree_aux_fields = ("reading", "weight_per", "inference")

    def __init__(
        self,
        log_weights: Array,
        graph: LabelGraph,
        *,
        reading: str = "field",
        weight_per: str = "point",
        pair_weights: Array | None = None,
        inference: str | Inference = "exact",
        validate_args: bool | None = None,
    ) -> None:
        if getattr(log_weights, "ndim", None) not in (1, 2):
            raise TypeError(
                f"log_weights is {_described(log_weights)}; expected an array of shape (num_clusters,), or "
                "(num_points, num_clusters) where each point has weights of its own"
            )
        if not isinstance(graph, LabelGraph):
            raise TypeError(
                f"graph is a {type(graph).__name__}; pass a LabelGraph, LabelGraph.build(links, "
                "num_points)"
            )
        if not isinstance(weight_per, str) or weight_per not in ("point", "chunklet"):
            raise ValueError(f"weight_per = {shown(weight_per)}; expected 'point' or 'chunklet'")
        check_reading(reading)
        if log_weights.ndim == 2:
            if len(log_weights) != graph.num_points:
                raise ValueError(
                    f"log_weights has shape {log_weights.shape}; weights by point need one row for each of "
                    f"the {graph.num_points} points that the graph joins"
                )
            if weight_per == "chunklet":
                raise ValueError(
                    "weight_per = 'chunklet' takes one set of log_weights for all; weights by point, of "
                    f"shape {log_weights.shape}, need weight_per='point'"
                )
        self.log_weights, self.graph, self.reading = log_weights, graph, reading
        self.weight_per, self.inference = weight_per, as_inference(inference)
        self.pair_weights = graph.pair_weights if pair_weights is None else pair_weights
        super().__init__(event_shape=(graph.num_points,), validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Integer labels."""
        return constraints.independent(
            constraints.integer_interval(0, self.log_weights.shape[-1] - 1), 1
        )

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of the routines in `partition`."""
        return {"weight_per": self.weight_per, "inference": self.inference}

    @property
    def weights_by_point(self) -> bool:
        """Whether each point has mixing weights of its own."""
        return self.log_weights.ndim == 2

    @property
    def is_shared(self) -> bool:
        """Whether the labels of all points are independent with the same weights."""
        return self.graph.num_links == 0 and not self.weights_by_point

    @property
    def has_free_weights(self) -> bool:
        """Whether no partition function depends on the mixing weights: a Dirichlet is then conjugate."""
        graph = self.graph
        free = self.reading != "field" or graph.num_links == 0
        return free or (self.weight_per == "chunklet" and graph.num_edges == 0)

    def log_normalizer(self) -> Array:
        r"""Log of the divisor that normalises the sum.

        :math:`\log\Omega` for a field; for relations the sum of the log-odds terms that make each
        statement's likelihood normalised, :math:`\sum \log(1 + e^{|w|}) - [w < 0] |w|`. Zero where the
        joint density is not normalised.
        """
        if self.reading == "unnormalised":
            return jnp.zeros(())
        if self.reading == "relation":
            weights = jnp.asarray(self.pair_weights)
            finite = jnp.where(jnp.isinf(jnp.asarray(self.graph.pair_weights)), 0.0, weights)
            # must: P(same)=e^w/(1+e^w); cannot: P(differ)=1/(1+e^w), so the common factor is 1+e^w
            # for a must-link relative to e^{w[same]}, and the same for a cannot-link
            return jnp.where(
                jnp.isinf(jnp.asarray(self.graph.pair_weights)), 0.0, jnp.logaddexp(0.0, finite)
            ).sum()
        if not self._coupled:
            return self._free_normalizer_by_connected_set().sum()
        return self._sum(partition.log_partition, None)

    def _free_normalizer_by_connected_set(self) -> Array:
        """Share of each connected set in `log_normalizer` where labels are independent a priori."""
        graph = self.graph
        if self.reading != "relation" and self.weights_by_point:
            real = jnp.asarray(graph.node_size)[jnp.asarray(graph.node)] > 0
            each = jnp.where(real, jax.nn.logsumexp(self.log_weights, axis=1), 0.0)
            return jax.ops.segment_sum(each, graph.connected_set, graph.num_nodes)
        if self.reading != "relation":
            number = jnp.asarray(graph.node_size, self.log_weights.dtype)
            return number * jax.nn.logsumexp(self.log_weights)
        soft = ~jnp.isinf(jnp.asarray(graph.pair_weights))
        weights = jnp.where(soft, jnp.asarray(self.pair_weights), 0.0)
        each = jnp.where(soft, jnp.logaddexp(0.0, weights), 0.0)
        owner = jnp.asarray(graph.connected_set)[jnp.asarray(graph.pairs)[:, 0]]
        return jax.ops.segment_sum(each, owner, graph.num_nodes)

    @property
    def _coupled(self) -> bool:
        """Whether links tie labels a priori."""
        return self.reading != "relation" and self.graph.num_links > 0

    def _sum(self, routine: Callable[..., Array], unary: Array | None) -> Array:
        return routine(unary, self.graph, self.log_weights, self.pair_weights, **self.options)

    def log_evidence(self, unary: Array) -> Array:
        """Log density of the data, given the log density `unary` of each point under each label.

        Parameters
        ----------
        unary : Array, shape (num_points, num_clusters)

        Returns
        -------
        Array, shape ()
        """
        if not self._coupled or self.reading == "unnormalised":
            return self._sum(partition.log_partition, unary) - self.log_normalizer()
        log_z, log_omega = self._with_blank(partition.log_partition, unary)
        return log_z - log_omega

    def log_evidence_by_connected_set(self, unary: Array) -> Array:
        """Terms of `log_evidence` by connected set, zero-padded, shape (num_nodes,)."""
        if not self._coupled:
            found = self._sum(partition.by_connected_set, unary)
            return found - self._free_normalizer_by_connected_set()
        found, blank = self._with_blank(partition.by_connected_set, unary)
        return found - blank

    def responsibilities(self, unary: Array) -> Array:
        """Posterior probabilities of the labels given `unary`, of its shape; see `log_evidence`."""
        return self._sum(partition.responsibilities, unary)

    def pair_marginals(self, unary: Array) -> Array:
        """Posterior probability that the labels of each link agree, shape (num_links,)."""
        return self._sum(partition.pair_marginals, unary)

    def mode_given(self, unary: Array) -> Array:
        """Most probable joint labeling given `unary`, shape (num_points,)."""
        return self._sum(partition.mode, unary)

    def draw_given(self, key: Array, unary: Array) -> Array:
        """Draw all labels jointly given `unary`, shape (num_points,)."""
        return self._sum(partial(partition.sample, key), unary)

    def _with_blank(self, routine: Callable[..., Array], unary: Array) -> Array:
        """A sum, and the same sum without data (a field's normaliser), as a batch that is compiled once."""
        both = jnp.stack([unary, jnp.zeros_like(unary)])
        return jax.vmap(partial(self._sum, routine))(both)

    def among(
        self,
        graph: LabelGraph,
        pair_weights: ArrayLike,
        points: Any = slice(None),
        inference: str | Inference | None = None,
    ) -> LinkedCategorical:
        """The same distribution for some of the points, tied by other links."""
        return LinkedCategorical(
            self.log_weights[points] if self.weights_by_point else self.log_weights,
            graph,
            reading=self.reading,
            pair_weights=jnp.asarray(pair_weights),
            weight_per=self.weight_per,
            inference=self.inference if inference is None else inference,
        )

    def draw_statements(self, key: Array, labels: Array) -> Array:
        """Draw, for each link, whether the statement is that the labels agree; shape (num_links,)."""
        first, second = jnp.asarray(self.graph.pairs).T
        # log-odds of a right statement; negative where a learned flip rate is above one half
        right = jax.nn.sigmoid(jnp.sign(self.graph.pair_weights) * self.pair_weights)
        return (labels[first] == labels[second]) == jax.random.bernoulli(key, right)

    def log_prob(self, value: Array) -> Array:
        """Log-probability of one joint labeling, shape (num_points,)."""
        held = jnp.where(
            value[:, None] == jnp.arange(self.log_weights.shape[-1]), 0.0, partition.FORBIDDEN
        )
        total = partition.log_partition(
            held,
            self.graph,
            self.log_weights,
            self.pair_weights,
            weight_per=self.weight_per,
            inference="exact",
        )
        return total - self.log_normalizer()

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw labels jointly: from the field, or independently under the relation reading."""
        shape = (self.graph.num_points, self.log_weights.shape[-1])
        if self.reading == "relation":
            return jax.random.categorical(
                key, self.log_weights, shape=(*sample_shape, self.graph.num_points)
            )

        def draw(one: Array) -> Array:
            return self.draw_given(one, jnp.zeros(shape))

        if not sample_shape:
            return draw(key)
        count = 1
        for size in sample_shape:
            count *= size
        drawn = jax.vmap(draw)(jax.random.split(key, count))
        return drawn.reshape(*sample_shape, shape[0])


def check_reading(reading: str) -> None:
    """Refuse an unknown reading of links."""
    if not isinstance(reading, str) or reading not in _READINGS:
        raise ValueError(f"reading = {shown(reading)}; expected one of {list(_READINGS)}")


def _described(value: Any) -> str:
    """A value, or the shape of an array, for messages."""
    shape = getattr(value, "shape", None)
    return f"{shown(value)}" if shape is None else f"of shape {shape}"
