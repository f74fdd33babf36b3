"""Pictures of the course of a run: the climb from every start, and the draws of every chain."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..fitted import Fitted
from ..sites import TRUSTED_MATCH, entry_names, site_of
from ..symmetry.invariants import invariants
from .colours import CHAINS, FAINT, MOST_SHAPES, MUTED, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_objective", "plot_traces"]

_MOST_TRACES = 5
"""Number of parameters whose traces are drawn, where nothing has a label."""


def plot_objective(fit: Fitted) -> Figure:
    """Log joint density by step, one line per start; the best one stands out.

    Parameters
    ----------
    fit : Fit
        By an engine that climbs.

    Raises
    ------
    ValueError
        If the engine recorded no objective.
    """
    history = np.asarray(fit.objective, float)
    if not np.isfinite(history).any():
        raise ValueError(f"{fit.engine} recorded no objective; draw plot_traces instead")
    last = np.where(np.isfinite(history), np.arange(history.shape[1]), -1).max(axis=1)
    final = np.where(last >= 0, history[np.arange(len(history)), last], -np.inf)
    best = int(final.argmax())
    figure, axis = new_figure(6.4, 2.7)
    for number, row in enumerate(history):
        colour, width, size = (CHAINS[0], 2.2, 5) if number == best else (FAINT, 0.9, 3.5)
        order = 4 if number == best else 2
        axis.plot(row, color=colour, lw=width, zorder=order)
        axis.plot(last[number], final[number], "o", color=colour, ms=size, zorder=order)
    finite = final[np.isfinite(final)]
    low = min(finite.min(), np.nanpercentile(history[best], 20))
    margin = 0.06 * (finite.max() - low) + 1e-6
    axis.set(ylim=(low - margin, finite.max() + margin))
    axis.set(xlabel="step", ylabel="log joint density")
    same = int(np.sum(finite > finite.max() - 0.01))
    axis.set_title(
        f"{same} of {len(history)} starts came within 0.01 of the best", fontsize=9, loc="left"
    )
    return figure


def plot_traces(fit: Fitted) -> Figure:
    """Trace and rank plots, one colour per chain.

    Label-invariant functionals first; then, where clusters can be matched across draws, the
    relabelled weights. Of models without labels the first five parameters are shown. Chains that
    agree have flat rank plots, near the dotted line.

    Parameters
    ----------
    fit : Fit
        By a sampler.

    Raises
    ------
    ValueError
        If there is a single draw.
    """
    if fit.tree["posterior"].sizes["draw"] < 2:
        raise ValueError(f"{fit.engine} made a single draw; draw plot_objective instead")
    data = invariants(fit.tree)
    columns = {"log density": data["lp"]}
    if "entropy" in data:
        columns["label entropy"] = data["entropy"]
    rate, weight = (site_of(fit.tree, role) for role in ("reliability", "mixing_weights"))
    if rate is not None:
        columns["flip rate"] = data[rate].mean(set(data[rate].dims) - {"chain", "draw"})
    if "sorted_weights" in data:
        columns["largest weight"] = data["sorted_weights"][..., 0]
    tree, score = fit.relabelled
    if score >= TRUSTED_MATCH and weight is not None:
        columns["weight 0,\nrelabelled"] = tree["posterior"].data_vars[weight][..., 0]
    if not fit.has_labels:
        columns |= dict(islice(_entries(data.drop_vars("lp")), _MOST_TRACES))
    figure, axes = new_figure(
        10.6,
        1.55 * len(columns) + 0.5,
        nrows=len(columns),
        ncols=2,
        squeeze=False,
        sharex="col",
        width_ratios=(1.7, 1),
    )
    for (name, series), (left, right) in zip(columns.items(), axes, strict=True):
        values = series.to_numpy()
        num_bins = int(np.clip(values.shape[1] // 10, 5, 20))
        ranks = values.ravel().argsort().argsort().reshape(values.shape) / values.size
        edges = np.linspace(0, 1, num_bins + 1)
        for chain, row in enumerate(values):
            colour = CHAINS[chain % len(CHAINS)]
            many = values.size > 10 * MOST_SHAPES  # a vertex takes less than a point
            left.plot(series["draw"], row, lw=0.7, color=colour, rasterized=many)
            counts = np.histogram(ranks[chain], edges)[0]
            right.stairs(counts, edges, color=colour, lw=1.5, baseline=None)
        right.axhline(values.shape[1] / num_bins, color=MUTED, lw=1, ls=":")
        right.set(yticks=[], ylim=(0, None))
        left.set_ylabel(name)
        left.margins(x=0.01)
    axes[-1, 0].set_xlabel("draw")
    axes[-1, 1].set_xlabel("relative rank among all chains")
    return figure


def _entries(data: xr.Dataset) -> Iterator[tuple[str, xr.DataArray]]:
    """Return every number of a data set of draws, by its name."""
    for name, site in data.data_vars.items():
        labels = entry_names(str(name), site, site.dims[2:])
        values = site.to_numpy().reshape(*site.shape[:2], -1)
        for number, label in enumerate(labels):
            yield label, site.isel(dict.fromkeys(site.dims[2:], 0)).copy(data=values[..., number])
