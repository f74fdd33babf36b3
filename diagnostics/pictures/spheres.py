"""Pictures of clusters of points on the circle and on the sphere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from ..fitted import AskedFit
from ..sites import labelled_table, site_of
from .colours import FAINT, INK, MOST_SHAPES, MUTED, cluster_colours, link_legend, new_figure
from .plots import MOST_POINTS, draw_links

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["has_sphere", "plot_sphere"]

_APART = 2.25
"""Distance between the middles of the two sides of the sphere."""
_STEPS = 181
"""Number of points of a curve around a mean."""


def has_sphere(fit: AskedFit) -> bool:
    """Return whether points with labels lie on a circle or a sphere, on which clusters have directions."""
    where, vector = (site_of(fit.tree, role) for role in ("location", "vector"))
    if where is None or vector is None:
        return False
    found = fit.tree["posterior"][where]
    return found.dims[2:3] == ("clusters",) and found.shape[-1] in (2, 3)


def plot_sphere(fit: AskedFit) -> Figure:
    """Points on the circle, or on the two sides of the sphere, with the directions of the clusters.

    A point's colour mixes its clusters' colours by responsibility. Curves hold 90 % of a cluster; on the
    circle these are arcs. The sphere is seen from the mean direction of the points, and from behind if
    anything is there. Links are those of `plot_clusters`.

    Parameters
    ----------
    fit : Fit
        For which `has_sphere` holds.
    """
    x = labelled_table(fit.tree)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    prob = fit.responsibilities()
    colour = cluster_colours(prob.shape[1])
    shown = np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).astype(int)
    on_circle = x.shape[1] == 2
    frame = np.eye(2) if on_circle else _view(x)
    where = x if on_circle else _seen(x, frame)
    directions, roots = _spreads(fit)
    curves = [_curve(d, root, on_circle) for d, root in zip(directions, roots, strict=True)]
    has_back = not on_circle and (np.vstack([x, *curves]) @ frame[:, 0] < 0).any()
    figure, axis = new_figure(8.4 if has_back else 5.2, 4.4 if has_back else 5.2)
    axis.set(aspect="equal")
    axis.set_axis_off()
    _draw_outline(axis, on_circle, has_back)
    num_violated = draw_links(axis, fit, where)
    axis.scatter(
        *where[shown].T,
        c=np.clip(prob[shown] @ colour, 0, 1),
        s=26 if len(shown) < 1000 else 8,
        edgecolor="white",
        lw=0.5,
        zorder=2,
        rasterized=len(shown) > MOST_SHAPES,
    )
    for own, direction, curve in zip(colour, directions, curves, strict=True):
        place = direction[None] if on_circle else _seen(direction[None], frame)
        if on_circle:
            axis.plot(*(1.07 * curve).T, color=own, lw=3, solid_capstyle="round", zorder=3)
        else:
            for side in (False, True):
                is_here = (curve @ frame[:, 0] < 0) == side
                line = np.where(is_here[:, None], _seen(curve, frame), np.nan)
                axis.plot(*line.T, color=own, lw=1.6, zorder=3)
        axis.scatter(
            *((1.07 if on_circle else 1) * place).T,
            marker="X",
            s=75,
            color=own,
            edgecolor=INK,
            lw=0.9,
            zorder=4,
        )
    if fit.tree["constant_data"].sizes.get("link", 0):
        link_legend(axis, num_violated, None)
    return figure


def _view(x: NDArray) -> NDArray:
    """Return orthonormal columns: the direction of view, then right and up."""
    middle = x.mean(axis=0)
    if np.linalg.norm(middle) < 1e-6:
        middle = x[0]
    towards = middle / np.linalg.norm(middle)
    up = np.eye(3)[2 if abs(towards[2]) < 0.9 else 1]
    up = up - (up @ towards) * towards
    up /= np.linalg.norm(up)
    return np.column_stack([towards, np.cross(up, towards), up])


def _seen(points: NDArray, frame: NDArray) -> NDArray:
    """Return places on the page, with the front view on the left and the view from behind on the right."""
    depth, right, up = (points @ frame).T
    behind = depth < 0
    return np.column_stack([np.where(behind, _APART - right, right), up])


def _draw_outline(axis: Axes, on_circle: bool, has_back: bool) -> None:
    """Draw circles around the views, and the parallels of each side."""
    turn = np.linspace(0, 2 * np.pi, _STEPS)
    ring = np.column_stack([np.cos(turn), np.sin(turn)])
    if on_circle:
        axis.plot(*ring.T, color=FAINT, lw=1, zorder=0)
        return
    for middle, name in ((0.0, "front"), (_APART, "back"))[: 1 + has_back]:
        for angle in (30, 60, 90):
            size = np.sin(np.radians(angle))
            style = {"lw": 1.0} if angle == 90 else {"lw": 0.6, "ls": ":"}
            axis.plot(*(size * ring + [middle, 0]).T, color=FAINT, zorder=0, **style)
        axis.text(middle, -1.12, name, ha="center", va="top", color=MUTED, fontsize=9)


def _spreads(fit: AskedFit) -> tuple[NDArray, list[NDArray]]:
    """Return directions of the clusters, and roots of the covariances in their tangent spaces."""
    where, spread = (site_of(fit.tree, role) for role in ("location", "spread"))
    assert where is not None  # see `has_sphere`
    assert spread is not None
    direction = np.asarray(fit.params[where])
    given = np.asarray(fit.params[spread])
    size = direction.shape[1]
    across = np.eye(size) - direction[:, :, None] * direction[:, None, :]
    covariance = given if given.ndim == 3 else given[:, None, None] * across
    values, vectors = np.linalg.eigh(covariance)
    # the smallest eigenvalue is along the direction, and zero
    return direction, list(vectors[..., 1:] * np.sqrt(np.maximum(values[:, None, 1:], 0.0)))


def _curve(direction: NDArray, root: NDArray, on_circle: bool) -> NDArray:
    """Return the wrapped curve that holds 90 % of a normal distribution in a direction's tangent space."""
    size = root.shape[1]
    if on_circle:
        steps = np.linspace(-1, 1, _STEPS)[:, None]
    else:
        turn = np.linspace(0, 2 * np.pi, _STEPS)
        steps = np.column_stack([np.cos(turn), np.sin(turn)])
    tangent = np.sqrt(chi2(size).ppf(0.9)) * steps @ root.T
    angle = np.linalg.norm(tangent, axis=1, keepdims=True)
    return np.cos(angle) * direction + np.sinc(angle / np.pi) * tangent
