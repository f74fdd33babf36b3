"""Positions of points on a map: their draws in a common frame, their moments, and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.stats import chi2

from .pictures.colours import CHAINS, INK, MUTED, draw_pairs, link_legend, new_figure
from .sites import site_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Moments", "has_positions", "moments", "plot_positions", "principal_frame"]

_MOST_ELLIPSES = 300
"""Maximum number of points whose spread is drawn."""
_SHARE = 0.9
"""Probability that an ellipse holds."""


class Moments(NamedTuple):
    """Posterior mean and covariance of positions.

    Attributes
    ----------
    mean : ndarray, shape (num_points, num_dimensions)
    covariance : ndarray, shape (num_points, num_dimensions, num_dimensions)
        NaN for a single draw.
    """

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]


def has_positions(tree: xr.DataTree) -> bool:
    """Return whether a fit has positions of points."""
    return site_of(tree, "position") is not None


def principal_frame(aligned: xr.DataTree) -> tuple[NDArray, NDArray, NDArray]:
    """Return draws of positions, the centre of each, and the axes along which their mean varies most.

    Parameters
    ----------
    aligned : DataTree
        Tree whose draws have been rotated into agreement.

    Returns
    -------
    draws : ndarray, shape (num_draws, num_points, num_dimensions)
    center : ndarray, shape (num_draws, 1, num_dimensions)
    axes : ndarray, shape (num_dimensions, num_dimensions)
        Orthonormal columns; the furthest point along each is on its positive side.
    """
    values = aligned["posterior"][str(site_of(aligned, "position"))].to_numpy()
    draws = values.reshape(-1, *values.shape[2:])
    center = draws.mean(axis=1, keepdims=True)
    mean = (draws - center).mean(axis=0)
    axes = np.linalg.svd(mean, full_matrices=False)[2].T
    along = mean @ axes
    far = along[np.abs(along).argmax(axis=0), np.arange(axes.shape[1])]
    return draws, center, axes * np.where(far < 0, -1.0, 1.0)


def moments(aligned: xr.DataTree) -> Moments:
    """Return mean and covariance of positions about their centre, along their principal axes."""
    draws, center, axes = principal_frame(aligned)
    turned = (draws - center) @ axes
    mean = turned.mean(axis=0)
    if len(turned) == 1:
        return Moments(mean, np.full((*mean.shape, mean.shape[1]), np.nan))
    apart = turned - mean
    return Moments(mean, np.einsum("sia,sib->iab", apart, apart) / (len(turned) - 1))


def plot_positions(aligned: xr.DataTree) -> Figure:
    """Draw the map: posterior means of the positions, with ellipses that hold 90 % of each.

    The first two principal axes are drawn; with one dimension, positions are drawn against the numbers of
    points. Links are solid where they state that points are near, and dashed where they state that points
    are apart.
    """
    from matplotlib.collections import EllipseCollection

    mean, covariance = moments(aligned)
    is_line = mean.shape[1] == 1
    where = np.column_stack([np.arange(len(mean)), mean[:, 0]]) if is_line else mean[:, :2]
    figure, axis = new_figure(6.4, 5.2)
    shown = np.linspace(0, len(mean) - 1, min(len(mean), _MOST_ELLIPSES)).astype(int)
    if np.isfinite(covariance).all() and is_line:
        half = np.sqrt(chi2.ppf(_SHARE, 1) * covariance[shown, 0, 0])
        axis.vlines(*_ends(where[shown], half), color=CHAINS[0], alpha=0.4, lw=1)
    elif np.isfinite(covariance).all():
        values, vectors = np.linalg.eigh(covariance[shown, :2, :2])
        size = 2 * np.sqrt(chi2.ppf(_SHARE, 2) * np.maximum(values, 0.0))
        angle = np.degrees(np.arctan2(vectors[:, 1, 1], vectors[:, 0, 1]))
        ellipses = EllipseCollection(
            size[:, 1],
            size[:, 0],
            angle,
            units="xy",
            offsets=where[shown],
            offset_transform=axis.transData,
            facecolors=CHAINS[0],
            edgecolors=CHAINS[0],
            alpha=0.15,
            lw=0.6,
            zorder=0.5,
        )
        axis.add_collection(ellipses)
    axis.scatter(*where.T, s=9 if len(mean) < 1000 else 3, color=INK, lw=0, rasterized=True)
    group = aligned["constant_data"]
    if "links" in group and group["links"].size:
        pairs = group["links"].to_numpy().reshape(-1, 2).astype(int)
        draw_pairs(axis, where, pairs, group["link_weights"].to_numpy(), np.zeros(len(pairs), bool))
        link_legend(axis, 0, None)
    axis.set(xlabel="point" if is_line else "axis 1", ylabel="axis 1" if is_line else "axis 2")
    axis.margins(0.08)
    axis.tick_params(colors=MUTED)
    if not is_line:
        axis.set_aspect("equal", adjustable="datalim")
    return figure


def _ends(where: NDArray, half: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """Return lower and upper ends of intervals about the second coordinate."""
    return where[:, 0], where[:, 1] - half, where[:, 1] + half
