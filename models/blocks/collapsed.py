"""The protocol of latent variables that a model sums or integrates out in closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpy.typing import NDArray

from .label_inference.label_graph import LabelGraph
from .side_information.groups import Groups

__all__ = [
    "Batch",
    "Collapsed",
    "DrawsData",
    "Fitted",
    "NamedArray",
    "ScoresMore",
    "Units",
    "unexpanded",
]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NamedArray:
    """An array whose axes have names.

    Attributes
    ----------
    dims : tuple of str
        Names of the axes; "points" runs over the points that have latent variables.
    values : Array
    """

    dims: tuple[str, ...] = field(metadata={"static": True})
    values: Any

    def __iter__(self) -> Iterator[Any]:
        """Iterate over names and values, the form that xarray takes."""
        return iter((self.dims, self.values))


class Units(NamedTuple):
    """Exchangeable units of observed data, for which `Collapsed.by_unit` has terms.

    Attributes
    ----------
    num_points : int
        Number of points that have latent variables of their own: rows, or groups of rows.
    owner : ndarray of int, shape (num_points,), or None
        Unit of each point; None where every point is a unit.
    num_terms : int
        Number of terms; those beyond the number of units are padding and zero.
    """

    num_points: int
    owner: NDArray[np.int64] | None
    num_terms: int


class Batch(Protocol):
    """Some of the points with their rows, groups and links: the argument of `Collapsed.take`."""

    @property
    def points(self) -> Any:
        """Numbers of the points."""

    @property
    def rows(self) -> Any:
        """Numbers of the rows of these points."""

    @property
    def groups(self) -> Groups | None:
        """Point of each of these rows; None where points are rows."""

    @property
    def links(self) -> Any:
        """Numbers of the links among these points."""

    @property
    def graph(self) -> LabelGraph:
        """These links, compiled."""


class Fitted(NamedTuple):
    """Fitted data, in the form that the same model needs for its distribution at other data.

    Attributes
    ----------
    fn : Collapsed
        Distribution of the fitted data.
    value : Array
        The fitted data.
    codes : Array of int, shape (num_groups,)
        Number of each group of the other data among the fitted groups; -1 for a new group.
    """

    fn: Collapsed
    value: Array
    codes: Array


@runtime_checkable
class DrawsData(Protocol):
    """Distribution whose draws depend on the fitted data, through latent variables of groups."""

    groups: Any

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        """Draw data; see `Collapsed.draw_data`."""
        ...


@runtime_checkable
class ScoresMore(Protocol):
    """Distribution whose density covers more than its value, e.g. known classes, or omits some values."""

    def beside_value(self) -> Mapping[str, Callable[[], Array] | None]:
        """What else the density covers: functions by name, whose truth values say where it is stated.

        None in place of a function if the name alone is sufficient.
        """
        ...


class Collapsed(dist.Distribution):
    r"""Distribution of observed data whose latent variables are summed or integrated out.

    The joint density of data and latent variables is an exponential family in the latent ones,
    :math:`p(x, z) = \exp(\langle t(z), L(x) \rangle) / \Omega`, so that

    .. math:: \log p(x) = \log Z(L(x)) - \log\Omega, \qquad
              \partial \log Z / \partial L = E[t(z) \mid x].

    A subclass defines `num_units`, `log_factors`, `log_partition` and `by_unit`; `posterior`,
    `draw`, `statistic` and `mode` of the latent variables; and `draw_data` for predictions.
    Engines, the tree, leave-one-out terms, summaries and predictions use these methods for latent
    variables of any kind. Only methods that concern labels belong to `FiniteMixture`.
    """

    arg_constraints: ClassVar[dict] = {}

    num_units: int
    """Number of exchangeable units, whose terms `by_unit` returns."""

    has_independent_units: bool = True
    """Whether the units are independent given the parameters, so that new units have a density too."""

    groups: Groups | None = None
    """`Groups` whose rows share a latent variable; None where each row has its own."""

    def units(self) -> Units:
        """Return which points have latent variables, and which of them form one unit."""
        return Units(self.num_units, None, self.num_units)

    def links(self) -> LabelGraph | None:
        """Links that tie latent variables of the points; None if the distribution takes no links."""
        return None

    def observed(self) -> Array:
        """Which terms of `by_unit` are of data, shape (num_terms,)."""
        return jnp.ones(self.units().num_terms, bool)

    def take(self, batch: Batch) -> Collapsed | None:
        """The distribution of the rows of a batch; None if the distribution cannot be split."""
        return None

    def log_factors(self, value: Array) -> dict[str, Array]:
        """Natural parameters L of the latent variables given the data."""
        raise NotImplementedError

    def log_partition(self, factors: dict[str, Array]) -> Array:
        """Log partition function, shape (); it is convex, and its gradient is the E-step."""
        raise NotImplementedError

    def log_normalizer(self) -> Array:
        """Logarithm of the normaliser that does not depend on the data, shape ()."""
        return jnp.zeros(())

    def log_prob(self, value: Array) -> Array:
        """Joint log density of all data, shape ()."""
        return self.log_partition(self.log_factors(value)) - self.log_normalizer()

    def by_unit(self, value: Array) -> Array:
        """Terms of `log_prob` by unit, zero-padded beyond `num_units`.

        Where units are not independent given the parameters, each term is the log density of a unit
        given all others.
        """
        raise NotImplementedError

    def posterior(self, value: Array) -> dict[str, NamedArray]:
        """Summaries of the latent variables given data and parameters, by name.

        Besides means ``{name}`` there may be covariances ``{name}_covariance``, which repeat the
        last axis of the means. Probabilities of labels are called ``responsibilities``. No axis may
        have the name of a variable.
        """
        raise NotImplementedError

    def summaries(self, value: Array) -> tuple[dict[str, NamedArray], Array]:
        """`posterior` and `by_unit`; a distribution may compute both at once."""
        return self.posterior(value), self.by_unit(value)

    def draw(self, rng_key: Array, value: Array) -> Any:
        """Draw all latent variables jointly given data and parameters, in the form `statistic` takes."""
        raise NotImplementedError

    def statistic(self, latent: Any) -> dict[str, Array]:
        """Sufficient statistic t of drawn latent variables, with the structure of `log_factors`."""
        raise NotImplementedError

    def mode(self, value: Array) -> Any:
        """Jointly most probable latent variables."""
        raise NotImplementedError

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        """Draw latent variables, then data, with all side information held fixed.

        Latent variables of fitted groups are drawn given their data, those of all others from their
        prior.
        """
        raise NotImplementedError

    def approximation(self) -> str | None:
        """Name what is approximate in `log_prob`; None if it is exact."""
        return None

    def remark(self) -> str | None:
        """One sentence that the fit should report about the data; None if nothing."""
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


def unexpanded(fn: Any) -> Any:
    """A distribution without the expansion that a plate adds, and without a mask that hides nothing."""
    while isinstance(fn, dist.ExpandedDistribution) or (
        isinstance(fn, dist.MaskedDistribution) and fn._mask is True
    ):
        fn = fn.base_dist
    return fn
