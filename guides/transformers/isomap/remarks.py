"""Meaning of arguments, and remarks on a map."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sidebayes.common.fields import Range, check_integer, check_number
from sidebayes.common.magnitudes import listed, shown

from .embedding import Embedding
from .graphs.manifold import Manifold, Nearest
from .graphs.neighbors import KNearest, Neighbors, Radius
from .scaling import ROUNDING

__all__ = ["neighbor_rule", "refuse_few", "remark_on_far", "remark_on_twins", "remarks"]

_FAR = 10.0
"""Maximum distance of a new row from all rows, in units of their largest nearest-neighbour distance."""
_METRICS = ("euclidean", "cityblock", "chebyshev", "precomputed")


def neighbor_rule(
    n_neighbors: object, radius: object, metric: object, neighbors: object
) -> Neighbors:
    """Return the rule by which rows are neighbours, from arguments of `IncrementalIsomap`."""
    if not isinstance(metric, str) or metric not in _METRICS:
        raise ValueError(f"metric = {shown(metric)}; expected one of {_METRICS}")
    if not isinstance(neighbors, str) or neighbors not in ("exact", "approximate"):
        raise ValueError(f"neighbors = {shown(neighbors)}; expected 'exact' or 'approximate'")
    if radius is not None:
        if n_neighbors is not None:
            raise ValueError(
                "n_neighbors and radius are both given; set n_neighbors=None for all rows within radius"
            )
        return Radius(check_number("radius", radius, Range(above=0)))
    if n_neighbors is None:
        raise ValueError("n_neighbors and radius are both None; give one of them")
    number = check_integer("n_neighbors", n_neighbors)
    if neighbors == "approximate" and metric != "euclidean":
        raise ValueError(
            f"neighbors='approximate' takes Euclidean distances, and metric = {metric!r}; take "
            "neighbors='exact'"
        )
    return KNearest(number, neighbors == "approximate")


def refuse_few(size: int, number: int, num_landmarks: int | None) -> None:
    """Refuse fewer rows than coordinates or landmarks need."""
    least = number + 1 if num_landmarks is None else num_landmarks
    if size < least:
        raise ValueError(
            f"X has n_samples = {size}; {number} coordinates"
            + ("" if num_landmarks is None else f" and {num_landmarks} landmarks")
            + f" need at least {least}"
        )


def remark_on_twins(nearest: Nearest) -> str | None:
    """Return a sentence on new rows that equal an earlier row."""
    new = np.flatnonzero(nearest.distance == 0)
    if not len(new):
        return None
    return (
        f"{len(new)} of {len(nearest.row)} rows of X are at distance zero from rows that are there already "
        f"(row {new[0]} of X from row {nearest.row[new[0]]}), and were added beside them; remove rows that "
        "were given twice"
    )


def remark_on_far(distance: NDArray[np.float64], reach: float) -> str | None:
    """Return a sentence on new rows that lie far from all rows of the map, beside its largest `reach`."""
    far = np.flatnonzero(np.isfinite(distance) & (distance > _FAR * reach))
    if not len(far):
        return None
    return (
        f"{len(far)} of {len(distance)} rows of X, the first of them {far[0]}, are more than {_FAR:g} times "
        "as far from every row of the map as any of these from its nearest neighbour; see whether X is in "
        "the units of the map"
    )


def remarks(embedding: Embedding, manifold: Manifold) -> list[str]:
    """Return sentences on what the coordinates do not show."""
    found = []
    sizes = np.bincount(embedding.parts)
    if len(sizes) > 1:
        found.append(
            f"the graph has {len(sizes)} parts, of {listed(sizes)} rows; coordinates are those of the "
            "largest, and NaN elsewhere (parts_ has the part of each row). Raise n_neighbors or radius, or "
            "fit the parts one by one. More equal rows than neighbours are a part of their own too"
        )
    values = embedding.eigenvalues
    positive = int(np.sum(values > ROUNDING * values.max(initial=0.0)))
    if not positive:
        found.append(
            "no eigenvalue is positive, and all coordinates are zero: the rows of the largest part are at "
            "one place; drop equal rows, or raise n_neighbors or radius"
        )
    elif positive < embedding.number:
        found.append(
            f"only {positive} eigenvalues are positive, and the other coordinates are zero; lower "
            f"n_components = {embedding.number}"
        )
    rule = manifold.neighbors
    if isinstance(rule, KNearest) and rule.number >= len(manifold):
        found.append(
            f"n_neighbors = {rule.number} and there are {len(manifold)} rows: each is a neighbour of all "
            "others until more are added"
        )
    return found
