"""One self-contained HTML page about one or more fits."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from . import plots
from .compare import compare_fits

__all__ = ["write_report"]


def write_report(
    fits: Mapping[str, Any],
    path: str | Path,
    *,
    title: str = "sidebayes report",
    notes: Mapping[str, str] | None = None,
) -> Path:
    """Write a report: comparison table, then each fit's pictures and verdict.

    Parameters
    ----------
    fits : mapping of str to Fit
    path : path
    title : str
    notes : mapping of str to str, optional
        Fits that were refused, with the reason.

    Returns
    -------
    Path
        The file written; it needs no other file and no network.
    """
    template = Template(files(__package__).joinpath("report.html").read_text(encoding="utf-8"))
    page = template.substitute(
        title=html.escape(title),
        table=compare_fits(fits).html(),
        notes="".join(
            f"<p class='refused'><b>{html.escape(name)}</b> was refused: {html.escape(why)}</p>"
            for name, why in (notes or {}).items()
        ),
        contents="".join(
            f"<a href='#fit{n}'>{html.escape(name)}</a>" for n, name in enumerate(fits)
        ),
        sections="".join(_section(n, name, fit) for n, (name, fit) in enumerate(fits.items())),
    )
    path = Path(path)
    path.write_text(page, encoding="utf-8")
    return path


def _section(number: int, name: str, fit: Any) -> str:
    sampled = fit.tree["sample_stats"].sizes["draw"] > 1
    pictures = [
        ("Data, links and soft assignments", plots.plot_clusters(fit)),
        ("Who shares a cluster", plots.plot_coclustering(fit)),
    ]
    if "mean" in fit.tree["posterior"]:
        pictures.append(("Cluster means", plots.plot_parameters(fit)))
    if sampled:
        pictures.append(("Traces and ranks of label-invariant functionals", plots.plot_traces(fit)))
    elif fit.objective.size:
        pictures.append(("Objective by start", plots.plot_objective(fit)))
    verdict = "good" if fit.status.converged else "bad"
    approximate = (
        f"<p class='refused'>Labels are summed out approximately: {html.escape(fit.approximate)}.</p>"
        if fit.approximate
        else ""
    )
    score = (
        f"<p>Label matching score {fit.relabelled[1]:.3f} (one is perfect).</p>" if sampled else ""
    )
    figures = "".join(
        f"<figure><figcaption>{caption}</figcaption><img alt='{caption}' src='{_inline(figure)}'></figure>"
        for caption, figure in pictures
    )
    return (
        f"<section id='fit{number}'><h2>{html.escape(name)}</h2>"
        f"<p class='{verdict}'>{html.escape(fit.status.message)}.</p>{approximate}{score}"
        f"<div class='grid'>{figures}</div></section>"
    )


def _inline(figure: Any) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
