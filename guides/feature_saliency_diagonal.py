"""The diagonal mixture without saliencies that component-wise EM finds on its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

__all__ = ["Diagonal", "all_used", "number_of_clusters", "that_ranks"]

_WORTH = 2.0
"""Difference of two BIC that is worth a mention (Kass and Raftery 1995, J. Am. Stat. Assoc. 90, 773-795)."""


def number_of_clusters(number: int) -> str:
    """A number of clusters in words."""
    return "1 cluster" if number == 1 else f"{number} clusters"


class Diagonal(NamedTuple):
    """The mixture of least BIC among those whose saliencies are all one.

    Attributes
    ----------
    bic : Array
        Infinite where there is none.
    clusters : Array of int
    """

    bic: Array
    clusters: Array

    def beside(self, counts: Array, bic: Array, clusters: Array) -> Diagonal:
        """The better of this and another mixture, if that one counts."""
        better = counts & (bic < self.bic)
        return Diagonal(
            jnp.where(better, bic, self.bic), jnp.where(better, clusters, self.clusters)
        )

    def remark(self, bic: float, *, all_normal: bool) -> str | None:
        """What there is to say beside a result that has some BIC; None if that is not larger by two.

        Where all features are normal `gmm` fits the same mixture.
        """
        least, number = float(self.bic), int(self.clusters)
        if not np.isfinite(least) or bic - least <= _WORTH:
            return None
        said = (
            f"A diagonal mixture without saliencies, of {number_of_clusters(number)}, has BIC {least:.6g} "
            f"against {bic:.6g} here"
        )
        if not all_normal:
            return said
        return f"{said}; compare with sidebayes.fit('gmm', x, num_clusters={number}, covariance='diagonal')"


def all_used(used: int, allowed: int, *, all_normal: bool) -> str | None:
    """What to do where there might be more clusters than were allowed; None where some are left."""
    if used < allowed:
        return None
    said = f"All {allowed} clusters allowed are used: raise num_clusters and see whether the answer stays"
    if not all_normal:
        return said
    return (
        f"{said}. Features are independent within a cluster, so that correlated ones take several clusters; "
        "see whether sidebayes.fit('gmm', x, num_clusters=...) with full covariances needs fewer"
    )


def that_ranks(
    value: NDArray,
    weights: NDArray,
    saliency: NDArray,
    num_parameters: Sequence[int],
    num_rows: float,
) -> int:
    """The start of the shortest message.

    If all its saliencies are one, which ranks no features, the shortest of those with as many clusters and
    learned saliencies whose messages are longer by no more than the price of what these take: a saliency
    and the parameters of a common density, half a logarithm of the rows each. One cluster ranks nothing.

    Parameters
    ----------
    value : ndarray, shape (num_starts,)
        Minus the lengths of the messages.
    weights : ndarray, shape (num_starts, num_clusters)
    saliency : ndarray, shape (num_starts, num_features)
    num_parameters : sequence of int, length num_features
        Of one density of each feature.
    num_rows : float
    """
    shortest = int(np.argmax(value))
    number, learned = (weights > 0).sum(axis=1), saliency < 1
    price = learned @ (1.0 + np.asarray(num_parameters)) * np.log(num_rows) / 2
    ranks = (saliency > 0).any(axis=1) & learned.any(axis=1) & (number == max(number[shortest], 2))
    ranks &= value >= value[shortest] - price
    if not (saliency[shortest] == 1).all() or not ranks.any():
        return shortest
    return int(np.argmax(np.where(ranks, value, -np.inf)))
