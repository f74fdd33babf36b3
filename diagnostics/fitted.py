"""Protocols by which diagnostics read a fit, so that no module needs the class itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from sidebayes.guides.engines.base import Engine
from sidebayes.models.blocks.roles import Signature

if TYPE_CHECKING:
    from arviz_stats.utils import ELPDData
    from matplotlib.figure import Figure

__all__ = ["AskedFit", "Fitted", "FittedRun", "suits"]


class FittedRun(Protocol):
    """The run of a fit, as far as diagnostics read it; see `sidebayes.runs.run.Run`."""

    @property
    def model(self) -> Callable[..., None] | None:
        """The model; None where it is not known."""

    @property
    def card(self) -> Any:
        """The card of the model; None without one."""

    @property
    def data(self) -> Mapping[str, Any]:
        """Data by name of the argument."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of the model."""

    @property
    def stated(self) -> Mapping[str, Any]:
        """Options that are not at the model's defaults."""

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the columns of tables that were given with names."""

    @property
    def signature(self) -> Signature:
        """Roles of the model's arguments."""

    @property
    def sized_by_units(self) -> tuple[str, ...]:
        """Sites whose shape depends on the number of units."""


def suits(run: FittedRun | None, engine: str) -> bool:
    """Whether an engine can be advised; any can, of a model without a card."""
    card = None if run is None else run.card  # draws made elsewhere have no run
    return card is None or engine in card.engines


class Fitted(Protocol):
    """Facts about a fit, as its tree holds them; see `sidebayes.Fit`."""

    @property
    def tree(self) -> xr.DataTree:
        """ArviZ groups."""

    @property
    def run(self) -> FittedRun:
        """Model, data, options and engine."""

    @property
    def method(self) -> str:
        """Name of the card, or of the user's model."""

    @property
    def engine(self) -> str:
        """Name of the engine."""

    @property
    def config(self) -> Engine:
        """Configuration of the engine that ran."""

    @property
    def approximate(self) -> str | None:
        """Approximation made in summing out labels; None if exact."""

    @property
    def objective(self) -> NDArray:
        """Log joint density by restart and step, NaN after a start ended."""

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds waited for the fit, in parts and in ``total``."""

    @property
    def convergence(self) -> dict[str, float]:
        """Largest ``rhat`` and smallest ``ess``."""

    @property
    def verdict(self) -> tuple[str, str]:
        """How far to trust the fit: "good", "caution" or "bad", and why."""

    @property
    def has_labels(self) -> bool:
        """Whether the model has labels."""

    @property
    def relabelled(self) -> tuple[xr.DataTree, float]:
        """The tree with label switching undone, and the quality score of the matching."""

    @property
    def params(self) -> dict[str, NDArray]:
        """Point estimate."""


class AskedFit(Fitted, Protocol):
    """A fit with the methods that tables and pictures call."""

    @property
    def bic(self) -> float:
        """Bayesian information criterion of a mode; raises ValueError where it has none."""

    @property
    def picture(self) -> str | None:
        """Kind of picture that `plot` draws."""

    @property
    def event_times(self) -> str | None:
        """Site of times to an event."""

    def plot(self) -> Figure:
        """Draw the data with the model's description of them."""

    def labels(self) -> NDArray:
        """Labels of all points."""

    @property
    def has_classes(self) -> bool:
        """Return whether points have classes beside their labels; raises ValueError without the model."""

    @property
    def class_names(self) -> tuple[str | int, ...]:
        """Names of the classes; numbers for those without a name."""

    def class_probabilities(self) -> NDArray:
        """Posterior probabilities of the classes of all points."""

    def responsibilities(self) -> NDArray:
        """Posterior probabilities of the labels."""

    def suspect_links(self) -> pd.DataFrame:
        """Links by the posterior probability that they are wrong."""

    def coefficients(self) -> pd.DataFrame:
        """Fixed effects."""

    def loo(self) -> ELPDData:
        """Leave out one unit at a time."""

    def predictive(self, *, seed: int = 0, **named: Any) -> xr.DataTree:
        """Draw data from the posterior predictive distribution."""

    def survival(self, times: ArrayLike, *, since: ArrayLike) -> xr.Dataset:
        """Survival curves of subjects."""
