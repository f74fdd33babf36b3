"""Splits of the components of a partitioned mixture into two."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array
from sidebayes.models.blocks.components.gaussians.gaussian import Gaussian
from sidebayes.models.blocks.partitions.discriminants import Discriminants

from .engines.base import Problem
from .engines.problem.declared import collapsed_sites, declared_blocks
from .engines.problem.density import trace_model

__all__ = ["split_candidates"]


def split_candidates(
    problem: Problem,
    params: Mapping[str, Array],
    args: tuple,
    owner: Array,
    admitted: Array,
    count: Array,
) -> tuple[Array, Array, dict[str, Array]]:
    r"""Return all splits of one component along one axis of its covariance (Raghuram 2014, section 3.2.3.3).

    Two children, each with half the weight, have means :math:`\mu \pm \delta e` and the parent's covariance,
    in which the eigenvalue :math:`\lambda` of e is reduced to a quarter. With :math:`\delta =
    \sqrt{3\lambda}/2`, they jointly have the parent's mean and covariance. (Tied covariances stay, and
    spheres keep the parent's total variance: such children have the parent's mean, and as much variance or
    more.)

    Parameters
    ----------
    problem : Problem
        Problem with room for one more component.
    params : mapping
    args : tuple
    owner : Array of int, shape (room,)
        Cluster of each component.
    admitted : Array of bool, shape (num_clusters,)
        Clusters that a child may go to.
    count : Array of int, shape ()
        Number of components in use; the second child takes the next place.

    Returns
    -------
    violation : Array, shape (room, num_features, choices, choices)
        Expected share of violated links, by the clusters of the children; choice 0 is that of the
        parent, the others are all clusters. Infinite where both leave it, or are not admitted.
    log_likelihood : Array, shape (room, num_features)
    sites : dict of Array
        Weights, means, spreads and matching discriminants of each split.
    """
    trace = trace_model(problem, params, args)
    ((fn, value),) = collapsed_sites(trace).values()
    block = next(b for b, _ in declared_blocks(trace) if isinstance(b, Discriminants))
    mean, log_weights = params["mean"], jnp.log(params["weights"])
    name = "covariance" if "covariance" in params else "variance"
    (room, num_features), form = mean.shape, block.covariance
    joint = jnp.where(jnp.arange(room) < count, fn.joint(value), -jnp.inf)
    (first, second), prices = fn.ends, fn.log_odds
    total = jnp.maximum(jnp.abs(prices).sum(), 1e-300)
    choices = jnp.append(0, jnp.arange(len(admitted)))
    is_open = jnp.append(True, admitted)

    def split(k: Array, axis: Array) -> tuple:
        along, length, child, spread = _children(form, params[name], k, axis, num_features)
        move = jnp.sqrt(0.75 * length) * along
        means = mean.at[k].add(-move).at[count].set(mean[k] + move)
        half = log_weights[k] - jnp.log(2.0)
        weights = log_weights.at[k].set(half).at[count].set(half)
        if form == "tied":
            spreads = params[name]
        else:
            spreads = params[name].at[k].set(spread).at[count].set(spread)
        density = Gaussian(
            means[jnp.stack([k, count])], covariance_matrix=jnp.stack([child, child])
        )
        new = density.log_prob(value[:, None]) + half
        joined = joint.at[:, k].set(new[:, 0]).at[:, count].set(new[:, 1])
        prob = jax.nn.softmax(joined, axis=-1)
        between = jnp.einsum("e,ek,el->kl", prices, prob[first], prob[second])

        def violated(a: Array, b: Array) -> Array:
            own = owner.at[count].set(jnp.where(b == 0, owner[k], choices[b]))
            own = own.at[k].set(jnp.where(a == 0, owner[k], choices[a]))
            agreed = jnp.sum(jnp.where(own[:, None] == own, between, 0.0))
            fits = ((a == 0) | (b == 0)) & is_open[a] & is_open[b] & (k < count)
            return jnp.where(fits, (jnp.maximum(prices, 0.0).sum() - agreed) / total, jnp.inf)

        places = jnp.arange(len(choices))
        table = jax.vmap(lambda a: jax.vmap(lambda b: violated(a, b))(places))(places)
        units = trace["centre"]["value"], trace["unit"]["value"]
        sites = {"weights": jnp.exp(weights), "mean": means, name: spreads}
        sites["discriminants"] = block.matched(weights, means, spreads, *units)
        return table, jax.nn.logsumexp(joined, axis=-1).sum(), sites

    which = jnp.repeat(jnp.arange(room), num_features), jnp.tile(jnp.arange(num_features), room)
    found = jax.lax.map(lambda one: split(*one), which)
    return jax.tree.map(lambda leaf: leaf.reshape(room, num_features, *leaf.shape[1:]), found)


def _children(form: str, spread: Array, k: Array, axis: Array, size: int) -> tuple:
    """Return an axis of a component, its variance there, and the covariance and spread of the children."""
    if form in ("full", "tied"):
        sigma = spread[k] if form == "full" else spread
        values, vectors = jnp.linalg.eigh(sigma)
        along = vectors[:, axis]
        narrow = sigma - 0.75 * values[axis] * jnp.outer(along, along)
        return along, values[axis], narrow if form == "full" else sigma, narrow
    along = jnp.eye(size)[axis]
    if form == "diagonal":
        own = spread[k].at[axis].multiply(0.25)
        return along, spread[k, axis], jnp.diag(own), own
    own = spread[k] * (1 - 0.75 / size)
    return along, spread[k], own * jnp.eye(size), own
