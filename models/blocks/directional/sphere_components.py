"""Sites of the components of a mixture on the unit sphere."""

from __future__ import annotations

import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike

from sidebayes.common.arrays import is_traced
from sidebayes.common.fields import check_integer
from sidebayes.common.magnitudes import shown

from .directional_prior import DirectionalPrior, resolve_directional_prior
from .von_mises_fisher_components import VonMisesFisherComponents
from .wrapped_components import SPREADS, WrappedComponents

__all__ = ["FAMILIES", "sphere_components"]

FAMILIES = ("wrapped_normal", "von_mises_fisher")


def sphere_components(
    x: ArrayLike | None,
    num_clusters: int,
    family: str = "wrapped_normal",
    covariance: str | None = None,
    rank: int = 1,
    prior: str | DirectionalPrior = "empirical",
    dimension: int | None = None,
) -> dist.Distribution:
    """Sample the parameters of all clusters; return their densities, batch shape (num_clusters,).

    Parameters
    ----------
    x : array_like, shape (num_points, dimension + 1), or None
        Unit vectors.
    num_clusters : int
    family : {"wrapped_normal", "von_mises_fisher"}
    covariance : {"full", "spherical", "low_rank"}, optional
        Form for wrapped normals, "full" by default; see `WrappedComponents`.
    rank : int
        Rank of "low_rank" covariances.
    prior : {"empirical", "flat"} or DirectionalPrior
    dimension : int, optional
        Dimension of the sphere, if there are no data.

    Raises
    ------
    ValueError
        For unknown names, a covariance for a family without one, or a dimension that is missing or
        contradicts x.
    """
    if not isinstance(family, str) or family not in FAMILIES:
        raise ValueError(f"family = {shown(family)}; expected one of {FAMILIES}")
    size = _dimension(x, dimension)
    resolved, from_data = resolve_directional_prior(prior, x, num_clusters), isinstance(prior, str)
    if (
        resolved is not None
        and not is_traced(resolved.df)
        and (df := float(resolved.df)) <= size - 1
    ):
        raise ValueError(
            f"prior has df = {df:g}; on a sphere of {size} dimensions it must exceed {size - 1}"
        )
    if family == "von_mises_fisher":
        if covariance not in (None, "spherical"):
            raise ValueError(
                f"covariance = {shown(covariance)}: von Mises-Fisher components spread alike in all "
                "directions; leave it out, or use family='wrapped_normal'"
            )
        block = VonMisesFisherComponents(num_clusters, size, resolved, x, from_data=from_data)
        return block.sample()
    form = "full" if covariance is None else covariance
    if not isinstance(form, str) or form not in SPREADS:
        raise ValueError(f"covariance = {shown(covariance)}; expected one of {SPREADS}")
    rank = check_integer("rank", rank)
    shape = num_clusters, size, form, rank
    return WrappedComponents(*shape, resolved, x, from_data=from_data).sample()


def _dimension(x: ArrayLike | None, dimension: int | None) -> int:
    """Dimension of the sphere, from the data or as given for simulation."""
    if dimension is not None:
        dimension = check_integer("dimension", dimension)
    if x is None:
        if dimension is None:
            raise ValueError("x is None and dimension is missing; pass dimension to simulate")
        return dimension
    width = jnp.shape(x)[1]
    if width < 2:
        raise ValueError(
            f"x has {width} column; points on a sphere have two coordinates or more, those of a circle two"
        )
    if dimension not in (None, width - 1):
        raise ValueError(
            f"dimension = {dimension}, but x has {width} columns, points of a sphere of {width - 1} "
            "dimensions; leave dimension out"
        )
    return width - 1
