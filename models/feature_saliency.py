"""Mixture that learns which features matter to its clusters, and how many clusters there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.components.gaussian_prior import GaussianPrior
from .blocks.components.mixture_components import num_rows
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.reliability import learned_pair_weights
from .blocks.mixtures.weights import cluster_weights
from .blocks.roles import Checked, Chosen, Held, Missing
from .blocks.saliency.feature_block import SalientFeatures
from .blocks.saliency.message_length import check_selection, improper_weights
from .blocks.saliency.mixed_block import MixedFeatures
from .blocks.saliency.repeated import check_levels, kinds_of_columns, say_levels
from .blocks.saliency.saliency_mixture import SaliencyMixture
from .blocks.side_information.hard_links import check_known_clusters
from .blocks.side_information.links import Links
from .blocks.side_information.partial_labels import PartialLabels, log_admissible

__all__ = ["feature_saliency"]


def feature_saliency(
    x: Annotated[ArrayLike | None, "points features", Missing()],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    known: Annotated[PartialLabels | None, "points", Checked(check_known_clusters)] = None,
    *,
    num_clusters: int,
    selection: str = "mml",
    prior: Annotated[str | GaussianPrior, Held()] = "empirical",
    concentration: float | None = None,
    saliency_prior: tuple[float, float] | None = None,
    reading: str = "relation",
    flip_rate: dist.Distribution | str | None = None,
    weight_per: str = "point",
    inference: str | Inference = "exact",
    kinds: Annotated[
        Sequence[str] | str | None, Chosen(kinds_of_columns, suit=check_levels, say=say_levels)
    ] = None,
    num_points: int | None = None,
) -> None:
    r"""Mixture of diagonal Gaussians with a saliency for every feature (Law 2006, chapter 4).

    .. math:: z_i \sim \text{Categorical}(\pi), \quad \phi_{il} \sim \text{Bernoulli}(\rho_l), \quad
              x_{il} \sim \begin{cases} \mathcal{N}(\mu_{z_i l}, \sigma^2_{z_i l}) & \phi_{il} = 1 \\
              \mathcal{N}(m_l, v_l) & \phi_{il} = 0 \end{cases}

    Labels z and relevances :math:`\phi` are summed out. The density with index zero is common to all
    clusters: a feature of saliency :math:`\rho_l = 0` says nothing about them.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features), or None
        NaN where a value is missing: it is integrated out. None simulates `num_points` rows; `prior` must
        then be a GaussianPrior, and `selection` "sparse".
    links : Links, LabelGraph or None
    known : PartialLabels, optional
        Known clusters of some points.
    num_clusters : int
        Maximum number of clusters.
    selection : {"mml", "sparse"}
        Prior of the structure. "mml" is the minimum message length (see `structure_length`), an improper
        prior under which `ComponentwiseEM` leaves out clusters and features. "sparse" is a proper one,
        :math:`\pi \sim \text{Dirichlet}(\alpha)` and :math:`\rho_l \sim \text{Beta}(a, b)`, which can be
        sampled.
    prior : {"empirical", "flat"} or GaussianPrior
        Prior of means and variances; see `SalientFeatures`.
    concentration : float, optional
        :math:`\alpha`, 1 / num_clusters by default.
    saliency_prior : (float, float), optional
        a and b, (0.5, 0.5) by default. Under "mml" neither `concentration` nor this option is
        accepted.
    reading, flip_rate, weight_per, inference
        See `ppc`; links are read as statements by default.
    kinds : "normal" or sequence of str, optional
        Kind of each feature: "normal", "count" (Poisson), "category:C" (one of C categories) or
        "ordered:C" (C ordered levels, binomial). Categories and levels are coded 0, 1, ..., or have
        the named values, as in "category:-1,1"; see `MixedFeatures` for their priors. They need x,
        and a proper `prior`. By default `sidebayes.fit` treats columns with few distinct values as
        categories, see `kinds_of_columns`, and all others as normal.
    num_points : int, optional

    References
    ----------
    Law (2006), Michigan State University, eqs. 4.6 and 4.24. Law, Figueiredo and Jain (2004), IEEE Trans.
    Pattern Anal. Mach. Intell. 26, 1154-1166, doi:10.1109/TPAMI.2004.71. Rousseau and Mengersen (2011),
    J. R. Stat. Soc. B 73, 689-710, doi:10.1111/j.1467-9868.2011.00781.x, for sparse weights.
    """
    size = num_rows(x, num_points)
    graph = as_label_graph(links, size, num_clusters, inference)
    given = {"concentration": concentration, "saliency_prior": saliency_prior}
    proper = check_selection(selection, graph, reading, **given)
    beta = (0.5, 0.5) if saliency_prior is None else saliency_prior
    own = beta if proper else None
    features: SalientFeatures | MixedFeatures
    if kinds is None or (isinstance(kinds, str) and kinds == "normal"):
        features = SalientFeatures(x, num_clusters, prior, own)
    else:
        features = MixedFeatures(x, num_clusters, prior, own, kinds)
    density = features.sample()
    if proper:
        weight = 1 / num_clusters if concentration is None else concentration
        pi = cluster_weights(graph, num_clusters, weight, None, reading, inference)
    else:
        pi = improper_weights(num_clusters)
        length = features.structure_length(density, pi) + features.density_length(density, pi)
        numpyro.factor("structure", -length)
    labels = LinkedCategorical(
        jnp.log(pi),
        graph,
        reading=reading,
        weight_per=weight_per,
        pair_weights=learned_pair_weights(graph, flip_rate, reading),
        inference=inference,
    )
    admitted = log_admissible(known, num_clusters)
    numpyro.sample("x", SaliencyMixture(labels, density, admitted), obs=x)
