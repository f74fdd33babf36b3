"""Large tables of one row per point, with which a single run uses all cores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import jax
import numpy as np
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture

from ..base import Problem
from ..machine.shares import on_each, spread
from ..problem.declared import collapsed_of
from ..problem.density import abstract_trace

__all__ = ["in_shares"]

_LARGE = 2_000_000
"""Number of entries in the tables of a model below which one core is as fast."""

_FEW = 10
"""The order of a graph is short if the graph has more than so many times as many nodes."""


def in_shares(problem: Problem, num_runs: int, in_turns: Collection[str] = ()) -> tuple:
    """Return the data of a problem, divided among cores or devices where that pays; see `machine.shares`.

    Several runs side by side use all cores of a processor anyway. There are two cases. In the first, the
    model observes mixtures whose rows neither links nor groups tie, and the data are tables of one row per
    point. In the second, the rest of the model is small beside passes over linked points that devices take
    in turns; the data then lie on each device.

    Parameters
    ----------
    problem : Problem
    num_runs : int
        Number of runs that use the data, such as starts.
    in_turns : collection of str
        Observed sites of which only statistics of one pass are needed; devices share such a pass.
    """
    if num_runs > 1 and jax.device_count() == 1:
        return problem.args
    others = [arg for arg in problem.args if arg is not None and not hasattr(arg, "shape")]
    graphs = [arg for arg in others if isinstance(arg, LabelGraph)]
    linked = any(graph.num_links for graph in graphs)
    if len(graphs) < len(others) or (linked and not in_turns):
        return problem.args
    if "shares" not in problem.notes:
        place = None
        if sum(arg.size for arg in problem.args if hasattr(arg, "shape")) >= _LARGE:
            place = _turns(problem, graphs, in_turns) if linked else _rows(problem)
        problem.notes["shares"] = problem.args if place is None else place(problem.args)
    return problem.notes["shares"]


def _rows(problem: Problem) -> Callable[[tuple], tuple] | None:
    mixtures = map(collapsed_of, _observed(problem).values())
    apart = all(isinstance(fn, FiniteMixture) and fn.has_apart_rows for fn in mixtures)
    return spread if apart else None


def _turns(
    problem: Problem, graphs: Sequence[LabelGraph], in_turns: Collection[str]
) -> Callable[[tuple], tuple] | None:
    alone = _observed(problem).keys() <= set(in_turns)
    return on_each if alone and all(map(_is_mostly_in_lanes, graphs)) else None


def _observed(problem: Problem) -> dict[str, dict]:
    sites = abstract_trace(problem).items()
    return {n: site for n, site in sites if site["type"] == "sample" and site["is_observed"]}


def _is_mostly_in_lanes(graph: LabelGraph) -> bool:
    """Return whether few nodes are in the order that a single device has to go through for all."""
    return int(np.sum(graph.order < graph.num_nodes)) * _FEW < graph.num_nodes
