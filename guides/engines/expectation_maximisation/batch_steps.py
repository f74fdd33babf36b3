"""E-step of a batch of points and M-step of all of them, by the additive statistics of blocks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from sidebayes.models.blocks.block import Evidence
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.mixtures.linked_mixture import LinkedMixture

from ..base import Problem
from ..density import collapsed_sites, deterministics, site_log_prob, trace_model
from ..updates import Plan, block_of

__all__ = ["expect", "maximise"]


def expect(
    problem: Problem,
    plan: Plan,
    params: dict[str, Array],
    args: tuple,
    live: Array,
    centre: Array,
    covariance: Array,
) -> tuple[Array, Array, tuple, dict[str, Array]]:
    """Log likelihood of the live units of a batch, log prior, expected statistics, other sites.

    Parameters
    ----------
    problem, plan, params, args
    live : Array, shape (num_rows,)
        Which rows count.
    centre, covariance : Array
        Mean and covariance of all data, for moments and an empirical prior.
    """
    trace = trace_model(problem, params, args)
    fn, value, slope, normalizer = _masked(trace, live)
    log_prior = jnp.zeros(())
    statistics, done = [], set()
    for part in plan.parts:
        block = block_of(trace, part)
        renewed = block.given_moments(centre, covariance)
        found = block.statistics(Evidence(fn, value, slope))
        statistics.append(found)
        if renewed:
            before = block.update(jax.tree.map(jnp.zeros_like, found), ())
            log_prior = log_prior + block.log_density(before, part.values(params))
            done |= set(part.sites.values())
    for name, site in trace.items():
        if site["type"] == "sample" and name not in done and name not in plan.parts[0].sources:
            log_prior = log_prior + site_log_prob(site)
    return normalizer, log_prior, tuple(statistics), deterministics(trace)


def _masked(trace: dict[str, dict], live: Array) -> tuple[LinkedMixture, Array, Any, Array]:
    """The observed mixture, its data, expected statistics and log density of the live units."""
    ((found, value),) = collapsed_sites(trace).values()
    assert isinstance(found, LinkedMixture)  # refused before
    graph = found.labels.graph
    alive = jnp.zeros(graph.num_nodes, bool).at[jnp.asarray(graph.component)].max(live)

    def log_partition(factors: dict[str, Array]) -> Array:
        terms = partition.by_component(
            found.label_factors(factors),
            graph,
            factors["log_weights"],
            factors["pair_weights"],
            **found.labels.options,
        )
        return jnp.where(alive, terms, 0.0).sum()

    total, slope = jax.value_and_grad(log_partition)(found.log_factors(value))
    normalizer = jnp.where(alive, found.labels.log_normalizer_by_component(), 0.0).sum()
    return found, value, slope, total - normalizer


def maximise(
    problem: Problem,
    plan: Plan,
    params: dict[str, Array],
    statistics: tuple,
    linked: tuple,
    centre: Array,
    covariance: Array,
) -> dict[str, Array]:
    """Modes of all blocks, given statistics of all the data.

    `linked` are data of which nothing but the links count: blank rows for the points that have some.
    """
    new = dict(params)
    trace = trace_model(problem, params, linked)
    for part, found in zip(plan.parts, statistics, strict=True):
        if part.chained:
            trace = trace_model(problem, new, linked)
        block = block_of(trace, part)
        block.given_moments(centre, covariance)
        sources = [fn for fn, _ in collapsed_sites(trace).values()]
        values = block.mode(block.update(found, sources), part.values(new))
        new |= part.named(values)
    return new
