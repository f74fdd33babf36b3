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
"""Numbers in the tables of a model; with fewer, one core is as fast."""

_FEW = 10
"""Times as many nodes of a graph there are as stand in its order, where this is short."""


def in_shares(problem: Problem, num_runs: int, in_turns: Collection[str] = ()) -> tuple:
    """The data of a problem, divided among cores or devices where that pays; see `machine.shares`.

    Several runs side by side use all cores of a processor as they are. The model must observe mixtures
    whose rows neither links nor groups tie, and the data be tables of one row per point. Or the rest of the
    model is small beside passes over linked points that devices take in turns, whose data lie on each.

    Parameters
    ----------
    problem : Problem
    num_runs : int
        How many runs are to use them, such as starts.
    in_turns : collection of str
        Observed sites of which nothing but statistics of one pass is asked, which devices share.
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
    """Whether few nodes stand in the order, which one device goes through for all."""
    return int(np.sum(graph.order < graph.num_nodes)) * _FEW < graph.num_nodes
