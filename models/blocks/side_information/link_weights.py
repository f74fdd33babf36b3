"""Weights of links from information about their reliability."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sidebayes.common.arrays import plain_array, real_array, refuse_unwritable
from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import counted, shown
from sidebayes.common.warnings import warn_user

from .groups import Groups
from .link_tables import RESERVED, as_same
from .partial_labels import frozen
from .uncolourable import low_first

_MOST_POINTS = 2**31
"""Limit of row numbers, beyond which they would not fit into the integers that store links."""

MOST_SOFT = 1e8
"""Finite weights of this size or more count as infinite.

Log partition functions add weights to log densities. A weight w therefore costs them, and the
responsibilities, the digits below about 1e-15 w: 1e-7 here, 1e-3 at 1e12, all of them at 1e16.
"""

__all__ = [
    "MOST_SOFT",
    "certainty_weight",
    "check_pairs",
    "check_rows",
    "estimate_flip_rate",
    "flip_rate_weight",
    "hard_beyond",
    "link_columns",
    "link_groups",
    "per_pair",
    "refuse_contradicting",
]


def flip_rate_weight(flip_rate: ArrayLike) -> NDArray[np.float64]:
    r"""Link weight of statements wrong with probability `flip_rate` (Lu 2008, eq. 2.33).

    Returns :math:`\log((1 - q)/q)`, per unordered pair (Lu's :math:`w` is half of it).
    """
    flip_rate = real_array("flip_rate", flip_rate)
    if not ((flip_rate >= 0) & (flip_rate <= 1)).all():
        raise ValueError(f"flip_rate = {flip_rate} is not a probability; give a number in [0, 1]")
    with np.errstate(divide="ignore"):
        return np.log1p(-flip_rate) - np.log(flip_rate)


def estimate_flip_rate(pairs: ArrayLike, labels: ArrayLike) -> float:
    """Share of pairs whose labels differ, from a labelled, similar problem (Lu 2008, eq. 2.32).

    Parameters
    ----------
    pairs : array_like of int, shape (num_links, 2)
        Pairs that are stated to have equal labels, e.g. neighbours in an image.
    labels : array_like, shape (num_points,)
    """
    labels = plain_array("labels", labels)
    if labels.ndim != 1:
        raise ValueError(f"labels has shape {labels.shape}; expected (num_points,)")
    pairs = check_pairs(pairs, len(labels), "pairs")
    if not len(pairs):
        raise ValueError("pairs is empty; a flip rate needs at least one pair")
    return float(np.mean(labels[pairs[:, 0]] != labels[pairs[:, 1]]))


def certainty_weight(certainty: ArrayLike, same: ArrayLike, weights: ArrayLike) -> NDArray:
    r"""Link weight under which a lone pair agrees with prior probability `certainty`.

    Lu (2008, App. A) takes :math:`\pm\operatorname{logit}\gamma`, which is exact when
    :math:`\gamma` is the reliability of the statement given the labels. When :math:`\gamma` is the
    posterior certainty of the relation instead, a pair that shares no point with others needs
    :math:`\pm\operatorname{logit}\gamma - \operatorname{logit} s`, :math:`s = \sum_k \pi_k^2` (own
    derivation).

    Parameters
    ----------
    certainty : array_like in [0, 1], shape (num_links,) or ()
    same : array_like, shape (num_links,) or ()
        As in `Links.from_pairs`.
    weights : array_like, shape (num_clusters,)
        Mixing weights.
    """
    share = real_array("weights", weights)
    if share.ndim != 1 or not np.isclose(share.sum(), 1) or (share < 0).any():
        raise ValueError(f"weights = {shown(weights)}; expected mixing weights, which sum to one")
    agree = np.sum(share**2)
    if agree == 1:
        raise ValueError("weights has one cluster only, in which every pair agrees")
    logit = -flip_rate_weight(real_array("certainty", certainty))
    stated = as_same(same, np.size(same)).reshape(np.shape(same))
    return np.where(stated, logit, -logit) + flip_rate_weight(agree)


def per_pair(name: str, values: ArrayLike, num_links: int) -> NDArray[np.float64]:
    """One value per link, or one for all; shape (num_links,)."""
    if plain_array(name, values).dtype == bool:
        raise TypeError(
            f"{name} = {shown(values)}; expected numbers. Statements that two labels are the same, or not, "
            "go into Links.from_pairs(pairs, same)"
        )
    values = real_array(name, values)
    if values.shape not in ((), (num_links,)):
        raise ValueError(f"{name} has shape {values.shape}; expected () or ({num_links},)")
    if np.isnan(values).any():
        raise ValueError(
            f"{name}[{int(np.argmax(np.isnan(np.atleast_1d(values))))}] is NaN; drop it"
        )
    return np.broadcast_to(values, (num_links,))


def refuse_contradicting(pairs: NDArray, weights: NDArray) -> None:
    """Refuse pairs that are both a hard must-link and a hard cannot-link."""
    ends = low_first(pairs) @ [_MOST_POINTS, 1]
    both = np.isneginf(weights) & np.isin(ends, ends[np.isposinf(weights)])
    if both.any():
        i, j = np.sort(pairs[int(np.argmax(both))])
        raise ValueError(
            f"links state ({i}, {j}) both as a hard must-link and as a hard cannot-link; drop one, or "
            "give both a finite weight"
        )


def link_groups(group: ArrayLike | Groups | None, num_links: int) -> Groups | None:
    """Return who stated each link: a group for every link.

    Raises
    ------
    ValueError
        If the numbers of groups and links differ, or a link has no group.
    """
    if group is None:
        return None
    found = group if isinstance(group, Groups) else Groups(group)  # type: ignore[arg-type]
    if len(found) != num_links:
        raise ValueError(f"group has {len(found)} entries for {num_links} links; give one per link")
    if (found.codes < 0).any():
        row = int(np.argmax(found.codes < 0))
        raise ValueError(f"group[{row}] is missing; name who stated every link, or leave group out")
    return found


def link_columns(columns: Mapping[str, ArrayLike], num_links: int) -> dict[str, NDArray]:
    """Further columns about each link, as read-only arrays of numbers or text.

    Raises
    ------
    TypeError
        If columns are not a mapping, or one is neither numbers nor text.
    ValueError
        For a shape other than (num_links,), and for a name that links use themselves or that no
        file can hold.
    """
    if not isinstance(columns, Mapping):
        raise TypeError(
            f"columns is a {type(columns).__name__}; pass a mapping of names to one value per link, such as "
            "dict(table) of a data frame"
        )
    found = {}
    for name, given in columns.items():
        if name in RESERVED:
            raise ValueError(f"columns may not be named {name!r}, which links have of their own")
        if not isinstance(name, str) or not name or "/" in name or not name.isprintable():
            raise ValueError(
                f"columns may not be named {shown(name)}; give text that can be shown, without a slash, as "
                "files ask for"
            )
        values = plain_array(f"columns[{name!r}]", given)
        if values.shape != (num_links,):
            raise ValueError(f"columns[{name!r}] has shape {values.shape}; expected ({num_links},)")
        if values.dtype.kind not in "biuf":
            if not all(isinstance(value, str) for value in values.tolist()):
                raise TypeError(f"columns[{name!r}] holds {values.dtype}; give numbers or text")
            refuse_unwritable(f"columns[{name!r}]", values.tolist())
            values = values.astype(object)
        found[name] = frozen(values)
    return found


def hard_beyond(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Link weights, infinite from `MOST_SOFT` on, with a warning if this makes soft links hard."""
    beyond = (np.abs(weights) >= MOST_SOFT) & np.isfinite(weights)
    if not beyond.any():
        return weights
    row = int(np.argmax(beyond))
    warn_user(
        f"finite weights of {MOST_SOFT:.0e} or more count as hard, because such sums would lose the digits "
        f"of the data: {counted(beyond.sum(), 'link')}, the first weights[{row}] = {weights[row]:g}. Give "
        "the weight inf, or one below"
    )
    return np.where(beyond, np.copysign(np.inf, weights), weights)


def check_rows(rows: ArrayLike, num_points: int | None, least: int = 0) -> NDArray[np.int64]:
    """Row numbers, given as such or as a mask over all points; shape (num_rows,).

    Parameters
    ----------
    rows : array_like of int or bool
    num_points : int or None
        None if it is not known.
    least : int
        Minimum number of points.

    Raises
    ------
    TypeError, ValueError
        For other types and shapes, a mask of another length, and numbers out of range.
    """
    rows = plain_array("rows", rows)
    if rows.size == 0:
        return np.zeros(0, np.int64)
    if rows.ndim != 1:
        raise ValueError(f"rows has shape {rows.shape}; give row numbers or a mask, of one axis")
    if rows.dtype == bool:
        if len(rows) != (num_points or len(rows)) or len(rows) < least:
            size = num_points or f"at least {least}"
            raise ValueError(f"rows is a mask over {len(rows)} points, the links are over {size}")
        return np.flatnonzero(rows)
    if rows.size and not np.issubdtype(rows.dtype, np.integer):
        raise TypeError(f"rows holds {rows.dtype}; give integers, or a mask of booleans")
    bad = (rows < 0) | (rows >= (num_points or _MOST_POINTS))
    if bad.any():
        where = int(np.argmax(bad))
        among = f"the {num_points} points" if num_points else "the points, which count from 0"
        raise ValueError(f"rows[{where}] = {rows[where]} is not among {among}; correct or drop it")
    return rows.astype(np.int64)


def check_pairs(pairs: ArrayLike, num_points: int | None, name: str = "links") -> NDArray[np.int64]:
    """Pairs of different row numbers, shape (num_links, 2).

    Raises
    ------
    TypeError, ValueError
        For another shape, and for an index that is negative, too large or not an integer.
    """
    if num_points is not None:
        num_points = check_integer("num_points", num_points, 0, _MOST_POINTS)
    pairs = plain_array(name, pairs)
    if pairs.size == 0:
        return np.zeros((0, 2), np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        advice = ""
        if pairs.ndim == 0:
            advice = f": {shown(pairs.tolist())}; give pairs of row numbers"
        elif pairs.ndim == 1 and isinstance(pairs.flat[0], tuple | list):
            advice = f"; of pairs in a column pass {name}.tolist()"
        elif pairs.ndim == 2 and pairs.shape[1] == 3:
            advice = "; a table that says of each pair whether it is linked is for Links.from_pairs"
        raise ValueError(f"{name} must have shape ({name}, 2), got {pairs.shape}{advice}")
    if (missing := pd.isna(pairs).any(axis=1)).any():
        raise ValueError(f"{name}[{int(np.argmax(missing))}] has a missing row number; drop it")
    if not np.issubdtype(pairs.dtype, np.integer):
        raise TypeError(f"{name} must hold integer row numbers, got dtype {pairs.dtype}")
    most = _MOST_POINTS if num_points is None else num_points
    for bad, why in (
        (pairs.min(axis=1) < 0, "has a negative index; rows count from 0"),
        (pairs[:, 0] == pairs[:, 1], "joins a point to itself; drop it"),
        (pairs.max(axis=1) >= most, f"is out of range for {most} points"),
    ):
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(f"{name}[{row}] = ({pairs[row, 0]}, {pairs[row, 1]}) {why}")
    return pairs.astype(np.int64)
