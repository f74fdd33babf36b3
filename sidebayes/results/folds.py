"""Which units are held out together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..common.fields import check_integer, check_seed

__all__ = ["deal_folds"]


def deal_folds(unit: NDArray, num_folds: int, seed: int) -> NDArray[np.int64]:
    """Fold of each connected set: dealt at random, the largest first, to the fold with fewest points.

    Parameters
    ----------
    unit : ndarray of int, shape (num_points,)
        Connected set of each point.
    num_folds, seed : int

    Returns
    -------
    ndarray of int, shape (num_connected_sets,)

    Raises
    ------
    ValueError
        If there are fewer connected sets than folds.
    """
    size = np.bincount(unit)
    num_folds = check_integer("num_folds", num_folds, 2)
    if num_folds > len(size):
        raise ValueError(
            f"num_folds = {num_folds}; expected at most {len(size)}, the number of connected sets "
            "of the links, which are held out whole"
        )
    order = np.random.default_rng(check_seed(seed)).permutation(len(size))
    order = order[np.argsort(-size[order], kind="stable")]
    fold, points = np.empty(len(size), np.int64), np.zeros(num_folds)
    for one in order:
        fold[one] = np.argmin(points)
        points[fold[one]] += size[one]
    return fold
