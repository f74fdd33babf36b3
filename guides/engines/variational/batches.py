"""Whole connected components of linked points, dealt to batches of one shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.side_information.links import Links

__all__ = ["Batch", "chunk_moments", "deal_batches"]

_CHUNK = 65_536
"""Rows read from disk at a time."""


@dataclass(frozen=True)
class Batch:
    """Rows of the data with the links among them.

    Attributes
    ----------
    rows : ndarray of int, shape (num_rows,)
        Padded by repeating the first one.
    live : ndarray of bool, shape (num_rows,)
        False for padding.
    graph : LabelGraph
        Over `rows`; padding has links of its own, so that all batches have the same numbers of
        points, chunklets and edges, and mostly share compiled code.
    """

    rows: NDArray[np.int64]
    live: NDArray[np.bool_]
    graph: LabelGraph

    @property
    def points(self) -> NDArray[np.int64]:
        """Rows without padding."""
        return self.rows[self.live]


def deal_batches(graph: LabelGraph, batch_size: int, seed: int) -> list[Batch]:
    """Deal connected components at random to batches of about `batch_size` points.

    Parameters
    ----------
    graph : LabelGraph
        Over all points.
    batch_size : int
        A component is never cut, so that a larger one makes a larger batch.
    seed : int
    """
    component = np.asarray(graph.component)
    size = np.bincount(component, minlength=graph.num_components)
    order = np.random.default_rng(seed).permutation(graph.num_components)
    begin = np.cumsum(size[order]) - size[order]
    owner = np.empty(graph.num_components, np.int64)
    _, owner[order] = np.unique(begin // batch_size, return_inverse=True)
    number = int(owner.max()) + 1

    batch = owner[component]
    sorted_rows = np.argsort(batch, kind="stable")
    points = np.bincount(batch, minlength=number)
    first = np.cumsum(points) - points
    position = np.empty(graph.num_points, np.int64)
    position[sorted_rows] = np.arange(graph.num_points) - first[batch[sorted_rows]]

    pairs, weights = graph.links.pairs, graph.links.weights
    batch_of_link = batch[pairs[:, 0]]
    edge, link = np.unique(np.asarray(graph.edge_of_link)[: len(pairs)], return_index=True)
    edges = np.bincount(batch_of_link[link[edge < graph.num_edges]], minlength=number)
    chunklet = np.unique(np.asarray(graph.node), return_index=True)[1]
    nodes = np.bincount(batch[chunklet], minlength=number)
    bonds = points - nodes  # points that hard must-links contract away
    spare_edges, spare_bonds = edges.max() - edges, bonds.max() - bonds
    width = int((points + 2 * (spare_edges + spare_bonds)).max())

    def make(b: int) -> Batch:
        own = batch_of_link == b
        at = points[b] + 2 * np.arange(spare_edges[b] + spare_bonds[b])
        spare = np.stack([at, at + 1], axis=1)
        links = Links(
            np.concatenate([position[pairs[own]], spare]),
            np.concatenate(
                [
                    weights[own],
                    np.repeat([1.0, np.inf], [spare_edges[b], spare_bonds[b]]),
                ]
            ),
            width,
        )
        rows = sorted_rows[first[b] : first[b] + points[b]]
        return Batch(
            rows=np.pad(rows, (0, width - points[b]), constant_values=rows[0]),
            live=np.arange(width) < points[b],
            graph=graph.alike(links, width),
        )

    return [make(b) for b in range(number)]


def chunk_moments(x: NDArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and covariance of data that are read in chunks.

    Parameters
    ----------
    x : ndarray or memmap, shape (num_points, num_features)

    Returns
    -------
    mean : ndarray, shape (num_features,)
    covariance : ndarray, shape (num_features, num_features)

    Raises
    ------
    ValueError
        If an entry is missing or infinite.

    References
    ----------
    Chan, Golub and LeVeque (1983), Am. Stat. 37, 242-247, for merging.
    """
    count, mean, scatter = 0, np.zeros(x.shape[1]), np.zeros((x.shape[1], x.shape[1]))
    for start, rows in _chunks(x):
        if not np.isfinite(rows).all():
            bad = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise ValueError(f"x has a missing or infinite value in row {bad}; drop or impute it")
        apart = rows.mean(axis=0) - mean
        total = count + len(rows)
        scatter += (rows - rows.mean(axis=0)).T @ (rows - rows.mean(axis=0))
        scatter += np.outer(apart, apart) * count * len(rows) / total
        mean += apart * len(rows) / total
        count = total
    return mean, scatter / max(count - 1, 1)


def _chunks(x: NDArray) -> Iterator[tuple[int, NDArray[np.float64]]]:
    for start in range(0, len(x), _CHUNK):
        yield start, np.asarray(x[start : start + _CHUNK], float)
