"""Blocks: sites that are sampled together, with what can be done for them in closed form.

What a block can do beside sampling its sites is said by the methods that it has. Those that belong together
are a protocol, and engines ask by ``isinstance`` whether a block has them. Updates of the sites are below;
what else a block knows of them is in `block_facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpyro
import numpyro.distributions as dist
from jax import Array

from .collapsed import Collapsed

__all__ = [
    "Augmented",
    "Batched",
    "Block",
    "Conditional",
    "Discrete",
    "Drawable",
    "Expanded",
    "Factored",
    "FollowsPoints",
    "HasMeans",
    "Observation",
    "OnePass",
    "OnePassOfBatches",
    "Tightening",
    "Updatable",
    "WholeData",
]


class Observation(NamedTuple):
    """What one observed site contributes to a block.

    Attributes
    ----------
    fn : Collapsed
        Distribution of the data, at the current values of all sites.
    value : Array
        The data.
    expected : dict of Array
        Slope of the log partition function in the log-factors of `fn`: expected sufficient statistics
        of the latent variables, or the statistics of drawn ones.
    """

    fn: Collapsed
    value: Array
    expected: Mapping[str, Any]


class Block:
    """Sites with one joint prior, and what every engine can do with them.

    A model samples the sites through `declare`, which leaves the block in the trace; engines find it
    there. A block that has no other methods says what its sites are, and engines move them numerically.
    One that is `Updatable` has the M-step of EM in closed form, a `Drawable` one the step of Gibbs
    sampling, a `Factored` one the factor of coordinate ascent. Values are mappings from role to array.
    """

    factor: ClassVar[str]
    """Log-factor of the observed site that the sites enter, and enter nothing else."""

    roles: ClassVar[tuple[str, ...]]
    """What the sites are, whatever they are called: "weights", "location", ..."""

    derived: ClassVar[Mapping[str, str]] = {}
    """Roles of deterministic sites that the block notes, by name."""

    remedy: ClassVar[str] = "give its parameters priors that keep them away from there"
    """What to do where a cluster has collapsed; see `Collapsible`."""

    of_dependent: str | None = None
    """What else to do where columns of the data depend on one another; None if that does not matter."""

    @property
    def factors(self) -> tuple[str | None, ...]:
        """Log-factors that the sites enter, in place of `factor`; None is a density of a site itself."""
        return (self.factor,)

    @property
    def has_update(self) -> bool:
        """Whether there is an update in closed form; without one engines move the sites numerically."""
        return isinstance(self, Updatable)

    def declare(
        self,
        role: str,
        name: str,
        fn: dist.Distribution,
        event_dims: Sequence[str] = (),
        symmetry: Mapping[str, str] | None = None,
        manifold: str | None = None,
        chart: str | None = None,
    ) -> Array:
        """Sample a site of the block.

        `event_dims` name its last axes, `symmetry` says which permute, `manifold` what its points lie on,
        `chart` the argument that holds the chart of shapes whose coordinates they are.
        """
        infer: dict[str, Any] = {"block": self, "role": role}
        if chart is not None:
            infer["chart"] = chart
        if manifold is not None:
            infer["manifold"] = manifold
        if symmetry is not None:
            infer["symmetry"] = dict(symmetry)
        if event_dims:
            infer["event_dims"] = list(event_dims)
        return numpyro.sample(name, fn, infer=infer)


@runtime_checkable
class Updatable(Protocol):
    """Has the M-step of EM: the best values of the sites given additive statistics of the data.

    The statistics are of data and expected latent variables. What `update` makes of them is called
    `found` everywhere. Without the methods of `Conditional` it need not be a posterior: then `mode` only
    has to raise the objective, and to come to rest where that is flat.
    """

    def statistics(self, observation: Observation) -> Any:
        """Additive statistics of one observed site, or of a batch of it."""
        ...

    def update(self, statistics: Any, sources: Sequence[Collapsed]) -> Any:
        """Posterior of the sites given the statistics.

        Parameters
        ----------
        statistics : pytree
            Summed over observed sites and batches.
        sources : sequence of Collapsed
            Distributions of the observed sites, of all their data.
        """
        ...

    def mode(self, found: Any, values: Mapping[str, Array]) -> dict[str, Array]:
        """Most probable values of the sites; `values` are the current ones."""
        ...


@runtime_checkable
class Conditional(Updatable, Protocol):
    """What `update` finds is the full conditional of the sites."""

    def log_density(self, found: Any, values: Mapping[str, Array]) -> Array:
        """Log density of the posterior at values of the sites."""
        ...


@runtime_checkable
class Drawable(Conditional, Protocol):
    """Can be drawn from its full conditional, which is the step of Gibbs sampling."""

    def draw(self, rng_key: Array, found: Any) -> dict[str, Array]:
        """Draw the sites."""
        ...


@runtime_checkable
class Factored(Drawable, Protocol):
    """Has an exact factor of coordinate ascent, given expected statistics."""

    def expected_factors(self, found: Any, observation: Observation) -> dict[str, Array]:
        """Expected log-factors, and ``log_normalizer`` where the sites enter it."""
        ...

    def divergence(self, found: Any) -> Array:
        """Kullback-Leibler divergence of the posterior from the prior, in nats."""
        ...


class FollowsPoints:
    """Base of `Factored` blocks whose expected factors hold at any values of other sites beside them.

    These sites enter the same log-factor, and the block knows them by its distribution of the data.
    Coordinate ascent moves them as points.
    """


@runtime_checkable
class HasMeans(Protocol):
    """Knows means of its sites, where draws must do otherwise."""

    def means(self, found: Any) -> dict[str, Array]:
        """Means of the sites under the posterior, by role."""
        ...


class Augmented:
    """Base of `Drawable` blocks whose full conditional is that given further latent variables.

    The distribution of the data sums these out, and draws them beside those of its log-factors. The mode
    of what `update` finds then only raises EM's surrogate.
    """


class Expanded:
    """Base of `Updatable` blocks whose mode is that of a model with more parameters (Liu, Rubin and Wu 1998).

    A step of this parameter-expanded EM raises the log joint density, but not always EM's surrogate.
    """


class Discrete:
    """Base of `Updatable` blocks whose mode is a corner of the support, where no slope need vanish."""


class WholeData:
    """Base of `Updatable` blocks whose statistics hold the rows, so that none of batches add up to them."""


@runtime_checkable
class OnePass(Protocol):
    """Finds the statistics of an observed site in one pass, faster than by the slope of its partition."""

    def has_one_pass(self, fn: Collapsed, others: AbstractSet[str] = frozenset()) -> bool:
        """Whether `one_pass` serves an observed site.

        Parameters
        ----------
        fn : Collapsed
        others : set of str
            Log-factors of other blocks, whose statistics have to be found as well.
        """
        ...

    def one_pass(self, fn: Collapsed, value: Array) -> tuple[Array, dict[str, Any]]:
        """Log partition function and expected statistics."""
        ...


@runtime_checkable
class Tightening(Protocol):
    """Has sites that describe a restricted posterior and nothing else, climbed before each E-step."""

    def tighten(
        self,
        fn: Any,
        value: Any,
        values: Mapping[str, Array],
        minimise: Callable[[Callable[[Array], Array], Array], Array],
    ) -> dict[str, Array]:
        """Raise the bound of an observed site in the sites of the block.

        Parameters
        ----------
        fn, value
            An observed site, and its data.
        values : mapping
            Current values of the sites by role.
        minimise : callable
            ``minimise(loss, start)`` never raises the loss.
        """
        ...


@runtime_checkable
class Batched(Protocol):
    """Needs the moments of all data, where it is shown a batch of them at a time."""

    def given_moments(self, mean: Array, covariance: Array) -> bool:
        """See all data by their mean and covariance; whether the prior changed."""
        ...


@runtime_checkable
class OnePassOfBatches(OnePass, Protocol):
    """Finds the statistics of a batch in one pass, too."""

    def batch_pass(
        self, fn: Collapsed, value: Array, num_real: Array
    ) -> tuple[Array, dict[str, Any]]:
        """As `one_pass`, of the rows before `num_real`; statistics of batches add up."""
        ...
