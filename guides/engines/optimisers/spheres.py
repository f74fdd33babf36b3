"""Points of spheres near a mode: coordinates along the spheres, and lengths from their own distribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.special import gammaln
from sidebayes.models.blocks.manifolds.directions import Direction, draw_lengths

from ..base import Problem
from ..problem.density import abstract_trace, latent_sites

__all__ = ["Spheres"]


@dataclass(frozen=True)
class Spheres:
    r"""Vectors of which only the direction counts, about a mode.

    A Gaussian for such a vector x implies a wrong distribution of its length, and its directions spread too
    far, since they are divided by lengths that vary. Instead, the Gaussian is one for points y of the plane
    that touches the sphere at the mode. The direction of x is that of y, and its length is drawn from its
    prior, which is its posterior as well. The density of x is then that of y times

    .. math:: \frac{|y|^d}{R} A_d\, p(x), \qquad A_d = \frac{2 \pi^{d/2}}{\Gamma(d / 2)},

    where p is the density of `Direction`, d its dimension and R the length of the mode.

    Attributes
    ----------
    places : tuple of ndarray of int
        For each site, the places of its vectors among the coordinates, shape (num_vectors, d).
    point : ndarray, shape (num_coordinates,)
        The mode.
    """

    places: tuple[NDArray[np.int64], ...]
    point: NDArray

    @classmethod
    def at(cls, problem: Problem, free: Mapping[str, Any]) -> Spheres:
        """Find the vectors of sites that declare a sphere and have the prior `Direction`."""
        flat, unravel = ravel_pytree(dict(free))
        numbers = unravel(jnp.arange(len(flat), dtype=flat.dtype))
        found = [
            np.asarray(numbers[name], int).reshape(-1, *site["fn"].event_shape)
            for name, site in latent_sites(abstract_trace(problem)).items()
            if (site.get("infer") or {}).get("manifold") == "sphere"
            if isinstance(site["fn"], Direction) and site.get("scale") is None
        ]
        return cls(tuple(found), np.asarray(flat))

    def along(self, basis: NDArray) -> NDArray[np.float64]:
        """Return orthonormal columns that span the part of `basis` that is orthogonal to the vectors."""
        rows = [row for place in self.places for row in place]
        if not rows:
            return basis
        outward = np.zeros((len(self.point), len(rows)))
        for number, row in enumerate(rows):
            outward[row, number] = self.point[row]
        whole, _ = np.linalg.qr(basis.T @ outward, mode="complete")
        return basis @ whole[:, len(rows) :]

    def drawn(self, plane: NDArray, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw points whose vectors have the directions of those of the plane, and lengths from the prior."""
        points = plane.copy()
        for place in self.places:
            vectors = plane[:, place]
            lengths, _ = draw_lengths(rng, vectors.shape[-1], vectors.shape[:-1])
            unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
            points[:, place] = lengths[..., None] * unit
        return points

    def log_weights(self, plane: NDArray, points: NDArray) -> NDArray[np.float64]:
        """Log density of points of the plane, less that of points drawn from them, shape (num_points,)."""
        total = np.zeros(len(plane))
        for place in self.places:
            size = place.shape[1]
            area = np.log(2.0) + size / 2 * np.log(np.pi) - gammaln(size / 2)
            spread = size * np.log(np.linalg.norm(plane[:, place], axis=-1))
            spread -= np.log(np.linalg.norm(self.point[place], axis=-1))
            law = np.asarray(Direction(size).log_prob(jnp.asarray(points[:, place])))
            total -= (spread + area + law).sum(axis=-1)
        return total
