r"""Log evidence from draws of a posterior, by bridge sampling (Meng and Wong 1996).

A normal density q with the mean and the covariance of one half of the draws is set against the other half.
With :math:`p(x, \theta) = Z p(\theta \mid x)` and the bridge
:math:`h = 1 / (s_1 p(x, \theta) / Z + s_2 q)`,

.. math:: Z = \frac{E_q[h\, p(x, \theta)]}{E_{\theta \mid x}[h\, q(\theta)]},

which is iterated to its fixed point. Both means are of bounded terms, whatever the tails are like.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import linear_sum_assignment
from scipy.special import expit, gammaln, logsumexp

from .base import Evidence, FitError, Problem
from .plumbing.clock import Clock
from .plumbing.programs import compiled
from .problem.declared import site_dims
from .problem.density import abstract_trace, free_shapes, latent_sites, unconstrained_start
from .problem.importance import AT_ONCE, has_improper_prior, visit
from .samplers.folding import Folding, find_folding
from .symmetries.declared import site_symmetries
from .symmetries.exchangeable import cluster_axes
from .symmetries.signs import one_sign

__all__ = ["bridge_evidence"]

_MOST_DRAWS = 8000
"""Draws that are used, at most."""
_MOST_CLUSTERS = 100
"""Clusters whose numberings are told apart, at most."""
_ROUNDS = 4
"""Times that draws are brought to the numbering nearest to the mean of all."""
_STEPS = 1000
"""Iterations towards the fixed point, at most."""
_EFFECTIVE = 50.0
"""Effective number of the terms of either mean from which on its error is known."""


def bridge_evidence(problem: Problem, draws: Mapping[str, NDArray], seed: int = 0) -> Evidence:
    """Log evidence from draws of the posterior; of the modes that the draws visited.

    Clusters that may be renumbered, and signs that may change, are brought to one choice of them, and the
    choices are counted.

    Parameters
    ----------
    problem : Problem
    draws : mapping of str to ndarray, shape (chain, draw, ...)
        Latent sites, others may be among them.
    seed : int
        Seed of the draws of the normal distribution.

    Raises
    ------
    ValueError
        If a prior is improper, or the posterior has copies that cannot be brought to one of them.
    FitError
        If the draws are too few, or too far from a normal distribution, for the error to be known.

    References
    ----------
    Meng and Wong (1996), Stat. Sin. 6, 831-860. Frühwirth-Schnatter (2004), Econom. J. 7, 143-167,
    doi:10.1111/j.1368-423X.2004.00125.x, for mixtures and the error. Overstall and Forster (2010), Comput.
    Stat. Data Anal. 54, 3269-3288, doi:10.1016/j.csda.2010.03.008, for draws that do not serve twice.
    """
    if has_improper_prior(problem):
        raise ValueError("a prior is improper, so that there is no evidence; give a proper one")
    names = list(latent_sites(abstract_trace(problem)))
    chains, number = draws[names[0]].shape[:2]
    step = -(-chains * number // _MOST_DRAWS)
    part = _Part.of(problem, {name: np.asarray(draws[name])[:, ::step] for name in names}, seed)
    half = part.places.shape[1] // 2
    ends = part.places[:, :half], part.places[:, half : 2 * half]
    rng = np.random.default_rng([seed, 11])
    (first, own), (second, others) = (_bridged(part, *pair, rng) for pair in (ends, ends[::-1]))
    # of either half, as if they had all of it in common, which autocorrelations of the draws may bring about
    error = math.sqrt(max((own + others) / 2, (first - second) ** 2 / 4))
    return Evidence((first + second) / 2 + part.log_copies, "estimate", error)


@dataclass(frozen=True)
class _Part:
    """One of the parts of the space that renumbering and changes of signs map to each other.

    Attributes
    ----------
    problem : Problem
    places : ndarray, shape (num_chains, num_draws, num_coordinates)
        Draws brought to this part, in unconstrained coordinates.
    log_copies : float
        Logarithm of the number of parts.
    folding : Folding or None
        Axes of clusters, None where these have an order.
    reference, scale : ndarray, shape (num_clusters, num_features) and (num_features,)
        This part is where the clusters are numbered as is nearest to the reference.
    signed : dict of ndarray, shape (1, 1, ...)
        A draw of this part, with whose signs others agree; empty where signs do not matter.
    """

    problem: Problem
    places: NDArray
    log_copies: float
    folding: Folding | None
    reference: NDArray
    scale: NDArray
    signed: Mapping[str, NDArray]

    @classmethod
    def of(cls, problem: Problem, draws: dict[str, NDArray], seed: int) -> _Part:
        """The part that most draws are near to."""
        folding, count = _folding(problem, draws, seed), 1
        draws, signs = one_sign(problem, draws, (0, 0))
        shape = next(iter(draws.values())).shape[:2]
        rows = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}
        places = _coordinates(problem, rows)
        reference, scale = np.zeros((0, 0)), np.zeros(0)
        if folding is not None:
            count = folding.num_clusters
            features = _features(folding, problem, places, rows)
            scale = features.std(axis=(0, 1)) + np.finfo(float).tiny
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


def _bridged(
    part: _Part, fitted: NDArray, kept: NDArray, rng: np.random.Generator
) -> tuple[float, float]:
    """Log evidence by draws that are kept, and the variance of its error; see the head of this file."""
    from arviz_stats.base import array_stats

    width = fitted.shape[-1]
    centre, root = _normal(fitted.reshape(-1, width))
    kept_rows = kept.reshape(-1, width)
    number = len(kept_rows)
    white = rng.normal(size=(number, width))

    def log_normal(white: NDArray) -> NDArray:
        size = np.log(np.diag(root)).sum() + width / 2 * math.log(2 * math.pi)
        return -np.square(white).sum(axis=1) / 2 - size

    own = solve_triangular(root, (kept_rows - centre).T, lower=True).T
    at_draws = part.density(kept_rows) - log_normal(own)
    at_normal = part.density(centre + white @ root.T) - log_normal(white)
    level = float(np.median(at_draws))
    for _ in range(_STEPS):  # as many of either, so that s_1 = s_2
        before = level
        above = logsumexp(-np.logaddexp(0.0, level - at_normal))
        level = float(level + above - logsumexp(-np.logaddexp(0.0, at_draws - level)))
        if not abs(level - before) > 1e-10 * (1 + abs(level)):
            break
    ours = expit(level - at_draws).reshape(kept.shape[:2])  # h q, without a constant
    theirs = expit(at_normal - level)  # h p
    effective = float(array_stats.ess(ours, chain_axis=0, draw_axis=1))
    spread = [float(np.var(terms) / np.mean(terms) ** 2) for terms in (ours, theirs)]
    sizes = effective / (1 + spread[0]), number / (1 + spread[1])
    if not min(sizes) >= _EFFECTIVE:
        raise FitError(
            "the draws are too few, or their distribution too far from a normal one, for a bridge: its means "
            f"have {sizes[0]:.0f} and {sizes[1]:.0f} effective terms of {_EFFECTIVE:.0f} that are needed; "
            "draw more, or use engine='smc'"
        )
    return level, spread[0] / effective + spread[1] / number


def _normal(rows: NDArray) -> tuple[NDArray, NDArray]:
    """Mean and Cholesky factor of the covariance, which is drawn to its diagonal where rows are few."""
    number, width = rows.shape
    scale = rows.std(axis=0)
    if not scale.all():
        raise FitError(
            "the draws do not vary in a coordinate, so that no normal density covers them; draw more"
        )
    share = width / (width + number)
    correlation = (1 - share) * np.corrcoef(rows / scale, rowvar=False).reshape(width, width)
    np.fill_diagonal(correlation, 1.0)
    return rows.mean(axis=0), scale[:, None] * np.linalg.cholesky(correlation)


def _folding(problem: Problem, draws: Mapping[str, NDArray], seed: int) -> Folding | None:
    """Axes of clusters that may be renumbered, if any.

    Raises
    ------
    ValueError
        If the posterior has copies that are neither of numberings of clusters nor of signs.
    """
    if turned := site_symmetries(problem):
        raise ValueError(
            f"{', '.join(sorted(turned))} may be turned at will, so that no normal density covers their "
            "draws; use engine='smc'"
        )
    within = [n for n, dims in site_dims(problem).items() if "components" in dims and n in draws]
    known = find_folding(problem, seed, most=_MOST_CLUSTERS)
    if within or (known is None and cluster_axes(problem, draws).are_exchangeable):
        raise ValueError(
            f"{', '.join(sorted(within)) or 'the sites'} may be renumbered in more ways than the clusters as "
            "wholes, and which copies of the posterior the draws are of is not known; use engine='smc'"
        )
    return known


def _features(
    folding: Folding, problem: Problem, places: NDArray, sites: Mapping[str, NDArray]
) -> NDArray:
    """What clusters are told apart by, shape (num_rows, num_clusters, num_features)."""
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
    """Numbering of each row that is nearest to a reference, shape (num_rows, num_clusters)."""
    gain = (features / scale) @ (
        reference / scale
    ).T  # less, the farther the cluster is from the place
    return np.array([linear_sum_assignment(own.T, maximize=True)[1] for own in gain])


def _renumbered(
    folding: Folding, sites: Mapping[str, NDArray], order: NDArray
) -> dict[str, NDArray]:
    """Values with the clusters of each row in its own order."""
    moved = dict(sites)
    for name, axis in folding.axes:
        value = sites[name]
        index = order.reshape(len(order), *(1,) * axis, -1, *(1,) * (value.ndim - axis - 2))
        moved[name] = np.take_along_axis(value, index, axis=axis + 1)
    return moved


def _coordinates(problem: Problem, rows: Mapping[str, NDArray]) -> NDArray:
    """Unconstrained coordinates of values, a row each."""

    def build(problem: Problem) -> Callable:
        def one(values: dict[str, Array], args: tuple) -> Array:
            return ravel_pytree(unconstrained_start(problem, values, args))[0]

        return lambda values, args: jax.lax.map(
            lambda own: one(own, args), values, batch_size=AT_ONCE
        )

    program, _ = compiled("bridge", problem, None, build, rows, problem.args, once=True)
    return np.asarray(program(rows, problem.args))
