"""Gaussian mixture without side information."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import mixture_components, num_rows
from .blocks.label_inference.label_graph import as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.weights import mixing_weights
from .blocks.roles import Held

__all__ = ["gmm"]


def gmm(
    x: Annotated[ArrayLike | None, "points features"],
    *,
    num_clusters: int,
    covariance: str = "full",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    component: Callable[[], dist.Distribution] | None = None,
    concentration: float = 1.0,
    num_points: int | None = None,
) -> None:
    r"""Gaussian mixture with its labels summed out.

    .. math:: \pi \sim \text{Dirichlet}(\alpha), \quad (\mu_k, \Sigma_k) \sim \text{prior}, \quad
              x_i \sim \sum_k \pi_k \mathcal{N}(\mu_k, \Sigma_k)

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
        None simulates `num_points` rows; `prior` must then be a GaussianPrior.
    num_clusters : int
    covariance : {"full", "tied", "diagonal", "spherical"}
    prior : {"empirical", "flat"} or GaussianPrior
        "flat" is maximum likelihood. A mode under the empirical prior has smaller covariances than
        that: for densities of new points use "flat", or an engine that draws.
    component : callable, optional
        A density other than the Gaussian; see `mixture_components`.
    concentration : float
        Parameter of the symmetric Dirichlet prior; 1 is flat.
    num_points : int, optional

    References
    ----------
    Lu (2008), section 2.1. Fraley and Raftery (2007), J. Classification 24, 155-181,
    doi:10.1007/s00357-007-0004-5, for the empirical prior.
    """
    weights = mixing_weights(num_clusters, concentration)
    density = mixture_components(x, num_clusters, covariance, prior, component)
    labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, num_rows(x, num_points)))
    numpyro.sample("x", LinkedMixture(labels, density), obs=x)
