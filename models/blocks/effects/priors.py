"""Priors of linear mixed models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from sidebayes.common.fields import (
    Positive,
    Range,
    check_fields,
    check_number,
    point_table,
    real_array,
    refuse_gaps,
)

from ..side_information.partial_labels import frozen

__all__ = ["EffectsPrior"]


@dataclass(frozen=True)
class EffectsPrior:
    r"""Prior of the parameters of a linear mixed model.

    .. math:: \beta_j \sim N(m_j, s_j^2), \quad
              \sqrt{D_{kk}} \sim \text{half-normal}(\tau_k), \quad
              \mathrm{corr}(D) \sim \text{LKJ}(\eta), \quad \sigma \sim \text{half-normal}(\nu)

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

    def __post_init__(self) -> None:
        for name in ("mean", "scale", "deviation", "noise"):
            value = real_array(f"EffectsPrior: {name}", getattr(self, name))
            if value.ndim != 1 and not (name == "noise" and value.ndim == 0):
                raise ValueError(
                    f"EffectsPrior({name}=...) has shape {value.shape}; give one number per column"
                )
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
        check_fields(self)

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
        """Prior some `width` times as wide as the data, in the units of each column.

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
            outcomes do not vary, so that they set no scale.
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
        spread = fixed.std(axis=0)
        constant = spread == 0
        mean = np.where(constant & (fixed[:1] == 1).ravel(), y.mean(), 0.0)
        scale = width * np.where(
            constant, unit + abs(y.mean()), unit / np.where(constant, 1, spread)
        )
        size = _root_mean_square(random)
        return cls(
            mean, scale, width * unit / size, np.full(num_outputs, width * unit), concentration
        )


def _root_mean_square(columns: NDArray) -> NDArray:
    found = np.sqrt((columns**2).mean(axis=0))
    return np.where(found > 0, found, 1.0)
