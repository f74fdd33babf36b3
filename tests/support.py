"""Short-cuts that tests of models and engines share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.programs import compiled
from sidebayes.guides.ppc import ppc_m_step
from sidebayes.models.blocks.label_graph import LabelGraph
from sidebayes.models.ppc import ppc

from sidebayes.posterior import mixture_site


def ppc_problem(x, links=None, *, closed=True, **options):
    """PPC with its data, and with its closed-form M-step if it has one."""
    args = jnp.asarray(x), LabelGraph.build(links, len(x))
    return Problem(ppc, args, options, ppc_m_step(**options) if closed else None)


def responsibilities(problem, params):
    """Posterior label probabilities at given parameters."""

    def build(bare):
        def go(params, args):
            mixture, value = mixture_site(bare, params, args)
            return mixture.responsibilities(value)

        return go

    params = {name: jnp.asarray(value) for name, value in params.items()}
    program, _ = compiled("responsibilities", problem, None, build, params, problem.args)
    return np.asarray(program(params, problem.args))


def best_trace(result):
    """Objective of the start that was kept, without padding."""
    ends = np.array([row[~np.isnan(row)][-1] for row in result.objective])
    row = result.objective[np.argmin(np.abs(ends - result.sample_stats["lp"].item()))]
    return row[~np.isnan(row)]


def slope_in_simplex(gradient, weights):
    """Gradient of a function of weights on the simplex, along it."""
    return jax.device_get(gradient - gradient @ weights)
