"""Mixture of linear mixed effects: latent classes of subjects, which links may tie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.effects.class_parameters import class_parameters
from .blocks.effects.densities.mixture import EffectsMixture
from .blocks.effects.priors import EffectsPrior
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.reliability import learned_pair_weights
from .blocks.mixtures.weights import cluster_weights
from .blocks.roles import Checked, Held
from .blocks.side_information.groups import Groups, as_groups
from .blocks.side_information.hard_links import check_known_clusters
from .blocks.side_information.links import Links
from .blocks.side_information.partial_labels import PartialLabels, log_admissible

__all__ = ["mixed_effects_mixture"]


def mixed_effects_mixture(
    y: Annotated[ArrayLike | None, "rows"],
    fixed: Annotated[ArrayLike, "rows terms"],
    random: Annotated[ArrayLike, "rows effects"],
    subjects: Annotated[Groups, "rows"],
    outputs: Annotated[ArrayLike | None, "rows outputs"] = None,
    links: Annotated[Links | LabelGraph | None, "subjects"] = None,
    known: Annotated[PartialLabels | None, "subjects", Checked(check_known_clusters)] = None,
    *,
    num_clusters: int,
    covariance: str | tuple[int, ...] = "full",
    shared: str | Sequence[str] = (),
    shared_terms: Sequence[int] = (),
    prior: Annotated[str | EffectsPrior, Held()] = "flat",
    concentration: float = 1.0,
    weights: ArrayLike | str | None = None,
    reading: str = "field",
    flip_rate: dist.Distribution | str | None = None,
    weight_per: str = "point",
    inference: str | Inference = "exact",
) -> None:
    r"""Mixture of linear mixed effects (Lu 2008, section 7.4), with links between subjects.

    .. math:: \pi \sim \text{Dirichlet}(\alpha), \quad
              P(z) \propto \prod_s \pi_{z_s} \prod_{(s,t)} e^{w_{st}[z_s = z_t]}, \\
              y_r = x_r^\top \beta_{z_s} + w_r^\top b_s + \epsilon_r, \quad
              b_s \sim N(0, D_{z_s}), \quad \epsilon_r \sim N(0, \sigma_{z_s o(r)}^2)

    for row r of subject s, which measures output o(r). In each class this is `mixed_effects`; labels and
    random effects are integrated out. Lu trains each class on subjects whose class is known; here
    classes may be known for all subjects, for some, or for none. The thesis has no links between
    subjects.

    Parameters
    ----------
    y : array_like, shape (num_rows,), or None
        None simulates; `prior` must then be an EffectsPrior.
    fixed : array_like, shape (num_rows, num_terms)
        Columns x of the fixed effects.
    random : array_like, shape (num_rows, num_effects)
        Columns w of the random effects.
    subjects : Groups
    outputs : array_like, shape (num_rows, num_outputs), optional
        See `mixed_effects`.
    links : Links, LabelGraph or None
        Links between subjects, by their numbers in ``subjects.names``.
    known : PartialLabels, optional
        Known classes of some subjects.
    num_clusters : int
    covariance : {"full", "diagonal"} or tuple of int
        All random effects are correlated, none are, or those in blocks of these sizes: with one block
        per output, outputs are independent given the class (naive Bayes).
    shared : some of {"covariance", "noise"}
        Parameters that all classes have in common; by default each has its own.
    shared_terms : sequence of int
        Columns of the fixed effects with one coefficient for all classes, such as covariates.
    prior : {"flat"} or EffectsPrior
        Prior of the parameters of each class; "flat" is maximum likelihood.
    concentration : float
        Parameter of the symmetric Dirichlet prior of the weights; 1 is flat.
    weights, reading, flip_rate, weight_per, inference
        See `ppc`.

    References
    ----------
    Lu (2008), sections 7.4 and 8.4. Verbeke and Lesaffre (1996), J. Am. Stat. Assoc. 91, 217-221,
    doi:10.1080/01621459.1996.10476679. Proust-Lima, Philipps and Liquet (2017), J. Stat. Softw. 78(2),
    doi:10.18637/jss.v078.i02.
    """
    subjects = as_groups(subjects)
    graph = as_label_graph(links, subjects.num_groups, num_clusters, inference)
    pi = cluster_weights(graph, num_clusters, concentration, weights, reading, inference)
    fixed, random = jnp.asarray(fixed), jnp.asarray(random)
    outputs = None if outputs is None else jnp.asarray(outputs)
    parameters = class_parameters(
        y,
        fixed,
        random,
        subjects,
        outputs,
        num_clusters=num_clusters,
        covariance=covariance,
        shared=shared,
        shared_terms=shared_terms,
        prior=prior,
        known=known,
    )
    coefficients = parameters.coefficients()
    scale_tril, noise = parameters.scale_tril(), parameters.noise()
    labels = LinkedCategorical(
        jnp.log(pi),
        graph,
        reading=reading,
        weight_per=weight_per,
        pair_weights=learned_pair_weights(graph, flip_rate, reading),
        inference=inference,
    )
    log_side = log_admissible(known, num_clusters)
    fn = EffectsMixture(
        labels,
        fixed,
        coefficients,
        random,
        subjects,
        scale_tril=scale_tril,
        noise=noise,
        outputs=outputs,
        log_side=log_side,
    )
    numpyro.sample("y", fn, obs=y)
