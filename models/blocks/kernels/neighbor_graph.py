"""Neighbourhood graph of points, and the lowest frequencies of its normalised Laplacian."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors

from sidebayes.common.arrays import point_table
from sidebayes.common.fields import check_integer

__all__ = ["NeighborGraph"]

_DENSE = 2000
"""Maximum number of points whose Laplacian is decomposed as a dense matrix."""

_NEIGHBORS = 20
"""Default number of neighbours, if there are as many points."""


@dataclass(frozen=True, eq=False)
class NeighborGraph:
    """Squared distances between neighbours: a dense matrix, or a sparse one with explicit zeros."""

    points: NDArray[np.float64]
    whitening: NDArray[np.float64]
    num_neighbors: int | None
    radius: NDArray[np.float64]
    distances: NDArray[np.float64] | scipy.sparse.csr_array

    @classmethod
    def build(cls, x: ArrayLike, num_neighbors: int | str | None, whiten: bool) -> NeighborGraph:
        """Graph of all pairs of points `x`, or of the `num_neighbors` nearest of each (itself too).

        The "default" number is 20, or all points if there are fewer.
        """
        x = point_table("x", x)
        if len(x) < 3:
            raise ValueError(
                f"x has shape {x.shape}; expected (points, features), three points or more"
            )
        whitening = _whitening(x) if whiten else np.eye(x.shape[1])
        points = x @ whitening
        if num_neighbors is None:
            everything = np.full(len(x), np.inf)
            return cls(points, whitening, None, everything, cdist(points, points) ** 2)
        asked = min(_NEIGHBORS, len(x)) if num_neighbors == "default" else num_neighbors
        size = check_integer("num_neighbors", asked)
        if not 2 <= size <= len(x):
            raise ValueError(
                f"num_neighbors = {num_neighbors}; expected 2 to {len(x)}, the point itself counted, "
                "or None for the complete graph"
            )
        centred = points - points.mean(axis=0)  # avoids cancellation
        near = NearestNeighbors(n_neighbors=size).fit(centred)
        number = near.kneighbors(centred, return_distance=False)
        first = np.concatenate([np.repeat(np.arange(len(x)), size), np.arange(len(x))])
        second = np.concatenate([number.ravel(), np.arange(len(x))])
        both = np.unique(np.concatenate([first * len(x) + second, second * len(x) + first]))
        row, column = np.divmod(both, len(x))
        squared = np.sum((points[row] - points[column]) ** 2, axis=1)
        reach = np.linalg.norm(points[:, None] - points[number], axis=2).max(axis=1)
        start = np.searchsorted(row, np.arange(len(x) + 1))
        found = scipy.sparse.csr_array((squared, column, start), shape=(len(x), len(x)))
        return cls(points, whitening, size, reach, found)

    def typical_distance(self) -> float:
        """Median distance to the tenth neighbour, or to the last one if there are fewer."""
        rank = min(10, len(self.points) - 1)
        centred = self.points - self.points.mean(axis=0)
        near = NearestNeighbors(n_neighbors=rank + 1).fit(centred).kneighbors(centred)[0]
        found = float(np.median(near[:, -1]))
        if not found:
            raise ValueError(
                f"most points of x have {rank} copies or more, so that there is no typical distance; drop "
                "copies, or give a bandwidth"
            )
        return found

    def affinities(self, bandwidth: float) -> NDArray[np.float64] | scipy.sparse.csr_array:
        """Gaussian affinities of neighbours."""
        if isinstance(self.distances, np.ndarray):
            return np.exp(-self.distances / bandwidth**2)
        found = self.distances.copy()
        found.data = np.exp(-found.data / bandwidth**2)
        return found

    def affinities_to(self, x_new: NDArray, bandwidth: float) -> NDArray[np.float64]:
        """Affinities of new points to all points of the graph, shape (num_new, num_points).

        Neighbours are points that are near enough to either end, as within the graph.
        """
        distance = cdist(x_new @ self.whitening, self.points)
        affinity = np.exp(-((distance / bandwidth) ** 2))
        if self.num_neighbors is None:
            return affinity
        last = self.num_neighbors - 1
        own = np.partition(distance, last, axis=1)[:, last]
        reach = np.maximum(own[:, None], self.radius) * (1 + 1e-9)
        return np.where(distance <= reach, affinity, 0.0)

    @property
    def large(self) -> bool:
        """Whether the graph is sparse and its Laplacian is not decomposed as a dense matrix."""
        return self.num_neighbors is not None and len(self.points) > _DENSE

    def spectrum(
        self, bandwidth: float, num_eigenpairs: int, constant: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Lowest frequencies of the normalised Laplacian, their vectors, and the degrees.

        Without `constant`, the eigenvector of frequency zero is moved beyond all others.
        """
        affinity = self.affinities(bandwidth)
        num_points = len(self.points)
        count = min(check_integer("num_eigenpairs", num_eigenpairs), num_points - (not constant))
        degree = np.asarray(affinity.sum(axis=1)).ravel()
        root = 1 / np.sqrt(degree)
        flat = np.sqrt(degree / degree.sum())
        shift = 0.0 if constant else 3.0
        if not self.large:
            dense = affinity if isinstance(affinity, np.ndarray) else affinity.toarray()
            matrix = root[:, None] * dense * root - shift * np.outer(flat, flat)
            kept = (num_points - count, num_points - 1)
            values, vectors = scipy.linalg.eigh(matrix, subset_by_index=kept)
        else:
            normalised = scipy.sparse.diags_array(root) @ affinity @ scipy.sparse.diags_array(root)
            values, vectors = _largest_eigenpairs(
                scipy.sparse.csr_array(normalised), shift * flat, flat, count
            )
        order = np.argsort(-values)
        return np.maximum(1 - values[order], 0.0), vectors[:, order], degree


def _whitening(x: NDArray) -> NDArray[np.float64]:
    """Map to uncorrelated features of unit variance; directions without variance are dropped."""
    variance, axes = np.linalg.eigh(np.atleast_2d(np.cov(x.T)))
    used = variance > 1e-12 * variance.max()
    return axes[:, used] / np.sqrt(variance[used])


def _largest_eigenpairs(
    matrix: scipy.sparse.csr_array, left: NDArray, right: NDArray, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Largest eigenpairs of a sparse symmetric matrix less :math:`l r^T`, by Lanczos.

    The Krylov basis, too large for the processor's cache, is kept in single precision; a
    Rayleigh-Ritz step in double precision then makes eigenvalues exact to the square of the
    vectors' residual, about 1e-5.
    """
    single, near, far = matrix.astype(np.float32), np.float32(left), np.float32(right)
    operator = scipy.sparse.linalg.LinearOperator(
        matrix.shape,
        matvec=lambda v: single @ v.ravel() - near * (far @ v.ravel()),
        dtype=np.float32,
    )
    start = np.random.default_rng(0).normal(size=len(left)).astype(np.float32)
    _, found = scipy.sparse.linalg.eigsh(operator, count, which="LA", v0=start, tol=1e-5)
    basis = np.linalg.qr(found.astype(float))[0]
    inner = basis.T @ (matrix @ basis - np.outer(left, right @ basis))
    values, rotation = np.linalg.eigh((inner + inner.T) / 2)
    return values, basis @ rotation
