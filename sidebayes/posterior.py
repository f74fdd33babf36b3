"""Labels given parameters: what is derived from every draw, whatever engine made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpy.typing import NDArray
from xarray import DataTree

from sidebayes.guides.engines.base import Problem
from sidebayes.guides.engines.density import (
    abstract_trace,
    as_mixture,
    latent_sites,
    trace_model,
)
from sidebayes.guides.engines.programs import compiled
from sidebayes.models.blocks import partition
from sidebayes.models.blocks.linked import LinkedCategorical, LinkedMixture

__all__ = [
    "MOST_DRAWS",
    "Derived",
    "component_log_densities",
    "derive",
    "joint_mode",
    "latent_shapes",
    "mixture_site",
    "pooled_draws",
    "thin",
]

MOST_DRAWS = 200
"""Draws, of a chain or of all, at which labels and densities are derived."""


_BLOCK = 50
"""Draws whose labels are derived by one call."""

_LARGE = 20_000
"""Points from which on they are derived draw by draw."""


def mixture_site(
    problem: Problem, params: Mapping[str, Any], args: tuple | None = None
) -> tuple[dist.Distribution, Array]:
    """Observed site whose labels are summed out, and its data.

    Raises
    ------
    ValueError
        If the model has none.
    """
    return _find_mixture(trace_model(problem, params, args))


def _find_mixture(trace: Mapping[str, dict]) -> tuple[dist.Distribution, Array]:
    for site in trace.values():
        if site["type"] == "sample" and site["is_observed"]:
            fn = as_mixture(site["fn"])
            if fn is not None:
                return fn, site["value"]
    raise ValueError(
        "the model has no observed mixture; observe the data through a LinkedMixture (or NumPyro's "
        "MixtureSameFamily), so that labels can be inferred"
    )


def latent_shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Shape of every latent site; nothing is computed.

    Raises
    ------
    TypeError, ValueError
        If a latent site is discrete, or the model has no observed mixture.
    """
    trace = abstract_trace(problem)
    latent = latent_sites(trace)
    _find_mixture(trace)
    return {name: jnp.shape(site["value"]) for name, site in latent.items()}


def component_log_densities(fn: dist.Distribution, value: Array) -> Array:
    """Log joint density of label and data, links left out, shape (num_points, num_clusters)."""
    if isinstance(fn, LinkedMixture):
        factors = fn.log_factors(value)
        return factors["unary"] + factors["log_weights"]
    return fn.component_log_probs(value)


class Derived(NamedTuple):
    """What parameters say about labels.

    Attributes
    ----------
    responsibilities : ndarray, shape (num_draws, num_points, num_clusters)
    log_likelihood : ndarray, shape (num_draws, num_units)
        A term for each connected component of the links; they sum to the log density of the data.
    mode : ndarray of int, shape (num_points,)
        Most probable joint labeling at the first draw, which keeps hard links; the most probable
        label of each point where labels are summed out approximately.
    """

    responsibilities: NDArray
    log_likelihood: NDArray
    mode: NDArray[np.int64]


def derive(problem: Problem, draws: Mapping[str, NDArray], *, hard: bool = False) -> Derived:
    """Responsibilities and log-likelihood terms at every draw, and labels at the first.

    Parameters
    ----------
    problem : Problem
    draws : mapping of str to ndarray, shape (num_draws, ...)
    hard : bool
        Take the most probable joint labeling in place of marginal probabilities.
    """
    number = len(next(iter(draws.values())))
    # blocks of one size, so that every number of draws above one shares the program; a single draw of
    # much data has no use for the other places
    single = number == 1
    size = 1 if single or len(jax.tree.leaves(problem.args)[0]) >= _LARGE else _BLOCK
    # closed forms play no part here: without them a fit and what is asked of it share the program
    plain = Problem(problem.model, problem.args, problem.kwargs)
    found = []
    for first in range(0, number, size):
        part = {name: np.asarray(value[first : first + size]) for name, value in draws.items()}
        count = min(size, number - first)
        given = {
            name: np.pad(value, [(0, size - count)] + [(0, 0)] * (value.ndim - 1))
            for name, value in part.items()
        }
        inputs = given, problem.args, np.asarray(count)
        build = partial(_over_draws, hard)
        program, _ = compiled("derive", plain, (hard, size), build, *inputs, once=single)
        prob, terms, mode = map(np.asarray, program(*inputs))
        found.append(Derived(prob[:count], terms[:count], mode))
    prob, terms = (np.concatenate(parts) for parts in list(zip(*found, strict=True))[:2])
    fn, _ = _find_mixture(abstract_trace(problem))
    if isinstance(fn, LinkedMixture):
        terms = terms[:, : fn.labels.graph.num_components]
    return Derived(prob, terms, found[0].mode.astype(np.int64))


def _over_draws(hard: bool, problem: Problem) -> Callable:
    """Program that describes the first `count` draws of a block."""

    @jax.jit  # so that it is traced once only
    def at(number: Array, params: dict, args: tuple) -> tuple[Array, Array, Array]:
        params = {name: value[number] for name, value in params.items()}
        fn, value = mixture_site(problem, params, args)
        if not isinstance(fn, LinkedMixture):
            joint = fn.component_log_probs(value)
            return jax.nn.softmax(joint), jax.nn.logsumexp(joint, axis=-1), joint.argmax(axis=-1)
        unary, labels = fn.log_factors(value)["unary"], fn.labels
        prob, terms = _posterior(fn, unary)
        likeliest = prob.argmax(axis=-1)
        if labels.graph.num_links == 0 or (fn.approximation() is not None and not hard):
            return prob, terms, likeliest

        def mode() -> Array:
            weights = labels.log_weights, labels.pair_weights
            return partition.mode(unary, labels.graph, *weights, **labels.options)

        best = jax.lax.cond(hard | (number == 0), mode, lambda: likeliest)
        return jax.nn.one_hot(best, prob.shape[-1], dtype=prob.dtype) if hard else prob, terms, best

    def block(params: dict, args: tuple, count: Array) -> tuple[Array, Array, Array]:
        size = len(next(iter(params.values())))

        def step(number: Array, kept: tuple) -> tuple:
            prob, terms, mode = at(number, params, args)
            at_first = jnp.where(number == 0, mode, kept[2])
            return kept[0].at[number].set(prob), kept[1].at[number].set(terms), at_first

        prob, terms, mode = jax.eval_shape(at, count, params, args)
        blank = (jnp.zeros((size, *part.shape), part.dtype) for part in (prob, terms))
        return jax.lax.fori_loop(0, count, step, (*blank, jnp.zeros(mode.shape, mode.dtype)))

    return block


def joint_mode(problem: Problem, params: Mapping[str, Any]) -> NDArray[np.int64]:
    """Most probable joint labeling at given parameters, shape (num_points,); keeps hard links."""
    # twice, to share the program of many draws
    return derive(problem, {name: np.stack([value] * 2) for name, value in params.items()}).mode


def _posterior(fn: LinkedMixture, unary: Array) -> tuple[Array, Array]:
    """Responsibilities, and the terms of `LinkedMixture.log_prob`, as `LinkedMixture.by_component`."""
    labels = fn.labels
    coupled = labels.reading == "field" and labels.graph.num_links > 0

    def terms(unary: Array) -> Array:
        return partition.by_component(
            unary, labels.graph, labels.log_weights, labels.pair_weights, **labels.options
        )

    def with_normalizer(unary: Array) -> tuple[Array, Array]:
        if not coupled:
            found = terms(unary)
            return found.sum(), found
        found, blank = jax.vmap(terms)(jnp.stack([unary, jnp.zeros_like(unary)]))
        return found.sum(), found - blank

    prob, found = jax.grad(with_normalizer, has_aux=True)(unary)
    return prob, found if coupled else found - _normalizer_by_component(labels)


def _normalizer_by_component(labels: LinkedCategorical) -> Array:
    """Share of each connected component in the normaliser where labels are independent."""
    graph = labels.graph
    if graph.num_links == 0:
        return labels.log_normalizer() / graph.num_points
    soft = ~jnp.isinf(jnp.asarray(graph.pair_weights))
    weights = jnp.where(soft, jnp.asarray(labels.pair_weights), 0.0)
    each = jnp.where(soft, jnp.logaddexp(0.0, weights), 0.0)
    owner = jnp.asarray(graph.component)[jnp.asarray(graph.pairs)[:, 0]]
    return jnp.zeros(graph.num_nodes).at[owner].add(each)


def thin(num_draws: int, most: int = MOST_DRAWS) -> NDArray[np.int64]:
    """Numbers of at most `most` draws, evenly spread over a chain, first and last included."""
    return np.linspace(0, num_draws - 1, max(min(num_draws, most), 1)).astype(int)


def pooled_draws(tree: DataTree, *, of_each_chain: bool = False) -> dict[str, NDArray]:
    """Draws of all chains one after another: at most `MOST_DRAWS` in all, or of each chain."""
    group = tree["posterior"]
    values = {str(name): site.to_numpy() for name, site in group.data_vars.items()}
    if of_each_chain:
        keep = thin(group.sizes["draw"])
        return {n: v[:, keep].reshape(-1, *v.shape[2:]) for n, v in values.items()}
    keep = thin(group.sizes["chain"] * group.sizes["draw"])
    return {n: v.reshape(-1, *v.shape[2:])[keep] for n, v in values.items()}
