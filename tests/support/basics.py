"""Short-cuts that tests of models and engines share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from sidebayes.guides.engines.base import KEEPS_NOTHING, Problem
from sidebayes.guides.engines.plumbing.clock import Clock
from sidebayes.guides.engines.plumbing.programs import compiled
from sidebayes.guides.engines.problem.posterior import mixture_site
from sidebayes.guides.engines.steps.starts import initial_values
from sidebayes.guides.engines.steps.updates import closed_forms, maximised, plan_updates
from sidebayes.guides.engines.variational.factors import plan_factors
from sidebayes.models.blocks.label_inference.label_graph import LabelGraph
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture
from sidebayes.models.blocks.mixtures.weights import MixingWeights
from sidebayes.models.ppc import ppc


def ppc_problem(x, links=None, *, closed=True, **options):
    """PPC with its data, and with the closed-form updates of its blocks or without."""
    args = jnp.asarray(x), LabelGraph.build(links, len(x))
    return Problem(ppc if closed else without_blocks(ppc), args, options)


def without_blocks(model):
    """The same model, whose sites know nothing of their updates."""
    return handlers.infer_config(model, lambda site: {"block": None})


def weights_mode(count, weights, graph, concentration=1.0, **law):
    """M-step of the mixing weights: counts matched under the law of the links."""

    @jax.jit
    def mode(count, weights):
        size = len(weights)
        labels = LinkedCategorical(jnp.log(weights), graph, **law)
        fn = LinkedMixture(labels, dist.Normal(jnp.zeros(size), 1.0))
        block = MixingWeights(size, concentration)
        found = block.update(count, [fn])
        return block.mode(found, {"mixing_weights": weights})["mixing_weights"]

    return mode(count, weights)


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


def climbed_bound(engine, problem):
    """Bound that coordinate ascent reaches from one start, without draws of its factors."""
    plan, starts, keep = plan_factors(problem), initial_values(problem, 0, 1), KEEPS_NOTHING
    state, _ = engine._climb(problem, plan, starts, lambda *_: None, keep, Clock())
    return float(state.value[0])


def best_trace(result):
    """Objective of the start that was kept, without padding."""
    ends = np.array([row[~np.isnan(row)][-1] for row in result.objective])
    row = result.objective[np.argmin(np.abs(ends - result.sample_stats["lp"].item()))]
    return row[~np.isnan(row)]


def slope_in_simplex(gradient, weights):
    """Gradient of a function of weights on the simplex, along it."""
    return jax.device_get(gradient - gradient @ weights)


def closed_step(problem, params, posterior, args=None):
    """M-step of EM by the blocks of the model, given expected statistics."""
    plan = plan_updates(problem)
    params = {name: jnp.asarray(value) for name, value in params.items()}
    args = problem.args if args is None else args
    return closed_forms(problem, plan, params, args, posterior, maximised)
