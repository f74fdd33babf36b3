"""One self-contained HTML page about one or more fits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from sidebayes.common.files import PAGE, check_writable, write_whole
from sidebayes.common.magnitudes import shown

from ..comparison.compare import Comparison, compare_fits, named_fits
from ..comparison.doubts import converged, doubts, is_sampler
from ..fitted import AskedFit, Fitted
from ..sites import link_kind, tables_of
from ..trust.facts import BADGES
from ..trust.findings import lead_of
from ..trust.modes import same_question
from .report_parts import CAPTIONS, Part, part_of

__all__ = ["render_report", "write_report"]

_READING = {
    "ari": "ARI, NMI and accuracy are against the known classes, by the classes of methods that learn some "
    "and by the clusters of others; rows whose class the fit was given do not count.",
    "log_joint": "Log joint densities compare within one engine, method and data set only.",
    "elpd_loo": "LOO leaves out one connected set at a time.",
    "rhat": "R-hat and ESS are the worst over functionals that do not depend on how clusters are "
    "numbered.",
    "distance": "Distance is the mean difference in the probability that two points share a "
    "cluster, to the reference: the sampler that sees most of the same model and data.",
    "shift": "Shift is the largest distance of posteriors from that reference's, in standard "
    "deviations of the functional named beside it.",
    "violated": "Violated counts links that the labels contradict; unreliable links should be.",
}
_LEVELS = {
    "good": "The run itself shows no fault: it ended, and its starts or chains agree. That does not make the "
    "model or the links right.",
    "caution": "The result can be used with caution, for the reason that stands beside it.",
    "bad": "The run failed its own checks.",
}
"""Meanings of the colours."""
_KINDS = {
    "Hard links": "are kept at any cost, even where they are wrong.",
    "Soft links": "are weighed against the data by the strength given to them.",
    "Learned links": "are soft, and how often they are wrong is estimated from the data.",
}
"""Explanations of the kinds of links."""
_MOST_PICTURES = 6


def write_report(
    fits: Mapping[str, AskedFit],
    path: str | Path,
    *,
    title: str = "sidebayes report",
    story: Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
    executor: Executor | None = None,
) -> Path:
    """Write `render_report` to a file.

    Parameters
    ----------
    fits : mapping of str to Fit
    path : path
    title : str
    story : sequence of str
        Sentences that the page begins with, in place of one about the fits.
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
    TypeError
        If `story` holds something else than sentences.
    ValueError
        If there is no fit, names of fits collide, nothing can be written to `path`, or its name ends
        like those of another kind of file, such as .pdf.
    OSError
        If the disk is full or fails; an existing file is then unchanged.
    """
    path = check_writable(path, PAGE)
    page = render_report(fits, title=title, story=story, notes=notes, executor=executor)
    return write_whole(path, page.encode())


def render_report(
    fits: Mapping[str, AskedFit],
    *,
    title: str = "sidebayes report",
    story: Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
    executor: Executor | None = None,
) -> str:
    """Page of findings, pictures, verdicts, a comparison and details of every fit, as HTML.

    Parameters
    ----------
    fits : mapping of str to Fit
    title : str
    story : sequence of str
        Sentences that the page begins with, in place of one about the fits.
    notes : mapping of str to str, optional
        Fits that were refused, with the reason.
    executor : concurrent.futures.Executor, optional
        Draws the pictures of different fits at the same time, in processes.

    Raises
    ------
    TypeError
        If `story` holds something else than sentences.
    ValueError
        If there is no fit, or names of fits collide.
    """
    if not fits:
        raise ValueError("fits is empty; a report needs at least one, {name: fit}")
    fits = named_fits(fits)
    names = {name: name if len(fits) > 1 else "" for name in fits}
    run = executor.map if executor else map
    drawn = run(part_of, fits.values(), names.values())
    comparison = compare_fits(fits)  # while other processes draw
    doubted = doubts(fits, comparison)
    parts = dict(zip(fits, drawn, strict=True))
    levels = {name: _level(fit, doubted.get(name)) for name, fit in fits.items()}
    trust = {name: _verdict(fit, doubted.get(name)) for name, fit in fits.items()}
    shown = _shown(fits, parts)
    found = {name: part.finding for name, part in parts.items()}
    template = Template(files(__package__).joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title),
        subtitle=escape(_subtitle(fits)),
        story=_story(story or [lead_of(fits, found)]),
        findings=_list(levels, found) if len(fits) > 1 else "",
        pictures=_pictures({n: kind for n in shown if (kind := fits[n].picture)}, parts)
        + _kinds(fits),
        meaning="".join(
            f"<div><dt><i class='dot {level}'></i>{BADGES[level]}</dt><dd>{text}</dd></div>"
            for level, text in _LEVELS.items()
        ),
        verdicts=_list(levels, trust),
        notes="".join(
            f"<p class='refused'><b>{escape(name)}</b> was refused: {escape(why)}</p>"
            for name, why in (notes or {}).items()
        ),
        table=comparison.html(),
        reading=escape(_reading(comparison)),
        sections="".join(
            _heading(number, name, levels[name])
            + f"<p class='sentence'>{escape(part.finding)}</p><p>{escape(trust[name])}</p>"
            + f"{'' if name in shown else part.picture}{part.details}</section>"
            for number, (name, part) in enumerate(parts.items())
        ),
        versions=escape(_versions(fits)),
    )


def _story(sentences: Sequence[str]) -> str:
    """Format the findings: the first sentence in large letters, the others as a list."""
    listed = isinstance(sentences, list | tuple)
    if not listed or not all(isinstance(one, str) for one in sentences):
        raise TypeError(f"story = {shown(sentences)}; expected sentences in a list")
    first, *rest = map(escape, sentences)
    others = "".join(f"<li>{sentence}</li>" for sentence in rest)
    return f"<p class='lead'>{first}</p>" + (f"<ul class='story'>{others}</ul>" if others else "")


def _level(fit: Fitted, doubt: str | None) -> str:
    """Return the level of the run's verdict; it is not simply good where other fits cast doubt on it."""
    level = fit.verdict[0]
    return "caution" if doubt and level == "good" else level


def _verdict(fit: Fitted, doubt: str | None) -> str:
    """Return the run's own verdict and any doubt about it; a doubt about chains covers both."""
    if doubt and is_sampler(fit) and not converged(fit):
        return doubt
    return " ".join(part for part in (fit.verdict[1], doubt) if part)


def _list(levels: Mapping[str, str], said: Mapping[str, str]) -> str:
    """Format one line per fit, with its colour and a link to its section."""
    lines = (
        f"<li><i class='dot {levels[name]}'></i><a href='#fit{number}'>{escape(name)}</a>"
        f"<span>{escape(text)}</span></li>"
        for number, (name, text) in enumerate(said.items())
    )
    return f"<ul class='lines'>{''.join(lines)}</ul>"


def _shown(fits: Mapping[str, AskedFit], parts: Mapping[str, Part]) -> list[str]:
    """Return the fits whose pictures come first: one for each model, data set and links."""
    first: dict[tuple, str] = {}
    for name, fit in fits.items():
        if parts[name].picture:
            first.setdefault(same_question(fit), name)
    return list(first.values())[:_MOST_PICTURES]


def _pictures(kinds: Mapping[str, str], parts: Mapping[str, Part]) -> str:
    """Format the pictures of some fits, given the kind of each."""
    figures = "".join(parts[name].picture for name in kinds)
    if len(kinds) < 2:
        return f"<h2>The picture</h2><div class='strip'>{figures}</div>" if kinds else ""
    captions = " ".join(CAPTIONS[kind] for kind in dict.fromkeys(kinds.values()))
    return (
        f"<h2>Pictures</h2><div class='strip many'>{figures}</div><p class='reading'>{captions}</p>"
    )


def _kinds(fits: Mapping[str, AskedFit]) -> str:
    """Return the legend of links, where any fit has links."""
    if not any(link_kind(fit.tree) for fit in fits.values()):
        return ""
    rows = "".join(f"<div><dt>{kind}</dt><dd>{text}</dd></div>" for kind, text in _KINDS.items())
    return f"<dl class='legend kinds'>{rows}</dl>"


def _subtitle(fits: Mapping[str, AskedFit]) -> str:
    tables = (
        next(
            values
            for name, values in tables_of(fit.tree, "observed_data").items()
            if name != "truth"
        )
        for fit in fits.values()
    )
    shapes = dict.fromkeys(tuple(zip(values.shape, values.dims, strict=True)) for values in tables)
    sizes = ", ".join(" × ".join(_axis(size, str(d)) for size, d in shape) for shape in shapes)
    made = max(fit.tree["posterior"].attrs.get("created_at", "")[:10] for fit in fits.values())
    count = f"{len(fits)} fit{'s' if len(fits) > 1 else ''}"
    return " · ".join(part for part in (count, sizes, made) if part)


def _axis(size: int, dim: str) -> str:
    """Format an axis of a table; one without a name of its own by its size alone."""
    return f"{size}" if re.search(r"_dim_\d+$", dim) else f"{size} {dim}"


def _reading(comparison: Comparison) -> str:
    return " ".join(text for name, text in _READING.items() if name in comparison.frame)


def _versions(fits: Mapping[str, AskedFit]) -> str:
    tree = next(iter(fits.values())).tree
    versions = json.loads(tree["fit_info"].attrs.get("versions", "{}"))
    own = {"sidebayes": tree.attrs.get("sidebayes_version", "")} | versions
    return " · ".join(f"{name} {number}" for name, number in own.items() if number)


def _heading(number: int, name: str, level: str) -> str:
    """Return the heading of the section of one fit."""
    return (
        f"<section id='fit{number}'><div class='title'><h2>{escape(name)}</h2>"
        f"<span class='badge {level}'>{BADGES[level]}</span></div>"
    )
