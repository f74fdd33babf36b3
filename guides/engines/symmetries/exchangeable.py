"""Axes of a user's model that run over exchangeable components, found from its density."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from numpyro.distributions import constraints

from ..base import Problem
from ..plumbing.programs import compiled
from ..problem.declared import site_dims
from ..problem.density import (
    abstract_trace,
    deterministics,
    finite_mixtures,
    free_shapes,
    latent_sites,
    place,
    sum_log_prob,
    trace_model,
    unconstrained_start,
)
from ..steps.updates import is_ours
from .declared import clusters_permute

__all__ = ["ClusterAxes", "cluster_axes"]

_MOST_AXES = 3
"""Axes up to which all sets of them are tried; of more, all together and none."""
_ROUNDING = 1e-5
"""Difference of log densities, relative to their size, that rounding may leave."""
_STEP = 0.3
"""Standard deviation, relative to one and the size of a coordinate, of points about draws."""
_SORTED = constraints.ordered_vector, constraints.positive_ordered_vector
"""Supports whose entries no permutation leaves inside."""


class ClusterAxes(NamedTuple):
    """Names of the axes of all sites, and whether clusters have an order."""

    dims: dict[str, tuple[str, ...]]
    ordered: bool

    @property
    def are_exchangeable(self) -> bool:
        """Whether there are clusters, and renumbering them leaves the density."""
        return not self.ordered and any("clusters" in dims for dims in self.dims.values())


class _Moved(NamedTuple):
    """Values of the latent sites: at which point, after which permutation of which axes."""

    point: int
    axes: tuple[str, ...]
    order: tuple[int, ...]


def cluster_axes(
    problem: Problem, draws: Mapping[str, NDArray], *, check: bool = False
) -> ClusterAxes:
    """Name the axes of sites ``clusters`` that permute with the labels of a mixture.

    Models of the library say so themselves. In a user's model, axes of the length of the number of
    components are permuted together, by a transposition and by a cycle, which generate all permutations,
    at two points near draws: where the density stays, the components are exchangeable, whatever the axes
    are called.
    Where no permutation leaves it, such as of components that are fixed, clusters have an order.

    Parameters
    ----------
    problem : Problem
    draws : mapping of str to ndarray, shape (chain, draw, ...)
        Values of the sites. Modes may be symmetric by themselves, so that points are drawn about them.
    check : bool
        Ask the density also about the axes that are called ``clusters`` already.
    """
    trace, dims = abstract_trace(problem), site_dims(problem)
    if not clusters_permute(problem):
        return ClusterAxes(dims, True)
    latent = {n: jnp.shape(site["value"]) for n, site in latent_sites(trace).items()}
    sizes = {fn.num_clusters for fn, _ in finite_mixtures(trace).values()}
    if is_ours(problem) or len(sizes) != 1:
        sizes = {
            length
            for name, shape in latent.items()
            for dim, length in zip(dims[name], shape, strict=True)
            if dim == "clusters"
        }
        if not check or len(sizes) != 1 or sizes == {1}:
            return ClusterAxes(dims, sizes == {1})
        (size,) = sizes
        sets: list[tuple[str, ...]] = [("clusters",)]
    elif sizes == {1}:
        return ClusterAxes(dims, True)
    else:
        (size,) = sizes
        sets = _sets(_axes_of_length(latent_sites(trace), dims, size))
    ends = {n: np.stack([draws[n][0, 0], draws[n][-1, -1]]) for n in latent}
    orders = ((1, 0, *range(2, size)), (*range(1, size), 0))
    moves = [_Moved(p, (), tuple(range(size))) for p in range(2)]
    moves += [_Moved(p, own, order) for own in sets for p in range(2) for order in orders]
    density, noted = _evaluated(problem, ends, moves, dims, size)
    allowed = _ROUNDING * (1 + np.abs(density))
    stays = {m: abs(density[i] - density[m.point]) <= allowed[i] for i, m in enumerate(moves)}
    found = [own for own in sets if all(stay for m, stay in stays.items() if m.axes == own)]
    best = max(found, key=len, default=())
    if not best:
        return ClusterAxes(dims, True)
    first, last = (moves.index(_Moved(p, best, orders[1])) for p in range(2))
    named = {n: _renamed(own, best) for n, own in dims.items()}
    for name, values in noted.items():
        named[name] = _following(
            values[[0, 1]], values[[first, last]], orders[1], dims[name], named[name]
        )
    return ClusterAxes(named, False)


def _axes_of_length(
    sites: Mapping[str, Mapping[str, Any]], dims: Mapping[str, tuple[str, ...]], size: int
) -> list[str]:
    """Axes of latent sites that may run over components; not those of entries that are sorted."""
    return list(
        dict.fromkeys(
            dim
            for name, site in sites.items()
            for dim, length in zip(dims[name], jnp.shape(site["value"]), strict=True)
            if length == size
            and not (dim == dims[name][-1] and _bare(site["fn"].support) in _SORTED)
        )
    )


def _bare(support: Any) -> Any:
    return getattr(support, "base_constraint", support)


def _sets(axes: Sequence[str]) -> list[tuple[str, ...]]:
    """Sets of axes that may permute together, none left out that is small."""
    sizes = range(1, len(axes) + 1) if len(axes) <= _MOST_AXES else [len(axes)]
    return list(chain.from_iterable(combinations(axes, number) for number in sizes))


def _permuted(value: Array, dims: Sequence[str], moved: _Moved) -> Array:
    for axis, dim in enumerate(dims):
        if dim in moved.axes:
            value = jnp.take(value, np.asarray(moved.order), axis=axis)
    return value


def _renamed(own: Sequence[str], axes: Sequence[str]) -> tuple[str, ...]:
    """Names of the axes of a site; a second axis of the clusters is ``clusters_1``."""
    names: list[str] = []
    for dim in own:
        taken = sum(name.startswith("clusters") for name in names)
        names.append(("clusters" + f"_{taken}" * (taken > 0)) if dim in axes else dim)
    return tuple(names)


def _following(
    before: NDArray, after: NDArray, order: Sequence[int], dims: Sequence[str], named: Sequence[str]
) -> tuple[str, ...]:
    """Names of the axes of a deterministic site, one of which follows the permutation."""
    for axis, length in enumerate(before.shape[1:]):
        if length == len(order) and not np.allclose(before, after):
            moved = np.take(before, order, axis=axis + 1)
            if np.allclose(moved, after, rtol=_ROUNDING):
                return _renamed(dims, (dims[axis],))
    return tuple(named)


def _evaluated(
    problem: Problem,
    ends: dict[str, NDArray],
    moves: Sequence[_Moved],
    dims: Mapping[str, tuple[str, ...]],
    size: int,
) -> tuple[NDArray, dict[str, NDArray]]:
    """Log joint density after each move, and deterministic sites with an axis of that length.

    Moves are of two points that are drawn about these ends, in unconstrained space.
    """
    rng = np.random.default_rng(0)
    noise = {n: rng.normal(size=(2, *z.shape)) for n, z in free_shapes(problem).items()}

    def build(bare: Problem) -> Callable:
        def near(
            values: dict[str, Array], noise: dict[str, Array], args: tuple
        ) -> dict[str, Array]:
            free = unconstrained_start(bare, values, args)
            free = {n: z + _STEP * (1 + jnp.abs(z)) * noise[n] for n, z in free.items()}
            trace, _ = place(bare, free, args)
            return {n: trace[n]["value"] for n in values}

        def one(values: dict[str, Array], args: tuple) -> tuple[Array, dict[str, Array]]:
            trace = trace_model(bare, values, args)
            noted = deterministics(trace)
            return sum_log_prob(trace), {n: v for n, v in noted.items() if size in jnp.shape(v)}

        def all_moves(ends: dict[str, Array], noise: dict[str, Array], args: tuple) -> Any:
            points = jax.lax.map(lambda both: near(both[0], both[1], args), (ends, noise))
            moved = {
                n: jnp.stack([_permuted(value[m.point], dims[n], m) for m in moves])
                for n, value in points.items()
            }
            return jax.lax.map(lambda values: one(values, args), moved)

        return all_moves

    key = size, tuple(moves)
    program, _ = compiled("exchangeable", problem, key, build, ends, noise, problem.args, once=True)
    density, noted = program(ends, noise, problem.args)
    found: Any = {name: np.asarray(value) for name, value in noted.items()}
    return np.asarray(density), found
