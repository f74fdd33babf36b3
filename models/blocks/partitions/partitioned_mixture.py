"""NumPyro distribution of data whose clusters share components, with a restricted posterior."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from numpyro.distributions import constraints

from sidebayes.common.arrays import is_traced
from sidebayes.common.magnitudes import listed

from ..collapsed import Fitted, NamedArray
from ..mixtures.finite_mixture import FiniteMixture
from ..mixtures.linked_categorical import LinkedCategorical
from ..mixtures.row_densities import draw_rows, row_log_densities
from .component_clusters import free_components
from .rule import Rule

__all__ = ["PartitionedMixture"]

_SWEEPS = 100
"""Maximum number of sweeps over the links until mean-field factors converge."""

_NOWHERE = -1e30
"""Log density that represents zero density, and whose products with zero are zero."""

_STILL = 1e-10
"""Change of probabilities in a sweep below which the factors have converged."""


class PartitionedMixture(FiniteMixture):
    r"""Data of all points; components belong to clusters, and links are statements about clusters.

    With components :math:`z_i`, clusters :math:`c_i \sim V_{z_i}` and statements that are right with
    log-odds :math:`|w_{ij}|`, the log density of data and statements is bounded from below by

    .. math:: \sum_{ik} q_{ik} \log \frac{\pi_k p(x_i | \theta_k)}{q_{ik}}
              + \sum_{ic} e_{ic} (q_i^\top V)_c + \sum_{(i,j)} w_{ij}\, q_i^\top V V^\top q_j
              - \sum_{(i,j)} \log(1 + e^{w_{ij}})

    for any factors q. `log_prob` is this bound. If a `rule` is given, all points share it,
    :math:`q_i = \text{softmax}(\psi(x_i))`. Space is then partitioned, and links of a point also
    affect its neighbours (Raghuram 2014, eqs. 3.9-3.12). Without a rule every linked point has its
    own factor, at the mean-field fixed point that is reached from the posterior without links.

    Parameters
    ----------
    labels : LinkedCategorical
        Law of the clusters given links, with ``reading="relation"`` and log weights of zero: the
        weights are those of the components.
    components : Distribution, batch_shape (num_components,)
    log_within : Array, shape (num_components,)
        Log weights of the components.
    table : Array, shape (num_components, num_clusters)
        V, the probability of each cluster given the component.
    rule : Rule, optional
        Discriminants of points.
    alive : Array of bool, shape (num_components,), optional
        Mask of the active components; the others pad arrays to a size that is already compiled.
    log_side : Array, shape (num_points, num_clusters), optional
        e, further log-factors of the clusters of points.
    """

    arg_constraints: ClassVar[dict] = {}
    components: dist.Distribution
    pytree_data_fields: ClassVar[tuple[str, ...]] = (
        "labels",
        "components",
        "log_within",
        "table",
        "rule",
        "alive",
        "log_side",
    )

    def __init__(
        self,
        labels: LinkedCategorical,
        components: dist.Distribution,
        log_within: Array,
        table: Array,
        rule: Rule | None = None,
        alive: Array | None = None,
        log_side: Array | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(labels, LinkedCategorical) or labels.reading != "relation":
            raise TypeError(
                "labels of a PartitionedMixture must be a LinkedCategorical of reading='relation'"
            )
        size = components.batch_shape[0]
        if jnp.shape(table) != (size, labels.log_weights.shape[-1]):
            raise ValueError(
                f"table has shape {jnp.shape(table)}; expected {(size, labels.log_weights.shape[-1])}, "
                "a row for every component and a column for every cluster"
            )
        self.labels, self.components = labels, components
        self.log_within, self.table, self.rule, self.alive = log_within, table, rule, alive
        self.log_side = log_side
        shape = (labels.graph.num_points, *components.event_shape)
        super().__init__(event_shape=shape, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """Support of the components, one row per point."""
        return constraints.independent(self.components.support, 1)

    def approximation(self) -> str | None:
        """Name the family of the posterior."""
        return "mean_field" if self.rule is None else "space_partition"

    @property
    def links_move_labels(self) -> bool:
        """Whether linked points have factors of their own; links else move the regions of a rule."""
        return self.rule is None

    @property
    def mixing_log_weights(self) -> Array:
        """Log weights of the components; those of the clusters are all zero."""
        return self.log_within

    @property
    def is_untold(self) -> bool:  # type: ignore[override]
        """Whether clusters have several components, and no link says which."""
        size, num_clusters = jnp.shape(self.table)
        known = self.labels.graph.states_any or self.log_side is not None
        return size > num_clusters > 1 and not known

    def remark(self) -> str | None:
        """Say that no link, or must-links alone, do not separate clusters."""
        weights = self.labels.graph.pair_weights
        if self.is_untold or is_traced(weights):
            return super().remark()
        weights = np.asarray(weights)
        if not (weights > 0).any() or (weights < 0).any():
            return None
        return (
            "All links are must-links, and one cluster of all rows keeps every one of them: clusters may "
            "have merged for no other reason; state cannot-links too"
        )

    def remark_on_draw(self, name: str, value: Any, is_density: bool) -> str | None:
        """Name components that no link places in a cluster."""
        if self.is_untold:
            return None
        factors = self.log_factors(value)
        prob = jnp.exp(self.log_memberships(factors))
        first, second = self.ends
        pull = (self.log_odds[:, None] * prob[first]).T @ prob[second]
        side = 0.0 if self.log_side is None else prob.T @ self.log_side
        free = free_components(
            *map(np.asarray, (pull + pull.T, side, self.table, prob.sum(axis=0)))
        )
        if not len(free):
            return None
        which = "component" if len(free) == 1 else "components"
        return (
            f"Links hardly tell the cluster of {which} {listed(free)}, so that it is arbitrary: link more "
            "points there, or take fewer components (num_components)"
        )

    @property
    def has_curvature(self) -> bool:
        """Whether `log_prob` can be differentiated twice; through fixed points only once."""
        return self.rule is not None

    def log_factors(self, value: Array) -> dict[str, Array]:
        """Log-factors that couple data, components and links.

        Returns
        -------
        dict
            ``unary`` (num_points, num_components), log densities; ``log_within`` (num_components,),
            log weights; ``log_weights`` (num_clusters,), which are zero; ``pair_weights``
            (num_links,); ``agreement`` (num_components, num_components), the probability that two
            components share their cluster; and ``scores``, if there is a rule.
        """
        factors = self.log_factors_of_labels() | {
            "unary": row_log_densities(self.components, value),
            "log_within": self.log_within,
            "agreement": self.table @ self.table.T,
        }
        return factors if self.rule is None else factors | {"scores": self.rule.scores(value)}

    def label_factors(self, factors: dict[str, Array]) -> Array:
        """Log joint densities of point and cluster, without links, (num_points, num_clusters)."""
        joint = self._among(factors["unary"] + factors["log_within"])
        top = joint.max(axis=-1, keepdims=True)
        share = jnp.exp(joint - top) @ self.table
        held = share > 0
        found = jnp.where(held, jnp.log(jnp.where(held, share, 1.0)) + top, _NOWHERE)
        return found + factors["log_side"] if "log_side" in factors else found

    @property
    def ends(self) -> tuple[Array, Array]:
        """Points that each link joins; a padding row names one point twice."""
        first, second = jnp.asarray(self.labels.graph.pairs).T
        return first, second

    @property
    def log_odds(self) -> Array:
        """Log-odds of the statements that ends share their cluster; zero in padding rows."""
        return self._stated(jnp.asarray(self.labels.pair_weights))

    def _stated(self, values: Array) -> Array:
        """Values by link, zero in padding rows."""
        first, second = self.ends
        return jnp.where(first != second, values, 0.0)

    def joint(self, value: Array) -> Array:
        """Log joint densities of points and components, shape (num_points, num_components)."""
        return self._among(self.log_factors(value)["unary"] + self.log_within)

    def _joint(self, factors: dict[str, Array]) -> Array:
        """Log joint densities of points and components, including side factors."""
        joint = factors["unary"] + factors["log_within"]
        return joint + factors["log_side"] @ self.table.T if "log_side" in factors else joint

    def _among(self, scores: Array) -> Array:
        """Scores; those of inactive components are far below all others."""
        return scores if self.alive is None else jnp.where(self.alive, scores, _NOWHERE)

    def log_rule(self, scores: Array) -> Array:
        """Logarithms of the factors q of discriminants."""
        return jax.nn.log_softmax(self._among(scores), axis=-1)

    def log_memberships(self, factors: dict[str, Array]) -> Array:
        """Logarithms of the factors q, shape (num_points, num_components)."""
        if self.rule is not None:
            return self.log_rule(factors["scores"])
        return lax.stop_gradient(self._mean_field(factors))

    def _mean_field(self, factors: dict[str, Array]) -> Array:
        """Factors from coordinate ascent, point by point along the links (Raghuram 2014, eq. 3.5)."""
        joint = self._among(self._joint(factors))
        if not self.labels.graph.num_links:
            return jax.nn.log_softmax(joint, axis=-1)
        (first, second), weights, agreement = self.ends, self.log_odds, factors["agreement"]
        points = jnp.stack([first, second], axis=1).ravel()

        def renew(log_q: Array, point: Array) -> Array:
            pull = jnp.where(first == point, weights, 0.0) @ jnp.exp(log_q[second])
            pull += jnp.where(second == point, weights, 0.0) @ jnp.exp(log_q[first])
            return log_q.at[point].set(jax.nn.log_softmax(joint[point] + agreement @ pull))

        def sweep(state: tuple) -> tuple:
            number, before, _ = state
            after, _ = lax.scan(lambda q, point: (renew(q, point), None), before, points)
            return number + 1, after, jnp.abs(jnp.exp(after) - jnp.exp(before)).max()

        state = 0, jax.nn.log_softmax(joint, axis=-1), jnp.asarray(jnp.inf, joint.dtype)
        go_on = lambda s: (s[0] < _SWEEPS) & (s[2] > _STILL)  # noqa: E731
        return lax.while_loop(go_on, sweep, state)[1]

    def bound(self, factors: dict[str, Array], log_q: Array) -> Array:
        """Lower bound of the log partition function for factors q, shape ()."""
        by_point, by_link = self._terms(factors, log_q)
        return by_point.sum() + by_link.sum()

    def _terms(self, factors: dict[str, Array], log_q: Array) -> tuple[Array, Array]:
        """Terms of the bound by point and by link."""
        prob = jnp.exp(log_q)
        joint = self._joint(factors)
        by_point = (prob * (joint - log_q)).sum(axis=-1)
        stated = self._stated(factors["pair_weights"])
        return by_point, stated * self._agree(prob, factors["agreement"])

    def _agree(self, prob: Array, agreement: Array) -> Array:
        """Probability that the ends of each link share their cluster."""
        first, second = self.ends
        return ((prob[first] @ agreement) * prob[second]).sum(axis=-1)

    def log_partition(self, factors: dict[str, Array]) -> Array:
        """The bound; its gradient is the expected statistics under q, which is held fixed."""
        return self.bound(factors, lax.stop_gradient(self.log_memberships(factors)))

    def log_normalizer(self) -> Array:
        """Log normaliser of the statements' probabilities."""
        return self._log_normalizers().sum()

    def _log_normalizers(self) -> Array:
        return self._stated(jnp.logaddexp(0.0, self.log_odds))

    def log_prob(self, value: Array) -> Array:
        """Lower bound of the joint log density of data and statements."""
        factors = self.log_factors(value)
        return self.bound(factors, self.log_memberships(factors)) - self.log_normalizer()

    def free_energy(self, value: Array) -> Array:
        r"""Variational free energy :math:`\tilde F` (Raghuram 2014, eq. 3.12), an upper bound of F.

        The thesis leaves out the normaliser of the statements, and counts the cost of violated
        links: with :math:`|w| = \beta C`, :math:`\tilde F = -\text{bound} + \sum_{w > 0} w`.
        """
        return jnp.maximum(self.log_odds, 0.0).sum() - self.log_partition(self.log_factors(value))

    def violation(self, value: Array) -> Array:
        """Share of the links' weight that is expected to be violated, in [0, 1]; 0 without links."""
        weights = self.log_odds
        factors = self.log_factors(value)
        agree = self._agree(jnp.exp(self.log_memberships(factors)), factors["agreement"])
        broken = jnp.where(weights > 0, 1.0 - agree, agree)
        total = jnp.abs(weights).sum()
        return (jnp.abs(weights) * broken).sum() / jnp.where(total > 0, total, 1.0)

    def memberships(self, value: Array) -> Array:
        """Probabilities q of the components, shape (num_points, num_components)."""
        return jnp.exp(self.log_memberships(self.log_factors(value)))

    def responsibilities(self, value: Array) -> Array:
        """Probabilities of the clusters, shape (num_points, num_clusters) (eq. 3.17)."""
        return self.memberships(value) @ self.table

    def pair_marginals(self, value: Array) -> Array:
        """Probability that the ends of each link share their cluster, shape (num_links,)."""
        return self._agree(self.memberships(value), self.table @ self.table.T)

    def by_unit(self, value: Array) -> Array:
        """Terms of the bound by connected set, zero-padded, shape (num_nodes,)."""
        factors = self.log_factors(value)
        by_point, by_link = self._terms(factors, self.log_memberships(factors))
        graph = self.labels.graph
        owner = jnp.asarray(graph.connected_set)
        found = jax.ops.segment_sum(by_point, owner, graph.num_nodes)
        statements = by_link - self._log_normalizers()
        return found + jax.ops.segment_sum(statements, owner[self.ends[0]], graph.num_nodes)

    def summaries(self, value: Array) -> tuple[dict[str, NamedArray], Array]:
        """`posterior` and `by_unit`."""
        return self.posterior(value), self.by_unit(value)

    def mode(self, value: Array) -> Array:
        """Most probable cluster of every point, shape (num_points,)."""
        return self.responsibilities(value).argmax(axis=-1)

    def sample_labels(self, rng_key: Array, value: Array) -> Array:
        """Draw the clusters of all points, which are independent under q."""
        return jax.random.categorical(rng_key, jnp.log(self.responsibilities(value)))

    def draw(self, rng_key: Array, value: Array) -> Any:
        """Refuse: drawing labels from a bound is not a step of Gibbs sampling."""
        raise NotImplementedError("a restricted posterior is no conditional to draw from")

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw components, then data; statements are not held fixed."""
        key_labels, key_data = jax.random.split(key)
        shape = (*sample_shape, self.labels.graph.num_points)
        own = jax.random.categorical(key_labels, self.log_within, shape=shape)
        return draw_rows(key_data, self.components, own, sample_shape)

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        """Draw components from their law without links, then data."""
        return self.sample(rng_key)
