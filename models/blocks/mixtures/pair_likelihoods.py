"""Likelihoods of statements about pairs, exact or one pair at a time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from numpy.typing import NDArray

from ..collapsed import NamedArray
from ..label_inference.label_graph import LabelGraph
from ..label_inference.trees.potts import FORBIDDEN, logsumexp
from .linked_mixture import LinkedMixture

__all__ = ["FactorisedPairs", "JensenPairs", "pair_likelihood"]


class FactorisedPairs(LinkedMixture):
    r"""Likelihood that treats the labels in each statement as independent draws (Lu 2008, eq. 4.22).

    .. math:: J = \prod_{(i,j)} [\sigma(w_{ij}) S_{ij} + \sigma(-w_{ij}) (1 - S_{ij})], \qquad
              S_{ij} = \sum_m P(z_i = m) P(z_j = m)

    It is exact if no point is in two statements; otherwise it is neither a lower nor an upper
    bound.
    """

    def approximation(self) -> str | None:
        """Name the approximation if some point is in two or more statements."""
        found = super().approximation()
        pairs = self.labels.graph.pairs
        # in a traced program the points that they join are unknown
        overlap = isinstance(pairs, Tracer) or _overlap(self.labels.graph.links.pairs)
        own = "statements factorised" if overlap else None
        return ", ".join(filter(None, (own, found))) or None

    @property
    def has_curvature(self) -> bool:
        """True: a product over statements is smooth, however labels are inferred afterwards."""
        return True

    def log_prob(self, value: Array) -> Array:
        """Approximate log-probability of the statements."""
        return self._by_statement(value).sum()

    def _by_statement(self, value: Array) -> Array:
        same, differ = self._agreement(value)
        right, wrong = self._reliability()
        return jnp.logaddexp(right + same, wrong + differ)

    def by_unit(self, value: Array) -> Array:
        """Terms of `log_prob` by connected set, zero-padded."""
        graph = self.labels.graph
        owner = jnp.asarray(graph.connected_set)[jnp.asarray(graph.pairs)[:, 0]]
        return jax.ops.segment_sum(self._by_statement(value), owner, graph.num_nodes)

    def summaries(self, value: Array) -> tuple[dict[str, NamedArray], Array]:
        """Summaries of jointly inferred labels, and the terms of this likelihood."""
        return self.posterior(value), self.by_unit(value)

    def _reliability(self) -> tuple[Array, Array]:
        """Log-probability of each statement if the labels agree, and if they differ."""
        given = jnp.asarray(self.labels.graph.pair_weights)
        weights = jnp.where(jnp.isinf(given), given, jnp.asarray(self.labels.pair_weights))
        pairs = jnp.asarray(self.labels.graph.pairs)
        stated = pairs[:, 0] != pairs[:, 1]  # spare rows say nothing
        right, wrong = jax.nn.log_sigmoid(weights), jax.nn.log_sigmoid(-weights)
        return jnp.where(stated, right, 0.0), jnp.where(stated, wrong, 0.0)

    def _agreement(self, value: Array) -> tuple[Array, Array]:
        """Log-probabilities that the labels of each pair agree, and that they differ."""
        unary = self.log_factors(value)["unary"]
        first, second = (unary[end] for end in jnp.asarray(self.labels.graph.pairs).T)
        table = first[:, :, None] + second[:, None, :]
        equal = np.eye(unary.shape[1], dtype=bool)
        apart = jnp.where(equal, FORBIDDEN, table).reshape(len(table), equal.size)
        return logsumexp(first + second), logsumexp(apart)


class JensenPairs(FactorisedPairs):
    r"""Jensen's bound on the log-probability of the statements (Lu 2008, eq. 4.23).

    .. math:: \sum_{(i,j)} [S_{ij} \log\sigma(w_{ij}) + (1 - S_{ij}) \log\sigma(-w_{ij})]
    """

    def approximation(self) -> str:
        """Name the bound."""
        return ", ".join(filter(None, ("Jensen's bound", LinkedMixture.approximation(self))))

    def _by_statement(self, value: Array) -> Array:
        """Lower bound on the log-probability of each statement."""
        same, differ = map(jnp.exp, self._agreement(value))
        right, wrong = self._reliability()
        return same * right + differ * wrong


_LIKELIHOODS: dict[str, type[LinkedMixture]] = {
    "exact": LinkedMixture,
    "factorised": FactorisedPairs,
    "jensen": JensenPairs,
}


def pair_likelihood(likelihood: str, graph: LabelGraph) -> type[LinkedMixture]:
    """Distribution of points and statements in which labels are summed out as `likelihood` says.

    Parameters
    ----------
    likelihood : {"exact", "factorised", "jensen"}
        Exact joint sums, `FactorisedPairs` or `JensenPairs`.
    graph : LabelGraph
        Its links are the statements.

    Raises
    ------
    ValueError
        For another name, and for hard statements under Jensen's bound.
    """
    if likelihood not in _LIKELIHOODS:
        raise ValueError(f"likelihood = {likelihood!r}; expected one of {sorted(_LIKELIHOODS)}")
    given = graph.pair_weights
    if likelihood == "jensen" and isinstance(given, np.ndarray) and graph.links.hard.any():
        raise ValueError(
            "likelihood='jensen' takes soft links only, its bound on a hard one is -inf; pass "
            "links.with_strength(4.0), or likelihood='factorised'"
        )
    return _LIKELIHOODS[likelihood]


def _overlap(pairs: NDArray) -> bool:
    """Whether a point is in two pairs."""
    return bool(np.bincount(pairs.ravel()).max(initial=0) > 1)
