"""Checks of a user's input on rows: their features, all their distances, or a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.utils.validation import check_array

from sidebayes.common.magnitudes import shown

from .adjacency import Edges

__all__ = ["stated", "stated_edge"]


def stated(X: Any, before: int | None, num_new: int | None = None) -> Any:
    """Check distances between rows, or lengths of the edges of a graph, and make them symmetric.

    Parameters
    ----------
    X : array_like or sparse, shape (num_rows, before + num_new)
        A sparse array is a graph: entries that are not stored are no edges, and an edge may be stored in
        only one direction.
    before : int, optional
        Number of earlier rows, whose columns come first; None if these are the first rows.
    num_new : int, optional
        Number of columns after those of the earlier rows; by default, the number of rows.

    Raises
    ------
    ValueError
        If the shape is wrong, or numbers are negative, not finite or contradict one another.
    """
    is_graph = scipy.sparse.issparse(X)
    given = check_array(X, accept_sparse="csr", dtype=np.float64, copy=True)
    first: int = before or 0
    width = first + (given.shape[0] if num_new is None else num_new)
    if given.shape[1] != width:
        wanted = f"expected ({given.shape[0]}, {width})"
        rule = (
            "metric='precomputed' takes the distances of each row to all rows"
            if before is None
            else f"a row needs its distances to the {first} rows before"
            + ("" if num_new is not None else " and to the other new rows")
        )
        raise ValueError(f"X has shape {given.shape}; {wanted}: {rule}")
    values = given.data if is_graph else given
    if values.size and values.min() < 0:
        raise ValueError(f"X holds the distance {values.min():.4g}; expected none below zero")
    if num_new is None:
        return _symmetric_graph(given, first) if is_graph else _symmetric(given, first)
    return scipy.sparse.csr_array(given) if is_graph else given


def _symmetric(given: NDArray, first: int) -> NDArray:
    """Check that distances among the new rows are symmetric, with a zero diagonal."""
    among = given[:, first:]
    largest = np.abs(among).max(initial=0.0)
    if np.abs(np.diagonal(among)).max(initial=0.0) > 1e-10 * largest:
        row = np.argmax(np.abs(np.diagonal(among)))
        raise ValueError(
            f"X: row {row} is {among[row, row]:.4g} away from itself; expected distances, with zeros there"
        )
    apart = np.abs(among - among.T)
    if apart.max(initial=0.0) > 1e-8 * largest:
        row, column = np.unravel_index(np.argmax(apart), apart.shape)
        raise ValueError(
            f"X is not symmetric: {among[row, column]:.6g} from row {row} to row {column}, and "
            f"{among[column, row]:.6g} back"
        )
    among[...] = np.minimum(among, among.T)
    return given


def _symmetric_graph(given: Any, first: int) -> scipy.sparse.csr_array:
    """Store edges among the new rows in both directions, and check that they have one length."""
    stored = scipy.sparse.coo_array(given)
    row, column = stored.coords[0].astype(np.int64) + first, stored.coords[1].astype(np.int64)
    length = stored.data
    if np.any(row == column):
        row, column, length = (part[row != column] for part in (row, column, length))
    turned = column >= first
    rows = np.concatenate([row, column[turned]])
    columns = np.concatenate([column, row[turned]])
    lengths = np.concatenate([length, length[turned]])
    order = np.lexsort((lengths, columns, rows))
    rows, columns, lengths = rows[order], columns[order], lengths[order]
    again = np.flatnonzero((np.diff(rows) == 0) & (np.diff(columns) == 0)) + 1
    differ = again[lengths[again] > lengths[again - 1]]
    if len(differ):
        one = int(differ[0])
        raise ValueError(
            f"X states two lengths of the edge from row {rows[one]} to row {columns[one]}: "
            f"{lengths[one - 1]:.6g} and {lengths[one]:.6g}; state one"
        )
    once = np.setdiff1d(np.arange(len(rows)), again)
    rows, columns, lengths = rows[once], columns[once], lengths[once]
    bounds = np.searchsorted(rows, np.arange(first, first + given.shape[0] + 1))
    return scipy.sparse.csr_array((lengths, columns, bounds), shape=given.shape)


def stated_edge(first: Any, second: Any, length: Any, size: int) -> Edges:
    """Check an edge between two different rows, which is infinitely long where its length is None.

    Raises
    ------
    ValueError
        If there are no such rows, or the length is negative or no number.
    """
    for name, row in (("first", first), ("second", second)):
        if not isinstance(row, int | np.integer) or isinstance(row, bool) or not 0 <= row < size:
            raise ValueError(
                f"{name} = {shown(row)}; pass the number of a row, from 0 to {size - 1}"
            )
    if first == second:
        raise ValueError(f"first and second are both {first}; an edge joins two different rows")
    if length is not None and not (np.ndim(length) == 0 and 0 <= float(length) < np.inf):
        raise ValueError(
            f"length = {shown(length)}; pass a number of zero or more, or None to delete the edge"
        )
    far = np.inf if length is None else float(length)
    return Edges.unique(np.array([first]), np.array([second]), np.array([far]))
