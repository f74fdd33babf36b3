"""Orbits of orthogonal transforms, along which a density is constant: their directions and volumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.special import gammaln

from ..base import FitError, Problem
from ..problem.declared import site_dims
from ..symmetries.declared import site_symmetries

__all__ = ["Orbits"]

_RANK = 1e-8
"""Singular value, relative to the largest, below which vectors do not span a dimension."""


@dataclass(frozen=True)
class Orbits:
    r"""Orbits of a mode under orthogonal transforms, and coordinates across the orbits.

    With the sites of a declared axis laid out as rows A of q entries, the orbit is :math:`A Q` for all
    orthogonal Q, along which the density is constant. Its tangents at A are
    :math:`A (e_a e_b^\top - e_b e_a^\top)`, the columns of T. Points y of the plane through the mode that is
    normal to its tangents represent all nearby orbits, and integrals over all coordinates are integrals
    over that plane with the weight

    .. math:: J(y) = v_q\, |\det(U^\top T(y))|, \qquad
              v_q = 2 \prod_{k=2}^{q} \frac{2 \pi^{k/2}}{\Gamma(k/2)},

    where U is an orthonormal basis of the tangents at the mode, and :math:`v_q` the volume of the orthogonal
    matrices (own derivation). The volume is halved if the rows span one dimension less, for then a
    reflection changes nothing.

    Attributes
    ----------
    axes : tuple of ndarray of int
        For each axis, the places of the rows A among the coordinates, shape (num_rows, q).
    log_volume : float
        Sum of the logarithms of :math:`v_q`.
    point : ndarray, shape (num_coordinates,)
        The mode.
    """

    axes: tuple[NDArray[np.int64], ...]
    log_volume: float
    point: NDArray

    @classmethod
    def through(cls, problem: Problem, free: Mapping[str, Any], sites: Mapping[str, Any]) -> Orbits:
        """Return the orbits through a mode, given by its unconstrained coordinates and its sites.

        Raises
        ------
        FitError
            If the rows span too few dimensions, so that the orbit is of a smaller dimension.
        ValueError
            If the coordinates of a site are not its values up to a unit.
        """
        flat, unravel = ravel_pytree(dict(free))
        places = unravel(jnp.arange(len(flat), dtype=flat.dtype))
        dims, axes, volume = site_dims(problem), [], 0.0
        found = {name: axis for name, axis in site_symmetries(problem).items() if name in free}
        for axis in dict.fromkeys(found.values()):
            parts = []
            for name in (name for name, own in found.items() if own == axis):
                own = _rows(np.asarray(places[name]), dims[name].index(axis))
                _refuse_curved(
                    name,
                    np.asarray(flat)[own.astype(int)],
                    _rows(sites[name], dims[name].index(axis)),
                )
                parts.append(own)
            rows = np.concatenate(parts).astype(int)
            axes.append(rows)
            volume += _log_volume(np.asarray(flat)[rows], axis, sites)
        return cls(tuple(axes), volume, np.asarray(flat))

    def tangents(self, points: NDArray) -> NDArray[np.float64]:
        """Return the directions of the orbits, shape (num_points, num_coordinates, num_directions)."""
        columns = []
        for rows in self.axes:
            for one, other in zip(*np.triu_indices(rows.shape[1], 1), strict=True):
                column = np.zeros_like(points)
                column[:, rows[:, other]] = points[:, rows[:, one]]
                column[:, rows[:, one]] = -points[:, rows[:, other]]
                columns.append(column)
        return np.stack(columns, axis=-1) if columns else np.zeros((*points.shape, 0))

    @cached_property
    def _bases(self) -> tuple[NDArray, NDArray]:
        """Return orthonormal bases of the tangents at the mode, and of the plane normal to them."""
        tangents = self.tangents(self.point[None])[0]
        whole, _ = np.linalg.qr(tangents, mode="complete")
        return whole[:, : tangents.shape[1]], whole[:, tangents.shape[1] :]

    @property
    def normal(self) -> NDArray[np.float64]:
        """Orthonormal basis of the plane, shape (num_coordinates, num_coordinates - num_directions)."""
        return self._bases[1]

    def log_weights(self, points: NDArray) -> NDArray[np.float64]:
        """Return the logarithm of J at some points of the plane, shape (num_points,)."""
        inner = self._bases[0].T @ self.tangents(points)
        return self.log_volume + np.linalg.slogdet(inner)[1]


def _rows(values: Any, place: int) -> NDArray:
    """Return the vectors along one axis, one per row."""
    last = np.moveaxis(np.asarray(values), place, -1)
    return last.reshape(-1, last.shape[-1])


def _refuse_curved(name: str, free: NDArray, value: NDArray) -> None:
    """Refuse coordinates that do not transform as the site does."""
    ours, theirs = free.T @ free, value.T @ value
    unit = np.linalg.norm(theirs) / max(np.linalg.norm(ours), np.finfo(float).tiny)
    if not np.allclose(theirs, unit * ours, rtol=1e-6, atol=1e-6 * np.linalg.norm(theirs)):
        raise ValueError(
            f"site {name!r} is known up to an orthogonal transform, but its unconstrained coordinates are "
            "not, so that no Gaussian is near it across the orbits; use NUTS or SVI"
        )


def _log_volume(rows: NDArray, axis: str, sites: Mapping[str, Any]) -> float:
    """Return the log volume of the orthogonal matrices whose effects on some rows differ."""
    size = rows.shape[1]
    values = np.linalg.svd(rows, compute_uv=False)
    rank = int((values > _RANK * max(values[0], np.finfo(float).tiny)).sum())
    if rank < size - 1:
        raise FitError(
            f"Laplace: vectors along {axis!r} span {rank} of {size} dimensions where the ascent ended, and "
            "transforms of the others change nothing; take fewer dimensions, or NUTS",
            dict(sites),
        )
    spheres = np.arange(2, size + 1)
    each = np.log(2.0) + spheres / 2 * np.log(np.pi) - gammaln(spheres / 2)
    return float(each.sum() + np.log(2.0) * (rank == size))
