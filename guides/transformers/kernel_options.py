"""Options of kernel principal geodesic analysis: checks and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics.pairwise import PAIRWISE_KERNEL_FUNCTIONS

from sidebayes.common.arrays import real_array
from sidebayes.common.fields import Range, check_number
from sidebayes.common.magnitudes import shown
from sidebayes.common.warnings import warn_user

__all__ = ["checked_number", "checked_weights", "kernel_arguments"]

_ENOUGH = 10
"""Number of rows from which on no single one should make up half of the variance."""


def kernel_arguments(analysis: Any, x: NDArray, weights: NDArray) -> dict[str, Any]:
    """Check the arguments of the kernel, and return them with `gamma` filled in."""
    given = analysis.kernel_params
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"kernel_params = {shown(given)}; expected a mapping of arguments")
    if callable(analysis.kernel):
        return dict(given or {})
    if given:
        raise ValueError(
            f"kernel_params are arguments of a function, and kernel = {shown(analysis.kernel)}; leave them "
            "out, and set gamma, degree and coef0"
        )
    if analysis.kernel == "precomputed":
        return {}
    if not isinstance(analysis.kernel, str) or analysis.kernel not in PAIRWISE_KERNEL_FUNCTIONS:
        raise ValueError(
            f"kernel = {shown(analysis.kernel)}; expected a function, 'precomputed', or one of "
            f"{sorted(PAIRWISE_KERNEL_FUNCTIONS)}"
        )
    if analysis.gamma is not None:
        gamma = check_number("gamma", analysis.gamma, Range(above=0))
    elif analysis.kernel == "rbf":
        gamma = 1 / (2 * _mean_squared_distance(x, weights))
    else:  # the default of scikit-learn
        gamma = 1.0 if analysis.kernel == "chi2" else 1 / x.shape[1]
    return {
        "gamma": gamma,
        "degree": check_number("degree", analysis.degree, Range(above=0)),
        "coef0": check_number("coef0", analysis.coef0, Range()),
    }


def _mean_squared_distance(x: NDArray, weights: NDArray) -> float:
    """Return the mean squared distance over all pairs of rows: twice the sum of the features' variances."""
    parts = weights * np.square(x - weights @ x).sum(axis=1)
    total = float(parts.sum())
    if total < np.finfo(float).tiny:
        raise ValueError(
            "the rows of X are the same, or differ by less than floating-point numbers can square; give "
            "rows that differ, in smaller units"
        )
    row = int(np.argmax(parts))
    if len(x) >= _ENOUGH and parts[row] > total / 2:
        warn_user(
            f"row {row} of X alone makes up {parts[row] / total:.0%} of the variance that sets the default "
            "gamma, so that all other rows count as alike; drop the row, or give gamma"
        )
    return 2 * total


def checked_number(number: object) -> int | float | None:
    """Check the number of coordinates, the share of the variance that they keep, or None for all."""
    if number is None:
        return None
    if isinstance(number, Real) and 0 < float(number) < 1:
        return float(number)
    if isinstance(number, Integral) and not isinstance(number, bool) and int(number) >= 1:
        return int(number)
    raise ValueError(
        f"n_components = {number!r}; expected a number of coordinates, the share of the variance that they "
        "keep, in (0, 1), or None for all"
    )


def checked_weights(weights: ArrayLike | None, num_rows: int) -> NDArray[np.float64]:
    """Check weights, and scale them to sum to one."""
    if weights is None:
        return np.full(num_rows, 1 / num_rows)
    given = real_array("sample_weight", weights)
    if given.shape != (num_rows,):
        raise ValueError(f"sample_weight has shape {given.shape}; expected ({num_rows},)")
    if not np.isfinite(given).all() or given.min() < 0 or np.sum(given > 0) < 2:
        raise ValueError(
            "sample_weight: expected finite numbers of at least zero, of which two are positive"
        )
    return given / given.sum()
