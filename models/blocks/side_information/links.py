"""Side information as data: links between points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sidebayes.common.arrays import plain_array, point_table
from sidebayes.common.class_names import refuse_plus_minus
from sidebayes.common.fields import check_integer
from sidebayes.common.files import as_path
from sidebayes.common.magnitudes import counted
from sidebayes.common.warnings import warn_user

from .groups import Groups
from .link_tables import as_same, read_links_table
from .link_weights import check_pairs, flip_rate_weight, per_pair
from .partial_labels import PartialLabels, as_partial_labels
from .stated_pairs import StatedPairs
from .uncolourable import low_first

__all__ = ["Links"]


@dataclass(frozen=True, eq=False, repr=False)
class Links(StatedPairs):
    """Statements about unordered pairs of points, each with a log-odds weight, kept in the given order.

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
        Who stated each link, by name or number. A flip rate that is learned is then one per group.
    columns : mapping of str to array_like of shape (num_links,), optional
        Other facts about each link, numbers or text, which are kept, selected, saved and written
        with it. Names must be printable text without a slash, as files require.

    Raises
    ------
    TypeError
        If `pairs` are not integers, `columns` are not a mapping, or a column is neither numbers nor
        text.
    ValueError
        On a wrong shape, a negative or too large index, a self link, a NaN weight, a link without a
        group, a name that a column cannot have, or a pair that is both a hard must-link and a hard
        cannot-link.
    """

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
            Who stated each link, and further facts about it; see `Links`.
        """
        pairs = check_pairs(pairs, num_points)
        weight = per_pair("weight", weight, len(pairs))
        if (weight < 0).any():
            row = int(np.argmax(weight < 0))
            raise ValueError(
                f"weight[{row}] = {weight[row]} is negative; it is the strength of a statement, a number "
                ">= 0. Pairs that differ are links of Links.cannot_link, or have same=False in from_pairs"
            )
        return cls._stated(pairs, same, weight, num_points, group, columns)

    @classmethod
    def _stated(
        cls,
        pairs: NDArray,
        same: ArrayLike,
        weight: NDArray,
        num_points: int | None,
        group: Any,
        columns: Any,
    ) -> Self:
        """Links with the given weights for must-links, and with opposite weights for cannot-links."""
        signed = np.where(as_same(same, len(pairs)), weight, -weight)
        return cls(pairs, signed, num_points, group, {} if columns is None else columns)

    @classmethod
    def must_link(
        cls, pairs: ArrayLike, weight: ArrayLike = np.inf, num_points: int | None = None
    ) -> Self:
        """Links between pairs that share their label."""
        return cls.from_pairs(pairs, True, weight, num_points)

    @classmethod
    def cannot_link(
        cls, pairs: ArrayLike, weight: ArrayLike = np.inf, num_points: int | None = None
    ) -> Self:
        """Links between pairs whose labels differ."""
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

        The weight is :math:`\pm\log(\gamma / (1 - \gamma))`. A confidence below one half reverses the
        statement, with a warning, one half states nothing (weight zero), and one makes the link hard.

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
        if (doubted := confidence < 0.5).any():
            row = int(np.argmax(doubted))
            warn_user(
                f"confidence is below 0.5 in {counted(doubted.sum(), 'statement')}, the first "
                f"confidence[{row}] = {confidence[row]:g}: as the probability of being right, it reverses "
                "them. If 0 means a guess, give (1 + confidence) / 2"
            )
        weight = -flip_rate_weight(confidence)
        return cls._stated(pairs, same, weight, num_points, group, columns)

    @classmethod
    def from_labels(cls, labels: ArrayLike | PartialLabels) -> Self:
        """Hard links that partial labels imply: one chunklet per class, cannot-links between classes.

        Parameters
        ----------
        labels : array_like, shape (num_points,), or PartialLabels
            Class of each point, a number or a name; -1 or a missing value where unknown. Classes -1
            and 1 alone are refused, since nobody can tell whether -1 is a class.
        """
        if not isinstance(labels, PartialLabels):
            refuse_plus_minus("labels", labels)
        given = as_partial_labels(labels)
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
        """Four-neighbour links of a pixel grid, with the rows of the image in succession.

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
        pairs = np.concatenate([right, down])
        return cls(pairs, per_pair("weight", weight, len(pairs)), index.size)

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
        pairs = np.unique(low_first(np.stack([graph.row, graph.col], axis=1)), axis=0)
        return cls(pairs.astype(np.int64), per_pair("weight", weight, len(pairs)), len(x))

    @classmethod
    def read(cls, path: str | Path, num_points: int | None = None) -> Self:
        """Read links from a CSV or Parquet table.

        The table has columns ``i`` and ``j``, and either ``weight`` (log-odds) or ``same``
        (true/false, yes/no, must/cannot, 1/0 or 1/-1) with an optional ``confidence``, the probability
        that the statement is right; see `from_confidence`. Where it has both ``weight`` and ``same``,
        the sign of the weight must agree with the statement. An optional column ``group`` says who
        stated each link; all other columns are kept as they are.

        Raises
        ------
        ValueError
            If columns are missing, or a value cannot be read; the message names its row, from 0 on.
        """
        table = read_links_table(as_path(path))
        rest: Any = num_points, table.group, table.columns
        if table.weights is not None:
            return cls(table.pairs, table.weights, *rest)
        assert table.same is not None  # the table has one of the two
        if table.confidence is not None:
            return cls.from_confidence(table.pairs, table.same, table.confidence, *rest)
        return cls.from_pairs(table.pairs, table.same, np.inf, *rest)
