"""A few facts about a fit, as the report and notebooks show them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..fitted import AskedFit
from ..sites import clusters_of, site_of
from .scores import violated

__all__ = ["BADGES", "facts_of"]

BADGES = {"good": "converged", "caution": "with caution", "bad": "do not trust"}
"""Levels of the verdict in words."""


def facts_of(fit: AskedFit) -> dict[str, str]:
    """Return facts about a fit, as text by name.

    Parameters
    ----------
    fit : Fit
    """
    tree, seconds = fit.tree, fit.seconds
    constant = tree["constant_data"]
    weights = constant["link_weights"].to_numpy()
    posterior = tree["posterior"]
    facts = {
        "method": fit.method,
        "engine": fit.engine,
    }
    if fit.has_labels:
        facts["clusters"] = clusters_of(tree)
    if len(weights) and fit.has_labels:
        broken = violated(fit.labels(), constant["links"], weights)
        facts["must-links"] = str(int(np.sum(weights > 0)))
        facts["cannot-links"] = str(int(np.sum(weights < 0)))
        facts["violated"] = str(int(broken.sum()))
    rate = site_of(tree, "reliability")
    if rate is not None:
        facts |= _flip_rates(posterior[rate])
    draws = posterior.sizes["chain"] * posterior.sizes["draw"]
    if draws > 1:
        facts["draws"] = f"{posterior.sizes['chain']} × {posterior.sizes['draw']}"
        if fit.has_labels:
            facts["labels matched across draws"] = f"{fit.relabelled[1]:.0%}"
    facts["seconds to compile"] = f"{seconds['compile']:.1f}"
    facts["seconds to run"] = f"{seconds['run']:.1f}"
    facts["seconds in all"] = f"{seconds['total']:.1f}"
    if "sidebayes_seed" in tree.attrs:
        facts["seed"] = str(tree.attrs["sidebayes_seed"])
    return facts


def _flip_rates(rates: Any) -> dict[str, str]:
    """Format the median and 89 % interval of each flip rate."""
    drawn = rates.stack(draws=("chain", "draw")).transpose(..., "draws")
    several = drawn.ndim > 1
    names = [f" of {name}" for name in drawn["link_groups"].to_numpy()] if several else [""]
    facts = {}
    for name, values in zip(names, np.atleast_2d(drawn.to_numpy()), strict=True):
        low, middle, high = np.quantile(values, [0.055, 0.5, 0.945])
        between = f" ({low:.3f} to {high:.3f})" if high > low else ""
        facts[f"learned flip rate{name}"] = f"{middle:.3f}{between}"
    return facts
