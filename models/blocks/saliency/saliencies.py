"""Priors, posteriors and modes of saliencies; moments of tables with gaps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from jax.typing import ArrayLike
from numpy.typing import NDArray
from numpyro.distributions import constraints

from sidebayes.common.columns import column_name
from sidebayes.common.fields import Range, check_number
from sidebayes.common.magnitudes import shown

from ..mixtures.weights import at_a_pole
from ..visits import at_a_time
from .passes import CHUNK

__all__ = [
    "EDGE",
    "KnownMoments",
    "draw_saliency",
    "known_moments",
    "saliency_mode",
    "saliency_prior",
    "saliency_remark",
    "two_modes_remark",
    "two_positive",
]

EDGE = 1e-10
"""Distance of a mode of a saliency from zero and one, if the prior is unbounded there."""

_APART, _SHARE = 2.0, 0.1
"""Distance of two means, in units of the sum of their standard deviations, from which on a mixture of
the two has a visible valley; least share of either."""

_NEARER, _ALIKE = 1.5, 1 / 3
"""The same distance if the narrower of the two is at least this share as wide, so that it is not a peak
within a long tail."""

_GLANCE = 1000
"""Number of rows from which the step of rounding is determined."""

_ROUNDING = 1e-8
"""Difference of values, in standard deviations, that is due to machine rounding."""


def saliency_prior(parameters: tuple[float, float] | None, size: int) -> dist.Distribution:
    """Beta priors of saliencies, or flat improper ones."""
    if parameters is None:
        support = constraints.independent(constraints.unit_interval, 1)
        return dist.ImproperUniform(support, (), (size,))
    return dist.Beta(*parameters).expand((size,)).to_event(1)


def saliency_mode(on: Array, off: Array) -> Array:
    """Mode of Beta distributions, within the unit interval."""
    on, off = (jnp.maximum(count - 1.0, EDGE) for count in (on, off))
    return on / (on + off)


def saliency_remark(values: NDArray, parameters: tuple[float, float] | None) -> str | None:
    """Say that a mode of saliencies is spurious because their prior is infinite there; see `at_a_pole`."""
    if parameters is None or min(parameters) >= 1:
        return None
    prior = f"Beta({parameters[0]:g}, {parameters[1]:g})"
    remedy = "saliency_prior=(1, 1) or more, or selection='mml'"
    return at_a_pole(values, "saliencies", prior, remedy, upper=True)


def two_modes_remark(values: Mapping[str, Any], columns: Sequence[int]) -> str | None:
    """Say which clusters of a point estimate have two modes: a feature's own and the common density.

    Parameters
    ----------
    values : mapping of str to ndarray
        See `Remarking`.
    columns : sequence of int
        Features with normal densities.
    """
    if values["saliency"].shape[:2] != (1, 1):
        return None
    share = values["saliency"][0, 0, list(columns)]
    mean, common = values["location"][0, 0], values["common_location"][0, 0]
    sd, common_sd = (np.sqrt(values[role][0, 0]) for role in ("spread", "common_spread"))
    apart = np.abs(mean - common) / (sd + common_sd)
    alike = np.minimum(sd, common_sd) > _ALIKE * np.maximum(sd, common_sd)
    found = (apart > np.where(alike, _NEARER, _APART)) & (np.minimum(share, 1 - share) > _SHARE)
    if "mixing_weights" in values:
        found &= values["mixing_weights"][0, 0][:, None] > 0
    if not found.any():
        return None
    worst = int(np.argmax(np.where(found, apart, 0.0)))
    cluster, place = divmod(worst, len(columns))
    ends = mean[cluster, place], common[place]
    # enough digits to distinguish them, also far from zero
    digits = 3 + max(0, math.ceil(np.log10(np.abs(ends).max() / abs(ends[0] - ends[1]))))
    own, everywhere = (f"{end:.{digits}g}" for end in ends)
    return (
        f"Cluster {cluster} has two modes in feature {column_name(columns[place])}, whose saliency is "
        f"{share[place]:.2f}: values near {own}, its own, and near {everywhere}, common to all clusters. "
        "It may be two clusters; selection='sparse' with engine='gibbs' tells how probable other numbers are"
    )


def draw_saliency(rng_key: Array, on: Array, off: Array) -> Array:
    """Draw from Beta distributions, within the unit interval."""
    return jnp.clip(dist.Beta(on, off).sample(rng_key), EDGE, 1 - EDGE)


class KnownMoments(NamedTuple):
    """Number, mean, variance and least gap of the known values of each feature.

    Without known values the variance is one and the rest zero. Gaps are between values of up to a
    thousand rows.
    """

    number: Array
    mean: Array
    variance: Array
    gap: Array


def known_moments(x: ArrayLike | None, num_features: int) -> KnownMoments:
    """Moments of each feature over its known values."""
    if x is None:
        nothing = jnp.zeros(num_features)
        return KnownMoments(nothing, nothing, jnp.ones(num_features), nothing)
    return _known_moments(jnp.asarray(x), at_a_time(CHUNK))


@partial(jax.jit, static_argnums=1)
def _known_moments(values: Array, chunk: int) -> KnownMoments:
    number = _column_sums(values, chunk, lambda one: (~jnp.isnan(one)).astype(one.dtype))
    held = jnp.maximum(number, 1.0)
    mean = _column_sums(values, chunk, jnp.nan_to_num) / held
    variance = _column_sums(values, chunk, lambda one: jnp.nan_to_num(one - mean) ** 2) / held
    variance = jnp.where(variance > 0, variance, 1.0)
    some = values[:: max(1, -(-len(values) // _GLANCE))]
    gaps = jnp.diff(jnp.sort(some, axis=0), axis=0)
    gaps = jnp.where(gaps > _ROUNDING * jnp.sqrt(variance), gaps, jnp.inf)  # also where unknown
    gap = gaps.min(axis=0, initial=jnp.inf)
    return KnownMoments(number, mean, variance, jnp.where(jnp.isinf(gap), 0.0, gap))


def _column_sums(values: Array, size: int, of: Callable[[Array], Array]) -> Array:
    """Sums by column of a function of the values, over rows that stay in the processor's cache."""
    if len(values) <= size:
        return of(values).sum(axis=0)

    def more(number: Array, total: Array) -> Array:
        first = number * size
        begin = jnp.minimum(first, len(values) - size)  # the last chunk overlaps the one before
        rows = of(lax.dynamic_slice_in_dim(values, begin, size))
        return total + jnp.where((begin + jnp.arange(size) >= first)[:, None], rows, 0.0).sum(
            axis=0
        )

    start = jnp.zeros(values.shape[1], jnp.result_type(values, float))
    return lax.fori_loop(0, -(-len(values) // size), more, start)


def two_positive(value: Any) -> tuple[float, float]:
    """Parameters of a Beta distribution.

    Raises
    ------
    TypeError, ValueError
        If these are not two positive numbers.
    """
    if isinstance(value, str) or not np.iterable(value) or len(tuple(value)) != 2:
        raise TypeError(
            f"saliency_prior = {shown(value)}; pass the two positive numbers a and b of a Beta prior"
        )
    a, b = (check_number("saliency_prior", one, Range(above=0.0)) for one in value)
    return a, b
