"""How well an embedding keeps neighbourhoods: the quality curve of the co-ranking matrix."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sidebayes.common.arrays import real_array, refuse_gaps

__all__ = ["co_ranking_quality"]


def co_ranking_quality(distances: ArrayLike, embedded: ArrayLike) -> NDArray[np.float64]:
    r"""Share of neighbours that an embedding keeps, for every size of the neighbourhood.

    .. math:: Q_{NX}(\kappa) = \frac{1}{\kappa n}
              \#\{(i, j): \rho_{ij} \le \kappa,\ r_{ij} \le \kappa\}

    where :math:`\rho_{ij}` and :math:`r_{ij}` are the ranks of point j among the neighbours of
    point i before and after. A random embedding has quality :math:`\kappa / (n - 1)`. Ties are
    ranked in the order of the rows.

    Parameters
    ----------
    distances, embedded : array_like, shape (n, n)
        Distances between the points, and between their images.

    Returns
    -------
    ndarray, shape (n - 1,)
        For neighbourhoods of 1 to n - 1 points; the last is one.

    Raises
    ------
    ValueError
        If the two are not square matrices of one shape with at least two rows, or have entries that are
        negative or not finite.

    References
    ----------
    Lee and Verleysen (2009), Neurocomputing 72; Yu (2016), section 2.9.1.

    Examples
    --------
    >>> import numpy as np
    >>> line = np.abs(np.subtract.outer(range(4), range(4)))
    >>> co_ranking_quality(line, 2 * line)
    array([1., 1., 1.])
    """
    ranks = [
        _ranks(name, given) for name, given in (("distances", distances), ("embedded", embedded))
    ]
    if ranks[0].shape != ranks[1].shape:
        raise ValueError(
            f"distances has shape {ranks[0].shape} and embedded {ranks[1].shape}; give both for the same "
            "points"
        )
    size = len(ranks[0])
    kept = np.bincount(np.maximum(*ranks).ravel(), minlength=size)[1:]
    sizes = np.arange(1, size)
    return np.cumsum(kept) / (sizes * size)


def _ranks(name: str, given: ArrayLike) -> NDArray[np.int64]:
    """Return the rank of every column among the neighbours of every row; that of the row itself is 0."""
    values = real_array(name, given).copy()
    if values.ndim != 2 or values.shape[0] != values.shape[1] or len(values) < 2:
        raise ValueError(f"{name} has shape {values.shape}; expected a square matrix of distances")
    refuse_gaps(name, values, "join the parts of a graph, or drop points")
    if values.min() < 0:
        raise ValueError(f"{name} holds {values.min():.4g}; expected distances, none below zero")
    np.fill_diagonal(values, -np.inf)
    order = np.argsort(values, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(len(values))[None], axis=1)
    return ranks
