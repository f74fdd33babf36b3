"""E-step of a plain Gaussian mixture in one pass over the data; its M-step is that of `ppc`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from .engines.base import Problem
from .engines.density import sum_log_prob, trace_model
from .engines.gaussian_stats import gaussian_pass

__all__ = ["gmm_e_step"]


def gmm_e_step(*, covariance: str = "full", component: Any = None, **options: Any) -> Any:
    """E-step that leaves moments in place of responsibilities; None where components need more.

    Parameters are options of `gmm`; only full and tied Gaussians have such a pass.
    """
    return _one_pass if component is None and covariance in ("full", "tied") else None


def _one_pass(
    problem: Problem, params: dict[str, Array], args: tuple
) -> tuple[Array, dict[str, Any]]:
    """Log joint, and for the M-step the moments of each cluster about its current mean."""
    trace = trace_model(problem, params, args)
    mixture = trace.pop("x")["fn"]
    density = mixture.components
    scale_tril = jnp.broadcast_to(density.scale_tril, (*density.loc.shape, density.loc.shape[1]))
    found = gaussian_pass(args[0], mixture.labels.log_weights, density.loc, scale_tril)
    moments = found.moments
    slope = {"moments": moments, "log_weights": moments.total}
    return sum_log_prob(trace) + found.log_likelihood, {"x": slope}
