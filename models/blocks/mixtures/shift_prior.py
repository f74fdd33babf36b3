"""Priors of components that were known elsewhere, and have shifted since."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from ..fields import NonNegative, check_fields

__all__ = ["ComponentPriors", "ShiftPrior"]


class ComponentPriors(NamedTuple):
    r"""A `GaussianPrior` for every component: each has a centre and a scale of its own.

    Attributes
    ----------
    mean : Array, shape (num_components, num_features)
    shrinkage, df : Array, shape (num_components,)
    scale : Array, shape (num_components, num_features, num_features)
    """

    mean: Array
    shrinkage: Array
    df: Array
    scale: Array


@dataclass(frozen=True)
class ShiftPrior:
    r"""Components are those of a source, up to a shift whose price is counted in points.

    With the parameters :math:`(w^s_k, \mu^s_k, \Sigma^s_k)` of a source, and :math:`n^s_k` points that
    they were learned from,

    .. math:: \Sigma_k \sim \mathcal{W}^{-1}(M_k - d - 1,\; M_k \Sigma^s_k), \qquad
              \mu_k \mid \Sigma_k \sim \mathcal{N}(\mu^s_k, \Sigma_k / \kappa_k), \qquad
              w \sim \text{Dirichlet}(1 + a\, n^s)

    with :math:`\kappa_k = b\, n^s_k` and :math:`M_k = c\, n^s_k`. The mode of each covariance is that of
    the source. With weights of one a source point counts as much as a point of the target; with less,
    this is the power prior of the source. :math:`M_k` is at least 2 d + 1, and :math:`\kappa_k` at least
    0.01, which keeps the prior proper. Features of "diagonal" covariances have such a prior each, with
    one in place of d.

    Parameters
    ----------
    mean, covariance : float
        b and c: what a source point says of the place and of the form of its component, in points of the
        target.
    weights : float
        a; by default the source says nothing about how frequent components are in the target.

    References
    ----------
    Raghuram (2014), PhD thesis, Pennsylvania State University, section 4.2.3, who proposes the prior of
    means and covariances and does not evaluate it. Ibrahim and Chen (2000), Statistical Science 15, 46-60.
    """

    mean: NonNegative = 1.0
    covariance: NonNegative = 1.0
    weights: NonNegative = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    def around(
        self, mean: ArrayLike, covariance: ArrayLike, counts: ArrayLike, *, form: str
    ) -> ComponentPriors:
        """Prior of means and covariances around those of a source.

        Parameters
        ----------
        mean : array_like, shape (num_components, num_features)
        covariance : array_like, shape (num_components, num_features, num_features)
        counts : array_like, shape (num_components,)
            Points of the source in each component.
        form : {"full", "diagonal"}
            Of the covariances in the target.
        """
        counts = np.asarray(counts, float)
        size = np.shape(mean)[1] if form == "full" else 1
        weight = np.maximum(self.covariance * counts, 2 * size + 1)
        return ComponentPriors(
            jnp.asarray(mean),
            jnp.asarray(np.maximum(self.mean * counts, 0.01)),
            jnp.asarray(weight - size - 1.0),
            jnp.asarray(weight[:, None, None] * np.asarray(covariance)),
        )

    def concentration(self, counts: ArrayLike) -> Array:
        """Concentrations of the Dirichlet prior of the weights, shape (num_components,)."""
        return 1.0 + self.weights * jnp.asarray(counts, float)
