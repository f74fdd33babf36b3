"""The figure on which all pictures are drawn; importing it imports Matplotlib."""

from __future__ import annotations

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["ShownFigure"]

_PIXELS, _SHARPNESS = 96, 2
"""Pixels per inch in a notebook, and pixels of the picture for each of these."""


class ShownFigure(Figure):
    """Figure that notebooks show, although pyplot does not hold it.

    Pyplot would keep every figure until it is closed, and show those of a cell twice. Where its own display
    of figures is switched on, that is used instead, once.
    """

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=_SHARPNESS * _PIXELS)
        return buffer.getvalue(), {"width": round(_PIXELS * self.get_figwidth())}
