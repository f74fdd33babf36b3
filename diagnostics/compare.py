"""Fits side by side in one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .invariants import convergence
from .scores import score_labels, violated_links

__all__ = ["Comparison", "compare_fits"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """One row a fit.

    Attributes
    ----------
    frame : pandas.DataFrame
        ``log_joint`` of the best point found, worst ``rhat`` and least ``ess`` over label-invariant
        functionals, ``divergences``, ``violated`` links, scores against the truth where known,
        seconds, and the approximation made, if any.
    """

    frame: pd.DataFrame

    def __str__(self) -> str:
        """Table as text."""
        return self.frame.to_string(float_format=lambda v: f"{v:.4g}", na_rep="")

    def __rich__(self) -> Any:
        """Table for the terminal."""
        from rich.table import Table

        table = Table("fit", *self.frame.columns)
        for name, row in self.frame.iterrows():
            table.add_row(str(name), *(_text(v) for v in row))
        return table

    def html(self) -> str:
        """Table as HTML."""
        return self.frame.map(_text).to_html(border=0, classes="comparison")


def compare_fits(fits: Mapping[str, Any]) -> Comparison:
    """Compare fits; see `sidebayes.compare`."""
    rows = {name: _row(fit) for name, fit in fits.items()}
    return Comparison(pd.DataFrame.from_dict(rows, orient="index"))


def _row(fit: Any) -> dict[str, Any]:
    stats = fit.tree["sample_stats"]
    links = fit.tree["constant_data"]
    labels = fit.labels()
    row = {
        "method": fit.method,
        "engine": fit.engine,
        "log_joint": float(stats["lp"].max()) if fit.engine != "kmeans" else np.nan,
        **convergence(fit.tree),
        "divergences": float(stats["diverging"].sum()) if "diverging" in stats else np.nan,
        "links": links.sizes.get("link", 0),
        "violated": violated_links(labels, links["links"], links["link_weights"]),
    }
    if "flip_rate" in fit.tree["posterior"]:
        row["flip_rate"] = float(fit.tree["posterior"]["flip_rate"].mean())
    if "truth" in fit.tree["observed_data"]:
        row |= score_labels(fit.tree["observed_data"]["truth"].to_numpy(), labels)
    seconds = fit.seconds
    return row | {
        "compile_s": seconds["compile"],
        "run_s": seconds["run"],
        "approximate": fit.approximate or "",
    }


def _text(value: Any) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.4g}"
    return str(value)
