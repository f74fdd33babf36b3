"""Clusters of points with links as statements, as labels without weights of their own."""

from __future__ import annotations

import jax.numpy as jnp

from sidebayes.common.fields import Range, check_number

from ..label_inference.label_graph import LabelGraph, as_label_graph
from ..mixtures.linked_categorical import LinkedCategorical
from ..side_information.links import Links

__all__ = ["stated_clusters"]


def stated_clusters(
    links: Links | LabelGraph | None, num_points: int, num_clusters: int, strength: float
) -> LinkedCategorical:
    r"""Law of the clusters of points given links, for `PartitionedMixture`.

    .. math:: P(\text{links} \mid c) \propto \prod_{(i,j)} e^{w_{ij}[c_i = c_j]}

    Parameters
    ----------
    links : Links, LabelGraph or None
    num_points, num_clusters : int
    strength : float
        Log-odds of hard links, in nats; finite weights are kept.

    Raises
    ------
    ValueError
        If the strength is not a number of at least 0.
    """
    strength = check_number("strength", strength, Range(least=0.0))
    graph = as_label_graph(links, num_points, num_clusters)
    given = jnp.asarray(graph.pair_weights)
    stated = jnp.where(jnp.isinf(given), jnp.sign(given) * strength, given)
    return LinkedCategorical(
        jnp.zeros(num_clusters), graph, reading="relation", pair_weights=stated
    )
