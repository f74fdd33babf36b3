"""Links as independent observations: every pair gets copies of its two points."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sidebayes.common.fields import check_integer

from .links import Links, check_pairs

__all__ = ["separate_pairs"]


def separate_pairs(links: Links, num_points: int) -> tuple[NDArray[np.int64], Links]:
    """Give every link its own copies of its two points, so that no two links share a point.

    A point in r links becomes r rows, which count r times; a point in none stays one row. This is
    the composite likelihood of Yu (2016, section 4.4.1) where relations overlap. Links may then even
    contradict each other. Fit ``x[rows]`` with the links returned, and label points by
    ``fit.predict(x)``.

    Parameters
    ----------
    links : Links
    num_points : int

    Returns
    -------
    rows : ndarray of int, shape (num_rows,)
        Point that each row copies: first the points without links, then the pairs.
    links : Links
        The same links among the rows.

    Examples
    --------
    >>> rows, apart = separate_pairs(Links.must_link([(0, 1), (1, 2)]), 4)
    >>> rows.tolist(), apart.pairs.tolist()
    ([3, 0, 1, 1, 2], [[1, 2], [3, 4]])
    """
    if not isinstance(links, Links):
        raise TypeError(f"links is a {type(links).__name__}; pass sidebayes.Links")
    num_points = check_integer("num_points", num_points, 0)
    pairs = check_pairs(links.pairs, num_points)
    single = np.setdiff1d(np.arange(num_points), pairs)
    rows = np.concatenate([single, pairs.ravel()])
    apart = len(single) + np.arange(pairs.size).reshape(-1, 2)
    return rows, replace(links, pairs=apart, num_points=len(rows))
