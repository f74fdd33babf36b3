"""Fast maximum likelihood estimates of populations, for classifiers that are refitted in every fold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sidebayes.models.blocks.effects.densities.structure import Structure
from sidebayes.models.blocks.effects.identified import covariance_is_determined, independent_columns

from sidebayes.common.fields import check_integer
from sidebayes.common.warnings import warn_user

from .population import Population, posterior_moments
from .table import LongTable, SubjectSums

__all__ = ["estimate_population", "estimated"]

_TOLERANCE = 1e-6
"""Largest gradient entry of the mean log likelihood per row at which the search has converged."""

_EXACT = 1e-12
"""Share of the variance of the rows below which noise counts as zero."""

_ROUNDING = 16
"""Maximum residual of an exact fit, as a multiple of the spacing of floating-point numbers."""


def estimate_population(
    table: LongTable, *, individual: bool = True, max_steps: int = 500
) -> Population:
    """Maximum likelihood estimate of a population from the series of its subjects.

    The optimiser is BFGS over the entries of the triangular factor L of the covariance and the log
    noise, with the fixed effects found by generalised least squares. A singular covariance is an
    interior point of these coordinates. The estimate is that of ``sidebayes.fit("mixed_effects",
    form="marginal")``, and nothing is compiled, since the folds of a cross-validation all differ in
    size. For standard errors, restricted likelihood or draws use `sidebayes.fit` and
    `Population.of`.

    Parameters
    ----------
    table : LongTable
    individual : bool
        False for a population without random effects: pooled least squares, the simplified model of
        Lu (2008), section 9.3.
    max_steps : int
        Maximum number of steps; a warning says if it does not suffice.

    Returns
    -------
    Population

    Raises
    ------
    ValueError
        If the rows do not separate noise from effects, or fixed columns are linearly dependent.

    Warns
    -----
    SideBayesWarning
        If there are no more subjects than random effects, the rows do not determine their covariance, or
        the search has not converged.
    """
    if not isinstance(table, LongTable):
        raise TypeError(f"table is a {type(table).__name__}; pass a LongTable")
    return estimated(table, "table", individual, check_integer("max_steps", max_steps))


def estimated(
    table: LongTable, name: str, individual: bool = True, max_steps: int = 500
) -> Population:
    """Return the maximum likelihood estimate; `name` is that of the table, for messages."""
    start = _start(table, name, individual)
    if not individual:
        return start
    if len(table) <= len(start.root):
        plural = "s" if len(table) > 1 else ""
        warn_user(
            f"{name} has {len(table)} subject{plural} for {len(start.root)} random effects, too few to "
            "tell how subjects differ: the covariance is singular, or nearly so. Give more subjects than "
            "effects, fewer random columns, or individual=False"
        )
    elif not covariance_is_determined(
        independent_columns(table.fixed)[0],
        table.random,
        table.codes,
        table.outputs,
        Structure((len(start.root),)),
    ):
        warn_user(
            f"{name} leaves the covariance of the random effects and the noise undetermined: many "
            "values are equally likely. Subjects have too few rows or times, or columns depend on each "
            "other; give fewer random columns, or individual=False"
        )
    lower = np.tril_indices(len(start.root))
    unit = np.diag(start.root)[lower[0]]

    def placed(point: NDArray) -> tuple[NDArray, NDArray]:
        root = np.zeros(start.root.shape)
        root[lower] = point[: len(unit)] * unit
        return root, start.noise * np.exp(point[len(unit) :])

    def loss(point: NDArray) -> tuple[float, NDArray]:
        value, slope, log_slope = _profile(table.sums, *placed(point))
        return -value / rows, -np.concatenate([slope[lower] * unit, log_slope]) / rows

    rows = len(table.y)
    begin = np.concatenate([np.equal(*lower), np.zeros(len(start.noise))])
    options: Any = {"maxiter": max_steps, "gtol": _TOLERANCE}
    try:
        with np.errstate(all="ignore"):  # steps that are too long are taken back
            found: Any = minimize(loss, begin, jac=True, method="BFGS", options=options)
            root, noise = placed(found.x)
        lost = not np.isfinite(found.fun) or (noise <= np.sqrt(_EXACT) * start.noise).any()
    except np.linalg.LinAlgError:
        lost = True
    if lost:
        raise ValueError(
            f"{name}: random effects fit y exactly, so that nothing determines the noise; give fewer random "
            "columns, or subjects with more rows"
        )
    if np.abs(found.jac).max() > 100 * _TOLERANCE:
        warn_user(
            f"{name}: maximum likelihood of a population has not converged in {found.nit} steps (slope "
            f"{np.abs(found.jac).max():.2g}); give more max_steps, centre times, or use fewer columns"
        )
    coefficients = _least_squares(table.sums, root, noise)
    return Population(coefficients, root @ root.T, noise, table.columns)


def _start(table: LongTable, name: str, individual: bool) -> Population:
    """Start at pooled least squares, with half of its residual variance given to the random effects."""
    sums = table.sums
    if np.linalg.matrix_rank(table.fixed) < table.fixed.shape[1]:
        raise ValueError(
            f"{name}: the {table.fixed.shape[1]} fixed columns depend on each other in {len(table.y)} rows; "
            "drop some, or give more rows"
        )
    counts = sums.num_rows.sum(axis=0)
    if (counts == 0).any():
        raise ValueError(f"{name}: output {int(np.argmin(counts))} has no row; drop its column")
    variance = sums.squares.sum(axis=0) / counts
    if (variance <= _least_noise(table)).any():
        raise ValueError(
            f"{name}: least squares on its fixed columns fits y exactly, so that nothing determines the "
            "noise; give fewer fixed columns, more rows, or a y that is measured with noise"
        )
    effects = table.random.shape[1]
    if not individual:
        return Population(
            sums.start, np.zeros((effects, effects)), np.sqrt(variance), table.columns
        )
    # the same share of the variance for each effect, whatever the unit of its column
    square = np.einsum("soii->i", sums.random) / len(table.y)
    if (square == 0).any():
        raise ValueError(
            f"{name}: random column {int(np.argmin(square))} is zero in all rows; drop it"
        )
    share = variance.mean() / (2 * effects * square)
    return Population(sums.start, np.diag(share), np.sqrt(variance / 2))


def _least_noise(table: LongTable) -> NDArray[np.float64]:
    """Return the variance up to which residuals of each output count as rounding errors."""
    values = [table.y[table.output_codes == one] for one in range(table.num_outputs)]
    rounding = _ROUNDING * np.finfo(float).eps * np.abs(table.y).max()
    return np.maximum([_EXACT * one.var() for one in values], rounding**2)


def _profile(sums: SubjectSums, root: NDArray, noise: NDArray) -> tuple[float, NDArray, NDArray]:
    """Return the log likelihood at the best fixed effects, and its gradients in L and in the log noise.

    The gradients are those of the expected log density of data and effects (Fisher's identity).
    """
    coefficients = _least_squares(sums, root, noise)
    move, weight = coefficients - sums.start, noise**-2
    mean, covariance, log_density = posterior_moments(sums, coefficients, root, noise)
    second = covariance + mean[:, :, None] * mean[:, None, :]
    shift = sums.shift - sums.cross @ move
    squares = sums.squares - 2 * sums.slope @ move
    squares = (squares + np.einsum("i,soij,j->so", move, sums.fixed, move)).sum(axis=0)
    # products of z r with u, and of z z' L with u u', summed over subjects by output
    cross = np.tensordot(shift, mean, axes=(0, 0))
    gram = np.einsum("soij,sjk->oik", sums.random, root @ second)
    residual = squares - 2 * (cross * root).sum(axis=(1, 2)) + (gram * root).sum(axis=(1, 2))
    slope = np.tensordot(weight, cross - gram, axes=1)
    return float(log_density.sum()), slope, weight * residual - sums.num_rows.sum(axis=0)


def _least_squares(sums: SubjectSums, root: NDArray, noise: NDArray) -> NDArray[np.float64]:
    """Return fixed effects by generalised least squares, given covariance and noise."""
    weight = noise**-2
    random, cross, shift, fixed, slope = (
        np.tensordot(one, weight, axes=(1, 0))
        for one in (sums.random, sums.cross, sums.shift, sums.fixed, sums.slope)
    )
    spread = root @ np.linalg.inv(np.eye(len(root)) + root.T @ random @ root) @ root.T
    explained = spread @ cross
    gram = fixed - cross.mT @ explained
    rest = slope - np.einsum("sij,si->sj", explained, shift)
    return sums.start + np.linalg.solve(gram.sum(axis=0), rest.sum(axis=0))
