"""Parts of the report about one fit: its finding, its picture, its details."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from ..fitted import AskedFit, Fitted
from ..sites import labelled_table, site_of
from ..trust.estimates import estimate_tables, interval, number
from ..trust.facts import facts_of
from ..trust.findings import finding, wrong_links
from . import plots, run_plots
from .drawings import as_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CAPTIONS", "Part", "part_of"]

_HEADINGS = {
    "clusters": "Data, links and soft assignments",
    "curves": "Curves of the clusters",
    "features": "Saliencies of the features, and the number of clusters",
    "map": "Positions of the points",
    "shapes": "Shapes of the groups, and how they vary",
    "sphere": "Directions, links and soft assignments",
    "subjects": "Measurements, with bands of what the model predicts",
}
"""Headings for each kind of picture; see `Fit.picture`."""
CAPTIONS = {
    "clusters": "Each point mixes the colours of its clusters by responsibility. Crosses are cluster "
    "means, ellipses hold 90 % of a cluster.",
    "curves": "Lines are the curves of the clusters, bands their uncertainty. Each row takes the colour "
    "of its cluster.",
    "features": "A bar is the probability that a value of the feature says something about its cluster. "
    "Lines, where there are draws, are 95 % intervals.",
    "map": "Points are at their posterior means, ellipses hold 90 % of a position. Solid lines are links "
    "that say near, dashed ones links that say far.",
    "shapes": "Landmarks of individuals and group means; landmarks in one colour correspond; the population "
    "deformed to each group, magnified as the title says, with a band that holds 90 % where there is an "
    "outline; where the two groups that are farthest apart differ; and the leading modes of all shapes, "
    "with steps in both directions. A landmark that is hollow, or small and without a rim, does not "
    "differ with a credibility of 90 %.",
    "sphere": "Each point mixes the colours of its clusters by responsibility. Crosses are mean directions, "
    "curves hold 90 % of a cluster.",
    "subjects": "The grey band holds 90 % of what is predicted for new subjects. The coloured bands are for "
    "single subjects, given all data.",
    "coclustering": "Sharp blocks are clusters that the fit is sure of; a blurred edge means points between "
    "two clusters.",
    "parameters": "Thin lines reach one standard deviation within the cluster. Thick bars, where there "
    "are draws, are 89 % intervals.",
    "objective": "One line per start. If only one start reaches the best value, add starts.",
    "traces": "Chains that agree overlap on the left and stay near the dotted line on the right.",
}
_COLUMNS = {"estimate": "estimate", "standard_error": "standard error"}
_MOST_SUSPECTS = 10
_PIXELS, _TIGHTER, _LARGER = 92, 0.82, 1.4
"""Pixels per inch; the scale of narrow pictures, so that their text is legible on a telephone too; and the
factor by which a picture may grow."""


class Part(NamedTuple):
    """The parts of the page on one fit.

    Attributes
    ----------
    finding : str
        One sentence, as plain text.
    picture : str
        HTML of the main picture; empty where the model has none.
    details : str
        HTML of tables and of the other pictures.
    """

    finding: str
    picture: str
    details: str


def part_of(fit: AskedFit, name: str) -> Part:
    """Compute and draw all parts of the page on one fit.

    Parameters
    ----------
    fit : Fit
    name : str
        Name of the fit on the page.
    """
    picture = ""
    if fit.picture is not None:
        heading = escape(name) if name else _HEADINGS[fit.picture]
        picture = _figure(
            fit.picture,
            heading,
            lambda fit: fit.plot(),
            fit,
            wide=fit.picture in ("subjects", "shapes", "sphere"),
        )
    wrong = wrong_links(fit)
    facts = "".join(
        f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>"
        for key, value in facts_of(fit).items()
    )
    tables = estimate_tables(fit)
    estimates = "".join(_estimates(title, table) for title, table in tables.items())
    details = (
        f"<dl class='facts'>{facts}</dl>"
        f"<div class='tables'>{estimates}{_suspects(wrong)}</div>"
        f"<div class='grid'>{''.join(_figures(fit))}</div>"
    )
    return Part(finding(fit, wrong, tables), picture, details)


def _figures(fit: AskedFit) -> list[str]:
    figures = []
    if fit.has_labels:
        heading = "Who shares a cluster"
        figures.append(_figure("coclustering", heading, plots.plot_coclustering, fit))
    if fit.picture in ("clusters", "features") and _in_space_of_data(fit):
        figures.append(_figure("parameters", "Parameters", plots.plot_parameters, fit))
    if fit.tree["posterior"].sizes["draw"] > 1:
        heading = "Traces and ranks, independent of cluster numbering first"
        figures.append(_figure("traces", heading, run_plots.plot_traces, fit, wide=True))
    elif np.isfinite(fit.objective).any():
        figures.append(_figure("objective", "Objective by start", run_plots.plot_objective, fit))
    return figures


def _in_space_of_data(fit: Fitted) -> bool:
    """Return whether locations of components are points in the space of the table with labels."""
    where = site_of(fit.tree, "location")
    if where is None:
        return False
    return fit.tree["posterior"][where].shape[-1] == labelled_table(fit.tree).shape[1]


def _figure(
    kind: str,
    heading: str,
    draw: Callable[[AskedFit], Figure],
    fit: AskedFit,
    *,
    wide: bool = False,
) -> str:
    figure = draw(fit)
    if not wide:
        figure.set_size_inches(*(_TIGHTER * figure.get_size_inches()))
    width, height = (round(_PIXELS * inches) for inches in figure.get_size_inches())
    size = f"width='{width}' height='{height}' style='max-width:{_LARGER * width:.0f}px'"
    return (
        f"<figure{' class=wide' if wide else ''}><figcaption>{heading}</figcaption>"
        f"<div class='scroll'><img alt='{CAPTIONS[kind]}' {size} src='{as_image(figure)}'></div>"
        f"<p>{CAPTIONS[kind]}</p></figure>"
    )


def _estimates(title: str, table: pd.DataFrame) -> str:
    known = [column for column in _COLUMNS if column in table]
    head = "".join(f"<th>{_COLUMNS[column]}</th>" for column in known)
    head += "<th>95 % interval</th>" if "lower" in table else ""
    rows = []
    for name, row in table.iterrows():
        error = row.get("standard_error", np.nan)
        cells = "".join(f"<td>{number(row[column], error)}</td>" for column in known)
        cells += f"<td>{interval(row)}</td>" if "lower" in table else ""
        rows.append(f"<tr><th>{escape(str(name))}</th>{cells}</tr>")
    return _table(title, head, rows)


def _suspects(wrong: pd.DataFrame | None) -> str:
    """Return a table of the links that are probably wrong."""
    if wrong is None or wrong.empty:
        return ""
    shown = wrong.head(_MOST_SUSPECTS)
    rows = [
        f"<tr><th>{i} – {j}</th><td>{'must' if sign > 0 else 'cannot'}-link</td>"
        f"<td>{probability:.3f}</td></tr>"
        for i, j, sign, probability in shown[["i", "j", "sign", "probability"]].to_numpy(object)
    ]
    more = len(wrong) - len(rows)
    title = "Links that are probably wrong" + (f", and {more} more" if more else "")
    return _table(title, "<th>kind</th><th>probability</th>", rows)


def _table(title: str, head: str, rows: list[str]) -> str:
    return (
        f"<table class='estimates'><caption>{title}</caption><thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
