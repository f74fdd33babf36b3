"""Outcomes of a linear mixed model at given fixed effects, in time that groups take and not rows."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ..random_effects import RandomEffects, log_integrals
from ..side_information.partial_labels import Groups
from .sums import RowSums, row_sums

__all__ = ["MixedEffects", "Weighted", "by_row", "weighted"]

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Weighted(NamedTuple):
    """`RowSums` over all outputs, each divided by its noise variance; ``constant`` of all rows."""

    fixed: Array
    slope: Array
    random: Array
    cross: Array
    shift: Array
    constant: Array


def weighted(sums: RowSums, noise: Array) -> Weighted:
    """Weigh sums by the precision of the noise.

    Parameters
    ----------
    sums : RowSums
    noise : Array, shape (num_outputs,)
        Standard deviations.
    """
    weight = noise**-2.0
    constant = -0.5 * weight @ sums.squares - sums.num_rows @ (jnp.log(noise) + _HALF_LOG_2PI)
    return Weighted(
        fixed=jnp.einsum("l,lij->ij", weight, sums.fixed),
        slope=weight @ sums.slope,
        random=jnp.einsum("l,glij->gij", weight, sums.random),
        cross=jnp.einsum("l,glij->gij", weight, sums.cross),
        shift=jnp.einsum("l,gli->gi", weight, sums.shift),
        constant=constant,
    )


def by_row(noise: Array, outputs: Array | None) -> Array:
    """Noise of every row, or of all, from that of every output."""
    return noise[0] if outputs is None else outputs @ noise


class MixedEffects(RandomEffects):
    r"""`RandomEffects` whose mean is linear in coefficients, :math:`m = X \beta`.

    The same density. It is made of sums over the rows of each group, which depend on no parameter:
    compiled loops over parameters find these once, and go over groups after that.

    Parameters
    ----------
    fixed : array_like, shape (num_rows, num_terms)
        Columns X of the fixed effects.
    coefficients : array_like, shape (num_terms,)
        Fixed effects :math:`\beta`.
    random : array_like, shape (num_rows, num_effects)
        Columns Z of the random effects.
    groups : Groups
    scale_tril : array_like, shape (num_effects, num_effects)
    noise : array_like, shape (num_outputs,)
        Standard deviation of each output.
    outputs : array_like, shape (num_rows, num_outputs), optional
        Indicators of the output that each row measures; None where there is one only.
    """

    arg_constraints: ClassVar[dict] = {}
    pytree_data_fields: ClassVar[tuple[str, ...]] = (
        "fixed",
        "coefficients",
        "deviations",
        "outputs",
    )

    def __init__(
        self,
        fixed: ArrayLike,
        coefficients: ArrayLike,
        random: ArrayLike,
        groups: Groups,
        *,
        scale_tril: ArrayLike,
        noise: ArrayLike,
        outputs: ArrayLike | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.fixed, self.coefficients = jnp.asarray(fixed), jnp.asarray(coefficients)
        self.deviations = jnp.asarray(noise)
        self.outputs = None if outputs is None else jnp.asarray(outputs)
        super().__init__(
            self.fixed @ self.coefficients,
            random,
            groups,
            scale_tril=scale_tril,
            noise=by_row(self.deviations, self.outputs),
            validate_args=validate_args,
        )

    def log_factors(self, value: Array) -> dict[str, Array]:
        """As of `RandomEffects`; the log density of all rows without effects is in ``ungrouped``."""
        self._check_value(value)
        sums = row_sums(jnp.asarray(value), self.fixed, self.design, self.groups, self.outputs)
        found, move = weighted(sums, self.deviations), self.coefficients - sums.start
        num_groups, size = self.num_units, self.design.shape[-1]
        shift = found.shift - found.cross @ move
        rows = found.constant + move @ found.slope - 0.5 * move @ found.fixed @ move
        return {
            "precision": -0.5 * self._precision(found.random),
            "shift": shift @ self.scale_tril,
            "constant": jnp.full(num_groups, -size * _HALF_LOG_2PI, shift.dtype),
            "ungrouped": rows,
        }

    def by_unit(self, value: Array) -> Array:
        """Log density of the outcomes of every group, shape (num_groups,)."""
        return log_integrals(super().log_factors(value))
