"""Sums over the rows of a table, visited in chunks that stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ...visits import at_a_time

__all__ = ["CHUNK", "Moments", "about_means", "accumulate", "by_feature", "chunks", "in_turn"]

CHUNK = 960
"""Rows per chunk on a processor; with a power of two, features would share lines of the cache."""


class Moments(NamedTuple):
    r"""Weighted moments of every cluster about a given `mean`.

    With :math:`\delta_k` = ``first / count`` the maximum-likelihood updates are
    ``mean + delta`` and ``second / count - delta delta^T``; see `estimates`.

    Attributes
    ----------
    total : Array, shape (num_clusters,)
        Sum of the weights.
    first : Array, shape (num_clusters, num_features)
        Weighted sum of ``x - mean``.
    second : Array, shape (num_clusters, num_features, num_features)
        Weighted sum of ``(x - mean)(x - mean)^T``, symmetric.
    """

    total: Array
    first: Array
    second: Array

    def moved(self, mean: ArrayLike, about: ArrayLike) -> Moments:
        """The same moments about other points; `mean` is their present origin."""
        apart = jnp.asarray(mean) - about
        cross = self.first[:, :, None] * apart[:, None, :]
        first = self.first + self.total[:, None] * apart
        own = self.total[:, None, None] * apart[:, :, None] * apart[:, None, :]
        return Moments(self.total, first, self.second + cross + jnp.swapaxes(cross, 1, 2) + own)

    def estimates(self, mean: ArrayLike) -> tuple[Array, Array]:
        """Weighted means and covariances; `mean` is the origin of the moments.

        A cluster without weight keeps its mean and gets a covariance of zero.
        """
        count = jnp.maximum(self.total, jnp.finfo(self.total.dtype).tiny)
        shift = self.first / count[:, None]
        covariance = self.second / count[:, None, None] - shift[:, :, None] * shift[:, None, :]
        return jnp.asarray(mean) + shift, covariance


def by_feature(rows: Array) -> Array:
    """Transpose rows (chunk, d) to (d, chunk), in memory too.

    The product with the identity is exact. XLA treats a plain transposition as a change of layout,
    and every loop over the points would then read their features in strides.
    """
    eye = jnp.eye(rows.shape[1], dtype=rows.dtype)
    return lax.dot_general(eye, rows, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)


def in_turn(
    x: Array, num_real: ArrayLike, chunk_size: int | None
) -> tuple[int, Callable[[Array], tuple[Array, Array, Array]]]:
    """Number of chunks of rows, and the function that picks them for `accumulate`."""
    size, starts = chunks(len(x), chunk_size)

    def pick(number: Array) -> tuple[Array, Array, Array]:
        begin = number * size
        start = jnp.minimum(begin, len(x) - size)  # the last chunk overlaps the one before
        place = start + jnp.arange(size)
        live = ((place >= begin) & (place < num_real)).astype(x.dtype)
        return by_feature(lax.dynamic_slice_in_dim(x, start, size)), live, start

    return len(starts), pick


def accumulate(
    number: ArrayLike,
    pick: Callable[[Array], tuple[Array, Array, Any]],
    mean: Array,
    centre: Array,
    visit: Callable[[Array, Array, Any], tuple[Any, Array, Any]],
    blank: Any,
    rows: Any = None,
) -> tuple[tuple, Any]:
    """Sum the values of a function over chunks, and moments with its weights; see `about_means`.

    Parameters
    ----------
    number : int
        Number of chunks.
    pick : callable
        ``pick(number) -> points, live, what``: the points of a chunk (d, chunk), an indicator of
        the points that count (chunk,), and further input of `visit`.
    mean : Array, shape (K, d)
    centre : Array, shape (d,)
    visit : callable
        ``visit(points, live, what) -> value, weight, row``: the value to be summed, weights (K,
        chunk), and the value to be kept for each chunk.
    blank : pytree
        Zeros with the structure of the values.
    rows : pytree
        Arrays with a leading axis of chunks for the values to be kept; None if there are none.

    Returns
    -------
    sums : tuple
        Sums of the values, the weights, and their products.
    rows : pytree
    """
    num_clusters, num_features = mean.shape

    def add(at: Array, carry: tuple) -> tuple:
        points, live, what = pick(at)
        value, weight, row = visit(points, live, what)
        ones = jnp.ones_like(live)
        pull = (weight[:, None] * (points - mean[:, :, None])).reshape(-1, len(ones))
        second = pull @ (points - centre[:, None]).T
        terms = value, weight @ ones, pull @ ones, second
        kept = jax.tree.map(lambda all_rows, own: all_rows.at[at].set(own), carry[2], row)
        return *_compensated(carry[:2], terms), kept

    size = num_clusters * num_features
    shapes = (num_clusters,), (size,), (size, num_features)
    zero = blank, *(jnp.zeros(shape, mean.dtype) for shape in shapes)
    sums, _, kept = lax.fori_loop(0, number, add, (zero, zero, rows))
    return sums, kept


def about_means(sums: Sequence[Array], mean: Array, centre: Array) -> Moments:
    """Moments about the means, from counts and sums of ``x - mean`` and its products with ``x - centre``."""
    count, first, second = sums
    first = first.reshape(mean.shape)
    second = second.reshape(*mean.shape, mean.shape[1])
    second = second - first[:, :, None] * (mean - centre)[:, None, :]
    second = (second + jnp.swapaxes(second, 1, 2)) / 2
    return Moments(count, first, second)


def _compensated(carry: tuple, terms: tuple) -> tuple:
    """One step of Kahan summation; the carry holds the sums and the parts that they have lost."""
    total, lost = carry
    terms = jax.tree.map(jnp.subtract, terms, lost)
    new = jax.tree.map(jnp.add, total, terms)
    lost = jax.tree.map(lambda a, b, c: (a - b) - c, new, total, terms)
    return new, lost


def chunks(num_points: int, chunk_size: int | None) -> tuple[int, Array]:
    """Number of rows per chunk (by default `CHUNK`), and the first row of each chunk."""
    if chunk_size is None:
        chunk_size = at_a_time(CHUNK)
    if chunk_size < 1:
        raise ValueError(f"chunk_size = {chunk_size}; expected at least 1")
    size = min(chunk_size, num_points)
    return size, jnp.arange(0, num_points, size)
