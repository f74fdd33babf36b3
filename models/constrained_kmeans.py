"""Hard-constrained K-means as the small-variance limit of a linked mixture."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpyro
from jax.typing import ArrayLike

from .blocks.components.centroids import Centroids
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.side_information.links import Links

__all__ = ["constrained_kmeans"]


def constrained_kmeans(
    x: Annotated[ArrayLike, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    scale: float = 1.0,
    inference: str | Inference = "exact",
) -> None:
    r"""Equal spheres of a given width, equal mixing weights, labels tied by links.

    .. math:: P(z) \propto \prod_{(i,j)} e^{w_{ij}[z_i = z_j]}, \qquad
              x_i \sim \mathcal{N}(\mu_{z_i}, \sigma^2 I)

    As :math:`\sigma \to 0` with :math:`w = a / \sigma^2` the posterior of the labels concentrates
    on the minimum of :math:`\tfrac12\sum_i\|x_i - \mu_{z_i}\|^2 + \sum_{\text{must}} a_{ij}[z_i \ne
    z_j] + \sum_{\text{cannot}} a_{ij}[z_i = z_j]`: soft-constrained K-means. Hard links give the
    constrained K-means of Wagstaff et al. The thesis prints :math:`W = a`; per unordered pair it is
    :math:`a / \sigma^2` (Lu 2008, sections 3.2-3.3, corrected).

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    links : Links, LabelGraph or None
        Weights in units of the log density; the K-means engine reads them as
        :math:`a / \sigma^2`.
    num_clusters : int
    scale : float
        :math:`\sigma`.
    inference : {"exact", "mean_field", "belief_propagation", "gibbs_labels"} or inference object
        What to do with loopy connected sets too wide for exact assignment, or exact summation.

    References
    ----------
    Wagstaff et al. (2001), ICML. Basu, Banerjee and Mooney (2004), SDM. Lu (2008), chapter 3.
    """
    num_points, num_features = jnp.shape(x)
    components = Centroids(num_clusters, num_features, scale).sample()
    log_weights = jnp.full(num_clusters, -jnp.log(1.0 * num_clusters))
    graph = as_label_graph(links, num_points, num_clusters, inference)
    labels = LinkedCategorical(log_weights, graph, inference=inference)
    numpyro.sample("x", LinkedMixture(labels, components), obs=x)
