"""Outcomes of a linear mixed model at given fixed effects, in O(number of groups) per evaluation."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ...side_information.groups import Groups
from .random_effects import RandomEffects, log_integrals, precisions
from .small import forward_solve
from .sums import RowSums, row_sums

__all__ = ["MixedEffects", "Weighted", "by_output", "by_row", "effect_factors", "weighted"]

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Weighted(NamedTuple):
    """`RowSums` over all outputs, each divided by its noise variance; ``constant`` is that of the rows."""

    fixed: Array
    slope: Array
    random: Array
    cross: Array
    shift: Array
    constant: Array


def weighted(sums: RowSums, noise: Array) -> Weighted:
    """Weight sums by the precision of the noise.

    Parameters
    ----------
    sums : RowSums
        Of all rows, or by group.
    noise : Array, shape (num_outputs,)
        Standard deviations.
    """
    weight = noise**-2.0
    constant = -0.5 * sums.squares @ weight - sums.num_rows @ (jnp.log(noise) + _HALF_LOG_2PI)
    return Weighted(
        fixed=jnp.einsum("l,...lij->...ij", weight, sums.fixed),
        slope=jnp.einsum("l,...li->...i", weight, sums.slope),
        random=jnp.einsum("l,...lij->...ij", weight, sums.random),
        cross=jnp.einsum("l,...lij->...ij", weight, sums.cross),
        shift=jnp.einsum("l,...li->...i", weight, sums.shift),
        constant=constant,
    )


def effect_factors(
    sums: RowSums, coefficients: Array, scale_tril: Array, noise: Array
) -> dict[str, Array]:
    """Natural parameters of the whitened effects of every group, given one set of parameters.

    Parameters
    ----------
    sums : RowSums
        Of all rows, or by group.
    coefficients : Array, shape (num_terms,)
    scale_tril : Array, shape (num_effects, num_effects)
    noise : Array, shape (num_outputs,)

    Returns
    -------
    dict
        ``precision`` (num_groups, num_effects, num_effects) and ``shift`` (num_groups, num_effects)
        of `RandomEffects`; ``rows``, the log density of the rows without effects, in total or by
        group.
    """
    found = weighted(sums, noise)
    move = forward_solve(sums.terms, coefficients[:, None])[:, 0] - sums.start
    factor = forward_solve(sums.effects, scale_tril)
    bend = jnp.einsum("i,...ij,j->...", move, found.fixed, move)
    return {
        "precision": -0.5 * precisions(found.random, factor),
        "shift": (found.shift - found.cross @ move) @ factor,
        "rows": found.constant + found.slope @ move - 0.5 * bend,
    }


def by_output(noise: ArrayLike, outputs: Array | None) -> Array:
    """Noise of every output; a single number applies to all.

    Raises
    ------
    ValueError
        If there is neither one number nor one per output.
    """
    found, size = jnp.asarray(noise), 1 if outputs is None else outputs.shape[-1]
    if found.shape not in ((), (size,)):
        raise ValueError(
            f"noise has shape {found.shape}; expected one number, or ({size},), one for each output"
        )
    return jnp.broadcast_to(found, (size,))


def by_row(noise: Array, outputs: Array | None) -> Array:
    """Noise of every row, or one value for all rows, from the noise of every output."""
    return noise[0] if outputs is None else outputs @ noise


class MixedEffects(RandomEffects):
    r"""`RandomEffects` whose mean is linear in coefficients, :math:`m = X \beta`.

    The density is the same, but it is computed from sums over the rows of each group, which depend
    on no parameter. Compiled loops over parameters compute these sums once, and then iterate over
    groups only.

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
    noise : array_like, shape () or (num_outputs,)
        Standard deviation common to all outputs, or one per output.
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
        self.outputs = None if outputs is None else jnp.asarray(outputs)
        self.deviations = by_output(noise, self.outputs)
        super().__init__(
            self.fixed @ self.coefficients,
            random,
            groups,
            scale_tril=scale_tril,
            noise=by_row(self.deviations, self.outputs),
            validate_args=validate_args,
        )

    def log_factors(self, value: Array) -> dict[str, Array]:
        """See `RandomEffects`; the log density of all rows without effects is in ``ungrouped``."""
        self._check_value(value)
        sums = row_sums(jnp.asarray(value), self.fixed, self.design, self.groups, self.outputs)
        found = effect_factors(sums, self.coefficients, self.scale_tril, self.deviations)
        rows, size = found.pop("rows"), self.design.shape[-1]
        constant = jnp.full(self.num_units, -size * _HALF_LOG_2PI, rows.dtype)
        return found | {"constant": constant, "ungrouped": rows}

    def by_unit(self, value: Array) -> Array:
        """Log density of the outcomes of every group, shape (num_groups,)."""
        return log_integrals(super().log_factors(value))
