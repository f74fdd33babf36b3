"""What blocks know of their sites beside updates: starts, units, bounds, what to refuse and to remark.

As in `block`, each is a protocol, and engines ask by ``isinstance`` whether a block has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from jax import Array
from numpy.typing import NDArray
from numpyro.distributions.transforms import Transform

from .collapsed import Collapsed

__all__ = [
    "Bounded",
    "Checking",
    "CheckingRows",
    "Collapsible",
    "Doubting",
    "HasCodeLength",
    "HasUnits",
    "Improper",
    "Individual",
    "Obstructed",
    "Regularised",
    "Remarking",
    "RemarkingOnData",
    "RemarkingOnDraw",
    "Starting",
    "TakesMissing",
    "Typical",
    "Unbounded",
    "UpToSigns",
]


@runtime_checkable
class UpToSigns(Protocol):
    """Has sites whose columns may change sign and mean the same, as those of a factor of a covariance."""

    def canonical(
        self, values: Mapping[str, NDArray]
    ) -> tuple[dict[str, NDArray], tuple[str, NDArray]]:
        """Values that the sites stand for, one of those that mean the same.

        Parameters
        ----------
        values : mapping of str to ndarray, shape (chain, draw, ...)
            By role.

        Returns
        -------
        dict of ndarray
            Sites that were changed, by role.
        tuple of str and ndarray, shape (chain, draw, ..., column)
            Name of the axis of the columns, and their signs. Other sites that declare
            ``symmetry={axis: "signs"}`` take the same signs.
        """
        ...


@runtime_checkable
class Starting(Protocol):
    """Says where runs start, by the data.

    Where clusters are told apart there, other sites need not be fitted to partitions of the data.
    """

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Values to start runs from, by role, with an axis of starts in front; empty for none."""
        ...


class TakesMissing:
    """Base of `Starting` blocks whose data may have missing values, NaN."""


@runtime_checkable
class Individual(Protocol):
    """Has a site with a row of latent values for each individual, of which the data give a rough idea.

    Runs start there. Where the site sums labels out, the blocks that learn from it start at partitions of
    these values. Rows are alike, and those of different units independent given all else.
    """

    def guess(self) -> Array:
        """Rough values of the site."""
        ...

    def schedule(self) -> tuple[str, Array] | None:
        """Option of the model, and its values in the first steps of a climb; None without any."""
        ...


@runtime_checkable
class Typical(Protocol):
    """Says where all runs start, at values that are the same for every cluster."""

    def typical(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Values to start from, by role; empty for none."""
        ...


@runtime_checkable
class Collapsible(Protocol):
    """Sees where a cluster has collapsed; `Block.remedy` says what to do."""

    def degenerate(self, values: Mapping[str, Any]) -> tuple[int, str] | None:
        """Number of a cluster that collapsed and what happened to it, None if all is well."""
        ...


@runtime_checkable
class Doubting(Protocol):
    """Doubts modes, which are set aside where a start found another."""

    def doubts(self, values: Mapping[str, Any]) -> bool:
        """Whether something is wrong with values of the sites, though the log density is high there."""
        ...


@runtime_checkable
class Improper(Protocol):
    """May have a prior that leaves no posterior to draw from."""

    def improper(self) -> str | None:
        """Say why the sites have no posterior at all, None if they have one."""
        ...


@runtime_checkable
class Unbounded(Protocol):
    """May have a density without bound, of which only engines that prune make sense."""

    def unbounded(self) -> str | None:
        """Say where the density has no bound and what to do, None if it has one."""
        ...


@runtime_checkable
class Obstructed(Protocol):
    """Has a full conditional to draw from only for some distributions of the data."""

    def obstacle(self, sources: Sequence[Collapsed]) -> str | None:
        """Say why there is none, None if there is one."""
        ...


@runtime_checkable
class Checking(Protocol):
    """Looks at the data before a fit."""

    def check(self, name: str, value: Any) -> None:
        """Refuse data, observed at site `name`, that the sites cannot describe."""
        ...


@runtime_checkable
class CheckingRows(Protocol):
    """Looks at new rows before a prediction."""

    def check_rows(self, name: str, value: Any) -> None:
        """Raise an error that says why it cannot describe them."""
        ...


@runtime_checkable
class Remarking(Protocol):
    """Looks at the draws of a fit."""

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """What a fit should say of the draws of its sites, in a sentence; None if nothing.

        Values have an axis of chains and one of draws in front. They are by role, and those of roles that
        the block lacks are of other blocks. Such a block need not be there: the user may have given its
        values, or have put a prior of his own in its place.
        """
        ...


@runtime_checkable
class RemarkingOnData(Protocol):
    """Looks at the data of a fit."""

    def remark_on_data(self, name: str, value: Any) -> str | None:
        """What a fit should say of the data, observed at site `name`, in a sentence; None if nothing."""
        ...


@runtime_checkable
class RemarkingOnDraw(Protocol):
    """Distribution of an observed site that looks at the data beside a draw of its parameters."""

    def remark_on_draw(self, name: str, value: Any, is_density: bool) -> str | None:
        """What a fit should say of the data, observed at site `name`, in a sentence; None if nothing.

        `is_density` is false where their density is raised to a power.
        """
        ...


@runtime_checkable
class Bounded(Protocol):
    """Has sites that may lie on the boundary of what they can be, where there are no standard errors."""

    def at_boundary(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of sites, its own and deterministic ones, that lie there at values by role."""
        ...


@runtime_checkable
class HasUnits(Protocol):
    """Knows the units in which its sites vary by about one, in which gradients and random walks move."""

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Map from unconstrained coordinates to the support of a site; `bijector` is NumPyro's."""
        ...


@runtime_checkable
class Regularised(Protocol):
    """May have a prior that was read off the data: it keeps spreads from vanishing, and knows nothing else.

    Ends of climbs are then ranked by the likelihood, as the density of such a prior is highest where
    clusters have next to no points.
    """

    from_data: bool


@runtime_checkable
class HasCodeLength(Protocol):
    """Knows what its sites cost to write down, beside half a log number of units a degree of freedom."""

    def code_length(self, role: str) -> float:
        """Nats that a site costs."""
        ...
