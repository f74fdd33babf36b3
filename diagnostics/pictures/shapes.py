"""Pictures of shapes: means, deformation grids, modes. Matplotlib is imported only when they are drawn."""

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
"""Maximum number of groups whose deformation is drawn."""
_MOST_MODES = 2
_SIDE = 2.9
"""Size of a panel in inches."""
_SEEN = 0.07
"""Share of the size of the picture to which the largest displacement is magnified."""
_LINES = 15
"""Number of lines of a grid along its longer side."""
_SURE = 0.9
"""Minimum credibility for a landmark to be drawn filled."""


def plot_shapes(
    shapes: xr.Dataset, modes: xr.Dataset, prob: NDArray, difference: xr.Dataset | None = None
) -> Figure:
    """Shapes of the groups: individuals about the means, what sets each group apart, and the leading modes.

    In the plane the deformation from the population to a group is drawn as a grid, by the
    thin-plate spline through the landmarks, or, if the landmarks are an outline, along it with a
    band; in space it is drawn as arrows. Displacements are magnified, by the factor in the title,
    so that the largest is easily seen. For latent shapes with draws, the most uncertain individual
    is drawn with its bands.

    Parameters
    ----------
    shapes : Dataset
        Of `Fit.shapes`.
    modes : Dataset
        Of `Fit.modes`; those of the population are drawn.
    prob : ndarray, shape (num_subjects, num_groups)
        Probabilities of the groups.
    difference : Dataset, optional
        Of `Fit.shape_difference`, between the two groups of which a map is drawn.
    """
    num_groups = shapes.sizes["group"]
    grids = range(min(num_groups, _MOST_GROUPS)) if num_groups > 1 else ()
    own = range(min(modes.sizes["mode"], _MOST_MODES))
    has_bands = "individuals_sd" in shapes
    number = 2 + has_bands + len(grids) + (difference is not None) + len(own)
    columns = min(number, 4 if number % 3 == 1 else 3)
    rows = -(-number // columns)
    solid = shapes.sizes["axis"] == 3
    options: dict[str, Any] = {"subplot_kw": {"projection": "3d"}} if solid else {}
    figure, axes = new_figure(
        _SIDE * columns, _SIDE * rows, nrows=rows, ncols=columns, squeeze=False, **options
    )
    panels = iter(axes.ravel())
    colour = cluster_colours(num_groups)
    _draw_means(next(panels), shapes, prob, colour)
    _draw_correspondence(next(panels), shapes)
    if has_bands:
        _draw_individual(next(panels), shapes, prob, colour)
    for number in grids:
        _draw_change(next(panels), shapes, number, colour[number])
    if difference is not None:
        _draw_difference(next(panels), shapes, difference)
    for number in own:
        _draw_mode(next(panels), shapes, modes.isel(mode=number, group=-1))
    for axis in axes.ravel():
        axis.set_axis_off()
        axis.set_aspect("equal")
    return figure


def _draw_means(axis: Any, shapes: xr.Dataset, prob: NDArray, colour: NDArray) -> None:
    """Draw individuals, coloured by group, about the means of the groups, and numbers of the landmarks."""
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
        _draw_outline(axis, mean, shapes.attrs["outline"], color=colour[number], lw=1.0)
    for number, place in enumerate(shapes["population"].to_numpy()):
        axis.text(*(1.12 * place), str(number), color=MUTED, fontsize=7, ha="center", va="center")
    axis.set_title("individuals and means", fontsize=9)
    if shapes.sizes["group"] > 1:
        axis.legend(
            frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, 0.02), ncols=2
        )


def _draw_correspondence(axis: Any, shapes: xr.Dataset) -> None:
    """Draw landmarks of all individuals, one colour per landmark, with lines to the population mean."""
    every, middle = shapes["individuals"].to_numpy(), shapes["population"].to_numpy()
    hues = _hues(len(middle))
    axis.scatter(
        *every.reshape(-1, every.shape[-1]).T,
        c=np.tile(hues, (len(every), 1)),
        s=6,
        lw=0,
        alpha=0.7,
    )
    for number, place in enumerate(middle):
        lines = np.stack([every[:, number], np.broadcast_to(place, every[:, number].shape)], axis=1)
        _draw_lines(axis, lines, colors=[hues[number]], linewidths=0.3, alpha=0.5)
    axis.set_title("which points correspond", fontsize=9)


def _draw_individual(axis: Any, shapes: xr.Dataset, prob: NDArray, colour: NDArray) -> None:
    """Draw the individual with the largest standard deviations, with magnified intervals along each axis."""
    worst = int(shapes["individuals_sd"].to_numpy().mean(axis=(1, 2)).argmax())
    one = shapes.isel(subject=worst)
    middle = one["individuals"].to_numpy()
    low, high = (one[f"individuals_{name}"].to_numpy() - middle for name in ("lower", "upper"))
    factor = _magnification(high - low)
    own = np.clip(prob[worst] @ colour, 0, 1)
    for along in np.eye(middle.shape[1]):
        ends = np.stack([middle + factor * along * low, middle + factor * along * high], axis=1)
        _draw_lines(axis, ends, colors=[own], linewidths=1.6, alpha=0.6)
    _draw_outline(axis, middle, shapes.attrs["outline"], color=FAINT, lw=1.0)
    axis.scatter(*middle.T, color=INK, s=5, zorder=3)
    name, given = as_label(one["subject"].item()), shapes.attrs["individuals"]
    share = f"{100 * shapes.attrs['probability']:g} % bands, × {factor:g}"
    axis.set_title(f"{name}, known least: {share}\n({given})", fontsize=9)


def _draw_change(axis: Any, shapes: xr.Dataset, number: int, colour: Any) -> None:
    """Draw the change from the population to a group, magnified; along an outline, with a band.

    Landmarks whose change is not credibly different from zero are hollow.
    """
    start, change = shapes["population"].to_numpy(), shapes["change"].to_numpy()[number]
    factor = _magnification(change)
    end = start + factor * change
    if "normal" in shapes:
        _draw_outline(axis, start, shapes.attrs["outline"], color=FAINT, lw=1.0, zorder=1)
        _draw_band(axis, shapes, number, factor, colour)
        _draw_outline(axis, end, shapes.attrs["outline"], color=colour, lw=1.2)
    elif start.shape[1] == 2:
        for line in _grid(start, end):
            axis.plot(*line.T, color=FAINT, lw=0.6, zorder=1)
    else:
        axis.scatter(*start.T, color=FAINT, s=8)
        axis.quiver(*start.T, *(end - start).T, color=colour, lw=1.0)
    sure = shapes["credibility"].to_numpy()[number]
    filled = ~(sure < _SURE)  # all landmarks where there are no draws
    size = 10 if "normal" in shapes else 22
    axis.scatter(*end[filled].T, color=colour, s=size, edgecolor=INK, lw=0.6, zorder=3)
    axis.scatter(*end[~filled].T, color="white", s=size, edgecolor=colour, lw=1.0, zorder=3)
    name = as_label(shapes["group"].to_numpy()[number])
    axis.set_title(f"{name} from the population, × {factor:g}", fontsize=9)


def _draw_difference(axis: Any, shapes: xr.Dataset, difference: xr.Dataset) -> None:
    """Draw where the means of two groups differ: landmarks are coloured by the length of their difference."""
    middle, moved = shapes["population"].to_numpy(), difference["mean"].to_numpy()
    length = difference["length"].to_numpy()
    factor = _magnification(moved)
    _draw_outline(axis, middle, shapes.attrs["outline"], color=FAINT, lw=1.0, zorder=1)
    if middle.shape[1] == 3:
        axis.quiver(*middle.T, *(factor * moved).T, color=MUTED, lw=0.8)
    else:
        lines = np.stack([middle, middle + factor * moved], axis=1)
        _draw_lines(axis, lines, colors=[MUTED], linewidths=0.9)
    filled = ~(difference["credibility"].to_numpy() < _SURE)
    given: dict[str, Any] = {
        "cmap": "viridis",
        "vmin": 0.0,
        "vmax": length.max() or 1.0,
        "zorder": 3,
    }
    drawn = axis.scatter(*middle.T, c=length, s=np.where(filled, 34, 12), lw=0.0, **given)
    axis.scatter(*middle[filled].T, s=34, facecolor="none", edgecolor=INK, lw=0.8, zorder=4)
    bar = axis.figure.colorbar(drawn, ax=axis, shrink=0.6, pad=0.02)
    bar.ax.tick_params(labelsize=7, colors=MUTED)
    bar.outline.set_visible(False)
    bar.set_label("length", fontsize=8, color=MUTED)
    first, second = (as_label(name) for name in difference.attrs["groups"])
    axis.set_title(f"{second} less {first}, × {factor:g}", fontsize=9)


def _hues(number: int) -> NDArray[np.float64]:
    """Return colours of landmarks in turn, as distinct as possible."""
    from matplotlib import colormaps

    found: NDArray[np.float64] = colormaps["hsv"](np.arange(number) / number) * [
        0.85,
        0.85,
        0.85,
        1.0,
    ]
    return found


def _draw_lines(axis: Any, lines: NDArray, **options: Any) -> None:
    """Draw line segments in the plane or in space, as one artist."""
    from matplotlib.collections import LineCollection
    from mpl_toolkits.mplot3d.art3d import Line3DCollection

    kind: Any = LineCollection if lines.shape[-1] == 2 else Line3DCollection
    axis.add_collection(kind(list(lines), **options))


def _draw_outline(axis: Any, points: NDArray, outline: str, **options: Any) -> None:
    """Draw a line through landmarks in order, if they are an outline."""
    if outline != "none":
        axis.plot(*_joined(points, outline).T, **options)


def _joined(points: NDArray, outline: str) -> NDArray:
    return np.concatenate([points, points[:1]]) if outline == "closed" else points


def _draw_band(axis: Any, shapes: xr.Dataset, number: int, factor: float, colour: Any) -> None:
    """Draw the magnified interval of the change across an outline, about the mean of the change."""
    start, normal = shapes["population"].to_numpy(), shapes["normal"].to_numpy()
    change = shapes["change"].to_numpy()[number]
    across = (change * normal).sum(axis=-1)
    edges = [
        start + factor * (change + (shapes[name].to_numpy()[number] - across)[:, None] * normal)
        for name in ("change_lower", "change_upper")
    ]
    if np.isfinite(edges).all():
        inner, outer = (_joined(edge, shapes.attrs["outline"]) for edge in edges)
        axis.fill(*np.concatenate([inner, outer[::-1]]).T, color=colour, alpha=0.3, lw=0, zorder=2)


def _draw_mode(axis: Any, shapes: xr.Dataset, mode: xr.Dataset) -> None:
    """Draw two shapes along a mode, magnified, on either side of the mean of the population."""
    middle = shapes["population"].to_numpy()
    low, high = mode["shape"].to_numpy()[[0, -1]]
    factor = _magnification((high - low) / 2)
    low, high = (middle + factor * (one - middle) for one in (low, high))
    axis.scatter(*middle.T, color=MUTED, s=14)
    for one, style in ((low, "#0072b2"), (high, "#d55e00")):
        _draw_lines(axis, np.stack([middle, one], axis=1), colors=[style], linewidths=1.3)
        _draw_outline(axis, one, shapes.attrs["outline"], color=style, lw=1.0)
        axis.scatter(*one.T, color=style, s=14)
    step = float(np.abs(mode["step"]).max())
    title = f"mode {int(mode['mode']) + 1}, {100 * float(mode['share']):.0f} %, ± {step:g} sd"
    axis.set_title(title if factor == 1 else f"{title}, × {factor:g}", fontsize=9)


def _magnification(change: NDArray) -> float:
    """Return the factor, a round number of at least one, by which displacements are magnified."""
    largest = float(np.linalg.norm(change, axis=-1).max(initial=0.0))
    return max(1.0, float(np.floor(_SEEN / largest))) if largest > 1e-6 else 1.0


def _grid(start: NDArray, end: NDArray) -> list[NDArray]:
    """Return the lines of a square grid about a shape, moved by the thin-plate spline between two shapes."""
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
