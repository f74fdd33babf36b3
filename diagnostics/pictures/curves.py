"""Pictures of curves that rows of data follow. Matplotlib is imported only when a picture is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .colours import MOST_SHAPES, as_label, cluster_colours, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_curves", "plot_curves"]

_MOST_ROWS = 5000

_LEAST = 0.02
"""Minimum share of the rows for a cluster's curve to be drawn."""


def draw_curves(
    axis: Axes,
    inputs: NDArray,
    y: NDArray,
    prob: NDArray,
    grid: NDArray,
    curves: pd.DataFrame,
    output: int | str = 0,
) -> None:
    """Draw rows in the mixed colours of their clusters, and the curves of these with their bands.

    Parameters
    ----------
    axis : matplotlib Axes
    inputs : ndarray, shape (num_rows,)
    y : ndarray, shape (num_rows,)
    prob : ndarray, shape (num_rows, num_clusters)
    grid : ndarray, shape (num_places,)
    curves : DataFrame
        Result of `Fit.curves` at the grid. Clusters with less than 2 % of the rows are left out.
    output : int or str
    """
    shown = np.linspace(0, len(y) - 1, min(len(y), _MOST_ROWS)).astype(int)
    order = np.argsort(-prob.mean(axis=0))  # the largest clusters get the most distinct colours
    colour = cluster_colours(prob.shape[1])[np.argsort(order)]
    axis.scatter(
        inputs[shown],
        y[shown],
        c=np.clip(prob[shown] @ colour, 0, 1),
        s=22 if len(shown) < 500 else 7,
        edgecolor="white",
        lw=0.4,
        zorder=3,
        rasterized=len(shown) > MOST_SHAPES,
    )
    for number in np.flatnonzero(prob.mean(axis=0) >= _LEAST):
        own = curves[(curves["cluster"] == number) & (curves["output"] == output)]
        axis.fill_between(grid, own["lower"], own["upper"], color=colour[number], alpha=0.22, lw=0)
        axis.plot(grid, own["mean"], color=colour[number], lw=1.8, zorder=2)


def plot_curves(
    inputs: NDArray, y: NDArray, prob: NDArray, grid: NDArray, curves: pd.DataFrame, label: Any
) -> Figure:
    """One panel for each output; parameters are those of `draw_curves`."""
    table = y.reshape(len(y), -1)
    figure, axes = new_figure(6.4, 0.6 + 3.2 * table.shape[1], nrows=table.shape[1], squeeze=False)
    outputs = curves["output"].unique()
    for number, (output, axis) in enumerate(zip(outputs, axes[:, 0], strict=True)):
        draw_curves(axis, inputs, table[:, number], prob, grid, curves, output)
        name = "y" if table.shape[1] == 1 else f"y[:, {number}]"
        axis.set(xlabel=label, ylabel=as_label(output) if isinstance(output, str) else name)
    return figure
