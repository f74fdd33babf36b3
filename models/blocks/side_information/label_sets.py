"""Sets of points whose labels should agree, or differ, and the divergence of their soft labels."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.nn import logsumexp
from numpy.typing import ArrayLike, NDArray

__all__ = ["jensen_shannon", "padded_sets"]


def padded_sets(
    sets: Sequence[ArrayLike], num_points: int, name: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Row numbers of several sets of points as one table, with each member's share.

    Parameters
    ----------
    sets : sequence of array_like of int
        Row numbers of the points of each set, two or more, in sets of any size.
    num_points : int
    name : str
        Name of the argument, for messages.

    Returns
    -------
    rows : ndarray of int, shape (num_sets, size of the largest)
        Padded by 0.
    shares : ndarray, same shape
        One over the size of the set; padded by 0.

    Raises
    ------
    TypeError, ValueError
        If a set does not hold two or more different rows of the data.
    """
    sizes = []
    for number, one in enumerate(sets):
        members = np.asarray(one)
        if members.ndim != 1 or members.dtype.kind not in "iu":
            raise TypeError(f"{name}[{number}] = {one!r}; expected row numbers, such as (0, 4, 7)")
        if len(members) < 2 or len(np.unique(members)) < len(members):
            raise ValueError(f"{name}[{number}] = {one!r}; expected two or more different rows")
        if members.min() < 0 or members.max() >= num_points:
            raise ValueError(
                f"{name}[{number}] = {one!r} names a row outside of 0..{num_points - 1}; give rows of x"
            )
        sizes.append(len(members))
    rows = np.zeros((len(sizes), max(sizes, default=2)), np.int64)
    shares = np.zeros(rows.shape)
    for number, (one, size) in enumerate(zip(sets, sizes, strict=True)):
        rows[number, :size], shares[number, :size] = one, 1 / size
    return rows, shares


def jensen_shannon(log_labels: Array, rows: ArrayLike, shares: ArrayLike) -> Array:
    r"""Jensen-Shannon divergence among the soft labels of each set of points, in nats.

    .. math:: D_h = \sum_i a_{hi} \sum_j s_{ij} \log\frac{s_{ij}}{t_{hj}}, \qquad
              t_{hj} = \sum_i a_{hi} s_{ij}

    Parameters
    ----------
    log_labels : Array, shape (num_points, num_clusters)
        :math:`\log s_{ij}`, normalised over clusters.
    rows : array_like of int, shape (num_sets, size)
    shares : array_like, shape (num_sets, size)
        :math:`a_{hi}`; each row sums to 1 and is padded by zeros.

    Returns
    -------
    Array, shape (num_sets,)
        Between 0 (equal labels) and the log of the smaller of set size and number of clusters.

    References
    ----------
    Law (2006), eqs. 5.13-5.15. Lin (1991), IEEE Trans. Inf. Theory 37, 145-151,
    doi:10.1109/18.61115.
    """
    member = log_labels[jnp.asarray(rows)]
    share = jnp.asarray(shares)[..., None]
    mean = logsumexp(member, axis=1, b=share, keepdims=True)
    return jnp.sum(share * jnp.exp(member) * (member - mean), axis=(1, 2))
