"""Unconstrained coordinates of latent sites as one vector, and what they are near the edges of supports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jax.core import Tracer
from numpy.typing import NDArray
from numpyro.distributions import constraints
from sidebayes.models.blocks.embedding.centred import CentredNormal

from .base import Problem
from .problem.density import abstract_trace, latent_sites
from .problem.values import plain_support, support_name

__all__ = ["Coordinates", "coordinates_of", "named_edges"]

_FAR = 6.0
"""Coordinates further out than this are looked at; there 0.25 % of an interval are left."""

_NONE_LEFT = 0.003
"""Share of a simplex that counts as none where a coordinate is far out."""

_MOST_NAMED = 4
"""Entries that a sentence lists."""

_UNBOUNDED = tuple(
    type(support)
    for support in (
        constraints.real,
        constraints.real_vector,
        constraints.real_matrix,
        constraints.zero_sum(1),
        CentredNormal.support,
    )
)
"""Supports whose map is nowhere flat."""

_HALF_LINES = (
    type(constraints.positive),
    type(constraints.nonnegative),
    type(constraints.softplus_positive),
    constraints.greater_than,
    constraints.greater_than_eq,
    constraints.less_than,
    constraints.less_than_eq,
)
"""Supports whose map is flat far below only."""


class Coordinates(NamedTuple):
    """Unconstrained coordinates of latent sites, as one vector.

    Attributes
    ----------
    sites : ndarray of str, shape (num_coordinates,)
    low, high : ndarray of bool, shape (num_coordinates,)
        Whether the map to the support is flat far below, and far above.
    circular : ndarray of bool, shape (num_coordinates,)
        Whether both ends are one point.
    """

    sites: NDArray
    low: NDArray
    high: NDArray
    circular: NDArray

    @property
    def bounded(self) -> NDArray[np.bool_]:
        """Whether the map is flat on either side."""
        return self.low | self.high

    def far_out(self, points: NDArray) -> NDArray[np.bool_]:
        """Which coordinates of points lie where the map to their support is all but flat."""
        return (self.low & (points < -_FAR)) | (self.high & (points > _FAR))


def coordinates_of(sites: Mapping[str, Mapping[str, Any]], free: Mapping[str, Any]) -> Coordinates:
    """Describe unconstrained values as one vector, in the order of `ravel_pytree`.

    Parameters
    ----------
    sites : mapping of str to site
        Of a trace.
    free : mapping of str to Array
        Unconstrained values of some latent sites.
    """
    rows = []
    for name in sorted(free):
        support = plain_support(sites[name]["fn"].support)
        low = not isinstance(support, _UNBOUNDED)
        high = low and not isinstance(support, _HALF_LINES)
        ring = support is constraints.circular
        rows += [(name, low, high, ring)] * math.prod(np.shape(free[name]))
    columns = list(zip(*rows, strict=True)) or [()] * 4
    kinds = (str, bool, bool, bool)
    return Coordinates(
        *(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True))
    )


def named_edges(
    problem: Problem,
    where: Coordinates,
    marked: NDArray[np.bool_],
    values: Mapping[str, NDArray],
) -> str:
    """The edges at which marked coordinates lie, such as ``sd = 100``."""
    latent = latent_sites(abstract_trace(problem))
    found: list[str] = []
    for name in dict.fromkeys(where.sites[marked].tolist()):
        own = marked[where.sites == name]
        found += _edges(name, latent[name]["fn"].support, np.asarray(values[name]), own)
    more = len(found) - _MOST_NAMED
    return ", ".join(found[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _edges(name: str, support: Any, value: NDArray, marked: NDArray[np.bool_]) -> list[str]:
    plain = plain_support(support)
    if plain is constraints.simplex:
        rows = marked.reshape(*value.shape[:-1], -1).any(axis=-1, keepdims=True)
        return [f"{_entry(name, spot)} = 0" for spot in np.argwhere(rows & (value < _NONE_LEFT))]
    if marked.size != value.size:
        return [f"the edge of the support of {name} ({support_name(support)})"]
    spots = np.argwhere(marked.reshape(value.shape))
    ends = [getattr(plain, f"{side}_bound", None) for side in ("lower", "upper")]
    known = [end for end in ends if end is not None]
    if not known or any(isinstance(end, Tracer) for end in known):
        return [f"the edge of the support of {_entry(name, spot)}" for spot in spots]
    wide = np.stack([np.broadcast_to(np.asarray(end, float), value.shape) for end in known])
    nearest = np.take_along_axis(wide, np.abs(wide - value).argmin(axis=0)[None], axis=0)[0]
    return [f"{_entry(name, spot)} = {nearest[tuple(spot)]:.6g}" for spot in spots]


def _entry(name: str, spot: NDArray) -> str:
    return f"{name}[{', '.join(map(str, spot))}]" if len(spot) else name
