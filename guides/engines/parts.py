"""One of the parts of a space that renumbering of clusters and changes of signs map to each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln

from .base import Problem
from .plumbing.clock import Clock
from .plumbing.programs import compiled
from .problem.declared import site_dims
from .problem.density import free_shapes, unconstrained_start
from .problem.importance import AT_ONCE, visit
from .samplers.from_prior.folding import Folding, find_folding
from .symmetries.declared import site_symmetries
from .symmetries.exchangeable import cluster_axes
from .symmetries.signs import one_sign

__all__ = ["FROM_PRIOR", "Part"]

FROM_PRIOR = "use SMC or nested sampling, if the method has them"
"""Advice where draws do not give their evidence: engines that estimate it on their way from the prior."""

_MOST_CLUSTERS = 100
"""Maximum number of clusters whose numberings are told apart."""
_ROUNDS = 4
"""How often draws are brought to the numbering that is nearest to the mean of all draws."""


@dataclass(frozen=True)
class Part:
    """Draws brought to one part of the space.

    Attributes
    ----------
    problem : Problem
    places : ndarray, shape (num_chains, num_draws, num_coordinates)
        Draws brought to this part, in unconstrained coordinates.
    log_copies : float
        Logarithm of the number of parts.
    folding : Folding or None
        Axes of clusters; None where the clusters have an order.
    reference, scale : ndarray, shape (num_clusters, num_features) and (num_features,)
        In this part, the numbering of the clusters is the one nearest to the reference.
    signed : dict of ndarray, shape (1, 1, ...)
        A draw of this part that fixes the signs; empty where signs do not matter.
    """

    problem: Problem
    places: NDArray
    log_copies: float
    folding: Folding | None
    reference: NDArray
    scale: NDArray
    signed: Mapping[str, NDArray]

    @classmethod
    def of(cls, problem: Problem, draws: dict[str, NDArray], seed: int) -> Part:
        """Return the part that is nearest to most draws."""
        folding, count = _folding(problem, draws, seed), 1
        draws, signs = one_sign(problem, draws, (0, 0))
        shape = next(iter(draws.values())).shape[:2]
        rows = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}
        places = _coordinates(problem, rows)
        reference, scale = np.zeros((0, 0)), np.zeros(0)
        if folding is not None:
            count = folding.num_clusters
            features = _features(folding, problem, places, rows)
            scale = features.std(axis=(0, 1))
            # features that are constant, but for rounding, do not distinguish clusters
            rounding = 100 * np.finfo(features.dtype).eps * np.abs(features).max(axis=(0, 1))
            scale[scale <= rounding] = np.inf
            reference = features[-1]
            for _ in range(_ROUNDS):
                order = _numbering(features, reference, scale)
                reference = np.take_along_axis(features, order[:, :, None], axis=1).mean(axis=0)
            places = _coordinates(problem, _renumbered(folding, rows, order))
        copies = gammaln(count + 1) + math.log(2) * sum(own[0, 0].size for own in signs)
        signed = {name: value[:1, :1] for name, value in draws.items()} if signs else {}
        places = places.reshape(*shape, -1)
        return cls(problem, places, float(copies), folding, reference, scale, signed)

    def density(self, places: NDArray) -> NDArray:
        """Log density at places, minus infinity outside of this part."""
        shapes = free_shapes(self.problem).items()
        template = {name: np.zeros(own.shape, own.dtype) for name, own in shapes}
        value, sites = visit(self.problem, template, places, Clock(), anywhere=True)
        inside = np.isfinite(value)
        if self.folding is not None:
            features = _features(self.folding, self.problem, places, sites)
            features = np.where(inside[:, None, None], features, 0.0)
            order = _numbering(features, self.reference, self.scale)
            inside &= (order == np.arange(order.shape[1])).all(axis=1)
        if self.signed:
            both = {
                name: np.concatenate([value, sites[name][None]], axis=1)
                for name, value in self.signed.items()
            }
            for signs in one_sign(self.problem, both, (0, 0))[1]:
                inside &= (signs[0, 1:] > 0).reshape(len(inside), -1).all(axis=1)
        return np.where(inside, value, -np.inf)


def _folding(problem: Problem, draws: Mapping[str, NDArray], seed: int) -> Folding | None:
    """Find the axes of clusters that may be renumbered, if any.

    Raises
    ------
    ValueError
        If the posterior has equivalent copies other than by numberings of clusters or by signs.
    """
    if turned := site_symmetries(problem):
        raise ValueError(
            f"{', '.join(sorted(turned))} may be turned at will, so that no normal density covers their "
            f"draws; {FROM_PRIOR}"
        )
    within = [n for n, dims in site_dims(problem).items() if "components" in dims and n in draws]
    known = find_folding(problem, seed, most=_MOST_CLUSTERS)
    if within or (known is None and cluster_axes(problem, draws).are_exchangeable):
        raise ValueError(
            f"{', '.join(sorted(within)) or 'the sites'} may be renumbered in more ways than the clusters as "
            f"wholes, and which copies of the posterior the draws are of is not known; {FROM_PRIOR}"
        )
    return known


def _features(
    folding: Folding, problem: Problem, places: NDArray, sites: Mapping[str, NDArray]
) -> NDArray:
    """Return the features that distinguish clusters, shape (num_rows, num_clusters, num_features)."""
    shapes, at = free_shapes(problem), 0
    free = {}
    for name, own in sorted(shapes.items()):  # as they are laid out in one vector
        free[name] = places[:, at : at + own.size].reshape(-1, *own.shape)
        at += own.size
    columns = []
    for name, axis in folding.axes:
        value = sites[name]
        if free[name].shape == value.shape:  # else axes are not those of the site
            value = free[name]
        moved = np.moveaxis(value, axis + 1, 1)
        columns.append(moved.reshape(*moved.shape[:2], -1))
    return np.concatenate(columns, axis=2)


def _numbering(features: NDArray, reference: NDArray, scale: NDArray) -> NDArray:
    """Return the numbering of each row that is nearest to a reference, shape (num_rows, num_clusters)."""
    # less, the farther the cluster is from the place
    gain = (features / scale) @ (reference / scale).T
    return np.array([linear_sum_assignment(own.T, maximize=True)[1] for own in gain])


def _renumbered(
    folding: Folding, sites: Mapping[str, NDArray], order: NDArray
) -> dict[str, NDArray]:
    """Reorder the clusters of each row, which has an order of its own."""
    moved = dict(sites)
    for name, axis in folding.axes:
        value = sites[name]
        index = order.reshape(len(order), *(1,) * axis, -1, *(1,) * (value.ndim - axis - 2))
        moved[name] = np.take_along_axis(value, index, axis=axis + 1)
    return moved


def _coordinates(problem: Problem, rows: Mapping[str, NDArray]) -> NDArray:
    """Return the unconstrained coordinates of values, one row per draw."""

    def build(problem: Problem) -> Callable:
        def one(values: dict[str, Array], args: tuple) -> Array:
            return ravel_pytree(unconstrained_start(problem, values, args))[0]

        return lambda values, args: jax.lax.map(
            lambda own: one(own, args), values, batch_size=AT_ONCE
        )

    program, _ = compiled("bridge", problem, None, build, rows, problem.args, once=True)
    return np.asarray(program(rows, problem.args))
