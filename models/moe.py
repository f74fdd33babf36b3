"""Mixture whose components have classes of their own, learned from a few labelled rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.classes.class_mixture import ClassMixture, sample_classified
from .blocks.classes.class_table import class_table
from .blocks.classes.stated import stated_classes
from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import mixture_components, num_rows
from .blocks.label_inference.label_graph import as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.weights import mixing_weights
from .blocks.roles import Checked, Held
from .blocks.side_information.partial_labels import PartialLabels, check_known_classes

__all__ = ["moe"]


def moe(
    x: Annotated[ArrayLike | None, "points features"],
    known: Annotated[PartialLabels | None, "points classes", Checked(check_known_classes)] = None,
    *,
    num_clusters: int,
    num_classes: int,
    covariance: str = "full",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    component: Callable[[], dist.Distribution] | None = None,
    concentration: float = 1.0,
    class_concentration: ArrayLike = 1.0,
    label_noise: float = 0.0,
    num_points: int | None = None,
) -> None:
    r"""Semi-supervised mixture of experts: every component has class probabilities.

    .. math:: \pi \sim \text{Dirichlet}(\alpha), \quad (\mu_k, \Sigma_k) \sim \text{prior}, \quad
              \beta_k \sim \text{Dirichlet}(\gamma), \qquad
              p(x_i, y_i) = \sum_k \pi_k\, \mathcal{N}(x_i | \mu_k, \Sigma_k)\, \beta_{k y_i}

    Rows of unknown class have the density of the mixture. The class of a row is
    :math:`P(c | x) = \sum_k P(k | x) \beta_{kc}` (eq. 2.1); ``fit.classes()`` returns it.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
        None simulates `num_points` rows and, as site ``known``, their classes; `prior` must then be
        a GaussianPrior.
    known : PartialLabels, optional
        Class of each row, -1 if unknown, or a mask of the classes that it may have. In
        simulations, the rows about which it states something get a class; by default all do.
    num_clusters, num_classes : int
        Number of components, and of classes, including those that no row is known to have.
    covariance : {"full", "tied", "diagonal", "spherical"}
    prior : {"empirical", "flat"} or GaussianPrior
        "flat" is maximum likelihood.
    component : callable, optional
        A density other than the Gaussian; see `mixture_components`.
    concentration : float
        Parameter of the symmetric Dirichlet prior of the weights; 1 is flat.
    class_concentration : float, or array_like of shape (num_classes,)
        Parameter of the Dirichlet priors of the class probabilities; 1 is flat, larger values smooth
        them.
    label_noise : float
        Probability that a known class is wrong, all others being equally likely; see `stated_classes`.
    num_points : int, optional

    References
    ----------
    Miller and Uyar (1997), NIPS 9, 571-577. Raghuram (2014), PhD thesis, Pennsylvania State
    University, section 2.2.2.
    """
    weights = mixing_weights(num_clusters, concentration)
    density = mixture_components(x, num_clusters, covariance, prior, component)
    classes = class_table(num_clusters, num_classes, class_concentration, known=known)
    labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, num_rows(x, num_points)))
    stated = stated_classes(known, num_classes, label_noise)
    sample_classified(ClassMixture(labels, density, classes, stated), x, known, label_noise)
