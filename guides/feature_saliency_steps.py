"""Steps of component-wise EM: responsibilities at fixed densities, weights one by one, then all else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import logsumexp
from jax.typing import ArrayLike
from sidebayes.models.blocks.label_inference import partition
from sidebayes.models.blocks.mixtures.linked_categorical import LinkedCategorical
from sidebayes.models.blocks.saliency.feature_block import SalientFeatures
from sidebayes.models.blocks.saliency.layout import Used
from sidebayes.models.blocks.saliency.mixed_block import MixedFeatures
from sidebayes.models.blocks.saliency.saliency_mixture import SaliencyMixture

from .engines.base import Problem
from .engines.problem.declared import collapsed_sites, declared_blocks, site_roles
from .engines.problem.density import abstract_trace, latent_sites, site_log_prob
from .feature_saliency_updates import saliency_updated, weight_updated

__all__ = ["Sites", "Weighed", "log_prior"]


class Sites(NamedTuple):
    """Names of observed site, weights and features by role, and facts about the features.

    `normal` are the normal columns, `num_parameters` the numbers of parameters of one density of each
    feature, and `is_flat` is whether their priors are flat.
    """

    observed: str
    weights: str
    roles: tuple[tuple[str, str], ...]
    normal: tuple[int, ...]
    num_parameters: tuple[int, ...]
    is_flat: bool

    @property
    def saliency(self) -> str:
        """Name of the saliencies."""
        return dict(self.roles)["saliency"]

    @property
    def location(self) -> str:
        """Name of the means in the clusters."""
        return dict(self.roles)["location"]

    @property
    def common(self) -> dict[str, str]:
        """Roles of the parameters of common densities, by site."""
        return {name: role for role, name in self.roles if role.startswith("common_")}

    @classmethod
    def of(cls, problem: Problem) -> Sites:
        """Find the sites.

        Raises
        ------
        TypeError, ValueError
            If the model is of another kind.
        """
        trace = abstract_trace(problem)
        blocks = [
            (b, s)
            for b, s in declared_blocks(trace)
            if isinstance(b, SalientFeatures | MixedFeatures)
        ]
        sources = [
            n for n, (fn, _) in collapsed_sites(trace).items() if isinstance(fn, SaliencyMixture)
        ]
        if len(blocks) != 1 or len(sources) != 1:
            raise TypeError(
                "ComponentwiseEM is for one mixture with saliencies, such as 'feature_saliency'; use 'em'"
            )
        block, sites = blocks[0]
        if block.saliency_prior is not None:
            raise ValueError(
                "component-wise EM finds the shortest message, and the prior of this model is a proper one, "
                "under which nothing is left out; pass selection='mml', or use engine='em'"
            )
        weights = [n for n, role in site_roles(problem).items() if role == "mixing_weights"]
        others = set(latent_sites(trace)) - {*weights, *sites.values()}
        if others:
            raise ValueError(
                f"component-wise EM does not learn {sorted(others)}; state their values, or pass "
                "selection='sparse' and use engine='em'"
            )
        if isinstance(block, MixedFeatures):
            normal = block.columns.normal
        else:
            normal = tuple(range(block.num_features))
        known = normal, tuple(map(int, block.num_parameters)), block.is_flat
        return cls(sources[0], weights[0], tuple(sorted(sites.items())), *known)


def log_prior(trace: Mapping[str, dict], names: Sites) -> Array:
    """Minus the length of the parameters in a trace of the model."""
    terms = [
        site_log_prob(site)
        for name, site in trace.items()
        if site["type"] == "sample" and name != names.observed
    ]
    return sum(terms, start=jnp.zeros(()))


class Weighed(NamedTuple):
    """The model at parameters: its sites, and the log densities of all rows in the clusters that are used.

    `share` may hold the responsibilities, which are then computed only once.
    """

    names: Sites
    fn: SaliencyMixture
    block: SalientFeatures | MixedFeatures
    params: dict[str, Array]
    value: Array
    weights: Array
    log_prior: Array
    used: Used
    unary: Array
    share: Array | None = None

    @classmethod
    def of(cls, trace: Mapping[str, dict], names: Sites) -> Weighed:
        """Compute the densities of all rows, once."""
        site, weights = trace[names.observed], trace[names.weights]["value"]
        fn: Any = site["fn"]
        used = Used(jnp.argsort(weights <= 0, stable=True), (weights > 0).sum())
        unary = fn.components.by_cluster(site["value"], used)
        if fn.log_side is not None:
            unary = unary + jnp.maximum(jnp.asarray(fn.log_side).T, partition.FORBIDDEN)
        unary = jnp.where(weights[:, None] > 0, unary, partition.FORBIDDEN)
        block = trace[names.saliency]["infer"]["block"]
        value = site["value"]
        params = {name: trace[name]["value"] for _, name in names.roles}
        prior = log_prior(trace, names)
        return cls(names, fn, block, params, value, weights, prior, used, unary)

    @property
    def size(self) -> Array:
        """Number of known values, to which changes of the objective are compared; it has no unit."""
        return 1 + jnp.asarray(self.block.num_known).sum()

    @property
    def saliency(self) -> Array:
        """Saliencies of the features."""
        return self.fn.components.features.saliency

    @property
    def structure(self) -> Array:
        """A number that encodes how many clusters and features are in use; it increases with them."""
        free = (self.saliency > 0).sum() + (self.saliency < 1).sum() * 1_000
        return (self.weights > 0).sum() + free * 1_000

    def log_joint(self) -> Array:
        """Minus the length of the message."""
        labels = self._labels(self.weights)
        if labels.is_shared:
            density, top = self.density()
            return self.log_prior + (jnp.log(self.weights @ density) + top).sum()
        return self.log_prior + labels.log_evidence(self.unary.T)

    def bic(self, log_likelihood: Array) -> Array:
        """Bayesian information criterion, with the parameters in use."""
        each, used = jnp.asarray(self.block.num_parameters), self.used.number
        on, off = self.saliency > 0, self.saliency < 1
        free = used - 1 + (on & off).sum() + (each * (used * on + off)).sum()
        return free * jnp.log(self.value.shape[0]) - 2 * log_likelihood

    def density(self) -> tuple[Array, Array]:
        """Return densities of the rows in the clusters relative to the largest, and the logarithm of that."""
        top = self.unary.max(axis=0)
        # where all underflow beside a removed cluster, they are taken to be equal
        least = jnp.sqrt(jnp.finfo(top.dtype).tiny)
        found = jnp.maximum(jnp.exp(self.unary - top), least)
        return lax.optimization_barrier((jnp.where(self.weights[:, None] > 0, found, 0.0), top))

    def at_held_precision(self) -> Array:
        """Return the log joint density without the precision to which densities in use are stated.

        That precision, the block's `structure_length`, falls with weights and saliencies, and would draw them
        to zero. Without it, no step of EM lowers this objective.
        """
        return self.log_joint() + self.block.structure_length(self.fn.components, self.weights)

    def log_responsibilities(self) -> Array:
        """Return log responsibilities, also far below the smallest number; with links, -inf there."""
        if not self.fn.labels.is_shared:
            return jnp.log(self.responsibilities())
        joint = self._joint()
        return joint - logsumexp(joint, axis=0)

    def _joint(self) -> Array:
        """Return log joint probabilities of rows and clusters where no links tie rows."""
        log_weights = jnp.log(jnp.where(self.weights > 0, self.weights, 1.0))
        return self.unary + log_weights[:, None]

    def log_share_of_others(self) -> Array:
        """Return sums over rows of the log probability of not being in each cluster."""
        if not self.fn.labels.is_shared:
            rest = jnp.maximum(1.0 - self.responsibilities(), jnp.finfo(self.weights.dtype).eps)
            return jnp.log(rest).sum(axis=1)
        joint = self._joint()
        first = joint.argmax(axis=0) == jnp.arange(len(joint))[:, None]
        total = logsumexp(joint, axis=0)
        others = logsumexp(jnp.where(first, partition.FORBIDDEN, joint), axis=0)
        share = jnp.where(first, 0.0, jnp.exp(joint - total))
        return jnp.where(first, others - total, jnp.log1p(-share)).sum(axis=1)

    def _labels(self, weights: Array) -> LinkedCategorical:
        """Return the joint prior of the labels at other weights, with finite logarithms of zero weights."""
        used, labels = weights > 0, self.fn.labels
        log_weights = jnp.where(used, jnp.log(jnp.where(used, weights, 1.0)), partition.FORBIDDEN)
        return LinkedCategorical(
            log_weights,
            labels.graph,
            reading=labels.reading,
            weight_per=labels.weight_per,
            pair_weights=labels.pair_weights,
            inference=labels.inference,
        )

    def held(self) -> Array:
        """Return the clusters that partial labels name, which always stay."""
        if self.fn.log_side is None:
            return jnp.zeros(self.weights.shape, bool)
        admits = jnp.asarray(self.fn.log_side) > partition.FORBIDDEN
        return (admits & ~admits.all(axis=1, keepdims=True)).any(axis=0)

    def smallest(self) -> tuple[Array, Array]:
        """Return the number of clusters in use, and the smallest that may be removed, -1 if none may be."""
        free = (self.weights > 0) & ~self.held()
        found = jnp.where(free, self.weights, jnp.inf).argmin()
        return self.used.number, jnp.where(free.any(), found, -1)

    def without(self, cluster: Array) -> dict[str, Array]:
        """Return the parameters without a cluster."""
        rest = self.weights.at[cluster].set(0.0)
        return self.all_params() | {self.names.weights: rest / jnp.maximum(rest.sum(), 1e-300)}

    def all_params(self) -> dict[str, Array]:
        """Return the values of all sites."""
        return self.params | {self.names.weights: self.weights}

    def common_densities(self, share: Array) -> dict[str, Array]:
        """Return the parameters of the common densities after a step, by site."""
        found, _ = self._posterior(share, self.weights)
        return {name: new for name, new in self._modes(found).items() if name in self.names.common}

    def mixed_by_feature(self, other: Mapping[str, Array], where: Array) -> dict[str, Array]:
        """Return parameters of common densities, with those of another step for some of the features."""
        columns = {n: np.array(self.block.columns_of(r)) for n, r in self.names.common.items()}
        return {
            name: jnp.where(
                jnp.expand_dims(where[own], range(1, other[name].ndim)), other[name], now
            )
            for name, own in columns.items()
            for now in [self.params[name]]
        }

    def moved(self, min_clusters: int, plain: Array) -> dict[str, Array]:
        """Update weights, then densities and saliencies.

        Where densities have a prior, weights and saliencies are their expected shares. Under a flat prior,
        clusters could collapse on single rows, which the thesis' price of a cluster prevents: weights are
        then updated one after another by eq. 4.29, and saliencies by eq. 4.30.
        """
        if not self.block.is_flat:
            return self.moved_by_shares(plain)
        price = jnp.asarray(self.block.num_parameters) / 2
        held = self.held()
        counts, shares = self._expected()

        def turn(number: Array, weights: Array) -> Array:
            cluster = self.used.order[number]
            found, total = counts(weights), (price * (self.saliency > 0)).sum()
            return weight_updated(weights, cluster, found, total, held[cluster], min_clusters)

        weights = lax.fori_loop(0, self.used.number, turn, self.weights)
        return {self.names.weights: weights} | self._features(
            shares(weights), weights, plain, price
        )

    def moved_by_shares(self, plain: ArrayLike = True) -> dict[str, Array]:
        """Update weights, densities and saliencies, none of which has a price."""
        share, weights = self._shares()
        return {self.names.weights: weights} | self._features(share, weights, plain, 0.0)

    def moved_at_held_saliencies(self) -> dict[str, Array]:
        """Update weights and densities alone."""
        share, weights = self._shares()
        found, _ = self._posterior(share, weights)
        return self.params | {self.names.weights: weights} | self._modes(found)

    def _shares(self) -> tuple[Array, Array]:
        """Return responsibilities, and the weights that follow from them."""
        share = self.responsibilities()
        return share, share.sum(axis=1) / share.sum()

    def responsibilities(self) -> Array:
        """Responsibilities, shape (num_clusters, num_points)."""
        return self._expected()[1](self.weights) if self.share is None else self.share

    def with_share(self) -> Weighed:
        """Return the same model with its responsibilities computed."""
        return self._replace(share=self.responsibilities())

    def _expected(self) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
        """Expected sizes of clusters, and responsibilities (num_clusters, num_points), given weights."""
        if self.fn.labels.is_shared:
            density, _ = self.density()
            return (
                lambda weights: weights * (density @ (1 / (weights @ density))),
                lambda weights: weights[:, None] * density / (weights @ density),
            )

        def counts(weights: Array) -> Array:
            def total(log_weights: Array) -> Array:
                return partition.log_partition(
                    self.unary.T,
                    labels.graph,
                    log_weights,
                    jnp.asarray(labels.pair_weights),
                    **labels.options,
                )

            labels = self._labels(weights)
            return jax.grad(total)(labels.log_weights)

        return counts, lambda weights: self._labels(weights).responsibilities(self.unary.T).T

    def _posterior(self, share: Array, weights: Array) -> tuple[Any, Any]:
        """Return the posterior of all densities given responsibilities, and its moments."""
        used = Used(jnp.argsort(weights <= 0, stable=True), (weights > 0).sum())
        block: Any = self.block
        moments = self.fn.components.moments(self.value, share, block.centre, used)
        return block.update(moments, ()), moments

    def _modes(self, found: Any) -> dict[str, Array]:
        """Return the parameters of all densities for which the message is shortest, by site."""
        values = {role: self.params[name] for role, name in self.names.roles}
        new = self.block.density_mode(found, values)
        return {name: new[role] for role, name in self.names.roles if role in new}

    def _features(
        self, share: Array, weights: Array, plain: ArrayLike, price: ArrayLike
    ) -> dict[str, Array]:
        """Return the modes of densities and saliencies."""
        found, moments = self._posterior(share, weights)
        number = (weights > 0).sum()
        saliency = saliency_updated(self.saliency, moments, number, plain, price)
        return self._modes(found) | {self.names.saliency: saliency}
