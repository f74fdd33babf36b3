"""Sums over the rows of a long table that densities of linear mixed effects are made of."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..side_information.partial_labels import Groups

__all__ = ["RowSums", "least_squares", "row_sums"]

_RIDGE = 1e-12
"""Share of a column's sum of squares that keeps dependent columns apart; any point will do."""


class RowSums(NamedTuple):
    """Sums of products of columns, with residuals r about one least-squares fit of all rows.

    None of them depends on parameters, so that compiled loops over parameters find them once.

    Attributes
    ----------
    start : Array, shape (num_terms,)
        Coefficients of that fit.
    num_rows, squares : Array, shape (num_outputs,)
        Rows of each output, and their sum of squared residuals.
    fixed : Array, shape (num_outputs, num_terms, num_terms)
        Products of the columns of fixed effects.
    slope : Array, shape (num_outputs, num_terms)
        Products of these columns with the residuals.
    random : Array, shape (num_groups, num_outputs, num_effects, num_effects)
        Products of the columns of random effects, by group.
    cross : Array, shape (num_groups, num_outputs, num_effects, num_terms)
        Products of both kinds of columns.
    shift : Array, shape (num_groups, num_outputs, num_effects)
        Products of the columns of random effects with the residuals.
    """

    start: Array
    num_rows: Array
    squares: Array
    fixed: Array
    slope: Array
    random: Array
    cross: Array
    shift: Array


def least_squares(y: Array, fixed: Array) -> Array:
    """Coefficients of a least-squares fit, shape (num_terms,); of dependent columns, any."""
    gram = fixed.T @ fixed
    gram = gram + _RIDGE * jnp.diag(jnp.diagonal(gram))
    return jnp.linalg.solve(gram, fixed.T @ y)


def row_sums(
    y: Array, fixed: Array, random: Array, groups: Groups, outputs: Array | None
) -> RowSums:
    """Sum products of columns over the rows of each group.

    Parameters
    ----------
    y : Array, shape (num_rows,)
    fixed : Array, shape (num_rows, num_terms)
    random : Array, shape (num_rows, num_effects)
    groups : Groups
        Rows of no group enter the sums over all rows only.
    outputs : Array, shape (num_rows, num_outputs), or None
        Indicators of the output that each row measures; None where there is one only.
    """
    start = least_squares(y, fixed)
    residual = y - fixed @ start
    num_terms, num_effects = fixed.shape[1], random.shape[1]
    num_outputs = 1 if outputs is None else outputs.shape[1]
    output = jnp.zeros(len(y), int) if outputs is None else outputs.argmax(axis=1)
    group = jnp.asarray(groups.codes)
    cell = jnp.where(group < 0, groups.num_groups * num_outputs, group * num_outputs + output)
    # one sum of all products, as adding rows to groups is what takes long
    upper = jnp.triu_indices(num_effects)
    columns = [
        random[:, upper[0]] * random[:, upper[1]],
        (random[:, :, None] * fixed[:, None, :]).reshape(len(y), -1),
        random * residual[:, None],
    ]
    found = jax.ops.segment_sum(
        jnp.concatenate(columns, axis=1), cell, groups.num_groups * num_outputs
    ).reshape(groups.num_groups, num_outputs, -1)
    half, wide = len(upper[0]), num_effects * num_terms
    square = jnp.zeros((*found.shape[:2], num_effects, num_effects), found.dtype)
    square = square.at[..., upper[0], upper[1]].set(found[..., :half])
    square = square.at[..., upper[1], upper[0]].set(found[..., :half])
    member = [output == code for code in range(num_outputs)]
    rows = [fixed if num_outputs == 1 else jnp.where(own[:, None], fixed, 0.0) for own in member]
    return RowSums(
        start=start,
        num_rows=jnp.stack([own.sum() for own in member]),
        squares=jnp.stack([jnp.where(own, residual**2, 0.0).sum() for own in member]),
        fixed=jnp.stack([own.T @ own for own in rows]),
        slope=jnp.stack([own.T @ residual for own in rows]),
        random=square,
        cross=found[..., half : half + wide].reshape(*found.shape[:2], num_effects, num_terms),
        shift=found[..., half + wide :],
    )
