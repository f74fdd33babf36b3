"""Tables that say less than they seem to: columns that repeat others or are levels, few rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sidebayes.common.warnings import SideBayesWarning

from ..mixtures.data_units import refuse_constant
from .levels import levels_of

__all__ = ["look_at", "repeated_columns"]

_ROUNDING = 1e-8
"""Difference of standardised values that is rounding."""

_LEVEL = 9
"""Frames between the warning and the call of `fit`."""


class _Salient(Protocol):
    """A block with saliencies."""

    saliency_prior: tuple[float, float] | None

    @property
    def num_parameters(self) -> np.ndarray:
        """Free parameters of the density of each feature."""
        ...


def look_at(
    block: _Salient,
    name: str,
    table: np.ndarray,
    normal: Sequence[int] | None = None,
    categories: Sequence[int] = (),
) -> None:
    """Refuse constant columns; warn of repeated ones, of levels, and of few rows under a message length.

    Columns of `normal` densities, all by default, should be no levels. Those of `categories` may be constant,
    as they are in part of the rows of a table.

    Raises
    ------
    ValueError
        Naming constant columns.
    """
    refuse_constant(name, table, categories)
    _warn_of_repeated(name, table)
    _warn_of_levels(name, table, range(table.shape[1]) if normal is None else normal)
    if block.saliency_prior is None:
        _warn_of_few_rows(name, table, int(block.num_parameters.sum()))


def repeated_columns(table: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of columns that are the same up to place, scale and sign, with gaps at the same rows.

    Columns that are the same have the same projection on any vector, so that those next to each other by
    a random one are compared, and no others.

    Parameters
    ----------
    table : ndarray, shape (num_points, num_features)
        No column is constant. NaN where values are missing.
    """
    values = table - np.nanmean(table, axis=0)
    values = np.nan_to_num(values / np.sqrt(np.nanmean(values**2, axis=0)))
    first = np.argmax(abs(values) > _ROUNDING, axis=0)
    values *= np.sign(values[first, np.arange(values.shape[1])])
    order = np.argsort(np.random.default_rng(0).normal(size=len(values)) @ values)
    one, two = order[:-1], order[1:]
    gaps = np.isnan(table)
    same = (abs(values[:, one] - values[:, two]).max(axis=0) < _ROUNDING) & (
        gaps[:, one] == gaps[:, two]
    ).all(axis=0)
    return sorted(
        (int(min(pair)), int(max(pair))) for pair in zip(one[same], two[same], strict=True)
    )


def _warn_of_repeated(name: str, table: np.ndarray) -> None:
    """Warn of columns that repeat others: given the cluster, features are taken for independent."""
    vary = np.flatnonzero(np.fmax.reduce(table, axis=0) > np.fmin.reduce(table, axis=0))
    pairs = [(vary[one], vary[two]) for one, two in repeated_columns(table[:, vary])]
    if pairs:
        shown = ", ".join(f"{a} and {b}" for a, b in pairs[:5]) + ", ..." * (len(pairs) > 5)
        warnings.warn(
            f"{name} has columns that are the same up to place and scale: {shown}. All are kept, but "
            "features are taken for independent within clusters: a repeated one counts twice, and takes "
            "extra clusters to describe; drop one of each",
            SideBayesWarning,
            stacklevel=_LEVEL,
        )


def _warn_of_levels(name: str, table: np.ndarray, normal: Sequence[int]) -> None:
    """Warn of normal columns of few different values, on which a normal density has no least width."""
    found = [str(column) for column in normal if levels_of(table[:, column])]
    if found:
        shown = ", ".join(found[:5]) + ", ..." * (len(found) > 5)
        warnings.warn(
            f"{name} has columns of few different values: {shown}. On those a normal density is as "
            "narrow as it may be, for which every cluster pays, so that too few are found; leave kinds and "
            "prior out, which takes such columns for categories, or drop them",
            SideBayesWarning,
            stacklevel=_LEVEL,
        )


def _warn_of_few_rows(name: str, table: np.ndarray, num_parameters: int) -> None:
    """Warn where all rows together do not pay for one cluster under a message length."""
    if 2 * len(table) <= num_parameters:
        warnings.warn(
            f"{name} has {len(table)} rows, and a cluster needs more than {num_parameters // 2}, half the "
            "parameters of its relevant features, to stay under selection='mml'; clusters may all be taken "
            "out but one before features are. Pass fewer features, or selection='sparse'",
            SideBayesWarning,
            stacklevel=_LEVEL,
        )
