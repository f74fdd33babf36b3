"""Blocks: sites that are sampled together, with what can be done for them in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpyro
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions.transforms import Transform

from .collapsed import Collapsed

__all__ = ["Block", "Evidence"]


class Evidence(NamedTuple):
    """What one observed site says about a block.

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
    """Sites with one joint prior, and the update that every engine uses.

    A model samples the sites through `declare`, which leaves the block in the trace; engines find it
    there. One additive statistic of data and expected latent variables leads to the posterior of the
    sites given all else, called `found` below. Its mode is the M-step of EM, a draw from it the step
    of Gibbs sampling, and with expected statistics it is the factor of coordinate ascent.

    A block of your own needs `factor`, `roles`, `statistics`, `update` and `mode` for EM; `draw` and
    `log_density` for Gibbs sampling; `expected_factors` and `divergence` for coordinate ascent.
    Values are mappings from role to array.
    """

    factor: ClassVar[str]
    """Log-factor of the observed site that the sites enter, and enter nothing else."""

    roles: ClassVar[tuple[str, ...]]
    """What the sites are, whatever they are called: "weights", "location", ..."""

    is_conditional: ClassVar[bool] = True
    """Whether `update` gives the full conditional, or only a step that raises the objective."""

    is_discrete: ClassVar[bool] = False
    """Whether the update goes to corners of the support, where the surrogate need not be flat."""

    tightens: ClassVar[bool] = False
    """Whether the sites describe a restricted posterior and nothing else, which `tighten` improves."""

    one_pass_factors: ClassVar[frozenset[str]] = frozenset({"log_weights"})
    """Log-factors of other blocks whose statistics `one_pass` finds as well."""

    follows_points: ClassVar[bool] = False
    """Whether `expected_factors` holds at any values of other sites that enter the log-factor too, which
    the block then knows by its distribution of the data: coordinate ascent moves these as points."""

    locates: ClassVar[bool] = True
    """Whether `starts` tells clusters apart, so that sites without starts need not be fitted to
    partitions of the data."""

    derived: ClassVar[Mapping[str, str]] = {}
    """Roles of deterministic sites that the block notes, by name."""

    remedy: ClassVar[str] = "give its parameters priors that keep them away from there"
    """What to do where `degenerate` finds a cluster that collapsed."""

    @property
    def factors(self) -> tuple[str, ...]:
        """Log-factors that the sites enter, where they are several; in place of `factor`."""
        return (self.factor,)

    @property
    def has_update(self) -> bool:
        """Whether there is an update in closed form; without one engines move the sites numerically."""
        return True

    def declare(
        self,
        role: str,
        name: str,
        fn: dist.Distribution,
        event_dims: Sequence[str] = (),
        symmetry: Mapping[str, str] | None = None,
    ) -> Array:
        """Sample a site of the block; `event_dims` name its last axes, `symmetry` says which permute."""
        infer: dict[str, Any] = {"block": self, "role": role}
        if symmetry is not None:
            infer["symmetry"] = dict(symmetry)
        if event_dims:
            infer["event_dims"] = list(event_dims)
        return numpyro.sample(name, fn, infer=infer)

    def statistics(self, evidence: Evidence) -> Any:
        """Additive statistics of one observed site, or of a batch of it."""
        raise NotImplementedError

    def update(self, statistics: Any, sources: Sequence[Collapsed]) -> Any:
        """Posterior of the sites given the statistics.

        Parameters
        ----------
        statistics : pytree
            Summed over observed sites and batches.
        sources : sequence of Collapsed
            Distributions of the observed sites, of all their data.
        """
        raise NotImplementedError

    def mode(self, found: Any, values: Mapping[str, Array]) -> dict[str, Array]:
        """Most probable values of the sites; `values` are the current ones."""
        raise NotImplementedError

    def tighten(
        self,
        fn: Any,
        value: Any,
        values: Mapping[str, Array],
        minimise: Callable[[Callable[[Array], Array], Array], Array],
    ) -> dict[str, Array]:
        """Raise the bound of an observed site in sites that describe a restricted posterior.

        Parameters
        ----------
        fn, value
            An observed site, and its data.
        values : mapping
            Current values of the sites by role.
        minimise : callable
            ``minimise(loss, start)`` never raises the loss.
        """
        raise NotImplementedError

    def obstacle(self, sources: Sequence[Collapsed]) -> str | None:
        """Say why there is no full conditional to draw from, None if there is one."""
        return None

    def improper(self) -> str | None:
        """Say why the sites may have no posterior at all, None if they have one."""
        return None

    def draw(self, rng_key: Array, found: Any) -> dict[str, Array]:
        """Draw the sites."""
        raise NotImplementedError

    def log_density(self, found: Any, values: Mapping[str, Array]) -> Array:
        """Log density of the posterior at values of the sites."""
        raise NotImplementedError

    def means(self, found: Any) -> dict[str, Array]:
        """Means of the sites under the posterior, by role; none where draws must do."""
        return {}

    def expected_factors(self, found: Any, evidence: Evidence) -> dict[str, Array]:
        """Expected log-factors, and ``log_normalizer`` where the sites enter it."""
        raise NotImplementedError

    def divergence(self, found: Any) -> Array:
        """Kullback-Leibler divergence of the posterior from the prior, in nats."""
        raise NotImplementedError

    def has_one_pass(self, fn: Collapsed) -> bool:
        """Whether `one_pass` serves an observed site."""
        return False

    def one_pass(self, fn: Collapsed, value: Array) -> tuple[Array, dict[str, Any]]:
        """Log partition function and expected statistics, faster than by its slope."""
        raise NotImplementedError

    def given_moments(self, mean: Array, covariance: Array) -> bool:
        """See all data by their mean and covariance, not one batch; whether the prior changed."""
        return False

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Map from unconstrained coordinates to the support of a site; `bijector` is NumPyro's.

        Gradients and random walks move in these coordinates: they should vary by about one.
        """
        return bijector

    def code_length(self, role: str) -> float | None:
        """Nats that a site costs to write down.

        None is half a log number of units for each of its degrees of freedom.
        """
        return None

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Values to start runs from, by role, with an axis of starts in front; empty for none."""
        return {}

    def degenerate(self, values: Mapping[str, Any]) -> tuple[int, str] | None:
        """Number of a cluster that collapsed and what happened to it, None if all is well."""
        return None

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """What a fit should say of the draws of its sites, in a sentence; None if nothing.

        Values have an axis of chains and one of draws in front. They are by role, and those of roles that
        the block lacks are of other blocks.
        """
        return None

    def check(self, name: str, value: Any) -> None:
        """Refuse data, observed at site `name`, that the sites cannot describe."""
