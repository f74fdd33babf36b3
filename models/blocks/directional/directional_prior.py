"""The prior of the spread of components on a sphere: given, set from the data, or flat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sidebayes.common.arrays import is_traced, point_table
from sidebayes.common.fields import Range, check_integer, check_number
from sidebayes.common.magnitudes import shown

from ..components.few_points import held_by_prior
from ..numbers import pytree_of_numbers

__all__ = [
    "DirectionalPrior",
    "held_by_directional_prior",
    "improper_prior",
    "resolve_directional_prior",
]


@pytree_of_numbers
@dataclass(frozen=True)
class DirectionalPrior:
    r"""Conjugate prior of the spread of components on a sphere of Q dimensions.

    The prior is a pytree, so that fits with other values share compiled programs.

    .. math:: C_k \sim \mathcal{W}^{-1}(\nu, s^2 I_Q), \qquad
              \sigma_k^2 = 1 / \kappa_k \sim \text{InvGamma}((\nu - Q + 1) / 2, s^2 / 2)

    The first distribution is for covariances of tangent vectors; the second is for one variance in
    all directions, and for concentrations. It is the distribution of the variance along any
    direction under the first. The prior is the same in all directions, so it depends on no frame of
    the tangent spaces. Mean directions are uniform on the sphere.

    Parameters
    ----------
    df : float
        :math:`\nu > Q - 1`, the weight of the first distribution in points.
    scale : float
        :math:`s > 0` in radians.
    """

    df: float
    scale: float | Array

    def __post_init__(self) -> None:
        for name in ("df", "scale"):
            value = getattr(self, name)
            if not isinstance(value, jax.Array):  # which may be a value that the model computes
                value = check_number(f"DirectionalPrior({name})", value, Range(above=0.0))
                object.__setattr__(self, name, value)

    def of_variance(self, dimension: int) -> tuple[Any, Any]:
        """Shape and rate of the inverse gamma prior of a variance, on a sphere of given dimension."""
        return (self.df - dimension + 1) / 2, jnp.asarray(self.scale) ** 2 / 2

    @classmethod
    def empirical(cls, x: ArrayLike, num_clusters: int) -> DirectionalPrior:
        r"""Weak prior set from the data, like `GaussianPrior.empirical`.

        It has Q + 2 degrees of freedom. Its squared scale, the mean of every variance, is the variance of
        the data about their mean direction, :math:`2 (1 - \bar R) / Q` with the mean resultant length
        :math:`\bar R`, divided by ``num_clusters ** (2 / Q)``.

        Parameters
        ----------
        x : array_like, shape (num_points, Q + 1)
            Unit vectors.
        num_clusters : int

        Raises
        ------
        ValueError
            If all rows are the same point, or x has one column.
        """
        # NumPy for values that are not traced, which avoids compilation
        traced = isinstance(x, jax.core.Tracer)
        table: Any = x
        if not traced:
            table = point_table("x", np.asarray(x) if isinstance(x, jax.Array) else x)
        xp: Any = jnp if traced else np
        check_integer("num_clusters", num_clusters)
        dimension = table.shape[1] - 1
        if dimension < 1:
            raise ValueError("x has one column; points of a sphere have at least two coordinates")
        length = xp.linalg.norm(table, axis=1, keepdims=True)
        unit = table / xp.where(length > 0, length, 1.0)
        mean = unit.mean(axis=0)
        # 1 - R^2 as a variance, which loses no digits if all points are close together
        variance = xp.square(unit - mean).sum(axis=1).mean()
        deficit = variance / (1 + xp.linalg.norm(mean))
        share = 2 * deficit / dimension / num_clusters ** (2 / dimension)
        floor = 10 * np.finfo(unit.dtype).eps
        if not traced and length.all() and share <= floor**2:
            raise ValueError(
                f"x is one point, {len(table)} times, and points that coincide have no spread; pass a "
                "DirectionalPrior as prior"
            )
        return cls(dimension + 2.0, xp.maximum(xp.sqrt(share), floor))


def resolve_directional_prior(
    prior: str | DirectionalPrior, x: ArrayLike | None, num_clusters: int
) -> DirectionalPrior | None:
    """Turn the `prior` argument of a model into a prior; None stands for a flat one.

    Raises
    ------
    ValueError
        For an unknown name, or if an empirical or flat prior has no data.
    """
    if isinstance(prior, DirectionalPrior):
        return prior
    if not isinstance(prior, str) or prior not in ("empirical", "flat"):
        raise ValueError(
            f"prior = {shown(prior)}; expected 'empirical', 'flat' or a DirectionalPrior"
        )
    if x is None:
        raise ValueError(
            f"prior={prior!r} cannot be simulated from: without x, pass prior=DirectionalPrior(df, scale)"
        )
    return None if prior == "flat" else DirectionalPrior.empirical(x, num_clusters)


def held_by_directional_prior(
    block: Any, spread: NDArray, values: Mapping[str, Any], per_point: int
) -> str | None:
    """Say which clusters owe their spread to `DirectionalPrior.empirical`; see `held_by_prior`.

    Parameters
    ----------
    block : Block
        With the attributes ``prior``, ``from_data``, ``data`` and ``dimension``.
    spread : ndarray, shape (num_chains, num_draws, num_clusters, ...)
        Covariances of tangent vectors, or variances with an axis of length 1.
    values : mapping of str to array_like
        See `Block.remark`.
    per_point : int
        Number of squares of a point that the least variance is read off.
    """
    weights, prior = np.asarray(values.get("mixing_weights", ())), block.prior
    known = block.from_data and prior is not None and not is_traced(prior.scale)
    if not known or weights.shape != spread.shape[:3]:
        return None
    sizes = weights.mean(axis=(0, 1)) * len(block.data)
    counts = per_point * sizes + prior.df - (block.dimension - 1 if per_point > 1 else 0)
    size = spread.shape[-1]
    scale = float(prior.scale) ** 2 * (np.eye(size) if spread.ndim == 5 else np.ones(size))
    remedy = "Take prior='flat' where a mode is enough, or a DirectionalPrior as wide as a cluster"
    return held_by_prior(spread.mean(axis=(0, 1)), scale, sizes, counts, remedy)


def improper_prior(prior: DirectionalPrior | None) -> str | None:
    """Say that there is no posterior under a flat prior; None if the prior is proper."""
    if prior is not None:
        return None
    return (
        "prior='flat' leaves no posterior to draw from: an empty cluster could have any spread; pass "
        "prior='empirical' or a DirectionalPrior"
    )
