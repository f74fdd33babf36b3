"""Blocks: sites that are sampled together, and their updates in closed form.

The methods of a block determine what it can do besides sampling its sites. Methods that belong
together form a protocol, and engines test by ``isinstance`` whether a block has them. This module
holds the protocols of updates; `block_facts` holds those of everything else that blocks know.
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
    """Contribution of one observed site to a block.

    Attributes
    ----------
    fn : Collapsed
        Distribution of the data, at the current values of all sites.
    value : Array
        The data.
    expected : dict of Array
        Gradient of the log partition function with respect to the log-factors of `fn`: expected
        sufficient statistics of the latent variables, or the statistics of drawn ones.
    """

    fn: Collapsed
    value: Array
    expected: Mapping[str, Any]


class Block:
    """Sites with one joint prior, and what every engine can do with them.

    A model samples the sites through `declare`, which records the block in the trace, where engines
    find it. A block without further methods only declares what its sites are, and engines update
    them numerically. An `Updatable` block has the M-step of EM in closed form, a `Drawable` block
    the step of Gibbs sampling, and a `Factored` block the factor of coordinate ascent. Values are
    mappings from role to array.
    """

    factor: ClassVar[str]
    """Log-factor of the observed site that the sites enter; they enter no other."""

    roles: ClassVar[tuple[str, ...]]
    """What the sites are, independent of their names: "weights", "location", ..."""

    derived: ClassVar[Mapping[str, str]] = {}
    """Roles of the deterministic sites that the block records, by name."""

    remedy: str = "give its parameters priors that keep them away from there"
    """Advice to the user when a cluster has collapsed; see `Collapsible`."""

    of_dependent: str | None = None
    """Further advice when columns of the data depend on one another; None if that does not matter."""

    @property
    def factors(self) -> tuple[str | None, ...]:
        """Log-factors that the sites enter; replaces `factor`. None is the density of a site itself."""
        return (self.factor,)

    @property
    def has_update(self) -> bool:
        """Whether there is an update in closed form; if not, engines update the sites numerically."""
        return isinstance(self, Updatable)

    @staticmethod
    def offered(verb: str, options: Mapping[str, bool]) -> str:
        """Advice for `remedy`: those of some options that are not chosen already.

        Parameters
        ----------
        verb : str
        options : mapping of str to bool
            Whether each may still be chosen; where none may, priors are advised.
        """
        *front, last = [option for option, is_open in options.items() if is_open] or [""]
        if not last:
            return Block.remedy
        several = ", ".join(front) + ("," if len(front) > 1 else "") + " or " if front else ""
        return f"{verb} {several}{last}"

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

        `event_dims` names the last axes of the site, and `symmetry` those that may be permuted.
        `manifold` names the manifold on which its points lie. `chart` names the model argument that
        holds the chart of shapes in which the values are coordinates.

        Raises
        ------
        ValueError
            If `roles` lacks the role.
        """
        if role not in self.roles:
            kind = type(self).__name__
            raise ValueError(
                f"{kind} declares site {name!r} with role {role!r}, and {kind}.roles = {self.roles}; name "
                "every role there"
            )
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
    """Blocks with the M-step of EM: the best values of the sites given additive statistics.

    The statistics are computed from the data and the expected latent variables. The value that
    `update` returns is called `found` throughout. Unless the block is `Conditional`, `found` need
    not be a posterior; `mode` then only has to increase the objective, and to stop at its
    stationary points.
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
    """Blocks whose `update` returns the full conditional of the sites."""

    def log_density(self, found: Any, values: Mapping[str, Array]) -> Array:
        """Log density of the posterior at values of the sites."""
        ...


@runtime_checkable
class Drawable(Conditional, Protocol):
    """Blocks that can be drawn from their full conditional, which is the step of Gibbs sampling."""

    def draw(self, rng_key: Array, found: Any) -> dict[str, Array]:
        """Draw the sites."""
        ...


@runtime_checkable
class Factored(Drawable, Protocol):
    """Blocks with an exact factor of coordinate ascent, given expected statistics."""

    def expected_factors(self, found: Any, observation: Observation) -> dict[str, Array]:
        """Expected log-factors, and ``log_normalizer`` where the sites enter it."""
        ...

    def divergence(self, found: Any) -> Array:
        """Kullback-Leibler divergence of the posterior from the prior, in nats."""
        ...


class FollowsPoints:
    """Base of `Factored` blocks whose expected factors are valid at any values of certain other sites.

    These sites enter the same log-factor, and the block takes their values from its distribution of
    the data. Coordinate ascent updates them as point estimates.
    """


@runtime_checkable
class HasMeans(Protocol):
    """Blocks that know the means of their sites; for all others, draws are used."""

    def means(self, found: Any) -> dict[str, Array]:
        """Means of the sites under the posterior, by role."""
        ...


class Augmented:
    """Base of `Drawable` blocks whose full conditional is conditional on further latent variables.

    The distribution of the data sums these variables out, and draws them together with those of its
    log-factors. The mode of what `update` returns then increases EM's surrogate without maximising
    it.
    """


class Expanded:
    """Base of `Updatable` blocks whose mode is that of a model with more parameters (Liu, Rubin and Wu 1998).

    A step of this parameter-expanded EM raises the log joint density, but not always EM's surrogate.
    """


class Discrete:
    """Base of `Updatable` blocks whose mode is a corner of the support, where no gradient need vanish."""


class WholeData:
    """Base of `Updatable` blocks whose statistics contain the rows: those of batches do not add up."""


@runtime_checkable
class OnePass(Protocol):
    """Blocks that compute an observed site's statistics in one pass, faster than by differentiation."""

    def has_one_pass(self, fn: Collapsed, others: AbstractSet[str] = frozenset()) -> bool:
        """Whether `one_pass` can be used for an observed site.

        Parameters
        ----------
        fn : Collapsed
        others : set of str
            Log-factors of other blocks, whose statistics must be computed as well.
        """
        ...

    def one_pass(self, fn: Collapsed, value: Array) -> tuple[Array, dict[str, Any]]:
        """Return the log partition function and the expected statistics."""
        ...


@runtime_checkable
class Tightening(Protocol):
    """Blocks whose sites only describe a restricted posterior, which is optimised before each E-step."""

    def tighten(
        self,
        fn: Any,
        value: Any,
        values: Mapping[str, Array],
        minimise: Callable[[Callable[[Array], Array], Array], Array],
    ) -> dict[str, Array]:
        """Increase the bound of an observed site with respect to the sites of the block.

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
    """Blocks that need the moments of all data even if they are given one batch at a time."""

    def given_moments(self, mean: Array, covariance: Array) -> bool:
        """Take the mean and covariance of all data; return whether the prior changed."""
        ...


@runtime_checkable
class OnePassOfBatches(OnePass, Protocol):
    """Blocks that compute the statistics of a batch in one pass, too."""

    def batch_pass(
        self, fn: Collapsed, value: Array, num_real: Array
    ) -> tuple[Array, dict[str, Any]]:
        """Like `one_pass`, for the rows before `num_real`; statistics of batches add up."""
        ...
