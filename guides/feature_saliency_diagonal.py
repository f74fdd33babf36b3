"""The diagonal mixture without saliencies that component-wise EM finds on its way."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

__all__ = ["Diagonal"]

_WORTH = 2.0
"""Difference of two BIC that is worth a mention (Kass and Raftery 1995, J. Am. Stat. Assoc. 90, 773-795)."""


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

    def remark(self, bic: float) -> str | None:
        """What there is to say beside a result that has some BIC; None if that is not larger by two."""
        least, number = float(self.bic), int(self.clusters)
        if not np.isfinite(least) or bic - least <= _WORTH:
            return None
        clusters = "1 cluster" if number == 1 else f"{number} clusters"
        return (
            f"A diagonal mixture without saliencies, of {clusters}, has BIC {least:.6g} against {bic:.6g} "
            f"here; compare with sidebayes.fit('gmm', x, num_clusters={number}, covariance='diagonal')"
        )
