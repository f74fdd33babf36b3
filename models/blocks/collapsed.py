"""Latent variables that a model integrates in closed form, and the one protocol they keep."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import Array

__all__ = ["Collapsed", "DrawsData", "Fitted", "IndependentMixture", "as_collapsed", "unexpanded"]


class Fitted(NamedTuple):
    """Data that were fitted, as the same model's distribution at other data needs them.

    Attributes
    ----------
    fn : Collapsed
        Distribution of the fitted data.
    value : Array
        The fitted data.
    codes : Array of int, shape (num_groups,)
        For each group of the other data its number among the fitted groups, -1 for a new one.
    """

    fn: Collapsed
    value: Array
    codes: Array


@runtime_checkable
class DrawsData(Protocol):
    """Distribution whose draws depend on the data that were fitted, through latent variables of groups."""

    groups: Any

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        """Draw data; see `Collapsed.draw_data`."""
        ...


class Collapsed(dist.Distribution):
    r"""Distribution of observed data whose latent variables are summed or integrated out.

    The joint density of data and latent variables is an exponential family in the latent ones,
    :math:`p(x, z) = \exp(\langle t(z), L(x) \rangle) / \Omega`, so that

    .. math:: \log p(x) = \log Z(L(x)) - \log\Omega, \qquad
              \partial \log Z / \partial L = E[t(z) \mid x].

    Subclasses give the log-factors L, their log partition function Z and what follows from them.
    EM, Gibbs sampling, coordinate ascent, leave-one-out terms and predictions are built on these
    methods.
    """

    arg_constraints: ClassVar[dict] = {}

    latent: ClassVar[str]
    """What is integrated out: "labels" or "effects"."""

    is_density: bool = True
    """Whether data are likelier where clusters are; a classifier says nothing of where they lie."""

    num_units: int
    """Number of exchangeable units, whose terms `by_unit` returns."""

    has_independent_units: bool = True
    """Whether the units are independent given the parameters, so that new ones have a density too."""

    is_exchangeable: bool = True
    """Whether labels may be renumbered; not where each has side information of its own."""

    num_classes: int | None = None
    """Number of classes of the points beside their labels; None where they have none."""

    summary_axes: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Names of the axes of what `posterior` returns beside responsibilities; "unit" runs over the units."""

    groups: Any = None
    """`Groups` whose rows share a latent variable; None where each row has its own."""

    def log_factors(self, value: Array) -> dict[str, Array]:
        """Natural parameters L of the latent variables given the data."""
        raise NotImplementedError

    def log_partition(self, factors: dict[str, Array]) -> Array:
        """Log partition function, shape (); convex, its slope is the E-step."""
        raise NotImplementedError

    def log_normalizer(self) -> Array:
        """Logarithm of the normaliser that does not depend on the data, shape ()."""
        return jnp.zeros(())

    def log_prob(self, value: Array) -> Array:
        """Joint log density of all data, shape ()."""
        return self.log_partition(self.log_factors(value)) - self.log_normalizer()

    def by_unit(self, value: Array) -> Array:
        """Terms of `log_prob` by unit; beyond `num_units` zero-padded.

        Where units are not independent given the parameters, the log density of each given all
        others.
        """
        raise NotImplementedError

    def posterior(self, value: Array) -> dict[str, Array]:
        """Summaries of the latent variables given data and parameters, by name."""
        raise NotImplementedError

    def class_probabilities(self, value: Array) -> Array:
        """Probabilities of the classes of all points, shape (num_points, `num_classes`)."""
        raise NotImplementedError

    def summaries(self, value: Array) -> tuple[dict[str, Array], Array]:
        """`posterior` and `by_unit`, for distributions that find both at once."""
        return self.posterior(value), self.by_unit(value)

    def draw(self, rng_key: Array, value: Array) -> Any:
        """Draw all latent variables jointly given data and parameters, as `statistic` takes them."""
        raise NotImplementedError

    def statistic(self, latent: Any) -> dict[str, Array]:
        """Sufficient statistic t of drawn latent variables, of the structure of `log_factors`."""
        raise NotImplementedError

    def mode(self, value: Array) -> Any:
        """Most probable latent variables, jointly."""
        raise NotImplementedError

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        """Draw latent variables, then data, all side information held as it is.

        Latent variables of groups that were fitted are drawn given their data, those of all others
        from their prior.
        """
        raise NotImplementedError

    def approximation(self) -> str | None:
        """Name what is approximate in `log_prob`, None where it is exact."""
        return None

    def remark(self) -> str | None:
        """What a fit should say of the data, in a sentence; None if nothing."""
        return None

    @property
    def has_curvature(self) -> bool:
        """Whether `log_prob` can be differentiated twice."""
        return True

    @property
    def has_free_weights(self) -> bool:
        """Whether the normaliser does not depend on mixing weights."""
        return True

    @property
    def sums_loops(self) -> bool | Array:
        """Whether the partition function sums over loops of links, which takes long."""
        return False


class IndependentMixture(Collapsed):
    """NumPyro's mixtures under the protocol: labels of all points, independent of one another.

    Parameters
    ----------
    mixture : MixtureSameFamily or MixtureGeneral
    """

    pytree_data_fields = ("mixture",)
    pytree_aux_fields = ("num_units",)
    latent = "labels"

    def __init__(self, mixture: dist.Distribution, num_units: int) -> None:
        self.mixture, self.num_units = mixture, num_units
        super().__init__(mixture.batch_shape, mixture.event_shape, validate_args=False)

    @property
    def num_clusters(self) -> int:
        """Number of components."""
        return self.mixture.mixture_size

    @property
    def support(self) -> Any:
        """Support of the mixture."""
        return self.mixture.support

    def log_factors(self, value: Array) -> dict[str, Array]:
        """Log densities ``unary`` (num_points, num_clusters), and ``log_weights`` (num_clusters,).

        Weights that differ between points are part of ``unary``.
        """
        mixture = self.mixture
        joint = mixture.component_log_probs(value)
        joint = joint.reshape(-1, joint.shape[-1])
        logits = mixture.mixing_distribution.logits
        if jnp.ndim(logits) > 1:
            return {"unary": joint}
        log_weights = jax.nn.log_softmax(logits)
        return {"unary": joint - log_weights, "log_weights": log_weights}

    @staticmethod
    def label_factors(factors: dict[str, Array]) -> Array:
        """Log joint densities of label and data, shape (num_points, num_clusters)."""
        return factors["unary"] + factors.get("log_weights", 0.0)

    def log_partition(self, factors: dict[str, Array]) -> Array:
        """Sum over the labels of every point, in logs."""
        return jax.nn.logsumexp(self.label_factors(factors), axis=-1).sum()

    def by_unit(self, value: Array) -> Array:
        """Log density of every point."""
        return jax.nn.logsumexp(self._joint(value), axis=-1)

    def _joint(self, value: Array) -> Array:
        return self.label_factors(self.log_factors(value))

    def posterior(self, value: Array) -> dict[str, Array]:
        """Return ``responsibilities`` (num_points, num_clusters)."""
        return {"responsibilities": jax.nn.softmax(self._joint(value), axis=-1)}

    def draw(self, rng_key: Array, value: Array) -> Array:
        """Draw labels, shape (num_points,)."""
        return jax.random.categorical(rng_key, self._joint(value))

    def statistic(self, latent: Array) -> dict[str, Array]:
        """Membership of every point, and counts."""
        member = jax.nn.one_hot(latent, self.num_clusters)
        if jnp.ndim(self.mixture.mixing_distribution.logits) > 1:
            return {"unary": member}
        return {"unary": member, "log_weights": member.sum(axis=0)}

    def mode(self, value: Array) -> Array:
        """Most probable label of every point."""
        return self._joint(value).argmax(axis=-1)


def as_collapsed(fn: Any, value: Any = None) -> Collapsed | None:
    """Distribution of a site under the protocol; None if it integrates nothing out.

    Parameters
    ----------
    fn : Distribution
        Of an observed site; freed of the expansion that a plate wraps it in.
    value : array, optional
        The data, which say how many points NumPyro's mixtures are observed at.
    """
    fn = unexpanded(fn)
    if isinstance(fn, Collapsed):
        return fn
    if isinstance(fn, dist.MixtureSameFamily | dist.MixtureGeneral):
        points = jnp.shape(value)[: jnp.ndim(value) - fn.event_dim]
        size = 1
        for extent in points:
            size *= extent
        return IndependentMixture(fn, size)
    return None


def unexpanded(fn: Any) -> Any:
    """A distribution freed of the expansion that a plate wraps it in, and of a mask that hides nothing."""
    while isinstance(fn, dist.ExpandedDistribution) or (
        isinstance(fn, dist.MaskedDistribution) and fn._mask is True
    ):
        fn = fn.base_dist
    return fn
