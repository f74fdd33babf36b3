"""Positions of points in few dimensions: their prior and starting values."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.sparse
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray
from numpyro.distributions.transforms import AffineTransform, Transform
from scipy.sparse.csgraph import dijkstra

from sidebayes.common.magnitudes import listed, shown

from ..block import Block
from ..block_facts import TakesMissing
from ..mixtures.data_units import fitted_statistic
from .centred import CentredNormal, Centring
from .points import Points
from .stress import relaxed

__all__ = ["Positions", "landmark_scaling", "point_scale"]

_JITTER = 0.8
"""Largest deviation of further starts from the first, in standard deviations of the positions."""


def point_scale(distances: Array | None, num_dimensions: int, scale: float | None) -> Array:
    r"""Record the prior standard deviation of positions, as given or from the distances.

    Points with standard deviation s in each of q dimensions have mean squared distance :math:`2 q
    s^2`.
    """
    if scale is not None:
        if not (isinstance(scale, Real) and 0 < scale < np.inf):
            raise ValueError(f"scale = {shown(scale)}; expected a number > 0, or None")
        return jnp.asarray(float(scale))
    if distances is None:
        return jnp.ones(())
    known = jnp.isfinite(distances) & (distances > 0)
    square = jnp.where(known, distances, 0.0) ** 2
    mean = square.sum() / jnp.maximum(known.sum(), 1) / (2 * num_dimensions)
    return fitted_statistic("scale", jnp.sqrt(mean))


class Positions(Block, TakesMissing):
    r"""Positions of points, with independent normal coordinates about their mean or class centres.

    .. math:: x_i \sim \mathcal N(0, s^2 I) \mid \textstyle\sum_i x_i = 0, \qquad \text{or} \quad
              m_c \sim \mathcal N(0, (1 - h) s^2 I), \quad x_i \mid c \sim \mathcal N(m_c, h s^2 I)

    if classes are partly known: the class of a point is uniform among the admissible ones, and
    summed out. The share h of the variance within classes is learned.

    Parameters
    ----------
    scale : Array, shape ()
        s, in the unit of distances.
    has_zeros : bool
        Whether distances between different points may be zero.
    points : Points, optional
        Where distances are those along a neighbour graph.
    """

    roles: ClassVar[tuple[str, ...]] = ("position",)

    def __init__(self, scale: Array, has_zeros: bool = False, points: Points | None = None) -> None:
        self.scale, self.has_zeros, self.points = scale, has_zeros, points

    @property
    def factors(self) -> tuple[str | None, ...]:
        """None: positions enter the density of the distances directly."""
        return (None,)

    def sample(self, num_points: int, num_dimensions: int, known: ArrayLike | None = None) -> Array:
        """Sample positions, shape (num_points, num_dimensions).

        Parameters
        ----------
        num_points, num_dimensions : int
        known : array_like of bool, shape (num_points, num_classes), optional
            Admissible classes.
        """
        turns = {"dimensions": "orthogonal"}
        if known is None:
            fn: dist.Distribution = CentredNormal(self.scale, num_points, num_dimensions)
            return self.declare("position", "positions", fn, ["points", "dimensions"], turns)
        fn = self._about_centers(jnp.asarray(known), num_dimensions)
        with numpyro.plate("points", num_points):
            return self.declare("position", "positions", fn, ["dimensions"], turns)

    def _about_centers(self, admissible: Array, num_dimensions: int) -> dist.Distribution:
        within = numpyro.sample("within", dist.Beta(2.0, 2.0))
        between = dist.Normal(0.0, self.scale * jnp.sqrt(1 - within))
        with numpyro.plate("classes", admissible.shape[1]):
            centers = numpyro.sample(
                "centers",
                between.expand([num_dimensions]).to_event(1),
                infer={"event_dims": ["dimensions"]},
            )
        classes = admissible / jnp.maximum(admissible.sum(axis=1, keepdims=True), 1)
        parts = dist.Normal(centers, self.scale * jnp.sqrt(within)).to_event(1)
        return dist.MixtureSameFamily(dist.Categorical(classes), parts)

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates in units of the prior standard deviation of positions."""
        if isinstance(bijector, Centring):
            return Centring(self.scale)
        return AffineTransform(0.0, self.scale)

    def check(self, name: str, value: Any) -> None:
        """Refuse distances that are all zero or missing, and equal points if noise is relative."""
        table = np.asarray(value)
        if table.ndim < 2:  # statements of links
            return
        if not (table > 0).any():
            raise ValueError(f"{name} holds no distance above zero; there is nothing to place")
        zeros = np.argwhere(table == 0)
        if not self.has_zeros and len(zeros) > table.shape[1]:
            column = np.bincount(zeros[:, 1]).argmax()
            equal = zeros[zeros[:, 1] == column, 0]
            raise ValueError(
                f"{name} is zero in column {column} for the points {listed(equal)}: "
                "points at distance zero have one position; keep one of them, or take noise='normal'"
            )

    def remark_on_data(self, name: str, value: Any, draws: Mapping[str, Any]) -> str | None:
        """Name points far from all others, columns of unlike units, and short circuits of the graph."""
        table = np.asarray(value)
        if self.points is None or table.ndim < 2:  # statements of links
            return None
        return self.points.remark(table, _landmarks(table))

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Positions of small stress and from classical scaling in turn, with growing deviations."""
        table = np.asarray(value, float)
        scaled = landmark_scaling(table, shapes["position"][1])
        near = np.stack([relaxed(scaled, table, _landmarks(table)), scaled])
        noise = np.random.default_rng(seed).normal(size=(num_starts, *scaled.shape))
        noise -= noise.mean(axis=1, keepdims=True)
        number = np.arange(num_starts)
        size = _JITTER * scaled.std() * (number // 2) / max((num_starts - 1) // 2, 1)
        return {"position": near[number % 2] + size[:, None, None] * noise}


def _landmarks(table: NDArray) -> NDArray[np.int64]:
    """Numbers of the points from which the columns are distances."""
    return np.where(np.isnan(table), np.inf, table).argmin(axis=0)


def landmark_scaling(distances: NDArray, num_dimensions: int) -> NDArray[np.float64]:
    """Positions from classical scaling of the landmarks, and least squares for the other points.

    A missing distance is replaced by that of the shortest path through landmarks.

    Parameters
    ----------
    distances : ndarray, shape (num_points, num_landmarks)
        Zero from a landmark to itself.

    Returns
    -------
    ndarray, shape (num_points, num_dimensions)
        With mean zero.

    References
    ----------
    De Silva and Tenenbaum (2004), Sparse multidimensional scaling using landmark points.
    """
    table = np.array(distances, float)
    landmarks = _landmarks(table)
    if (missing := np.isnan(table)).any():
        row, column = np.nonzero(~missing)
        ends = row, landmarks[column]
        known = scipy.sparse.csr_array((table[row, column], ends), (len(table),) * 2)
        table[missing] = dijkstra(known, directed=False, indices=landmarks).T[missing]
    square = table[landmarks] ** 2
    mean = square.mean(axis=0)
    inner = -0.5 * (square - mean - mean[:, None] + mean.mean())
    values, vectors = np.linalg.eigh((inner + inner.T) / 2)
    values, vectors = values[::-1][:num_dimensions], vectors[:, ::-1][:, :num_dimensions]
    root = np.sqrt(np.maximum(values, 1e-6 * max(values[0], 1e-300)))
    found = -0.5 * (table**2 - mean) @ (vectors / root)
    return found - found.mean(axis=0)
