"""Sufficient statistics of Gaussian mixtures with links, and the M-step that they feed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from sidebayes.models.blocks import partition
from sidebayes.models.blocks.components import GaussianPrior
from sidebayes.models.blocks.label_graph import as_label_graph
from sidebayes.models.blocks.linked import LinkedMixture

from .base import Problem
from .density import deterministics, sum_log_prob, trace_model
from .gaussian_stats import Moments, weighted_moments

__all__ = ["Statistics", "expect", "maximise"]


class Statistics(NamedTuple):
    """Expected sufficient statistics of all the data.

    Moments about the mean of the data, expected counts behind the mixing weights, and how many soft
    must-links and cannot-links join points of one label.
    """

    moments: Moments
    size: Array
    agree: Array


def _under(problem: Problem, centre: Array, covariance: Array | None) -> Problem:
    """The problem with the empirical prior of all the data, if that is what it asks for."""
    if covariance is None:
        return problem
    assert problem.m_step is not None
    prior = GaussianPrior.from_moments(centre, covariance, problem.kwargs["num_clusters"])
    m_step = partial(problem.m_step, prior=prior)
    return replace(problem, kwargs=problem.kwargs | {"prior": prior}, m_step=m_step)


def expect(
    problem: Problem,
    params: dict[str, Array],
    args: tuple,
    live: Array,
    centre: Array,
    covariance: Array | None,
) -> tuple[Array, Array, Statistics, dict[str, Array]]:
    """Log likelihood of the live components of a batch, log prior, expected statistics, and sites."""
    trace = trace_model(_under(problem, centre, covariance), params, args)
    mixture = trace.pop("x")
    fn: LinkedMixture = mixture["fn"]
    graph, x = fn.labels.graph, args[0]
    alive = jnp.zeros(graph.num_nodes, bool).at[jnp.asarray(graph.component)].max(live)

    def log_partition(factors: dict[str, Array]) -> Array:
        terms = partition.by_component(
            factors["unary"],
            graph,
            factors["log_weights"],
            factors["pair_weights"],
            **fn.labels.options,
        )
        return jnp.where(alive, terms, 0.0).sum()

    value, slope = jax.value_and_grad(log_partition)(fn.log_factors(x))
    normalizer = fn.labels.log_normalizer_by_component()
    soft = jnp.isfinite(jnp.asarray(graph.pair_weights))
    agree = jnp.where(soft, slope["pair_weights"], 0.0)
    must = jnp.asarray(graph.pair_weights) > 0
    about = jnp.broadcast_to(centre, (slope["unary"].shape[1], len(centre)))
    return (
        value - jnp.where(alive, normalizer, 0.0).sum(),
        sum_log_prob(trace),
        Statistics(
            moments=weighted_moments(x, slope["unary"], about),
            size=slope["log_weights"],
            agree=jnp.stack([jnp.where(must, agree, 0.0).sum(), jnp.where(must, 0.0, agree).sum()]),
        ),
        deterministics(trace),
    )


def maximise(
    problem: Problem,
    params: dict[str, Array],
    statistics: Statistics,
    linked: tuple,
    centre: Array,
    covariance: Array | None,
) -> dict[str, Array]:
    """The model's own M-step, given statistics of all the data."""
    graph = as_label_graph(linked[1] if len(linked) > 1 else None, len(linked[0]))
    weights = jnp.asarray(graph.pair_weights)
    soft, must = jnp.isfinite(weights), weights > 0
    share = statistics.agree / jnp.maximum(jnp.stack([soft & must, soft & ~must]).sum(axis=1), 1)
    slope = {
        "moments": statistics.moments,
        "log_weights": statistics.size,
        "pair_weights": jnp.where(must, share[0], share[1]),
    }
    about = jnp.broadcast_to(centre, params["mean"].shape)
    m_step = _under(problem, centre, covariance).m_step
    assert m_step is not None
    return m_step(params | {"mean": about}, linked, {"x": slope})
