"""Fits and comparisons as HTML for the cells of notebooks."""

from __future__ import annotations

from html import escape
from typing import Any

from ..fitted import AskedFit
from .facts import BADGES, facts_of

__all__ = ["comparison_cell", "fit_cell"]

_STYLE = """<style>
.sidebayes .badge { padding: 1px 8px; border-radius: 9px; color: #fff; font-size: .85em }
.sidebayes .good { background: #2f7d4f } .sidebayes .caution { background: #a86200 }
.sidebayes .bad { background: #c0271d }
.sidebayes table { border-collapse: collapse; margin: .5em 0; display: block; overflow-x: auto }
.sidebayes th, .sidebayes td { padding: 2px 9px; text-align: right; white-space: nowrap;
  background: none; border: 0; border-bottom: 1px solid rgba(128, 128, 128, .3) }
.sidebayes th:first-child, .sidebayes .text { text-align: left }
.sidebayes .best { font-weight: bold } .sidebayes .suspect { font-weight: bold; color: #d9483b }
</style>"""
"""Text takes the colours of the notebook, light or dark."""


def fit_cell(fit: AskedFit) -> str:
    """Format verdict and facts about a fit.

    Parameters
    ----------
    fit : Fit
    """
    level, sentence = fit.verdict
    facts = facts_of(fit)
    title = f"{facts.pop('method')} by {facts.pop('engine')}"
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td class='text'>{escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    return _cell(
        f"<b>{escape(title)}</b> <span class='badge {level}'>{BADGES[level]}</span>"
        f"<div>{escape(sentence)}</div><table>{rows}</table>"
    )


def comparison_cell(comparison: Any) -> str:
    """Format the tables of a comparison, and its notes.

    Parameters
    ----------
    comparison : Comparison
    """
    return _cell(comparison.html())


def _cell(content: str) -> str:
    # dollars in names are not mathematics
    return f"{_STYLE}<div class='sidebayes tex2jax_ignore mathjax_ignore'>{content}</div>"
