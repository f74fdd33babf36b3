"""Linear features and clusters found together, under constraints on the labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .blocks.components.gaussians.gaussian import projected_gaussians
from .blocks.label_inference.label_graph import LabelGraph, as_label_graph
from .blocks.mixtures.data_units import fitted_whitening
from .blocks.mixtures.linked_categorical import LinkedCategorical
from .blocks.mixtures.linked_mixture import LinkedMixture
from .blocks.mixtures.priced_constraints import priced_constraints
from .blocks.mixtures.weights import mixing_weights
from .blocks.side_information.links import Links

__all__ = ["constraint_projection"]


def constraint_projection(
    x: Annotated[ArrayLike, "points features"],
    links: Annotated[Links | LabelGraph | None, "points"] = None,
    *,
    num_clusters: int,
    num_extracted: int = 1,
    scale: float = 10.0,
    concentration: float = 1.0,
    strength: float | None = None,
    temperature: float = 0.25,
    must_groups: Annotated[Sequence[ArrayLike], "points"] = (),
    cannot_groups: Annotated[Sequence[ArrayLike], "points"] = (),
) -> None:
    r"""Clusters that differ in a few linear features only, pulled towards the constraints.

    .. math:: y = W^\top (x - m), \qquad F^\top y \mid z = j \sim \mathcal N(u_j, I), \qquad
              P_\perp^\top y \sim \mathcal N(0, I)

    with :math:`P_\perp` an orthonormal basis of the orthogonal complement of the columns of F. The
    whitening W and m make mean and covariance of the data 0 and I. It is needed: a density of
    :math:`F^\top y` alone rewards directions of little variance, whatever the clusters, and grows
    without bound where the variance is 0. Here the likelihood is that of x, so that different F can
    be compared. F is found up to a rotation. Constraints enter as in `constraint_fit`, and its
    remarks on penalties apply.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
        No feature may be a linear function of others.
    links : Links, LabelGraph or None
    num_clusters : int
    num_extracted : int
        Number of linear features, fewer than `num_features`.
    scale : float
        Standard deviation of the normal priors of entries of F and of :math:`u_j`, in units of the
        deviation of features within clusters. Large values are the thesis' flat prior.
    concentration : float
        Parameter of the symmetric Dirichlet prior; 1 is flat.
    strength, temperature, must_groups, cannot_groups
        See `constraint_fit`.

    Raises
    ------
    ValueError
        If there are too many features to extract, or the covariance of x is singular.

    References
    ----------
    Law (2006), section 5.5, eq. 5.31; the density off the extracted features is as in Kumar and
    Andreou (1998), Speech Communication 26, 283-297, doi:10.1016/S0167-6393(98)00061-2.
    """
    if x is None:
        raise ValueError("constraint_projection needs data to whiten, and simulates none; pass x")
    num_points, num_features = jnp.shape(x)
    if not 1 <= num_extracted < num_features:
        raise ValueError(
            f"num_extracted = {num_extracted!r}; expected 1 to {num_features - 1}, fewer than the "
            f"{num_features} features of x"
        )
    center, whitening = fitted_whitening(x)
    pi = mixing_weights(num_clusters, concentration)
    shape = (num_features, num_extracted)
    projection = numpyro.sample(
        "projection",
        dist.Normal(0.0, scale).expand(shape).to_event(2),
        infer={"event_dims": ["features", "extracted"]},
    )
    with numpyro.plate("clusters", num_clusters):
        mean = numpyro.sample(
            "mean",
            dist.Normal(0.0, scale).expand((num_extracted,)).to_event(1),
            infer={"event_dims": ["extracted"]},
        )
    density = projected_gaussians(projection, mean, center, whitening)
    labels = LinkedCategorical(jnp.log(pi), as_label_graph(None, num_points))
    mixture = LinkedMixture(labels, density)
    numpyro.sample("x", mixture, obs=x)

    groups = must_groups, cannot_groups
    must, cannot = priced_constraints(mixture, x, links, *groups, strength, temperature)
    numpyro.factor("must", -must)
    numpyro.factor("cannot", cannot)
