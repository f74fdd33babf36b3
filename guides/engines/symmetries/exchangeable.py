"""Axes of a user's model that run over exchangeable components, found from its density."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations, islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from numpyro.distributions import constraints

from ..base import Problem
from ..plumbing.programs import compiled
from ..problem.declared import finite_mixtures, site_dims
from ..problem.density import (
    abstract_trace,
    deterministics,
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

_MOST_SETS = 256
"""Sets of axes that are tried, the smallest first; all of them where there are no more."""
_AT_ONCE = 32
"""Moves that one run of the program makes at most."""
_ROUNDING = 1e-5
"""Difference of log densities, relative to their size, that rounding may leave."""
_MOST_ENTRIES = 10_000
"""Largest size of a deterministic site without an axis of the clusters that is looked at."""
_STEP = 0.3
"""Standard deviation, relative to one and the size of a coordinate, of points about draws."""
_SORTED = constraints.ordered_vector, constraints.positive_ordered_vector
"""Supports whose entries no permutation leaves inside."""
_BY_WEIGHTS = (
    "The components are told apart by their weights alone, so that they may change their numbers between "
    "draws, which are averaged as they are: use what numbers do not change, such as fit.same_cluster. Take "
    "broken sticks from stick_weights (sidebayes.models.blocks.mixtures.sticks), weights of which none comes "
    "first from a Dirichlet distribution, and weights that depend on covariates from the softmax of "
    "coefficients in a plate of the components"
)
"""Remark on components that only their weights tell apart."""


class ClusterAxes(NamedTuple):
    """Names of the axes of all sites, and whether clusters have an order.

    Attributes
    ----------
    dims : dict
    ordered : bool
        Whether no cluster may be renumbered.
    doubt : str, optional
        Why clusters may be exchangeable though no axes of them were found.
    numbered : tuple of str
        Deterministic sites that change when clusters are renumbered, and no axis of them follows.
    """

    dims: dict[str, tuple[str, ...]]
    ordered: bool
    doubt: str | None = None
    numbered: tuple[str, ...] = ()

    @property
    def are_exchangeable(self) -> bool:
        """Whether there are clusters, and renumbering them leaves the density."""
        return not self.ordered and any("clusters" in dims for dims in self.dims.values())


class _Move(NamedTuple):
    """Values of the latent sites: at which point, with which entries taken along which axes."""

    point: int
    axes: tuple[str, ...]
    order: tuple[int, ...]


class _Seen(NamedTuple):
    """What a model has at one move.

    Attributes
    ----------
    density, prior : ndarray
        Log joint density, and that of all but the mixtures.
    columns, weights : ndarray, shape (num_clusters,)
        A random combination, over points, of the log densities by component, and of the log weights.
    noted : dict
        Deterministic sites that are small, or have an axis of the length of the clusters.
    """

    density: Any
    prior: Any
    columns: Any
    weights: Any
    noted: dict[str, Any]


def cluster_axes(
    problem: Problem, draws: Mapping[str, NDArray], *, check: bool = False
) -> ClusterAxes:
    """Name the axes of sites ``clusters`` that permute with the labels of a mixture.

    Models of the library say so themselves. In a user's model, axes of the length of the number of
    components are permuted together, by a transposition and by a cycle, which generate all permutations,
    at two points near draws: where the density stays, the components are exchangeable, whatever the axes
    are called. Axes of which an entry moves the density of one component alone are of components; other
    axes, such as those of weights, of hyperparameters or of features, are tried beside them.
    Where no permutation leaves the density, such as of components that are fixed, clusters have an order.

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
        axes = ["clusters"]
    elif sizes == {1}:
        return ClusterAxes(dims, True)
    else:
        (size,) = sizes
        axes = _axes_of_length(latent_sites(trace), dims, size)
    ends = {n: np.stack([draws[n][0, 0], draws[n][-1, -1]]) for n in latent}
    seen = _Viewer(problem, ends, axes, dims, size)
    best, alike, doubt = _exchangeable(seen, axes, size)
    if not best:
        if not alike:
            return ClusterAxes(dims, True, doubt)
        named = {n: _renamed(own, alike) for n, own in dims.items()}
        told = {n for n in dims if {size, size - 1} & {*jnp.shape(trace[n]["value"])}}
        by_number = tuple(n for n in dims if n in told and not {*alike} & {*dims[n]})
        is_mode = max(next(iter(draws.values())).shape[:2]) == 1  # whose numbers nothing changes
        return ClusterAxes(named, True, None if is_mode else _BY_WEIGHTS, by_number)
    swap, cycle = _orders(size)
    orders = tuple(range(size)), swap, cycle
    views = [seen([_Move(p, best, order) for p in range(2)]) for order in orders]
    named = {n: _renamed(own, best) for n, own in dims.items()}
    numbered = []
    for name in views[0][0].noted:
        old, swapped, turned = (np.stack([one.noted[name] for one in both]) for both in views)
        axis = _following(old, turned, cycle)
        if axis is not None:
            named[name] = _renamed(dims[name], (dims[name][axis],))
        elif _changes(old, swapped) or _changes(old, turned):
            numbered.append(name)
    return ClusterAxes(named, False, numbered=tuple(numbered))


def _orders(size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A transposition and a cycle."""
    return (1, 0, *range(2, size)), (*range(1, size), 0)


def _exchangeable(
    seen: _Viewer, axes: Sequence[str], size: int
) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    """The axes that permute together without a change of the density; without any, what is in doubt.

    The second axes are those of components which their weights alone tell apart.
    """
    start = seen([_Move(0, (), tuple(range(size))), _Move(1, (), tuple(range(size)))])
    swap, cycle = _orders(size)

    def stay(own: tuple[str, ...]) -> bool:
        moves = [_Move(p, own, order) for p in range(2) for order in (swap, cycle)]
        return all(
            _close(view.density, start[move.point].density)
            for move, view in zip(moves, seen(moves), strict=True)
        )

    core = _axes_of_components(seen, start[0], axes, size)
    others = [axis for axis in axes if axis not in core]
    tried = 0
    found: list[tuple[str, ...]] = []
    for sets in _in_chunks(_supersets(core, others)):
        if found and core:  # the smallest set with all axes of components
            break
        views = seen([_Move(0, own, swap) for own in sets])
        likely = [
            own
            for own, view in zip(sets, views, strict=True)
            if _close(view.density, start[0].density)
        ]
        found += [own for own in likely if stay(own)]
        tried += len(sets)
    if found:
        return (found[0] if core else max(found, key=len)), (), None
    if tried < 2 ** len(others) - (not core):
        doubt = (
            f"{len(axes)} axes are as long as there are components ({size}), so that not all sets of them "
            "were tried, and whether components may be renumbered is not known; call the axes of components, "
            "and no others, 'clusters', by a plate or by infer={'event_dims': [...]}"
        )
        return (), (), doubt
    (moved,) = seen([_Move(0, core, cycle)])
    alike = bool(core) and _close(moved.columns, start[0].columns[list(cycle)]).all()
    free = not _close(start[0].weights, start[1].weights).all()
    by_weights = alike and free and _close(moved.prior, start[0].prior)
    return (), core if by_weights else (), None


def _close(new: Any, old: Any) -> Any:
    """Whether values differ by no more than rounding."""
    return np.abs(new - old) <= _ROUNDING * (1 + np.abs(old))


def _axes_of_components(
    seen: _Viewer, start: _Seen, axes: Sequence[str], size: int
) -> tuple[str, ...]:
    """Axes whose first entries move the density of the first component, and of no other.

    The second entry takes the place of the first, so that values stay in their supports.
    """
    copied = 1, 1, *range(2, size)
    views = seen([_Move(0, (axis,), copied) for axis in axes])
    same = [_close(view.columns, start.columns) for view in views]
    return tuple(axis for axis, own in zip(axes, same, strict=True) if own[1:].all() and not own[0])


def _supersets(core: tuple[str, ...], others: Sequence[str]) -> list[tuple[str, ...]]:
    """Sets with these axes, the smallest first; axes called ``clusters`` are the first to be added."""
    others = sorted(others, key=lambda axis: axis != "clusters")
    sets = chain.from_iterable(combinations(others, n) for n in range(len(others) + 1))
    return list(islice(filter(None, ((*core, *more) for more in sets)), _MOST_SETS))


def _in_chunks(sets: Sequence[tuple[str, ...]]) -> list[Sequence[tuple[str, ...]]]:
    return [sets[i : i + _AT_ONCE] for i in range(0, len(sets), _AT_ONCE)]


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


def _renamed(own: Sequence[str], axes: Sequence[str]) -> tuple[str, ...]:
    """Names of the axes of a site; a second axis of the clusters is ``clusters_1``."""
    names: list[str] = []
    for dim in own:
        taken = sum(name.startswith("clusters") for name in names)
        names.append(("clusters" + f"_{taken}" * (taken > 0)) if dim in axes else dim)
    return tuple(names)


def _following(before: NDArray, after: NDArray, order: Sequence[int]) -> int | None:
    """Axis of a deterministic site that follows the permutation; None without any."""
    for axis, length in enumerate(before.shape[1:]):
        if length == len(order) and not np.allclose(before, after):
            moved = np.take(before, order, axis=axis + 1)
            if np.allclose(moved, after, rtol=_ROUNDING):
                return axis
    return None


def _changes(before: NDArray, after: NDArray) -> bool:
    """Whether values differ by more than rounding, beside the largest of them."""
    if before.dtype.kind != "f":
        return not np.array_equal(before, after)
    finite = np.isfinite(before)
    if (finite != np.isfinite(after)).any():
        return True
    before, after = before[finite], after[finite]
    rounding = max(_ROUNDING, np.sqrt(np.finfo(before.dtype).eps))
    gap, size = (np.abs(values).max(initial=0.0) for values in (after - before, before))
    return bool(gap > rounding * size)


class _Viewer:
    """The model after moves of two points that are drawn about these ends, in unconstrained space."""

    def __init__(
        self,
        problem: Problem,
        ends: dict[str, NDArray],
        axes: Sequence[str],
        dims: Mapping[str, tuple[str, ...]],
        size: int,
    ) -> None:
        self.problem, self.axes, self.size = problem, tuple(axes), size
        rng = np.random.default_rng(0)
        noise = {n: rng.normal(size=(2, *z.shape)) for n, z in free_shapes(problem).items()}
        self.given = ends, noise
        self.build = _builder(self.axes, dims, size)

    def __call__(self, moves: Sequence[_Move]) -> list[_Seen]:
        """See what the model has after each move."""
        kept = tuple(range(self.size))
        filled = [*moves, *[_Move(0, (), kept)] * (-len(moves) % _AT_ONCE)]
        points = np.array([move.point for move in filled])
        orders = np.array(
            [[m.order if axis in m.axes else kept for axis in self.axes] for m in filled]
        ).reshape(len(filled), len(self.axes), self.size)
        found: list[_Seen] = []
        for at in range(0, len(filled), _AT_ONCE):
            own = slice(at, at + _AT_ONCE)
            number = np.asarray(min(len(moves) - at, _AT_ONCE))
            args = (*self.given, points[own], orders[own], number, self.problem.args)
            key = self.size, self.axes
            program, _ = compiled("exchangeable", self.problem, key, self.build, *args, once=True)
            views = jax.tree.map(np.asarray, program(*args))
            found += [jax.tree.map(lambda v, i=i: v[i], views) for i in range(_AT_ONCE)]
        return found[: len(moves)]


def _builder(axes: tuple[str, ...], dims: Mapping[str, tuple[str, ...]], size: int) -> Callable:
    def build(bare: Problem) -> Callable:
        def near(
            values: dict[str, Array], noise: dict[str, Array], args: tuple
        ) -> dict[str, Array]:
            free = unconstrained_start(bare, values, args)
            free = {n: z + _STEP * (1 + jnp.abs(z)) * noise[n] for n, z in free.items()}
            trace, _ = place(bare, free, args)
            return {n: trace[n]["value"] for n in values}

        def one(values: dict[str, Array], orders: Array, args: tuple) -> _Seen:
            moved = dict(values)
            for name in values:
                for axis, dim in enumerate(dims[name]):
                    if dim in axes:
                        order = orders[axes.index(dim)]
                        moved[name] = jnp.take(moved[name], order, axis=axis)
            trace = trace_model(bare, moved, args)
            mixtures = finite_mixtures(trace)
            prior = sum_log_prob({n: site for n, site in trace.items() if n not in mixtures})
            density = prior + sum_log_prob({n: trace[n] for n in mixtures})
            columns = weights = jnp.zeros(size)
            for fn, value in mixtures.values():
                if fn.num_clusters == size:
                    factors = fn.log_factors(value)
                    columns += _combined(fn.label_factors(factors))
                    weights += _combined(jnp.atleast_2d(factors["log_weights"]))
            noted = {
                n: v
                for n, v in deterministics(trace).items()
                if size in v.shape or v.size <= _MOST_ENTRIES
            }
            return _Seen(density, prior, columns, weights, noted)

        def all_moves(
            ends: dict[str, Array],
            noise: dict[str, Array],
            points: Array,
            orders: Array,
            number: Array,
            args: tuple,
        ) -> _Seen:
            places = jax.lax.map(lambda both: near(both[0], both[1], args), (ends, noise))

            @jax.jit  # so that it is traced once only
            def move(place: Array) -> _Seen:
                values = {name: both[points[place]] for name, both in places.items()}
                return one(values, orders[place], args)

            def keep(place: Array, kept: _Seen) -> _Seen:
                return jax.tree.map(lambda a, b: a.at[place].set(b), kept, move(place))

            shapes = jax.eval_shape(move, jnp.asarray(0))
            blank = jax.tree.map(lambda s: jnp.zeros((_AT_ONCE, *s.shape), s.dtype), shapes)
            return jax.lax.fori_loop(0, number, keep, blank)

        return all_moves

    return build


def _combined(table: Array) -> Array:
    """A combination of the rows of a table by fixed uneven weights."""
    return jnp.cos(jnp.arange(len(table), dtype=table.dtype)) @ table
