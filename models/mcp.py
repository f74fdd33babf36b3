"""Clusters of several components, learned from links by a partition of space."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpyro
from jax.typing import ArrayLike

from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import shown

from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import num_rows
from .blocks.label_inference.label_graph import LabelGraph
from .blocks.mixtures.weights import ComponentWeights
from .blocks.partitions.component_clusters import ComponentClusters
from .blocks.partitions.partitioned_mixture import PartitionedMixture
from .blocks.partitions.shared_components import shared_components
from .blocks.partitions.stated_clusters import stated_clusters
from .blocks.roles import Held
from .blocks.side_information.links import Links

__all__ = ["mcp"]


def mcp(
    x: Annotated[ArrayLike | None, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    num_components: int | None = None,
    covariance: str = "full",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    concentration: float = 1.0,
    strength: float = 100.0,
    posterior: str = "partition",
    keep_all: bool = True,
    num_points: int | None = None,
) -> None:
    r"""Multiple components per cluster, with a posterior that partitions space (Raghuram 2014, ch. 3).

    .. math:: z_i \sim \text{Categorical}(\pi), \quad c_i \sim V_{z_i}, \quad
              x_i \sim \mathcal{N}(\mu_{z_i}, \Sigma_{z_i}), \quad
              P(\text{links} \mid c) \propto \prod_{(i,j)} e^{w_{ij}[c_i = c_j]}

    Links are statements about clusters, right with log-odds :math:`|w| = \beta C` (up to a constant
    the thesis' price of a violated link). The components z are summed out with factors that all
    points share, :math:`q(k | x) = \text{softmax}_k \psi_k(x)` with quadratic :math:`\psi`, sites
    of the model: a statement about a point then applies to the space around it, and moves the
    components. The log density is a lower bound, in which the discriminants are further parameters.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
        None simulates `num_points` rows; `prior` must then be a GaussianPrior.
    links : Links, LabelGraph or None
    num_clusters : int
        Maximum number of clusters, the thesis' classes.
    num_components : int, optional
        Number of Gaussians in all clusters together; twice `num_clusters` if None.
    covariance : {"full", "tied", "diagonal", "spherical"}
        Determines the form of the discriminants too, which are linear for "tied".
    prior : {"empirical", "flat"} or GaussianPrior
        "flat" is the thesis' maximum likelihood.
    concentration : float
        Parameter of the symmetric Dirichlet prior of the weights; 1 is flat.
    strength : float
        Log-odds of hard links, in nats: the thesis' :math:`\beta`. Finite weights are kept.
    posterior : {"partition", "mean_field"}
        "mean_field" gives every linked point a factor of its own: the penalised mixture of Zhao and
        Miller (2005), in which links move single points.
    keep_all : bool
        Whether every cluster keeps a component, so that the number of clusters is known and not a
        bound.
    num_points : int, optional

    References
    ----------
    Raghuram (2014), PhD thesis, Pennsylvania State University, eqs. 3.1-3.15. Raghuram, Miller and
    Kesidis (2014), IEEE TNNLS 25, 1489-1502.
    """
    check_integer("num_clusters", num_clusters)
    if not isinstance(keep_all, bool):
        raise TypeError(f"keep_all = {shown(keep_all)}; expected True or False")
    size = 2 * num_clusters
    if num_components is not None:
        size = check_integer("num_components", num_components)
    if not size >= num_clusters:
        raise ValueError(
            f"num_components = {size} for num_clusters = {num_clusters}; every cluster is made of one "
            "component at least"
        )
    table = ComponentClusters(size, num_clusters, keep_all=keep_all).sample("assignment")
    labels = stated_clusters(links, num_rows(x, num_points), num_clusters, strength)
    weights = ComponentWeights(size, concentration).sample("weights", "components")
    density, rule = shared_components(x, size, covariance, prior, posterior, "components")
    mixture = PartitionedMixture(labels, density, jnp.log(weights), table, rule)
    numpyro.sample("x", mixture, obs=x)
