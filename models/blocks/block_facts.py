"""What blocks know about their sites besides updates: starts, units, bounds, errors and remarks.

As in `block`, each class is a protocol, and engines test by ``isinstance`` whether a block has it.
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
    """Blocks with sites whose columns have arbitrary signs, such as a factor of a covariance."""

    def canonical(
        self, values: Mapping[str, NDArray]
    ) -> tuple[dict[str, NDArray], tuple[str, NDArray]]:
        """Return one representative of the values that differ only in signs.

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
    """Blocks that choose the starts of runs from the data.

    Where clusters differ at these starts, other sites need not be fitted to partitions of the data.
    """

    def starts(
        self, value: Any, shapes: Mapping[str, tuple[int, ...]], seed: int, num_starts: int
    ) -> dict[str, Any]:
        """Starting values by role, with a leading axis of starts; empty if there are none."""
        ...


class TakesMissing:
    """Base of `Starting` blocks whose data may have missing values, NaN."""


@runtime_checkable
class Individual(Protocol):
    """Blocks with a site of latent values, one row per individual, that the data roughly determine.

    Runs start at these rough values. Where the site sums labels out, the blocks that learn from it
    start at partitions of these values. Rows are exchangeable, and rows of different units are
    independent given everything else.
    """

    def guess(self) -> Array:
        """Rough values of the site."""
        ...

    def schedule(self) -> tuple[str, Array] | None:
        """An option of the model and its values in the first steps of an optimisation; None without any."""
        ...


@runtime_checkable
class Typical(Protocol):
    """Blocks that start all runs at values that are the same for every cluster."""

    def typical(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Starting values by role; empty if there are none."""
        ...


@runtime_checkable
class Collapsible(Protocol):
    """Blocks that detect collapsed clusters; `Block.remedy` says what to do about them."""

    def degenerate(self, values: Mapping[str, Any]) -> tuple[int, str] | None:
        """Number of a collapsed cluster and what happened to it; None if no cluster collapsed."""
        ...


@runtime_checkable
class Doubting(Protocol):
    """Blocks that doubt some modes, whose log densities are too high for a comparison with other modes."""

    def doubts(self, values: Mapping[str, Any], data: Any) -> tuple[float, str] | None:
        """Nats of log density without which a mode is compared with others, and where it lies; or None.

        Infinitely many set it aside if another start found a different mode. Data are a table that the sites
        describe, or None where there is none. The rest of the sentence is "starts that ended ... were
        set aside".
        """
        ...


@runtime_checkable
class Improper(Protocol):
    """Blocks that may have an improper prior, so that there is no posterior to draw from."""

    def improper(self) -> str | None:
        """Say why the sites have no posterior; None if they have one."""
        ...


@runtime_checkable
class Unbounded(Protocol):
    """Blocks that may have an unbounded density, which only engines that prune can handle."""

    def unbounded(self) -> str | None:
        """Say where the density is unbounded and what to do; None if it is bounded."""
        ...


@runtime_checkable
class Obstructed(Protocol):
    """Blocks with a full conditional to draw from only for some distributions of the data."""

    def obstacle(self, sources: Sequence[Collapsed]) -> str | None:
        """Say why there is no full conditional; None if there is one."""
        ...


@runtime_checkable
class Checking(Protocol):
    """Blocks that check the data before a fit."""

    def check(self, name: str, value: Any) -> None:
        """Refuse data, observed at site `name`, that the sites cannot describe."""
        ...


@runtime_checkable
class CheckingRows(Protocol):
    """Blocks that check new rows before a prediction."""

    def check_rows(self, name: str, value: Any) -> None:
        """Raise an error that says why the block cannot describe these rows."""
        ...


@runtime_checkable
class Remarking(Protocol):
    """Blocks that comment on the draws of a fit."""

    def remark(self, values: Mapping[str, Any]) -> str | None:
        """One sentence that the fit should report about the draws; None if there is nothing to report.

        Values are by role, with leading axes of chains and draws. Roles that this block lacks
        belong to other blocks. Such a block need not be there: the user may have given its values,
        or have replaced it by a prior of their own.
        """
        ...


@runtime_checkable
class RemarkingOnData(Protocol):
    """Blocks that comment on the data of a fit."""

    def remark_on_data(self, name: str, value: Any, draws: Mapping[str, Any]) -> str | None:
        """One sentence that the fit should report about the data of site `name`; None if nothing.

        Draws are by role, as those of `Remarking.remark`.
        """
        ...


@runtime_checkable
class RemarkingOnDraw(Protocol):
    """Distributions of an observed site that compare the data with a draw of their parameters."""

    def remark_on_draw(self, name: str, value: Any, is_density: bool) -> str | None:
        """One sentence that the fit should report about the data of site `name`; None if nothing.

        `is_density` is false if the density of the data is raised to a power.
        """
        ...


@runtime_checkable
class Bounded(Protocol):
    """Blocks with sites that may lie on the boundary of their support, without standard errors."""

    def at_boundary(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Names of the sites, its own and deterministic ones, that are on the boundary."""
        ...


@runtime_checkable
class HasUnits(Protocol):
    """Blocks that know the scale of their sites; gradients and random walks use it as the unit."""

    def bijector(self, role: str, bijector: Transform) -> Transform:
        """Map from unconstrained coordinates to the support of a site; `bijector` is NumPyro's."""
        ...


@runtime_checkable
class Regularised(Protocol):
    """Blocks that may have a data-dependent prior, whose only purpose is to keep spreads from vanishing.

    The modes that runs find are then ranked by the likelihood, because the density of such a prior
    is highest where clusters have hardly any points.
    """

    from_data: bool


@runtime_checkable
class HasCodeLength(Protocol):
    """Blocks whose sites have a code length besides half a log number of units per degree of freedom."""

    def code_length(self, role: str) -> float:
        """Code length of a site, in nats."""
        ...
