"""Priors of components that are known from a source, and have shifted in the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from sidebayes.common.fields import NonNegative, Positive, check_fields

__all__ = ["ComponentPriors", "ShiftPrior", "WorthPrior"]


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

    @property
    def variance_df(self) -> Array:
        """Degrees of freedom of the variances of single features, which correspond to `df`."""
        return self.df


@dataclass(frozen=True)
class ShiftPrior:
    r"""Prior of components around those of a source, with the price of a shift counted in points.

    With the parameters :math:`(w^s_k, \mu^s_k, \Sigma^s_k)` of a source,

    .. math:: \Sigma_k \sim \mathcal{W}^{-1}(M - d - 1,\; M \Sigma^s_k), \qquad
              \mu_k \mid \Sigma_k \sim \mathcal{N}(\mu^s_k, \Sigma_k / \kappa), \qquad
              w \sim \text{Dirichlet}(1 + a\, w^s)

    The mode of each covariance is that of the source. With :math:`\kappa = 1` means are expected to shift by
    about one standard deviation. With "diagonal" covariances each feature has such a prior, with d = 1.

    Parameters
    ----------
    mean : float
        :math:`\kappa > 0`, in points of the target per component.
    covariance : float, optional
        M, in points as well; by default 2 d + 1, the smallest integer for which the prior is proper.
    weights : float
        a, in points of all components together. By default the source states nothing about the
        frequencies of components in the target.

    References
    ----------
    Raghuram (2014), PhD thesis, Pennsylvania State University, section 4.2.3, who proposes the prior of
    means and covariances and does not evaluate it. (:math:`M \ge 2 d + 1` is needed, where the thesis
    has :math:`\nu \ge d`.)
    """

    mean: Positive = 1.0
    covariance: Positive | None = None
    weights: NonNegative = 0.0

    def __post_init__(self) -> None:
        check_fields(self)

    def around(self, mean: ArrayLike, covariance: ArrayLike, *, form: str) -> ComponentPriors:
        """Prior of means and covariances around those of a source.

        Parameters
        ----------
        mean : array_like, shape (num_components, num_features)
        covariance : array_like, shape (num_components, num_features, num_features)
        form : {"full", "diagonal"}
            Form of the covariances in the target.

        Raises
        ------
        ValueError
            If `covariance` leaves the prior improper.
        """
        number, num_features = np.shape(mean)
        size = num_features if form == "full" else 1
        weight = 2.0 * size + 1 if self.covariance is None else self.covariance
        if not weight > 2 * size:
            raise ValueError(
                f"ShiftPrior(covariance={weight}) is improper for {num_features} features and "
                f"covariance={form!r}; give more than {2 * size} points"
            )
        counts = jnp.full(number, self.mean), jnp.full(number, weight)
        return _around(mean, covariance, *counts, size)

    def concentration(self, weights: ArrayLike) -> Array:
        """Concentrations of the Dirichlet prior of the weights, shape (num_components,)."""
        return 1.0 + self.weights * jnp.asarray(weights)


class WorthPrior(NamedTuple):
    r"""A `ShiftPrior` in terms of the number of points that the source is worth, which may be traced.

    A worth :math:`\kappa` gives ``ShiftPrior(κ, 2 d + 1 + κ, a)``. As the worth grows, means and
    covariances approach those of the source together; as it vanishes, none of the priors becomes
    improper.

    Attributes
    ----------
    worth : Array, shape (num_components,)
        Worth of each component, in points of the target.
    weights : Array, shape (), optional
        a, in points of all components together; by default :math:`K \kappa` for K components.
    """

    worth: Array
    weights: Array | None = None

    def around(self, mean: ArrayLike, covariance: ArrayLike, *, form: str) -> ComponentPriors:
        """Prior of means and covariances around those of a source; see `ShiftPrior.around`."""
        size = np.shape(mean)[1] if form == "full" else 1
        return _around(mean, covariance, self.worth, 2.0 * size + 1 + self.worth, size)

    def concentration(self, weights: ArrayLike) -> Array:
        """Concentrations of the Dirichlet prior of the weights, shape (num_components,)."""
        each = len(self.worth) * self.worth if self.weights is None else self.weights
        return 1.0 + each * jnp.asarray(weights)


def _around(
    mean: ArrayLike, covariance: ArrayLike, shrinkage: Array, weight: Array, size: int
) -> ComponentPriors:
    """Priors whose covariance modes are the given covariances, which count as `weight` points."""
    scale = weight[:, None, None] * jnp.asarray(covariance)
    return ComponentPriors(jnp.asarray(mean), shrinkage, weight - size - 1.0, scale)
