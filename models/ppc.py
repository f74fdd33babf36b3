"""Penalized probabilistic clustering: a mixture whose labels are tied by links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import mixture_components, num_rows
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.reliability import learned_pair_weights
from .blocks.mixtures.weights import cluster_weights
from .blocks.roles import Held
from .blocks.side_information.links import Links

__all__ = ["ppc"]


def ppc(
    x: Annotated[ArrayLike | None, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    covariance: str = "full",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    component: Callable[[], dist.Distribution] | None = None,
    concentration: float = 1.0,
    weights: ArrayLike | str | None = None,
    reading: str = "field",
    flip_rate: dist.Distribution | str | None = None,
    weight_per: str = "point",
    inference: str | Inference = "exact",
    num_points: int | None = None,
) -> None:
    r"""Penalized probabilistic clustering (Lu 2008, chapter 2), with hard, soft and mixed links.

    .. math:: \pi \sim \text{Dirichlet}(\alpha), \quad (\mu_k, \Sigma_k) \sim \text{prior}, \quad
              P(z) \propto \prod_i \pi_{z_i} \prod_{(i,j)} e^{w_{ij}[z_i = z_j]}, \quad
              x_i \sim \mathcal{N}(\mu_{z_i}, \Sigma_{z_i})

    The labels are summed out, so the model has continuous sites only. Lu's eq. 2.10 counts each
    pair twice; :math:`w` here is his :math:`2W`.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
        None simulates `num_points` rows; `prior` must then be a GaussianPrior.
    links : Links, LabelGraph or None
    num_clusters : int
    covariance : {"full", "tied", "diagonal", "spherical"}
    prior : {"empirical", "flat"} or GaussianPrior
        "flat" is the thesis' maximum likelihood.
    component : callable, optional
        A density other than the Gaussian; see `mixture_components`.
    concentration : float
        Parameter of the symmetric Dirichlet prior; 1 is flat.
    weights : array_like, shape (num_clusters,), or "uniform", optional
        Fix the mixing weights, so that the partition function of a field is a constant.
    reading : {"field", "relation"}
        Links as a random field over labels, with its partition function (the thesis), or as
        observed statements about labels that are independent a priori.
    flip_rate : Distribution, "learned" or None
        Under the relation reading, prior of the probability that a statement is wrong, learned in
        place of the finite link weights ("learned" is Beta(1, 4)). There is one per group if links
        say who stated them, ``Links(..., group=)``. This part is not in the thesis.
    weight_per : {"point", "chunklet"}
        Whether a chunklet of n points carries its mixing weight n times or once.
    inference : {"exact", "mean_field", "belief_propagation", "gibbs_labels"} or inference object
        What to do with loopy connected sets too wide for exact summation.
    num_points : int, optional

    References
    ----------
    Lu (2008), eqs. 2.10-2.14, 2.26. Lu and Leen (2007), Neural Computation 19, 1528-1567,
    doi:10.1162/neco.2007.19.6.1528.
    """
    graph = as_label_graph(links, num_rows(x, num_points), num_clusters, inference)
    pi = cluster_weights(graph, num_clusters, concentration, weights, reading, inference)
    density = mixture_components(x, num_clusters, covariance, prior, component)
    labels = LinkedCategorical(
        jnp.log(pi),
        graph,
        reading=reading,
        weight_per=weight_per,
        pair_weights=learned_pair_weights(graph, flip_rate, reading),
        inference=inference,
    )
    numpyro.sample("x", LinkedMixture(labels, density), obs=x)
