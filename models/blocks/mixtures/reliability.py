"""Probability that a statement about a pair is wrong, as a conjugate block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.core import Tracer
from jax.scipy.special import digamma
from scipy.special import expit

from ..block import Block, Observation
from ..collapsed import Collapsed
from ..label_inference.label_graph import LabelGraph

__all__ = ["FLIP_RATE_PRIOR", "FlipRate", "learned_pair_weights"]

FLIP_RATE_PRIOR = (1.0, 4.0)
"""Beta prior of a learned flip rate: mean 0.2, no flips most probable a priori."""

_TYPICAL = 0.2
"""Starting value of a rate about which there is no statement."""

_LARGEST = 0.4
"""Largest starting value of a rate."""

_MARGIN = 1e-4
"""Distance of the starting value from the ends of the support, relative to its length."""


class _Counts(NamedTuple):
    """Beta parameters per group: numbers of wrong and right statements plus those of the prior."""

    wrong: Array
    right: Array


def learned_pair_weights(
    graph: LabelGraph, flip_rate: dist.Distribution | str | None, reading: str
) -> Array | None:
    """Log-odds of the statements under a learned flip rate, for `LinkedCategorical`.

    Parameters
    ----------
    graph : LabelGraph
        Its finite links are the statements.
    flip_rate : Distribution, "learned" or None
        Prior of the probability that a statement is wrong; each group of links has its own
        probability. "learned" is Beta(1, 4). None keeps the weights of the links.
    reading : {"field", "relation", "unnormalised"}
        Links are observed statements under "relation" only.

    Returns
    -------
    Array, shape (num_links,), or None
        None where there is no flip rate, and in compiled code for a graph without links.

    Raises
    ------
    ValueError
        If links are not observed statements, if none is finite, or if the prior is not on (0, 1).
    """
    if flip_rate is None:
        return None
    if reading != "relation":
        raise ValueError(
            "flip_rate is learned from links read as observed statements; pass reading='relation'"
        )
    if not (flip_rate == "learned" if isinstance(flip_rate, str) else _is_prior(flip_rate)):
        raise ValueError(
            f"flip_rate = {flip_rate!r}; expected 'learned' or a NumPyro distribution on (0, 1). A "
            "known flip rate q goes into the links: links.with_strength(flip_rate_weight(q))"
        )
    given = graph.pair_weights
    if isinstance(given, np.ndarray) and not len(given):
        raise ValueError(
            "flip_rate is learned from links, and there are none; pass links, or leave flip_rate out"
        )
    if isinstance(given, np.ndarray) and np.isinf(given).all():
        raise ValueError(
            "flip_rate is learned from soft links, and all of these are hard, which is to say beyond "
            "doubt; pass links.with_strength(1.0)"
        )
    if not graph.num_links:  # new points without links, which need no rate
        return None
    prior = dist.Beta(*FLIP_RATE_PRIOR) if isinstance(flip_rate, str) else flip_rate
    several = graph.num_groups > 1
    with numpyro.plate("link_groups", graph.num_groups) if several else nullcontext():
        rate = FlipRate(prior, graph).sample("flip_rate")
    rate = rate[graph.group] if several else rate
    return jnp.sign(given) * (jnp.log1p(-rate) - jnp.log(rate))


def _is_prior(value: object) -> bool:
    """Whether a value is a distribution of one number between 0 and 1."""
    if not isinstance(value, dist.Distribution) or value.shape() != ():
        return False
    low, high = (getattr(value.support, f"{end}_bound", np.nan) for end in ("lower", "upper"))
    return isinstance(low, Tracer) or isinstance(high, Tracer) or bool(0 <= low < high <= 1)


class FlipRate(Block):
    """Flip rate of soft statements, or one rate per group of links if there are several groups.

    Parameters
    ----------
    prior : Distribution
        Prior on (0, 1) or a part of it; the update is in closed form for a Beta distribution.
    graph : LabelGraph
        Its links are the statements.
    """

    factor: ClassVar[str] = "pair_weights"
    roles: ClassVar[tuple[str, ...]] = ("reliability",)

    def __init__(self, prior: Any, graph: LabelGraph) -> None:
        self.prior, self.graph = prior, graph

    @property
    def has_update(self) -> bool:
        """Whether the prior is conjugate."""
        return isinstance(self.prior, dist.Beta)

    def sample(self, name: str) -> Array:
        """Sample the flip rate, in a plate of the groups if there are several."""
        return self.declare("reliability", name, self.prior)

    def statistics(self, observation: Observation) -> Array:
        """Expected numbers of soft must-links and cannot-links whose labels agree.

        Returns
        -------
        Array, shape (2,), or (2, num_groups) if there are several
        """
        graph = observation.fn.labels.graph
        must, soft = _kinds(graph)
        agree = jnp.where(soft, observation.expected["pair_weights"], 0.0)
        kinds = jnp.stack([jnp.where(must, agree, 0.0), jnp.where(must, 0.0, agree)])
        return _by_group(kinds, graph)

    def update(self, statistics: Array, sources: Sequence[Collapsed]) -> _Counts:
        """Count the statements that the labels make wrong and right."""
        counts = jnp.zeros_like(statistics)
        for fn in sources:
            must, soft = _kinds(fn.labels.graph)
            counts = counts + _by_group(jnp.stack([must & soft, soft]) * 1.0, fn.labels.graph)
        num_must, num_soft = counts
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
        """Log density of flip rates."""
        return dist.Beta(*found, validate_args=False).log_prob(values["reliability"]).sum()

    def expected_factors(self, found: _Counts, observation: Observation) -> dict[str, Any]:
        """Expected log-odds of the statements, and log-probability of statements that disagree."""
        must, soft = _kinds(self.graph)
        total = digamma(found.wrong + found.right)
        wrong, right = (
            jnp.broadcast_to(digamma(count) - total, (self.graph.num_groups,))[self.graph.group]
            for count in found
        )
        apart = jnp.where(must, wrong, right)
        stated = jnp.asarray(self.graph.pair_weights) != 0.0
        return {
            "pair_weights": jnp.where(stated, jnp.where(must, right - wrong, wrong - right), 0.0),
            "log_normalizer": -jnp.sum(apart, where=soft),
        }

    def divergence(self, found: _Counts) -> Array:
        """Divergence from the prior, in nats."""
        return dist.kl_divergence(dist.Beta(*found), self.prior).sum()

    def typical(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The rate that the given weights imply, averaged over the soft statements of a group."""
        given, group = self.graph.pair_weights, self.graph.group
        low, high = (
            getattr(self.prior.support, f"{end}_bound", np.nan) for end in ("lower", "upper")
        )
        if any(isinstance(one, Tracer) for one in (given, group, low, high)):
            return {}
        weights = np.abs(np.asarray(given, float))
        soft = np.isfinite(weights) & (weights > 0)
        number = self.graph.num_groups
        stated = np.bincount(np.asarray(group)[soft], minlength=number)
        total = np.bincount(np.asarray(group)[soft], expit(-weights[soft]), minlength=number)
        rate = np.where(stated > 0, total / np.maximum(stated, 1), _TYPICAL)
        low, high = max(0.0, float(low)), min(1.0, float(high))
        margin = _MARGIN * (high - low)
        # at one half statements carry no information, and no step leads away
        rate = np.clip(np.minimum(rate, _LARGEST), low + margin, high - margin)
        return {"reliability": rate.reshape(shapes["reliability"])}

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that a rate above one half reads links as their opposite."""
        rate = np.asarray(values["reliability"], float).mean(axis=(0, 1)).reshape(-1)
        turned = np.flatnonzero(rate > 0.5)
        if not len(turned):
            return None
        of = f" of link groups {', '.join(map(str, turned[:5]))}" if len(rate) > 1 else ""
        return (
            f"The flip rate{of} was learned as {rate[turned].max():.2f}: above one half, links are read as "
            "their opposite. Check that must-links and cannot-links are not interchanged, or keep the "
            "weights that were given (flip_rate=None)"
        )


def _kinds(graph: LabelGraph) -> tuple[Array, Array]:
    """Masks of the links that are must-links, and of those that are soft with nonzero weight."""
    weights = jnp.asarray(graph.pair_weights)
    return weights > 0, ~jnp.isinf(weights) & (weights != 0.0)


def _by_group(values: Array, graph: LabelGraph) -> Array:
    """Sums over the links of each group, (..., num_links) to (..., num_groups), or () for one group."""
    if graph.num_groups == 1:
        return values.sum(axis=-1)
    return jnp.zeros((*values.shape[:-1], graph.num_groups)).at[..., graph.group].add(values)
