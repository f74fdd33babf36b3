"""Priors of linear mixed models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sidebayes.common.arrays import given_array, is_traced, point_table, real_array, refuse_gaps
from sidebayes.common.fields import Positive, Range, check_fields, check_number

from ..numbers import library_of, pytree_of_numbers
from ..side_information.partial_labels import frozen
from .densities.structure import Structure

__all__ = ["EffectsPrior", "inverse"]


@pytree_of_numbers
@dataclass(frozen=True)
class EffectsPrior:
    r"""Prior of the parameters of a linear mixed model.

    The prior is a pytree, so that fits with other values share compiled programs.

    .. math:: \beta_j \sim N(m_j, s_j^2), \quad
              \sqrt{D_{kk}} \sim \text{half-normal}(\tau_k), \quad
              \mathrm{corr}(D) \sim \text{LKJ}(\eta), \quad \sigma \sim \text{half-normal}(\nu)

    An intercept is the outcome where all other columns are zero, which for a calendar year is far from all
    data. With maps A and C this prior is that of :math:`A \beta` and of :math:`C D C^\top`, the fixed
    effects and the covariance of the random effects at an origin among the data.

    All values but the maps may be values of other sites, for a prior with parameters of its own.

    Parameters
    ----------
    mean, scale : array_like, shape (num_terms,)
        Means and standard deviations of the fixed effects :math:`\beta`.
    deviation : array_like, shape (num_effects,)
        Scales :math:`\tau` of the standard deviations of the random effects, positive.
    noise : float, or array_like of shape (num_outputs,)
        Scale :math:`\nu` of the standard deviation of the noise, positive.
    concentration : float
        Parameter :math:`\eta` of the correlations between random effects, positive; 1 is uniform.
    fixed_map : array_like, shape (num_terms, num_terms), optional
        A, an invertible matrix; by default the identity.
    random_map : array_like, shape (num_effects, num_effects), optional
        C, likewise. Entries between random effects that the model treats as independent are
        ignored.

    Raises
    ------
    TypeError, ValueError
        If a field does not hold such numbers, or the numbers of means and scales differ.
    """

    mean: ArrayLike
    scale: ArrayLike
    deviation: ArrayLike
    noise: ArrayLike
    concentration: Positive = 2.0
    fixed_map: ArrayLike | None = None
    random_map: ArrayLike | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "deviation", "noise"):
            value = given_array(f"EffectsPrior: {name}", getattr(self, name))
            if value.ndim != 1 and not (name == "noise" and value.ndim == 0):
                raise ValueError(
                    f"EffectsPrior({name}=...) has shape {value.shape}; give one number per column"
                )
            if is_traced(value):
                object.__setattr__(self, name, value)
                continue
            if not np.isfinite(value).all() or (name != "mean" and (value <= 0).any()):
                wanted = "finite" if name == "mean" else "positive"
                raise ValueError(
                    f"EffectsPrior({name}={value}): expected numbers that are {wanted}"
                )
            object.__setattr__(self, name, frozen(value))
        if np.shape(self.mean) != np.shape(self.scale):
            raise ValueError(
                f"EffectsPrior has {np.size(self.mean)} means and {np.size(self.scale)} scales of fixed "
                "effects; give one of each per column"
            )
        for name, size in (
            ("fixed_map", np.size(self.mean)),
            ("random_map", np.size(self.deviation)),
        ):
            if getattr(self, name) is None:
                continue
            value = real_array(f"EffectsPrior: {name}", getattr(self, name))
            if value.shape != (size, size):
                raise ValueError(
                    f"EffectsPrior({name}=...) has shape {value.shape}; expected {(size, size)}, a row and a "
                    "column for each effect"
                )
            if not np.isfinite(value).all() or np.linalg.matrix_rank(value) < size:
                raise ValueError(
                    f"EffectsPrior({name}={value}): expected a matrix that can be inverted"
                )
            object.__setattr__(self, name, frozen(value))
        check_fields(self)

    def of_coefficients(self, terms: NDArray[np.int64]) -> tuple[Any, Any]:
        """Mean of some fixed effects, and lower triangular factor of their covariance.

        Parameters
        ----------
        terms : ndarray of int
            Numbers of these fixed effects.
        """
        xp = library_of(self.mean, self.scale, self.fixed_map)
        mean, scale = xp.asarray(self.mean), xp.asarray(self.scale)
        back = np.eye(len(mean)) if self.fixed_map is None else inverse(self.fixed_map)
        upper = xp.linalg.qr((back[terms] * scale).T, mode="r")
        return back[terms] @ mean, upper.T * xp.sign(xp.diag(upper))

    def map_of(self, structure: Structure) -> Any:
        """`random_map` within the blocks of random effects that may be correlated."""
        eye = np.eye(structure.size)
        if self.random_map is None:
            return eye
        xp = library_of(self.random_map)
        return xp.where(structure.mask, xp.asarray(self.random_map), eye)

    @classmethod
    def weak(
        cls,
        y: ArrayLike,
        fixed: ArrayLike,
        random: ArrayLike,
        outputs: ArrayLike | None = None,
        *,
        width: float = 2.5,
        concentration: float = 2.0,
    ) -> Self:
        """Prior about `width` times as wide as the data, in the units of each column.

        If there is an intercept (a column that is 1 in all rows of an output), the prior applies at
        the means of the columns, so that the origin of a column, such as time, does not matter.

        Parameters
        ----------
        y : array_like, shape (num_rows,)
        fixed : array_like, shape (num_rows, num_terms)
        random : array_like, shape (num_rows, num_effects)
        outputs : array_like, shape (num_rows, num_outputs), optional
        width, concentration : float
            Positive.

        Raises
        ------
        TypeError, ValueError
            If the data are not finite numbers of these shapes, a number is not positive, or the
            outcomes are constant, so that they have no scale.
        """
        check_number("width", width, Range(above=0))
        y = real_array("y", y)
        refuse_gaps("y", y)
        y = point_table("y", y[..., None])[:, 0]
        fixed, random = point_table("fixed", fixed), point_table("random", random)
        for name, table in (("fixed", fixed), ("random", random)):
            if len(table) != len(y):
                raise ValueError(
                    f"{name} has {len(table)} rows and y has {len(y)}; give equally many"
                )
        num_outputs = () if outputs is None else point_table("outputs", outputs).shape[1:]
        unit = float(y.std())
        if not unit > 0:
            raise ValueError(
                "y does not vary, and gives no unit for a prior; write EffectsPrior(...)"
            )
        kinds = np.ones((len(y), 1)) if outputs is None else np.asarray(outputs, float)
        fixed_map, random_map = _centring(fixed, kinds), _centring(random, kinds)
        fixed, random = fixed @ np.linalg.inv(fixed_map), random @ np.linalg.inv(random_map)
        spread = fixed.std(axis=0)
        constant = spread == 0
        mean = np.where(constant & (fixed[:1] == 1).ravel(), y.mean(), 0.0)
        scale = width * np.where(
            constant, unit + abs(y.mean()), unit / np.where(constant, 1, spread)
        )
        size = _root_mean_square(random)
        return cls(
            mean,
            scale,
            width * unit / size,
            np.full(num_outputs, width * unit),
            concentration,
            fixed_map,
            random_map,
        )


def inverse(matrix: ArrayLike) -> Any:
    """Inverse of a map."""
    xp = library_of(matrix)
    return xp.linalg.inv(xp.asarray(matrix))


def _centring(columns: NDArray, kinds: NDArray) -> NDArray[np.float64]:
    """Map from effects of columns to effects of centred columns; intercepts absorb the means.

    Parameters
    ----------
    columns : ndarray, shape (num_rows, num_columns)
    kinds : ndarray, shape (num_rows, num_outputs)
        Indicators of the output of each row.
    """
    found = np.eye(columns.shape[1])
    of_kind = kinds[:, :, None] == columns[:, None, :]
    intercept = of_kind.all(axis=0)
    others = ~intercept.any(axis=0)
    for kind, own in zip(kinds.T, intercept, strict=True):
        if own.any():
            found[np.argmax(own), others] = kind @ columns[:, others] / kind.sum()
    return found


def _root_mean_square(columns: NDArray) -> NDArray:
    found = np.sqrt((columns**2).mean(axis=0))
    return np.where(found > 0, found, 1.0)
