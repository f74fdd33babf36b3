"""Penalized probabilistic clustering: a mixture whose labels are tied by links."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike

from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import mixture_components, num_rows
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.label_inference.partition import check_inference
from .blocks.mixtures.linked_categorical import LinkedCategorical, check_reading
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.reliability import FlipRate
from .blocks.mixtures.weights import mixing_weights
from .blocks.side_information.links import Links

__all__ = ["FLIP_RATE_PRIOR", "cluster_weights", "learned_weights", "ppc"]

FLIP_RATE_PRIOR = (1.0, 4.0)
"""Beta prior of a learned flip rate: mean 0.2, no flips most probable a priori."""


def ppc(
    x: Annotated[ArrayLike | None, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    covariance: str = "full",
    prior: str | GaussianPrior = "empirical",
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
        Another density than the Gaussian; see `mixture_components`.
    concentration : float
        Of the symmetric Dirichlet prior; 1 is flat.
    weights : array_like, shape (num_clusters,), or "uniform", optional
        Fix the mixing weights, so that the partition function of a field is a constant.
    reading : {"field", "relation"}
        Links as a random field over labels, with its partition function (the thesis), or as
        observed statements about labels that are independent a priori.
    flip_rate : Distribution, "learned" or None
        Under the relation reading, prior of the probability that a statement is wrong, learned in
        place of the finite link weights ("learned" is Beta(1, 4)); one per group where links say
        who stated them, ``Links(..., group=)``. This part is not in the thesis.
    weight_per : {"point", "chunklet"}
        Whether a chunklet of n points carries its mixing weight n times or once.
    inference : {"exact", "mean_field", "belief_propagation", "gibbs_labels"} or inference object
        What to do with loopy components too wide for exact summation.
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
        pair_weights=learned_weights(graph, flip_rate, reading),
        inference=inference,
    )
    numpyro.sample("x", LinkedMixture(labels, density), obs=x)


def cluster_weights(
    graph: LabelGraph,
    num_clusters: int,
    concentration: float,
    weights: ArrayLike | str | None,
    reading: str,
    inference: str | Inference,
) -> Array:
    """Mixing weights, learned or given, shape (num_clusters,); parameters are those of `ppc`."""
    check_reading(reading)
    if weights is None:
        _refuse_inexact_field(graph, num_clusters, reading, inference)
        return mixing_weights(num_clusters, concentration)
    with numpyro.plate("clusters", num_clusters):
        return numpyro.deterministic("weights", _fixed_weights(weights, num_clusters))


def learned_weights(
    graph: LabelGraph, flip_rate: dist.Distribution | str | None, reading: str
) -> Array | None:
    """Log-odds of the statements under a learned flip rate; None keeps the given weights."""
    if flip_rate is None:
        return None
    if reading != "relation":
        raise ValueError(
            "flip_rate is learned from links read as observed statements; pass reading='relation'"
        )
    if not (flip_rate == "learned" if isinstance(flip_rate, str) else _is_prior(flip_rate)):
        raise ValueError(
            f"flip_rate = {flip_rate!r}; expected 'learned' or a NumPyro distribution on (0, 1). A "
            "known flip rate q goes into the links: links.with_strength(flip_rate_weight(q))"
        )
    given = graph.pair_weights
    if isinstance(given, np.ndarray) and not len(given):
        raise ValueError(
            "flip_rate is learned from links, and there are none; pass links, or leave flip_rate out"
        )
    if isinstance(given, np.ndarray) and np.isinf(given).all():
        raise ValueError(
            "flip_rate is learned from soft links, and all of these are hard, which is to say beyond "
            "doubt; pass links.with_strength(1.0)"
        )
    prior = dist.Beta(*FLIP_RATE_PRIOR) if isinstance(flip_rate, str) else flip_rate
    several = graph.num_groups > 1
    with numpyro.plate("link_groups", graph.num_groups) if several else nullcontext():
        rate = FlipRate(prior, graph).sample("flip_rate")
    rate = rate[graph.group] if several else rate
    return jnp.sign(given) * (jnp.log1p(-rate) - jnp.log(rate))


def _is_prior(value: object) -> bool:
    """Whether a value is a distribution of one number between 0 and 1."""
    if not isinstance(value, dist.Distribution) or value.shape() != ():
        return False
    low, high = (getattr(value.support, f"{end}_bound", np.nan) for end in ("lower", "upper"))
    return isinstance(low, Tracer) or isinstance(high, Tracer) or bool(0 <= low < high <= 1)


def _fixed_weights(weights: ArrayLike | str, num_clusters: int) -> Array:
    if isinstance(weights, str):
        if weights != "uniform":
            raise ValueError(
                f"weights = {weights!r}; expected 'uniform', a vector, or None to learn"
            )
        return jnp.full(num_clusters, 1 / num_clusters)
    given = np.asarray(weights, float)
    if given.shape != (num_clusters,) or not (given > 0).all() or abs(given.sum() - 1) > 1e-6:
        raise ValueError(
            f"weights = {given}; expected {num_clusters} positive numbers that sum to 1"
        )
    return jnp.asarray(given)


def _refuse_inexact_field(
    graph: LabelGraph, num_clusters: int, reading: str, inference: str | Inference
) -> None:
    """Learned mixing weights need the partition function of a field, and its slope, exactly."""
    if reading != "field":
        return
    remedy = (
        "use reading='relation', links as statements, or weights='uniform', with an approximation"
    )
    approximation = check_inference(graph, num_clusters, inference, remedy)
    if approximation is not None:
        raise ValueError(
            f"mixing weights cannot be learned under reading='field' with {approximation}: their "
            "partition function would be approximate too. Use reading='relation', links as statements, "
            "or weights='uniform'"
        )
