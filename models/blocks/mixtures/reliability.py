"""Probability that a statement about a pair is wrong, as a conjugate block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import digamma

from ..block import Block, Evidence
from ..collapsed import Collapsed
from ..label_inference.label_graph import LabelGraph

__all__ = ["FlipRate"]


class _Counts(NamedTuple):
    """Beta parameters: statements that are wrong and right, with those of the prior."""

    wrong: Array
    right: Array


class FlipRate(Block):
    """Flip rate of soft statements under a Beta prior.

    Parameters
    ----------
    prior : Beta
    graph : LabelGraph
        Its links are the statements.
    """

    factor: ClassVar[str] = "pair_weights"
    roles: ClassVar[tuple[str, ...]] = ("reliability",)

    def __init__(self, prior: dist.Beta, graph: LabelGraph) -> None:
        self.prior, self.graph = prior, graph

    def sample(self, name: str) -> Array:
        """Sample the flip rate."""
        return self.declare("reliability", name, self.prior)

    def statistics(self, evidence: Evidence) -> Array:
        """Expected numbers of soft must-links and cannot-links whose labels agree, shape (2,)."""
        must, soft = _kinds(evidence.fn.labels.graph)
        agree = jnp.where(soft, evidence.expected["pair_weights"], 0.0)
        return jnp.stack([jnp.where(must, agree, 0.0).sum(), jnp.where(must, 0.0, agree).sum()])

    def update(self, statistics: Array, sources: Sequence[Collapsed]) -> _Counts:
        """Count statements that are wrong and right about the labels."""
        kinds = [_kinds(fn.labels.graph) for fn in sources]
        num_must = sum((jnp.sum(must & soft) for must, soft in kinds), start=jnp.asarray(0))
        num_soft = sum((jnp.sum(soft) for _, soft in kinds), start=jnp.asarray(0))
        wrong = num_must - statistics[0] + statistics[1]
        prior = self.prior
        return _Counts(prior.concentration1 + wrong, prior.concentration0 + num_soft - wrong)

    def mode(self, found: _Counts, values: Mapping[str, Array]) -> dict[str, Array]:
        """Mode, kept away from 0 and 1."""
        rate = (found.wrong - 1.0) / (found.wrong + found.right - 2.0)
        return {"reliability": jnp.clip(rate, 1e-6, 1.0 - 1e-6)}

    def draw(self, rng_key: Array, found: _Counts) -> dict[str, Array]:
        """Draw a flip rate, inside (0, 1)."""
        drawn = dist.Beta(*found).sample(rng_key)
        limits = jnp.finfo(drawn.dtype)
        return {"reliability": jnp.clip(drawn, limits.tiny, 1.0 - limits.epsneg)}

    def log_density(self, found: _Counts, values: Mapping[str, Array]) -> Array:
        """Log density of a flip rate."""
        return dist.Beta(*found, validate_args=False).log_prob(values["reliability"])

    def expected_factors(self, found: _Counts, evidence: Evidence) -> dict[str, Any]:
        """Expected log-odds of the statements, and log probability of those that disagree."""
        must, soft = _kinds(self.graph)
        wrong, right = (digamma(a) - digamma(found.wrong + found.right) for a in found)
        apart = jnp.where(must, wrong, right)
        return {
            "pair_weights": jnp.where(must, right - wrong, wrong - right),
            "log_normalizer": -jnp.sum(apart, where=soft),
        }

    def divergence(self, found: _Counts) -> Array:
        """Divergence from the prior, in nats."""
        return dist.kl_divergence(dist.Beta(*found), self.prior)


def _kinds(graph: LabelGraph) -> tuple[Array, Array]:
    """Which links are must-links, and which are soft."""
    weights = jnp.asarray(graph.pair_weights)
    return weights > 0, ~jnp.isinf(weights)
