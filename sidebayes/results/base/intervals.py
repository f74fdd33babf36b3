"""Intervals: of normal distributions, over draws, and of mixtures of normal distributions."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import norm

from ...common.fields import Range, check_number

__all__ = ["check_probability", "mixture_bands", "normal_interval", "total_moments"]

_MOST_STEPS = 120
"""Towards quantiles of mixtures; some six suffice unless the parts are far apart."""

_EXACT = 1e-12
"""Error of the probability below which a quantile is found."""


def check_probability(probability: float) -> None:
    """Refuse what is no probability of an interval."""
    check_number("probability", probability, Range(above=0, below=1))


def total_moments(group: xr.Dataset, name: str) -> tuple[NDArray, NDArray]:
    """Means and standard deviations over draws, by the law of total variance.

    Parameters
    ----------
    group : Dataset
        With a variable of that name of means, by chain and draw, and ``{name}_covariance``; what has
        none is known given the parameters.
    name : str
    """
    mean = group[name].to_numpy()
    variance = mean.var(axis=(0, 1))
    if f"{name}_covariance" in group:
        own = np.diagonal(group[f"{name}_covariance"].to_numpy(), axis1=-2, axis2=-1)
        variance = variance + own.mean(axis=(0, 1))
    return mean.mean(axis=(0, 1)), np.sqrt(variance)


def normal_interval(mean: NDArray, sd: NDArray, probability: float) -> tuple[NDArray, NDArray]:
    """Ends of normal intervals."""
    half = norm.ppf((1 + probability) / 2) * sd
    return mean - half, mean + half


def mixture_bands(
    mean: NDArray, sd: NDArray, share: NDArray, probability: float
) -> tuple[NDArray, NDArray]:
    """Quantiles of mixtures of normals, whose axis is the first."""
    low, high = normal_interval(mean, sd, probability)
    if len(mean) == 1:
        return low[0], high[0]
    chances = (1 - probability) / 2, (1 + probability) / 2
    lower, upper = (
        _quantiles(mean, sd, share, chance, ends)
        for chance, ends in zip(chances, (low, high), strict=True)
    )
    return lower, upper


def _quantiles(
    mean: NDArray, sd: NDArray, share: NDArray, chance: float, ends: NDArray
) -> NDArray[np.float64]:
    """Newton's steps towards quantiles that lie between those of the parts, with halvings between."""
    below, above = ends.min(axis=0), ends.max(axis=0)
    found: NDArray[np.float64] = (share * ends).sum(axis=0).clip(below, above)
    open_ = np.arange(len(found))
    for step in range(_MOST_STEPS):
        at, width, weight = found[open_], sd[:, open_], share[:, open_]
        white = (at - mean[:, open_]) / width
        gap = (weight * ndtr(white)).sum(axis=0) - chance
        low = below[open_] = np.where(gap < 0, at, below[open_])
        high = above[open_] = np.where(gap < 0, above[open_], at)
        slope = (weight * np.exp(-0.5 * white**2) / width).sum(axis=0) / np.sqrt(2 * np.pi)
        with np.errstate(all="ignore"):  # flat between parts far away from each other
            newton = at - gap / slope
        inside = (newton > low) & (newton < high) & (step % 3 < 2)
        off = np.abs(gap) > _EXACT
        found[open_] = np.where(off, np.where(inside, newton, (low + high) / 2), at)
        open_ = open_[off]
        if not len(open_):
            break
    return found
