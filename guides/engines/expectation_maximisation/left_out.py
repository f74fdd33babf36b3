"""One step of EM without some points, which shows what a fit predicts for them when they are left out."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from jax import Array
from sidebayes.models.blocks.mixtures.finite_mixture import FiniteMixture

from ..base import Problem
from ..problem.declared import collapsed_sites
from ..problem.density import trace_model
from ..steps.surrogate import expectation, raise_surrogate
from ..steps.updates import Plan, closed_forms, maximised

__all__ = ["has_step_without", "step_without"]

_GRADIENTS = 30
"""Maximum number of gradients in sites that have no closed form."""


def has_step_without(fn: FiniteMixture) -> bool:
    """Return whether labels are summed out exactly by points, so that some can be left out."""
    return type(fn).log_partition is FiniteMixture.log_partition


def step_without(
    problem: Problem,
    plan: Plan,
    params: Mapping[str, Array],
    args: tuple,
    site: str,
    seen: Array,
) -> dict[str, Array]:
    """Return parameters after one step of EM from those of a fit, without the data of some points.

    The labels of the other points are those of the fit. Every block learns from its own statistics, so that
    the step is valid for any model that has a step of EM.

    Parameters
    ----------
    problem, plan, params, args
    site : str
        Observed site of a `FiniteMixture`.
    seen : Array of bool, shape (num_points,)
    """
    fn, value = collapsed_sites(trace_model(problem, params, args))[site]
    assert isinstance(fn, FiniteMixture)  # see `has_step_without`
    _, posterior = expectation(problem, params, args)
    posterior[site] = jax.grad(fn.log_partition_of)(fn.log_factors(value), seen)
    found = closed_forms(problem, plan, params, args, posterior, maximised)
    rest = tuple(name for name in plan.rest if name not in plan.tightened)
    return raise_surrogate(problem, found, args, posterior, _GRADIENTS, rest) if rest else found
