"""What a comparison says of each fit by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..fitted import AskedFit
from ..sites import link_kind, site_of
from ..trust.scores import scores_of, violated_links

__all__ = ["row_of"]


def row_of(fit: AskedFit) -> dict[str, Any]:
    """Columns of a comparison that need no other fit; see `Comparison`."""
    stats = fit.tree["sample_stats"]
    links = fit.tree["constant_data"]
    found, seconds = fit.convergence, fit.seconds
    row = {
        "method": fit.method,
        "engine": fit.engine,
        "log_joint": np.nan if fit.config.hard_labels else float(stats["lp"].max()),
        "log_evidence": fit.tree["fit_info"].attrs.get("log_evidence", np.nan),
        "evidence": fit.tree["fit_info"].attrs.get("log_evidence_kind", ""),
        **found,
        "divergences": float(stats["diverging"].sum()) if "diverging" in stats else np.nan,
        "links": links.sizes.get("link", 0),
        "kind": link_kind(fit.tree),
        "compile_s": seconds["compile"],
        "run_s": seconds["run"],
        "search_s": seconds.get("search") or np.nan,
        "other_s": seconds.get("other", np.nan),
        "total_s": seconds["total"],
        "ess_per_s": found["ess"] / seconds["run"] if seconds["run"] else np.nan,
        "approximate": fit.approximate or "",
    }
    rate = site_of(fit.tree, "reliability")
    if rate is not None:
        row["flip"] = float(fit.tree["posterior"][rate].mean())
    if fit.has_labels:
        labels = fit.tree["responsibilities"]["labels"].to_numpy()
        row["violated"] = violated_links(labels, links["links"], links["link_weights"])
    return row | scores_of(fit)
