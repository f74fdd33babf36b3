"""The diagonal mixture without saliencies that component-wise EM finds as an intermediate result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

__all__ = ["Diagonal", "all_used", "number_of_clusters", "that_ranks"]

_WORTH = 2.0
"""Difference of BIC that is worth mentioning (Kass and Raftery 1995, J. Am. Stat. Assoc. 90, 773-795)."""


def number_of_clusters(number: int) -> str:
    """Return a number of clusters in words."""
    return "1 cluster" if number == 1 else f"{number} clusters"


class Diagonal(NamedTuple):
    """The mixture of smallest BIC among those whose saliencies are all one.

    Attributes
    ----------
    bic : Array
        Infinite where there is none.
    clusters : Array of int
    """

    bic: Array
    clusters: Array

    def beside(self, counts: Array, bic: Array, clusters: Array) -> Diagonal:
        """Return the better of this and another mixture, if that one counts."""
        better = counts & (bic < self.bic)
        return Diagonal(
            jnp.where(better, bic, self.bic), jnp.where(better, clusters, self.clusters)
        )

    def remark(self, bic: float, *, all_normal: bool) -> str | None:
        """Return a remark on a result with a given BIC; None unless that is larger by two.

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
    """Return advice where there may be more clusters than were allowed; None where some are unused."""
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
    """Return the start of the shortest message, or of one that ranks features.

    If all saliencies of the shortest message are one, it ranks no features. Another start is then taken: the
    shortest with as many clusters and learned saliencies, if its message is longer by no more than their
    price, which is half a logarithm of the rows for each saliency and each parameter of a common density. One
    cluster ranks nothing.

    Parameters
    ----------
    value : ndarray, shape (num_starts,)
        Minus the lengths of the messages.
    weights : ndarray, shape (num_starts, num_clusters)
    saliency : ndarray, shape (num_starts, num_features)
    num_parameters : sequence of int, length num_features
        Number of parameters of one density of each feature.
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
