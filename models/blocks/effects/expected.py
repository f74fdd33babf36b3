"""The regression that an M-step of a linear mixed model solves."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..block import Evidence
from .restricted import RestrictedEffects
from .structure import Structure
from .sums import row_sums

__all__ = ["Regression", "expected_regression"]


class Regression(NamedTuple):
    r"""Expected sums of squares of outcomes regressed on fixed effects and products of z and u.

    Given the whitened effects u, the mean :math:`x^\top \beta + z^\top T u` is linear in the fixed
    effects and in the entries of T.

    Attributes
    ----------
    start : Array, shape (num_terms,)
        Coefficients that the fixed effects are relative to.
    num_rows, squares : Array, shape (num_outputs,)
        Rows, and expected sum of squared outcomes.
    gram : Array, shape (num_outputs, num_columns, num_columns)
        Expected products of columns: of fixed effects, unless these are integrated out, then of the
        entries of T.
    cross : Array, shape (num_outputs, num_columns)
        Expected products of columns and outcomes.
    spread : Array, shape (num_effects, num_effects)
        Mean over groups of the expected squares of u.
    """

    start: Array
    num_rows: Array
    squares: Array
    gram: Array
    cross: Array
    spread: Array

    def solved(self, weight: Array) -> tuple[Array, Array]:
        """Best columns' coefficients, and expected squared residuals of every output.

        Parameters
        ----------
        weight : Array, shape (num_outputs,)
            Precisions of the noise.
        """
        gram = jnp.einsum("l,lij->ij", weight, self.gram)
        found = jnp.linalg.solve(gram, weight @ self.cross)
        fitted = jnp.einsum("i,lij,j->l", found, self.gram, found)
        return found, self.squares - 2 * self.cross @ found + fitted


def expected_regression(evidence: Evidence, structure: Structure) -> Regression:
    """Collect it from the expected latent variables of `MixedEffects` or `RestrictedEffects`."""
    fn: Any = evidence.fn
    sums = row_sums(jnp.asarray(evidence.value), fn.fixed, fn.design, fn.groups, fn.outputs)
    second, first = evidence.expected["precision"], evidence.expected["shift"]
    rows, cols = structure.entries
    products = second[:, cols[:, None], cols[None, :]]
    gram = jnp.einsum("glef,gef->lef", sums.random[..., rows[:, None], rows[None, :]], products)
    cross = jnp.einsum("gle,ge->le", sums.shift[..., rows], first[:, cols])
    spread = second.mean(axis=0)
    if isinstance(fn, RestrictedEffects):
        move, square = evidence.expected["fixed_shift"], evidence.expected["fixed_precision"]
        squares = sums.squares - 2 * sums.slope @ move
        squares = squares + jnp.einsum("lij,ij->l", sums.fixed, square)
        joint = evidence.expected["cross"][:, cols]
        cross = cross - jnp.einsum("glek,gek->le", sums.cross[..., rows, :], joint)
        return Regression(sums.start, sums.num_rows, squares, gram, cross, spread)
    mixed = jnp.einsum("glek,ge->lke", sums.cross[..., rows, :], first[:, cols])
    upper = jnp.concatenate([sums.fixed, mixed], axis=2)
    lower = jnp.concatenate([mixed.mT, gram], axis=2)
    return Regression(
        start=sums.start,
        num_rows=sums.num_rows,
        squares=sums.squares,
        gram=jnp.concatenate([upper, lower], axis=1),
        cross=jnp.concatenate([sums.slope, cross], axis=1),
        spread=spread,
    )
