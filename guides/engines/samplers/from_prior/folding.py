"""Folds particles of models whose clusters may be renumbered to the numbering nearest to a reference.

A density that no renumbering of the clusters changes consists of K! copies of that in one region. Particles
in a single region have the covariance of one copy. Over all regions, the covariance is as wide as the
distances between copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from ...base import Problem
from ...problem.density import place, unconstrain
from ...steps.starts import initial_values
from ...symmetries.declared import clusters_permute
from ...symmetries.exchangeable import cluster_axes
from .particle_moves import each_particle
from .particles import Tails, unraveller

__all__ = ["Folding", "find_folding", "numberings"]

_MOST = 5
"""Maximum number of clusters for which all numberings are tried."""

_TRIED = 2
"""Number of starts near which the density is compared with that of other numberings."""


@dataclass(frozen=True)
class Folding:
    """Latent sites whose axes of clusters permute together.

    Attributes
    ----------
    axes : tuple of (str, int)
        Sites, and their axes of clusters.
    num_clusters : int
    """

    axes: tuple[tuple[str, int], ...]
    num_clusters: int

    @property
    def permutations(self) -> NDArray[np.int64]:
        """All numberings, shape (K!, K)."""
        return np.array(list(itertools.permutations(range(self.num_clusters))))

    def renumbered(self, problem: Problem, args: tuple) -> Callable[[Array, Array], Array]:
        """Return a function that permutes the clusters of one vector of unconstrained coordinates."""
        unravel = unraveller(problem, args)

        def apply(vector: Array, order: Array) -> Array:
            free = unravel(vector)
            trace, _ = place(problem, free, args)
            values = {name: trace[name]["value"] for name in free}
            for name, axis in self.axes:
                values[name] = jnp.take(values[name], order, axis=axis)
            return ravel_pytree(unconstrain(trace, values))[0]

        return apply

    def images(self, problem: Problem) -> Callable:
        """Program that renumbers rows of unconstrained coordinates, each in its own order.

        It also returns the log Jacobian determinant of that map, as renumbering preserves volume only in
        the space of values.
        """

        def go(vectors: Array, orders: Array, args: tuple) -> tuple[Array, Array]:
            move, unravel = self.renumbered(problem, args), unraveller(problem, args)

            def one(given: tuple[Array, Array]) -> tuple[Array, Array]:
                vector, order = given
                moved = move(vector, order)
                before, after = (place(problem, unravel(at), args)[1] for at in (vector, moved))
                return moved, before - after

            return each_particle(one, (vectors, orders))

        return go

    def described(self, problem: Problem, args: tuple) -> Callable[[Array], Array]:
        """Return a function of one vector: coordinates of each cluster, shape (K, num_features)."""
        unravel = unraveller(problem, args)

        def features(vector: Array) -> Array:
            free = unravel(vector)
            trace, _ = place(problem, free, args)
            columns = []
            for name, axis in self.axes:
                value = trace[name]["value"]
                if free[name].shape == value.shape:  # else axes are not those of the site
                    value = free[name]
                columns.append(jnp.moveaxis(value, axis, 0).reshape(self.num_clusters, -1))
            return jnp.concatenate(columns, axis=1)

        return features

    def nearest(self, features: Array, reference: Array) -> tuple[Array, Array]:
        """Return the numbering of each particle nearest to a reference, and the mean of renumbered features.

        Parameters
        ----------
        features : Array, shape (num_particles, K, num_features)
        reference : Array, shape (K, num_features)
        """
        scale = jnp.std(features, axis=(0, 1)) + 1e-12
        gap = (features[:, :, None] - reference[None, None]) / scale
        cost = jnp.square(gap).sum(axis=-1)  # cost of giving place l to cluster k
        orders = jnp.asarray(self.permutations)
        total = cost[:, orders, jnp.arange(self.num_clusters)].sum(axis=-1)
        order = orders[jnp.argmin(total, axis=1)]
        return order, jnp.take_along_axis(features, order[:, :, None], axis=1).mean(axis=0)

    def fold(
        self, problem: Problem, args: tuple, tails: Tails, particles: Array, reference: Array
    ) -> tuple[Array, Array]:
        """Return particles in the numbering nearest to the reference, and the next reference."""
        outer = jax.vmap(lambda u: tails.outward(u)[0])(particles)
        features = each_particle(self.described(problem, args), outer)
        _, reference = self.nearest(features, reference)
        order, reference = self.nearest(features, reference)
        move = self.renumbered(problem, args)
        moved = each_particle(lambda given: move(*given), (outer, order))
        return jax.vmap(tails.inward)(moved), reference


def find_folding(
    problem: Problem,
    seed: int,
    starts: Mapping[str, NDArray] | None = None,
    *,
    most: int = _MOST,
) -> Folding | None:
    """Find axes of clusters that may be renumbered, as confirmed by comparing densities near some starts.

    The result is None where there are none, or more clusters than `most`.
    """
    if not clusters_permute(problem):
        return None
    if starts is None:
        starts = initial_values(problem, seed, _TRIED)
    found = cluster_axes(problem, {n: v[:, None] for n, v in starts.items()}, check=True)
    if found.ordered:
        return None
    axes, sizes = [], set()
    for name, values in starts.items():
        dims = found.dims[name]
        if dims.count("clusters") > 1 or "clusters_1" in dims:  # these would permute together
            return None
        if "clusters" in dims:
            axes.append((name, dims.index("clusters")))
            sizes.add(values.shape[1:][dims.index("clusters")])
    if len(sizes) != 1 or not 1 < (size := sizes.pop()) <= most:
        return None
    return Folding(tuple(axes), size)


def numberings(folding: Folding, seed: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Draw numberings at random with equal probabilities; the last axis of the result is that of clusters."""
    size = folding.num_clusters
    rng = np.random.default_rng([seed, 2])
    return rng.permuted(np.broadcast_to(np.arange(size), (*shape, size)), axis=-1)
