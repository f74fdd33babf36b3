"""Statements about pairs, checked once on construction; subsets and sums of links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from sidebayes.common.arrays import chosen_rows
from sidebayes.common.files import check_replaceable, write_table
from sidebayes.common.magnitudes import counted

from .cells import cell
from .groups import Groups
from .hard_links import LinkReport, check_links, implied_pairs
from .link_weights import (
    check_pairs,
    check_rows,
    hard_beyond,
    link_columns,
    link_groups,
    per_pair,
    refuse_contradicting,
)
from .partial_labels import frozen

__all__ = ["StatedPairs"]


@dataclass(frozen=True, eq=False)
class StatedPairs:
    """Statements about unordered pairs of points, in the order given; `Links` constructs them."""

    pairs: NDArray[np.int64]
    weights: NDArray[np.float64]
    num_points: int | None = None
    group: Groups | None = None
    columns: Mapping[str, NDArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pairs = check_pairs(self.pairs, self.num_points)
        weights = hard_beyond(per_pair("weights", self.weights, len(pairs)))
        refuse_contradicting(pairs, weights)
        object.__setattr__(self, "pairs", frozen(pairs))
        object.__setattr__(self, "weights", frozen(weights))
        object.__setattr__(self, "group", link_groups(self.group, len(pairs)))
        object.__setattr__(self, "columns", link_columns(self.columns, len(pairs)))

    def write(self, path: str | Path) -> None:
        """Write the links as a table that `read` understands; an interrupted write leaves no partial file."""
        write_table(check_replaceable(path, ["i", "j"]), self.table())

    def table(self) -> pd.DataFrame:
        """One row per link: ``i``, ``j``, ``weight``, ``group`` where there are groups, and columns."""
        group = {} if self.group is None else {"group": self.group.names[self.group.codes]}
        ends = {"i": self.pairs[:, 0], "j": self.pairs[:, 1], "weight": self.weights}
        return pd.DataFrame({**ends, **group, **self.columns})

    @property
    def num_links(self) -> int:
        """Number of statements."""
        return len(self.pairs)

    @property
    def same(self) -> NDArray[np.bool_]:
        """True for must-links, False for cannot-links and weights of zero, shape (num_links,)."""
        return self.weights > 0

    @property
    def hard(self) -> NDArray[np.bool_]:
        """True for links of infinite weight, shape (num_links,)."""
        return np.isinf(self.weights)

    def __len__(self) -> int:
        return len(self.pairs)

    def __add__(self, other: Self) -> Self:
        """Both sets of statements, one after the other.

        Raises
        ------
        ValueError
            If they refer to different numbers of points, or only one has groups or some column.
        """
        if not isinstance(other, StatedPairs):
            return NotImplemented
        num_points = self.num_points if other.num_points is None else other.num_points
        if None not in (self.num_points, other.num_points) and self.num_points != other.num_points:
            raise ValueError(
                f"links over {self.num_points} points cannot be added to links over "
                f"{other.num_points}; both must refer to the same rows"
            )
        tables = self.table(), other.table()
        lacking = set(tables[0].columns) ^ set(tables[1].columns)
        if lacking and len(self) and len(other):
            raise ValueError(
                f"only one of the two sets of links has {sorted(lacking)}; give both the same columns, "
                "or leave these out of both"
            )
        both = pd.concat([one for one in tables if len(one)] or tables, ignore_index=True)
        return type(
            self
        )(
            both[["i", "j"]].to_numpy(),
            both["weight"].to_numpy(),
            num_points,
            both.get("group"),  # type: ignore[arg-type]
            {name: both[name].to_numpy() for name in both.columns[3:] if name != "group"},
        )

    def with_weights(self, weights: ArrayLike) -> Self:
        """Give the same statements other weights, shape (num_links,)."""
        return replace(self, weights=per_pair("weights", weights, len(self)))

    def with_strength(self, weight: ArrayLike) -> Self:
        """Give the same pairs and signs another absolute weight (a number >= 0, or inf).

        Weights of zero have no sign, and stay zero.
        """
        strength = per_pair("weight", weight, len(self))
        if (strength < 0).any():
            raise ValueError(
                f"weight = {strength.min()} is negative; links keep their signs, so give the strength as a "
                "number >= 0"
            )
        return self.with_weights(
            np.where(self.weights == 0.0, 0.0, np.copysign(strength, self.weights))
        )

    def hardened(self) -> Self:
        """Make every link hard."""
        return self.with_strength(np.inf)

    def entailed(self) -> Self:
        """Links that hard links imply: must-links within chunklets, cannot-links between chunklets.

        This is for methods in which every stated pair has its own penalty. Soft links follow
        unchanged; groups and columns are left out.

        Raises
        ------
        ValueError
            If a cannot-link joins two points tied by must-links; the message names the path.
        """
        most = int(self.pairs.max(initial=-1)) + 1
        num_points = most if self.num_points is None else self.num_points
        must, cannot = implied_pairs(self.pairs, self.weights, num_points)
        soft = ~self.hard
        hard = np.repeat([np.inf, -np.inf], [len(must), len(cannot)])
        return type(self)(
            np.concatenate([must, cannot, self.pairs[soft]]),
            np.concatenate([hard, self.weights[soft]]),
            self.num_points,
        )

    def subset(self, rows: ArrayLike) -> Self:
        """Links among the given rows, renumbered to the rows' order.

        Parameters
        ----------
        rows : array_like of int or bool
            Rows kept, as indices without repeats or as a mask over all points. Links that touch a
            dropped row are dropped.

        Raises
        ------
        TypeError, ValueError
            If rows are neither, repeat, or are not among the points.
        """
        most = int(self.pairs.max(initial=-1)) + 1
        rows = check_rows(rows, self.num_points, most)
        if len(np.unique(rows)) != len(rows):
            raise ValueError("rows names a point more than once; give each row once")
        size = max(most, int(rows.max(initial=-1)) + 1)
        position = np.full(size, -1, np.int64)
        position[rows] = np.arange(len(rows))
        pairs = position[self.pairs]
        keep = np.flatnonzero((pairs >= 0).all(axis=1))
        return replace(self.take(keep), pairs=pairs[keep], num_points=len(rows))

    def take(self, links: ArrayLike) -> Self:
        """Some of the links, between the same points; groups keep their numbers.

        Parameters
        ----------
        links : array_like of int or bool
            Numbers of links, or a mask over all of them.

        Raises
        ------
        ValueError
            If these do not name some of the links.
        """
        chosen = chosen_rows("links", links, len(self))
        return type(self)(
            self.pairs[chosen],
            self.weights[chosen],
            self.num_points,
            None if self.group is None else self.group.take(chosen),
            {name: values[chosen] for name, values in self.columns.items()},
        )

    def check(self, num_points: int | None = None, num_clusters: int | None = None) -> LinkReport:
        """Report on the links; raise if hard links contradict each other.

        Parameters
        ----------
        num_points : int, optional
            Defaults to the number given at construction, or the largest index plus one.
        num_clusters : int, optional
            Also refuses hard cannot-links that need more clusters. This is decided by a search; where it
            would take long, in graphs of many points with as many cannot-links each as there are
            clusters, it is the fit that finds whether any labeling satisfies the links.

        Returns
        -------
        LinkReport

        Raises
        ------
        ValueError
            If hard links contradict; the message names the path, or the points that need more clusters.
        """
        if num_points is None:
            num_points = self.num_points or int(self.pairs.max(initial=-1)) + 1
        check_pairs(self.pairs, num_points)
        return check_links(self.pairs, self.weights, num_points, num_clusters)

    def __repr__(self) -> str:
        """Counts by kind."""
        must, hard = self.same, self.hard
        groups = "" if self.group is None else f"{counted(self.group.num_groups, 'group')}, "
        return (
            f"Links({counted(must.sum(), 'must-link')} ({(must & hard).sum()} hard), "
            f"{counted((self.weights < 0).sum(), 'cannot-link')} ({(~must & hard).sum()} hard), "
            f"{groups}num_points={self.num_points})"
        )

    def _repr_html_(self) -> str:
        return cell(repr(self), self.table())
