"""Mixture of mixtures of Gaussians in which linked pairs have a joint density."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpyro
from jax.typing import ArrayLike

from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import class_components, num_rows
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.pair_laws import pair_law_options
from .blocks.mixtures.weights import mixing_weights
from .blocks.roles import Held
from .blocks.side_information.links import Links

__all__ = ["pair_mixture"]


def pair_mixture(
    x: Annotated[ArrayLike | None, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    num_components: int = 1,
    covariance: str = "full",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    concentration: float = 1.0,
    pair_law: str = "shared",
    inference: str | Inference = "exact",
    num_points: int | None = None,
) -> None:
    r"""Generative model with pairwise relations (Yu 2016, chapter 4).

    Points without links, must-linked pairs and cannot-linked pairs have densities of their own:

    .. math:: \prod_n \sum_m \alpha_m g_m(x_n)
              \prod_{\text{must}} \sum_m \omega_m g_m(x_i) g_m(x_j)
              \prod_{\text{cannot}} \sum_{m \ne m'} \nu_{mm'} g_m(x_a) g_{m'}(x_b),
              \qquad g_m(x) = \sum_k \pi_{mk} \mathcal{N}(x | \mu_{mk}, \Sigma_{mk})

    Here a cluster is a class of the thesis, and a component one of its Gaussians. Links that share
    points tie chunklets and larger connected sets together, whose density is the sum over all joint
    labelings; the thesis takes such links as independent observations instead, see
    `separate_pairs`. Finite links are a field (or a statement) of that strength.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
        None simulates `num_points` rows; `prior` must then be a GaussianPrior.
    links : Links, LabelGraph or None
    num_clusters, num_components : int
        Number of classes, and of Gaussians per class.
    covariance : {"full", "tied", "diagonal", "spherical"}
        Form of the covariance of every Gaussian; "tied" is one for all.
    prior : {"empirical", "flat"} or GaussianPrior
        "flat" is the thesis' maximum likelihood.
    concentration : float
        Parameter of the symmetric Dirichlet priors of the weights of classes and of components.
    pair_law : {"shared", "conditional", "joint"}
        Law of the classes of a pair. "shared", the thesis' own: a must-linked pair draws its class
        once, :math:`\omega = \alpha`, cannot-linked points draw until they differ, :math:`\nu =
        \alpha_m\alpha_{m'} / (1 - \sum\alpha^2)`. "conditional": both draw until they agree or
        differ, :math:`\omega = \alpha^2 / \sum\alpha^2`. "joint": pairs were drawn at random and
        then found to agree or not, :math:`\omega = \alpha^2, \nu = \alpha_m\alpha_{m'}`; the only
        one under which random pairs leave the weights unbiased.
    inference : {"exact", "mean_field", "belief_propagation", "gibbs_labels"} or inference object
        What to do with loopy connected sets too wide for exact summation; anything but
        "exact" needs ``pair_law="joint"`` there.
    num_points : int, optional

    References
    ----------
    Yu (2016), Statistical learning: generative models for dimensionality reduction, clustering and
    shape analysis, University of Utah, eqs. 4.1-4.9 (with one normaliser per pair), 4.20-4.21.
    Yu, Elhabian and Whitaker (2018), arXiv:1805.02285.
    """
    graph = as_label_graph(links, num_rows(x, num_points), num_clusters, inference)
    law = pair_law_options(pair_law, graph, num_clusters, inference)
    weights = mixing_weights(num_clusters, concentration)
    density = class_components(x, num_clusters, num_components, covariance, prior, concentration)
    labels = LinkedCategorical(jnp.log(weights), graph, inference=inference, **law)
    mixture = LinkedMixture(labels, density)
    mixture.is_untold = min(num_clusters, num_components) > 1 and not graph.states_any
    numpyro.sample("x", mixture, obs=x)
