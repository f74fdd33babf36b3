"""Mixture on the unit sphere: wrapped normals or von Mises-Fisher densities, with links."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.components.mixture_components import num_rows
from .blocks.directional.directional_prior import DirectionalPrior
from .blocks.directional.sphere_components import sphere_components
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.reliability import learned_pair_weights
from .blocks.mixtures.weights import cluster_weights
from .blocks.roles import Checked, Held
from .blocks.side_information.hard_links import check_known_clusters
from .blocks.side_information.links import Links
from .blocks.side_information.partial_labels import PartialLabels, log_admissible

__all__ = ["sphere_mixture"]


def sphere_mixture(
    x: Annotated[ArrayLike | None, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    known: Annotated[PartialLabels | None, "points", Checked(check_known_clusters)] = None,
    *,
    num_clusters: int,
    family: str = "wrapped_normal",
    covariance: str | None = None,
    rank: int = 1,
    prior: Annotated[str | DirectionalPrior, Held()] = "empirical",
    concentration: float = 1.0,
    weights: ArrayLike | str | None = None,
    reading: str = "field",
    flip_rate: dist.Distribution | str | None = None,
    weight_per: str = "point",
    inference: str | Inference = "exact",
    num_points: int | None = None,
    dimension: int | None = None,
) -> None:
    r"""Mixture on the unit sphere of Q dimensions (Yu 2016, section 2.8), with links between points.

    .. math:: \pi \sim \text{Dirichlet}(\alpha), \quad \mu_k \sim \text{uniform on the sphere}, \quad
              P(z) \propto \prod_i \pi_{z_i} \prod_{(i,j)} e^{w_{ij}[z_i = z_j]}, \\
              x_i = \exp_{\mu_{z_i}} t_i, \quad t_i \sim N(0, C_{z_i}), \quad
              C_k \sim \mathcal{W}^{-1}(\nu, s^2 I_Q)

    with the exact density on the first sheet, :math:`N(t; 0, C) (\sin \|t\| / \|t\|)^{1 - Q}`; the
    source leaves the second factor out. The mass on further sheets is bounded by ``missing_mass``.
    Components may be von Mises-Fisher densities instead. The labels are summed out. One cluster of
    low rank, :math:`C = W W^\top + s^2 I`, is a probabilistic principal geodesic analysis, whose
    noise lies in the tangent space at the mean. The source has no links.

    Parameters
    ----------
    x : array_like, shape (num_points, Q + 1), or None
        Unit vectors, such as those of `KernelPGA.sphere_coordinates`; lengths within 0.001 of one
        count as rounded. None simulates `num_points` rows; `prior` must then be a DirectionalPrior.
    links : Links, LabelGraph or None
    known : PartialLabels, optional
        Known clusters of some points.
    num_clusters : int
    family : {"wrapped_normal", "von_mises_fisher"}
    covariance : {"full", "spherical", "low_rank"}, optional
        Covariance of wrapped normals; "full" by default.
    rank : int
        Number of columns of W under "low_rank".
    prior : {"empirical", "flat"} or DirectionalPrior
        Prior of covariances, in radians; "flat" is maximum likelihood.
    concentration : float
        Parameter of the symmetric Dirichlet prior; 1 is flat.
    weights, reading, flip_rate, weight_per, inference
        See `ppc`.
    num_points : int, optional
    dimension : int, optional
        Q, if there are no data.

    References
    ----------
    Yu (2016), section 2.8, eqs. 2.65-2.72; Awate, Yu and Whitaker (2014), ECML-PKDD. Banerjee, Dhillon,
    Ghosh and Sra (2005), J. Mach. Learn. Res. 6, 1345-1382. Zhang and Fletcher (2013), NIPS 26, on
    probabilistic principal geodesic analysis with noise around each point.
    """
    graph = as_label_graph(links, num_rows(x, num_points), num_clusters, inference)
    pi = cluster_weights(graph, num_clusters, concentration, weights, reading, inference)
    density = sphere_components(x, num_clusters, family, covariance, rank, prior, dimension)
    labels = LinkedCategorical(
        jnp.log(pi),
        graph,
        reading=reading,
        weight_per=weight_per,
        pair_weights=learned_pair_weights(graph, flip_rate, reading),
        inference=inference,
    )
    log_side = log_admissible(known, num_clusters)
    numpyro.sample("x", LinkedMixture(labels, density, log_side), obs=x)
