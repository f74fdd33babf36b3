"""Clusters that may be renumbered: particles brought to the numbering that is nearest to a reference.

A density that no renumbering of the clusters changes is that of K! copies of one domain. Particles that are
all in one domain have the covariance of one copy, where those of all copies have one that is as wide as
the copies lie apart.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from ..base import Problem
from ..plumbing.clock import Clock
from ..problem.declared import site_dims
from ..problem.density import abstract_trace, latent_sites, place, sum_log_prob, unconstrain
from ..steps.starts import random_keys
from ..symmetries.declared import clusters_permute
from .particle_moves import each_particle
from .particles import Tails, draw_prior, unraveller

__all__ = ["Folding", "find_folding", "numberings"]

_MOST = 5
"""Clusters up to which all numberings are tried."""

_TRIED = 4
"""Draws of the prior at which the density is compared with that of other numberings."""


@dataclass(frozen=True)
class Folding:
    """Latent sites whose axes of clusters permute together.

    Attributes
    ----------
    axes : tuple of (str, int)
        Sites, and which of their axes.
    num_clusters : int
    """

    axes: tuple[tuple[str, int], ...]
    num_clusters: int

    @property
    def permutations(self) -> NDArray[np.int64]:
        """All numberings, shape (K!, K)."""
        return np.array(list(itertools.permutations(range(self.num_clusters))))

    def renumbered(self, problem: Problem, args: tuple) -> Callable[[Array, Array], Array]:
        """Function that permutes the clusters of one vector of unconstrained coordinates."""
        unravel = unraveller(problem, args)

        def apply(vector: Array, order: Array) -> Array:
            free = unravel(vector)
            trace, _ = place(problem, free, args)
            values = {name: trace[name]["value"] for name in free}
            for name, axis in self.axes:
                values[name] = jnp.take(values[name], order, axis=axis)
            return ravel_pytree(unconstrain(trace, values))[0]

        return apply

    def described(self, problem: Problem, args: tuple) -> Callable[[Array], Array]:
        """Function that lists the coordinates of each cluster, shape (K, num_features), of one vector."""
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
        """Numbering of each particle that is nearest to a reference, and the mean of what it gives.

        Parameters
        ----------
        features : Array, shape (num_particles, K, num_features)
        reference : Array, shape (K, num_features)
        """
        scale = jnp.std(features, axis=(0, 1)) + 1e-12
        gap = (features[:, :, None] - reference[None, None]) / scale
        cost = jnp.square(gap).sum(axis=-1)  # of giving the place l to the cluster k
        orders = jnp.asarray(self.permutations)
        total = cost[:, orders, jnp.arange(self.num_clusters)].sum(axis=-1)
        order = orders[jnp.argmin(total, axis=1)]
        return order, jnp.take_along_axis(features, order[:, :, None], axis=1).mean(axis=0)

    def fold(
        self, problem: Problem, args: tuple, tails: Tails, particles: Array, reference: Array
    ) -> tuple[Array, Array]:
        """Particles in the numbering nearest to the reference, and the reference of the next time."""
        outer = jax.vmap(lambda u: tails.outward(u)[0])(particles)
        features = each_particle(self.described(problem, args), outer)
        _, reference = self.nearest(features, reference)
        order, reference = self.nearest(features, reference)
        move = self.renumbered(problem, args)
        moved = each_particle(lambda given: move(*given), (outer, order))
        return jax.vmap(tails.inward)(moved), reference


def find_folding(problem: Problem, seed: int, clock: Clock) -> Folding | None:
    """Axes of clusters that may be renumbered, as a comparison of densities at prior draws confirms.

    None where there are none, or more than five clusters, whose numberings are too many to try.
    """
    if not clusters_permute(problem):
        return None
    latent, dims = latent_sites(abstract_trace(problem)), site_dims(problem)
    axes, sizes = [], set()
    for name, site in latent.items():
        own = [axis for axis, dim in enumerate(dims[name]) if dim == "clusters"]
        if len(own) > 1:
            return None
        if own:
            axes.append((name, own[0]))
            sizes.add(jnp.shape(site["value"])[own[0]])
    if len(sizes) != 1 or not 1 < (size := sizes.pop()) <= _MOST:
        return None
    folding = Folding(tuple(axes), size)
    keys = random_keys(seed, _TRIED)
    before, after = clock.run(
        "folding", problem, (folding.axes, size), _compared(folding), keys, problem.args
    )
    before, after = np.asarray(before)[:, None], np.asarray(after)
    rounding = math.sqrt(np.finfo(before.dtype).eps) * (1 + np.abs(before))
    finite = np.isfinite(before)
    unchanged = np.abs(np.where(finite, after - np.where(finite, before, 0.0), 0.0)) <= rounding
    return folding if unchanged.all() else None


def _compared(folding: Folding) -> Callable[[Problem], Callable]:
    """Program of the log density of prior draws, and of that under two numberings that make all others."""
    turn = np.roll(np.arange(folding.num_clusters), 1)
    swap = np.arange(folding.num_clusters)
    swap[[0, 1]] = 1, 0

    def build(problem: Problem) -> Callable:
        def compare(keys: Array, args: tuple) -> tuple[Array, Array]:
            unravel, renumbered = unraveller(problem, args), folding.renumbered(problem, args)

            def density(vector: Array) -> Array:
                trace, _ = place(problem, unravel(vector), args)
                return sum_log_prob(trace)

            def one(vector: Array) -> tuple[Array, Array]:
                moved = [renumbered(vector, jnp.asarray(order)) for order in (turn, swap)]
                return density(vector), jnp.stack([density(other) for other in moved])

            return jax.lax.map(one, draw_prior(problem, jax.random.wrap_key_data(keys), args))

        return compare

    return build


def numberings(folding: Folding, seed: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Numberings drawn at random, each as probable, of the shape given and an axis of clusters."""
    size = folding.num_clusters
    rng = np.random.default_rng([seed, 2])
    return rng.permuted(np.broadcast_to(np.arange(size), (*shape, size)), axis=-1)
