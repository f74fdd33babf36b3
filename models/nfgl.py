"""Mixture in whose components nearby labelled rows determine the class."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from sidebayes.common.fields import Range, check_number

from .blocks.classes.anchors import Anchors
from .blocks.classes.neighbours import NeighbourMixture, anchor_distances
from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import mixture_components
from .blocks.label_inference.label_graph import as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.weights import mixing_weights
from .blocks.roles import Held, Omissible

__all__ = ["nfgl"]


def nfgl(
    x: Annotated[ArrayLike, "points features"],
    assigned: Annotated[ArrayLike | None, "points", Omissible()] = None,
    *,
    anchors: Annotated[Anchors, Held()],
    num_clusters: int,
    num_classes: int,
    covariance: str = "full",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    concentration: float = 1.0,
    smoothing: float = 1e-3,
) -> None:
    r"""Non-parametric fine-grained labelling: the labelled rows of a component vote on classes.

    .. math:: \Phi = \log p(\theta) + \sum_{i\ \text{free}} \log \sum_j \pi_j\, p(x_i | \theta_j)
              + \sum_{i\ \text{labelled}} \log \pi_{v_i}\, p(x_i | \theta_{v_i})
              + \sum_{i\ \text{labelled}} \log p_{v_i, i}(c_i), \\
              P(c | x) = \sum_j P(j | x)\, p_j(c | x)

    The last sum of :math:`\Phi` is a composite likelihood (pseudo-likelihood) of the classes, each given
    the others in its component (`conditionals`). **It is not a likelihood**: in general these
    conditionals contradict each other, so that no joint distribution of the classes has them, contrary
    to the source. Posteriors under it are Gibbs posteriors, which are usually too narrow in the scales,
    and classes cannot be simulated. `pfgl` is the generative relative.

    Each labelled row is in one component :math:`v_i`, which is determined beforehand:
    `sidebayes.fit_nfgl` takes rows and classes and does everything. Distances are Euclidean: pass
    features in one unit, such as standardised ones.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    assigned : array_like of int, shape (num_points,), optional
        Component of each labelled row, -1 for all others; at new rows it is left out.
    anchors : Anchors
        The labelled rows, their classes and components.
    num_clusters, num_classes : int
    covariance : {"full", "tied", "diagonal", "spherical"}
    prior : {"empirical", "flat"} or GaussianPrior
        Prior of the components. Unless it is "flat", as in the thesis, logarithms of the scales
        :math:`a_j` are normal about minus that of the median squared distance to the nearest other
        anchor, with a standard deviation of 2.
    concentration : float
    smoothing : float
        Weight of a component's class table against the nearest labelled row, above 0; see `Prototypes`.

    References
    ----------
    Raghuram (2014), PhD thesis, Pennsylvania State University, section 2.3. Miller, Raghuram, Kesidis
    and Collins (2012), Neural Computation 24, 1926-1966.
    """
    if not isinstance(anchors, Anchors):
        raise TypeError(
            f"anchors is a {type(anchors).__name__}; pass Anchors, or use sidebayes.fit_nfgl"
        )
    if jnp.shape(anchors.table) != (num_clusters, num_classes):
        raise ValueError(
            f"anchors have a table of shape {jnp.shape(anchors.table)}; expected "
            f"{(num_clusters, num_classes)}, num_clusters by num_classes"
        )
    smoothing = check_number("smoothing", smoothing, Range(above=0.0, most=1.0))
    weights = mixing_weights(num_clusters, concentration)
    density = mixture_components(x, num_clusters, covariance, prior)
    apart, typical = anchor_distances(anchors)
    free = isinstance(prior, str) and prior == "flat"
    width = dist.ImproperUniform(constraints.real, (), ()) if free else dist.Normal(-typical, 2.0)
    with numpyro.plate("clusters", num_clusters):
        scale = jnp.exp(numpyro.sample("log_scale", width))
    labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, jnp.shape(x)[0]))
    found = anchors.prototypes(scale, smoothing)
    law = NeighbourMixture(labels, density, found, assigned)
    numpyro.sample("x", law, obs=x, infer={"composite": True})
    numpyro.factor("classes", anchors.log_pseudo_likelihood(apart, scale, smoothing).sum())
