"""Side information as data: links between points, validated once, at the door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from ..fields import check_integer, plain_array, point_table, real_array
from ..files import as_path, write_table
from .hard_links import LinkReport, check_links
from .link_weights import (
    check_pairs,
    check_rows,
    flip_rate_weight,
    hard_beyond,
    link_columns,
    link_groups,
    per_pair,
    refuse_contradicting,
)
from .partial_labels import Groups, PartialLabels, frozen
from .statements import as_same, read_table

__all__ = ["Links"]


@dataclass(frozen=True, eq=False)
class Links:
    """Statements about unordered pairs of points, each with a log-odds weight, in the order given.

    A pair ``(i, j)`` of weight ``w`` multiplies the density of the labels by
    ``exp(w * [z_i == z_j])``: ``w > 0`` is a must-link, ``w < 0`` a cannot-link, infinite weights
    are hard. This is ``J = 2 W`` of Lu (2008), who sums over ordered pairs. A pair may be stated
    several times: its weights then add up in the density of the labels, and under the relation
    reading of `ppc` each statement counts as an observation of its own.

    Parameters
    ----------
    pairs : array_like of int, shape (num_links, 2)
        Row numbers of the points that each link joins. Order within a pair is immaterial.
    weights : array_like of float, shape (num_links,) or ()
        Log-odds that the two labels agree; ``inf`` and ``-inf`` are hard, zero states nothing. Finite
        weights of 1e8 or more count as hard, with a warning: sums over labels carry some sixteen
        digits, and would lose those of the data.
    num_points : int, optional
        Number of points the links refer to; indices are then checked against it.
    group : array_like, shape (num_links,), or Groups, optional
        Who stated each link, names or numbers. A learned flip rate then is one per group.
    columns : mapping of str to array_like of shape (num_links,), optional
        What else is known of each link, numbers or text; kept, selected, saved and written with it.

    Raises
    ------
    TypeError
        If `pairs` are not integers, or a column is neither numbers nor text.
    ValueError
        On a wrong shape, a negative or too large index, a self link, a NaN weight, a link without a
        group, or a pair that is both a hard must-link and a hard cannot-link.
    """

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

    # ---- constructors -------------------------------------------------------------------------

    @classmethod
    def empty(cls, num_points: int | None = None) -> Self:
        """No links at all."""
        return cls(np.zeros((0, 2), np.int64), np.zeros(0), num_points)

    @classmethod
    def from_pairs(
        cls,
        pairs: ArrayLike,
        same: ArrayLike,
        weight: ArrayLike = np.inf,
        num_points: int | None = None,
        group: ArrayLike | Groups | None = None,
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> Self:
        """Links from pairs and a statement for each: same label, or not.

        Parameters
        ----------
        pairs : array_like of int, shape (num_links, 2)
        same : array_like, shape (num_links,) or ()
            True states a must-link, False a cannot-link; so do yes/no, must/cannot, 1/0 and 1/-1.
            Anything else is refused.
        weight : array_like of float, shape (num_links,) or (), default inf
            Strength of the statement, the absolute log-odds; at least zero.
        num_points : int, optional
        group, columns : optional
            Who stated each link, and what else is known of it; see `Links`.
        """
        pairs = check_pairs(pairs, num_points)
        weight = per_pair("weight", weight, len(pairs))
        if (weight < 0).any():
            row = int(np.argmax(weight < 0))
            raise ValueError(
                f"weight[{row}] = {weight[row]} is negative; `same` carries the sign, so give the "
                "strength as a number >= 0"
            )
        signed = np.where(as_same(same, len(pairs)), weight, -weight)
        about = link_groups(group, len(pairs)), link_columns(columns or {}, len(pairs))
        return cls(pairs, signed, num_points, *about)

    @classmethod
    def must_link(
        cls, pairs: ArrayLike, weight: ArrayLike = np.inf, num_points: int | None = None
    ) -> Self:
        """Pairs that share their label."""
        return cls.from_pairs(pairs, True, weight, num_points)

    @classmethod
    def cannot_link(
        cls, pairs: ArrayLike, weight: ArrayLike = np.inf, num_points: int | None = None
    ) -> Self:
        """Pairs whose labels differ."""
        return cls.from_pairs(pairs, False, weight, num_points)

    @classmethod
    def from_confidence(
        cls,
        pairs: ArrayLike,
        same: ArrayLike,
        confidence: ArrayLike,
        num_points: int | None = None,
        group: ArrayLike | Groups | None = None,
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> Self:
        r"""Links whose weight is the log-odds of a stated confidence (Lu 2008, eq. 2.26).

        The weight is :math:`\pm\log(\gamma / (1 - \gamma))`. A confidence below one half turns the
        statement round; one half says nothing, weight zero; one is hard.

        Parameters
        ----------
        pairs : array_like of int, shape (num_links, 2)
        same : array_like, shape (num_links,) or ()
            As in `from_pairs`.
        confidence : array_like of float in [0, 1], shape (num_links,) or ()
            Probability that the statement is right, given the labels.
        num_points : int, optional
        group, columns : optional
            As in `from_pairs`.
        """
        pairs = check_pairs(pairs, num_points)
        confidence = per_pair("confidence", confidence, len(pairs))
        if ((confidence < 0) | (confidence > 1)).any():
            row = int(np.argmax((confidence < 0) | (confidence > 1)))
            raise ValueError(
                f"confidence[{row}] = {confidence[row]} is not a probability; give a number in [0, 1]"
            )
        weight = -flip_rate_weight(confidence)
        signed = np.where(as_same(same, len(pairs)), weight, -weight)
        about = link_groups(group, len(pairs)), link_columns(columns or {}, len(pairs))
        return cls(pairs, signed, num_points, *about)

    @classmethod
    def from_labels(cls, labels: ArrayLike | PartialLabels) -> Links:
        """Hard links that partial labels imply: one chunklet per class, cannot-links between classes.

        Parameters
        ----------
        labels : array_like of int, shape (num_points,), or PartialLabels
            Class of each point, -1 where unknown.
        """
        given = (
            labels
            if isinstance(labels, PartialLabels)
            else PartialLabels(plain_array("labels", labels))
        )
        classes = given.classes
        chunklets = cls.from_groups(classes)
        first = [int(np.argmax(classes == c)) for c in np.unique(classes[classes >= 0])]
        between = np.array([(a, b) for n, a in enumerate(first) for b in first[n + 1 :]])
        return chunklets + cls.cannot_link(
            between.reshape(-1, 2).astype(int), num_points=len(classes)
        )

    @classmethod
    def from_groups(cls, groups: ArrayLike | Groups, weight: ArrayLike = np.inf) -> Self:
        """Must-links that tie every group (chunklet) together, as a chain through its rows.

        Parameters
        ----------
        groups : array_like of int, shape (num_points,), or Groups
            Group of each point; -1 belongs to none.
        weight : float, default inf
        """
        codes = (
            groups.codes
            if isinstance(groups, Groups)
            else Groups(plain_array("groups", groups)).codes
        )
        order = np.argsort(codes, kind="stable")
        adjacent = (codes[order][1:] == codes[order][:-1]) & (codes[order][1:] >= 0)
        pairs = np.stack([order[:-1][adjacent], order[1:][adjacent]], axis=1)
        return cls.must_link(pairs, weight, num_points=len(codes))

    @classmethod
    def from_grid(cls, shape: tuple[int, int], weight: float) -> Self:
        """Four-neighbour links of a pixel grid, rows of the image one after another.

        Parameters
        ----------
        shape : (int, int)
            Height and width of the image.
        weight : float
            Log-odds that neighbours agree, e.g. ``flip_rate_weight(q)``.
        """
        if not isinstance(shape, list | tuple) or len(shape) != 2:
            raise ValueError(f"shape = {shape} must be two positive integers, (height, width)")
        shape = check_integer("height", shape[0]), check_integer("width", shape[1])
        index = np.arange(shape[0] * shape[1]).reshape(shape)
        right = np.stack([index[:, :-1].ravel(), index[:, 1:].ravel()], axis=1)
        down = np.stack([index[:-1].ravel(), index[1:].ravel()], axis=1)
        return cls(np.concatenate([right, down]), real_array("weight", weight), index.size)

    @classmethod
    def from_neighbors(cls, x: ArrayLike, num_neighbors: int, weight: float) -> Self:
        """Links between every point and its nearest neighbours (either direction).

        Parameters
        ----------
        x : array_like, shape (num_points, num_features)
        num_neighbors : int
        weight : float
        """
        from sklearn.neighbors import kneighbors_graph

        x = point_table("x", x)
        if check_integer("num_neighbors", num_neighbors) >= len(x):
            raise ValueError(
                f"num_neighbors = {num_neighbors} for {len(x)} points; expected at most {len(x) - 1}"
            )
        graph = kneighbors_graph(x, num_neighbors).tocoo()
        pairs = np.unique(np.sort(np.stack([graph.row, graph.col], axis=1), axis=1), axis=0)
        return cls(pairs.astype(np.int64), real_array("weight", weight), len(x))

    @classmethod
    def read(cls, path: str | Path, num_points: int | None = None) -> Self:
        """Read links from a CSV or Parquet table.

        The table has columns ``i`` and ``j``, and either ``weight`` (log-odds) or ``same``
        (true/false, yes/no, must/cannot, 1/0 or 1/-1) with an optional ``confidence``. Where it has
        both ``weight`` and ``same``, the sign of the weight must agree with the statement. An optional
        column ``group`` says who stated each link; all other columns are kept as they are.

        Raises
        ------
        ValueError
            If columns are missing, or a value cannot be read; its row, from 0 on, is named.
        """
        table = read_table(as_path(path))
        rest = num_points, link_groups(table.group, len(table.pairs)), table.columns
        if table.weights is not None:
            return cls(table.pairs, table.weights, *rest)
        assert table.same is not None  # the table has one of the two
        if table.confidence is not None:
            return cls.from_confidence(table.pairs, table.same, table.confidence, *rest)
        return cls.from_pairs(table.pairs, table.same, np.inf, *rest)

    def write(self, path: str | Path) -> None:
        """Write the links as a table that `read` understands, whole or not at all."""
        write_table(path, self.table())

    # ---- views ----------------------------------------------------------------------------------

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

    def __add__(self, other: Links) -> Links:
        """Both sets of statements, one after the other.

        Raises
        ------
        ValueError
            If they are over different numbers of points, or only one has groups or some column.
        """
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
        return Links(
            both[["i", "j"]].to_numpy(),
            both["weight"].to_numpy(),
            num_points,
            link_groups(both["group"], len(both)) if "group" in both else None,
            {name: both[name].to_numpy() for name in both.columns[3:] if name != "group"},
        )

    def with_weights(self, weights: ArrayLike) -> Links:
        """Give the same statements other weights, shape (num_links,)."""
        return replace(self, weights=np.asarray(weights, float))

    def with_strength(self, weight: ArrayLike) -> Links:
        """Give the same pairs and signs another absolute weight (a number >= 0, or inf).

        A weight of zero has no sign, and stays.
        """
        strength = per_pair("weight", weight, len(self))
        if (strength < 0).any():
            raise ValueError(
                f"weight = {strength.min()} is negative; links keep their signs, so give the strength as a "
                "number >= 0"
            )
        states = self.weights != 0.0
        signed = np.where(states, np.sign(self.weights) * np.where(states, strength, 0.0), 0.0)
        return self.with_weights(signed)

    def hardened(self) -> Links:
        """Make every link hard."""
        return self.with_strength(np.inf)

    def subset(self, rows: ArrayLike) -> Links:
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

    def take(self, links: ArrayLike) -> Links:
        """Some of the links, between the same points; groups keep their numbers.

        Parameters
        ----------
        links : array_like of int or bool
            Numbers of links, or a mask over all of them.
        """
        chosen = np.asarray(links)
        return Links(
            self.pairs[chosen],
            self.weights[chosen],
            self.num_points,
            None if self.group is None else self.group.take(chosen),
            {name: values[chosen] for name, values in self.columns.items()},
        )

    def check(self, num_points: int | None = None, num_clusters: int | None = None) -> LinkReport:
        """Report what the links hold; raise where hard links contradict each other.

        Parameters
        ----------
        num_points : int, optional
            Defaults to the number given at construction, or the largest index plus one.
        num_clusters : int, optional
            Also refuses more mutually cannot-linked chunklets than clusters.

        Returns
        -------
        LinkReport

        Raises
        ------
        ValueError
            If hard links contradict; the message names the path.
        """
        if num_points is None:
            num_points = self.num_points or int(self.pairs.max(initial=-1)) + 1
        check_pairs(self.pairs, num_points)
        return check_links(self.pairs, self.weights, num_points, num_clusters)

    def __repr__(self) -> str:
        """Counts by kind."""
        must, hard = self.same, self.hard
        groups = "" if self.group is None else f"{self.group.num_groups} groups, "
        return (
            f"Links({must.sum()} must-links ({(must & hard).sum()} hard), "
            f"{(self.weights < 0).sum()} cannot-links ({(~must & hard).sum()} hard), "
            f"{groups}num_points={self.num_points})"
        )
