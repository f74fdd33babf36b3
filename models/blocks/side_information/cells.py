"""Side information as HTML for the cells of notebooks."""

from __future__ import annotations

from html import escape

import pandas as pd

__all__ = ["cell"]

_MOST_ROWS = 10


def cell(summary: str, table: pd.DataFrame) -> str:
    """HTML of a line, and of the first and last rows of a table below it; all text is escaped.

    Parameters
    ----------
    summary : str
    table : DataFrame
    """
    rows = table.to_html(max_rows=_MOST_ROWS, border=0)
    # dollars in names do not mean mathematics
    return f"<div class='tex2jax_ignore mathjax_ignore'><p>{escape(summary)}</p>{rows}</div>"
