"""Statistics of the classes of subjects in one pass, in chunks that stay in a processor's cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from ..visits import at_a_time
from .densities.expected import Regression, class_regressions
from .densities.mixture import EffectsMixture
from .densities.random_effects import log_integrals, moments
from .densities.structure import Structure
from .densities.sums import RowSums, group_sums

__all__ = ["ClassPass", "class_pass"]

_CHUNK = 512
"""Groups per chunk on a processor."""


class ClassPass(NamedTuple):
    """Log partition function, and regressions whose ``total`` are the expected sizes of the classes."""

    log_partition: Array
    regression: Regression


def class_pass(
    fn: EffectsMixture, value: Array, structure: Structure, terms: Sequence[NDArray[np.int64]]
) -> ClassPass:
    """Log partition function and regressions of all classes, for groups that no links tie.

    The numbers equal those of `EffectsMixture.log_partition`, its gradient and
    `expected_regression`, but no array by group and class is stored.

    Parameters
    ----------
    fn : EffectsMixture
    value : Array, shape (num_rows,)
    structure : Structure
    terms : sequence of ndarray of int
        Fixed effects that have a basis of their own.
    """
    blocks = terms, structure.blocks
    sums = group_sums(jnp.asarray(value), fn.fixed, fn.design, fn.groups, fn.outputs, blocks)
    number = fn.groups.num_groups  # type: ignore[union-attr]
    log_side = jnp.zeros((number, fn.num_clusters)) if fn.log_side is None else fn.log_side
    of_all = {name: getattr(sums, name) for name in ("terms", "effects", "start")}
    by_group = {name: leaf for name, leaf in sums._asdict().items() if name not in of_all}
    columns = by_group, log_side, jnp.ones(number)
    size = min(at_a_time(_CHUNK), number)

    def in_chunks(leaf: Array) -> Array:
        padded = jnp.pad(leaf, [(0, -number % size)] + [(0, 0)] * (leaf.ndim - 1))
        return padded.reshape(-1, size, *leaf.shape[1:])

    def one(columns: tuple[dict[str, Array], Array, Array]) -> ClassPass:
        some, log_side, counted = columns
        return _of_chunk(fn, RowSums(**of_all, **some), log_side, counted, structure)

    def add(total: ClassPass, columns: Any) -> tuple[ClassPass, None]:
        return jax.tree.map(jnp.add, total, one(columns)), None

    chunks = jax.tree.map(in_chunks, columns)
    shapes = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0], chunks))
    blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    found, _ = jax.lax.scan(add, blank, chunks)
    start = jnp.broadcast_to(sums.start, found.regression.start.shape)
    return found._replace(regression=found.regression._replace(start=start))


def _of_chunk(
    fn: EffectsMixture, sums: RowSums, log_side: Array, counted: Array, structure: Structure
) -> ClassPass:
    """Contribution of some groups; the padding of the last chunk does not count."""
    factors = fn.class_factors(sums)
    joint = log_integrals({**factors, "constant": factors["unary"]}) + log_side
    joint = joint + fn.labels.log_weights
    terms = jax.nn.logsumexp(joint, axis=1)
    share = jnp.exp(joint - terms[:, None]) * counted[:, None]
    center, root = moments(factors)
    square = (root[..., :, None] * root[..., None, :]).sum(axis=-3)
    square = square + center[..., :, None] * center[..., None, :]
    expected = share, share[..., None, None] * square, share[..., None] * center
    return ClassPass(counted @ terms, class_regressions(sums, *expected, structure))
