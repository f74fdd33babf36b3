"""How wide loopy components are treated: refused, or by an approximation that the user names.

Trees that hang on a component are always summed out exactly; an approximation sees the 2-core only.
Each returns terms whose sum approximates log Z and whose gradient in the log-potentials is the
approximate marginals (the variational parameters are stationary, so they are held fixed).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from .colouring import Colouring
from .potts import logsumexp, potts_message

__all__ = ["BeliefPropagation", "Exact", "Gibbs", "Inference", "MeanField", "as_inference"]


@dataclass(frozen=True)
class Inference:
    """How labels are summed out: exactly wherever the budget allows.

    Parameters
    ----------
    max_table : int
        Most cells that the tables of one group of components may hold, chunklets times
        ``num_clusters ** (width + 1)``; 2**24 float64 cells are 128 MiB.
    """

    max_table: int = 2**24
    name: ClassVar[str]

    def affords(self, core, num_clusters: int) -> bool:
        """Tell whether the tables of a group of loopy components fit the budget."""
        if core.width is None:
            return False
        return core.num_buckets * num_clusters ** (core.width + 1) <= self.max_table


@dataclass(frozen=True)
class Exact(Inference):
    """Refuse components that exceed the budget; see `Inference` for `max_table`."""

    name: ClassVar[str] = "exact"


@dataclass(frozen=True)
class MeanField(Inference):
    """Fully factorised labels, updated one colour class after another (Lu 2008, eq. 2.31).

    The exponent carries the pair weight once per unordered pair (the printed equation lacks a
    factor two). The value is a lower bound on log Z. Weights are capped at `max_weight` in
    absolute value, since a factorised distribution cannot keep a hard link.

    Parameters
    ----------
    num_sweeps : int
        Most sweeps over all chunklets.
    tol : float
        Stop once no probability moves by more.
    max_weight : float
    """

    num_sweeps: int = 50
    tol: float = 1e-6
    max_weight: float = 15.0
    name: ClassVar[str] = "mean_field"

    def log_partition(self, belief: Array, edge_weights: Array, graph: Colouring) -> Array:
        """Lower bound on log Z, one term a node, shape (num_nodes,)."""
        unary = belief[graph.node]
        weights = jnp.clip(edge_weights, -self.max_weight, self.max_weight)
        fixed_unary, fixed_weights = lax.stop_gradient((unary, weights))

        def sweep(state):
            count, old, _ = state
            new = old
            start = 0
            for source, target, edge, size in zip(
                graph.sources, graph.targets, graph.edges, graph.sizes, strict=True
            ):
                field = jax.ops.segment_sum(
                    fixed_weights[edge][:, None] * new[source],
                    target,
                    len(size),
                    indices_are_sorted=True,
                )
                part = slice(start, start + len(size))
                new = new.at[part].set(jax.nn.softmax(fixed_unary[part] + field, axis=1))
                start += len(size)
            return count + 1, new, jnp.abs(new - old).max()

        first = jax.nn.softmax(fixed_unary, axis=1)
        _, prob, _ = lax.while_loop(
            lambda state: (state[0] < self.num_sweeps) & (state[2] > self.tol),
            sweep,
            (0, first, jnp.asarray(jnp.inf, first.dtype)),
        )
        agree = jnp.sum(prob[graph.first] * prob[graph.second], axis=1)
        return _bound(unary, weights, prob, agree, graph)


@dataclass(frozen=True)
class BeliefPropagation(Inference):
    """Loopy sum-product with damped parallel updates; the value is the Bethe approximation.

    Exact on trees, neither a lower nor an upper bound with loops.

    Parameters
    ----------
    num_sweeps : int
        Most rounds of messages.
    damping : float
        Share of the old message kept, in [0, 1).
    tol : float
        Stop once no normalised log-message moves by more.
    """

    num_sweeps: int = 200
    damping: float = 0.5
    tol: float = 1e-6
    name: ClassVar[str] = "belief_propagation"

    def log_partition(self, belief: Array, edge_weights: Array, graph: Colouring) -> Array:
        """Bethe approximation of log Z, one term a node, shape (num_nodes,)."""
        unary = belief[graph.node]
        weights = edge_weights[graph.edge]
        fixed_unary, fixed_weights = lax.stop_gradient((unary, weights))
        source = jnp.concatenate([graph.first, graph.second])
        target = jnp.concatenate([graph.second, graph.first])
        both = jnp.concatenate([fixed_weights, fixed_weights])
        num_nodes = unary.shape[0]

        def swap(messages):
            first, second = jnp.split(messages, 2)
            return jnp.concatenate([second, first])

        def cavities(messages):
            total = fixed_unary + jax.ops.segment_sum(messages, target, num_nodes)
            return total[source] - swap(messages)

        def update(state):
            count, old, _ = state
            new = potts_message(cavities(old), both)
            new = new - logsumexp(new)[:, None]
            new = self.damping * old + (1 - self.damping) * new
            return count + 1, new, jnp.abs(jnp.exp(new) - jnp.exp(old)).max()

        first = jnp.full((2 * weights.shape[0], unary.shape[1]), -jnp.log(unary.shape[1] * 1.0))
        first = first.astype(unary.dtype)
        _, messages, _ = lax.while_loop(
            lambda state: (state[0] < self.num_sweeps) & (state[2] > self.tol),
            update,
            (0, first, jnp.asarray(jnp.inf, first.dtype)),
        )
        cavity = cavities(messages)
        node_value = logsumexp(unary + jax.ops.segment_sum(messages, target, num_nodes))
        here, there = jnp.split(cavity, 2)
        forward, backward = jnp.split(messages, 2)
        edge_value = (
            logsumexp(potts_message(here, weights) + there)
            - logsumexp(forward + there)
            - logsumexp(backward + here)
        )
        return node_value.at[graph.first].add(edge_value)


@dataclass(frozen=True)
class Gibbs(Inference):
    """Chromatic Gibbs sampling of the labels; marginals averaged over conditionals (Lu, eq. 2.27).

    The value is the mean-field bound at the sampled marginals, hence a noisy lower bound. Every
    evaluation uses the same random numbers, so that an optimiser sees one function.

    Parameters
    ----------
    num_sweeps : int
        Sweeps kept.
    num_burn_in : int
        Sweeps dropped first.
    seed : int
    """

    num_sweeps: int = 200
    num_burn_in: int = 50
    seed: int = 0
    name: ClassVar[str] = "gibbs"

    def log_partition(self, belief: Array, edge_weights: Array, graph: Colouring) -> Array:
        """Noisy lower bound on log Z, one term a node, shape (num_nodes,)."""
        unary = belief[graph.node]
        fixed_unary, fixed_weights = lax.stop_gradient((unary, edge_weights))
        num_clusters = unary.shape[1]

        def sweep(state, key):
            new, prob = state
            start = 0
            for colour, (source, target, edge, size) in enumerate(
                zip(graph.sources, graph.targets, graph.edges, graph.sizes, strict=True)
            ):
                field = jax.ops.segment_sum(
                    fixed_weights[edge][:, None] * new[source],
                    target,
                    len(size),
                    indices_are_sorted=True,
                )
                part = slice(start, start + len(size))
                logits = fixed_unary[part] + field
                drawn = jax.random.categorical(jax.random.fold_in(key, colour), logits)
                new = new.at[part].set(jax.nn.one_hot(drawn, num_clusters, dtype=new.dtype))
                prob = prob.at[part].set(jax.nn.softmax(logits, axis=1))
                start += len(size)
            return new, prob

        def keep(carry, key):
            state, total, agree = carry
            state = sweep(state, key)
            new, prob = state
            # only the later end was drawn from a conditional that knew the other's new label
            same = jnp.sum(new[graph.first] * prob[graph.second], axis=1)
            return (state, total + prob, agree + same), None

        keys = jax.random.split(jax.random.key(self.seed), self.num_burn_in + self.num_sweeps)
        prob = jax.nn.softmax(fixed_unary, axis=1)
        start = jax.nn.one_hot(jnp.argmax(fixed_unary, axis=1), num_clusters, dtype=unary.dtype)
        state, _ = lax.scan(
            lambda s, key: (sweep(s, key), None), (start, prob), keys[: self.num_burn_in]
        )
        empty = jnp.zeros(graph.first.shape[0], unary.dtype)
        (_, total, agree), _ = lax.scan(
            keep, (state, jnp.zeros_like(prob), empty), keys[self.num_burn_in :]
        )
        return _bound(unary, edge_weights, total / self.num_sweeps, agree / self.num_sweeps, graph)


_NAMES: dict[str, type[Inference]] = {
    cls.name: cls for cls in (Exact, MeanField, BeliefPropagation, Gibbs)
}


def as_inference(inference: str | Inference) -> Inference:
    """Look an inference up by name.

    Raises
    ------
    ValueError
        For an unknown name.
    """
    if isinstance(inference, Inference):
        return inference
    if inference not in _NAMES:
        raise ValueError(f"inference = {inference!r}; expected one of {sorted(_NAMES)}")
    return _NAMES[inference]()


def _bound(unary: Array, weights: Array, prob: Array, agree: Array, graph: Colouring) -> Array:
    """Mean-field bound; its gradient in the pair weights is `agree`."""
    weight = weights[graph.edge]
    product = jnp.sum(prob[graph.first] * prob[graph.second], axis=1)
    pair = weight * product + (weight - lax.stop_gradient(weight)) * (agree - product)
    log_prob = jnp.log(jnp.where(prob > 0, prob, 1.0))
    node_value = jnp.sum(prob * (unary - log_prob), axis=1)
    return node_value.at[graph.first].add(jnp.where(product > 0, pair, 0.0))
