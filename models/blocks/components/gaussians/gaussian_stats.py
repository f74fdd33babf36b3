r"""Gaussian mixtures in one pass over the data: densities, responsibilities and moments.

The functions here visit the rows in chunks that stay in the processor's cache and never hold an
array of shape (num_points, num_clusters, num_features). Inside a chunk the points lie along the
last axis. Up to `_UNROLLED` features the quadratic forms are written out term by term, so that the
compiler makes one vector loop of them; beyond, they are matrix products.

Differences from the cluster means are formed before squaring, and second moments are
:math:`\sum_n r_{nk}(x_n-\mu_k)(x_n-c)^\top` with a centre c of the data, corrected by
:math:`(\sum_n r_{nk}(x_n-\mu_k))(\mu_k-c)^\top`, which is small when EM has nearly converged; sums
over chunks are compensated (Kahan). Single precision is therefore sufficient for data far from the
origin and for clusters much narrower than the spread of the data.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from ...row_shares import map_rows, sum_rows
from .chunks import Moments, about_means, accumulate, chunks, in_turn
from .gaussian import whitening

__all__ = [
    "GaussianPass",
    "Moments",
    "checked",
    "gaussian_log_prob",
    "gaussian_pass",
    "log_density",
    "mixed",
    "weighted_moments",
]

_UNROLLED = 24


class GaussianPass(NamedTuple):
    """Result of one pass over the data.

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
    chunk_size: int | None = None,
) -> GaussianPass:
    r"""E-step of a Gaussian mixture and the sufficient statistics of its M-step, in one pass.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
        In single or double precision; results have the same precision.
    log_weights : array_like, shape (num_clusters,)
        Log mixing weights; ``-inf`` switches a cluster off.
    mean : array_like, shape (num_clusters, num_features)
    scale_tril : array_like, shape (num_clusters, num_features, num_features)
        Lower Cholesky factors of the covariances.
    statements : (Array, Array), optional
        Probabilities of the statement about each point given its class, (num_points, num_classes),
        and of the classes in each cluster, (num_clusters, num_classes). Rows with equal entries
        state nothing.
    num_real : int, optional
        Rows from this number on are padding and do not count.
    chunk_size : int, optional
        Rows visited at a time; by default a number that suits the machine.

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
    x, mean, scale_tril = checked(x, mean, scale_tril)
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
    return GaussianPass(log_likelihood, about_means(sums, mean, centre), counts)


def _share_of_pass(chunk_size: int | None, rows: tuple, num_real: ArrayLike, *given: Any) -> tuple:
    """Log likelihood, counts of statements and sums of moments of some rows."""
    (x, stated), (mean, precision, constant, centre, classes) = rows, given
    counts = None if classes is None else jnp.zeros(classes.shape, x.dtype)

    def visit(points: Array, live: Array, start: Array) -> tuple[Any, Array, None]:
        log_joint = log_density(points, mean, precision, constant)
        if classes is not None:
            own, told, share = _said(stated, classes, start, points.shape[1])
            log_joint = log_joint + jnp.where(told, jnp.log(share), 0.0)
        log_likelihood, member = mixed(log_joint, live)
        if classes is None:
            return (log_likelihood, None), member, None
        found = (jnp.where(told, member, 0.0) / share) @ own * classes
        return (log_likelihood, found), member, None

    blank = jnp.zeros((), x.dtype), counts
    return accumulate(*in_turn(x, num_real, chunk_size), mean, centre, visit, blank)[0]


def mixed(log_joint: Array, live: Array) -> tuple[Array, Array]:
    """Log density of a mixture, summed over the live points, and their responsibilities (K, chunk)."""
    highest = jnp.max(log_joint, axis=0)
    highest = jnp.where(jnp.isfinite(highest), highest, 0.0)
    density = jnp.exp(log_joint - highest)
    total = density.sum(axis=0)
    each = jnp.where(live > 0, highest + jnp.log(total), 0.0)
    return jnp.sum(each), density * (live / total)


def _said(stated: Array, classes: Array, start: Array, size: int) -> tuple[Array, Array, Array]:
    """Statements of a chunk (chunk, C), which of them are informative, and their probabilities (K, chunk)."""
    rows = lax.dynamic_slice_in_dim(stated, start, size)
    told = rows.min(axis=1) < rows.max(axis=1)
    return rows, told, jnp.maximum(classes @ rows.T, jnp.finfo(classes.dtype).tiny)


def weighted_moments(
    x: ArrayLike,
    responsibilities: ArrayLike,
    mean: ArrayLike | None = None,
    *,
    chunk_size: int | None = None,
) -> Moments:
    """Moments of each cluster about `mean`, given responsibilities.

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    responsibilities : array_like, shape (num_points, num_clusters)
        Any non-negative weights.
    mean : array_like, shape (num_clusters, num_features), optional
        Origin of the moments; by default the mean of the data. The current means of the clusters
        give the best accuracy.
    chunk_size : int, optional
        Rows visited at a time; as many as suit the machine by default.

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
    return about_means(sums, mean, centre)


def _share_of_moments(
    chunk_size: int | None, rows: tuple, num_real: ArrayLike, mean: Array, centre: Array
) -> tuple:
    """Sums of moments of some rows."""
    x, responsibilities = rows

    def visit(points: Array, live: Array, start: Array) -> tuple[Array, Array, None]:
        some = lax.dynamic_slice_in_dim(responsibilities, start, points.shape[1])
        return jnp.zeros((), x.dtype), some.T * live, None

    blank = jnp.zeros((), x.dtype)
    return accumulate(*in_turn(x, num_real, chunk_size), mean, centre, visit, blank)[0]


def gaussian_log_prob(
    x: ArrayLike, mean: ArrayLike, scale_tril: ArrayLike, *, chunk_size: int | None = None
) -> Array:
    """Log density of every point under every Gaussian, shape (num_points, num_clusters).

    Parameters
    ----------
    x : array_like, shape (num_points, num_features)
    mean : array_like, shape (num_clusters, num_features)
    scale_tril : array_like, shape (num_clusters, num_features, num_features)
        Lower Cholesky factors of the covariances.
    chunk_size : int, optional
        Rows visited at a time; as many as suit the machine by default.

    Raises
    ------
    ValueError
        If shapes disagree.
    """
    x, mean, scale_tril = checked(x, mean, scale_tril)
    share = partial(_share_of_densities, chunk_size)
    return map_rows(share, x, mean, *whitening(scale_tril))


def _share_of_densities(
    chunk_size: int | None, x: Array, mean: Array, precision: Array, constant: Array
) -> Array:
    """Log densities of some rows."""
    size, starts = chunks(len(x), chunk_size)

    def visit(out: Array, begin: Array) -> tuple[Array, None]:
        start = jnp.minimum(begin, len(x) - size)
        points = lax.dynamic_slice_in_dim(x, start, size).T
        found = log_density(points, mean, precision, constant)
        return lax.dynamic_update_slice_in_dim(out, found.T, start, axis=0), None

    return lax.scan(visit, jnp.zeros((len(x), len(mean)), x.dtype), starts)[0]


def log_density(points: Array, mean: Array, precision: Array, constant: Array) -> Array:
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


def _floating(x: ArrayLike) -> Array:
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def checked(x: Any, mean: Any, scale_tril: Any) -> tuple[Array, Array, Array]:
    """Points and parameters as arrays of one floating type, with shapes that agree."""
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
