"""Gaussian-process classifier learned from statements about pairs of points."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.kernels.curve_checks import check_positive
from .blocks.kernels.latent_classifier import LatentClassifier, warn_of_offset
from .blocks.label_inference.approximate import Inference
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.mixtures.data_units import fitted_statistic
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.pair_likelihoods import pair_likelihood
from .blocks.mixtures.reliability import learned_pair_weights
from .blocks.roles import Checked, KernelFeatures
from .blocks.side_information.links import Links

__all__ = ["pairwise_gp"]

_VARIANCE = 10.0
"""Variance of the difference of two latent functions, on average over the points."""


def pairwise_gp(
    x: Annotated[ArrayLike, "points features", KernelFeatures(), Checked(warn_of_offset)],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    variance: float | dist.Distribution | None = None,
    likelihood: str = "exact",
    flip_rate: dist.Distribution | str | None = None,
    inference: str | Inference = "exact",
) -> None:
    r"""Gaussian-process classifier with pairwise observations (Lu 2008, chapter 4).

    .. math:: f_m \sim \mathcal{GP}(0, \tfrac{\lambda}{2} x x^T), \quad
              P(z_i = m) = \operatorname{softmax}(f_{1i}, \dots, f_{Mi})_m, \quad
              P(\text{statement about } i, j) = \sigma(w_{ij})^{[z_i = z_j]}
              (1 - \sigma(w_{ij}))^{[z_i \ne z_j]}

    Latent functions are linear in the rows of `x`, so these are features of a kernel: those of
    `GraphKernel.features` make functions that vary slowly along clusters, raw data a linear
    classifier. The labels are summed out, and the coefficients are whitened. For two classes, the
    difference of the functions is the thesis' f, of variance :math:`\lambda`.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
        Features of a kernel :math:`x x^T`. Functions are zero where all features are.
    links : Links, LabelGraph or None
        Hard and soft statements; without any the posterior is the prior.
    num_clusters : int
    variance : float or Distribution, optional
        :math:`\lambda`, the variance of the difference of two latent functions where the kernel is
        one; a distribution makes it learned. By default ten over the mean diagonal of the kernel,
        whatever the units of the features; it is recorded as site ``variance``. If it is small, the
        mode is at zero.
    likelihood : {"exact", "factorised", "jensen"}
        How labels of overlapping statements are summed out: jointly, a product over statements (Lu
        2008, eq. 4.22; exact if no point is in two statements), or Jensen's lower bound (eq. 4.23,
        soft links only). Labels given the functions are inferred jointly in any case.
    flip_rate : Distribution, "learned" or None
        See `ppc`.
    inference : {"exact", "mean_field", "belief_propagation", "gibbs_labels"} or inference object
        What to do with loopy connected sets too wide for exact summation.

    References
    ----------
    Lu (2008), eqs. 4.1, 4.17-4.24. Functions of permuted labels are equally probable, so marginal label
    probabilities of the full posterior are uniform (proposition 1): use a mode, or quantities that do
    not depend on the numbering of labels.
    """
    if x is None:
        raise ValueError(
            "pairwise_gp has no density of points; pass x, e.g. GraphKernel.features()"
        )
    x = jnp.asarray(x)
    graph = as_label_graph(links, len(x), num_clusters, inference)
    statements = pair_likelihood(likelihood, graph)
    if variance is None:
        size = jnp.square(x).sum(axis=1).mean()
        variance = fitted_statistic("variance", _VARIANCE / jnp.where(size > 0, size, 1.0))
    elif isinstance(variance, dist.Distribution):
        variance = numpyro.sample("variance", variance)
    else:
        variance = check_positive("variance", variance)
    weights = learned_pair_weights(graph, flip_rate, "relation")
    with numpyro.plate("clusters", num_clusters):
        unit = dist.Normal().expand([x.shape[1]]).to_event(1)
        declared = {"event_dims": ["features"], "contrasts": True}
        coefficients = numpyro.sample("coefficients", unit, infer=declared)
    labels = LinkedCategorical(
        jnp.zeros(num_clusters),
        graph,
        reading="relation",
        pair_weights=weights,
        inference=inference,
    )
    classifier = LatentClassifier(jnp.sqrt(variance / 2) * coefficients)
    numpyro.sample("statements", statements(labels, classifier), obs=x)
