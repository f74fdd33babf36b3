"""The regression that an M-step of a linear mixed model solves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from ...block import Observation
from .mixture import EffectsMixture
from .restricted import RestrictedEffects
from .structure import Structure
from .sums import RowSums, group_sums, row_sums

__all__ = ["Regression", "class_regressions", "expected_regression", "solve"]


class Regression(NamedTuple):
    r"""Expected sums of squares of outcomes regressed on fixed effects and products of z and u.

    Given the whitened effects u, the mean :math:`x^\top \beta + z^\top T u` is linear in the fixed
    effects and in the entries of T, both in the bases of their columns; see `RowSums`. There is one
    regression per class, or a single one without classes. Groups enter each regression with the
    probability that they belong to the class.

    Attributes
    ----------
    start : Array, shape (num_classes, num_terms)
        Origin of the coefficients of the fixed effects.
    total : Array, shape (num_classes,)
        Expected number of groups.
    num_rows, squares : Array, shape (num_classes, num_outputs)
        Number of rows, and expected sum of squared outcomes.
    gram : Array, shape (num_classes, num_outputs, num_columns, num_columns)
        Expected products of columns: those of the fixed effects (unless these are integrated out),
        followed by those of the entries of T.
    cross : Array, shape (num_classes, num_outputs, num_columns)
        Expected products of columns and outcomes.
    spread : Array, shape (num_classes, num_effects, num_effects)
        Sum over groups of the expected squares of u.
    """

    start: Array
    total: Array
    num_rows: Array
    squares: Array
    gram: Array
    cross: Array
    spread: Array


def solve(found: Regression, index: NDArray, weight: Array) -> tuple[Array, Array]:
    """Optimal coefficients of the columns, and expected squared residuals of every output, by class.

    Parameters
    ----------
    found : Regression
    index : ndarray of int, shape (num_classes, num_columns)
        Number of the coefficient of each column, among those of all classes. Columns of several
        classes with the same number share a coefficient.
    weight : Array, shape (num_classes, num_outputs)
        Precisions of the noise.
    """
    gram = jnp.einsum("kl,klij->kij", weight, found.gram)
    linear = jnp.einsum("kl,kli->ki", weight, found.cross)
    size = int(index.max()) + 1
    whole = jnp.zeros((size, size), gram.dtype).at[index[:, :, None], index[:, None, :]].add(gram)
    best = jnp.linalg.solve(whole, jnp.zeros(size, gram.dtype).at[index].add(linear))[index]
    fitted = jnp.einsum("ki,klij,kj->kl", best, found.gram, best)
    return best, found.squares - 2 * jnp.einsum("kli,ki->kl", found.cross, best) + fitted


def expected_regression(
    observation: Observation, structure: Structure, terms: Sequence[NDArray[np.int64]]
) -> Regression:
    """Compute the regression from the expected latent variables of distributions of mixed effects.

    Parameters
    ----------
    observation : Observation
    structure : Structure
    terms : sequence of ndarray of int
        Fixed effects that have a basis for themselves.
    """
    fn: Any = observation.fn
    blocks = terms, structure.blocks
    given = jnp.asarray(observation.value), fn.fixed, fn.design, fn.groups, fn.outputs, blocks
    expected = observation.expected
    second, first = expected["precision"], expected["shift"]
    if isinstance(fn, EffectsMixture):
        return class_regressions(group_sums(*given), expected["unary"], second, first, structure)
    sums, total = row_sums(*given), jnp.asarray(1.0 * fn.num_units)
    if isinstance(fn, RestrictedEffects):
        found = _restricted(sums, expected, total, structure)
    else:
        found = _marginal(sums, second, first, total, structure)
    return jax.tree.map(lambda leaf: leaf[None], found)


def class_regressions(
    sums: RowSums, share: Array, second: Array, first: Array, structure: Structure
) -> Regression:
    """Regressions of the classes.

    Parameters
    ----------
    sums : RowSums
        By group.
    share : Array, shape (num_groups, num_classes)
        Probability that a group is of a class.
    second : Array, shape (num_groups, num_classes, num_effects, num_effects)
        Expected squares of the whitened effects in each class, times that probability.
    first : Array, shape (num_groups, num_classes, num_effects)
        Expected effects, times that probability.
    structure : Structure
    """

    def of_class(share: Array, second: Array, first: Array) -> Regression:
        return _marginal(_shared(sums, share), second, first, share.sum(), structure)

    return jax.vmap(of_class, in_axes=1)(share, second, first)


def _shared(sums: RowSums, share: Array) -> RowSums:
    """Sums over all rows from sums by group, with each group weighted by its share."""
    whole = {
        name: jnp.einsum("g,g...->...", share, getattr(sums, name))
        for name in ("num_rows", "squares", "fixed", "slope")
    }
    return sums._replace(**whole)


def _of_effects(
    sums: RowSums, second: Array, first: Array, structure: Structure
) -> tuple[Array, Array]:
    """Expected products of the columns of the entries of T with each other, and with outcomes."""
    rows, cols = structure.entries
    products = second[:, cols[:, None], cols[None, :]]
    gram = jnp.einsum("glef,gef->lef", sums.random[..., rows[:, None], rows[None, :]], products)
    return gram, jnp.einsum("gle,ge->le", sums.shift[..., rows], first[:, cols])


def _marginal(
    sums: RowSums, second: Array, first: Array, total: Array, structure: Structure
) -> Regression:
    """Regression on fixed effects and on the entries of T."""
    rows, cols = structure.entries
    gram, cross = _of_effects(sums, second, first, structure)
    mixed = jnp.einsum("glek,ge->lke", sums.cross[..., rows, :], first[:, cols])
    upper = jnp.concatenate([sums.fixed, mixed], axis=2)
    lower = jnp.concatenate([mixed.mT, gram], axis=2)
    return Regression(
        start=sums.start,
        total=total,
        num_rows=sums.num_rows,
        squares=sums.squares,
        gram=jnp.concatenate([upper, lower], axis=1),
        cross=jnp.concatenate([sums.slope, cross], axis=1),
        spread=second.sum(axis=0),
    )


def _restricted(sums: RowSums, expected: Any, total: Array, structure: Structure) -> Regression:
    """Regression on the entries of T alone; fixed effects are latent variables."""
    rows, cols = structure.entries
    second = expected["precision"]
    gram, cross = _of_effects(sums, second, expected["shift"], structure)
    move, square = expected["fixed_shift"], expected["fixed_precision"]
    squares = sums.squares - 2 * sums.slope @ move
    joint = expected["cross"][:, cols]
    return Regression(
        start=sums.start,
        total=total,
        num_rows=sums.num_rows,
        squares=squares + jnp.einsum("lij,ij->l", sums.fixed, square),
        gram=gram,
        cross=cross - jnp.einsum("glek,gek->le", sums.cross[..., rows, :], joint),
        spread=second.sum(axis=0),
    )
