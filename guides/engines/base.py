"""Input and result of every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sidebayes.common.fields import check_fields
from sidebayes.common.magnitudes import shown
from sidebayes.common.warnings import SideBayesWarning

from .modes import Modes

__all__ = [
    "KEEPS_NOTHING",
    "Engine",
    "EngineResult",
    "Evidence",
    "FitError",
    "Keeper",
    "KeptEngine",
    "Problem",
    "SideBayesWarning",
    "Status",
    "check_state",
]


class FitError(RuntimeError):
    """Error of a run that failed; `params` holds the last good state, if any."""

    def __init__(self, message: str, params: Mapping[str, NDArray] | None = None) -> None:
        super().__init__(message)
        self.params = params


@dataclass(frozen=True)
class Problem:
    """A model together with its data.

    Attributes
    ----------
    model : callable
        NumPyro model.
    args : tuple
        Positional arguments: data, which may be traced.
    kwargs : dict
        Options that shape the model.
    notes : dict
        Facts about the model, each of which is computed once.
    unseen : bool
        Whether the data differ from those of the fit. A model that checks the numbers of its data, as
        it must for a fit, then gets none.
    row_numbers : ndarray of int, or None
        Numbers of the rows of the data in the table on disk that they are a sample of, for messages.
    """

    model: Callable[..., None]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    unseen: bool = False
    row_numbers: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Status:
    """Verdict on a run: whether it converged, and a sentence of advice."""

    converged: bool
    message: str

    def __str__(self) -> str:
        """The sentence."""
        return self.message


@dataclass(frozen=True)
class Evidence:
    """Log marginal likelihood of the data, as far as an engine knows it.

    Attributes
    ----------
    value : float
    kind : {"estimate", "bound"}
        "bound" is a lower bound.
    standard_error : float or None
        Monte Carlo error of `value`; None where it was not sampled.
    """

    value: float
    kind: str = "estimate"
    standard_error: float | None = None

    def __float__(self) -> float:
        """The value."""
        return self.value

    def __str__(self) -> str:
        """Value and error in a few words."""
        error = "" if self.standard_error is None else f" ± {self.standard_error:.2g}"
        return f"log evidence {'≥ ' if self.kind == 'bound' else ''}{self.value:.6g}{error}"


@dataclass(frozen=True)
class EngineResult:
    """Result of an engine.

    Attributes
    ----------
    engine : str
    draws : dict of ndarray
        Every latent and deterministic site, shape (chain, draw, ...); (1, 1, ...) for a point.
    sample_stats : dict of ndarray, shape (chain, draw)
    objective : ndarray, shape (restart, step)
        Log joint density by step, NaN after the end; empty for samplers.
    status : Status
    seconds : dict
        ``compile`` and ``run``, of the engine itself.
    approximate : str or None
        The approximation made in summing out labels, if any.
    density_space : {"constrained", "unconstrained"}
        Space in which a mode was sought.
    log_evidence : Evidence or None
    standard_errors : dict of ndarray, or None
        Monte Carlo standard errors of a point estimate that was found by sampling.
    points : tuple of str
        Sites whose draws only repeat a point estimate, while other sites have draws.
    factor_means : dict of ndarray
        Exact means of sites, where the engine has them beside its draws.
    conditional_draws : dict of ndarray
        Draws of some sites given the point estimate of all others, shape (chain, draw, ...).
    modes : Modes or None
        Distinct modes that climbs from several starts found.
    remarks : tuple of str
        Sentences that call for caution, without the full stop.
    best_start : int or None
        Row of `objective` that led to the result, where it need not be the highest.
    effective_draws : float or None
        Number of independent draws that `draws` are worth, where they were resampled by weights and thus hold
        copies.
    is_mode : bool
        False where a climb ended at a point from which the density grows without bound, or rises inwards.
    """

    engine: str
    draws: dict[str, NDArray]
    sample_stats: dict[str, NDArray]
    objective: NDArray
    status: Status
    seconds: dict[str, float]
    approximate: str | None = None
    density_space: str = "constrained"
    log_evidence: Evidence | None = None
    standard_errors: dict[str, NDArray] | None = None
    points: tuple[str, ...] = ()
    factor_means: dict[str, NDArray] = field(default_factory=dict)
    conditional_draws: dict[str, NDArray] = field(default_factory=dict)
    modes: Modes | None = None
    remarks: tuple[str, ...] = ()
    best_start: int | None = None
    effective_draws: float | None = None
    is_mode: bool = True

    @property
    def params(self) -> dict[str, NDArray]:
        """The point estimate, or the draw of highest density."""
        best = np.unravel_index(np.argmax(self.sample_stats["lp"]), self.sample_stats["lp"].shape)
        return {name: value[best] for name, value in self.draws.items()}


class Keeper:
    """Keeps the state of a run, so that the run can go on after an interruption; this one keeps nothing."""

    def part(self, number: int) -> Keeper:
        """Keeper of one part of the run."""
        return self

    def restore(self, state: Any) -> Any:
        """Return the latest state that was kept, in the structure of `state`; `state` itself if none was."""
        return state

    def offer(self, state: Any, *, now: bool = False) -> None:
        """Keep the state if enough time has passed, or in any case if `now` is true."""


KEEPS_NOTHING = Keeper()


class Engine:
    """A routine of inference, chosen by its configuration; base class of all engines."""

    name: ClassVar[str]

    starts_at_mode: ClassVar[bool] = False
    """Whether a run without starting values starts at the mode that another engine finds."""

    starts_at_prior: ClassVar[bool] = False
    """Whether runs start at draws of the prior."""

    hard_labels: ClassVar[bool] = False
    """Whether the engine assigns labels rather than averaging over them."""

    gives_point: ClassVar[bool] = False
    """Whether the result is a point rather than draws."""

    climbs: ClassVar[bool] = False
    """Whether rows of `EngineResult.objective` are starts of a climb without noise, so that the last
    gain tells how far the end was."""

    prunes: ClassVar[bool] = False
    """Whether the engine prunes what does not pay for itself, so that densities need no bound there."""

    one_start: ClassVar[bool] = False
    """Whether the engine starts once, and has no option to start more often."""

    corners: ClassVar[tuple[str, ...]] = ()
    """Roles of sites on simplices that the engine holds at zeros and ones."""

    independent_draws: ClassVar[bool] = False
    """Whether draws are independent of each other, so that one chain of them can be judged."""

    length: ClassVar[str] = "max_steps"
    """Name of the field that limits the length of a run."""

    for_more: ClassVar[str] = "run longer"
    """What to do if draws disagree or are few."""

    streams: ClassVar[bool] = False
    """Whether the engine can read a table on disk, a block of rows at a time."""

    def __post_init__(self) -> None:
        """Check the fields of a configuration against their annotations; see `check_fields`."""
        check_fields(self)

    def roughly(self) -> Engine:
        """The engine that finds where chains start, which need not be exactly at a mode."""
        return self

    def prepare(self, problem: Problem) -> None:
        """Compile in another thread what `run` will need later; see `compile_ahead`."""

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> EngineResult:
        """Fit the model of `problem` to its data."""
        raise NotImplementedError


class KeptEngine(Engine):
    """An engine whose runs can be interrupted: it offers its state, and goes on from one that was kept."""

    def run(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        init: Mapping[str, Any] | None = None,
        progress: bool = True,
        keep: Keeper = KEEPS_NOTHING,
    ) -> EngineResult:
        """Fit the model of `problem` to its data; `keep` receives the state during the run."""
        raise NotImplementedError


def check_state(state: Any, kind: type) -> None:
    """Refuse a state that no `init` or `step` of an engine has returned.

    Raises
    ------
    TypeError
        If the state is not of the engine's kind.
    """
    if not isinstance(state, kind):
        raise TypeError(
            f"state = {shown(state)}; expected the {kind.__name__} that init or step returned"
        )
