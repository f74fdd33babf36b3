"""Normal densities of points, the own share of each point taken out of the components by one step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Normals", "left_out_joint"]

_MOST = 0.999
"""Largest share of a scatter that one point may take with it."""

_LEAST = 1e-9
"""Least weight that a component keeps."""


class Normals(NamedTuple):
    """Components as they were fitted.

    Attributes
    ----------
    mean : ndarray, shape (num_clusters, num_features)
    covariance : ndarray, shape (num_clusters, num_features, num_features)
    form : {"full", "tied", "diagonal", "spherical"}
    sizes : ndarray, shape (num_clusters,)
        Points in each component.
    shrinkage, df : float
        Points that a prior adds to means, and to covariances; zero without a prior.
    """

    mean: NDArray
    covariance: NDArray
    form: str
    sizes: NDArray
    shrinkage: float
    df: float


def left_out_joint(x: NDArray, share: NDArray, fitted: Normals) -> NDArray[np.float64]:
    r"""Log joint densities of points and components, from which each point has been taken out.

    With weight h in a component of n points, of mean :math:`\mu` and covariance :math:`\Sigma = S / \nu`,

    .. math:: \mu' = \mu - \tfrac{h}{n - h} (x - \mu), \qquad
              \Sigma' = \tfrac{1}{\nu - h} \big(S - \tfrac{n h}{n - h} (x - \mu)(x - \mu)^\top\big).

    This is one step of EM without the point; responsibilities of the other points stay as they are.

    Parameters
    ----------
    x : ndarray, shape (num_points, num_features)
    share : ndarray, shape (num_points, num_clusters)
        Responsibilities, with all that is known of a point.
    fitted : Normals

    Returns
    -------
    ndarray, shape (num_points, num_clusters)
    """
    white = np.linalg.inv(np.linalg.cholesky(fitted.covariance))
    # one point after another, as each takes a matrix from every component
    rows = [_of_one(point, own, fitted, white) for point, own in zip(x, share, strict=True)]
    return np.stack(rows)


def _of_one(point: NDArray, own: NDArray, fitted: Normals, white: NDArray) -> NDArray[np.float64]:
    number = fitted.sizes + fitted.shrinkage
    own = np.minimum(own, (1 - _LEAST) * fitted.sizes)
    left = np.maximum(number - own, _LEAST)
    apart = point - fitted.mean
    moved = apart * (number / left)[:, None]
    taken = (number * own / left)[:, None, None] * apart[:, :, None] * apart[:, None]
    before, after = fitted.sizes + fitted.df, fitted.sizes + fitted.df - own
    if fitted.form == "tied":
        taken = np.broadcast_to(taken.sum(axis=0), taken.shape)
        before = np.full(len(own), fitted.sizes.sum() + fitted.df)
        after = before - own.sum()
    elif fitted.form != "full":
        variance = np.diagonal(taken, axis1=1, axis2=2)
        if fitted.form == "spherical":
            variance = np.broadcast_to(variance.mean(axis=1, keepdims=True), variance.shape)
        taken = variance[:, :, None] * np.eye(variance.shape[1])
    inside = white @ (taken / before[:, None, None]) @ np.swapaxes(white, 1, 2)
    most = np.linalg.eigvalsh(inside)[:, -1]
    inside *= np.minimum(1.0, _MOST / np.maximum(most, _LEAST))[:, None, None]
    rest = np.eye(len(point)) - inside
    scale = np.maximum(before / np.maximum(after, _LEAST), _LEAST)
    gap = (white @ moved[:, :, None])[:, :, 0]
    square = (gap * np.linalg.solve(rest, gap[:, :, None])[:, :, 0]).sum(axis=1) / scale
    spread = np.linalg.slogdet(rest)[1] + len(point) * np.log(2 * np.pi * scale)
    half = np.linalg.slogdet(white)[1] - spread / 2
    shares = np.maximum(fitted.sizes - own, _LEAST) / np.maximum(fitted.sizes - own, _LEAST).sum()
    return np.log(shares) + half - square / 2
