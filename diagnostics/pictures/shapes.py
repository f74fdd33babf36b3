"""Pictures of shapes: means, deformation grids, modes. Matplotlib is imported only when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.interpolate import RBFInterpolator

from .colours import FAINT, INK, MUTED, as_label, cluster_colours, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_shapes"]

_MOST_GROUPS = 6
"""Groups whose deformation is drawn."""
_MOST_MODES = 2
_SEEN = 0.07
"""Share of the size of the picture that the largest displacement is magnified to."""
_LINES = 15
"""Lines of a grid along its longer side."""
_COLUMNS = 3
_SIDE = 2.9
"""Inches of a panel."""


def plot_shapes(shapes: xr.Dataset, modes: xr.Dataset, prob: NDArray) -> Figure:
    """Shapes of the groups: individuals about the means, what sets each group apart, and the leading modes.

    In the plane the deformation from the population to a group is drawn as a grid, by the thin-plate
    spline through the landmarks; in space as arrows. Displacements are magnified, by the factor in the
    title, so that the largest is well seen.

    Parameters
    ----------
    shapes : Dataset
        Of `Fit.shapes`.
    modes : Dataset
        Of `Fit.modes`; those of the population are drawn.
    prob : ndarray, shape (num_subjects, num_groups)
        Probabilities of the groups.
    """
    num_groups = shapes.sizes["group"]
    grids = range(min(num_groups, _MOST_GROUPS)) if num_groups > 1 else ()
    own = range(min(modes.sizes["mode"], _MOST_MODES))
    number = 1 + len(grids) + len(own)
    columns = min(number, _COLUMNS)
    rows = -(-number // columns)
    solid = shapes.sizes["axis"] == 3
    options: dict[str, Any] = {"subplot_kw": {"projection": "3d"}} if solid else {}
    figure, axes = new_figure(
        _SIDE * columns, _SIDE * rows, nrows=rows, ncols=columns, squeeze=False, **options
    )
    panels = list(axes.ravel())
    colour = cluster_colours(num_groups)
    _draw_means(panels[0], shapes, prob, colour)
    middle = shapes["population"].to_numpy()
    for number, axis in zip(grids, panels[1:], strict=False):
        target = shapes["mean"].to_numpy()[number]
        name = as_label(shapes["group"].to_numpy()[number])
        _draw_change(axis, middle, target, colour[number], name)
    for number, axis in zip(own, panels[1 + len(grids) :], strict=False):
        _draw_mode(axis, middle, modes.isel(mode=number, group=-1))
    for axis in panels:
        axis.set_axis_off()
        axis.set_aspect("equal")
    return figure


def _draw_means(axis: Any, shapes: xr.Dataset, prob: NDArray, colour: NDArray) -> None:
    every = shapes["individuals"].to_numpy()
    mixed = np.clip(prob @ colour, 0, 1)
    axis.scatter(
        *every.reshape(-1, every.shape[-1]).T,
        c=np.repeat(mixed, every.shape[1], axis=0),
        s=5,
        alpha=0.45,
        lw=0,
    )
    for number, mean in enumerate(shapes["mean"].to_numpy()):
        name = as_label(shapes["group"].to_numpy()[number])
        axis.scatter(*mean.T, color=colour[number], s=26, edgecolor=INK, lw=0.6, label=name)
    for number, place in enumerate(shapes["population"].to_numpy()):
        axis.text(*(1.12 * place), str(number), color=MUTED, fontsize=7, ha="center", va="center")
    axis.set_title("individuals and means", fontsize=9)
    if shapes.sizes["group"] > 1:
        axis.legend(
            frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, 0.02), ncols=2
        )


def _draw_change(axis: Any, start: NDArray, end: NDArray, colour: Any, name: str) -> None:
    """Deformation of one shape to another, magnified."""
    factor = _magnification(end - start)
    end = start + factor * (end - start)
    if start.shape[1] == 2:
        for line in _grid(start, end):
            axis.plot(*line.T, color=FAINT, lw=0.6, zorder=1)
    else:
        axis.scatter(*start.T, color=FAINT, s=8)
        axis.quiver(*start.T, *(end - start).T, color=colour, lw=1.0)
    axis.scatter(*end.T, color=colour, s=22, edgecolor=INK, lw=0.6, zorder=3)
    axis.set_title(f"{name} from the population, × {factor:g}", fontsize=9)


def _draw_mode(axis: Any, middle: NDArray, mode: xr.Dataset) -> None:
    low, high = mode["shape"].to_numpy()[[0, -1]]
    factor = _magnification((high - low) / 2)
    low, high = (middle + factor * (one - middle) for one in (low, high))
    axis.scatter(*middle.T, color=MUTED, s=14)
    for one, style in ((low, "#0072b2"), (high, "#d55e00")):
        for first, last in zip(middle, one, strict=True):
            axis.plot(*np.stack([first, last]).T, color=style, lw=1.3)
        axis.scatter(*one.T, color=style, s=14)
    step = float(np.abs(mode["step"]).max())
    title = f"mode {int(mode['mode']) + 1}, {100 * float(mode['share']):.0f} %, ± {step:g} sd"
    axis.set_title(title if factor == 1 else f"{title}, × {factor:g}", fontsize=9)


def _magnification(change: NDArray) -> float:
    """Factor, a round number of at least one, by which displacements are seen."""
    largest = float(np.linalg.norm(change, axis=-1).max(initial=0.0))
    return max(1.0, float(np.floor(_SEEN / largest))) if largest > 1e-6 else 1.0


def _grid(start: NDArray, end: NDArray) -> list[NDArray]:
    """Lines of a square grid about a shape, moved by the thin-plate spline between two shapes."""
    spline = RBFInterpolator(start, end, kernel="thin_plate_spline", degree=1)
    low, high = start.min(axis=0), start.max(axis=0)
    pad = 0.12 * (high - low).max()
    low, high = low - pad, high + pad
    spacing = (high - low).max() / (_LINES - 1)
    x, y = (np.arange(a, b + spacing / 2, spacing) for a, b in zip(low, high, strict=True))
    fine = [np.linspace(one[0], one[-1], 80) for one in (x, y)]
    along = [np.stack([fine[0], np.full(80, place)], axis=1) for place in y]
    across = [np.stack([np.full(80, place), fine[1]], axis=1) for place in x]
    return [spline(line) for line in (*along, *across)]
