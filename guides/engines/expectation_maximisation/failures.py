"""Errors of EM: the log joint is finite at no start, or a cluster collapses from every start."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from ..base import FitError, Problem
from ..plumbing.programs import compiled
from ..problem.causes import advice, explain_nonfinite, known_cause, remedy
from ..steps.surrogate import cluster_sizes, expectation

__all__ = ["all_collapsed", "nowhere_finite"]

_CHECK = "check the data and the priors, or pass init="


def nowhere_finite(problem: Problem, start: dict[str, NDArray]) -> FitError:
    """Make the error of a run whose log joint is finite at no start; `start` is one of them."""
    blame = explain_nonfinite(problem, start)
    return FitError(
        f"EM: the log joint is not finite at any start ({blame}); {advice(problem, blame)}",
        start,
    )


def all_collapsed(
    problem: Problem,
    found: tuple[int, str] | None,
    point: dict[str, NDArray],
    latent: Collection[str],
) -> FitError:
    """Make the error of a run in which clusters collapsed from every start.

    Parameters
    ----------
    problem : Problem
    found : tuple of int and str, or None
        Cluster that collapsed in the best run, and a description of what happened. None if the log joint
        itself became infinite or undefined; the smallest cluster is then named.
    point : dict of ndarray
        Where that run ended.
    latent : collection of str
        Names of the latent sites.
    """
    cause = known_cause(problem)
    sizes = _sizes(problem, {name: point[name] for name in latent})
    if found is None and len(sizes):
        found = int(np.argmin(sizes)), "the log joint stopped being finite"
    if found is None:
        message = f"EM: the log joint stopped being finite from every start; {cause or _CHECK}"
        return FitError(message, point)
    cluster, what = found
    size = f" of effective size {sizes[cluster]:.3g} points" if len(sizes) > cluster else ""
    return FitError(
        f"EM: cluster {cluster}{size} collapsed ({what}); {cause or remedy(problem)}", point
    )


def _sizes(problem: Problem, params: Mapping[str, NDArray]) -> NDArray:
    """Return the expected number of points in each cluster."""

    def build(bare: Problem) -> Callable:
        return lambda params, args: cluster_sizes(expectation(bare, params, args)[1])

    program, _ = compiled("sizes", problem, None, build, params, problem.args)
    return np.asarray(program(params, problem.args))
