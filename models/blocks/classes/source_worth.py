"""Worth of a source in points of a target domain, from how far the target has moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpy.typing import NDArray
from scipy.stats import chi2

from .source_mixture import SourceMixture

__all__ = ["chosen_worth", "source_worth"]

_CHANCE = 0.001
"""Probability that a target which has not moved is taken for one that has."""

_MOST = 100.0
"""Worth of a source from which the target has not moved, by component, in sizes of the target."""


def source_worth(source: SourceMixture, x: ArrayLike) -> NDArray[np.float64] | Array:
    r"""Worth of a source by the method of moments, in points of the target by component.

    If the means of the components have moved by :math:`\mathcal{N}(0, \Sigma_k / \kappa)`, each on its own,
    then the mean of the target is from that of the source, V being the covariance of the whole source, at the
    expected squared distance

    .. math:: E\, \|\bar x - m\|^2_{V^{-1}} = \tfrac1\kappa \text{tr}(V^{-1} \sum_k w_k^2 \Sigma_k)
              + \tfrac{d}{N} + \tfrac{d}{N_s},

    which is solved for :math:`\kappa`. The last two terms are sampling. In their place stands :math:`2 / N`
    times the 99.9 % quantile of :math:`\chi^2_d`, as if the source had been learned from as many rows. Where
    the distance is no larger than that, the source is worth a hundred times all rows of the target. Poorly
    fitting components do not mislead this test as they mislead a likelihood: a mixture that was fitted by
    maximum likelihood has the mean and the covariance of its rows in any case. (Own derivation.)

    Parameters
    ----------
    source : SourceMixture
    x : array_like, shape (num_points, num_features)

    Returns
    -------
    ndarray, shape (num_components,)
        The same for all.
    """
    arrays = source.weights, source.mean, source.covariance
    known = not any(isinstance(one, Tracer) for one in (x, *arrays))
    xp = np if known else jnp
    weights, mean, covariance, rows = (xp.asarray(one) for one in (*arrays, x))
    number, num_features = rows.shape
    if num_features != source.num_features:  # refused where the components are made
        return np.ones(source.num_components)
    apart = mean - weights @ mean
    total = xp.einsum("k,kij->ij", weights, covariance) + (weights * apart.T) @ apart
    unit = xp.sqrt(xp.diagonal(total))
    inverse = xp.linalg.inv(total / (unit[:, None] * unit))
    moved = (rows.mean(axis=0) - weights @ mean) / unit
    chance = 2.0 * chi2.ppf(1.0 - _CHANCE, num_features) / number
    pooled = xp.einsum("k,kij->ij", weights**2, covariance) / (unit[:, None] * unit)
    size = xp.sum(inverse * pooled)
    excess = xp.maximum(moved @ inverse @ moved - chance, size / (_MOST * number))
    return xp.full(source.num_components, size / excess)


def chosen_worth(
    data: Mapping[str, Any], options: Mapping[str, Any]
) -> NDArray[np.float64] | Array | None:
    """Worth of the source where the prior depends on it and none is given, from the arguments of a model.

    Parameters
    ----------
    data : mapping
        Data by name, of which ``x`` is used.
    options : mapping
        Options by name: ``source`` and ``shift``.
    """
    source, shift, x = options.get("source"), options.get("shift", "source"), data.get("x")
    if (
        x is None
        or not isinstance(source, SourceMixture)
        or not (isinstance(shift, str) and shift == "source")
    ):
        return None
    return source_worth(source, x)
