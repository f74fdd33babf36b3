"""Mixture fitted under constraints on its labels, with a penalised objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import mixture_components
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.priced_constraints import priced_constraints
from .blocks.mixtures.weights import mixing_weights
from .blocks.roles import Held
from .blocks.side_information.links import Links

__all__ = ["constraint_fit"]


def constraint_fit(
    x: Annotated[ArrayLike, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    covariance: str = "tied",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    component: Callable[[], dist.Distribution] | None = None,
    concentration: float = 1.0,
    strength: float | None = None,
    temperature: float = 0.25,
    must_groups: Annotated[Sequence[ArrayLike], "points"] = (),
    cannot_groups: Annotated[Sequence[ArrayLike], "points"] = (),
) -> None:
    r"""Mixture whose parameters are pulled towards labels that keep the constraints.

    .. math:: \mathcal J(\theta) = \log p(\theta) + \sum_i \log \sum_j q_{ij}
              - \sum_{h \in \text{must}} \lambda_h D_h + \sum_{h \in \text{cannot}} \lambda_h D_h,
              \qquad q_{ij} = \pi_j\, p(x_i \mid \theta_j)

    :math:`D_h` is the Jensen-Shannon divergence among the soft labels
    :math:`s_{ij} \propto q_{ij}^{1/T}` of the points in constraint h. Labels are
    :math:`\arg\max_j q_{ij}`, a function of features and parameters alone: a constraint moves
    parameters, never a label, so points with equal features have equal labels, constrained or not.

    This is not a generative model but a mixture with a penalty. Nothing can be simulated from it;
    the prices :math:`\lambda_h` cannot be learned from its density, which has no normaliser over
    constraints; and draws from it are draws from a Gibbs posterior.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    links : Links, LabelGraph or None
        Pairs. The absolute weight of a link is its :math:`\lambda_h`, in nats; a link of infinite
        weight costs `strength`, and can be violated like any other.
    num_clusters : int
    covariance : {"full", "tied", "diagonal", "spherical"}
        The thesis has one covariance for all clusters, "tied".
    prior : {"empirical", "flat"} or GaussianPrior
        "flat" is the thesis' objective.
    component : callable, optional
        A density other than the Gaussian; see `mixture_components`.
    concentration : float
        Parameter of the symmetric Dirichlet prior; 1 is flat.
    strength : float, optional
        :math:`\lambda_h` of infinite links and of groups, in nats; the number of points if None,
        since it must outweigh what the constraint costs in likelihood.
    temperature : float
        :math:`T`; towards 0, divergences count violated constraints.
    must_groups, cannot_groups : sequence of array_like of int
        Sets of two or more rows whose labels should be equal, or as different as possible.

    References
    ----------
    Law (2006), Clustering, Dimensionality Reduction, and Side Information, Michigan State
    University, eqs. 5.11-5.16; temperature is one over his :math:`\tau`.
    """
    if x is None:
        raise ValueError("constraint_fit is a penalised objective: nothing is simulated; pass x")
    pi = mixing_weights(num_clusters, concentration)
    density = mixture_components(x, num_clusters, covariance, prior, component)
    labels = LinkedCategorical(jnp.log(pi), as_label_graph(None, jnp.shape(x)[0]))
    mixture = LinkedMixture(labels, density)
    numpyro.sample("x", mixture, obs=x)

    groups = must_groups, cannot_groups
    must, cannot = priced_constraints(mixture, x, links, *groups, strength, temperature)
    numpyro.factor("must", -must)
    numpyro.factor("cannot", cannot)
