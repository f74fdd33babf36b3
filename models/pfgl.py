"""Mixture in whose components the nearest prototype determines the class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import jax.numpy as jnp
from jax.typing import ArrayLike

from .blocks.classes.class_mixture import sample_classified
from .blocks.classes.prototype_block import class_prototypes
from .blocks.classes.prototypes import PrototypeMixture
from .blocks.classes.stated import stated_classes
from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import mixture_components, num_rows
from .blocks.label_inference.label_graph import as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.weights import mixing_weights
from .blocks.roles import Checked, Held
from .blocks.side_information.partial_labels import PartialLabels, check_known_classes

__all__ = ["pfgl"]


def pfgl(
    x: Annotated[ArrayLike | None, "points features"],
    known: Annotated[PartialLabels | None, "points classes", Checked(check_known_classes)] = None,
    *,
    num_clusters: int,
    num_classes: int,
    prototypes: Annotated[Sequence[tuple[int, int]], Held()],
    covariance: str = "full",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    concentration: float = 1.0,
    label_noise: float = 0.0,
    num_points: int | None = None,
) -> None:
    r"""Parametric fine-grained labelling: within a component, the nearest prototype determines the class.

    .. math:: \pi \sim \text{Dirichlet}(\alpha), \quad (\mu_j, \Sigma_j) \sim \text{prior}, \qquad
              p(x_i, y_i) = \sum_j \pi_j\, \mathcal{N}(x_i | \mu_j, \Sigma_j)\, P(y_i \mid j, x_i), \\
              P(c \mid j, x) \propto \sum_{l \in j,\, m_l = c} e^{-a_j \|x - s_l\|^2}

    Rows of unknown class have the density of the mixture. Prototypes :math:`s_l` lie where the
    density is highest, which is not necessarily among the rows. With one class in each component it is
    `moe` with certain tables; as :math:`a_j \to 0`, `moe` with the shares of the classes among the
    prototypes; as :math:`a_j \to \infty`, the nearest prototype. Distances are Euclidean: pass features
    in one unit, such as standardised ones.

    `sidebayes.grow_prototypes` chooses the number of prototypes and where they start.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
        None simulates `num_points` rows and, as site ``known``, their classes; `prior` must then be
        a GaussianPrior.
    known : PartialLabels, optional
        As for `moe`.
    num_clusters, num_classes : int
    prototypes : sequence of (int, int)
        Component and class of each prototype, classes by number: named ones in sorted order, or in that of
        `PartialLabels`. A component without prototypes has the class shares of
        the labelled rows. Each class that is stated needs one, unless there is such a component.
    covariance : {"full", "tied", "diagonal", "spherical"}
    prior : {"empirical", "flat"} or GaussianPrior
        Prior of the components, of prototypes and of scales. Prototypes lie around the centre of
        the data, with twice their standard deviation; log scales are normal about minus the log
        squared distance of two points of a component, with a standard deviation of 2. "flat" is the
        thesis' maximum likelihood.
    concentration : float
    label_noise : float
        See `stated_classes`.
    num_points : int, optional

    References
    ----------
    Raghuram (2014), PhD thesis, Pennsylvania State University, section 2.4. Miller, Raghuram, Kesidis
    and Collins (2012), Neural Computation 24, 1926-1966.
    """
    weights = mixing_weights(num_clusters, concentration)
    density = mixture_components(x, num_clusters, covariance, prior)
    stated = stated_classes(known, num_classes, label_noise)
    told = known, label_noise
    found = class_prototypes(x, num_clusters, num_classes, prototypes, prior, *told)
    labels = LinkedCategorical(jnp.log(weights), as_label_graph(None, num_rows(x, num_points)))
    sample_classified(PrototypeMixture(labels, density, found, stated), x, known, label_noise)
