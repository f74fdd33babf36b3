"""Checks at the front door: data, links, number of clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sidebayes.models.blocks.label_graph import LabelGraph, as_label_graph
from sidebayes.models.blocks.links import Links

__all__ = ["check_clusters", "check_data", "check_links"]


def check_data(x: ArrayLike, name: str = "x") -> NDArray[np.float64]:
    """Return finite real data of shape (points, features).

    Raises
    ------
    TypeError
        If the entries are not real numbers.
    ValueError
        On another number of axes, no rows or columns, NaN or infinite entries.
    """
    array = np.asarray(x)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} has dtype {array.dtype}; expected real numbers, encode text first")
    array = array.astype(float)
    if array.ndim != 2:
        hint = f"; for one feature use {name}[:, None]" if array.ndim == 1 else ""
        raise ValueError(f"{name} has shape {array.shape}; expected (points, features){hint}")
    if 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}; there is nothing to fit")
    bad = ~np.isfinite(array)
    if bad.any():
        rows = np.flatnonzero(bad.any(axis=1))
        shown = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise ValueError(
            f"{name} has NaN or infinite entries in {len(rows)} rows ({shown}); drop or impute them, "
            "and pass links.subset(rows_kept)"
        )
    return array


def check_clusters(num_clusters: Any, num_points: int) -> int:
    """Return the number of clusters.

    Raises
    ------
    TypeError, ValueError
        Unless it is an integer between 1 and the number of points.
    """
    if num_clusters is None:
        raise TypeError("num_clusters is missing; say how many clusters to fit")
    if isinstance(num_clusters, bool) or not isinstance(num_clusters, (int, np.integer)):
        raise TypeError(f"num_clusters = {num_clusters!r}; expected an integer")
    if not 1 <= num_clusters <= num_points:
        raise ValueError(
            f"num_clusters = {num_clusters}; expected between 1 and the number of points, {num_points}"
        )
    return int(num_clusters)


def check_links(
    links: Any, num_points: int, num_clusters: int, method: str, takes_links: bool
) -> LabelGraph:
    """Compile links for the data.

    Raises
    ------
    TypeError, ValueError
        See `LabelGraph.build`; also if a method without links is given some.
    """
    if links is not None and not isinstance(links, Links | LabelGraph):
        raise TypeError(
            f"links is a {type(links).__name__}; build it with sidebayes.Links.from_pairs(pairs, same)"
        )
    if not takes_links and links is not None and links.num_links:
        raise ValueError(f"{method!r} takes no links; use 'ppc', or leave links out")
    return as_label_graph(links, num_points, num_clusters)
