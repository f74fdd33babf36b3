"""Treatment of wide loopy connected sets: an error, or an approximation that the user names.

Trees that hang on a connected set are always summed out exactly; approximations apply to the 2-core
only. Each approximation returns terms whose sum approximates log Z and whose gradient in the
log-potentials is the approximate marginals (the variational parameters are stationary, so they are
held fixed). It also draws joint labels and improves a labeling, by the method of
its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sidebayes.common.fields import Count, NonNegative, Positive, Range, Whole, check_fields

from .colouring import Colouring
from .trees.potts import FORBIDDEN, logsumexp, potts_message

__all__ = [
    "BeliefPropagation",
    "Exact",
    "GibbsLabels",
    "Inference",
    "MeanField",
    "as_inference",
    "with_pair_beliefs",
]


@dataclass(frozen=True)
class Inference:
    """Method by which labels are summed out: exactly wherever the budget allows.

    Parameters
    ----------
    max_table : int
        Maximum number of cells of the tables of all loopy connected sets together; connected sets
        are summed out exactly, the cheapest first, as long as they fit. An evaluation with
        gradients takes about 40 ns per cell, and memory for two numbers for every `num_clusters`
        cells.
    """

    max_table: Whole = 2**16
    name: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the fields against their annotations; see `check_fields`."""
        check_fields(self)

    def log_partition(self, belief: Array, edge_weights: Array, graph: Colouring) -> Array:
        """Approximation of log Z, one term per node of `graph`, shape (num_nodes,)."""
        raise NotImplementedError

    def marginals(self, belief: Array, edge_weights: Array, graph: Colouring) -> Array:
        """Approximate label probabilities in the order of `graph`, shape (num_nodes, num_clusters)."""
        slope = jax.grad(lambda b: self.log_partition(b, edge_weights, graph).sum())
        return slope(belief).at[graph.node].get(mode="fill", fill_value=1.0)

    def draw(self, key: Array, belief: Array, edge_weights: Array, graph: Colouring) -> Array:
        """Draw labels, each from its approximate marginal, as one-hot rows in the order of `graph`."""
        log_prob = jnp.log(self.marginals(belief, edge_weights, graph))
        return _one_hot(jax.random.categorical(key, log_prob), log_prob)

    def best(self, belief: Array, edge_weights: Array, graph: Colouring) -> Array:
        """Labels of high probability, as one-hot rows in the order of `graph`.

        Start from the likeliest label of each marginal, then run iterated conditional modes (Besag,
        1986) until no change of a single label improves the labeling, for at most a hundred sweeps.
        """
        unary = _unary(belief, graph)
        prob = self.marginals(belief, edge_weights, graph)

        def sweep(state):
            count, old, _ = state
            new, _ = _by_colour(
                old, unary, edge_weights, graph, lambda logits, _: _one_hot(logits.argmax(1), old)
            )
            return count + 1, new, jnp.any(new != old)

        start = 0, _one_hot(prob.argmax(axis=1), unary), jnp.asarray(True)
        return lax.while_loop(lambda state: (state[0] < 100) & state[2], sweep, start)[1]


@dataclass(frozen=True)
class Exact(Inference):
    """Refuse connected sets that exceed the budget; see `Inference` for `max_table`.

    The default suits a machine with 4 GiB of memory: the tables take half a GiB with two clusters, and
    less with more.
    """

    max_table: Whole = 2**26
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
        Maximum number of sweeps over all chunklets.
    tol : float
        Stop once no probability changes by more than this.
    max_weight : float
    """

    num_sweeps: Annotated[int, Range(least=0, below=2**31)] = 50
    tol: NonNegative = 1e-6
    max_weight: Positive = 15.0
    name: ClassVar[str] = "mean_field"

    def log_partition(self, belief: Array, edge_weights: Array, graph: Colouring) -> Array:
        """Lower bound on log Z, one term per node, shape (num_nodes,)."""
        unary = _unary(belief, graph)
        weights = jnp.clip(edge_weights, -self.max_weight, self.max_weight)
        fixed_unary, fixed_weights = lax.stop_gradient((unary, weights))

        def sweep(state):
            count, old, _ = state
            new, _ = _by_colour(
                old, fixed_unary, fixed_weights, graph, lambda logits, _: jax.nn.softmax(logits)
            )
            return count + 1, new, jnp.abs(new - old).max()

        # a tilt towards the commonest label: exchangeable labels start at a saddle point of the bound
        real = (jnp.asarray(graph.node) < len(belief))[:, None]
        commonest = _one_hot(jnp.sum(fixed_unary, axis=0, where=real).argmax(), fixed_unary)
        first = jax.nn.softmax(fixed_unary + commonest, axis=1)
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

    The value is exact on trees. With loops it is neither a lower nor an upper bound.

    Parameters
    ----------
    num_sweeps : int
        Maximum number of rounds of messages.
    damping : float
        Share of the old message kept, in [0, 1).
    tol : float
        Stop once no normalised log-message changes by more than this.
    """

    num_sweeps: Annotated[int, Range(least=0, below=2**31)] = 200
    damping: Annotated[float, Range(least=0, below=1)] = 0.5
    tol: NonNegative = 1e-6
    name: ClassVar[str] = "belief_propagation"

    def log_partition(self, belief: Array, edge_weights: Array, graph: Colouring) -> Array:
        """Bethe approximation of log Z, one term per node, shape (num_nodes,)."""
        unary = _unary(belief, graph)
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
        # links of padding rows cancel, up to rounding
        real = jnp.asarray(graph.node) < len(belief)
        return jnp.where(real, node_value.at[graph.first].add(edge_value), 0.0)


@dataclass(frozen=True)
class GibbsLabels(Inference):
    """Chromatic Gibbs sampling of the labels; marginals averaged over conditionals (Lu, eq. 2.27).

    The value is the mean-field bound at the sampled marginals, hence a noisy lower bound. Every
    evaluation uses the same random numbers, so that an optimiser sees one function.

    Parameters
    ----------
    num_sweeps : int
        Number of sweeps that are kept.
    num_burn_in : int
        Number of sweeps that are discarded first.
    seed : int
    """

    num_sweeps: Count = 200
    num_burn_in: Whole = 50
    seed: Whole = 0
    name: ClassVar[str] = "gibbs_labels"

    def log_partition(self, belief: Array, edge_weights: Array, graph: Colouring) -> Array:
        """Noisy lower bound on log Z, one term per node, shape (num_nodes,)."""
        unary = _unary(belief, graph)
        fixed = lax.stop_gradient((unary, edge_weights))

        def keep(carry, key):
            labels, total, agree = carry
            labels, prob = self._sweep(labels, key, *fixed, graph)
            # only the later end was drawn conditional on the new label of the other
            same = jnp.sum(labels[graph.first] * prob[graph.second], axis=1)
            return (labels, total + prob, agree + same), None

        warm_up, kept = jax.random.split(jax.random.key(self.seed))
        labels = self._burn_in(warm_up, *fixed, graph)
        empty = jnp.zeros_like(unary), jnp.zeros(graph.first.shape[0], unary.dtype)
        keys = jax.random.split(kept, self.num_sweeps)
        (_, total, agree), _ = lax.scan(keep, (labels, *empty), keys)
        return _bound(unary, edge_weights, total / self.num_sweeps, agree / self.num_sweeps, graph)

    def draw(self, key: Array, belief: Array, edge_weights: Array, graph: Colouring) -> Array:
        """Draw labels jointly after `num_burn_in` sweeps, as one-hot rows in the order of `graph`."""
        return self._burn_in(key, _unary(belief, graph), edge_weights, graph)

    def _burn_in(self, key, unary, edge_weights, graph):
        def step(labels, key):
            return self._sweep(labels, key, unary, edge_weights, graph)[0], None

        start = _one_hot(jnp.argmax(unary, axis=1), unary)
        return lax.scan(step, start, jax.random.split(key, self.num_burn_in))[0]

    def _sweep(self, labels, key, unary, edge_weights, graph):
        """Draw all labels once; also returns the conditionals that they were drawn from."""
        noise = jax.random.gumbel(key, unary.shape, unary.dtype)

        def draw(logits, noise):
            return _one_hot(jnp.argmax(logits + noise, axis=1), logits)

        labels, logits = _by_colour(labels, unary, edge_weights, graph, draw, noise)
        return labels, jax.nn.softmax(logits, axis=1)


_NAMES: dict[str, type[Inference]] = {
    cls.name: cls for cls in (Exact, MeanField, BeliefPropagation, GibbsLabels)
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
    if not isinstance(inference, str) or inference not in _NAMES:
        raise ValueError(f"inference = {inference!r}; expected one of {sorted(_NAMES)}")
    return _NAMES[inference]()


def with_pair_beliefs(own: str | Inference, asked: str | Inference | None = None) -> Inference:
    """The requested inference, or else the model's own, with beliefs about pairs.

    Mean field has no such beliefs, so belief propagation replaces it if it is the model's own.
    """
    found = as_inference(own if asked is None else asked)
    if asked is None and found.name == "mean_field":
        return BeliefPropagation(max_table=found.max_table)
    return found


def _unary(belief: Array, graph: Colouring) -> Array:
    """Log-potentials by row; a padding row has one possible label, so that its terms are zero."""
    unary = belief.at[graph.node].get(mode="fill", fill_value=0.0)
    spare = (jnp.asarray(graph.node) >= len(belief))[:, None] & (jnp.arange(unary.shape[1]) > 0)
    return jnp.where(spare, FORBIDDEN, unary)


def _by_colour(
    state: Array,
    unary: Array,
    edge_weights: Array,
    graph: Colouring,
    update: Callable[[Array, Array | None], Array],
    noise: Array | None = None,
) -> tuple[Array, Array]:
    """Update the rows, one colour after another, from their conditional log-potentials.

    Returns
    -------
    state, logits : Array, shape (num_nodes, num_clusters)
        The new rows, and the conditional log-potentials from which they were computed.
    """
    edges, nodes = graph.edge_window, graph.node_window

    def one_round(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        state, logits = carry
        first, count = jnp.asarray(graph.first_edge)[number], jnp.asarray(graph.edge_count)[number]
        source, target, edge = (
            lax.dynamic_slice_in_dim(jnp.asarray(part), first, edges)
            for part in (graph.source, graph.target, graph.number)
        )
        target = jnp.where(np.arange(edges) < count, target, len(state))
        said = edge_weights[edge][:, None] * state[source]
        logits = logits.at[target].add(said, mode="drop")
        first, count = jnp.asarray(graph.first_node)[number], jnp.asarray(graph.node_count)[number]
        old, here = (lax.dynamic_slice_in_dim(rows, first, nodes) for rows in (state, logits))
        drawn = None if noise is None else lax.dynamic_slice_in_dim(noise, first, nodes)
        mine = (np.arange(nodes) < count)[:, None]
        new = jnp.where(mine, update(here, drawn), old)
        return lax.dynamic_update_slice_in_dim(state, new, first, 0), logits

    return lax.fori_loop(0, graph.num_rounds, one_round, (state, unary))


def _one_hot(label: Array, like: Array) -> Array:
    return jax.nn.one_hot(label, like.shape[1], dtype=like.dtype)


def _bound(unary: Array, weights: Array, prob: Array, agree: Array, graph: Colouring) -> Array:
    """Mean-field bound; its gradient in the pair weights is `agree`."""
    weight = weights[graph.edge]
    product = jnp.sum(prob[graph.first] * prob[graph.second], axis=1)
    pair = weight * product + (weight - lax.stop_gradient(weight)) * (agree - product)
    log_prob = jnp.log(jnp.where(prob > 0, prob, 1.0))
    node_value = jnp.sum(prob * (unary - log_prob), axis=1)
    return node_value.at[graph.first].add(jnp.where(product > 0, pair, 0.0))
