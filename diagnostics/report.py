"""One self-contained HTML page about one or more fits."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from sidebayes.models.blocks.files import check_writable, write_whole

from . import plots
from .compare import Comparison, compare_fits
from .doubts import doubts
from .facts import BADGES, facts_of
from .sites import labelled_table, site_of

__all__ = ["render_report", "write_report"]

_READING = {
    "ari": "ARI, NMI and accuracy are against the known classes, which no fit has seen.",
    "log_joint": "Log joint densities compare within one engine, method and data set only.",
    "elpd_loo": "LOO leaves out one connected component of the links at a time.",
    "rhat": "R-hat and ESS are the worst over functionals that do not depend on how clusters are "
    "numbered.",
    "distance": "Distance is the mean difference in the probability that two points share a "
    "cluster, to the reference: the sampler that sees most of the same model and data.",
    "shift": "Shift is the largest distance of posteriors from that reference's, in standard "
    "deviations of the functional named beside it.",
    "violated": "Violated counts links that the labels contradict; unreliable links should be.",
}
_HEADINGS = {
    "clusters": "Data, links and soft assignments",
    "curves": "Curves of the clusters",
    "subjects": "Measurements, with bands of what the model foresees",
}
"""By what a fit draws; see `Fit.picture`."""
_CAPTIONS = {
    "clusters": "Points take the mixed colours of their clusters, by responsibility; crosses and "
    "ellipses are means and 90 % regions.",
    "curves": "Lines and bands are the curves of the clusters and what is not known of them; rows take the "
    "colours of their clusters.",
    "subjects": "The grey band holds 90 % of what is foreseen for subjects of whom nothing is known. The "
    "others are for what may be measured of single subjects, given all data.",
    "coclustering": "Sharp blocks are certain clusters; smeared ones are points between two.",
    "parameters": "Thin lines: one standard deviation within the cluster. Thick bars, where there "
    "are draws: 89 % intervals.",
    "objective": "One line a start; where only one reaches the best value, add starts.",
    "traces": "Chains that agree overlap on the left and stay near the dotted line on the right.",
}


def write_report(
    fits: Mapping[str, Any],
    path: str | Path,
    *,
    title: str = "sidebayes report",
    notes: Mapping[str, str] | None = None,
    executor: Executor | None = None,
) -> Path:
    """Write `render_report` to a file.

    Parameters
    ----------
    fits : mapping of str to Fit
    path : path
    title : str
    notes : mapping of str to str, optional
        Fits that were refused, with the reason.
    executor : concurrent.futures.Executor, optional
        Draws the pictures of different fits at the same time, in processes.

    Returns
    -------
    Path
        The file written; it needs no other file and no network.

    Raises
    ------
    ValueError
        If there is no fit, or nothing can be written to `path`.
    OSError
        If the disk is full, fails, or refuses; what was there is as before.
    """
    path = check_writable(path)
    page = render_report(fits, title=title, notes=notes, executor=executor)
    return write_whole(path, page.encode())


def render_report(
    fits: Mapping[str, Any],
    *,
    title: str = "sidebayes report",
    notes: Mapping[str, str] | None = None,
    executor: Executor | None = None,
) -> str:
    """Page of verdicts, comparison table and pictures of every fit, as HTML.

    Parameters
    ----------
    fits : mapping of str to Fit
    title : str
    notes : mapping of str to str, optional
        Fits that were refused, with the reason.
    executor : concurrent.futures.Executor, optional
        Draws the pictures of different fits at the same time, in processes.

    Raises
    ------
    ValueError
        If there is no fit.
    """
    if not fits:
        raise ValueError("fits is empty; a report needs at least one, {name: fit}")
    verdicts = {name: fit.verdict for name, fit in fits.items()}
    each = executor.map if executor else map
    doubted = doubts(fits)
    doubt = (doubted.get(name, "") for name in fits)
    sections = each(_section, range(len(fits)), fits, fits.values(), doubt)
    comparison = compare_fits(fits)
    template = Template(files(__package__).joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title),
        subtitle=escape(_subtitle(fits)),
        verdicts="".join(
            f"<li><i class='dot {level}'></i><a href='#fit{n}'>{escape(name)}</a>"
            f"<span>{escape(doubted.get(name, sentence))}</span></li>"
            for n, (name, (level, sentence)) in enumerate(verdicts.items())
        ),
        notes="".join(
            f"<p class='refused'><b>{escape(name)}</b> was refused: {escape(why)}</p>"
            for name, why in (notes or {}).items()
        ),
        table=comparison.html(),
        reading=escape(_reading(comparison)),
        sections="".join(sections),
        versions=escape(_versions(fits)),
    )


def _subtitle(fits: Mapping[str, Any]) -> str:
    tables = (
        values
        for fit in fits.values()
        for name, values in fit.tree["observed_data"].data_vars.items()
        if name != "truth"
    )
    shapes = dict.fromkeys(tuple(zip(values.shape, values.dims, strict=True)) for values in tables)
    sizes = ", ".join(" × ".join(f"{size} {dim}" for size, dim in shape) for shape in shapes)
    made = max(fit.tree["posterior"].attrs.get("created_at", "")[:10] for fit in fits.values())
    count = f"{len(fits)} fit{'s' if len(fits) > 1 else ''}"
    return " · ".join(part for part in (count, sizes, made) if part)


def _reading(comparison: Comparison) -> str:
    return " ".join(text for name, text in _READING.items() if name in comparison.frame)


def _versions(fits: Mapping[str, Any]) -> str:
    tree = next(iter(fits.values())).tree
    versions = json.loads(tree["fit_info"].attrs.get("versions", "{}"))
    own = {"sidebayes": tree.attrs.get("sidebayes_version", "")} | versions
    return " · ".join(f"{name} {number}" for name, number in own.items() if number)


def _section(number: int, name: str, fit: Any, doubt: str) -> str:
    level, sentence = fit.verdict
    facts = "".join(
        f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>"
        for key, value in facts_of(fit).items()
    )
    return (
        f"<section id='fit{number}'><div class='title'><h2>{escape(name)}</h2>"
        f"<span class='badge {level}'>{BADGES[level]}</span></div>"
        f"<p class='sentence'>{escape(sentence)}</p>"
        f"{f'<p class=doubt>{escape(doubt)}</p>' if doubt else ''}<dl class='facts'>{facts}</dl>"
        f"<div class='grid'>{''.join(_figures(fit))}</div></section>"
    )


def _figures(fit: Any) -> list[str]:
    figures, picture = [], fit.picture
    if picture is not None:
        wide = picture == "subjects"
        figures.append(_figure(picture, _HEADINGS[picture], lambda fit: fit.plot(), fit, wide=wide))
    if fit.has_labels:
        heading = "Who shares a cluster"
        figures.append(_figure("coclustering", heading, plots.plot_coclustering, fit))
    if picture == "clusters" and _in_space_of_data(fit):
        figures.append(_figure("parameters", "Parameters", plots.plot_parameters, fit))
    if fit.tree["posterior"].sizes["draw"] > 1:
        heading = "Traces and ranks, independent of cluster numbering first"
        figures.append(_figure("traces", heading, plots.plot_traces, fit, wide=True))
    elif np.isfinite(fit.objective).any():
        figures.append(_figure("objective", "Objective by start", plots.plot_objective, fit))
    return figures


def _in_space_of_data(fit: Any) -> bool:
    """Whether locations of components are points of the table that has the labels."""
    where = site_of(fit.tree, "location")
    if where is None:
        return False
    return fit.tree["posterior"][where].shape[-1] == labelled_table(fit.tree).shape[1]


def _figure(
    kind: str, heading: str, draw: Callable[[Any], Any], fit: Any, *, wide: bool = False
) -> str:
    buffer = io.BytesIO()
    figure = draw(fit)
    figure.savefig(buffer, format="png", dpi=120, pil_kwargs={"compress_level": 1})
    width = int(figure.get_figwidth() * 92)
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f"<figure{' class=wide' if wide else ''}><figcaption>{heading}</figcaption>"
        f"<img alt='{heading}' width='{width}' src='data:image/png;base64,{data}'>"
        f"<p>{_CAPTIONS[kind]}</p></figure>"
    )
