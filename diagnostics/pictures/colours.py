"""Colours, frames, legends and lines of links that pictures share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CHAINS",
    "FAINT",
    "INK",
    "MOST_LINKS",
    "MOST_SHAPES",
    "MUTED",
    "WARN",
    "as_label",
    "cluster_colours",
    "draw_pairs",
    "legend_above",
    "link_legend",
    "new_figure",
]

INK = "#1f2933"
MUTED = "#7b8794"
FAINT = "#b8c0c8"
WARN = "#c81e1e"

MOST_LINKS = 400
"""Maximum number of links that are drawn."""

MOST_SHAPES = 1000
"""Number of points or vertices above which vector graphics hold them as one image, to keep files small."""

_PALETTE = np.array(
    [
        [0.00, 0.45, 0.70], [0.90, 0.62, 0.00], [0.00, 0.62, 0.45], [0.80, 0.47, 0.65],
        [0.34, 0.71, 0.91], [0.84, 0.37, 0.00], [0.80, 0.74, 0.10], [0.35, 0.35, 0.35],
    ]
)  # fmt: skip
"""Okabe and Ito's colours, which the colour-blind can tell apart; yellow is darkened for white paper."""

CHAINS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""One colour per chain, in turn."""


def cluster_colours(num_clusters: int) -> NDArray[np.float64]:
    """One colour per cluster, shape (num_clusters, 3); beyond eight, lighter and darker shades.

    Parameters
    ----------
    num_clusters : int
    """
    index = np.arange(num_clusters)
    base = _PALETTE[index % len(_PALETTE)]
    shade = np.array([[0.0, 0.0], [0.5, 1.0], [0.4, 0.0]])[index // len(_PALETTE) % 3]
    return base + shade[:, :1] * (shade[:, 1:] - base)


def as_label(name: object) -> str:
    """Escape a name as text of a picture, since Matplotlib reads dollars as mathematics."""
    return str(name).replace("$", r"\$")


def new_figure(width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """Like ``plt.subplots`` with plain axes, but pyplot does not hold the figure, and notebooks show it.

    Parameters
    ----------
    width, height : float
        Size in inches.
    **options
        Options of ``Figure.subplots``.
    """
    from .figures import ShownFigure

    figure = ShownFigure(width, height)
    axes = figure.subplots(**options)
    for axis in np.ravel(axes):
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(FAINT)
        axis.tick_params(color=FAINT, labelcolor=INK, labelsize=8.5)
        axis.xaxis.label.set(color=INK, size=9)
        axis.yaxis.label.set(color=INK, size=9)
        axis.title.set(color=MUTED)
    return figure, axes


def draw_pairs(
    axis: Axes, where: NDArray, pairs: NDArray, weights: NDArray, broken: NDArray[np.bool_]
) -> None:
    """Draw at most 400 links, with solid must-links and dashed cannot-links; `broken` ones come first."""
    from matplotlib.collections import LineCollection

    shown = np.zeros(len(pairs), bool)
    shown[np.argsort(~broken, kind="stable")[:MOST_LINKS]] = True  # violated ones first
    for must, style in ((True, "solid"), (False, (0, (3.5, 2.5)))):
        for bad in (False, True):
            chosen = pairs[shown & ((weights > 0) == must) & (broken == bad)]
            lines = LineCollection(
                list(where[chosen]),
                linestyles=[style],
                colors=WARN if bad else MUTED,
                alpha=0.95 if bad else 0.45,
                linewidths=1.5 if bad else 0.8,
                zorder=1.5 if bad else 1,
            )
            axis.add_collection(lines)


def link_legend(axis: Axes, num_violated: int, title: str | None) -> None:
    """Draw a legend of the kinds of links above the picture."""
    from matplotlib.lines import Line2D

    kinds = [("solid", MUTED, "must-link"), ((0, (3.5, 2.5)), MUTED, "cannot-link")]
    if num_violated:
        kinds.append(("solid", WARN, f"violated ({num_violated})"))
    lines = [Line2D([], [], ls=style, color=c, lw=1.4, label=name) for style, c, name in kinds]
    legend_above(axis, lines, title)


def legend_above(axis: Axes, handles: Sequence[Artist], title: str | None = None) -> None:
    """Draw a legend above the picture."""
    axis.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=4,
        frameon=False,
        fontsize=8.5,
        title=title,
        title_fontsize=8.5,
        alignment="left",
    )
