"""Pictures of long tables: predictions for all subjects, and for single ones."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sidebayes.models.blocks.side_information.groups import Groups

from sidebayes.common.arrays import real_array
from sidebayes.common.warnings import SideBayesWarning

from ..fitted import AskedFit, Fitted
from .colours import CHAINS, INK, MUTED, as_label, cluster_colours, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["has_subjects", "plot_subjects"]

_MOST_SUBJECTS = 300
_MOST_BINS = 15
_LEVELS = (0.05, 0.5, 0.95)


class _Series(NamedTuple):
    """Measurements of subjects, and the model's predictions.

    Attributes
    ----------
    along : ndarray, shape (num_rows,)
        Horizontal positions of measurements, such as times.
    name : str
        Name of the horizontal axis.
    y : ndarray, shape (num_rows,)
        NaN where nothing was measured.
    outcome : str
    groups : Groups
    colours : list, one colour per subject
    anew : ndarray, shape (num_draws, num_rows)
        Predicted measurements of other subjects, without data, with the same design.
    own : ndarray, shape (3, num_rows)
        Quantiles of predicted measurements of these subjects themselves.
    """

    along: NDArray
    name: str
    y: NDArray
    outcome: str
    groups: Groups
    colours: list
    anew: NDArray
    own: NDArray


def has_subjects(fit: Fitted) -> bool:
    """Return whether a fit is of a long table: rows of groups, whose effects are integrated out."""
    effects = "latents" in fit.tree and "effects" in fit.tree["latents"]
    return effects and any(isinstance(v, Groups) for v in fit.run.data.values())


def plot_subjects(
    fit: AskedFit, along: ArrayLike | None = None, *, most: int = 6, seed: int = 0
) -> Figure:
    """Measurements of all subjects, and of some with the band predicted for each.

    The grey band at the left holds 90 % of what the model predicts for subjects without any
    measurements, in bins of the horizontal axis; its line is the median. They have the design of
    those fitted, and where times to an event were fitted they are shown past their events. The
    bands at the right are for the measurements of single subjects, given all data. Subjects take
    the colours of their classes where the model has classes. Where times to an event were fitted,
    a third panel has the survival curves of the same subjects from the origin on, given their
    measurements. With several outputs, each has a row of panels.

    Parameters
    ----------
    fit : Fit
        A fit of a long table.
    along : array_like, shape (num_rows,), optional
        Horizontal axis, such as times. By default the first column of the design that varies within
        subjects, which is no time where the columns are splines.
    most : int
        Number of single subjects shown, spread evenly over classes and numbers of rows.
    seed : int
        Seed of the draws.

    Raises
    ------
    ValueError
        If the fit is of no long table, or nothing in its design varies within subjects.
    """
    if not has_subjects(fit):
        raise ValueError(f"{fit.method} was not fitted to rows of subjects; draw fit.plot()")
    series = _predict(fit, along, seed)
    facets = _outputs(fit, len(series.y))
    event = fit.event_times
    columns, rows = 2 if event is None else 3, len(facets)
    figure, axes = new_figure(
        5.2 * columns, 3.6 * rows + 0.4, nrows=rows, ncols=columns, squeeze=False
    )
    some = _spread(fit, series.groups, most)
    for row, (name, chosen) in enumerate(facets.items()):
        _draw_all(axes[row, 0], series, chosen)
        _draw_some(axes[row, 1], series, chosen, some)
        axes[row, 1].sharey(axes[row, 0])
        for axis in axes[row, :2]:
            axis.set(xlabel=series.name)
        axes[row, 0].set(ylabel=as_label(name or series.outcome))
    axes[0, 0].set_title("all subjects, with what new ones would do (median, 90 %)", fontsize=9)
    axes[0, 1].set_title("single subjects, with their 90 % bands", fontsize=9)
    if event is not None:
        _draw_survival(axes[0, 2], fit, event, some)
        for axis in axes[1:, 2]:
            axis.remove()
    return figure


def _predict(fit: AskedFit, along: ArrayLike | None, seed: int) -> _Series:
    groups = next(v for v in fit.run.data.values() if isinstance(v, Groups))
    size = len(groups)
    like = fit.predictive(seed=seed)
    design = {
        name: value
        for name, value in fit.run.data.items()
        if isinstance(value, Groups)
        or (isinstance(value, np.ndarray) and name in like["constant_data"])
    }
    others = {
        name: _renamed(value) if isinstance(value, Groups) else value
        for name, value in design.items()
    }
    sites = like["posterior_predictive"].data_vars.items()
    site = next((str(n) for n, v in sites if v.shape[2:] == (size,)), None)
    if site is None:
        raise ValueError(f"{fit.method} has no outcome with one number per row to draw")
    anew, own = (fit.predictive(**given, seed=seed)["predictions"] for given in (others, design))
    where, name = _axis_of(fit, along, design, groups)
    return _Series(
        where,
        name,
        like["observed_data"][site].to_numpy(),
        site,
        groups,
        _colours(fit, groups),
        anew[site].to_numpy().reshape(-1, size),
        np.quantile(own[site], _LEVELS, axis=(0, 1)),
    )


def _renamed(groups: Groups) -> Groups:
    """The same rows, of groups in the same order whose names are none of these."""
    codes, names = np.asarray(groups.codes), groups.names
    if names.dtype.kind in "fiu":
        return Groups(np.where(codes < 0, -1, codes + max(int(names.max()), 0) + 1))
    width = 20 + max(len(str(name)) for name in names)  # longer than any of them
    return Groups(np.array([None if code < 0 else f"{code:0{width}d}" for code in codes], object))


def _axis_of(
    fit: Fitted, along: ArrayLike | None, design: dict[str, Any], groups: Groups
) -> tuple[NDArray, str]:
    if along is not None:
        where = real_array("along", along)
        if where.shape != (len(groups),) or not np.isfinite(where).all():
            raise ValueError(
                f"along has shape {where.shape}; expected ({len(groups)},), a finite number per row"
            )
        return where, as_label(getattr(along, "name", None) or "along")
    for table, values in design.items():
        if isinstance(values, Groups) or values.ndim != 2 or len(values) != len(groups):
            continue
        low = np.full((groups.num_groups, values.shape[1]), np.inf)
        high = -low
        np.minimum.at(low, groups.codes, values)
        np.maximum.at(high, groups.codes, values)
        varying = np.flatnonzero((high > low).any(axis=0))
        if len(varying):
            column = int(varying[0])
            names = fit.run.columns.get(table, [f"{table}[{k}]" for k in range(values.shape[1])])
            return values[:, column], as_label(names[column])
    raise ValueError(
        f"no column of {sorted(design)} varies within subjects; pass along=, such as times of the rows"
    )


def _colours(fit: AskedFit, groups: Groups) -> list:
    if fit.has_labels and len(fit.labels()) == groups.num_groups:
        return list(cluster_colours(fit.responsibilities().shape[1])[fit.labels()])
    return [MUTED] * groups.num_groups


def _outputs(fit: Fitted, size: int) -> dict[str, NDArray]:
    """Return the rows of each output, by its name."""
    roles = fit.run.signature.of_kind("table")
    table = next((r.name for r in roles if r.dims[1:] == ("outputs",)), None)
    indicators = None if table is None else fit.run.data.get(table)
    if table is None or indicators is None:
        return {"": np.ones(size, bool)}
    names = fit.run.columns.get(table) or [f"output {k}" for k in range(indicators.shape[1])]
    return dict(zip(names, np.asarray(indicators).T > 0, strict=True))


def _spread(fit: AskedFit, groups: Groups, most: int) -> NDArray[np.int64]:
    """Select subjects evenly over classes, and over numbers of rows within these."""
    count = np.bincount(groups.codes, minlength=groups.num_groups)
    labels = fit.labels() if fit.has_labels else np.zeros(groups.num_groups, int)
    order = np.lexsort((-count, labels if len(labels) == len(count) else np.zeros(len(count))))
    # the middle of equal shares of the order, so that no class is left out at its ends
    number = min(most, len(order))
    return order[((np.arange(number) + 0.5) * len(order) / number).astype(int)]


def _draw_all(axis: Axes, series: _Series, chosen: NDArray) -> None:
    groups = series.groups
    seen = chosen & ~np.isnan(series.y)
    shown = np.linspace(0, groups.num_groups - 1, min(_MOST_SUBJECTS, groups.num_groups))
    for subject in shown.astype(int):
        rows = _rows_of(series, subject, seen)
        axis.plot(
            series.along[rows],
            series.y[rows],
            color=series.colours[subject],
            lw=0.7,
            alpha=0.5,
            marker="." if len(rows) == 1 else None,
        )
    values = np.unique(series.along[chosen])
    if len(values) > _MOST_BINS:
        edges = np.quantile(series.along[chosen], np.linspace(0, 1, _MOST_BINS + 1))
        bins = np.searchsorted(edges[1:-1], series.along, side="right")
    else:
        bins = np.searchsorted(values, series.along)
    cells = [chosen & (bins == k) for k in np.unique(bins[chosen])]
    middle = [np.median(series.along[cell]) for cell in cells]
    band = np.stack([np.quantile(series.anew[:, cell], _LEVELS) for cell in cells], axis=1)
    axis.fill_between(middle, band[0], band[2], color=MUTED, alpha=0.25, lw=0)
    axis.plot(middle, band[1], color=INK, lw=1.6)


def _draw_some(axis: Axes, series: _Series, chosen: NDArray, some: NDArray) -> None:
    many = len(set(map(str, series.colours))) > 1
    for number, subject in enumerate(some):
        colour = series.colours[subject] if many else CHAINS[number % len(CHAINS)]
        rows = _rows_of(series, subject, chosen)
        if not len(rows):
            continue
        where = series.along[rows]
        low, middle, high = series.own[:, rows]
        if len(rows) == 1:
            axis.vlines(where, low, high, color=colour, lw=4, alpha=0.2)
        axis.fill_between(where, low, high, color=colour, alpha=0.18, lw=0)
        axis.plot(where, middle, color=colour, lw=1.2)
        name = as_label(series.groups.names[subject])
        axis.plot(where, series.y[rows], "o", color=colour, ms=4, label=name)
    axis.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_survival(axis: Axes, fit: AskedFit, event: str, some: NDArray) -> None:
    until = np.nanmax(fit.tree["observed_data"][event].to_numpy())
    grid = np.linspace(0, until, 61)
    with warnings.catch_warnings():  # on measures after the origin, which the title names
        warnings.simplefilter("ignore", SideBayesWarning)
        curves = fit.survival(grid, since=0.0).isel(subject=some)
    for number, name in enumerate(curves["subject"].to_numpy()):
        one, colour = curves.isel(subject=number), CHAINS[number % len(CHAINS)]
        axis.fill_between(grid, one["lower"], one["upper"], color=colour, alpha=0.18, lw=0)
        axis.plot(grid, one["mean"], color=colour, label=as_label(name))
    axis.set(xlabel=event, ylabel="probability", ylim=(0, 1.03))
    axis.set_title("no event until then, given all measurements, later ones too (90 %)", fontsize=9)


def _rows_of(series: _Series, subject: int, chosen: NDArray) -> NDArray[np.int64]:
    rows = np.flatnonzero(chosen & (series.groups.codes == subject))
    return rows[np.argsort(series.along[rows], kind="stable")]
