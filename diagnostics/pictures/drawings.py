"""Embeds pictures in a page as vector graphics, which follow its light or dark colours."""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING

from .colours import FAINT, INK, MUTED, WARN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["as_image"]

_DARK = {
    "#000000": "#e6eaee",
    INK: "#e6eaee",
    MUTED: "#93a1af",
    FAINT: "#4a5663",
    WARN: "#ff6b60",
    "#595959": "#a9b1b9",
    "#ffffff": "#1a2129",
}
"""Colours that change on a dark page: ink, frames, the eighth cluster, and the paper that shows between
points. The others are visible on both."""

_TYPE = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def as_image(figure: Figure) -> str:
    """Return a data address that holds a picture as SVG, for ``<img src=...>``.

    Browsers run no script in such an image and load nothing for it. Its text remains text, in the typeface
    of the page, and its ink is light where the reader prefers dark pages.

    Parameters
    ----------
    figure : matplotlib Figure
    """
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "sidebayes"}):
        figure.savefig(
            buffer,
            format="svg",
            dpi=90,
            transparent=True,
            metadata={"Date": None, "Creator": None},
        )
    text = buffer.getvalue()
    start = text.index("<svg")  # declaration and document type are not needed
    inside = text.index(">", start) + 1
    body = re.sub("<[^>]+>", _shorter, text[inside:])
    text = text[start:inside] + _style() + re.sub(r">\s+<", "><", body)
    return f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}"


def _shorter(tag: re.Match[str]) -> str:
    """Shorten a tag: colours and typeface come from the style, and numbers are exact to a hundredth point.

    Text between tags, such as names from the data, and embedded images are left unchanged.
    """
    text = tag[0]
    if text.startswith("<image"):
        return text
    text = re.sub("|".join(_DARK), lambda found: f"var(--c{found[0][1:]})", text)
    text = re.sub('font-family: [^;"]*;? ?', "", text)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)
    return re.sub(r"\s+", " ", text)


def _style() -> str:
    light = "".join(f"--c{colour[1:]}:{colour};" for colour in _DARK)
    dark = "".join(f"--c{colour[1:]}:{other};" for colour, other in _DARK.items())
    return (
        f"<style>:root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"text{{fill:var(--c000000);font-family:{_TYPE}}}</style>"
    )
