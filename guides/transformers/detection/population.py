"""Populations as priors of their subjects: predictors of effects, mixtures, and their errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax

from sidebayes.common.arrays import real_array, refuse_gaps
from sidebayes.common.magnitudes import shown

from .table import LongTable, SubjectSums

__all__ = [
    "MixPrior",
    "Population",
    "Whitened",
    "posterior_moments",
    "refuse_other_columns",
    "triangular_root",
    "whitened",
]

Columns = Mapping[str, tuple[str, ...]]
"""Names of columns by table; see `LongTable`."""

_LOG_2PI = np.log(2 * np.pi)


class _Named(Protocol):
    """An object whose columns have names."""

    @property
    def columns(self) -> Columns:
        """Names of the columns of tables that were given with names."""


class _FitOfEffects(Protocol):
    """The part of a fit from which a population is made."""

    @property
    def run(self) -> _Named:
        """The run of the fit."""

    @property
    def params(self) -> dict[str, NDArray[np.float64]]:
        """Point estimate by site."""

    def coefficients(self) -> pd.DataFrame:
        """Fixed effects, with a column ``estimate``."""


class Whitened(NamedTuple):
    """Posterior moments of whitened effects u, where b = L u, and the log density of the data.

    Attributes
    ----------
    mean : ndarray, shape (..., num_effects)
    covariance : ndarray, shape (..., num_effects, num_effects)
    log_density : ndarray, shape (...)
    """

    mean: NDArray
    covariance: NDArray
    log_density: NDArray


def whitened(
    root: NDArray, gram: NDArray, shift: NDArray, square: NDArray, log_noise: NDArray
) -> Whitened:
    r"""Compute the posterior of whitened effects from sums weighted by the precision of the noise.

    .. math:: P = I + L^\top G L, \quad E[u] = P^{-1} L^\top h, \quad
              \log p = -\tfrac12 (q + \log|P| - h^\top L P^{-1} L^\top h) - l

    L is never inverted, so covariances may be singular or zero.

    Parameters
    ----------
    root : ndarray, shape (num_effects, num_effects)
        L.
    gram, shift, square : ndarray, shapes (..., num_effects, num_effects), (..., num_effects), (...)
        Products of random columns, with residuals, and squares of these: G, h and q.
    log_noise : ndarray, shape (...)
        Sum over rows of :math:`\log \sigma + \tfrac12 \log 2\pi`: l.
    """
    precision = np.eye(len(root)) + root.T @ gram @ root
    covariance = np.linalg.inv(precision)  # there are few effects, and eigenvalues are at least 1
    white = shift @ root
    mean = np.einsum("...ij,...j->...i", covariance, white)
    explained = (white * mean).sum(axis=-1)
    half = np.linalg.slogdet(precision)[1]
    return Whitened(mean, covariance, -0.5 * (square + half - explained) - log_noise)


def posterior_moments(
    sums: SubjectSums, coefficients: NDArray, root: NDArray, noise: NDArray
) -> Whitened:
    """Posterior of the whitened effects of every subject, and its log density.

    Parameters
    ----------
    sums : SubjectSums
    coefficients : ndarray, shape (num_terms,)
    root : ndarray, shape (num_effects, num_effects)
    noise : ndarray, shape (num_outputs,)
    """
    move, weight = coefficients - sums.start, noise**-2
    squares = sums.squares - 2 * sums.slope @ move
    squares = squares + np.einsum("i,soij,j->so", move, sums.fixed, move)
    shift = np.tensordot(sums.shift - sums.cross @ move, weight, axes=(1, 0))
    gram = np.tensordot(sums.random, weight, axes=(1, 0))
    log_noise = sums.num_rows @ (np.log(noise) + 0.5 * _LOG_2PI)
    return whitened(root, gram, shift, squares @ weight, log_noise)


def triangular_root(covariance: NDArray) -> NDArray[np.float64]:
    """Return the lower triangular L with L L' = covariance, which may be singular.

    Raises
    ------
    ValueError
        If the matrix is not symmetric or has a negative eigenvalue.
    """
    size = covariance.shape[-1]
    if covariance.shape != (size, size) or not np.allclose(covariance, covariance.T, rtol=1e-8):
        raise ValueError(f"covariance has shape {covariance.shape}; expected a symmetric matrix")
    spread = np.sqrt(np.diag(covariance).clip(0))
    unit = np.where(spread > 0, spread, 1.0)
    values, axes = np.linalg.eigh(covariance / np.outer(unit, unit))
    if (np.diag(covariance) < 0).any() or values[0] < -1e-9:
        raise ValueError(
            f"covariance is not positive semidefinite: the correlations' least eigenvalue is {values[0]:.3g}"
        )
    lower = np.linalg.qr((axes * np.sqrt(values.clip(0))).T, mode="r").T
    return unit[:, None] * lower * np.where(np.diag(lower) < 0, -1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Population:
    r"""Distribution of the curves of a population, which is the prior of a new subject (Lu 2008, chapter 8).

    .. math:: y_r = x_r^\top \alpha + z_r^\top b + \epsilon_r, \quad b \sim N(0, D), \quad
              \epsilon_r \sim N(0, \sigma_{o(r)}^2)

    Parameters
    ----------
    coefficients : array_like, shape (num_terms,)
        Fixed effects :math:`\alpha`.
    covariance : array_like, shape (num_effects, num_effects)
        Covariance :math:`D` of the random effects; it may be singular.
    noise : array_like, shape () or (num_outputs,)
        Standard deviation :math:`\sigma` of each output, positive.
    columns : mapping of str to tuple of str
        Names of the columns of ``fixed``, ``random`` and ``outputs`` that it was estimated from, where these
        had names.

    Raises
    ------
    TypeError, ValueError
        If shapes disagree, the covariance is not positive semidefinite, or noise is not positive.
    """

    coefficients: NDArray
    covariance: NDArray
    noise: NDArray
    columns: Columns = field(default_factory=dict)

    def __post_init__(self) -> None:
        shapes = {"coefficients": 1, "covariance": 2, "noise": 1}
        for name, ndim in shapes.items():
            value = real_array(name, getattr(self, name))
            value = np.atleast_1d(value) if name == "noise" else value
            if value.ndim != ndim or not value.size:
                raise ValueError(f"{name} has shape {value.shape}; expected {ndim} dimensions")
            refuse_gaps(name, value, "give finite numbers")
            object.__setattr__(self, name, value)
        if not isinstance(self.columns, Mapping):
            raise TypeError(
                f"columns = {shown(self.columns)}; pass a mapping of 'fixed', 'random' and 'outputs' to names"
            )
        if (self.noise <= 0).any():
            raise ValueError(f"noise = {self.noise}; expected positive standard deviations")
        self.root  # noqa: B018  what is no covariance is refused here

    @cached_property
    def root(self) -> NDArray[np.float64]:
        """Lower triangular L with L L' = D."""
        return triangular_root(self.covariance)

    @classmethod
    def of(cls, fit: _FitOfEffects) -> Self:
        """Population of a `Fit` of ``mixed_effects``, at its point estimate.

        Parameters
        ----------
        fit : Fit
            A fit by restricted or ordinary maximum likelihood; draws are averaged.
        """
        try:
            params, coefficients = fit.params, fit.coefficients()["estimate"]
            columns = fit.run.columns
            return cls(coefficients.to_numpy(), params["covariance"], params["noise"], columns)
        except (AttributeError, KeyError) as error:
            raise TypeError(
                f"fit = {shown(fit)}; pass a Fit of 'mixed_effects', which has coefficients, covariance and "
                "noise"
            ) from error

    def moments(self, table: LongTable) -> Whitened:
        """Posterior of the whitened effects of every subject, and its log density."""
        return posterior_moments(
            self._fitting(table).sums, self.coefficients, self.root, self.noise
        )

    def log_density(self, table: LongTable) -> NDArray[np.float64]:
        """Log density of the rows of every subject, shape (num_subjects,)."""
        return self.moments(table).log_density

    def effects(self, table: LongTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        r"""Best linear unbiased predictors of the random effects, and their error covariances.

        .. math:: \hat b = D Z^\top (Z D Z^\top + \sigma^2 I)^{-1} (y - X\alpha)
                  = (Z^\top Z / \sigma^2 + D^{-1})^{-1} Z^\top (y - X\alpha) / \sigma^2

        Equation 8.8 of the thesis lacks the factor :math:`1/\sigma^2` of the last expression. Where
        fixed and random columns are the same, the coefficients of a subject are those of the
        population plus its effects.

        Parameters
        ----------
        table : LongTable

        Returns
        -------
        mean : ndarray, shape (num_subjects, num_effects)
        covariance : ndarray, shape (num_subjects, num_effects, num_effects)
        """
        found = self.moments(table)
        return found.mean @ self.root.T, self.root @ found.covariance @ self.root.T

    def expected_error(
        self, seen: ArrayLike, new: ArrayLike, coefficients: ArrayLike | None = None
    ) -> float:
        r"""Expected squared error of predictions from seen rows, summed over new rows.

        With :math:`R = Z^\top Z` of the seen rows, :math:`R'` of the :math:`n'` new ones and
        :math:`A = R + \sigma^2 D^{-1}`, averaged over subjects of the population:

        .. math:: \mathrm{tr}\{R' (R/\sigma^2 + D^{-1})^{-1}\} + n' \sigma^2,

        which is the minimum over all predictors. For one subject with effects b:

        .. math:: \mathrm{tr}\{R' A^{-1} (\sigma^2 D^{-1} b b^\top \sigma^2 D^{-1} + \sigma^2 R)
                  A^{-1}\} + n' \sigma^2.

        (The thesis merges matrices of the latter that do not commute.)

        Parameters
        ----------
        seen, new : array_like, shapes (num_seen, num_effects) and (num_new, num_effects)
            Random columns of the rows; one output.
        coefficients : array_like, shape (num_effects,), optional
            Random effects b of a subject; by default the average over the population.
        """
        size = len(self.root)
        if len(self.noise) > 1:
            raise ValueError(f"the population has {len(self.noise)} outputs; expected one")
        columns = {"seen": real_array("seen", seen), "new": real_array("new", new)}
        for name, value in columns.items():
            if value.ndim != 2 or value.shape[1] != size:
                raise ValueError(f"{name} has shape {value.shape}; expected (rows, {size})")
            refuse_gaps(name, value)
        variance = float(self.noise[0] ** 2)
        gram, target = (one.T @ one for one in columns.values())
        # (R / s2 + D^-1)^-1, with D not inverted
        inner = np.linalg.inv(np.eye(size) + self.root.T @ gram @ self.root / variance)
        posterior = self.root @ inner @ self.root.T
        rest = len(columns["new"]) * variance
        if coefficients is None:
            return float(np.trace(target @ posterior) + rest)
        own = real_array("coefficients", coefficients)
        if own.shape != (size,):
            raise ValueError(f"coefficients has shape {own.shape}; expected ({size},)")
        refuse_gaps("coefficients", own, "give finite numbers")
        bias = own - posterior @ gram @ own / variance
        spread = posterior @ gram @ posterior / variance
        return float(bias @ target @ bias + np.trace(target @ spread) + rest)

    def _fitting(self, table: LongTable) -> LongTable:
        if not isinstance(table, LongTable):
            raise TypeError(f"table is a {type(table).__name__}; pass a LongTable")
        own = len(self.coefficients), len(self.root), len(self.noise)
        found = table.fixed.shape[1], table.random.shape[1], table.num_outputs
        if own != found:
            raise ValueError(
                f"the table has {found[0]} fixed and {found[1]} random columns of {found[2]} outputs, the "
                f"population {own[0]}, {own[1]} and {own[2]}; build both from the same columns"
            )
        refuse_other_columns("the table", table.columns, "the population", self.columns)
        return table


@dataclass(frozen=True, eq=False)
class MixPrior:
    r"""Several populations, one of which a new subject comes from (Lu 2008, section 8.3).

    Given its rows y, a subject belongs to population m with probability
    :math:`w_m \propto \pi_m p_m(y)`, and its coefficients are a Gaussian mixture with these
    weights. The weights in equation 8.18 of the thesis would count y twice; :math:`\pi_m` belongs
    there.

    Parameters
    ----------
    populations : sequence of Population
        Populations of the same columns.
    weights : array_like, shape (num_populations,), optional
        Shares :math:`\pi` of the populations, positive; scaled to add up to one. Equal by default.
    """

    populations: tuple[Population, ...]
    weights: NDArray = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        given = self.populations
        found = tuple(given) if isinstance(given, list | tuple) else ()
        if not found or not all(isinstance(one, Population) for one in found):
            raise TypeError(f"populations = {shown(given)}; pass a list of Population")
        shapes = {(len(p.coefficients), len(p.root), len(p.noise)) for p in found}
        if len(shapes) > 1:
            raise ValueError(
                f"populations have {sorted(shapes)} fixed effects, random effects and outputs; give all the "
                "same columns"
            )
        for number, one in enumerate(found):
            refuse_other_columns(
                f"populations[{number}]", one.columns, "populations[0]", found[0].columns
            )
        share = np.ones(len(found)) if self.weights is None else real_array("weights", self.weights)
        if share.shape != (len(found),) or not (np.isfinite(share) & (share > 0)).all():
            raise ValueError(
                f"weights = {shown(self.weights)}; expected {len(found)} positive numbers"
            )
        object.__setattr__(self, "populations", found)
        object.__setattr__(self, "weights", share / share.sum())

    def probabilities(self, table: LongTable) -> NDArray[np.float64]:
        """Probability of every population given the rows, shape (num_subjects, num_populations)."""
        found = np.stack([one.log_density(table) for one in self.populations], axis=1)
        return softmax(found + np.log(self.weights), axis=1)

    def coefficients(self, table: LongTable) -> NDArray[np.float64]:
        r"""Posterior mean of the coefficients of every subject, shape (num_subjects, num_effects).

        .. math:: \hat\gamma = \sum_m w_m (\alpha_m + \hat b_m), \qquad w_m \propto \pi_m p_m(y)

        Raises
        ------
        ValueError
            If fixed and random columns of the table differ.
        """
        if table.fixed.shape != table.random.shape or (table.fixed != table.random).any():
            raise ValueError(
                "fixed and random columns differ, so that subjects have no coefficients of their own; "
                "give both the same columns, or use sidebayes.forecast"
            )
        own = [one.coefficients + one.effects(table)[0] for one in self.populations]
        return np.einsum("sm,msi->si", self.probabilities(table), np.stack(own))


def refuse_other_columns(name: str, one: Columns, owner: str, other: Columns) -> None:
    """Refuse columns whose names or order differ from those of another table."""
    for table in sorted(one.keys() & other.keys()):
        if one[table] != other[table]:
            raise ValueError(
                f"{name} has the {table} columns {list(one[table])}, {owner} has {list(other[table])}; give "
                "the same ones in the same order"
            )
