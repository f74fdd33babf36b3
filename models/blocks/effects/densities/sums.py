"""Sums over the rows of a long table, from which densities of linear mixed effects are computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from ...side_information.groups import Groups
from .basis import least_squares, lower_basis

__all__ = ["RowSums", "group_sums", "row_sums"]

Blocks = tuple[Sequence[NDArray[np.int64]], Sequence[NDArray[np.int64]]]
"""Columns of fixed and of random effects that have a basis of their own."""


class RowSums(NamedTuple):
    """Sums of products of columns, with residuals r about one least-squares fit of all rows.

    The columns are those of the data multiplied by bases (see `lower_basis`), and coefficients
    refer to these columns. None of the sums depends on parameters, so that compiled loops over
    parameters compute them once.

    Attributes
    ----------
    terms : Array, shape (num_terms, num_terms)
        Basis of the fixed effects.
    effects : Array, shape (num_effects, num_effects)
        Basis of the random effects.
    start : Array, shape (num_terms,)
        Coefficients of that fit.
    num_rows, squares : Array, shape (num_outputs,)
        Number of rows of each output, and their sum of squared residuals.
    fixed : Array, shape (num_outputs, num_terms, num_terms)
        Products of the columns of fixed effects.
    slope : Array, shape (num_outputs, num_terms)
        Products of these columns with the residuals.
    random : Array, shape (num_groups, num_outputs, num_effects, num_effects)
        Products of the columns of random effects, by group.
    cross : Array, shape (num_groups, num_outputs, num_effects, num_terms)
        Products of the columns of random effects with those of fixed effects.
    shift : Array, shape (num_groups, num_outputs, num_effects)
        Products of the columns of random effects with the residuals.
    """

    terms: Array
    effects: Array
    start: Array
    num_rows: Array
    squares: Array
    fixed: Array
    slope: Array
    random: Array
    cross: Array
    shift: Array


def _based(y: Array, fixed: Array, random: Array, blocks: Blocks | None) -> tuple[Array, ...]:
    """Bases of both kinds of columns, the columns in them, and a least-squares fit of all rows."""
    own = (None, None) if blocks is None else blocks
    terms, effects = lower_basis(jnp, fixed, own[0]), lower_basis(jnp, random, own[1])
    fixed, random = fixed @ terms, random @ effects
    start = least_squares(jnp, y, fixed)
    return terms, effects, fixed, random, start


def row_sums(
    y: Array,
    fixed: Array,
    random: Array,
    groups: Groups,
    outputs: Array | None,
    blocks: Blocks | None = None,
) -> RowSums:
    """Sum products of columns over all rows, and products with random effects over each group's rows.

    Parameters
    ----------
    y : Array, shape (num_rows,)
    fixed : Array, shape (num_rows, num_terms)
    random : Array, shape (num_rows, num_effects)
    groups : Groups
        Rows without a group enter the sums over all rows only.
    outputs : Array, shape (num_rows, num_outputs), or None
        Indicators of the output that each row measures; None where there is one only.
    blocks : tuple, optional
        Columns of either kind that have a basis of their own. By default all columns of a kind
        share one basis.
    """
    terms, effects, fixed, random, start = _based(y, fixed, random, blocks)
    residual = y - fixed @ start
    num_outputs = 1 if outputs is None else outputs.shape[1]
    output = _output(len(y), outputs)
    square, cross, shift = _by_cell(_products(fixed, random, residual), groups, outputs)
    member = [output == code for code in range(num_outputs)]
    rows = [fixed if num_outputs == 1 else jnp.where(own[:, None], fixed, 0.0) for own in member]
    return RowSums(
        terms=terms,
        effects=effects,
        start=start,
        num_rows=jnp.stack([own.sum() for own in member]),
        squares=jnp.stack([jnp.where(own, residual**2, 0.0).sum() for own in member]),
        fixed=jnp.stack([own.T @ own for own in rows]),
        slope=jnp.stack([own.T @ residual for own in rows]),
        random=_symmetric(square, random.shape[1]),
        cross=cross.reshape(*cross.shape[:2], random.shape[1], fixed.shape[1]),
        shift=shift,
    )


def group_sums(
    y: Array,
    fixed: Array,
    random: Array,
    groups: Groups,
    outputs: Array | None,
    blocks: Blocks | None = None,
) -> RowSums:
    """`row_sums` by group: all except ``start`` and the bases have a leading axis of groups.

    Parameters are those of `row_sums`; rows without a group are left out.
    """
    terms, effects, fixed, random, start = _based(y, fixed, random, blocks)
    residual = y - fixed @ start
    num_terms, num_effects = fixed.shape[1], random.shape[1]
    columns = [
        *_products(fixed, random, residual),
        _upper(fixed),
        fixed * residual[:, None],
        residual[:, None] ** 2,
        jnp.ones_like(residual)[:, None],
    ]
    square, cross, shift, gram, slope, squares, number = _by_cell(columns, groups, outputs)
    return RowSums(
        terms=terms,
        effects=effects,
        start=start,
        num_rows=number[..., 0],
        squares=squares[..., 0],
        fixed=_symmetric(gram, num_terms),
        slope=slope,
        random=_symmetric(square, num_effects),
        cross=cross.reshape(*cross.shape[:2], num_effects, num_terms),
        shift=shift,
    )


def _products(fixed: Array, random: Array, residual: Array) -> list[Array]:
    """Products of the random effects' columns with themselves, fixed columns and residuals, by row."""
    cross = (random[:, :, None] * fixed[:, None, :]).reshape(len(residual), -1)
    return [_upper(random), cross, random * residual[:, None]]


def _upper(columns: Array) -> Array:
    """Products of columns, each pair once."""
    rows, cols = jnp.triu_indices(columns.shape[1])
    return columns[:, rows] * columns[:, cols]


def _symmetric(upper: Array, size: int) -> Array:
    """Symmetric matrices from the entries of their upper triangles, shape (..., size, size)."""
    place = np.zeros((size, size), int)
    place[np.triu_indices(size)] = np.arange(upper.shape[-1])
    return upper[..., np.maximum(place, place.T)]


def _output(num_rows: int, outputs: Array | None) -> Array:
    """Number of the output of each row."""
    return jnp.zeros(num_rows, int) if outputs is None else outputs.argmax(axis=1)


def _by_cell(columns: list[Array], groups: Groups, outputs: Array | None) -> list[Array]:
    """Sum columns over the rows of each group and output, shape (num_groups, num_outputs, width)."""
    num_rows, num_outputs = len(columns[0]), 1 if outputs is None else outputs.shape[1]
    group, output = jnp.asarray(groups.codes), _output(num_rows, outputs)
    cell = jnp.where(group < 0, groups.num_groups * num_outputs, group * num_outputs + output)
    # one sum of all columns, because adding rows to groups dominates the time
    table = jnp.concatenate(columns, axis=1)
    found = jax.ops.segment_sum(table, cell, groups.num_groups * num_outputs)
    found = found.reshape(groups.num_groups, num_outputs, table.shape[1])
    ends = np.cumsum([own.shape[1] for own in columns])
    return jnp.split(found, ends[:-1], axis=-1)
