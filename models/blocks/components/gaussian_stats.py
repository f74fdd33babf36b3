r"""Gaussian mixtures in one pass over the data: densities, responsibilities and moments.

The functions here visit the rows in chunks that stay in the processor's cache and never hold an
array of shape (num_points, num_clusters, num_features). Inside a chunk the points lie along the
last axis. Up to `_UNROLLED` features the quadratic forms are written out term by term, so that the
compiler makes one vector loop of them; beyond, they are matrix products.

Differences from the cluster means are formed before anything is squared, and second moments are
:math:`\sum_n r_{nk}(x_n-\mu_k)(x_n-c)^\top` with a centre c of the data, corrected by
:math:`(\sum_n r_{nk}(x_n-\mu_k))(\mu_k-c)^\top`, which is small where EM has nearly settled; sums
over chunks are compensated (Kahan). Single precision thus serves for data far from the origin and
for clusters much narrower than their spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ..row_shares import map_rows, sum_rows
from .gaussian import whitening

__all__ = ["GaussianPass", "Moments", "gaussian_log_prob", "gaussian_pass", "weighted_moments"]

_CHUNK = 1024
_UNROLLED = 24


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
        """The same moments about other points, given the `mean` that they are about."""
        apart = jnp.asarray(mean) - about
        cross = self.first[:, :, None] * apart[:, None, :]
        first = self.first + self.total[:, None] * apart
        own = self.total[:, None, None] * apart[:, :, None] * apart[:, None, :]
        return Moments(self.total, first, self.second + cross + jnp.swapaxes(cross, 1, 2) + own)

    def estimates(self, mean: ArrayLike) -> tuple[Array, Array]:
        """Weighted means and covariances, given the `mean` that the moments are about.

        A cluster without weight keeps its mean and gets a covariance of zero.
        """
        count = jnp.maximum(self.total, jnp.finfo(self.total.dtype).tiny)
        shift = self.first / count[:, None]
        covariance = self.second / count[:, None, None] - shift[:, :, None] * shift[:, None, :]
        return jnp.asarray(mean) + shift, covariance


class GaussianPass(NamedTuple):
    """What one pass over the data yields.

    Attributes
    ----------
    log_likelihood : Array, shape ()
        Sum over the points of the log density of the mixture.
    moments : Moments
        Moments about the `mean` of the pass, weighted by the responsibilities.
    class_counts : Array, shape (num_clusters, num_classes), or None
        Expected numbers of points with a statement, by component and class.
    """

    log_likelihood: Array
    moments: Moments
    class_counts: Array | None = None


def gaussian_pass(
    x: ArrayLike,
    log_weights: ArrayLike,
    mean: ArrayLike,
    scale_tril: ArrayLike,
    *,
    statements: tuple[Array, Array] | None = None,
    num_real: ArrayLike | None = None,
    chunk_size: int = _CHUNK,
) -> GaussianPass:
    r"""E-step of a Gaussian mixture and the sufficient statistics of its M-step, in one pass.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
        Single or double precision; results come in the same.
    log_weights : array_like, shape (num_clusters,)
        Log mixing weights; ``-inf`` switches a cluster off.
    mean : array_like, shape (num_clusters, num_features)
    scale_tril : array_like, shape (num_clusters, num_features, num_features)
        Lower Cholesky factors of the covariances.
    statements : (Array, Array), optional
        Probabilities of what is stated about each point given its class, (num_points, num_classes), and
        of the classes in each cluster, (num_clusters, num_classes). Rows of one number state nothing.
    num_real : int, optional
        Rows from this number on are spare and do not count.
    chunk_size : int
        Rows visited at a time.

    Returns
    -------
    GaussianPass

    Raises
    ------
    ValueError
        If shapes disagree.

    References
    ----------
    Dempster, Laird and Rubin (1977), J. R. Stat. Soc. B 39, 1-38.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> x = jnp.asarray([[0.0], [2.0]])
    >>> step = gaussian_pass(x, jnp.zeros(1), jnp.zeros((1, 1)), jnp.ones((1, 1, 1)))
    >>> mean, covariance = step.moments.estimates(jnp.zeros((1, 1)))
    >>> float(mean[0, 0]), float(covariance[0, 0, 0])
    (1.0, 1.0)
    """
    x, mean, scale_tril = _checked(x, mean, scale_tril)
    precision, log_scale = whitening(scale_tril)
    constant = jnp.asarray(log_weights, x.dtype) + log_scale
    centre = jax.nn.softmax(jnp.asarray(log_weights, x.dtype)) @ mean
    stated, classes = (None, None) if statements is None else statements
    share = partial(_share_of_pass, chunk_size)
    given = mean, precision, constant, centre, classes
    if num_real is None:
        (log_likelihood, counts), *sums = sum_rows(share, (x, stated), *given)
    else:
        (log_likelihood, counts), *sums = share((x, stated), num_real, *given)
    return GaussianPass(log_likelihood, _about_means(sums, mean, centre), counts)


def _share_of_pass(chunk_size: int, rows: tuple, num_real: ArrayLike, *given: Any) -> tuple:
    """Log likelihood, statements counted and sums of moments of some rows."""
    (x, stated), (mean, precision, constant, centre, classes) = rows, given
    counts = None if classes is None else jnp.zeros(classes.shape, x.dtype)

    def visit(points: Array, live: Array, start: Array) -> tuple[Any, Array]:
        log_joint = _log_density(points, mean, precision, constant)
        if classes is not None:
            own, told, share = _said(stated, classes, start, points.shape[1])
            log_joint = log_joint + jnp.where(told, jnp.log(share), 0.0)
        highest = jnp.max(log_joint, axis=0)
        highest = jnp.where(jnp.isfinite(highest), highest, 0.0)
        density = jnp.exp(log_joint - highest)
        total = density.sum(axis=0)
        log_likelihood = jnp.where(live > 0, highest + jnp.log(total), 0.0)
        member = density * (live / total)
        if classes is None:
            return (jnp.sum(log_likelihood), None), member
        found = (jnp.where(told, member, 0.0) / share) @ own * classes
        return (jnp.sum(log_likelihood), found), member

    blank = jnp.zeros((), x.dtype), counts
    return _accumulate(x, num_real, mean, centre, visit, blank, chunk_size)


def _said(stated: Array, classes: Array, start: Array, size: int) -> tuple[Array, Array, Array]:
    """Statements of a chunk (chunk, C), which say something, and their probabilities (K, chunk)."""
    rows = lax.dynamic_slice_in_dim(stated, start, size)
    told = rows.min(axis=1) < rows.max(axis=1)
    return rows, told, jnp.maximum(classes @ rows.T, jnp.finfo(classes.dtype).tiny)


def weighted_moments(
    x: ArrayLike,
    responsibilities: ArrayLike,
    mean: ArrayLike | None = None,
    *,
    chunk_size: int = _CHUNK,
) -> Moments:
    """Moments of each cluster about `mean`, given responsibilities.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    responsibilities : array_like, shape (num_points, num_clusters)
        Any non-negative weights.
    mean : array_like, shape (num_clusters, num_features), optional
        What the moments are about: the mean of the data by default. Best the current means of
        the clusters, for accuracy.
    chunk_size : int
        Rows visited at a time.

    Raises
    ------
    ValueError
        If shapes disagree.
    """
    x = _floating(x)
    responsibilities = jnp.asarray(responsibilities, x.dtype)
    fits = x.ndim == 2 and responsibilities.ndim == 2 and len(x) == len(responsibilities)
    if not fits or not len(x):
        raise ValueError(
            f"x has shape {x.shape} and responsibilities {responsibilities.shape}; expected "
            "(num_points, num_features) and (num_points, num_clusters)"
        )
    centre = x.mean(axis=0)
    num_clusters = responsibilities.shape[1]
    if mean is None:
        mean = jnp.broadcast_to(centre, (num_clusters, x.shape[1]))
    mean = jnp.asarray(mean, x.dtype)
    if mean.shape != (num_clusters, x.shape[1]):
        raise ValueError(
            f"mean has shape {mean.shape}; expected {(num_clusters, x.shape[1])} for the given "
            "responsibilities and x"
        )

    share = partial(_share_of_moments, chunk_size)
    _, *sums = sum_rows(share, (x, responsibilities), mean, centre)
    return _about_means(sums, mean, centre)


def _share_of_moments(
    chunk_size: int, rows: tuple, num_real: ArrayLike, mean: Array, centre: Array
) -> tuple:
    """Sums of moments of some rows."""
    x, responsibilities = rows

    def visit(points: Array, live: Array, start: Array) -> tuple[Array, Array]:
        some = lax.dynamic_slice_in_dim(responsibilities, start, points.shape[1])
        return jnp.zeros((), x.dtype), some.T * live

    blank = jnp.zeros((), x.dtype)
    return _accumulate(x, num_real, mean, centre, visit, blank, chunk_size)


def gaussian_log_prob(
    x: ArrayLike, mean: ArrayLike, scale_tril: ArrayLike, *, chunk_size: int = _CHUNK
) -> Array:
    """Log density of every point under every Gaussian, shape (num_points, num_clusters).

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    mean : array_like, shape (num_clusters, num_features)
    scale_tril : array_like, shape (num_clusters, num_features, num_features)
        Lower Cholesky factors of the covariances.
    chunk_size : int
        Rows visited at a time.

    Raises
    ------
    ValueError
        If shapes disagree.
    """
    x, mean, scale_tril = _checked(x, mean, scale_tril)
    share = partial(_share_of_densities, chunk_size)
    return map_rows(share, x, mean, *whitening(scale_tril))


def _share_of_densities(
    chunk_size: int, x: Array, mean: Array, precision: Array, constant: Array
) -> Array:
    """Log densities of some rows."""
    size, starts = _chunks(len(x), chunk_size)

    def visit(out: Array, begin: Array) -> tuple[Array, None]:
        start = jnp.minimum(begin, len(x) - size)
        points = lax.dynamic_slice_in_dim(x, start, size).T
        found = _log_density(points, mean, precision, constant)
        return lax.dynamic_update_slice_in_dim(out, found.T, start, axis=0), None

    return lax.scan(visit, jnp.zeros((len(x), len(mean)), x.dtype), starts)[0]


def _accumulate(x, num_real, mean, centre, visit, blank, chunk_size) -> tuple:
    """Sum over chunks what `visit` says: numbers like `blank`, and moments by its weights (K, chunk)."""
    num_clusters, num_features = mean.shape
    size, starts = _chunks(len(x), chunk_size)
    ones = jnp.ones(size, x.dtype)

    def add(carry: tuple, begin: Array) -> tuple[tuple, None]:
        start = jnp.minimum(begin, len(x) - size)  # the last chunk overlaps the one before
        points = lax.dynamic_slice_in_dim(x, start, size).T
        place = start + jnp.arange(size)
        live = ((place >= begin) & (place < num_real)).astype(x.dtype)
        value, weight = visit(points, live, start)
        pull = (weight[:, None] * (points - mean[:, :, None])).reshape(-1, size)
        second = pull @ (points - centre[:, None]).T
        return _compensated(carry, (value, weight @ ones, pull @ ones, second)), None

    rows = num_clusters * num_features
    shapes = (num_clusters,), (rows,), (rows, num_features)
    zero = blank, *(jnp.zeros(shape, x.dtype) for shape in shapes)
    return lax.scan(add, (zero, zero), starts)[0][0]


def _about_means(sums: Sequence[Array], mean: Array, centre: Array) -> Moments:
    """Moments about the means, given counts, sums of ``x - mean`` and of its products with ``x - centre``."""
    count, first, second = sums
    first = first.reshape(mean.shape)
    second = second.reshape(*mean.shape, mean.shape[1])
    second = second - first[:, :, None] * (mean - centre)[:, None, :]
    second = (second + jnp.swapaxes(second, 1, 2)) / 2
    return Moments(count, first, second)


def _compensated(carry: tuple, terms: tuple) -> tuple:
    """One step of Kahan's summation; the carry holds the sums and the parts they have lost."""
    total, lost = carry
    terms = jax.tree.map(jnp.subtract, terms, lost)
    new = jax.tree.map(jnp.add, total, terms)
    lost = jax.tree.map(lambda a, b, c: (a - b) - c, new, total, terms)
    return new, lost


def _log_density(points: Array, mean: Array, precision: Array, constant: Array) -> Array:
    """``constant - |precision (x - mean)|^2 / 2``, shape (K, chunk), of points (d, chunk)."""
    num_features = len(points)
    precision = precision * 0.7071067811865476
    if num_features > _UNROLLED:
        quadratic = lax.map(
            lambda a: jnp.sum((a[1] @ (points - a[0][:, None])) ** 2, axis=0), (mean, precision)
        )
        return constant[:, None] - quadratic
    apart = [row - mean[:, j, None] for j, row in enumerate(points)]
    log_density = constant[:, None]
    for i in range(num_features):
        whitened = precision[:, i, 0, None] * apart[0]
        for j in range(1, i + 1):
            whitened = whitened + precision[:, i, j, None] * apart[j]
        log_density = log_density - whitened * whitened
    return log_density


def _chunks(num_points: int, chunk_size: int) -> tuple[int, Array]:
    """Rows in a chunk, and where the chunks begin."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size = {chunk_size}; expected at least 1")
    size = min(chunk_size, num_points)
    return size, jnp.arange(0, num_points, size)


def _floating(x: ArrayLike) -> Array:
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def _checked(x, mean, scale_tril) -> tuple[Array, Array, Array]:
    x = _floating(x)
    mean, scale_tril = jnp.asarray(mean, x.dtype), jnp.asarray(scale_tril, x.dtype)
    width = x.shape[-1] if x.ndim == 2 else -1
    fits = mean.ndim == 2 and mean.shape[1] == width
    if not fits or scale_tril.shape != (*mean.shape, width) or not len(x):
        raise ValueError(
            f"x has shape {x.shape}, mean {mean.shape}, scale_tril {scale_tril.shape}; expected "
            "(num_points, d), (num_clusters, d) and (num_clusters, d, d)"
        )
    return x, mean, scale_tril
