"""A mixture classifier, moved from the domain where it was learned to another one."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpyro
from jax.typing import ArrayLike

from sidebayes.common.magnitudes import shown

from .blocks.classes.class_mixture import NamedClassMixture, sample_classified
from .blocks.classes.partitioned_classes import PartitionedClasses
from .blocks.classes.source_components import (
    FreeSourceWeights,
    SourceComponents,
    SourceWeights,
    resolve_shift,
)
from .blocks.classes.source_mixture import SourceMixture
from .blocks.classes.source_worth import chosen_weights_worth, chosen_worth
from .blocks.classes.stated import noise_of_strength, stated_classes
from .blocks.components.mixture_components import num_rows
from .blocks.components.shift_prior import ShiftPrior
from .blocks.label_inference.label_graph import as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.partitions.discriminants import Discriminants
from .blocks.roles import Chosen, Held, Like
from .blocks.side_information.partial_labels import PartialLabels

__all__ = ["domain_adaptation"]


def domain_adaptation(
    x: Annotated[ArrayLike | None, "points features", Like("source")],
    known: Annotated[PartialLabels | None, "points classes", Like("source")] = None,
    worth: Annotated[ArrayLike | None, "components", Chosen(chosen_worth)] = None,
    *,
    source: Annotated[SourceMixture, Held()],
    shift: str | ShiftPrior = "source",
    weights_worth: Annotated[ArrayLike | None, Chosen(chosen_weights_worth), Held()] = None,
    covariance: str = "full",
    strength: float = 100.0,
    posterior: str = "exact",
    num_points: int | None = None,
) -> None:
    r"""Rows of a target domain, few of known class, as a shifted mixture of a source domain.

    .. math:: w \sim \text{Dirichlet}, \quad (\mu_k, \Sigma_k) \sim \text{prior around }
              (\mu^s_k, \Sigma^s_k), \qquad
              p(x_i, y_i) = \sum_k w_k\, \mathcal{N}(x_i | \mu_k, \Sigma_k)\, P(y_i | c_k)

    Components keep the class c that they have in the source. A stated class is right with log-odds
    :math:`\beta` against any one other class: :math:`P(y | c) \propto e^{-\beta [y \ne c]}`, the
    thesis' price of an expected error. ``fit.classes()`` returns the classes of the target.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
        Rows of the target with the features of the source, matched by name where both have names.
        None simulates `num_points` rows and, as site ``known``, their classes.
    known : PartialLabels, optional
        Class of each row, -1 if unknown, or a mask of the classes that it may have. Classes have
        the names of the source, or numbers if they have no names there.
    source : SourceMixture
        See `sidebayes.fit_source`. Runs start there, and from means moved by up to two deviations.
    worth : array_like, shape (num_components,), optional
        Weight of the source under ``shift="source"``, in points of the target per component. `fit`
        chooses it by `source_worth`, from the mean and the spread of the target.
    shift : {"source", "flat"} or ShiftPrior
        "source" is a prior around the source whose strength is `worth` and `weights_worth`; see
        `WorthPrior`. If nothing indicates that the target has moved, the components stay as they
        are. "flat" is the thesis' maximum likelihood, for which the source is only a start.
    weights_worth : float, optional
        Weight of the source's weights under ``shift="source"``, in points of the target for all
        components together; 0 leaves the frequencies of classes to the target. `fit` chooses it
        with `worth`; if `worth` is given, it is `worth` times the number of components.
    covariance : {"full", "diagonal"}
    strength : float
        :math:`\beta`, in nats; 0 ignores the known classes, infinity keeps them.
    posterior : {"exact", "partition"}
        "exact" sums the components out (the thesis' DA-NP; "flat" and infinite strength are its
        Method II). "partition" has one rule :math:`q(k | x) = \text{softmax}_k \psi_k(x)` with quadratic
        :math:`\psi` for all rows (DA-P): the log density is a lower bound, and a known class moves the
        components around its row.
    num_points : int, optional

    References
    ----------
    Raghuram (2014), PhD thesis, Pennsylvania State University, chapter 4.
    """
    if not isinstance(posterior, str) or posterior not in ("exact", "partition"):
        raise ValueError(f"posterior = {shown(posterior)}; expected 'exact' or 'partition'")
    prior = resolve_shift(shift, source, x, worth, weights_worth, known, strength)
    restricted = posterior == "partition" and x is not None
    weights = SourceWeights if restricted else FreeSourceWeights
    log_weights = jnp.log(weights(source, prior).sample("weights", "components"))
    gaussians = SourceComponents(source, covariance, prior, x, known, strength)
    density, classes = gaussians.sample(), jnp.asarray(source.table)
    noise = noise_of_strength(strength, source.num_classes)
    told = known if strength else None
    stated = stated_classes(told, source.num_classes, noise if strength else 0.0)
    graph = as_label_graph(None, num_rows(x, num_points))
    if restricted and x is not None:
        size = source.num_components
        block = Discriminants(size, covariance, gaussians, weights=source.weights)
        rule = block.sample(x, "discriminants")
        free = LinkedCategorical(jnp.zeros(size), graph, reading="relation")
        mixture = PartitionedClasses(free, density, log_weights, rule, classes, stated)
        numpyro.sample("x", mixture, obs=x)
    else:
        labels = LinkedCategorical(log_weights, graph)
        sample_classified(NamedClassMixture(labels, density, classes, stated), x, known, noise)
