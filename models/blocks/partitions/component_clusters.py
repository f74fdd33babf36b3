"""Clusters of the components of a mixture, as a block with a discrete update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array, lax
from jax.scipy.special import xlogy
from numpy.typing import NDArray
from numpyro.distributions.transforms import Transform

from ..block import Block, Discrete, Observation
from ..collapsed import Collapsed

__all__ = ["ComponentClusters", "FlatSimplex", "free_components"]

_SWEEPS = 50
"""Maximum number of sweeps of iterated conditional modes over all components."""

_INSIDE = 0.1
"""Share by which a vertex is moved to the middle of its simplex for gradient updates."""

_FREE = 0.1
"""Loss, in nats, below which a component could as well be in another cluster."""


class FlatSimplex(dist.Dirichlet):
    """Uniform distribution on a simplex, with a density that is finite at the vertices, too."""

    pytree_data_fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, size: int, *, validate_args: bool | None = None) -> None:
        super().__init__(jnp.ones(size), validate_args=validate_args)

    def log_prob(self, value: Array) -> Array:
        """Log density, the same everywhere."""
        size = self.concentration.shape[-1]
        flat = jax.scipy.special.gammaln(jnp.asarray(float(size)))
        return flat + 0.0 * xlogy(1.0, jnp.maximum(value, 1.0)).sum(axis=-1)


class ComponentClusters(Block, Discrete):
    r"""Table V of the clusters of the components, shape (num_components, num_clusters).

    Its rows are probabilities; the update moves them to vertices, one cluster per component. The
    log density depends on V only through :math:`\sum_{kk'} B_{kk'} (V V^\top)_{kk'}`, with :math:`B
    = \sum_{(i,j)} w_{ij} q_i q_j^\top`. Iterated conditional modes increase it one component at a
    time until none moves (Raghuram 2014, section 3.2.2).

    Parameters
    ----------
    num_components, num_clusters : int
    keep_all : bool
        Leave at least one component to every cluster, for a known number of clusters. Otherwise two
        clusters are populated at the start.
    alive : Array of bool, shape (num_components,), optional
        See `PartitionedMixture`.
    """

    factor: ClassVar[str] = "agreement"
    roles: ClassVar[tuple[str, ...]] = ("component_clusters",)

    def __init__(
        self,
        num_components: int,
        num_clusters: int,
        *,
        keep_all: bool,
        alive: Array | None = None,
    ) -> None:
        self.num_components, self.num_clusters = num_components, num_clusters
        self.keep_all = keep_all
        self.alive = jnp.ones(num_components, bool) if alive is None else alive

    def sample(self, name: str) -> Array:
        """Sample the table in the plate of the components."""
        with numpyro.plate("components", self.num_components):
            return self.declare(
                "component_clusters", name, FlatSimplex(self.num_clusters), ("clusters",)
            )

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Coordinates that do not reach the vertices; a vertex maps to a point near it."""
        return _Inside(bijector, self.num_clusters)

    def statistics(self, observation: Observation) -> Array:
        """Expected weight of the statements between each pair of components."""
        return observation.expected["agreement"]

    def update(self, statistics: Array, sources: Sequence[Collapsed]) -> Array:
        """Make the statistic symmetric."""
        return statistics + statistics.T

    def mode(self, found: Array, values: Mapping[str, Array]) -> dict[str, Array]:
        """Move one component after another to its best cluster, until none moves."""
        table = values["component_clusters"]
        owner = settled_clusters(
            found, table.argmax(axis=-1), self.alive, self.num_clusters, self.keep_all
        )
        return {"component_clusters": jax.nn.one_hot(owner, self.num_clusters, dtype=table.dtype)}

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Assign the components at random, to all clusters evenly, or to the first two of them."""
        rng = np.random.default_rng(seed)
        populated = self.num_clusters if self.keep_all else min(2, self.num_clusters)
        place = np.arange(self.num_components)
        places = np.stack([place, *(rng.permutation(place) for _ in range(num_starts - 1))])
        return {"component_clusters": np.eye(self.num_clusters)[places % populated]}


def settled_clusters(
    pull: Array, owner: Array, alive: Array, num_clusters: int, keep_all: bool
) -> Array:
    """Cluster of each component such that no single move increases the sum of pulls.

    Parameters
    ----------
    pull : Array, shape (num_components, num_components)
        Gain, in nats, if two components share their cluster; symmetric.
    owner : Array of int, shape (num_components,)
        Initial cluster of each component.
    alive : Array of bool, shape (num_components,)
        Components that take part.
    num_clusters : int
    keep_all : bool
        Whether a component that is alone in its cluster stays.
    """
    apart = pull * (1 - jnp.eye(len(pull)))

    def move(k: Array, owner: Array) -> Array:
        member = jax.nn.one_hot(owner, num_clusters)
        gain = apart[k] @ member
        best = jnp.where(gain.max() > gain[owner[k]], gain.argmax(), owner[k])
        alone = keep_all & (alive @ member[:, owner[k]] <= 1)
        stays = alone | ~alive[k]
        return owner.at[k].set(jnp.where(stays, owner[k], best).astype(owner.dtype))

    def sweep(state: tuple) -> tuple:
        number, owner, _ = state
        moved = lax.fori_loop(0, len(pull), move, owner)
        return number + 1, moved, (moved != owner).any()

    start = jnp.asarray(0), owner, jnp.asarray(True)
    return lax.while_loop(lambda s: (s[0] < _SWEEPS) & s[2], sweep, start)[1]


def free_components(
    pull: NDArray, side: NDArray, table: NDArray, sizes: NDArray
) -> NDArray[np.int64]:
    """Components of points that share their cluster, and could as well be in another one.

    Parameters
    ----------
    pull : ndarray, shape (num_components, num_components)
        Gain, in nats, if two components share their cluster; symmetric.
    side : ndarray, broadcast to the shape of `table`
        Gain if a component is in a cluster.
    table : ndarray, shape (num_components, num_clusters)
        Probability of each cluster given the component.
    sizes : ndarray, shape (num_components,)
        Expected number of points of each component; where it is less than one, the cluster does not matter.
    """
    member = np.eye(table.shape[1])[table.argmax(axis=1)] * (sizes >= 1)[:, None]
    gain = (pull - np.diag(np.diag(pull))) @ member + side
    own = (gain * member).sum(axis=1)
    best = np.where(member > 0, -np.inf, gain).max(axis=1)
    shared = (member @ member.sum(axis=0)) > 1
    return np.flatnonzero(shared & (own - best < _FREE))


class _Inside(Transform):
    """A map onto the simplex whose inverse moves its argument towards the middle."""

    domain, codomain = dist.constraints.real_vector, dist.constraints.simplex

    def __init__(self, base: Transform, size: int) -> None:
        self.base, self.size = base, size

    def __call__(self, x: Array) -> Array:
        return self.base(x)

    def _inverse(self, y: Array) -> Array:
        return self.base.inv((1 - _INSIDE) * y + _INSIDE / self.size)

    def log_abs_det_jacobian(self, x: Array, y: Array, intermediates: Any = None) -> Array:
        return self.base.log_abs_det_jacobian(x, y, intermediates)

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.base.forward_shape(shape)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.base.inverse_shape(shape)

    def tree_flatten(self) -> tuple:
        """Leaves and structure, for JAX."""
        return (self.base,), (("base",), {"size": self.size})
