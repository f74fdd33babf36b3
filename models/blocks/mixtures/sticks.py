"""Stick-breaking weights of a truncated Dirichlet process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import Array
from jax.scipy.special import digamma

from sidebayes.common.fields import Range, check_number
from sidebayes.common.magnitudes import shown

from ..block import Block, Observation
from ..collapsed import Collapsed
from .linked_categorical import check_reading
from .weights import match_moments

__all__ = ["TRUNCATIONS", "Sticks", "check_truncation", "log_stick_weights", "stick_weights"]

TRUNCATIONS = ("closed", "open")
"""Whether the last cluster takes all remaining mass, or its own stick leaves some."""

_MUCH = 0.01
"""Expected weight of the last cluster above which the truncation is reported to matter."""


def stick_weights(
    num_clusters: int,
    concentration: float | Array | dist.Distribution = 1.0,
    truncation: str = "closed",
) -> Array:
    """Sample the weights of a truncated Dirichlet process; returns their logarithms.

    The sites are ``sticks``, ``weights``, and ``concentration`` if it is learned.

    Parameters
    ----------
    num_clusters : int
        Truncation level.
    concentration : float, Array of shape (), or Distribution
        Concentration of the process, positive; a distribution is the prior of a learned one.
    truncation : {"closed", "open"}
        "closed": the last stick is one, so that weights sum to one (Blei and Jordan 2006, section 3).
        "open": the last stick is Beta like the others, and mass beyond it is left out.

    Returns
    -------
    Array, shape (num_clusters,)
    """
    if isinstance(concentration, dist.Distribution):
        concentration = numpyro.sample("concentration", concentration)
    elif not isinstance(concentration, Array):
        concentration = check_number("concentration", concentration, Range(above=0.0))
    return Sticks(num_clusters, concentration, truncation).sample("sticks")


def check_truncation(truncation: str, reading: str) -> None:
    """Refuse open sticks under readings of links that need a normalised distribution of labels."""
    check_reading(reading)
    if isinstance(truncation, str) and truncation == "open" and reading != "unnormalised":
        raise ValueError(
            f"truncation='open' leaves mass out, so that labels under reading={shown(reading)} have no law; "
            "pass truncation='closed', or reading='unnormalised'"
        )


def log_stick_weights(sticks: Array, num_clusters: int) -> Array:
    """Log weights from sticks; if there are fewer sticks than clusters, the last stick is one."""
    whole = jnp.zeros(num_clusters - len(sticks))
    broken = jnp.concatenate([jnp.log(sticks), whole])
    rest = jnp.cumsum(jnp.log1p(-sticks))[: num_clusters - 1]
    return broken + jnp.concatenate([jnp.zeros(1), rest])


class _BetaPosterior(NamedTuple):
    """Parameters of the Beta posteriors, counts, and distributions with weights in the normaliser."""

    first: Array
    second: Array
    counts: Array
    tied: tuple[Any, ...] = ()


class Sticks(Block):
    r"""Sticks :math:`v_k \sim \text{Beta}(1, \alpha)`, with weights :math:`v_k \prod_{j<k} (1 - v_j)`.

    Given expected counts :math:`N_k` their posterior is :math:`\text{Beta}(1 + N_k, \alpha +
    \sum_{j>k} N_j)` (Blei and Jordan 2006, eqs. 18-19). Sticks are ordered: their prior is not
    invariant under any renumbering of the clusters.

    Parameters
    ----------
    num_clusters : int
    concentration : float or Array, shape ()
    truncation : {"closed", "open"}
    """

    factor: ClassVar[str] = "log_weights"
    roles: ClassVar[tuple[str, ...]] = ("sticks",)
    derived: ClassVar[dict[str, str]] = {"weights": "mixing_weights"}

    def __init__(self, num_clusters: int, concentration: float | Array, truncation: str) -> None:
        if not isinstance(truncation, str) or truncation not in TRUNCATIONS:
            raise ValueError(f"truncation = {shown(truncation)}; expected 'closed' or 'open'")
        self.num_clusters, self.concentration = num_clusters, concentration
        self.num_sticks = num_clusters - (truncation == "closed")

    def sample(self, name: str) -> Array:
        """Sample the sticks; returns log weights, shape (num_clusters,)."""
        log_weights = jnp.zeros(1)
        if self.num_sticks:
            prior = dist.Beta(1.0, self.concentration).expand([self.num_sticks]).to_event(1)
            dims = ["clusters" if self.num_sticks == self.num_clusters else "clusters_but_last"]
            sticks = self.declare("sticks", name, prior, dims, {"clusters": "none"})
            log_weights = log_stick_weights(_inside(sticks), self.num_clusters)
        with numpyro.plate("clusters", self.num_clusters):
            numpyro.deterministic("weights", jnp.exp(log_weights))
        return log_weights

    def statistics(self, observation: Observation) -> Array:
        """Expected counts."""
        return observation.expected[self.factor]

    def update(self, statistics: Array, sources: Sequence[Collapsed]) -> _BetaPosterior:
        """Beta posteriors, and the partition functions that depend on the weights."""
        later = jnp.cumsum(statistics[::-1])[::-1]
        own = slice(0, self.num_sticks)
        beyond = (later - statistics)[own]
        tied = tuple(fn for fn in sources if not fn.has_free_weights)
        return _BetaPosterior(1.0 + statistics[own], self.concentration + beyond, statistics, tied)

    def obstacle(self, sources: Sequence[Collapsed]) -> str | None:
        """Say why there is no full conditional if a partition function depends on the weights."""
        if all(fn.has_free_weights for fn in sources):
            return None
        return (
            "the partition function of links under reading='field' depends on the sticks: pass "
            "reading='unnormalised' or reading='relation' for a factor of theirs"
        )

    def mode(self, found: _BetaPosterior, values: Mapping[str, Array]) -> dict[str, Array]:
        r"""Mode of the sticks, jointly with all partition functions.

        The prior of closed sticks is :math:`(\alpha - 1) \log \pi_K` up to a constant (own
        derivation: the product of all :math:`1 - v_k` telescopes), so that it acts like additional
        observations of the last cluster.
        """
        if not found.tied:
            first, second = found.first - 1.0, jnp.maximum(found.second - 1.0, 0.0)
            total = first + second
            share = jnp.where(total > 0, first / jnp.where(total > 0, total, 1.0), 0.5)
            return {"sticks": _inside(share)}
        count = found.counts.at[-1].add(self.concentration - 1.0)

        def log_omega(log_weights: Array) -> Array:
            terms = [fn.log_normalizer_at(log_weights) for fn in found.tied]
            return sum(terms, start=jnp.zeros(()))

        start = log_stick_weights(_inside(values["sticks"]), self.num_clusters)
        weights = match_moments(jnp.maximum(count, 1e-10), start, log_omega)
        left = jnp.cumsum(weights[::-1])[::-1][: self.num_sticks]
        return {"sticks": _inside(weights[: self.num_sticks] / left)}

    def draw(self, rng_key: Array, found: _BetaPosterior) -> dict[str, Array]:
        """Draw sticks, none exactly zero or one."""
        return {"sticks": _inside(dist.Beta(found.first, found.second).sample(rng_key))}

    def log_density(self, found: _BetaPosterior, values: Mapping[str, Array]) -> Array:
        """Log density of the sticks, up to a constant if there are partition functions."""
        sticks = values["sticks"]
        free = dist.Beta(found.first, found.second, validate_args=False).log_prob(sticks).sum()
        if not found.tied:
            return free
        log_weights = log_stick_weights(_inside(sticks), self.num_clusters)
        return free - sum(fn.log_normalizer_at(log_weights) for fn in found.tied)

    def expected_factors(self, found: _BetaPosterior, observation: Observation) -> dict[str, Array]:
        """Expected log weights (Blei and Jordan 2006, section 3.2)."""
        both = digamma(found.first + found.second)
        taken, left = digamma(found.first) - both, digamma(found.second) - both
        whole = jnp.zeros(self.num_clusters - self.num_sticks)
        before = jnp.concatenate([jnp.zeros(1), jnp.cumsum(left)[: self.num_clusters - 1]])
        return {self.factor: jnp.concatenate([taken, whole]) + before}

    def divergence(self, found: _BetaPosterior) -> Array:
        """Divergence from the prior, in nats."""
        prior = dist.Beta(1.0, self.concentration)
        return dist.kl_divergence(dist.Beta(found.first, found.second), prior).sum()

    def typical(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Sticks of equal weights, with some mass left beyond an open end."""
        left = self.num_sticks + 1 - np.arange(self.num_sticks)
        return {"sticks": 1.0 / left}

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """Say that the truncation matters if the last cluster has a large expected weight."""
        sticks = np.asarray(values["sticks"], float).reshape(-1, self.num_sticks)
        left = np.cumprod(1 - sticks[:, : self.num_clusters - 1], axis=1)
        left = np.concatenate([np.ones((len(left), 1)), left], axis=1).mean(axis=0)
        spare = int(np.sum(left[:-1] - left[1:] < _MUCH))
        if left[-1] < _MUCH or self.num_clusters == 1:
            return None
        last = f"The last of {self.num_clusters} clusters has {left[-1]:.0%} of the mass"
        if spare:
            return (
                f"{last}, and {spare} before it have next to none: another order of the clusters is "
                "likelier; add starts"
            )
        return (
            f"{last}: the truncation matters; raise num_clusters and see whether the answer stays"
        )


def _inside(sticks: Array) -> Array:
    """Keep sticks away from zero and one, where the log of a weight would be infinite."""
    least = jnp.finfo(jnp.result_type(float)).eps
    return jnp.clip(sticks, least, 1.0 - least)
