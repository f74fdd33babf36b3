"""Clusters of one component each, learned from links by a partition of space."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpyro
from jax.typing import ArrayLike

from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import num_rows
from .blocks.label_inference.label_graph import LabelGraph
from .blocks.mixtures.weights import ComponentWeights
from .blocks.partitions.partitioned_mixture import PartitionedMixture
from .blocks.partitions.shared_components import shared_components
from .blocks.partitions.stated_clusters import stated_clusters
from .blocks.roles import Held
from .blocks.side_information.links import Links

__all__ = ["scp"]


def scp(
    x: Annotated[ArrayLike | None, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    covariance: str = "full",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    concentration: float = 1.0,
    strength: float = 100.0,
    posterior: str = "partition",
    num_points: int | None = None,
) -> None:
    r"""Single component per cluster: `mcp` with V the identity (Raghuram 2014, section 3.2.1).

    .. math:: c_i \sim \text{Categorical}(\pi), \quad x_i \sim \mathcal{N}(\mu_{c_i}, \Sigma_{c_i}), \quad
              P(\text{links} \mid c) \propto \prod_{(i,j)} e^{w_{ij}[c_i = c_j]}

    Clusters are the regions of :math:`q(c | x) = \text{softmax}_c \psi_c(x)`, whose discriminants need
    not be those of the Gaussians: with strong links a cluster may consist of several clumps, which its
    Gaussian covers. Parameters are those of `mcp`.

    References
    ----------
    Raghuram (2014), PhD thesis, Pennsylvania State University, sections 3.2.1 and 3.4.2.
    """
    labels = stated_clusters(links, num_rows(x, num_points), num_clusters, strength)
    weights = ComponentWeights(num_clusters, concentration).sample("weights", "clusters")
    density, rule = shared_components(x, num_clusters, covariance, prior, posterior, "clusters")
    mixture = PartitionedMixture(labels, density, jnp.log(weights), jnp.eye(num_clusters), rule)
    numpyro.sample("x", mixture, obs=x)
