"""Penalized probabilistic clustering: a mixture whose labels are tied by links."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.approximate import Inference
from .blocks.components import GaussianPrior, gaussian_components, resolve_prior
from .blocks.label_graph import LabelGraph, as_label_graph
from .blocks.linked import LinkedCategorical, LinkedMixture
from .blocks.links import Links

__all__ = ["FLIP_RATE_PRIOR", "ppc"]

FLIP_RATE_PRIOR = (1.0, 4.0)
"""Beta prior of a learned flip rate: mean 0.2, no flips most probable a priori."""


def ppc(
    x: ArrayLike | None,
    links: Links | LabelGraph | None = None,
    *,
    num_clusters: int,
    covariance: str = "full",
    prior: str | GaussianPrior = "empirical",
    concentration: float = 1.0,
    reading: str = "field",
    flip_rate: dist.Distribution | str | None = None,
    sampling: str = "points",
    inference: str | Inference = "exact",
    components: Callable[[], dist.Distribution] | None = None,
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
    concentration : float
        Of the symmetric Dirichlet prior; 1 is flat.
    reading : {"field", "relation"}
        Links as a random field over labels, with its partition function (the thesis), or as
        observed statements about labels that are independent a priori.
    flip_rate : Distribution, "learned" or None
        Under the relation reading, prior of the probability that a statement is wrong, learned in
        place of the finite link weights ("learned" is Beta(1, 4)). This part is not in the thesis.
    sampling : {"points", "chunklets"}
        Whether a chunklet carries its mixing weight once a point or once.
    inference : {"exact", "mean_field", "belief_propagation", "gibbs"} or inference object
        What to do with loopy components too wide for exact summation.
    components : callable, optional
        Samples sites of its own and returns a Distribution of batch shape (num_clusters,), in
        place of Gaussian components.
    num_points : int, optional

    References
    ----------
    Lu (2008), eqs. 2.10-2.14, 2.26. Lu and Leen (2007), Neural Computation 19, 1528-1567,
    doi:10.1162/neco.2007.19.6.1528.
    """
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(num_clusters, concentration)))
    if components is None:
        prior = resolve_prior(prior, x, num_clusters)
        dim = len(prior.mean) if x is None else jnp.shape(x)[1]
        density = gaussian_components(num_clusters, dim, covariance, prior)
    else:
        density = components()
    graph = as_label_graph(links, num_points if x is None else jnp.shape(x)[0], num_clusters)
    labels = LinkedCategorical(
        jnp.log(weights),
        graph,
        reading=reading,
        sampling=sampling,
        pair_weights=_learned_weights(graph, flip_rate, reading),
        inference=inference,
    )
    numpyro.sample("x", LinkedMixture(labels, density), obs=x)


def _learned_weights(graph: LabelGraph, flip_rate, reading: str):
    """Log-odds of the statements under a learned flip rate; None keeps the given weights."""
    if flip_rate is None:
        return None
    if reading != "relation":
        raise ValueError(
            "flip_rate is learned from links read as observed statements; pass reading='relation'"
        )
    prior = dist.Beta(*FLIP_RATE_PRIOR) if flip_rate == "learned" else flip_rate
    rate = numpyro.sample("flip_rate", prior)
    return jnp.where(graph.pair_weights > 0, 1.0, -1.0) * (jnp.log1p(-rate) - jnp.log(rate))
