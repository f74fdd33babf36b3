"""Large tables of one row per point, on which a single run uses all cores."""

from __future__ import annotations

from typing import Any

import jax
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture

from ..base import Problem
from ..machine.shares import spread
from ..problem.density import abstract_trace, collapsed_of

__all__ = ["in_shares"]

_LARGE = 2_000_000
"""Numbers in the tables of a model; with fewer, one core is as fast."""


def in_shares(problem: Problem, num_runs: int) -> tuple:
    """The data of a problem, divided among cores or devices where that pays; see `machine.shares`.

    Several runs side by side use all cores of a processor as they are. The model must observe mixtures
    whose rows neither links nor groups tie, and the data be tables of one row per point.

    Parameters
    ----------
    problem : Problem
    num_runs : int
        How many runs are to use them, such as starts.
    """
    if num_runs > 1 and jax.device_count() == 1:
        return problem.args
    if "shares" not in problem.notes:
        problem.notes["shares"] = spread(problem.args) if _pays(problem) else problem.args
    return problem.notes["shares"]


def _pays(problem: Problem) -> bool:
    tables = [arg for arg in problem.args if hasattr(arg, "shape")]
    others = [arg for arg in problem.args if arg is not None and not hasattr(arg, "shape")]
    if sum(table.size for table in tables) < _LARGE or not all(map(_has_no_links, others)):
        return False
    sites = abstract_trace(problem).values()
    observed = [site for site in sites if site["type"] == "sample" and site["is_observed"]]
    mixtures = [collapsed_of(site) for site in observed]
    return all(isinstance(fn, FiniteMixture) and fn.has_apart_rows for fn in mixtures)


def _has_no_links(value: Any) -> bool:
    return isinstance(value, LabelGraph) and not value.num_links
