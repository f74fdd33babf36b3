"""The M-step of EM for the parameters of linear mixed models, from the expected regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from numpy.typing import NDArray

from ..block import Block, Observation
from ..collapsed import Collapsed
from .densities.basis import lower_basis
from .densities.expected import Regression, expected_regression, solve
from .densities.small import cholesky
from .densities.structure import Structure

__all__ = ["MixedUpdates"]

_SWEEPS = 3
"""Rounds of an M-step over coefficients and noise, if there are several noise variances."""


class MixedUpdates(Block):
    """Update of fixed effects, covariance and noise given expected random effects, under a flat prior.

    Attributes
    ----------
    fixed, random : array_like
        Columns of the effects.
    structure : Structure
        Structure of the covariance.
    num_terms, num_outputs : int
    """

    fixed: ArrayLike
    random: ArrayLike
    structure: Structure
    num_terms: int
    num_outputs: int

    @property
    def term_blocks(self) -> list[NDArray[np.int64]]:
        """Fixed effects that have a basis of their own."""
        return [np.arange(self.num_terms)]

    def statistics(self, observation: Observation) -> Regression:
        """Expected sums of squares and products of outcomes, fixed and random effects."""
        return expected_regression(observation, self.structure, self.term_blocks)

    def update(self, statistics: Regression, sources: Sequence[Collapsed]) -> Regression:
        """Return the statistics unchanged."""
        return statistics

    def mode(self, found: Regression, values: Mapping[str, Array]) -> dict[str, Array]:
        """Optimal coefficients and noise given the expected effects, in PX-EM's expanded model.

        In this model the effects have a free covariance, whose optimum is absorbed into the factor
        (Liu, Rubin and Wu 1998). The likelihood increases, and faster than under EM.
        """
        noise = jnp.reshape(values["noise"], (-1, self.num_outputs))
        noise = jnp.broadcast_to(noise, found.squares.shape)
        index = self._columns(found.gram.shape[-1])
        for _ in range(_SWEEPS if noise.size > 1 else 1):
            solved, squares = solve(found, index, noise**-2.0)
            noise = self._noise(squares, found.num_rows)
        known, entries = {}, solved
        terms = lower_basis(jnp, jnp.asarray(self.fixed), self.term_blocks)
        effects = lower_basis(jnp, jnp.asarray(self.random), self.structure.blocks)
        if "coefficients" in values:
            fixed = (found.start + solved[:, : self.num_terms]) @ terms.T
            known, entries = self._coefficients(fixed), solved[:, self.num_terms :]
        spread = jnp.where(self.structure.mask, self._mean_spread(found), 0.0)
        factor = effects @ self.structure.matrix(entries)[: len(spread)] @ cholesky(spread)
        return known | {
            "factor": self.structure.entries_of(factor).reshape(jnp.shape(values["factor"])),
            # if classes share a noise, it is in the first row
            "noise": noise.ravel()[: jnp.size(values["noise"])].reshape(jnp.shape(values["noise"])),
        }

    def _columns(self, number: int) -> NDArray[np.int64]:
        """Number of the coefficient of each column, by class; see `solve`."""
        return np.arange(number)[None]

    def _noise(self, squares: Array, num_rows: Array) -> Array:
        """Standard deviations from expected squared residuals, shape (num_classes, num_outputs)."""
        return jnp.sqrt(squares / num_rows)

    def _mean_spread(self, found: Regression) -> Array:
        """Mean expected square of the whitened effects, for each factor."""
        return found.spread / found.total[:, None, None]

    def _coefficients(self, fixed: Array) -> dict[str, Array]:
        """Values of the sites of the fixed effects, from those of each class."""
        return {"coefficients": fixed[0]}
